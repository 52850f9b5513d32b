"""The complete scheduler with a table backend, without a model and without torch."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from guardwrap import Budget, CheckFailed, Constraint, Keyword, Length, Regex, Verdict, constraint
from guardwrap.constraints.checking import run_check
from guardwrap.engine.scheduling import backend as seam
from guardwrap.engine.scheduling import request_state
from guardwrap.engine.scheduling.backend import AttemptState, Launch, draw_all
from guardwrap.engine.scheduling.judging import CheckerPool
from guardwrap.engine.scheduling.randomness import uniforms
from guardwrap.engine.scheduling.request import Drawing, Request, RequestStream, Served, Spec
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import ModelError
from guardwrap.outcomes import Draw, Outcome
from guardwrap.samplers import Attempt, Sampler, rejection
from guardwrap.testing import goodness_of_fit
from tests.engine.scheduling.fixtures_table_backend import (
    LETTERS,
    TableBackend,
    TableLaw,
    TablePrompt,
    draw_of,
    random_law,
    text_of,
)
from tests.fixtures_clock import Clock, ticking

DRAWS = 10_000
FEW = 5_000
FITS, FAILS = 1e-3, 1e-9
RULE = Keyword("a", whole_words=False, min_count=1, max_count=2) & ~Regex("^b")


@constraint(prefix=lambda text: Verdict.VIOLATED if text.startswith("b") or text.count("a") > 2 else Verdict.UNDECIDED)
def FAST(text: str) -> bool:  # noqa: N802  # a constant like RULE, and the same rule
    return 1 <= text.count("a") <= 2 and not text.startswith("b")


def request_of(
    number: int,
    law: TableLaw,
    rule: Constraint = RULE,
    *,
    budget: Budget = Budget(),  # noqa: B008  # frozen
    seed: int = 1,
    sampler: Sampler = rejection,
    watched: bool = True,
    **more: Any,
) -> Request:
    drawing = Drawing(draw_of, Watching(rule) if watched else None)
    request = Request(TablePrompt(number, law, f"prompt {number}"), Spec(rule, sampler, budget, seed), drawing)
    return changed(request, **more)


class Watching:
    """Judges the letters of a table's texts."""

    def __init__(self, rule: Constraint) -> None:
        self.rule = rule

    def __call__(self, ids: Sequence[int], /) -> str | None:
        return next((part.title for part in self.rule.parts if part.verdict(text_of(ids)) < 0), None)

    def place(self, ids: Sequence[int], /) -> str | None:
        return None


def changed(request: Request, **changes: Any) -> Request:
    """Replace fields of a request, or of the records that it refers to."""
    for name in ("spec", "drawing", "hooks"):
        record: Any = getattr(request, name)
        own = {field.name for field in fields(record)} & {*changes}
        changes[name] = replace(record, **{field: changes.pop(field) for field in own})
    return replace(request, **changes)


def gold(law: TableLaw, rule: Constraint = RULE) -> dict[tuple[int, ...], float]:
    texts = law.texts()
    holds = run_check(rule, [Draw("", ids, text_of(ids)) for ids in texts])
    kept = {ids: p for (ids, p), ok in zip(texts.items(), holds, strict=True) if ok}
    return {ids: p / sum(kept.values()) for ids, p in kept.items()}


def served(requests: list[Request], size: int = 64, window: int = 256) -> list[Outcome]:
    return [outcome for _, outcome in Scheduler(TableBackend(size)).serve(requests, window=window)]


def run_to_the_end(scheduler: Scheduler) -> list[Served]:
    ended: list[Served] = []
    while not scheduler.idle:
        ended += scheduler.step()
    return ended


def test_the_table_is_a_law() -> None:
    assert sum(random_law(0).texts().values()) == pytest.approx(1, abs=1e-12)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return ticking(monkeypatch, TableBackend, [request_state, seam])


BUDGETS = {
    "attempts": (Budget(max_attempts=4), "max_attempts"),
    "tokens": (Budget(max_attempts=None, max_tokens=7), "max_tokens"),
    "seconds": (Budget(max_attempts=None, max_seconds=2), "max_seconds"),
    "computed": (Budget(max_attempts=None, max_computed_tokens=7), "max_computed_tokens"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("attempts", 7),
        ("tokens", 64),
        ("seconds", 1),
        ("seconds", 7),
        ("seconds", 64),
        ("computed", 1),
        ("computed", 64),
    ],
)
def test_drawn_from_g_whatever_the_budget_and_the_batch(kind: str, size: int, clock: Clock) -> None:
    budget, ended = BUDGETS[kind]
    law = random_law(0)
    # With a limit in seconds or computed tokens every batch size gives other texts: DRAWS of them for the largest size,
    # and for the others as few as in the negative control.
    draws = FEW if kind in ("seconds", "computed") and size < 64 else DRAWS
    # The budget ends some requests early, so more requests than draws are needed.
    outcomes = served([request_of(i, law, FAST, budget=budget) for i in range(draws * 4 // 3)], size)
    short = [outcome for outcome in outcomes if not outcome.ok]
    assert {outcome.report.ended for outcome in short} == {ended}, "the budget did not bind"
    drawn = [outcome.draws[0].token_ids for outcome in outcomes if outcome.ok]
    assert len(drawn) >= draws
    assert goodness_of_fit(drawn, gold(law, FAST)) > FITS


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7])
def test_a_time_limit_that_drops_what_is_under_way_is_biased(
    size: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = request_state.RequestState._book

    def late(self: request_state.RequestState, judged: request_state.JudgedAttempt) -> None:
        if self.began is not None and clock.now - self.began >= 2:
            self.ended = "max_seconds"
        else:
            book(self, judged)

    monkeypatch.setattr(request_state.RequestState, "_book", late)
    law = random_law(0)
    outcomes = served([request_of(i, law, FAST, budget=BUDGETS["seconds"][0]) for i in range(FEW * 4 // 3)], size)
    assert goodness_of_fit([each.draws[0].token_ids for each in outcomes if each.ok], gold(law, FAST)) < FAILS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attempts", "tokens"])
def test_what_is_counted_gives_the_same_whatever_the_batch(kind: str) -> None:
    """So one size is enough above: what can be seen in 20 000 draws of another law changes some of these requests."""
    requests = [request_of(i, random_law(0), FAST, budget=BUDGETS[kind][0]) for i in range(FEW // 2)]
    one, several, many = ([facts(outcome) for outcome in served(requests, size)] for size in (1, 7, 64))
    assert one == several == many


@pytest.mark.slow
def test_finishing_order_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    law = random_law(0)
    monkeypatch.setattr(TableBackend, "lengths", lambda self: {})  # many attempts of a request side by side
    requests = [request_of(i, law) for i in range(FEW)]
    fits = goodness_of_fit([outcome.draws[0].token_ids for outcome in served(requests)], gold(law))
    assert fits > FITS
    monkeypatch.setattr(request_state, "next_in_turn", lambda left, _: left.pop(min(left)) if left else None)
    outcomes = served(requests)
    assert goodness_of_fit([outcome.draws[0].token_ids for outcome in outcomes], gold(law)) < FAILS


def everything(seed: int) -> list[Request]:
    """Return requests with different constraints, budgets, laws and seeds."""
    rules = [RULE, ~Regex("b"), Length(min=2), Keyword("b", whole_words=False)]
    budgets = [Budget(), Budget(max_attempts=3), Budget(max_tokens=5)]
    return [
        request_of(i, random_law(i % 3, count=1 + i % 4), rules[i % 4], budget=budgets[i % 3], seed=seed + i % 2)
        for i in range(60)
    ]


def facts(outcome: Outcome) -> tuple[Any, ...]:
    use = outcome.report.usage
    return outcome.prompt, outcome.texts, outcome.report.ended, use.attempts, use.tokens, outcome.report.rejections


def test_a_request_gets_the_same_whatever_else_is_served() -> None:
    alone = [facts(served([request], 1)[0]) for request in everything(3)]
    assert [facts(outcome) for outcome in served(everything(3), 64)] == alone
    assert [facts(outcome) for outcome in served(everything(3), 5, window=2)] == alone
    scheduler = Scheduler(TableBackend(9))
    for request in reversed(everything(3)):
        scheduler.add(RequestStream([request], 1))
    ended = {each.outcome.prompt: facts(each.outcome) for each in run_to_the_end(scheduler)}
    assert [ended[fact[0]] for fact in alone] == alone


def test_negative_control_noise_that_belongs_to_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engine.scheduling import fixtures_table_backend

    shared = uniforms(0, 0, 0)
    monkeypatch.setattr(fixtures_table_backend, "uniforms", lambda *_: shared)
    assert [facts(o) for o in served(everything(3), 64)] != [facts(o) for o in served(everything(3), 5)]


def test_requests_are_taken_as_there_is_room() -> None:
    taken = []

    def coming() -> Any:
        for i in range(100):
            taken.append(i)
            # The first one takes long: those after it finish meanwhile, but only a limited number of them.
            yield request_of(i, random_law(0), Length(min=99) if i == 0 else RULE, budget=Budget(max_attempts=200))

    stream = Scheduler(TableBackend(4)).serve(coming(), window=8)
    assert taken == []
    next(stream)
    assert len(taken) == 8
    assert len(list(stream)) == 99


def test_what_comes_raises_when_those_before_it_are_done() -> None:
    def coming() -> Any:
        yield request_of(0, random_law(0))
        raise KeyError("of the user")

    stream = Scheduler(TableBackend(4)).serve(coming(), window=8)
    assert next(stream)[1].ok
    with pytest.raises(KeyError, match="of the user"):
        next(stream)


@constraint
def crashes(text: str) -> bool:
    raise ZeroDivisionError(text)


def broken(kind: str) -> tuple[Request, TableBackend]:
    """A request that fails, and the backend that it fails in."""
    law, backend = random_law(0, count=3), TableBackend(8)

    def step(state: Any, attempt: Attempt) -> tuple[Any, Draw | None]:
        raise RuntimeError("of the sampler")

    if kind == "check":
        return request_of(5, law, crashes, watched=False), backend
    if kind == "sampler":
        return request_of(5, law, sampler=Sampler("broken", dict, step, lambda state: ("", {}))), backend
    if kind == "start":
        return request_of(5, law, sampler=Sampler("broken", lambda: 1 / 0, step, lambda state: ("", {}))), backend
    if kind == "text":
        request = request_of(5, law)

        def unreadable(*_: Any) -> Draw:
            raise ValueError("no text")

        return changed(request, draw_of=unreadable), backend
    backend.breaks = lambda attempt: ModelError("NaN") if attempt.launch.prompt == 5 else None
    return request_of(5, law), backend


@pytest.mark.parametrize("kind", ["check", "sampler", "start", "text", "attempt"])
def test_an_error_belongs_to_its_request(kind: str) -> None:
    failing, backend = broken(kind)
    others = [request_of(i, random_law(0, count=3)) for i in range(5)]
    alone = [facts(served([request])[0]) for request in others]
    scheduler = Scheduler(backend)
    for request in [*others[:2], failing, *others[2:]]:
        scheduler.add(RequestStream([request], 1))
    ended = run_to_the_end(scheduler)
    (failed,) = [each for each in ended if each.error is not None]
    assert failed.request is failing
    assert failed.outcome.report.ended == "error"
    rest = {each.outcome.prompt: facts(each.outcome) for each in ended if each is not failed}
    assert [rest[fact[0]] for fact in alone] == alone
    assert backend.running == 0


def test_in_order_keeps_what_others_have_got() -> None:
    failing, backend = broken("check")
    requests = [request_of(0, random_law(0)), request_of(1, random_law(0, count=2)), failing]
    with pytest.raises(CheckFailed) as caught:
        list(Scheduler(backend).serve(requests, window=8))
    assert all(outcome.texts for outcome in caught.value.outcomes)


def test_a_backend_that_breaks_ends_whom_it_drew_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TableBackend(2)
    scheduler = Scheduler(backend)
    for i in range(4):
        scheduler.add(RequestStream([request_of(i, random_law(0), Length(min=2))], 1))
    advance = TableBackend.advance
    calls: list[None] = []

    def once(self: TableBackend) -> list[AttemptState]:
        calls.append(None)
        if len(calls) == 1:
            self.attempts = []
            raise ModelError("out of memory")
        return advance(self)

    monkeypatch.setattr(TableBackend, "advance", once)
    ended = run_to_the_end(scheduler)
    assert sorted(each.request.number for each in ended) == [0, 1, 2, 3]
    assert [each.request.number for each in ended if each.error is not None] == [0, 1]
    assert all(each.outcome.ok for each in ended if each.error is None)


def test_a_backend_that_breaks_before_anything_runs_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: TableBackend) -> int:
        raise ModelError("gone")

    monkeypatch.setattr(TableBackend, "room", property(broken))
    with pytest.raises(ModelError, match="gone"):
        served([request_of(0, random_law(0))])


def test_cancelled_requests_leave_at_once() -> None:
    endless = request_of(0, random_law(0, count=1_000), Length(min=99), budget=Budget(max_attempts=None))
    other, waiting = request_of(1, random_law(0), Length(min=3)), request_of(2, random_law(0))
    backend = TableBackend(4)
    scheduler = Scheduler(backend)
    sources = {request: RequestStream([request], 1) for request in (endless, other, waiting)}
    for source in sources.values():
        scheduler.add(source)
    while not any(attempt.launch.request is endless for attempt in backend.attempts):
        assert all(each.request is not endless for each in scheduler.step())
    scheduler.remove(sources[endless])
    assert all(attempt.launch.request is not endless for attempt in backend.attempts)
    scheduler.remove(sources[waiting])
    assert endless not in [each.request for each in run_to_the_end(scheduler)]
    assert backend.running == 0


def test_a_fair_share_each() -> None:
    """A request that uses all room does not prevent another one from getting its text."""
    greedy = request_of(0, random_law(0, count=10_000), budget=Budget(max_attempts=None))
    small = request_of(1, random_law(0))
    scheduler = Scheduler(TableBackend(8))
    scheduler.add(RequestStream([greedy], 1))
    for _ in range(5):
        scheduler.step()
    scheduler.add(RequestStream([small], 1))
    for _ in range(40):
        if any(each.request is small for each in scheduler.step()):
            return
    pytest.fail("it waits for the other one to end")


def test_while_others_wait_no_attempt_is_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: attempts by what is expected, of which more than one in ten is not needed."""
    law = random_law(0, count=5)

    def drawn(**limits: Any) -> tuple[float, list[list[str]]]:
        outcomes = served([request_of(i, law, **limits) for i in range(60)], size=16)
        usages = [outcome.report.usage for outcome in outcomes]
        surplus = sum(usage.surplus_attempts for usage in usages)
        return surplus / sum(usage.attempts for usage in usages), [[*outcome.texts] for outcome in outcomes]

    share, texts = drawn()
    assert share < 0.03, "only the last requests have nobody waiting behind them"
    timed, _ = drawn(budget=Budget(max_attempts=None, max_seconds=1000.0))
    assert timed > 0.1, "fewer attempts at once would find fewer texts in the seconds of a request"
    right = request_state.RequestState._needed
    monkeypatch.setattr(
        request_state.RequestState, "_needed", lambda self, running, *, surplus: right(self, running, surplus=True)
    )
    more, same = drawn()
    assert more > 0.1
    assert same == texts


def test_texts_of_a_search_are_judged_in_turn() -> None:
    texts = [((2, 0), True), ((1, 1, 2, 3), False)]
    law = TableLaw({}, mode="beam", beam_results=texts)
    (outcome,) = served([request_of(0, law)])
    assert outcome.texts == ("aab ",)
    assert outcome.report.usage.attempts == 2
    assert "not a draw from your model's own distribution (g)" in outcome.report.drawn_from


def test_a_search_draws_nothing_more_while_a_slow_check_judges_its_texts() -> None:
    judging = threading.Event()

    @constraint
    def slow(text: str) -> bool:
        return judging.wait(30)

    law = TableLaw({}, mode="beam", beam_results=[((2, 0), True)])  # without a table, nothing can be drawn
    scheduler = Scheduler(TableBackend(4))
    scheduler.aside = CheckerPool()
    scheduler.add(RequestStream([request_of(0, law, slow, watched=False)], 1))
    assert scheduler.step() == scheduler.step() == []
    judging.set()
    (served_request,) = next(ended for _ in range(1_000) if (ended := scheduler.step()))
    assert (served_request.error, served_request.outcome.texts) == (None, ("b",))


def test_attempts_that_nobody_judges() -> None:
    law = random_law(1)
    launches = [Launch(law, 7, i, 0) for i in range(FEW)]
    drawn = draw_all(TableBackend(16), launches)
    assert [attempt.launch for attempt in drawn] == launches
    assert goodness_of_fit([tuple(attempt.token_ids) for attempt in drawn], law.texts()) > FITS


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from tests.engine.scheduling.test_scheduler import served, everything; served(everything(1));"
        "assert 'torch' not in sys.modules"
    )
    # Importing guardwrap.testing requires torch; only its goodness of fit is used here.
    fake = "import sys, types; m = types.ModuleType('guardwrap.testing'); m.goodness_of_fit = None; "
    subprocess.run([sys.executable, "-c", fake + "sys.modules['guardwrap.testing'] = m; " + code], check=True)


def test_letters() -> None:
    assert text_of(range(len(LETTERS))) == "ab "
