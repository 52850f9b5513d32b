"""Words that are written where paths lead up to them: the distribution of texts, for mixtures that are arbitrary."""

import math
import string
from collections.abc import Callable
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from guardwrap import Budget, Constraint, GuardedGenerator, Keyword, Regex, Twisted, load_local
from guardwrap.calls import source, twisting
from guardwrap.calls.sessions import LocalSession
from guardwrap.calls.source import LocalSource
from guardwrap.calls.twisting import TwistedConstraint
from guardwrap.engine.refill.row_states import Plain, Rows, Separate, Wave, can_rewind
from guardwrap.engine.refill.slots import Slots
from guardwrap.engine.scheduling.backend import AttemptState, Launch
from guardwrap.engine.token_sampling import draw_tokens, new_attempt
from guardwrap.errors import ModelError
from guardwrap.outcomes import Outcome
from guardwrap.samplers import Attempt
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from guardwrap.twists import hits
from guardwrap.twists.hits import Hits, LearnedHits, Mixture, decided, spellings_of, word_rules
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import TokenStates

FITS, FAILS = 1e-3, 1e-9
DRAWS = 2_500


class Form(NamedTuple):
    """A rule, the letters of its world, and the tokens that are written for it."""

    rule: Constraint
    letters: str
    spellings: tuple[tuple[str, ...], ...]  # by word
    length: int = 4


PART = Keyword("b", whole_words=False)
ANYWHERE = Form(Keyword("ab", whole_words=False), "abc", (("ab",),))
WHOLE = Form(Keyword("ab"), "ab ", ((" ab",),))  # at the beginning, the word comes by itself
OVERLAPPING = Form(Keyword("ab", whole_words=False) & Keyword("ba", whole_words=False), "ab", (("ab",), ("ba",)), 5)
INSIDE = Form(Keyword("a b") & Keyword("b"), "ab ", (("a b",), ("b",)), 5)
FORMS = {
    "anywhere": ANYWHERE,
    "a whole word": WHOLE,
    "a word that overlaps itself": Form(Keyword("aba", whole_words=False), "ab", (("aba",),)),
    "beside another rule": Form(Keyword("ab") & ~Regex("bb"), "ab ", (("ab",),)),
    "one of several words": Form(Keyword(["ab", "ba", "b"]), "ab ", (("ab", "ba"),)),
    "two words": Form(Keyword("a") & Keyword("b"), "ab ", (("a",), ("b",))),
    "two words that overlap": OVERLAPPING,
    "two words that end together": INSIDE,
    "a word and a part of it": Form(Keyword(["ab", "b"]) & PART, "ab ", (("ab",), ("b",))),
    "where words end depends on their script": Form(Keyword("용"), "용가 ", (("용",),)),
    "a word with two spellings": Form(Keyword("ё"), "ёе ", (("ё", " ё"),)),
    "all of three words": Form(Keyword(["a", "b", "c"], match="all"), "abc ", (("a",), (" b",), ("c",)), 5),
    "two words beside another rule": Form(Keyword("a") & Keyword("b") & ~Regex("bb"), "ab ", (("a",), ("b",)), 5),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (32,))


def world_of(form: Form, make: Any = table_world, **more: Any) -> World:
    world: World = make(**{"letters": form.letters, "max_new_tokens": form.length, "temperature": 0.8, **more})
    return world


def twisted_of(guarded: GuardedGenerator) -> TwistedConstraint:
    session = guarded.session
    assert isinstance(session, LocalSession)
    ((twisted, _),) = session._learned.values()
    return twisted


def guarded_of(world: World, form: Form, **options: Any) -> GuardedGenerator:
    """Return a wrapper that writes the words of a form, by a mixture and guesses that nothing was learned for."""
    budget = Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), form.rule, proposal=Twisted(), budget=budget, seed=3, **options)
    guarded.attempts(world.prompt, 1, **world.settings)
    twisted = twisted_of(guarded)

    def encode(text: str) -> list[int]:
        return [world.tokenizer.convert_tokens_to_ids(letter) for letter in text]

    learned = LearnedHits.of(form.rule, twisted.states._vocabulary, encode)
    assert learned is not None
    chance = np.random.default_rng(1)
    for word, spellings in zip(learned.words, form.spellings, strict=True):
        word.spellings = tuple(tuple(encode(text)) for text in spellings)
        word.log_rests = chance.uniform(-2, 0, len(spellings)).tolist()
    numbers = range(len(learned.words))
    for missing in chain.from_iterable(combinations(numbers, count + 1) for count in numbers):
        tilts = chance.normal(size=(2, len(world.tokenizer)))
        learned.mixtures[missing] = Mixture(
            np.log([0.3, 0.3, 0.4]), np.concatenate([np.zeros((1, tilts.shape[1])), tilts])
        )
    twisted.hits, twisted.writes = learned, True
    return guarded


def attempts_of(world: World, form: Form, count: int = DRAWS, **options: Any) -> list[Attempt]:
    return guarded_of(world, form, **options).attempts(world.prompt, count, **world.settings)[0]


def fit(world: World, form: Form, attempts: list[Attempt], *, weighed: bool = True) -> float:
    """Return how well attempts fit g, accepted in proportion to their weights."""
    weights = np.array([math.exp(each.log_weight or 0.0) if each.satisfied else 0.0 for each in attempts])
    chance = np.random.default_rng(0).random(len(attempts))
    accepted = chance < (weights / weights.max() if weighed else weights > 0)
    drawn = [each.draw.token_ids for each, accept in zip(attempts, accepted, strict=True) if accept]
    return goodness_of_fit(drawn, world.gold(form.rule))


def errors_of_z(world: World, form: Form, attempts: list[Attempt]) -> float:
    """Return how far the mean of the weights is from Z, in standard errors."""
    weights = np.array([math.exp(each.log_weight or 0.0) * each.satisfied for each in attempts])
    a = world.law()
    z = sum(a[ids] for ids in world.gold(form.rule))
    return float(abs(weights.mean() - z) / weights.std() * math.sqrt(len(weights)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_weighed_attempts_follow_g(name: str) -> None:
    form = FORMS[name]
    world = world_of(form)
    attempts, a = attempts_of(world, form), world.law()
    assert fit(world, form, attempts) > FITS
    passing = [each for each in attempts if each.satisfied]
    assert len(passing) > (0.6 if len(form.spellings) == 1 else 0.05) * len(attempts)  # texts have hardly room for two
    for each in passing:
        assert each.log_weight is not None
        total = (each.draw.log_proposal or 0.0) + each.log_weight
        assert total == pytest.approx(math.log(a[each.draw.token_ids]), abs=1e-4)
    assert errors_of_z(world, form, attempts) < 4


@pytest.mark.slow
def test_tokens_that_truncation_leaves_out_are_not_written() -> None:
    form = WHOLE._replace(spellings=(("ab",),))
    world = world_of(form, top_k=3)
    gold, untruncated = world.gold(form.rule), world_of(form).gold(form.rule)
    assert 1 < len(gold) < len(untruncated)
    attempts = attempts_of(world, form)
    assert fit(world, form, attempts) > FITS
    assert errors_of_z(world, form, attempts) < 4
    assert {each.draw.token_ids for each in attempts if each.satisfied} <= set(gold)


class RaisingMask:
    """The mask of another caller, which fails."""

    beyond = False

    def left_out(self, *_: Any, **__: Any) -> Any:
        raise ValueError("the other caller's")

    def close(self, *_: Any) -> None:
        pass


COMPANY: dict[str, tuple[RaisingMask | None, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a mask that raises": (RaisingMask(), torch.clone),
    "logits that are not numbers": (None, lambda logits: torch.full_like(logits, math.nan)),
    "tokens that are tied with the k-th": (None, torch.zeros_like),
}


@pytest.mark.parametrize("company", COMPANY)
def test_another_caller_in_the_batch_changes_no_weight(company: str) -> None:
    """If another caller's attempt raises or has ties, the batch is drawn again. Paths are followed as if once."""
    form = Form(ANYWHERE.rule, string.ascii_letters, ANYWHERE.spellings)
    world = world_of(form, top_k=5)
    (request,) = guarded_of(world, form).session.job(dict(world.settings)).requests([world.prompt])
    law, likely = request.prompt.law, torch.zeros(len(world.tokenizer))
    likely[world.tokenizer.convert_tokens_to_ids(["a", "b"])] = 3.0
    mask, logits_of = COMPANY[company]
    random = torch.Generator().manual_seed(0)
    steps = likely + torch.randn(16, 8, len(likely), generator=random)

    def drawn(number: int, *, beside: bool) -> AttemptState:
        attempt = new_attempt(Launch(law, 1, 0, number, request=request, twist=request.drawing.twist))
        for logits in steps[number]:
            other = [new_attempt(Launch(law, 1, 1, number, request="other", mask=mask))] if beside else []
            draw_tokens(torch.stack([logits, logits_of(logits)])[: 1 + beside], [attempt, *other])
            if attempt.status != "running":
                break
        return attempt

    for number in range(len(steps)):
        alone, beside = drawn(number, beside=False), drawn(number, beside=True)
        assert alone.error is None
        assert (beside.token_ids, beside.status) == (alone.token_ids, alone.status)
        assert beside.log_weight == pytest.approx(alone.log_weight, abs=1e-6)


def test_negative_control_the_weights_are_ignored() -> None:
    world = world_of(WHOLE)
    attempts = attempts_of(world, WHOLE)
    assert fit(world, WHOLE, attempts) > FITS
    assert fit(world, WHOLE, attempts, weighed=False) < FAILS


def test_negative_control_hits_after_the_first_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hits, "_missing", lambda self, words, states: tuple(words))
    monkeypatch.setattr(Hits, "_is_first", lambda self, *where: True)
    form = Form(ANYWHERE.rule, "ab", ANYWHERE.spellings)
    world = world_of(form, max_new_tokens=5)
    assert errors_of_z(world, form, attempts_of(world, form)) > 8


def test_negative_control_a_text_is_written_in_two_ways() -> None:
    form = WHOLE._replace(spellings=(("ab", " ab"),))
    world = world_of(form)
    assert errors_of_z(world, form, attempts_of(world, form)) > 8


def test_negative_control_words_are_written_behind_others_that_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a text with both words could be written in two ways."""
    right = Hits._is_first

    def alone(self: Hits, states: Any, begins: bool, missing: Any, number: int, ids: Any) -> bool:
        return right(self, states, begins, (number,), number, ids)

    world = world_of(OVERLAPPING)
    assert errors_of_z(world, OVERLAPPING, attempts_of(world, OVERLAPPING)) < 4
    monkeypatch.setattr(Hits, "_is_first", alone)
    assert errors_of_z(world, OVERLAPPING, attempts_of(world, OVERLAPPING)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("checked", [True, False])
def test_words_that_the_automaton_does_not_see_are_drawn(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole texts are checked by the rule itself. Negative control: without that, such texts are missing."""
    form = ANYWHERE
    automaton = automaton_of(Keyword("abb", whole_words=False))
    assert automaton is not None
    right = LearnedHits.of.__func__  # type: ignore[attr-defined]

    def narrow(cls: Any, rule: Any, vocabulary: Any, encode: Any) -> LearnedHits:
        learned: LearnedHits = right(cls, rule, vocabulary, encode)
        learned.words[0].states = TokenStates(automaton, vocabulary)
        learned.words[0].safe = automaton.safe()
        return learned

    monkeypatch.setattr(LearnedHits, "of", classmethod(narrow))
    if not checked:
        prepared = Hits.__post_init__

        def unchecked(self: Hits) -> None:
            prepared(self)
            self.draw_of = None

        monkeypatch.setattr(Hits, "__post_init__", unchecked)
    world = world_of(form)
    result = fit(world, form, attempts_of(world, form._replace(spellings=(("abb",),))))
    assert result > FITS if checked else result < FAILS


def test_all_rows_give_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: rows that keep the states of what was taken back give others, of another distribution."""
    form = Form(Keyword("ab"), "ab ", (("ab",),))
    world = world_of(form, llama_world)

    def drawn(kind: type[Rows], batch_size: int = 64) -> list[Any]:
        monkeypatch.setattr(source, "select_rows", lambda model, separate: kind)
        attempts = attempts_of(world, form, 150, batch_size=batch_size)
        return [(each.draw.token_ids, round(each.log_weight or 0.0, 3)) for each in attempts]

    of_slots = drawn(Slots)
    assert of_slots == drawn(Slots, 7) == drawn(Plain) == drawn(Separate)
    monkeypatch.setattr(Slots, "rewind", lambda self, row, prefix, prompt: None)
    assert of_slots != drawn(Slots)


@pytest.mark.slow
def test_with_attention_attempts_follow_g() -> None:
    form = Form(Keyword("ab"), "ab ", (("ab",),))
    world = world_of(form, llama_world)
    assert fit(world, form, attempts_of(world, form, DRAWS)) > FITS


def test_rows_that_start_together_are_not_rewound() -> None:
    model = world_of(ANYWHERE, llama_world).model
    assert can_rewind(Slots, model)
    assert can_rewind(Plain, model)
    assert not can_rewind(Wave, model)


def test_words_are_spelled_as_they_are_after_other_text() -> None:
    _, tokenizer = load_local()

    def encode(text: str) -> Any:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    spellings = spellings_of(Keyword("dragon"), encode)
    texts = [tokenizer.decode(ids) for ids in spellings]
    assert {" dragon", "dragon", " Dragon", "Dragon"} == set(texts)
    assert [tokenizer.decode(ids) for ids in spellings_of(Keyword("dragon", case_sensitive=True), encode)] == [
        "dragon",
        " dragon",
    ]


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        (Keyword("a"), 1),
        (Keyword(["a", "b"]), 1),
        (Keyword("a") & ~Regex("b"), 1),
        (Keyword("a") & Keyword("b"), 2),
        (Keyword("a") & Keyword("b", max_count=2), 1),
        (Keyword(["a", "b"], match="all"), 2),
        (Keyword(["a", "b"], match="all", min_count=2), 0),
        (Keyword("a", match="none"), 0),
        (Keyword("a", min_count=2), 0),
        (Keyword("a", max_count=2), 0),
        (Keyword("a") | Regex("b"), 0),
        (Keyword("a", on="full"), 0),
    ],
)
def test_rules_whose_words_are_written(rule: Constraint, count: int) -> None:
    assert len(word_rules(rule)) == count


def test_words_are_written_unless_states_seem_far_cheaper() -> None:
    chance = np.random.default_rng(2)
    good, bad = chance.normal(0, 0.3, 256), np.where(chance.random(256) < 0.1, 0.0, -np.inf)
    writes, why = decided([good], [bad])
    assert writes
    assert why.startswith("words are written where attempts lead up to them; attempts per text at a TVD of 0.1: 1")
    writes, why = decided([bad], [good])
    assert not writes
    assert why.startswith("attempts go by states; attempts per text at a TVD of 0.1: 1")
    assert decided([np.append(good, np.full(256, -np.inf))], [good])[0], "twice the attempts are within the margin"
    assert not decided([np.append(good, np.full(4 * 256, -np.inf))], [good])[0]
    nothing = np.full(64, -np.inf)
    writes, why = decided([nothing], [nothing])
    assert not writes
    assert why.endswith("are worth 0 draws of g, too few to compare")
    writes, why = decided([good], [nothing])
    assert writes
    assert "and by states unknown, as none passed, by the few" in why
    assert not decided([np.append(good, 9.0)], [nothing])[0], "one attempt counts more than all others together"


def test_a_call_learns_both_ways_and_says_which_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twisting, "ENOUGH", 2.0)
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (32, 32, 64))
    form = Form(Keyword("ab"), "ab ", (("ab",),))
    world = world_of(form, llama_world)
    right = hits.decided
    for writes in (True, False):
        monkeypatch.setattr(twisting, "decided", lambda *ways, writes=writes: (writes, right(*ways)[1]))
        guarded = GuardedGenerator(world.pipeline(), form.rule, proposal=Twisted(), sampler="qrs", seed=3)
        (outcome,) = guarded.run(world.prompt, budget=Budget(max_attempts=None), **world.settings)
        assert outcome.ok
        usage = outcome.report.usage
        assert usage.learning_attempts == 128 + 128 // 6 + 128 // 3
        assert any("attempts per text at a TVD of 0.1" in note for note in outcome.report.notes)
        twisted = twisted_of(guarded)
        assert twisted.learned
        launched = guarded.session.job(dict(world.settings)).requests([world.prompt])
        assert isinstance(next(iter(launched)).drawing.twist, Hits) == writes


class SameScores(LogitsProcessor):
    """A processor of the user's own, which might count its calls."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


LEAVES_TRACES = {"a processor": {"logits_processor": LogitsProcessorList([SameScores()])}, "a time": {"max_time": 60.0}}


@pytest.mark.parametrize("calls_before", ["none", "learning was cut between the rounds of writing"])
@pytest.mark.parametrize("kind", LEAVES_TRACES)
def test_where_words_are_not_written_other_calls_learn_to_write_them(
    kind: str, calls_before: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(twisting, "ENOUGH", 2.0)
    form = Form(Keyword("ab"), "ab ", (("ab",),))
    world = world_of(form, llama_world)
    budget = Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), form.rule, proposal=Twisted(), budget=budget, seed=3)
    job = guarded.session.job(dict(world.settings))
    assert isinstance(job.source, LocalSource)
    assert job.source.twists is not None
    twisted = job.source.twists.constraint
    by_states, by_writing = 32, 32 // 6 + 32 // 3
    if calls_before != "none":
        prompts = list(job.call.prompts(enumerate([world.prompt]), 8))
        twisted.learn(prompts, job._attempts, lambda: 1.0 if twisted.rounds <= twisted.by_states else 0.0)
        assert twisted.rounds == twisted.by_states + 1
    spent = twisted.spent.attempts
    for more in ({"max_new_tokens": 3}, {}):
        (outcome,) = guarded.run(world.prompt, **{**world.settings, **LEAVES_TRACES[kind], **more})
        assert outcome.ok
    assert twisted.spent.attempts == max(spent, by_states)
    assert twisted.values is not None
    assert len(twisted.values) == world.max_new_tokens + 1, "rows for longer texts than those of the first call"
    guarded.save_twist(tmp_path / "states.safetensors")
    assert twisted.left > 0
    assert guarded.run(world.prompt, **world.settings)[0].ok
    assert twisted.left == 0
    assert twisted.spent.attempts == by_states + by_writing
    assert twisted.decision


WRITES_NOTHING: dict[str, Any] = {**LEAVES_TRACES, "a strength": {"proposal": Twisted(strength=0.5)}}


@pytest.mark.parametrize("kind", WRITES_NOTHING)
def test_reports_say_that_words_are_written_only_where_they_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twisting, "ENOUGH", 2.0)
    monkeypatch.setattr(twisting, "decided", lambda *ways: (True, "words are written"))
    form = Form(Keyword("ab"), "ab ", (("ab",),))
    world = world_of(form, llama_world)
    guarded = GuardedGenerator(world.pipeline(), form.rule, proposal=Twisted(), seed=3)
    guarded.run(world.prompt, **world.settings)
    for more, writes in (({}, True), (WRITES_NOTHING[kind], False)):
        settings = {**world.settings, **more}
        (request,) = guarded.session.job(dict(settings)).requests([world.prompt])
        assert isinstance(request.drawing.twist, Hits) == writes
        (outcome,) = guarded.run(world.prompt, **settings)
        assert ("words are written" in outcome.report.notes) == writes
    assert twisted_of(guarded).learned, "both calls use what was learned once"


def test_what_may_be_taken_back_is_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a text that comes with the word by itself is streamed, and then another one is written."""
    world = world_of(ANYWHERE, max_new_tokens=6)

    def streamed() -> tuple[list[str], Outcome]:
        pieces: list[str] = []
        more = {"num_return_sequences": 20, **world.settings}
        guarded = guarded_of(world, ANYWHERE, batch_size=1)
        (outcome,) = guarded.stream([world.prompt], on_piece=lambda *piece: pieces.append(piece[-1]), **more)
        return pieces, outcome

    pieces, outcome = streamed()
    assert pieces == list(outcome.texts)
    assert any("tokens may be taken back" in note for note in outcome.report.notes)
    monkeypatch.setattr(source, "Hits", type(None))
    with pytest.raises(ModelError, match="a text that was streamed changed"):
        streamed()
