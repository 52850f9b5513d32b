"""Fault injection: one caller raises and sleeps wherever it can, and the others get the same results as alone."""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from guardwrap import Budget, Constraint, Length, Regex, constraint
from guardwrap.engine.scheduling import all_rejected, scheduler
from guardwrap.engine.scheduling.backend import AttemptState, Ids, Launch, Lookahead
from guardwrap.engine.scheduling.batch import Batches
from guardwrap.engine.scheduling.judging import judge_attempts
from guardwrap.engine.scheduling.request import Request, RequestStream
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import own_error
from guardwrap.outcomes import Draw
from guardwrap.samplers import Attempt, Sampler, rejection
from tests.engine.scheduling import test_batch
from tests.engine.scheduling.fixtures_table_backend import LETTERS, TableBackend, random_law
from tests.engine.scheduling.test_batch import Made, got, kept_open, requests_of
from tests.engine.scheduling.test_scheduler import RULE, changed, facts, request_of, run_to_the_end

pytestmark = pytest.mark.usefixtures("watchdog")
alone = functools.cache(test_batch.alone)


class Masking(TableBackend):
    """Calls masks, and narrows between rounds, like the real backend."""

    def narrow(self, launch: Launch, lookahead: Lookahead, ended: Sequence[tuple[Ids, bool]]) -> None:
        lookahead.dead((), range(len(LETTERS)))

    def _settle(self, attempt: AttemptState) -> None:
        try:
            if attempt.launch.mask is not None:
                attempt.launch.mask.left_out(attempt.token_ids, np.arange(len(LETTERS)), np.ones(len(LETTERS)))
            super()._settle(attempt)
        except BaseException as error:
            attempt.fail(own_error(error))


class MadeMasking(Made):
    def __call__(self) -> TableBackend:
        self.backends.append(Masking(self.size))
        return self.backends[-1]


FAULTS: dict[str, Callable[[], Any]] = {}


def fault(make: Callable[[], Any]) -> Callable[[], Any]:
    FAULTS[make.__name__] = make
    return make


@fault
def sleeps() -> None:
    time.sleep(0.02)


@fault
def raises() -> None:
    raise ValueError("of the user")


@fault
def cancels() -> None:
    raise asyncio.CancelledError


@fault
def exits() -> None:
    raise SystemExit(1)


@fault
def interrupts() -> None:
    raise KeyboardInterrupt


@fault
def closes() -> None:
    raise GeneratorExit


@fault
def stops() -> None:
    raise StopIteration


def the_sampler(seam: str, strike: Callable[[], Any]) -> Sampler:
    def init() -> Any:
        strike() if seam == "init" else None
        return rejection.init()

    def step(state: Any, attempt: Attempt) -> tuple[Any, Any]:
        strike() if seam == "step" else None
        return rejection.step(state, attempt)

    def report(state: Any) -> Any:
        strike() if seam == "report" else None
        return rejection.report(state)

    return Sampler("chaotic", init, step, report, weighs=seam == "weigh", skips=seam == "narrow")


@dataclass
class TheMask:
    strike: Callable[[], Any]
    impossible: bool = False
    beyond: bool = False
    dead_end: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        self.strike()
        return [False] * len(candidates)

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        return np.array(self.dead(token_ids, tokens.tolist()))

    def close(self, token_ids: Sequence[int]) -> None:
        pass

    def outlook(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool | None]:
        return [not dead for dead in self.dead(token_ids, candidates)]

    def unlimited(self) -> "TheMask":
        return self


@dataclass
class TheWeight:
    strike: Callable[[], Any]
    note: str | None = None

    def __call__(self, attempts: Sequence[Any]) -> list[float]:
        self.strike()
        return [0.0] * len(attempts)


class Once:
    """A fault that occurs once, at the n-th call."""

    def __init__(self, strike: Callable[[], Any], at: int = 0) -> None:
        self.strike, self.left, self.struck = strike, at, False

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0 and not self.struck:
            self.struck = True
            self.strike()


class TheBudget:
    """A budget with a fault when the scheduler reads it to launch attempts."""

    def __init__(self, strike: Callable[[], Any]) -> None:
        self._strike, self._budget = strike, Budget(max_attempts=None)

    def __getattr__(self, name: str) -> Any:
        if name == "max_seconds":
            self._strike()
        return getattr(self._budget, name)


def hostile(seam: str, strike: Callable[[], Any]) -> Iterator[Request]:
    """Requests of a caller with a fault at one of the interfaces."""

    @constraint
    def check(text: str) -> bool:
        strike()
        return True

    def draw_of(*given: Any) -> Draw:
        strike()
        return request.drawing.draw_of(*given)

    def watch(ids: Any) -> None:
        strike()

    def told(*_: Any) -> None:
        strike()

    rule = check if seam == "judge" else Length(min=99) if seam == "narrow" else RULE
    most = 20 if seam == "narrow" else None
    request = request_of(
        0,
        random_law(0, count=4),
        rule,
        seed=9,
        sampler=the_sampler(seam, strike),
        watched=False,
        budget=Budget(max_attempts=most),
    )
    if seam == "take":
        strike()
    changes: dict[str, Any] = {
        "launches": {"budget": TheBudget(strike)},
        "text": {"draw_of": draw_of},
        "verdict": {"watch": watch},
        "mask": {"mask": TheMask(strike)},
        "narrow": {"lookahead": TheMask(strike)},
        "weigh": {"weigh": TheWeight(strike)},
        "told": {"on_text": told},
        "end": {"on_end": told},
    }
    yield changed(request, **changes.get(seam, {}))


SEAMS = [
    "take",
    "init",
    "launches",
    "verdict",
    "mask",
    "text",
    "judge",
    "weigh",
    "step",
    "narrow",
    "told",
    "report",
    "end",
]


def beside(seam: str, strike: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Serve two other callers next to a faulty one; return its outcomes or error, and theirs."""
    batches, made = Batches(), MadeMasking()
    with kept_open(batches, made), ThreadPoolExecutor(3) as pool:
        victim = pool.submit(got, batches, made, hostile(seam, strike))
        others = [pool.submit(got, batches, made, requests_of(caller)) for caller in (1, 2)]
        results = [[facts(outcome) for outcome in each.result()] for each in others]
        after = [facts(outcome) for outcome in got(batches, made, requests_of(3))]
        error = victim.exception()
    assert len(made.backends) == 1, "the batch was begun anew"
    return error if error is not None else victim.result(), [*results, after]


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rejected, "FIRST", 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("seam", SEAMS)
def test_what_belongs_to_a_request_hurts_no_other(seam: str, kind: str) -> None:
    strike = Once(FAULTS[kind], at=1 if seam in ("step", "judge", "told") else 0)
    result, others = beside(seam, strike)
    assert others == [alone(caller) for caller in (1, 2, 3)]
    assert strike.struck
    if kind == "sleeps":
        assert not isinstance(result, BaseException)
    else:
        assert isinstance(result, Exception)


@dataclass(frozen=True)
class Unspelled(Constraint):
    """A constraint that cannot be serialized, and so has no digest."""

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return [True] * len(draws)

    def spec(self) -> dict[str, Any]:
        raise ValueError("of the user")

    __eq__ = Constraint.__eq__
    __hash__ = Constraint.__hash__


def test_a_constraint_without_a_digest_is_its_callers() -> None:
    batches, made = Batches(), Made()
    with kept_open(batches, made), ThreadPoolExecutor(2) as pool:
        victim = pool.submit(got, batches, made, [request_of(0, random_law(0), Unspelled(), watched=False)])
        assert [facts(outcome) for outcome in got(batches, made, requests_of(1))] == alone(1)
        assert isinstance(victim.exception(), ValueError)
    assert len(made.backends) == 1


def test_a_report_says_the_names_of_its_own_constraint() -> None:
    """Texts of equal constraints are judged together, whatever their names."""
    attempts = []
    for name in ("mine", "other"):
        request = request_of(0, random_law(0), Regex("z", name=name))
        attempts.append(AttemptState(Launch(request.prompt.law, 1, 0, 0, request=request), [1], status="cut"))
    assert [item.judgement.blame for item in judge_attempts(attempts)[0]] == ["mine", "other"]


def harmless(seam: str) -> bool:
    """Serve a faulty request and two others with a scheduler; return whether the others get their texts."""
    driven = Scheduler(Masking(8))
    for requests in ([request_of(1, random_law(1))], hostile(seam, Once(raises)), [request_of(2, random_law(2))]):
        driven.add(RequestStream(requests, 1))
    try:
        return all(served.error is None for served in run_to_the_end(driven) if served.request.number)
    except ValueError:
        return False


CAUGHT = ["init", "launches", "narrow", "step", "told", "report", "end"]


@pytest.mark.parametrize("seam", CAUGHT)
def test_negative_control_what_is_not_caught_hurts_others(seam: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert harmless(seam)
    monkeypatch.setattr(scheduler, "caught", lambda *_: nullcontext())
    assert not harmless(seam)


def hurt(made: Made, monkeypatch: pytest.MonkeyPatch, seam: str, kind: str) -> None:
    """Let the backend fail at an interface while it serves two callers; later callers get their texts."""
    batches, strike = Batches(), Once(FAULTS[kind])
    whole = getattr(TableBackend, seam)

    def struck(self: TableBackend, *given: Any) -> Any:
        if leaving:
            strike()
        return whole(self, *given)

    leaving: list[None] = []
    monkeypatch.setattr(TableBackend, seam, struck)

    async def run() -> Any:
        endless = asyncio.create_task(test_batch.agot(batches, made, test_batch.endless()))
        waiting = asyncio.create_task(test_batch.agot(batches, made, test_batch.endless()))
        while not (made.backends and len(made.backends[-1].lengths()) == 2):
            await asyncio.sleep(0.001)
        leaving.append(None)
        endless.cancel()
        while not strike.struck:
            await asyncio.sleep(0.001)
        after = asyncio.create_task(test_batch.agot(batches, made, requests_of(1)))
        if kind == "sleeps":
            waiting.cancel()
        return await asyncio.gather(endless, waiting, after, return_exceptions=True)

    left, waited, after = asyncio.run(run())
    assert isinstance(left, asyncio.CancelledError | Exception)
    assert isinstance(waited, asyncio.CancelledError if kind == "sleeps" else Exception)
    assert [facts(outcome) for outcome in after] == alone(1)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("seam", ["cancel", "launch", "advance"])
def test_a_backend_that_breaks_keeps_nobody_waiting(seam: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hurt(Made(), monkeypatch, seam, kind)


def test_a_backend_that_cannot_be_made_again_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller is in the backend that fails, another one joins meanwhile, and a third one joins afterwards."""
    batches, made, makes, broken = Batches(), Made(), Once(raises, at=1), Once(raises)
    entered, breaking = threading.Event(), threading.Event()

    def make() -> TableBackend:
        makes()
        return made()

    advance = TableBackend.advance

    def breaks(self: TableBackend) -> list[AttemptState]:
        if not broken.struck:
            entered.set()
            breaking.wait()
            broken()
        return advance(self)

    def stays_broken(self: TableBackend, unneeded: Any) -> list[AttemptState]:
        raise ValueError("of the user")

    monkeypatch.setattr(TableBackend, "advance", breaks)

    async def run() -> None:
        first = asyncio.create_task(test_batch.agot(batches, make, test_batch.endless()))
        await asyncio.to_thread(entered.wait)
        second = asyncio.create_task(test_batch.agot(batches, make, test_batch.endless()))
        while not (batches._open["model"]._coming):
            await asyncio.sleep(0.001)
        with monkeypatch.context() as patch:
            patch.setattr(TableBackend, "cancel", stays_broken)
            breaking.set()
            for waiting in (first, second):
                with pytest.raises(ValueError, match="of the user"):
                    await waiting
        assert makes.struck
        third = await test_batch.agot(batches, make, requests_of(1))
        assert [facts(outcome) for outcome in third] == alone(1)

    asyncio.run(run())
