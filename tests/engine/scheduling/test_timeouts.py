"""Timeouts: the answer is there in time, whatever the attempts, other callers and slow checks do."""

import asyncio
import threading
import time
from collections.abc import Sequence
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
from guardwrap.calls import choice, telemetry
from guardwrap.calls import job as job_module
from guardwrap.constraints.base import EXPENSIVE
from guardwrap.engine import token_sampling
from guardwrap.engine.scheduling import all_rejected, request_state, scheduler, step_allowance
from guardwrap.engine.scheduling import backend as seam
from guardwrap.engine.scheduling.backend import AttemptState, Launch
from guardwrap.engine.scheduling.request import Request, RequestStream
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import UsageError
from guardwrap.support.time_limits import StepOver
from guardwrap.testing import table_world
from tests.engine.scheduling.fixtures_table_backend import TableBackend, random_law
from tests.engine.scheduling.test_scheduler import request_of
from tests.fixtures_clock import Clock, ticking

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
    monkeypatch.setattr(Scheduler, "_begin_waiting", lambda self: None)
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


class Costly(TableBackend):
    """Takes two seconds to compute a prompt that it has not computed yet, and no time to launch further attempts."""

    def computes(self, clock: Clock) -> "Costly":
        self.clock, self.known = clock, set[int]()
        return self

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        for launch in launches:
            self.clock.now += 2.0 * (id(launch.law) not in self.known)
            self.known.add(id(launch.law))
        return super().launch(launches)


def steps_of(clock: Clock, callers: int) -> list[float]:
    """Return how long each step takes once a caller has a computed prompt and ``callers`` others come."""
    shared = Scheduler(Costly(64).computes(clock))
    shared.add(RequestStream(iter([request(0, 60)]), 4))
    for _ in range(3):
        shared.step()
    for number in range(1, callers + 1):
        shared.add(RequestStream(iter([request(number, 60)]), 4))
    took = []
    for _ in range(3 * callers):
        began = clock.now
        shared.step()
        took.append(clock.now - began)
    return took


def test_prompts_of_callers_that_come_together_are_computed_in_several_steps(clock):
    took = steps_of(clock, 10)
    assert max(took) == 2
    assert took.count(2) == 10, "each is computed"


def test_negative_control_a_launch_is_as_cheap_as_the_last_one(clock, monkeypatch):
    monkeypatch.setattr(Scheduler, "_is_long", lambda self, shortest: False)
    assert max(steps_of(clock, 10)) > 10


def test_the_time_counts_from_the_call_and_not_from_when_its_options_were_read(monkeypatch):
    clock = Clock()
    for place in (request_state, seam, scheduler, telemetry, job_module, choice, token_sampling):
        monkeypatch.setattr(place, "time", clock)
    guarded = GuardedGenerator(WORLD.pipeline(), NEVER, seed=1)
    read = guarded.session.job

    def slowly(options):  # a large grammar, an automaton, a model to load
        clock.now += 7
        return read(options)

    monkeypatch.setattr(guarded.session, "job", slowly)
    for sampler in ("rejection", "auto"):
        (outcome,) = guarded.run(WORLD.prompt, budget=Budget(timeout=5), sampler=sampler, **WORLD.settings)
        assert outcome.report.ended == "timeout"
        assert outcome.report.usage.attempts == 0
    with pytest.raises(BudgetExhausted) as raised:
        guarded(WORLD.prompt, budget=Budget(timeout=5), **WORLD.settings)
    assert str(raised.value) == (
        "no text: the timeout was reached before the first attempt was complete; raise timeout, in which a call also "
        "waits for other callers, or lower max_new_tokens"
    )
    assert guarded.run(WORLD.prompt, budget=Budget(4, timeout=9), **WORLD.settings)[0].report.usage.attempts == 4


@pytest.mark.parametrize("options", [{"proposal": Twisted()}, {"sampler": "auto"}])
def test_a_caller_does_not_wait_for_others_that_learn_or_plan(monkeypatch, options):
    guarded = GuardedGenerator(WORLD.pipeline(), Keyword("ab", whole_words=False), seed=1)
    monkeypatch.setattr(job_module, "PLANS", 1)
    guarded.session.threads = job_module.CallThreads()
    released = threading.Event()

    async def both():
        threads = guarded.session.threads
        waiting = [asyncio.create_task(of(lambda: released.wait(60), None)) for of in (threads.learn, threads.plan)]
        (outcome,) = await guarded.arun(WORLD.prompt, budget=Budget(timeout=0.2), **options, **WORLD.settings)
        busy = not any(task.done() for task in waiting)
        released.set()
        await asyncio.gather(*waiting)
        return outcome, busy

    outcome, busy = asyncio.run(both())
    assert busy
    assert outcome.report.ended == "timeout"
    assert outcome.report.usage.attempts == 0


def test_a_call_whose_timeout_is_over_waits_for_no_lesson_of_another_one():
    guarded = GuardedGenerator(WORLD.pipeline(), Keyword("ab", whole_words=False), proposal=Twisted(), seed=1)
    twists = guarded.session.job({**WORLD.settings, "seed": 0}).source.twists
    assert twists is not None
    twisted = twists.constraint
    with twisted._learning:
        (outcome,) = guarded.run(WORLD.prompt, budget=Budget(timeout=0.2), **WORLD.settings)
    assert outcome.report.ended == "timeout"
    assert not twisted.learned
    assert guarded.run(WORLD.prompt, **WORLD.settings)[0].ok


def test_a_caller_alone_does_not_wait_for_what_runs_the_model_aside(monkeypatch):
    """Looking for prefixes that cannot pass, as for the reason why nothing does, may take longer than the timeout."""
    looked, released = threading.Event(), threading.Event()

    def slowly(self, backend):
        looked.set()
        released.wait(60)

    monkeypatch.setattr(request_state.RequestState, "known", slowly)
    monkeypatch.setattr(all_rejected, "FIRST", 2)
    guarded = GuardedGenerator(WORLD.pipeline(), Regex("never"), seed=1)
    budget = Budget(max_attempts=None, timeout=0.5)
    (outcome,) = guarded.run(WORLD.prompt, budget=budget, **WORLD.settings)
    released.set()
    assert looked.is_set()
    assert outcome.report.ended == "timeout"


def test_a_model_that_judges_is_left_behind_too():
    """A classifier may have to be loaded first, and a judge to be asked over the network."""
    released = threading.Event()

    class Loading(Constraint):
        cost = EXPENSIVE
        kind = "loading"

        def check(self, draws):
            released.wait(60)
            return [True] * len(draws)

        def spec(self):
            return {"kind": "loading"}

    guarded = GuardedGenerator(WORLD.pipeline(), Loading(), seed=1)
    (outcome,) = guarded.run(WORLD.prompt, budget=Budget(timeout=0.3), **WORLD.settings)
    released.set()
    assert outcome.report.ended == "timeout"


def test_masks_and_verdicts_end_with_the_timeout_of_anyone_in_the_batch(monkeypatch):
    clock = Clock(10.0)
    monkeypatch.setattr(step_allowance, "time", clock)
    allowance = step_allowance.StepAllowance()
    allowance.begin(10.0, limited=False)
    assert allowance.left == float("inf")
    allowance.begin(10.0, limited=False, until=10.5)
    assert allowance.left == 0.5
    with allowance.spent():
        pass
    clock.now = 10.5
    with pytest.raises(StepOver), allowance.spent():
        pass
    verdict = step_allowance.allowed_watch(lambda grown: "it violates", allowance)
    assert verdict("a") is None
    allowance.begin(10.6, limited=True, until=float("inf"))
    assert 0 < allowance.left < 1
    # What ended before this step takes nothing from others.
    shared = Scheduler(TableBackend(4))
    shared.add(RequestStream(iter([request(0, 5), request(1, 70)]), 4))
    for place in (scheduler, request_state):
        monkeypatch.setattr(place, "time", Clock(60.0))
    shared.step()
    shared.step()
    assert shared._until == 70
