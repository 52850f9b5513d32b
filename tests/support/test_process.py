"""A call that takes long says so, where someone is looking, and says what is left."""

import io
import logging
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Regex, Twisted
from guardwrap.calls import job as job_module
from guardwrap.calls import twisting
from guardwrap.engine import token_sampling
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.engine.scheduling import backend as seam
from guardwrap.engine.scheduling import request_state, scheduler
from guardwrap.support import process
from guardwrap.testing import table_world
from tests.fixtures_clock import Clock, ticking

WORLD = table_world(letters="abcd", max_new_tokens=6, temperature=0.8)
NEVER = Regex("never")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A second passes with each token of a batch."""
    places: Sequence[Any] = [request_state, seam, scheduler, job_module, twisting, token_sampling, process]
    return ticking(monkeypatch, RefillBackend, places)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(process, "sys", SimpleNamespace(stderr=made, modules=sys.modules))
    return made


def asked(rule: Any = NEVER, attempts: int = 300, **options: Any) -> Any:
    guarded = GuardedGenerator(WORLD.pipeline(), rule, seed=1, batch_size=4)
    return guarded.run(WORLD.prompt, budget=Budget(attempts), **{**WORLD.settings, **options})


def test_a_call_that_fails_says_when_its_budget_is_spent(clock: Clock, terminal: Terminal) -> None:
    asked()
    lines = terminal.getvalue().splitlines()
    assert lines[0].startswith("guardwrap: after 10 s: no text yet in ")
    seconds = [int(found) for found in re.findall(r"after (\d+) s", terminal.getvalue())]
    assert all(later >= 2 * earlier for earlier, later in pairwise(seconds)), "less and less often"
    (attempts, most, left) = re.search(  # type: ignore[union-attr]
        r"in (\d+) attempts; at this pace the budget of (\d+) is spent in about ([\d.]+) (?:s|min)", lines[0]
    ).groups()
    assert 0 < int(attempts) < int(most) == 300
    assert float(left) > 0
    assert len(lines) <= 8


def test_a_call_with_texts_says_how_long_the_others_take(clock: Clock, terminal: Terminal) -> None:
    asked(Keyword("a", whole_words=False), 4000, num_return_sequences=60)
    assert re.search(r"after \d+ s: \d+ of 60 texts in \d+ attempts, about \d+ s left", terminal.getvalue())


@pytest.mark.slow
def test_twists_and_plans_say_how_far_they_are(clock: Clock, terminal: Terminal) -> None:
    asked(Keyword("abcd", whole_words=False), 20, proposal=Twisted())
    assert re.search(r"after \d+ s: learning a twist, \d+ of up to \d+ attempts", terminal.getvalue())
    guarded = GuardedGenerator(WORLD.pipeline(), NEVER, seed=1, batch_size=4)
    guarded.plan(WORLD.prompt, pilot=64, **WORLD.settings)
    assert re.search(r"after \d+ s: planning, \d+ attempts so far", terminal.getvalue())
    written = terminal.getvalue()
    guarded.plan(WORLD.prompt, pilot=64, on_attempt=lambda: None, **WORLD.settings)
    assert terminal.getvalue() == written, "whoever counts the attempts shows them"


def test_where_nobody_looks_it_is_logged(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    with caplog.at_level(logging.INFO, "guardwrap"):
        asked()
    assert not quiet.getvalue()
    assert any("no text yet" in record.message for record in caplog.records)
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    asked()
    assert "guardwrap: after" in quiet.getvalue(), "in a notebook"


def test_a_call_that_ends_soon_says_nothing(clock: Clock, terminal: Terminal) -> None:
    asked(attempts=4)
    assert not terminal.getvalue()
