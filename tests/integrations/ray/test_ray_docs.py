"""The examples for Ray in docs/batches.md, as written except the model."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import blocks, command_lines
from tests.test_examples import needs_more

pytest.importorskip("ray", reason="Ray is not installed; see `make test-ray`")

ROOT = Path(__file__).parents[3]
PAGE = "batches.md"


def test_what_the_page_shows_works(model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = [{"id": "tea-1", "prompt": "Each morning I drink a cup of"}, {"id": "tea-2", "prompt": "The old boat"}]
    Path("batch.jsonl").write_text("".join(json.dumps(each) + "\n" for each in given))
    Path("clean.yaml").write_text("guardwrap: 1\nconstraint: {kind: length, max: 500}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*args):
        command = [sys.executable, "-W", "ignore", *args]
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    commands = [line for line in command_lines(PAGE) if needs_more(line)]
    assert len(commands) == 2
    for line in commands:
        done = run("-m", "guardwrap", *shlex.split(line), "--model", model)
        assert done.returncode == 0, done.stderr
    names = [json.loads(line)["id"] for line in Path("out/results.jsonl").read_text().splitlines()]
    assert names == [each["id"] for each in given]
    (code,) = filter(needs_more, blocks(PAGE, "python"))
    assert '"local"' in code
    done = run("-c", code.replace('"local"', repr(model)).replace('"out"', '"saved"'))
    assert done.returncode == 0, done.stderr
    lines = [line for path in Path("saved").glob("*.json") for line in path.read_text().splitlines()]
    # The tiny model often writes digits, so a row may spend its budget.
    assert sorted(json.loads(line)["id"] for line in lines) == [each["id"] for each in given]
