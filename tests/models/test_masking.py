"""Masked proposals: their distribution, their weights, and the samplers on top."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import (
    Budget,
    Constraint,
    Grammar,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Masked,
    Prompt,
    Regex,
    Verdict,
    constraint,
    imh,
    qrs,
)
from guardwrap.constraints.checking import Rereading, run_verdict
from guardwrap.constraints.json.json_monitor import JSONMonitor
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.engine import token_sampling
from guardwrap.engine.scheduling.backend import AttemptState, Launch
from guardwrap.errors import UsageError
from guardwrap.models import masking
from guardwrap.models.early_abort import PrefixWatch, StablePrefix
from guardwrap.models.masking import ConstraintMask
from guardwrap.models.vocabulary import Vocabulary
from guardwrap.samplers import Attempt, Sampler, collecting
from guardwrap.support.time_limits import seconds_left
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from tests.fixtures_laws import by_text, imh_law, normal, qrs_law
from tests.fixtures_models import byte_tokenizer, byte_world, fallback_tokenizer

RULE = ~Regex("b") & Keyword(
    "a", whole_words=False
)  # a violation of the first shows at once, one of the second only at the end of a text
FITS, FAILS = 1e-3, 1e-9
DRAWS = 4_000
Texts = dict[tuple[int, ...], float]


def masked_law(world: World, unseen: float = 0.0, at_once: int = 1000) -> tuple[Texts, Texts]:
    """Enumerate a' and log Z of each text, token by token, from a and the constraint's own verdicts."""
    a, end = world.law(), world.tokenizer.eos_token_id
    reach: Texts = {}
    for ids, p in a.items():
        for length in range(len(ids) + 1):
            reach[ids[:length]] = reach.get(ids[:length], 0.0) + p

    def dead(ids: tuple[int, ...]) -> bool:
        if ids[-1] == end or len(ids) == world.max_new_tokens:
            return not RULE.check([world.draw(ids)])[0]
        return run_verdict(RULE, world.draw(ids).text) is Verdict.VIOLATED

    def left_out(steps: Texts) -> set[tuple[int, ...]]:
        """The most probable tokens are judged first, in groups, until almost no probability is unjudged."""
        order = sorted(steps, key=lambda ids: -steps[ids])
        seen: list[tuple[int, ...]] = []
        while len(seen) < len(order):
            left = sum(steps[ids] for ids in seen if not dead(ids))
            if seen and sum(steps[ids] for ids in order[len(seen) :]) <= unseen * left:
                break
            seen += order[len(seen) : len(seen) + at_once]
        return {ids for ids in seen if dead(ids)}

    law: Texts = {(): 1.0}
    left: Texts = {(): 0.0}
    done: Texts = {}
    while law:
        grown: Texts = {}
        for prefix, p in law.items():
            steps = {
                ids: reach[ids] / reach[prefix] for ids in reach if len(ids) == len(prefix) + 1 and ids[:-1] == prefix
            }
            out = left_out(steps)
            out = set() if len(out) == len(steps) else out
            z = sum(step for ids, step in steps.items() if ids not in out)
            for ids in steps.keys() - out:
                over = ids[-1] == end or len(ids) == world.max_new_tokens
                (done if over else grown)[ids] = p * steps[ids] / z
                left[ids] = left[prefix] + math.log(z)
        law = grown
    return done, {ids: left[ids] for ids in done}


def world_of(**more: Any) -> World:
    return table_world(letters="abc", max_new_tokens=4, temperature=0.8, **more)


def drawn(world: World, sampler: str | Sampler, count: int, *, masked: Any = None, **options: Any) -> Any:
    proposal = Masked(unseen=0.0) if masked is None else masked
    budget = Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), RULE, sampler=sampler, proposal=proposal, budget=budget, seed=3)
    return guarded.run(world.prompt, num_return_sequences=count, **world.settings, **options)[0]


def test_masks_leave_out_what_is_dead_and_nothing_else() -> None:
    world = world_of()
    law, _ = masked_law(world)
    assert sum(law.values()) == pytest.approx(1)
    inside = by_text(normal, {ids: p for ids, p in law.items() if ids in world.gold(RULE)})
    outcome = drawn(world, "rejection", DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], inside) > FITS
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) < FAILS, "texts must not fit g"
    assert outcome.report.drawn_from == "not your model's own distribution: tokens were masked (g')"
    plain = GuardedGenerator(world.pipeline(), RULE, seed=3).run(
        world.prompt, num_return_sequences=200, budget=Budget(max_attempts=None), **world.settings
    )[0]
    rates = [report.acceptance for report in (plain.report, outcome.report)]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0].high < rates[1].low


def weighed(world: World, count: int = 3_000, **options: Any) -> list[Attempt]:
    guarded = GuardedGenerator(world.pipeline(), RULE, seed=7, **{"proposal": Masked(unseen=0.0), **options})
    return guarded.attempts(world.prompt, count, **world.settings)[0]


@pytest.mark.slow
@pytest.mark.parametrize("unseen", [0.0, 0.4])
@pytest.mark.parametrize("make", [table_world, llama_world])
def test_weights_are_those_of_the_law(make: Callable[..., World], unseen: float) -> None:
    """For satisfying texts, log P/a' is the sum of log Z, and log a' that of the sampled tokens."""
    world = make(letters="abc", max_new_tokens=4, temperature=0.8)
    a, (law, left) = world.law(), masked_law(world, unseen, at_once=1)
    assert (law.keys() == masked_law(world)[0].keys()) == (unseen == 0)
    met = set()
    for attempt in weighed(world, proposal=Masked(unseen=unseen)):
        ids = attempt.draw.token_ids
        if attempt.satisfied:
            assert attempt.log_weight == pytest.approx(left[ids], abs=1e-5)
            assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-5)
            assert attempt.draw.log_proposal == pytest.approx(math.log(law[ids]), abs=1e-5)
            met.add(ids)
    assert len(met) > 10


def test_the_mean_weight_is_z() -> None:
    """E_{a'}[P/a'] = Z: no text of g is lost."""
    world = world_of()
    z = sum(p for ids, p in world.law().items() if ids in world.gold(RULE))
    weights = [0.0 if each.log_weight is None else math.exp(each.log_weight) for each in weighed(world, 6_000)]
    assert np.mean(weights) == pytest.approx(z, rel=0.05)


SAMPLERS: dict[str, tuple[Sampler, Any, dict[str, Any]]] = {
    "qrs, exact": (qrs(1.0), qrs_law, {"beta": 1.0}),
    "qrs, less": (qrs(0.3), qrs_law, {"beta": 0.3}),
    "imh": (imh(3), imh_law, {"steps": 3}),
}


def expected(world: World, law: Any, settings: dict[str, Any]) -> Texts:
    proposal, left = masked_law(world)
    inside = {ids: p for ids, p in proposal.items() if ids in world.gold(RULE)}
    return by_text(law, inside, {ids: math.exp(left[ids]) for ids in inside}, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_take_it_towards_g(name: str) -> None:
    world = world_of()
    sampler, law, settings = SAMPLERS[name]
    outcome = drawn(world, sampler, DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], expected(world, law, settings)) > FITS
    if name == "qrs, exact":  # no weight is above 1
        assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) > FITS


def test_negative_control_z_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = token_sampling._masked

    def forgets(proposal: Any, attempts: Sequence[AttemptState]) -> Any:
        right = masked(proposal, attempts)
        return right._replace(log_z=[log_z if log_z == -math.inf else 0.0 for log_z in right.log_z])

    monkeypatch.setattr(token_sampling, "_masked", forgets)
    world = world_of()
    outcome = drawn(world, qrs(1.0), DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) < FAILS


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_seeds_hold(batch_size: int) -> None:
    world = llama_world(letters="abc", max_new_tokens=5)
    texts = [drawn(world, qrs(0.5), 20, batch_size=size).texts for size in (batch_size, 32)]
    assert texts[0] == texts[1]


def test_another_prompt_masked_is_weighed_with_the_model() -> None:
    world = llama_world(letters="abc", max_new_tokens=4, temperature=0.8)
    told = dataclasses.replace(world, prompt="bc" + world.prompt)
    a, (law, _) = world.law(), masked_law(told)
    masked = Masked(Prompt("bc{prompt}"), unseen=0.0)
    found = [each for each in weighed(world, 1_500, proposal=masked) if each.satisfied]
    assert len(found) > 500
    for attempt in found:
        ids = attempt.draw.token_ids
        assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-4)


def test_an_adapter_masked_is_weighed_with_the_model() -> None:
    world = llama_world(letters="abc", max_new_tokens=4, temperature=0.8)
    other = llama_world(1, letters="abc", max_new_tokens=4, temperature=0.8)
    a, (law, _) = world.law(), masked_law(other)
    found = [each for each in weighed(world, 1_500, adapter=other.model) if each.satisfied]
    assert len(found) > 500
    for attempt in found:
        ids = attempt.draw.token_ids
        assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-4)


def test_generate_takes_it_too() -> None:
    world = world_of()
    guarded = GuardedGenerator(world.pipeline(), ~Regex("b"), proposal=Masked(unseen=0.0), seed=1)
    ids = world.tokenizer(world.prompt, return_tensors="pt")["input_ids"]
    rows = guarded.generate(ids, num_return_sequences=50, **world.settings)
    assert rows.shape[0] == 50
    assert world.tokenizer.convert_tokens_to_ids("b") not in rows[:, ids.shape[1] :].flatten().tolist()


@pytest.mark.slow
def test_what_cannot_be_judged_ahead_ends_its_attempt() -> None:
    """With a classifier, or a function without prefix verdicts, everything is as without a mask."""

    @constraint
    def odd(text: str) -> bool:
        return len(text) % 2 == 1

    world = world_of()
    guarded = GuardedGenerator(
        world.pipeline(), odd & ~Regex("b"), proposal=Masked(unseen=0.0), sampler=qrs(1.0), seed=2
    )
    (outcome,) = guarded.run(
        world.prompt, num_return_sequences=DRAWS, budget=Budget(max_attempts=None), **world.settings
    )
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(odd & ~Regex("b"))) > FITS


def wrapped(**options: Any) -> GuardedGenerator:
    return GuardedGenerator(world_of().pipeline(), RULE, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Masked, unseen=1.0), "give a share"),
        (partial(Masked, unseen=True), "give a share"),
        (lambda: Masked(Masked()), "masked already"),
        (lambda: wrapped(proposal=Masked("no such model")), "no such model"),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        make()


def test_a_tokenizer_that_rewrites_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from guardwrap.models import early_abort as prefix

    monkeypatch.setattr(prefix.StablePrefix, "_grows_at_the_end", lambda *_: False)
    with pytest.raises(UsageError, match=r"Masked\(\) has to judge unfinished texts, and there is no early abort"):
        drawn(world_of(), "rejection", 1)


BYTES: list[str | bytes] = ["a", "1", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", b"\xe4\xb8"]
SINGLES: list[str | bytes] = ["a", "1", "é", b"\xc3", b"\xa9", b"\x0a"]
SPACES: list[str | bytes] = ["a", " a", "1", b"\xc3", b"\xa9"]
WORLDS = {
    "byte-level": partial(byte_tokenizer, BYTES),
    "byte fallback": partial(fallback_tokenizer, SINGLES),
    "spaces": partial(fallback_tokenizer, SPACES),
}
FIRST: dict[str, tuple[Constraint, set[str | bytes]]] = {
    "a digit": (Regex("[1-5]", match="fullmatch"), {"1"}),
    "accents": (Regex("[é-ö]+a?", match="fullmatch"), {b"\xc3", "é"}),
    "emoji": (Regex("1?[\U0001f300-\U0001f64f]+", match="fullmatch"), {"1", b"\xf0\x9f"}),
    "Chinese": (Regex("[一-龥]+1?", match="fullmatch"), {b"\xe4\xb8"}),
    "a word": (Regex(r"1\w+", match="fullmatch"), {"1"}),
    "either case": (Regex("É+", match="fullmatch", flags=["ignorecase"]), {b"\xc3", "é"}),
    "all but one": (Regex("[^a]+", match="fullmatch"), {"1", "é", "\n", *BYTES[2:]}),
    "without": (~Regex("[a😀]"), {"1", "é", "\n", "", *BYTES[2:]}),
    "a grammar": (Grammar('start: (/[é-ö]/ | "😀" | "1")+'), {"1", "é", b"\xc3", b"\xf0\x9f"}),
    "an enum": (JSONSchema({"enum": ["é1", 1, 11]}), {"1", " ", "\n"}),
    "either": (Regex("é+", match="fullmatch") | Regex("(a|😀)+", match="fullmatch"), {"a", "é", b"\xc3", b"\xf0\x9f"}),
    "both": (Regex("[é😀]+", match="fullmatch") & Regex("[a-é]+", match="fullmatch"), {"é", b"\xc3"}),
    "a space": (Regex("( a|é)+", match="fullmatch"), {"é", b"\xc3"}),  # the first space is dropped in decoding
    "broken": (Regex("\ufffd1", match="fullmatch"), {*BYTES[2:5], BYTES[6], "\n"}),
}


def mask_of(world: World, constraint: Constraint) -> ConstraintMask:
    ids = world.tokenizer(world.prompt)["input_ids"]
    law: Any = SimpleNamespace(ids=ids, end_ids=frozenset({0}), most_new=world.max_new_tokens)
    stable = StablePrefix(world.tokenizer, lambda new: str(world.tokenizer.decode(new, skip_special_tokens=True)))
    watch = PrefixWatch(PrefixReader(constraint), stable)
    return ConstraintMask(watch, law, constraint, lambda ids, _: world.draw(ids), 0.0, stable.vocabulary)


@cache
def reach_of(name: str) -> tuple[World, Texts]:
    """Return a world, and the probability of each prefix of its texts."""
    world = byte_world(WORLDS[name](), max_new_tokens=4)
    reach: Texts = {}
    for ids, p in world.law().items():
        for length in range(len(ids) + 1):
            reach[ids[:length]] = reach.get(ids[:length], 0.0) + p
    return world, reach


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("rule", FIRST)
def test_characters_of_several_tokens(name: str, rule: str) -> None:
    """Dead tokens are masked from the start, and tokens of a text of g never are."""
    (world, reach), (constraint, first) = reach_of(name), FIRST[rule]
    mask, size = mask_of(world, constraint), len(world.tokenizer)
    pieces = {"byte-level": BYTES, "byte fallback": SINGLES, "spaces": SPACES}[name]
    shown = [piece if isinstance(piece, str) or piece > b"\x7f" else piece.decode() for piece in pieces]
    gone = mask.left_out((), np.arange(size), np.full(size, 1 / size))
    expected = {piece for piece in shown if piece in first or (piece == " a" and "a" in first)}
    assert {piece for piece, out in zip(shown, gone[1:], strict=True) if not out} == expected
    law = {ids: p for ids, p in world.law().items() if constraint.accepts(world.draw(ids).text)}
    left: dict[tuple[int, ...], Any] = {}
    for ids in law:
        for length, token in enumerate(ids):
            prefix = ids[:length]
            if prefix not in left:
                shares = np.array([reach.get((*prefix, each), 0.0) for each in range(size)]) / reach[prefix]
                left[prefix] = mask.left_out(prefix, np.arange(size), shares)
            assert not left[prefix][token], f"{world.draw(ids).text!r} cannot be drawn"


def test_bytes_that_nothing_follows_are_a_dead_end() -> None:
    """If the prefix is dead, every token is masked, also those that add no text."""
    for name in ("byte-level", "byte fallback"):
        world, _ = reach_of(name)
        tokens = np.arange(len(world.tokenizer) + 1)  # the last token is not in the vocabulary, and adds no text
        begins = world.tokenizer.convert_tokens_to_ids({"byte-level": "Ã", "byte fallback": "<0xC3>"}[name])
        for rule, ends in (("a digit", True), ("accents", False)):
            gone = mask_of(world, FIRST[rule][0]).left_out((begins,), tokens, np.full(len(tokens), 1 / len(tokens)))
            assert gone.all() == ends
            assert gone[-1] == ends


def test_negative_controls_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = reach_of("byte-level")
    emoji, size = FIRST["emoji"][0], len(world.tokenizer)
    begins = BYTES.index(b"\xf0\x9f") + 1
    tokens, shares = np.arange(size), np.full(size, 1 / size)
    assert not mask_of(world, emoji).left_out((), tokens, shares)[begins]
    monkeypatch.setattr(Rereading, "may_begin", lambda *_: False)
    assert mask_of(world, emoji).left_out((), tokens, shares)[begins], "a part of g is lost"
    monkeypatch.setattr(Rereading, "may_begin", lambda *_: True)
    gone = mask_of(world, FIRST["a digit"][0]).left_out((), tokens, shares)
    assert not gone[begins], "bytes that cannot become a digit are drawn"


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_samplers_reach_g_over_bytes(name: str) -> None:
    world = byte_world(WORLDS[name](), max_new_tokens=3)
    rule = Regex("(1|a|é|😀)+", match="fullmatch")
    guarded = GuardedGenerator(world.pipeline(), rule, proposal=Masked(unseen=0.0), sampler=qrs(1.0), seed=5)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=500, budget=Budget(max_attempts=None), **world.settings)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(rule)) > FITS
    for attempt in guarded.attempts(world.prompt, 100, **world.settings)[0]:
        if attempt.satisfied:
            log_a = math.log(world.law()[attempt.draw.token_ids])
            assert attempt.draw.log_proposal is not None
            assert attempt.log_weight == pytest.approx(log_a - attempt.draw.log_proposal, abs=1e-5)


def test_the_whole_vocabulary_is_looked_at() -> None:
    """Even if the only possible tokens are the least probable ones."""
    others = [f"{one}{other}" for one in "abcdefghij" for other in map(chr, range(0x4E00, 0x4E00 + 500))]
    world = World(world_of().model, byte_tokenizer(["a", *others, "yes", "n", "o"]), "a", max_new_tokens=2)
    mask = mask_of(world, Regex("yes|no", match="fullmatch"))
    size = len(world.tokenizer)
    shares = 0.5 ** np.minimum(np.arange(size), 900)
    gone = mask.left_out((), np.arange(size), shares)
    assert sorted(np.flatnonzero(~gone)) == [size - 3, size - 2]
    assert mask.left_out((size - 2,), np.arange(size), shares).sum() == size - 1, "at the limit, only the text 'no'"
    assert mask.notes == []


OPEN = {"type": "object", "properties": {"n": {"type": "string", "maxLength": 3}, "e": {"enum": ["ab", "cd"]}}}
BEGINNINGS = [
    "",
    '{"',
    '{"a": "b',
    '{"a": "\\\\',
    '{"a": ["\\u12',
    '{"n": "b',
    '{"n": 1, "e": "a',
    '{"a": "b"',
    '{"a": "\xc3',
]
WORDS = [f" {one}{other}" for one in "abcdefgh" for other in "abcdefghijklmnopqrstuvwxyz"]
ENDS: list[str | bytes] = [
    '"}',
    'a"',
    ' ab",',
    ' ab\n"',
    "\\n",
    "\\x",
    "u00",
    '\\\\"',
    '": 1}',
    b"\xa9",
    b'\xa9"',
    b" \xe4\xb8",
    b'"\xe4',
]
PIECES: list[str | bytes] = [*map(chr, range(0x20, 0x7F)), "\n", b"\xc3", *WORDS, *ENDS]


def left_in_json(constraint: Constraint) -> tuple[list[list[str]], list[int]]:
    """Return the tokens that a mask leaves after each beginning, and how many candidates it judges there."""
    world = World(world_of().model, byte_tokenizer(PIECES), "a", max_new_tokens=40)
    mask, size = mask_of(world, constraint), len(world.tokenizer)
    left, judged = [], []
    for begin in BEGINNINGS:
        ids = [1 + PIECES.index(b"\xc3" if char == "\xc3" else char) for char in begin]
        search, steps = masking.Search(mask, ids, np.arange(size), np.full(size, 1 / size)), 0
        while search.goes_on():
            search.step()
            steps += 1
        left.append([repr(PIECES[token - 1]) for token in np.flatnonzero(~search.gone) if token])
        judged.append(steps)
    return left, judged


@pytest.mark.parametrize("schema", [{"type": "object"}, OPEN, {**OPEN, "additionalProperties": False}], ids=str)
@pytest.mark.parametrize("more", [None, Keyword("zz"), ~Keyword("zz")], ids=["alone", "a word", "a banned word"])
def test_words_in_free_strings_are_left_without_a_look_at_each(
    schema: Any, more: Constraint | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = JSONSchema(schema) if more is None else JSONSchema(schema) & more
    left, judged = left_in_json(rule)
    with monkeypatch.context() as one_by_one:
        one_by_one.setattr(JSONMonitor, "delimiters", None)
        assert left_in_json(rule)[0] == left
    bans = more == ~Keyword("zz")
    if "additionalProperties" not in schema:
        many = [count > len(PIECES) / 3 for count in judged]
        assert many[2] == bans, "in a string without rules"
        assert many[5] == (bans or schema == OPEN), "in one with a maximum length"
    monkeypatch.setattr(JSONMonitor, "delimiters", b"")
    assert (left_in_json(rule)[0] == left) == bans, "negative control"


def test_what_was_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "MOST_LOOKED_AT", 1)
    outcome = drawn(world_of(), qrs(1.0), 500)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world_of().gold(RULE)) > FITS, (
        "the weights take it into account"
    )
    assert any("the mask did not look at all tokens" in note for note in outcome.report.notes)
    monkeypatch.undo()
    assert not any("the mask" in note for note in drawn(world_of(), "rejection", 5).report.notes)


@pytest.mark.parametrize("unreadable", [False, True])
@pytest.mark.parametrize(("pattern", "attempts"), [("d+", 1), ("aad", 30)])
def test_nothing_that_can_be_drawn_is_impossible(
    pattern: str, attempts: int, unreadable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all prefixes die later, not only if the first token is already impossible."""
    if unreadable:
        monkeypatch.setattr(Vocabulary, "_composes", lambda *_: False)
    world = world_of()
    rule = Regex(pattern, match="fullmatch")
    guarded = GuardedGenerator(world.pipeline(), rule, proposal=Masked(unseen=0.0), seed=1, on_exhausted="none")
    for sampler in ("rejection", qrs(0.1)):
        (outcome,) = guarded.run(world.prompt, num_return_sequences=3, sampler=sampler, **world.settings)
        assert outcome.report.ended == "impossible"
        assert outcome.report.usage.attempts <= attempts
        assert "a mask that left no token" in outcome.report.rejections


def test_dead_ends_are_rejected_and_others_drawn() -> None:
    """Nothing can follow ``ab``, which does not make the whole request impossible."""
    world = world_of()
    rule = Regex("abd|ac|b", match="fullmatch")
    outcome = GuardedGenerator(world.pipeline(), rule, proposal=Masked(unseen=0.0), sampler=qrs(1.0), seed=1).run(
        world.prompt, num_return_sequences=500, budget=Budget(max_attempts=None), **world.settings
    )[0]
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(rule)) > FITS
    assert outcome.report.rejections["a mask that left no token"] > 0


def test_tokenizers_whose_tokens_cannot_be_read_are_judged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vocabulary, "_composes", lambda *_: False)
    world = world_of()
    law, left = masked_law(world)
    for attempt in weighed(world, 300):
        if attempt.satisfied:
            assert attempt.log_weight == pytest.approx(left[attempt.draw.token_ids], abs=1e-5)
            assert attempt.draw.log_proposal == pytest.approx(math.log(law[attempt.draw.token_ids]), abs=1e-5)


def test_a_mask_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request continues without the mask, still correctly, and the report says so."""
    monkeypatch.setattr(masking, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(masking, "BURST_SECONDS", 0.0)
    world = world_of()
    outcome = drawn(world, qrs(1.0), 500)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) > FITS
    assert any("the mask was given up after 1 tokens" in note for note in outcome.report.notes)


@pytest.mark.parametrize("beyond", [True, False])
def test_a_mask_beyond_truncation_has_time_for_each_token_and_is_not_given_up(
    beyond: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "STEP_SECONDS", -1.0)  # all time of a request is used up
    mask = replace(mask_of(world_of(), RULE), beyond=beyond)
    gone = [mask.left_out((), np.arange(4), np.full(4, 0.25)).any() for _ in range(2)]
    assert gone == [beyond, beyond]
    assert (mask.given_up is None) == beyond


def test_a_mask_beyond_truncation_leaves_nothing_where_its_own_watch_is_violated() -> None:
    """Its watch may be stricter than that of the attempt, which would go on to the token limit."""
    world = world_of()
    mask, b = mask_of(world, RULE), world.tokenizer.convert_tokens_to_ids("b")
    assert not replace(mask, beyond=True).left_out((1,), np.arange(4), np.full(4, 0.25)).all()
    assert replace(mask, beyond=True).left_out((b,), np.arange(4), np.full(4, 0.25)).all()


def test_a_slow_check_does_not_outlast_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging a whole text that takes almost the two seconds of a check is left to the final check."""
    monkeypatch.setattr(masking, "BURST_SECONDS", 0.01)
    world = world_of()
    slow = Regex("(a|aa)+$", flags=()) & Regex("(?:(?:a|b|c)*)*d|.*", match="fullmatch", timeout=2.0)
    mask = mask_of(world, slow)
    asked: list[float | None] = []

    def check(self: Regex, text: str) -> bool:
        asked.append(seconds_left())
        return True

    monkeypatch.setattr(Regex, "holds", check)
    mask.left_out((1, 1, 1), np.arange(4), np.full(4, 0.25))
    assert asked
    assert all(left is not None and left < 0.1 for left in asked)


def test_a_mask_that_raises_leaves_others_as_they_are() -> None:
    """The other rows of the batch are drawn again without it, and their log Z is counted once."""

    def masks(left_out: Callable[..., Any]) -> Any:
        return SimpleNamespace(left_out=left_out)

    def raises(*_: Any) -> Any:
        raise ValueError

    law = SimpleNamespace(processors=[], warpers=[], mode="sample", group=0)
    one, other = masks(lambda _, tokens, shares: tokens == 0), masks(raises)
    launches = [Launch(law, 0, 0, number, request=mask, mask=mask) for number, mask in enumerate((one, other))]
    attempts = [AttemptState(launch) for launch in launches]
    token_sampling._draw_isolated(torch.log(torch.tensor([[0.75, 0.25], [0.5, 0.5]])), attempts, [0.1, 0.1])
    assert attempts[0].token_ids == [1]
    assert attempts[0].log_weight == pytest.approx(math.log(0.25))
    assert isinstance(attempts[1].error, ValueError)


def law_beyond(world: World, top_k: int) -> tuple[Texts, set[tuple[int, ...]]]:
    """Enumerate a' of a mask that goes beyond top-k where that leaves no token, and the texts for which it does."""
    steps, end = masked_steps(world), world.tokenizer.eos_token_id
    law: Texts = {(): 1.0}
    done: Texts = {}
    beyond: set[tuple[int, ...]] = set()
    while law:
        grown: Texts = {}
        for prefix, p in law.items():
            order = sorted(steps[prefix], key=lambda ids: -steps[prefix][ids])
            kept = [ids for ids in order[:top_k] if not is_dead(world, ids)]
            allowed = kept or [ids for ids in order if not is_dead(world, ids)][:top_k]
            z = sum(steps[prefix][ids] for ids in allowed)
            for ids in allowed:
                over = ids[-1] == end or len(ids) == world.max_new_tokens
                (done if over else grown)[ids] = p * steps[prefix][ids] / z
                if not kept or prefix in beyond:
                    beyond.add(ids)
        law = grown
    return done, beyond


def masked_steps(world: World) -> dict[tuple[int, ...], Texts]:
    """Return the next prefixes after each prefix, with their probabilities."""
    reach: Texts = {}
    for ids, p in world.law().items():
        for length in range(len(ids) + 1):
            reach[ids[:length]] = reach.get(ids[:length], 0.0) + p
    steps: dict[tuple[int, ...], Texts] = {}
    for ids, p in reach.items():
        if ids:
            steps.setdefault(ids[:-1], {})[ids] = p / reach[ids[:-1]]
    return steps


def is_dead(world: World, ids: tuple[int, ...]) -> bool:
    if ids[-1] == world.tokenizer.eos_token_id or len(ids) == world.max_new_tokens:
        return not RULE.check([world.draw(ids)])[0]
    return run_verdict(RULE, world.draw(ids).text) is Verdict.VIOLATED


def attempts_beyond(world: World, top_k: int, count: int, **options: Any) -> list[Attempt]:
    sampler, attempts = collecting(weigh=False)
    budget = Budget(max_attempts=count)
    how: dict[str, Any] = {
        "proposal": Masked(unseen=0.0, beyond_truncation=True),
        "on_exhausted": "none",
        "budget": budget,
    }
    guarded = GuardedGenerator(world.pipeline(), RULE, seed=4, sampler=sampler, **how)
    guarded.run(world.prompt, num_return_sequences=count, **{**world.settings, "top_k": top_k}, **options)
    return attempts[0]


@pytest.mark.parametrize("batch_size", [1, 32])
def test_beyond_truncation_only_where_it_leaves_no_token(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts follow the enumerated law, log a' is that of what was drawn, and log a is -inf beyond top-k."""
    world = world_of(seed=43)
    law, beyond = law_beyond(world, 2)
    assert 0 < sum(law[ids] for ids in law if ids in beyond) < 1, "this world goes beyond for some texts"
    states: list[AttemptState] = []
    settle = token_sampling._settle
    monkeypatch.setattr(token_sampling, "_settle", lambda some: (states.__iadd__(some), settle(some)))
    attempts = attempts_beyond(world, 2, DRAWS, batch_size=batch_size)
    assert goodness_of_fit([attempt.draw.token_ids for attempt in attempts], by_text(normal, law)) > FITS
    for attempt in attempts:
        ids = attempt.draw.token_ids
        assert attempt.draw.log_proposal == pytest.approx(math.log(law[ids]), abs=1e-5)
    for state in states:
        if state.status != "running":
            assert (state.log_weight == -math.inf) == (tuple(state.token_ids) in beyond)


def test_what_is_beyond_truncation_is_said_and_named() -> None:
    world = world_of(seed=1)
    options = {**world.settings, "top_k": 1}
    how: dict[str, Any] = {"seed": 4, "on_exhausted": "none", "budget": Budget(max_attempts=50)}
    strict = GuardedGenerator(world.pipeline(), RULE, proposal=Masked(unseen=0.0), **how)
    (outcome,) = strict.run(world.prompt, **options)
    assert not outcome.ok
    assert outcome.report.obstacle is not None
    assert outcome.report.obstacle.names == ["top_k"]
    assert "pass top_k=0, pass proposal=Masked(beyond_truncation=True)" in outcome.report.advice()
    wide = GuardedGenerator(world.pipeline(), RULE, proposal=Masked(unseen=0.0, beyond_truncation=True), **how)
    (outcome,) = wide.run(world.prompt, **options)
    assert outcome.ok
    assert "(g')" in outcome.report.drawn_from
    assert any("where top_k=1 left no token" in note for note in outcome.report.notes)
    assert strict.run(world.prompt, **{**options, "top_k": 0})[0].ok, "the way out works"


def test_a_sampler_that_weighs_stays_within_truncation() -> None:
    """A text that the model cannot draw is worth nothing, so its attempt ends where truncation leaves no token."""
    world = world_of(seed=1)
    how: dict[str, Any] = {"seed": 4, "on_exhausted": "none", "budget": Budget(max_attempts=50)}
    masked = Masked(unseen=0.0, beyond_truncation=True)
    guarded = GuardedGenerator(world.pipeline(), RULE, proposal=masked, sampler=qrs(beta=1.0), **how)
    (outcome,) = guarded.run(world.prompt, **{**world.settings, "top_k": 1})
    assert not outcome.ok
    assert outcome.report.rejections.get("a mask that left no token")
