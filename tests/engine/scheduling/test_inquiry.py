"""When the reason is looked for why no attempt of a request satisfies its constraint, and what it may change."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from guardwrap import Budget, Length, Regex
from guardwrap.engine.scheduling import all_rejected
from guardwrap.engine.scheduling.all_rejected import LONGEST, LOOK, Inquiry, safely
from guardwrap.engine.scheduling.backend import Diagnosis, Launch, Lookahead
from guardwrap.engine.scheduling.batch import Batches
from guardwrap.engine.scheduling.request import Request
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.outcomes import Obstacle, Outcome
from guardwrap.samplers import rejection
from tests.engine.scheduling.fixtures_table_backend import TableBackend, random_law
from tests.engine.scheduling.test_batch import Made, alone, got, kept_open, requests_of
from tests.engine.scheduling.test_isolation import TheMask
from tests.engine.scheduling.test_scheduler import changed, facts, request_of

pytestmark = pytest.mark.usefixtures("watchdog")

NEVER = Length(min=99)
REASON = Diagnosis(True, Obstacle(("top_k=2",), 0.25), 3)


class Asked(TableBackend):
    """A backend that finds a reason, and counts how often it is asked."""

    def __init__(self, size: int, answer: Callable[[], Diagnosis] = lambda: REASON) -> None:
        super().__init__(size)
        self.answer = answer
        self.asked: list[int] = []

    def diagnose(self, launch: Launch, lookahead: Lookahead) -> Diagnosis:
        self.asked.append(launch.attempt)
        assert not [each for each in self.attempts if each.launch.request is launch.request], "some are in flight"
        return self.answer()


class MadeAsked(Made):
    """Creates such backends."""

    def __init__(self, answer: Callable[[], Diagnosis]) -> None:
        super().__init__()
        self.answer = answer

    def __call__(self) -> TableBackend:
        self.backends.append(Asked(self.size, self.answer))
        return self.backends[-1]


def asking(most: int | None = 1000, **options: Any) -> Request:
    """A request that no text satisfies."""
    rule = options.pop("rule", NEVER)
    request = request_of(0, random_law(0), rule, watched=False, budget=options.pop("budget", Budget(max_attempts=most)))
    return changed(request, lookahead=TheMask(lambda: None), **options)


def served(backend: TableBackend, requests: Sequence[Request]) -> list[Outcome]:
    return [outcome for _, outcome in Scheduler(backend).serve(requests, window=8)]


@pytest.mark.parametrize(
    ("ended", "decided", "satisfied", "longest", "begins"),
    [
        (None, LOOK, 0, 1, True),
        (None, LOOK, 0, LONGEST, True),
        (None, LOOK, 0, LONGEST + 1, False),
        (None, LOOK, 1, 1, False),
        (None, LOOK - 1, 0, 1, False),
        (None, LOOK + 1, 0, 1, False),
        ("max_attempts", 5, 0, 1, True),
        ("max_attempts", 5, 0, LONGEST + 1, True),
        ("max_seconds", 5, 0, 1, True),
        ("deadline", 5, 0, 1, False),
        ("complete", 5, 1, 1, False),
        ("impossible", 5, 0, 99, True),
    ],
)
def test_it_begins_where_nothing_came_far(
    ended: str | None, decided: int, satisfied: int, longest: int, begins: bool
) -> None:
    search = Inquiry()
    assert search.begin(ended, decided, satisfied, longest) == begins
    search.end(Diagnosis())
    assert not search.begin("impossible", decided, 0, 1), "once per request"


@pytest.mark.parametrize("size", [1, 7, 64, 400])
def test_it_ends_the_request_after_the_same_attempts_whatever_the_batch(size: int) -> None:
    backend = Asked(size)
    (outcome,) = served(backend, [asking()])
    report = outcome.report
    assert (report.ended, report.usage.attempts, report.obstacle) == ("impossible", LOOK, REASON.obstacle)
    assert len(backend.asked) == 1
    assert report.headline().startswith("no text from 256 attempts: no text that these settings allow satisfies")


def test_computed_tokens_are_counted() -> None:
    costs = [
        served(Asked(8, lambda cost=cost: REASON._replace(computed=cost)), [asking(20)])[0].report.usage.computed_tokens  # type: ignore[misc]
        for cost in (0, 3)
    ]
    assert costs[1] == costs[0] + 3


def test_without_a_reason_the_budget_decides() -> None:
    backend = Asked(8, Diagnosis)
    (outcome,) = served(backend, [asking(400)])
    assert (outcome.report.ended, outcome.report.usage.attempts) == ("max_attempts", 400)
    assert len(backend.asked) == 1


@pytest.mark.parametrize("most", [1, 30])
def test_a_smaller_budget_is_looked_at_when_it_ends(most: int) -> None:
    (outcome,) = served(Asked(8), [asking(most)])
    assert (outcome.report.ended, outcome.report.usage.attempts) == ("impossible", most)


def test_requests_without_lookahead_and_recorders_are_not_asked_about() -> None:
    backend = Asked(8)
    recording = rejection._replace(records=True)
    outcomes = served(backend, [changed(asking(400), lookahead=None), changed(asking(400), sampler=recording)])
    assert [outcome.report.usage.attempts for outcome in outcomes] == [400, 400]
    assert not backend.asked


def test_a_prompt_that_violates_is_not_asked_about() -> None:
    backend = Asked(8)
    (outcome,) = served(backend, [asking(watch=lambda ids: "the prompt")])
    assert (outcome.report.ended, outcome.report.usage.attempts, backend.asked) == ("impossible", 1, [])
    assert outcome.report.obstacle is None


@pytest.mark.parametrize("look", [1, 3, 10])
def test_what_continues_is_as_without_it(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        changed(request_of(seed, random_law(seed, count=3), Regex("bb"), seed=seed), lookahead=TheMask(lambda: None))
        for seed in range(8)
    ]
    plain = [facts(outcome) for outcome in served(TableBackend(8), requests)]
    monkeypatch.setattr(all_rejected, "LOOK", look)
    backend = Asked(8, Diagnosis)
    assert [facts(outcome) for outcome in served(backend, requests)] == plain
    assert backend.asked


def test_a_request_that_gets_a_text_names_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rejected, "LOOK", 1)
    suspicion = REASON._replace(impossible=False)
    backend = Asked(8, lambda: suspicion)
    outcomes = served(backend, [asking(rule=Regex("bb"), budget=Budget(max_attempts=most)) for most in (1, 1000)])
    assert backend.asked
    assert [outcome.report.ended for outcome in outcomes] == ["max_attempts", "complete"]
    assert [outcome.report.obstacle for outcome in outcomes] == [suspicion.obstacle, None]


def fails() -> Diagnosis:
    raise ValueError("of the model")


def test_an_error_is_not_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "guardwrap"):
        (outcome,) = served(Asked(8, fails), [asking(400)])
    assert (outcome.report.ended, outcome.report.obstacle) == ("max_attempts", None)
    assert {each.levelno for each in caplog.records if "the reason" in each.getMessage()} == {logging.DEBUG}
    assert safely(fails) == Diagnosis()


@pytest.mark.parametrize("answer", [lambda: REASON, Diagnosis, fails])
def test_in_a_batch_it_is_looked_for_in_a_thread(answer: Callable[[], Diagnosis]) -> None:
    threads = []

    def noted() -> Diagnosis:
        threads.append(threading.current_thread().name)
        return answer()

    batches, made = Batches(), MadeAsked(noted)
    with kept_open(batches, made):
        (outcome,) = got(batches, made, [asking(400)])
        assert [facts(each) for each in got(batches, made, requests_of(1))] == alone(1)
    assert threads == ["guardwrap-judge"]
    assert outcome.report.ended == ("impossible" if answer not in (Diagnosis, fails) else "max_attempts")


def test_a_search_that_does_not_return_ends_with_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rejected, "PATIENCE_AT_END", 0.1)
    hanging = threading.Event()

    def hangs() -> Diagnosis:
        hanging.wait(20)
        return REASON

    batches = Batches()
    made = MadeAsked(hangs)
    with kept_open(batches, made):
        began = time.monotonic()
        (short,) = got(batches, made, [asking(30)])
        (timed,) = got(batches, made, [asking(budget=Budget(max_attempts=None, max_seconds=0.3))])
        assert time.monotonic() - began < 10
        hanging.set()
    assert (short.report.ended, short.report.usage.attempts) == ("max_attempts", 30)
    assert timed.report.ended == "max_seconds"


def test_a_search_after_narrowing_is_not_confused_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may end while it is narrowed in a thread, whose result is of another kind."""
    monkeypatch.setattr(all_rejected, "FIRST", 8)
    begun = threading.Event()

    def narrow(backend: Asked, launch: Launch, lookahead: Any, ended: Any) -> None:
        begun.set()
        time.sleep(0.5)

    batches = Batches()
    made = MadeAsked(lambda: REASON)
    monkeypatch.setattr(Asked, "narrow", narrow)
    with kept_open(batches, made):
        (outcome,) = got(batches, made, [asking(budget=Budget(max_attempts=None, max_seconds=0.2))])
    assert begun.is_set()
    assert (outcome.report.ended, outcome.report.obstacle) == ("impossible", REASON.obstacle)
