"""Progress lines, where there is no terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import Event

import pytest

from guardwrap.cli import progress_log
from guardwrap.cli.progress_log import Far, Pace
from guardwrap.formatting import lasting
from tests.cli.fixtures_commands import generate, run


def test_how_far_and_how_long() -> None:
    pace = Pace(100.0, 110, "prompt")
    assert pace.line(110.0, Far(10, kept=10)) == "guardwrap: 10 of 110 prompts done after 10 s"
    assert pace.line(120.0, Far(19, kept=10)) == "guardwrap: 19 of 110 prompts done", "less than a tenth is new"
    # 31 of them; 9 were done by 120 s, less than half, so those since then count: 22 in 10 s.
    assert pace.line(130.0, Far(41, kept=10, short=2)) == (
        "guardwrap: 41 of 110 prompts done (2 without all their texts), about 31 s left"
    )
    # 60 of them; 31 were done by 130 s, more than half, so those since 120 s count: 51 in 20 s.
    assert pace.line(140.0, Far(70, kept=10)) == "guardwrap: 70 of 110 prompts done, about 16 s left"


def test_what_is_kept_tells_no_time_whenever_it_is_found() -> None:
    pace = Pace(0.0, 1000, "attempt")
    assert pace.line(10.0, Far(400, kept=400)) == "guardwrap: 400 of 1,000 attempts done after 10 s"
    assert pace.line(20.0, Far(500, kept=400)) == "guardwrap: 500 of 1,000 attempts done, about 50 s left"
    assert pace.line(30.0, Far(800, kept=600)) == "guardwrap: 800 of 1,000 attempts done, about 20 s left"


def test_the_wait_for_the_first_ones_does_not_count_for_ever() -> None:
    """Of fifty prompts, none ends in the first minute, and then one ends each second."""
    pace = Pace(0.0, 50, "prompt")
    lines = [pace.line(10.0 * i, Far(max(0, 10 * (i - 6)))) for i in range(1, 11)]
    assert [line.endswith(" left") for line in lines] == [False] * 6 + [True] * 4
    assert lines[7:] == [f"guardwrap: {n} of 50 prompts done, about {50 - n} s left" for n in (20, 30, 40)]


def test_no_time_while_the_last_ones_take_longer_than_all_before() -> None:
    """The ETA would rise for as long as no prompt ends."""
    pace = Pace(0.0, 10, "prompt")
    for at, count in ((10.0, 4), (20.0, 8)):
        assert " left" in pace.line(at, Far(count))
    told = [" left" in pace.line(20.0 + 10 * tick, Far(8)) for tick in range(1, 8)]
    assert told == [True, True, False, False, False, False, False]
    assert " left" in pace.line(100.0, Far(9))


def test_no_time_where_all_that_is_left_is_under_way() -> None:
    """Prompts that end first do not show how long the slow one takes that started with them."""
    pace = Pace(0.0, 4, "prompt")
    told = pace.line(10.0, Far(3, begun=True))
    assert told == "guardwrap: 3 of 4 prompts done"


def test_no_time_where_what_is_done_first_tells_none() -> None:
    """In a retry, for example, easy prompts end first."""
    pace = Pace(0.0, 10, "prompt", timed=False)
    assert pace.line(10, Far(5)) == "guardwrap: 5 of 10 prompts done"


def test_where_no_total_is_known() -> None:
    pace = Pace(0.0, None, "prompt")
    assert [pace.line(10, Far(0)), pace.line(20, Far(1)), pace.line(30, Far(2))] == [
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
    monkeypatch.setattr(progress_log, "EVERY", 1e-3)
    asked, calls = Event(), iter(range(1_000_000))

    def state() -> Far:
        if next(calls) == 5:
            asked.set()
        return Far(0)

    with progress_log.telling(state, 3, "prompt"):
        assert asked.wait(60), "nobody asks how far it is"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "guardwrap: 0 of 3 prompts done after 0 s"
    before = next(calls)
    assert not Event().wait(0.02)
    assert next(calls) == before + 1, "it continues after the end"


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
def test_generate_and_plan_tell(model: str, has_a: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twenty = [*["ab"] * 20, "-c", has_a, "--max-attempts", 1, "--seed", 1]
    assert generate(model, *twenty).stderr.count("prompts done") == 0, "it took less than ten seconds"
    monkeypatch.setattr(progress_log, "EVERY", 1e-3)
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
    monkeypatch.setattr(progress_log, "EVERY", 1e-3)
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


def test_a_run_that_is_done_says_no_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress_log, "EVERY", 1e-3)
    asked = Event()

    def state() -> Far:
        asked.set()
        return Far(3)

    with progress_log.telling(state, 3, "prompt"):
        assert asked.wait(60)
    assert capsys.readouterr().err == ""
