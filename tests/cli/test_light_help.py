"""Commands that are imported when they run, and how little help imports."""

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_command

from guardwrap.cli.typer_app import COMMANDS, app
from tests.cli.fixtures_commands import ROOT, run

HEAVY = {"jsonschema", "llguidance", "numpy", "pandas", "peft", "pydantic", "scipy", "torch", "transformers"}
RUN = """\
import sys
sys.argv = ["guardwrap", *{args}]
from guardwrap.cli import main
try:
    main()
except SystemExit:
    pass
"""


def heavy_modules(code: str) -> set[str]:
    """Return the heavy modules that Python has imported after running the code."""
    report = f"\nimport sys; print(*{HEAVY!r} & set(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", code + report]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import guardwrap; guardwrap.Budget", set()),
        (RUN.format(args=["--help"]), set()),
        (RUN.format(args=["--version"]), set()),
        (RUN.format(args=["generate", "--help"]), {"jsonschema", "llguidance", "numpy", "pydantic"}),
        ("import pydantic, scipy", {"numpy", "pydantic", "scipy"}),  # a negative control
    ],
)
def test_only_needed_modules_are_imported(code: str, modules: set[str]) -> None:
    assert heavy_modules(code) == modules


@pytest.mark.parametrize("name", COMMANDS)
def test_summaries_are_those_of_the_commands(name: str) -> None:
    function = getattr(import_module(f"guardwrap.cli.commands.{name}_command"), name)
    assert COMMANDS[name] == (inspect.getdoc(function) or "").split("\n\n")[0]


def test_help_lists_the_commands_before_and_after_they_are_imported() -> None:
    group: Any = get_command(app)
    before = run("--help").stdout
    assert all(f"│ {name} " in before for name in COMMANDS)
    imported = [group.get_command(None, name) for name in COMMANDS]
    assert [command.name for command in imported] == list(COMMANDS) == group.list_commands(None)
    assert [group.get_command(None, name) for name in COMMANDS] == imported
    assert group.get_command(None, "nothing") is None
    for name in COMMANDS:
        run(name, "--help")
    assert run("--help").stdout == before
