"""The typer app: errors, unknown options, commands that are imported when they run, and how little help imports."""

import inspect
import os
import platform
import re
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_command

from guardwrap import __version__
from guardwrap.cli.typer_app import COMMANDS, app
from guardwrap.errors import REMOVED
from tests.cli.fixtures_commands import ROOT, assert_one_line, generate, python, run

pytestmark = pytest.mark.usefixtures("command_line")


def test_version_and_help():
    assert run("--version").stdout == f"guardwrap {__version__}\n"
    for args in ([], ["--help"], ["-h"]):
        result = run(*args)
        assert result.exit_code == 0
        assert all(command in result.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    undocumented = [p.name for p in _command(command).params if p.name != "help" and not getattr(p, "help", None)]
    assert not undocumented


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_shows_flags_without_the_type_of_a_value(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    args = ["--help"] if command is None else [command, "--help"]
    first = run(*args).stdout
    assert "<bool>" not in first
    assert re.search(r"--help +-h +Show this message", first), first
    verbose = [line for line in first.splitlines() if " --verbose " in line]
    assert all(re.search(r"-v +Log to stderr", line) for line in verbose)
    if command == "generate":
        assert re.search(r"--model +-m +<str> ", first), "options with a value keep its type"


def _command(name):
    from typer.main import get_command

    commands: Any = get_command(app)
    return commands.get_command(None, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["generate", "--help"],
        ["plan", "--help"],
        ["evaluate", "--help"],
        ["train", "--help"],
        ["report", "--help"],
        ["check", "catalogue:no-urls", "--text", "text"],
        ["catalogue"],
        ["catalogue", "--schema"],
    ],
)
def test_starts_without_torch(args):
    code = (
        "import sys\nfrom guardwrap.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    process = python(code, *args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_memory_that_is_freed_is_kept():
    def faults(call):
        code = (
            "import resource\nfrom guardwrap.support.process import keep_freed_memory\n"
            f"{call}\n"
            "for _ in range(20):\n    del bytearray(b'1' * 2**26)[:]\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)\n"
        )
        return int(python(code, stdout=subprocess.PIPE).communicate()[0])

    pages = 20 * 2**26 // os.sysconf("SC_PAGESIZE")
    assert faults("pass") - faults("keep_freed_memory()") > pages / 2


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["generate", "hi"], "--constraints"),
        (["generate", "hi", "-c", "catalogue:no-urls", "--nope"], "--nope"),
        (["generate", "hi", "-c", "catalogue:no-urls", "-n", "many"], "integer"),
        (["check"], "FILE_OR_NAME"),
    ],
)
def test_a_wrong_command_line_is_one_line(args, part):
    assert_one_line(run(*args), part)


def test_an_unexpected_error_is_one_line_without_its_message(model, has_a, monkeypatch):
    def crash(*args, **options):
        raise RuntimeError("an unchecked text")

    monkeypatch.setattr("guardwrap.generator.GuardedGenerator.stream", crash)
    result = generate(model, "hi", "-c", has_a)
    assert_one_line(result, "RuntimeError", "-vv", code=1)
    assert "unchecked" not in result.stderr
    assert "Traceback" in generate(model, "hi", "-c", has_a, "-vv").stderr


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "word", "code"), [("SIGINT", "interrupted", 130), ("SIGTERM", "terminated", 143)])
def test_a_signal_is_one_line_in_every_command(has_a, sent, word, code):
    start = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also where the runner is in the background
        "from guardwrap.cli import main\n"
        "from guardwrap.constraints.kinds.text import Regex\n"
        f"Regex.check = lambda *_: os.kill(os.getpid(), signal.{sent})\n"
        "main()\n"
    )
    process = python(start, "check", has_a, "--text", "ab", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.communicate() == ("", f"guardwrap: {word}\n")
    assert process.returncode == code


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--max-attempt", " (did you mean --max-attempts?)"),
        ("--retry", " (did you mean --retry-failed?)"),
        ("--top_k", " (did you mean --top-k?)"),
        ("--top", " (did you mean --top-p or --top-k?)"),
        ("--tempature", " (did you mean --temperature?)"),
        ("--cache", f" ({REMOVED['cache']})"),
        ("--export", ""),  # typer would suggest --endpoint, because it compares the dashes as well
        ("-z", ""),
    ],
)
def test_unknown_options(given, meant):
    result = run("generate", "a", "-c", "catalogue:no-digits", given)
    assert_one_line(result, f"guardwrap: No such option: {given}{meant} (see ")


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
        ("import guardwrap", set()),
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
