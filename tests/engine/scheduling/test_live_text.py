"""Streaming while a text is drawn: nothing that is passed on is ever unaccepted, and the texts stay the same."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import (
    Budget,
    CheckFailed,
    Constraint,
    Finished,
    GuardedGenerator,
    Keyword,
    Length,
    Regex,
    Verdict,
    constraint,
    imh,
    qrs,
)
from guardwrap.engine.refill.row_states import Plain
from guardwrap.engine.scheduling import live_text
from guardwrap.engine.scheduling.request import Request
from guardwrap.engine.scheduling.request_state import RequestState
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import GuardwrapError, ModelError, Unsatisfiable
from guardwrap.models.early_abort import PrefixWatch
from guardwrap.outcomes import Outcome
from guardwrap.testing import World, goodness_of_fit, table_world
from tests.engine.scheduling.fixtures_table_backend import TableBackend, random_law, text_of
from tests.engine.scheduling.test_scheduler import changed, request_of

WORLDS = [table_world(seed, letters="ab ", max_new_tokens=5) for seed in range(3)]
FITS = 1e-3


@constraint(prefix=lambda text: Verdict.SATISFIED if text.startswith("ab") else Verdict.UNDECIDED)
def begins_or_is_short(text: str) -> bool:
    return text.startswith("ab") or len(text) < 3


@constraint
def has_even_length(text: str) -> bool:
    return len(text) % 2 == 0


LEAVES: list[Constraint] = [
    Keyword("a", whole_words=False),
    Keyword("b", whole_words=False, min_count=2),
    Keyword(["a b", "ba"], whole_words=False, max_count=2),
    Regex("^b"),
    Regex("a b"),
    Regex("b$"),
    Regex("a{2}"),
    Length(min=0),
    Length(min=2),
    Length(max=3),
    Length(min=1, unit="tokens"),
    Finished(),
    begins_or_is_short,
    has_even_length,
]


def combined(children: st.SearchStrategy[Constraint]) -> st.SearchStrategy[Constraint]:
    both = st.tuples(children, children)
    return both.map(lambda two: two[0] | two[1]) | both.map(conjunction) | children.map(lambda one: ~one)


def conjunction(two: tuple[Constraint, Constraint]) -> Constraint:
    try:
        return two[0] & two[1]
    except Unsatisfiable:
        return two[0]


RULES = st.recursive(st.sampled_from(LEAVES), combined, max_leaves=4)


@dataclass
class Streamed:
    """What a call passed on, and its outcomes with and without streaming."""

    pieces: dict[tuple[int, int], list[str]]
    outcomes: list[Outcome]
    expected: list[Outcome]

    def unaccepted(self) -> list[str]:
        """Return what was passed on and does not begin an accepted text."""
        wrong = []
        for (prompt, number), pieces in self.pieces.items():
            said, texts = "".join(pieces), self.expected[prompt].texts
            if number >= len(texts) or not texts[number].startswith(said):
                wrong.append(said)
        return wrong

    def of_one_step(self) -> int:
        return sum(len(pieces) == 1 for pieces in self.pieces.values())


def streamed(world: World, rule: Constraint, prompts: int = 3, **options: Any) -> Streamed:
    guarded = GuardedGenerator(world.pipeline(), rule)
    options = {"seed": 1, "num_return_sequences": 2, **world.settings, **options}
    expected = guarded.run([world.prompt] * prompts, progress=False, **options)
    pieces: dict[tuple[int, int], list[str]] = defaultdict(list)
    outcomes: list[Outcome] = []
    try:
        drawn = guarded.stream(
            [world.prompt] * prompts, on_piece=lambda at, number, text: pieces[at, number].append(text), **options
        )
        outcomes += drawn
    except GuardwrapError:
        pass
    return Streamed(pieces, outcomes, expected)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    world=st.sampled_from(WORLDS),
    rule=RULES,
    seed=st.integers(0, 2**31),
    size=st.integers(1, 9),
    count=st.integers(1, 4),
    attempts=st.integers(1, 12),
    tokens=st.none() | st.integers(1, 30),
    sampler=st.sampled_from(["rejection", "rejection", "qrs", "imh"]),
)
def test_nothing_that_is_streamed_is_ever_unaccepted(
    world: World, rule: Constraint, seed: int, size: int, count: int, attempts: int, tokens: int | None, sampler: str
) -> None:
    options: dict[str, Any] = {"budget": Budget(max_attempts=attempts, max_tokens=tokens), "seed": seed}
    options |= {"batch_size": size, "num_return_sequences": count}
    options["sampler"] = {"qrs": qrs(pilot=2), "imh": imh(steps=2)}.get(sampler, sampler)
    result = streamed(world, rule, **options)
    assert result.unaccepted() == []
    assert [outcome.draws for outcome in result.outcomes] == [outcome.draws for outcome in result.expected]
    texts = {(at, n): text for at, each in enumerate(result.outcomes) for n, text in enumerate(each.texts)}
    assert {key: "".join(pieces) for key, pieces in result.pieces.items()} == {k: t for k, t in texts.items() if t}
    assert all(all(pieces) for pieces in result.pieces.values())
    draws = [draw for outcome in result.outcomes for draw in outcome.draws]
    assert all(rule.check(draws))


SOME = [Keyword("a", whole_words=False), Length(min=2), Keyword("b", whole_words=False) & ~Regex("^b")]


def all_streamed(**options: Any) -> Iterator[Streamed]:
    several = range(20)
    return (streamed(WORLDS[0], rule, seed=seed, batch_size=8, **options) for rule in SOME for seed in several)


def test_texts_come_in_pieces() -> None:
    results = list(all_streamed())
    texts = sum(len(outcome.texts) for result in results for outcome in result.outcomes)
    assert sum(result.of_one_step() for result in results) < texts * 0.8
    assert not any(result.unaccepted() for result in results)


@pytest.mark.slow
def test_texts_that_are_streamed_are_drawn_from_g() -> None:
    rule = SOME[2]
    result = streamed(WORLDS[1], rule, 1_000, num_return_sequences=5)
    drawn = [draw.token_ids for outcome in result.outcomes for draw in outcome.draws]
    assert len(drawn) == 5_000
    assert goodness_of_fit(drawn, WORLDS[1].gold(rule)) > FITS


def text_so_far(watch: PrefixWatch, token_ids: Sequence[int]) -> str | None:
    return watch.monitor(token_ids)[0]


def of_any_attempt(state: RequestState, attempt: int) -> int | None:
    return len(state.accepted) if state.ended is None else None


def test_negative_control_what_is_undecided_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixWatch, "settled", text_so_far)
    assert any(result.unaccepted() for result in all_streamed())


def test_negative_control_an_attempt_that_is_not_next_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestState, "_next_text", of_any_attempt)
    assert any(result.unaccepted() for result in all_streamed())


def without_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_text, "why_whole", lambda request: None)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [qrs(pilot=2), imh(steps=3)])
def test_negative_control_a_sampler_that_decides_at_the_end(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(result.unaccepted() for result in all_streamed(sampler=sampler))
    without_reason(monkeypatch)
    assert any(result.unaccepted() for result in all_streamed(sampler=sampler))


class Rule:
    """Judges the letters of a table's texts, as a ``PrefixWatch`` judges tokens."""

    def __init__(self, rule: Constraint) -> None:
        self.rule = rule

    def settled(self, ids: Sequence[int], /) -> str | None:
        return text_of(ids) if self.rule.verdict(text_of(ids)) is Verdict.SATISFIED else None

    def undecided(self, ids: Sequence[int], /) -> str | None:
        verdicts = ((part.title, part.verdict(text_of(ids))) for part in self.rule.parts)
        return next((title for title, verdict in verdicts if verdict is not Verdict.SATISFIED), None)


HAS_A = Keyword("a", whole_words=False)
Pieces = list[tuple[int, int, str, bool]]


def request_for(number: int, pieces: Pieces, rule: Constraint = HAS_A, count: int = 1, **more: Any) -> Request:
    def pass_on(request: Request, index: int, text: str, ended: bool) -> None:
        pieces.append((request.prompt.number, index, text, ended))

    more = {"pass_on": pass_on, "settled": Rule(rule), **more}
    return request_of(number, random_law(2, count), rule, **more)


def drawn(requests: Sequence[Request], size: int = 8) -> list[Outcome]:
    return [outcome for _, outcome in Scheduler(TableBackend(size)).serve(requests, window=99)]


def test_the_last_piece_of_each_text_is_marked() -> None:
    pieces: Pieces = []
    outcomes = drawn([request_for(number, pieces, count=3) for number in range(20)])
    for number, outcome in enumerate(outcomes):
        for index, text in enumerate(outcome.texts):
            its = [(text, ended) for at, n, text, ended in pieces if (at, n) == (number, index)]
            assert "".join(piece for piece, _ in its) == text
            assert [ended for _, ended in its] == [False] * (len(its) - 1) + [True]


def test_a_deadline_may_stop_a_text_so_none_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the test is a negative control: the beginning of a text is streamed that is dropped later."""

    def run(budget: Budget) -> tuple[Pieces, Outcome]:
        pieces: Pieces = []
        moments = iter(range(10**6))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
        backend = TableBackend(1, breaks=stopped_at_two)
        (_, outcome), *_ = Scheduler(backend).serve([request_for(0, pieces, Length(min=1), budget=budget)], window=1)
        return pieces, outcome

    def stopped_at_two(attempt: Any) -> None:
        if len(attempt.token_ids) == 3:
            attempt.status = "abandoned"

    pieces, outcome = run(Budget(deadline=50.0))
    assert (pieces, outcome.texts, outcome.report.ended) == ([], (), "deadline")
    without_reason(monkeypatch)  # a negative control
    pieces, outcome = run(Budget(deadline=50.0))
    assert pieces
    assert outcome.texts == ()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"budget": Budget(deadline=9.0)}, "the deadline may stop a text"),
        ({"budget": Budget(timeout=9.0)}, "the timeout may stop a text"),
        ({"settled": None, "whole_because": "a server draws it"}, "a server draws it"),
        ({"watched": False}, "the backend gives whole texts"),
        ({"rule": HAS_A & Finished()}, "'Finished()' was undecided until the end"),
    ],
)
def test_a_report_says_why_a_text_came_as_a_whole(more: dict[str, Any], why: str) -> None:
    pieces: Pieces = []
    (outcome,) = drawn([request_for(0, pieces, **more)])
    assert any(note.startswith(f"streamed as a whole: 1 text; reason: {why}") for note in outcome.report.notes)
    assert [text for *_, text, _ in pieces] == list(outcome.texts)


def test_a_report_says_from_which_token_on_texts_were_streamed() -> None:
    pieces: Pieces = []
    (outcome,) = drawn([request_for(0, pieces, Length(min=2), count=20)], size=1)
    (note,) = [note for note in outcome.report.notes if note.startswith("streamed while drawn")]
    assert "from token 2 on" in note
    assert note.count("from token") == live_text.SHOWN
    assert note.endswith("more")
    (outcome,) = drawn([request_of(0, random_law(2))])
    assert not [note for note in outcome.report.notes if "streamed" in note]


def test_a_function_that_raises_ends_its_own_request_only() -> None:
    def raises(*_: Any) -> None:
        raise ZeroDivisionError

    pieces: Pieces = []
    others = [request_for(number, pieces) for number in (1, 2)]
    scheduler = Scheduler(TableBackend(8))
    with pytest.raises(ZeroDivisionError):
        list(scheduler.serve([request_for(0, [], pass_on=raises), *others], window=99))
    assert len(list(scheduler.serve(iter(()), window=9))) == 0
    assert drawn(others)[0].ok


def test_an_unsound_verdict_is_an_error_that_names_its_part() -> None:
    @constraint(name="hasty", prefix=lambda text: Verdict.SATISFIED)
    def hasty(text: str) -> bool:
        return False

    pieces: Pieces = []
    with pytest.raises(CheckFailed, match=r"'hasty' was SATISFIED by the beginning of a text.* every continuation"):
        drawn([request_for(0, pieces, hasty)])
    assert pieces


def failing_rows(monkeypatch: pytest.MonkeyPatch, at: int, changed: Callable[[], None] = lambda: None) -> None:
    """Let memory run out in one pass of the model."""
    forward, passes = Plain.forward, iter(range(10**6))

    def failing(self: Plain, *arguments: Any) -> torch.Tensor:
        if next(passes) == at:
            changed()
            raise torch.OutOfMemoryError
        return forward(self, *arguments)

    monkeypatch.setattr(Plain, "forward", failing)
    monkeypatch.setattr("guardwrap.calls.source.select_rows", lambda model, separate: Plain)


def long_world() -> World:
    """Return a world whose texts end late."""
    world = table_world(1, letters="ab ", max_new_tokens=12)
    with torch.no_grad():
        world.model.table[..., world.tokenizer.eos_token_id] = -9.0
    return world


def pieces_of(world: World, pieces: list[str]) -> Outcome:
    guarded = GuardedGenerator(world.pipeline(), Length(min=1))
    on_piece = lambda *piece: pieces.append(piece[2])  # noqa: E731
    (outcome,) = guarded.stream([world.prompt], on_piece=on_piece, seed=2, **world.settings)
    return outcome


def test_an_attempt_that_restarts_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[str] = []
    again: list[str] = []
    pieces_of(long_world(), whole)
    failing_rows(monkeypatch, at=4)
    pieces_of(long_world(), again)
    assert len(whole) == 12
    assert again == whole


def test_an_attempt_that_restarts_with_another_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision allows that, so the stream must not continue with the end of another text."""
    world = long_world()
    pieces: list[str] = []

    def changed() -> None:
        with torch.no_grad():
            world.model.table[..., 1:] = world.model.table[..., 1:].neg()

    failing_rows(monkeypatch, 4, changed)
    with pytest.raises(ModelError, match="changed when it was drawn again"):
        pieces_of(world, pieces)
    assert len(pieces) == 5


def test_pieces_come_before_the_text_and_from_a_shared_batch() -> None:
    guarded = GuardedGenerator(WORLDS[0].pipeline(), SOME[0])
    events: list[tuple[str, int, str]] = []

    async def run() -> list[Outcome]:
        options: dict[str, Any] = {**WORLDS[0].settings, "seed": 3}
        on_text = lambda number, draw: events.append(("text", number, draw.text))  # noqa: E731
        on_piece = lambda number, index, text: events.append(("piece", number, text))  # noqa: E731
        prompts = [WORLDS[0].prompt] * 9
        return [each async for each in guarded.astream(prompts, on_text=on_text, on_piece=on_piece, **options)]

    outcomes = asyncio.run(run())
    for number, outcome in enumerate(outcomes):
        its = [(kind, text) for kind, at, text in events if at == number]
        assert its[-1] == ("text", outcome.texts[0])
        assert "".join(text for _, text in its[:-1]) == outcome.texts[0]


def test_requests_that_do_not_stream_have_their_own_watch() -> None:
    request = request_of(0, random_law(2), HAS_A)
    state = RequestState(changed(request, watch=None), "table")
    assert state.live is None
    assert state.launch(0).watch is None


MUG = [{"role": "user", "content": "Write two sentences about a coffee mug, with an emoji."}]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Length(min=0), Keyword("mug"), ~Regex("mugg")])
def test_the_embedded_model(rule: Constraint) -> None:
    guarded = GuardedGenerator("local", rule)
    pieces: dict[tuple[int, int], list[str]] = defaultdict(list)
    options: dict[str, Any] = {"max_new_tokens": 40, "num_return_sequences": 2, "top_k": 0, "temperature": 1.2}
    on_piece = lambda at, number, text: pieces[at, number].append(text)  # noqa: E731
    (outcome,) = guarded.stream([MUG], on_piece=on_piece, seed=5, **options)
    assert ["".join(pieces[0, number]) for number in range(2)] == list(outcome.texts)
    assert outcome.texts == guarded.run(MUG, seed=5, **options)[0].texts
    live = rule.verdict("mug ") is Verdict.SATISFIED
    assert (len(pieces[0, 0]) > 3) == live
    assert outcome.report.notes[-1].startswith("streamed")


@pytest.mark.slow
def test_an_answer_that_is_parsed_into_a_message_comes_as_a_whole() -> None:
    guarded = GuardedGenerator("local", Length(min=0))
    pieces: list[str] = []
    options: dict[str, Any] = {"max_new_tokens": 20, "parse_messages": True, "seed": 1}
    (outcome,) = guarded.stream([MUG], on_piece=lambda *piece: pieces.append(piece[2]), **options)
    assert pieces == list(outcome.texts)
    assert any("parsed into a message" in note and "streamed as a whole" in note for note in outcome.report.notes)
