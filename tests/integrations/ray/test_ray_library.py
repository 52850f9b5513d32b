"""Ray is imported only on request, and the message about a missing Ray is one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from guardwrap.errors import UsageError
from guardwrap.integrations.ray.ray_job import connected, library
from tests.cli.fixtures_commands import assert_one_line, run

HERE = Path(__file__).parents[3]


def test_neither_ray_nor_torch_comes_with_the_module() -> None:
    code = (
        "import sys, guardwrap.integrations.ray, guardwrap.cli.ray_run; "
        "assert not {'ray', 'pyarrow', 'torch', 'transformers'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0


def test_without_ray_the_way_out_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'guardwrap\[ray\]'"):
        library()


@pytest.mark.parametrize("address", ["autoo", "nowhere", "localhost:x", ":6379", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_nobody_is_ends_at_once(address, monkeypatch):
    class NotAsked:
        def is_initialized(self):
            return False

        def init(self, **_):
            raise AssertionError("Ray itself tries for a minute, and then ends the process")

    monkeypatch.setattr("guardwrap.integrations.ray.ray_job.library", NotAsked)
    with pytest.raises(UsageError, match=r"--ray auto .* HOST:PORT"), connected(address, 1):
        pass


def test_workers_that_there_is_no_room_for_are_refused(monkeypatch):
    class Small:
        def is_initialized(self):
            return True

        def cluster_resources(self):
            return {"CPU": 2.0}

    monkeypatch.setattr("guardwrap.integrations.ray.ray_job.library", Small)
    with pytest.raises(UsageError, match="3 workers need 3 CPUs, but Ray has 2; give fewer --workers"):
        connected("auto", 3).__enter__()
    with pytest.raises(UsageError, match="2 workers need 1 GPUs, but Ray has 0"):
        connected("auto", 2, 0.5).__enter__()
    with connected("auto", 2):
        pass


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--jsonl", "in.jsonl", "--ray", "auto"], "--ray needs --output, a folder"),
        (["ab", "--ray", "auto", "-o", "out"], "give a file with --jsonl or --parquet"),
        (["--jsonl", "-", "--ray", "auto", "-o", "out"], "give a file with --jsonl or --parquet"),
        (["--jsonl", "in.jsonl", "--workers", 2], "--workers requires --ray"),
        (["--parquet", "in.parquet"], "--parquet requires --ray"),
        (["--jsonl", "in.jsonl", "--parquet", "in.parquet"], "give prompts in one place only"),
    ],
)
def test_what_does_not_go_together_is_refused(args, problem):
    Path("c.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: a}\n")
    Path("in.jsonl").write_text('{"prompt": "ab"}\n')
    assert_one_line(run("generate", "-c", "c.yaml", *args), problem)
