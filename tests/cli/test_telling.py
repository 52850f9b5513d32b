"""Lines that say how far a run is, where there is no terminal."""

from __future__ import annotations

import re
from threading import Event

import pytest

from guardwrap.cli import telling
from guardwrap.cli.telling import Pace, lasting
from tests.cli.commands import generate, run


def test_how_far_and_how_long() -> None:
    pace = Pace(100.0, 10, 110, "prompt")
    assert pace.line(110.0, 10) == "guardwrap: 10 of 110 prompts done after 10 s"
    assert pace.line(120.0, 19) == "guardwrap: 19 of 110 prompts done", "less than a tenth of those that were to do"
    # 31 of them; 9 were done by 120 s, less than half, so those since then count: 22 in 10 s.
    assert pace.line(130.0, 41, 2) == (
        "guardwrap: 41 of 110 prompts done, 2 of them without all their texts, about 31 s left"
    )
    # 60 of them; 31 were done by 130 s, more than half, so those since 120 s count: 51 in 20 s.
    assert pace.line(140.0, 70) == "guardwrap: 70 of 110 prompts done, about 16 s left"


def test_the_wait_for_the_first_ones_does_not_count_for_ever() -> None:
    """Fifty prompts of which none ends in a minute, and then one ends each second."""
    pace = Pace(0.0, 0, 50, "prompt")
    lines = [pace.line(10.0 * i, max(0, 10 * (i - 6))) for i in range(1, 11)]
    assert [line.endswith(" left") for line in lines] == [False] * 6 + [True] * 4
    assert lines[7:] == [f"guardwrap: {n} of 50 prompts done, about {50 - n} s left" for n in (20, 30, 40)]


def test_no_time_where_what_is_done_first_tells_none() -> None:
    """As what is drawn again for: what passes at once is done first."""
    pace = Pace(0.0, 0, 10, "prompt", timed=False)
    assert pace.line(10, 5) == "guardwrap: 5 of 10 prompts done"


def test_where_no_total_is_known() -> None:
    pace = Pace(0.0, 0, None, "prompt")
    assert [pace.line(10, 0), pace.line(20, 1), pace.line(30, 2)] == [
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
    monkeypatch.setattr(telling, "EVERY", 1e-3)
    asked, calls = Event(), iter(range(1_000_000))

    def state() -> tuple[int, int]:
        if next(calls) == 5:
            asked.set()
        return 0, 0

    with telling.telling(state, 3, "prompt"):
        assert asked.wait(60), "nobody asks how far it is"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "guardwrap: 0 of 3 prompts done after 0 s"
    before = next(calls)
    assert not Event().wait(0.02)
    assert next(calls) == before + 1, "it goes on after the end"


@pytest.mark.usefixtures("command_line")
def test_generate_and_plan_tell(model: str, has_a: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twenty = [*["ab"] * 20, "-c", has_a, "--max-attempts", 1, "--seed", 1]
    assert generate(model, *twenty).stderr.count("prompts done") == 0, "it took less than ten seconds"
    monkeypatch.setattr(telling, "EVERY", 1e-3)
    told = generate(model, *twenty).stderr.splitlines()
    assert re.match(r"guardwrap: \d+ of 20 prompts done", told[0])
    assert not any(line.startswith("guardwrap: 20 of 20 prompts done") for line in told)
    assert "prompts done" not in generate(model, *twenty, "--quiet").stderr
    planned = run("plan", "--model", model, "-c", has_a, "ab", "--pilot", 50)
    assert planned.stderr.startswith("guardwrap: the pilot is being drawn, 0 s so far\n")
    assert planned.exit_code == 0


def test_a_run_that_is_done_says_no_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(telling, "EVERY", 1e-3)
    asked, done = Event(), iter([2, *[3] * 1_000_000])

    def state() -> tuple[int, int]:
        count = next(done)
        if count == 3:
            asked.set()
        return count, 0

    with telling.telling(state, 3, "prompt"):
        assert asked.wait(60)
    assert capsys.readouterr().err == ""
