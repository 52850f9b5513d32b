"""Progress on stderr: lines where there is no terminal, and a bar on one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from threading import Event

import pytest
from rich.console import Console

from guardwrap.cli import progress
from guardwrap.cli.progress import Progress, progress_line, progress_shown
from guardwrap.support.formatting import lasting
from tests.cli.fixtures_commands import generate, run


@pytest.mark.parametrize(
    ("seconds", "shown", "line"),
    [
        (10, Progress(10, kept=10), "10 of 110 prompts done after 10 s"),
        (20, Progress(19, kept=10), "19 of 110 prompts done"),  # less than a tenth is new
        (30, Progress(40, kept=10, short=2), "40 of 110 prompts done (2 without all their texts), about 1.2 min left"),
        (40, Progress(90, kept=10), "90 of 110 prompts done, about 10 s left"),
        # The longer nothing ends, the longer the rest takes.
        (80, Progress(90, kept=10), "90 of 110 prompts done, about 20 s left"),
        # Prompts that end first do not show how long the slow one takes that started with them.
        (80, Progress(90, kept=10, all_started=True), "90 of 110 prompts done"),
    ],
)
def test_how_far_and_how_long(seconds: float, shown: Progress, line: str) -> None:
    assert progress_line(shown, seconds, 110, "prompt") == f"guardwrap: {line}"


def test_where_no_total_is_known() -> None:
    lines = [progress_line(Progress(done), 10, None, "prompt") for done in range(3)]
    assert lines == [
        "guardwrap: 0 prompts done after 10 s",
        "guardwrap: 1 prompt done",
        "guardwrap: 2 prompts done",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "about 0 s"), (59, "about 59 s"), (90, "about 1.5 min"), (9000, "about 2.5 h")]
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_lines_come_without_results_and_end_with_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY", 1e-3)
    asked, calls = Event(), iter(range(1_000_000))

    def state() -> Progress:
        if next(calls) == 5:
            asked.set()
        return Progress()

    with progress_shown(state, 3, "prompt"):
        assert asked.wait(60), "nobody asks how far it is"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "guardwrap: 0 of 3 prompts done after 0 s"
    before = next(calls)
    assert not Event().wait(0.02)
    assert next(calls) == before + 1, "it continues after the end"


def test_a_run_that_is_done_says_no_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "EVERY", 1e-3)
    asked = Event()

    def state() -> Progress:
        asked.set()
        return Progress(3)

    with progress_shown(state, 3, "prompt"):
        assert asked.wait(60)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_shown(lambda: Progress(2, kept=1), 3, "prompt", Console(force_terminal=True)):
        pass
    assert re.search(r"prompts .*2/3", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
def test_generate_and_plan_tell(model: str, has_a: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twenty = [*["ab"] * 20, "-c", has_a, "--max-attempts", 1, "--seed", 1]
    assert generate(model, *twenty).stderr.count("prompts done") == 0, "it took less than ten seconds"
    for module in ("guardwrap.cli.progress", "guardwrap.cli.commands.plan_command"):
        monkeypatch.setattr(f"{module}.EVERY", 1e-3)
    told = generate(model, *twenty).stderr.splitlines()
    assert re.match(r"guardwrap: \d+ of 20 prompts done", told[0])
    assert not any(line.startswith("guardwrap: 20 of 20 prompts done") for line in told)
    assert "prompts done" not in generate(model, *twenty, "--quiet").stderr
    planned = run("plan", "--model", model, "-c", has_a, "ab", "--pilot", 50)
    told = [
        int(drawn)
        for drawn in re.findall(r"^guardwrap: (\d+) attempts? of the pilot drawn in \d s$", planned.stderr, re.M)
    ]
    assert told == sorted(told)
    assert 0 < max(told) <= 100
    assert planned.exit_code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
def test_prompts_behind_a_slow_one_are_done(
    model: str, has_a: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that end before an earlier one count as done, without a time that the slow one would exceed."""
    monkeypatch.setattr(progress, "EVERY", 1e-3)
    never = {"prompt": "ab", "constraint": {"kind": "regex", "pattern": "[0-9]"}, "budget": {"max_attempts": 1000}}
    easy = {"prompt": "ab", "budget": {"max_attempts": 1000}}
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps(line) + "\n" for line in [never, *[easy] * 5]))
    given = ["--jsonl", lines, "-c", has_a, "--seed", 1, "--batch-size", 8]
    for output in (["-o", tmp_path / "out.jsonl"], []):
        told = generate(model, *given, *output)
        assert told.exit_code == 3
        assert re.search(r"^guardwrap: [1-5] of 6 prompts done", told.stderr, re.MULTILINE)
        assert " left" not in told.stderr, "all six are under way, and the slow one is among them"
