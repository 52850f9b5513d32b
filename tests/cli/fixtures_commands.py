"""Helpers that run commands in this process or in another one, and check their output."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import typer.testing
from typer.testing import CliRunner

from guardwrap.cli.typer_app import app

ROOT = Path(__file__).parents[2]
# Otherwise all commands are rebuilt for each call, which takes longer than most calls.
vars(typer.testing)["_get_command"] = cache(typer.main.get_command)

HAS_A = "guardwrap: 1\nconstraint: {kind: regex, name: has an a, pattern: a}\n"
NEVER = "guardwrap: 1\nconstraint: {kind: regex, name: has a digit, pattern: '[0-9]'}\n"
TWO_PARTS = """\
guardwrap: 1
name: two-parts
constraint:
  kind: all
  of:
    - {kind: regex, name: has an a, pattern: a}
    - {kind: length, name: short, max: 5, unit: characters}
examples:
  accepts: [abc, a]
  rejects: [xyz, aaaaaaaaaaa]
"""


def run(*args, stdin=None):
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def texts(*given):
    """Return the options of ``guardwrap check`` for texts."""
    return [option for text in given for option in ("--text", text)]


def generate(model, *args, stdin=None):
    return run("generate", "--model", model, "--max-new-tokens", 8, *args, stdin=stdin)


def records(text):
    return [json.loads(line) for line in text.splitlines()]


def without_time(text):
    """Return the records of a run without the fields that differ between runs with the same texts."""
    rows = records(text)
    for row in rows:
        del row["report"]["usage"], row["report"]["checksum"]
    return rows


def assert_one_line(result, *parts, code=2):
    """Assert the exit code, exactly one line on stderr that has all the parts, and an empty stdout."""
    assert result.exit_code == code, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("guardwrap: ")
    for part in parts:
        assert part in result.stderr
    assert not result.stdout


def python(code, *args, **options):
    """Start another Python that imports this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], env=environment, text=True, **options)
