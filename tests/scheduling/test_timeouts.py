"""Timeouts: the answer is there in time, whatever the attempts, other callers and slow checks do.

Covers ``budget.py`` and ``scheduling/request_state.py``, as far as they are about ``timeout``.
"""

import asyncio
import threading
import time
from typing import Any

import pytest

from guardwrap import (
    Budget,
    BudgetExhausted,
    Constraint,
    Fallback,
    GuardedGenerator,
    Keyword,
    Regex,
    Twisted,
    constraint,
)
from guardwrap.errors import UsageError
from guardwrap.scheduling import backend as seam
from guardwrap.scheduling import request_state, scheduler
from guardwrap.scheduling.request import Request
from guardwrap.scheduling.request_stream import RequestStream
from guardwrap.scheduling.scheduler import Scheduler
from guardwrap.testing import table_world
from tests.fixtures_clock import Clock, ticking
from tests.scheduling.fixtures_table_backend import TableBackend, random_law
from tests.scheduling.test_scheduler import request_of

NEVER = Regex("never")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A second passes with each step of the backend."""
    return ticking(monkeypatch, TableBackend, [request_state, seam, scheduler])


def request(number: int, timeout: float | None, rule: Constraint = NEVER, **more: Any) -> Request:
    budget = Budget(max_attempts=None, timeout=timeout)
    return request_of(number, random_law(number), rule, budget=budget, watched=False, called=0.0, **more)


@pytest.mark.parametrize("timeout", [0, -1.0, True, "5"])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(UsageError, match=r"Budget\(timeout="):
        Budget(timeout=timeout)


def test_a_request_ends_with_the_step_in_which_its_timeout_is_over(clock):
    backend = TableBackend(4)
    ((_, outcome),) = Scheduler(backend).serve([request(0, 7)], window=4)
    assert clock.now == 7
    assert (outcome.report.ended, outcome.texts) == ("timeout", ())
    assert outcome.report.drawn_from.startswith("biased by a deadline")
    assert "the timeout was reached" in str(outcome.report)
    assert not backend.running


def test_the_time_counts_from_the_call(clock):
    clock.now = 100.0  # it waited for other things
    ((_, outcome),) = Scheduler(TableBackend(4)).serve([request(0, 7)], window=4)
    assert clock.now == 100
    assert outcome.report.usage.attempts == 0
    assert outcome.report.ended == "timeout"
    # A deadline counts from the first attempt.
    later = request_of(1, random_law(1), NEVER, budget=Budget(max_attempts=None, deadline=7), watched=False)
    ((_, outcome),) = Scheduler(TableBackend(4)).serve([later], window=4)
    assert outcome.report.ended == "deadline"
    assert clock.now >= 107


def test_texts_that_are_there_in_time_are_kept(clock):
    rule = Keyword("a", whole_words=False)
    ((_, outcome),) = Scheduler(TableBackend(2)).serve([request(0, 9, rule, seed=3)], window=4)
    assert outcome.ok
    assert outcome.report.ended == "complete"


def test_a_caller_that_no_row_is_free_for_is_answered_in_time(clock, monkeypatch):
    """Negative control: a request that begins only when there is room waits for those before it."""

    def answered() -> float:
        clock.now = 0.0
        shared = Scheduler(TableBackend(2))
        long = [request_of(number, random_law(1), NEVER, budget=Budget(max_attempts=40)) for number in range(2)]
        shared.add(RequestStream(iter(long), 4))
        shared.step()
        monkeypatch.setattr(TableBackend, "room", 0)  # attempts may be long
        shared.add(RequestStream(iter([request(2, 3)]), 4))
        for _ in range(30):
            clock.now += 1.0
            if any(served.request.number == 2 for served in shared.step()):
                return clock.now
        return float("inf")

    assert answered() <= 5
    monkeypatch.setattr(Scheduler, "_noted", lambda self: [])
    assert answered() == float("inf")


WORLD = table_world(letters="abc", max_new_tokens=4, temperature=0.8)


def test_a_slow_check_does_not_delay_the_answer():
    begun = threading.Event()

    def slow(text: str) -> bool:
        begun.set()
        time.sleep(3)
        return True

    guarded = GuardedGenerator(WORLD.pipeline(), constraint(slow), seed=1)
    budget = Budget(timeout=0.3)

    async def both():
        other = asyncio.create_task(guarded.arun(WORLD.prompt, constraints=Regex("a"), **WORLD.settings))
        late = await guarded.arun(WORLD.prompt, budget=budget, **WORLD.settings)
        return late + await other

    late, other = asyncio.run(both())
    assert begun.is_set()
    assert other.ok
    assert late.report.ended == "timeout"
    began = time.monotonic()
    with pytest.raises(BudgetExhausted, match="the timeout was reached"):
        guarded(WORLD.prompt, budget=budget, **WORLD.settings)
    assert time.monotonic() - began < 2, "a caller alone does not wait for the check either"


def test_the_fallback_is_there_in_time():
    rule = Regex("never")
    guarded = GuardedGenerator(WORLD.pipeline(), rule, on_exhausted=Fallback("never"), seed=1)
    (outcome,) = guarded.run(WORLD.prompt, budget=Budget(max_attempts=None, timeout=0.2), **WORLD.settings)
    assert outcome.texts == ("never",)
    assert outcome.report.ended in {"timeout", "impossible"}


def test_learning_a_twist_counts():
    guarded = GuardedGenerator(WORLD.pipeline(), Keyword("ab", whole_words=False), proposal=Twisted(), seed=1)
    (outcome,) = guarded.run(WORLD.prompt, budget=Budget(timeout=1e-6), **WORLD.settings)
    assert outcome.report.ended == "timeout"
    (twisted,) = [twisted for twisted, _ in guarded.session._learned.values()]  # type: ignore[union-attr]
    assert not twisted.learned
    assert guarded.run(WORLD.prompt, **WORLD.settings)[0].ok
