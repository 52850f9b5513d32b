"""Twisted proposals: their distribution, their weights, and the samplers on top, for values that are arbitrary."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from guardwrap import (
    Budget,
    Constraint,
    Count,
    Edges,
    Finished,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    OneOf,
    Prompt,
    Regex,
    Twisted,
    imh,
    qrs,
)
from guardwrap.calls import twisting
from guardwrap.engine import token_sampling
from guardwrap.engine.scheduling.backend import TokenIds
from guardwrap.errors import UsageError
from guardwrap.models.vocabulary import Vocabulary
from guardwrap.samplers import Attempt, Sampler
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from guardwrap.twists import twist
from guardwrap.twists.automata import Automaton
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import LOG_DEAD, SoftCounts, TokenStates, Values, log_values
from guardwrap.twists.tilt import LIKELY, TiltData, TokenEmbeddings
from guardwrap.twists.twist import defaults_for
from tests.fixtures_laws import by_text, imh_law, normal, qrs_law

RULE = Keyword("ab", whole_words=False, min_count=1, max_count=1)
FITS, FAILS = 1e-3, 1e-9
DRAWS = 3_000
Texts = dict[tuple[int, ...], float]


def world_of(**more: Any) -> World:
    return table_world(**{"letters": "abc", "max_new_tokens": 4, "temperature": 0.8, **more})


def absurd(automaton: Automaton, counts: SoftCounts, tokens: int) -> Values:
    """Return values that no model has, between exp(-3) and e."""
    return np.random.default_rng(len(automaton)).uniform(-3, 1, (tokens + 1, len(automaton)))


def absurd_tilt(size: int) -> Values:
    """Return factors of tokens that nothing was learned of."""
    return np.random.default_rng(size).normal(size=size)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (32,) * 6)


@pytest.fixture
def absurd_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twisting, "log_values", absurd)
    monkeypatch.setattr(TiltData, "fitted", lambda self, embeddings: absurd_tilt(len(embeddings.weight)))


def twisted_law(world: World, rule: Constraint, values: Values, strength: float) -> Texts:
    """Enumerate a' from a and the values, token by token."""
    a, end = world.law(), world.tokenizer.eos_token_id
    automaton = automaton_of(rule)
    assert automaton is not None
    embeddings = TokenEmbeddings.of(world.model)
    tilt = np.zeros(len(world.tokenizer)) if embeddings is None else absurd_tilt(len(embeddings.weight))
    reach: Texts = {}
    for ids, p in a.items():
        for length in range(len(ids) + 1):
            reach[ids[:length]] = reach.get(ids[:length], 0.0) + p

    def state_of(ids: tuple[int, ...]) -> int:
        return automaton.read(world.tokenizer.decode(ids, skip_special_tokens=True))

    law: Texts = {(): 1.0}
    done: Texts = {}
    while law:
        grown: Texts = {}
        for prefix, p in law.items():
            steps = {
                ids: q / reach[prefix] for ids, q in reach.items() if ids[:-1] == prefix and len(ids) > len(prefix)
            }
            shares = {}
            for ids, step in steps.items():
                left, now = world.max_new_tokens - len(ids), state_of(prefix)
                after = values[left][state_of(ids)]
                if ids[-1] == end:
                    after = 0.0 if automaton.ended[now] else -math.inf
                weight = max(strength * (after - values[left + 1][now]), twist.FLOOR)
                tilted = values[left + 1][now] < math.log(LIKELY)
                shares[ids] = step * math.exp(weight + (tilt[ids[-1]] if tilted else 0.0))
            total = sum(shares.values())
            # A share of each step is a's, but not of the tokens after which no text passes, however long.
            model_share = 0.6 if (automaton.ended == automaton.cut).all() else 0.0
            for ids, step in steps.items():
                live = automaton.ended[state_of(prefix)] if ids[-1] == end else values[-1][state_of(ids)] > LOG_DEAD
                if live:
                    shares[ids] = model_share * step + (1 - model_share) * shares[ids] / total
            total = sum(shares.values())
            # No text may get less than a twentieth of its share under a: the model's own share makes up for it.
            own = min(twist.LEAST_SHARE * reach[prefix] / p, 1.0)
            if any(shares[ids] / total < own * step for ids, step in steps.items()):
                shares = {ids: own * step + (1 - own) * shares[ids] / total for ids, step in steps.items()}
                total = 1.0
            for ids, share in shares.items():
                over = ids[-1] == end or len(ids) == world.max_new_tokens
                (done if over else grown)[ids] = p * share / total
        law = grown
    return done


def nothing_learned(automaton: Automaton, counts: SoftCounts, tokens: int) -> Values:
    """Return the values before any attempt, which know what is certain and nothing else."""
    return log_values(automaton, SoftCounts(len(automaton)), tokens)


def values_of(rule: Constraint, tokens: int) -> Values:
    automaton = automaton_of(rule)
    assert automaton is not None
    return absurd(automaton, SoftCounts(1), tokens)


def guarded_of(world: World, **options: Any) -> GuardedGenerator:
    budget = Budget(max_attempts=None)
    return GuardedGenerator(world.pipeline(), RULE, **{"proposal": Twisted(), "budget": budget, "seed": 3, **options})


def drawn(world: World, sampler: str | Sampler, count: int = DRAWS, **options: Any) -> Any:
    guarded = guarded_of(world, sampler=sampler, **options)
    return guarded.run(world.prompt, num_return_sequences=count, **world.settings)[0]


def satisfying(world: World, law: Mapping[tuple[int, ...], float]) -> Texts:
    gold = world.gold(RULE)
    return {ids: law[ids] for ids in gold}


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize("make", [table_world, llama_world])
@pytest.mark.usefixtures("absurd_values")
def test_weights_are_those_of_the_law(make: Any, strength: float) -> None:
    world = make(letters="abc", max_new_tokens=4, temperature=0.8)
    a, law = world.law(), twisted_law(world, RULE, values_of(RULE, 4), strength)
    assert sum(law.values()) == pytest.approx(1)
    met = set()
    guarded = guarded_of(world, proposal=Twisted(strength=strength))
    for attempt in guarded.attempts(world.prompt, 3_000, **world.settings)[0]:
        ids = attempt.draw.token_ids
        if attempt.satisfied:
            assert attempt.draw.log_proposal == pytest.approx(math.log(law[ids]), abs=1e-5)
            assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-5)
            met.add(ids)
    assert len(met) > 10


@pytest.mark.usefixtures("absurd_values")
def test_with_rejection_texts_follow_the_twisted_law() -> None:
    world = world_of()
    outcome = drawn(world, "rejection", 4 * DRAWS)
    law = by_text(normal, satisfying(world, twisted_law(world, RULE, values_of(RULE, 4), 0.65)))
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], law) > FITS
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) < 1e-6, "texts must not fit g"
    assert outcome.report.drawn_from == "not your model's own distribution: tokens were twisted (g')"


def expected(world: World, kind: Any, **settings: Any) -> Texts:
    law = satisfying(world, twisted_law(world, RULE, values_of(RULE, 4), 0.65))
    a = world.law()
    return by_text(kind, law, {ids: a[ids] / law[ids] for ids in law}, **settings)


def fits_the_law(world: World) -> tuple[float, list[Attempt]]:
    """Return how well attempts by values of which nothing was learned fit their law, and the attempts."""
    automaton = automaton_of(RULE)
    assert automaton is not None
    values = nothing_learned(automaton, SoftCounts(1), world.max_new_tokens)
    law = twisted_law(world, RULE, values, 0.65)
    attempts = guarded_of(world).attempts(world.prompt, 2 * DRAWS, **world.settings)[0]
    return goodness_of_fit([attempt.draw.token_ids for attempt in attempts], law), attempts


@pytest.mark.slow
@pytest.mark.parametrize("make", [table_world, llama_world])
def test_the_last_token_keeps_the_share_of_the_model(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text without the word is not made to end with it, but one with too many is hardly ever drawn."""
    monkeypatch.setattr(twisting, "log_values", nothing_learned)
    monkeypatch.setattr(TiltData, "fitted", lambda self, embeddings: absurd_tilt(len(embeddings.weight)))
    world = make(letters="abc", max_new_tokens=4, temperature=0.8)
    fit, attempts = fits_the_law(world)
    assert fit > FITS
    texts = [attempt.draw.text for attempt in attempts]
    assert sum("ab" not in text for text in texts) > 100
    assert sum(text == "abab" for text in texts) < 10

    prepared = twist.Twist.__post_init__

    def without_dead_ends(self: twist.Twist) -> None:
        prepared(self)
        if self.log_values is not None:
            self._live = self.log_values[0] > LOG_DEAD

    # Negative control: a share only where the text as it is satisfies the rule.
    monkeypatch.setattr(twist.Twist, "__post_init__", without_dead_ends)
    assert fits_the_law(world)[0] < FAILS


def rarest(world: World, rule: Constraint, values: Values, tilt: Values, share: float, least: float) -> float:
    """Return the least a'(y)/a(y) of a world's texts, step by step."""
    automaton, a = automaton_of(rule), world.law()
    assert automaton is not None

    def decode(ids: Any) -> str:
        return str(world.tokenizer.decode(ids, skip_special_tokens=True))

    ends, most = [world.tokenizer.eos_token_id], world.max_new_tokens
    states = TokenStates(automaton, Vocabulary(world.tokenizer, decode, skips=True))
    weighs = twist.Twist(states, values, ends, most, model_share=share, tilt=tilt, least_share=least)
    reach: Texts = {}
    for ids, p in a.items():
        for length in range(len(ids) + 1):
            reach[ids[:length]] = reach.get(ids[:length], 0.0) + p
    logs: Texts = {(): 0.0}  # log a/a' of each beginning
    for prefix in sorted(reach, key=len):
        law = np.array([reach.get((*prefix, token), 0.0) / reach[prefix] for token in range(len(world.tokenizer))])
        if not law.any():
            continue
        with np.errstate(divide="ignore"):
            log_law = np.log(law)
        factors = weighs.log_factors(prefix, None, log_law, logs[prefix])
        norm = np.log(np.exp(log_law + factors - factors.max()).sum()) + factors.max()
        for token in np.flatnonzero(law).tolist():
            logs[(*prefix, token)] = logs[prefix] + norm - factors[token]
    return math.exp(-max(logs[ids] for ids in a))


def test_a_distribution_that_comes_again_counts_once() -> None:
    """A batch is drawn again if another attempt of it raises."""
    world, automaton = world_of(), automaton_of(RULE)
    assert automaton is not None
    vocabulary = Vocabulary(world.tokenizer, world.tokenizer.decode, skips=True)
    counts, size = SoftCounts(len(automaton)), len(world.tokenizer)
    learning = twist.Twist(TokenStates(automaton, vocabulary), None, [world.tokenizer.eos_token_id], 4, counts)
    law, ids = np.full(size, -math.log(size)), TokenIds()
    for calls in (2, 1, 3):
        for _ in range(calls):
            learning.log_factors(ids, None, law)
        ids.append(world.tokenizer.convert_tokens_to_ids("c"))
    assert sum(counts.visits.values()) == 3
    assert sum(counts.ends.values()) == pytest.approx(3 / size)
    learning.log_factors(TokenIds(), None, law)
    assert sum(counts.visits.values()) == 4, "another attempt counts too"


HOSTILE = {
    "a tilt down": lambda size, tokens: -TILT * np.eye(tokens)[1],
    "tilts up": lambda size, tokens: TILT * np.eye(tokens)[0],
    "tilts both ways": lambda size, tokens: np.resize([TILT, -TILT], tokens),
    "none": lambda size, tokens: np.zeros(tokens),
}
TILT = 20.0


@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize("tilt", HOSTILE)
@pytest.mark.parametrize("values", ["small", "random", "dead"])
def test_no_text_is_rarer_than_a_twentieth_of_the_model(tilt: str, values: str, share: float) -> None:
    """Whatever values, tilt and automaton say. Negative control: without the bound, some text is far rarer."""
    world, rule = world_of(max_new_tokens=5), RULE & Finished()
    automaton = automaton_of(rule)
    assert automaton is not None
    size = len(automaton)
    logs = {
        "small": np.full((6, size), -0.1) - 20.0 * (np.arange(size) % 2),
        "random": np.random.default_rng(5).uniform(-20, 0, (6, size)),
        "dead": np.where(np.arange(size) == 0, -3.0, LOG_DEAD) * np.ones((6, 1)),
    }[values]
    tilts = HOSTILE[tilt](size, len(world.tokenizer))
    assert rarest(world, rule, logs, tilts, share, twist.LEAST_SHARE) >= twist.LEAST_SHARE * (1 - 1e-9)
    if tilts.any() or not share:
        assert rarest(world, rule, logs, tilts, share, 0.0) < twist.LEAST_SHARE


def test_a_step_within_the_bound_is_left_as_it_is() -> None:
    """Seeds keep their texts where no token needs the model's share."""
    factors, law = np.log(np.array([1.5, 0.9, 0.6])), np.log(np.array([0.2, 0.5, 0.3]))
    weighs = twist.Twist.__new__(twist.Twist)
    weighs.least_share = twist.LEAST_SHARE
    assert weighs._bounded(factors, law, 0.0) is factors
    assert weighs._bounded(factors, law, 2.0) is factors  # a share of .37
    bound = weighs._bounded(factors, law, 2.9)  # of .91
    assert np.exp(bound + law) == pytest.approx(np.exp(law) * (0.909 + 0.091 * np.exp(factors) / 0.93), abs=1e-3)
    assert weighs._bounded(factors, law, 1e9).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.usefixtures("absurd_values")
def test_samplers_take_it_to_g() -> None:
    world = world_of()
    a, law = world.law(), satisfying(world, twisted_law(world, RULE, values_of(RULE, 4), 0.65))
    beta = max(a[ids] / law[ids] for ids in law)
    for sampler, kind, settings in (
        (qrs(beta), qrs_law, {"beta": beta}),
        (qrs(beta / 10), qrs_law, {"beta": beta / 10}),
        (imh(3), imh_law, {"steps": 3}),
    ):
        outcome = drawn(world, sampler)
        assert goodness_of_fit([draw.token_ids for draw in outcome.draws], expected(world, kind, **settings)) > FITS
    outcome = drawn(world, qrs(beta), 2 * DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) > FITS


@pytest.mark.usefixtures("absurd_values")
def test_negative_control_the_normalization_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """log a - log a' without log N of one token is not the weight."""
    right = token_sampling._twisted

    def forgets(proposal: Any, attempts: Any) -> Any:
        twisted = right(proposal, attempts)
        wrong = dict(twisted.log_model)
        for row, log_a in twisted.log_model.items():
            if len(attempts[row].token_ids) == 1:
                factors = twisted.scores[row].double() - log_a
                wrong[row] = log_a + (factors + log_a).logsumexp(-1) - factors.max()
        return twisted._replace(log_model=wrong)

    monkeypatch.setattr(token_sampling, "_twisted", forgets)
    world = world_of()
    a, law = world.law(), satisfying(world, twisted_law(world, RULE, values_of(RULE, 4), 0.65))
    beta = max(a[ids] / law[ids] for ids in law)
    outcome = drawn(world, qrs(beta))
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) < FAILS


@pytest.mark.slow
@pytest.mark.usefixtures("absurd_values")
def test_negative_control_the_value_of_the_end_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """If log w is taken to be Σ log N_t + log ψ(start), without log ψ(end), it is wrong."""
    world = world_of()
    values = values_of(RULE, 4)
    automaton = automaton_of(RULE)
    assert automaton is not None
    end = world.tokenizer.eos_token_id

    def value_of_end(attempt: Attempt) -> float:
        ended = attempt.draw.token_ids[-1] == end
        return 0.0 if ended else 0.8 * float(values[0][automaton.read(attempt.draw.text)])

    def kept(attempts: list[Attempt], *, forgets: bool) -> list[tuple[int, ...]]:
        weights = [float(each.log_weight or 0.0) + forgets * value_of_end(each) for each in attempts]
        top = max(weights)
        return [
            each.draw.token_ids
            for each, weight in zip(attempts, weights, strict=True)
            if math.log(each.uniform) < weight - top
        ]

    attempts = guarded_of(world).attempts(world.prompt, 60_000, **world.settings)[0]
    inside = [attempt for attempt in attempts if attempt.satisfied]
    assert goodness_of_fit(kept(inside, forgets=False), world.gold(RULE)) > FITS
    assert goodness_of_fit(kept(inside, forgets=True), world.gold(RULE)) < FAILS


@pytest.mark.slow
def test_what_is_learned_raises_the_acceptance_and_the_report_says_what_it_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(letters="abcdefgh", max_new_tokens=5)

    def rate(guarded: GuardedGenerator) -> float:
        attempts = guarded.attempts(world.prompt, 500, **world.settings)[0]
        return float(np.mean([attempt.satisfied for attempt in attempts]))

    twisted = guarded_of(world)
    assert rate(guarded_of(world, proposal=None)) < 0.2
    assert rate(twisted) > 0.35
    with monkeypatch.context() as patch:
        patch.setattr(twisting, "defaults_for", lambda automaton: twist.ANY_END._replace(model_share=0.0))
        assert rate(guarded_of(world)) > 0.6
    (outcome,) = twisted.run(world.prompt, sampler="qrs", **world.settings)
    assert any("the twist was learned from 64 attempts" in note for note in outcome.report.notes)


@pytest.mark.slow
def test_learning_ends_when_an_attempt_is_worth_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: where no worth is enough, all rounds are drawn."""
    world = world_of(letters="abcdefgh", max_new_tokens=5)

    def learned(enough: float) -> int:
        monkeypatch.setattr(twisting, "ENOUGH", enough)
        guarded = guarded_of(world)
        (outcome,) = guarded.run(world.prompt, **world.settings)
        (again,) = guarded.run(world.prompt, **world.settings)
        assert again.report.notes == outcome.report.notes, "nothing more is learned"
        return int(outcome.report.notes[0].split("learned from ")[1].split(" ")[0])

    assert learned(2.0) == 192
    assert learned(0.4) == 64
    assert learned(0.0) == 32


def test_attempts_of_the_pilot_are_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of a call are those after the pilot: they depend on the call's seed, and not on the pilot's draws."""
    world = world_of()
    seen = []
    right = twisting.TwistedConstraint.learn

    def learns(self: Any, *given: Any) -> Any:
        seen.append(self.values is None)
        return right(self, *given)

    monkeypatch.setattr(twisting.TwistedConstraint, "learn", learns)
    guarded = guarded_of(world, sampler=qrs(1.0))
    texts = [guarded.run(world.prompt, num_return_sequences=20, seed=5, **world.settings)[0].texts for _ in range(2)]
    assert texts[0] == texts[1]
    assert seen == [True]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_seeds_hold(batch_size: int) -> None:
    world = llama_world(letters="abc", max_new_tokens=5)
    texts = [drawn(world, qrs(0.5), 20, batch_size=size).texts for size in (batch_size, 32)]
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("absurd_values")
def test_with_top_k_weights_are_those_of_the_law() -> None:
    world = world_of(letters="abcdef", top_k=3)
    a, law = world.law(), twisted_law(world, RULE, values_of(RULE, 4), 0.65)
    found = [each for each in guarded_of(world).attempts(world.prompt, 2_000, **world.settings)[0] if each.satisfied]
    assert len(found) > 50
    for attempt in found:
        ids = attempt.draw.token_ids
        assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-5)


@pytest.mark.usefixtures("absurd_values")
def test_another_prompt_twisted_is_weighed_with_the_model() -> None:
    world = llama_world(letters="abc", max_new_tokens=4, temperature=0.8)
    hinted = dataclasses.replace(world, prompt="bc" + world.prompt)
    a, law = world.law(), twisted_law(hinted, RULE, values_of(RULE, 4), 0.65)
    guarded = guarded_of(world, proposal=Twisted(Prompt("bc{prompt}")))
    found = [each for each in guarded.attempts(world.prompt, 1_000, **world.settings)[0] if each.satisfied]
    assert len(found) > 50
    for attempt in found:
        ids = attempt.draw.token_ids
        assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-4)


def test_twisted_and_other_callers_of_a_batch_keep_their_texts() -> None:
    world = llama_world(letters="abc", max_new_tokens=5)
    alone = drawn(world, "rejection", 20, proposal=None).texts
    guarded = guarded_of(world)
    guarded.run(world.prompt, num_return_sequences=5, **world.settings)
    outcome = guarded.run(world.prompt, num_return_sequences=20, seed=3, proposal=False, **world.settings)[0]
    assert outcome.texts == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": 0.0}, "above 0"),
        ({"strength": 1.5}, "up to 1"),
        ({"proposal": Twisted()}, "remove one"),
    ],
)
def test_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Twisted(**options)


@pytest.mark.parametrize(
    "rule",
    [~Regex("c"), Regex("a(?=b)"), Count(pattern="a", min=2, max=2), OneOf(["ab", "c"]), Edges(start="a", end="b")],
    ids=str,
)
def test_weights_are_exact_for_expressions_and_counts(rule: Constraint) -> None:
    world = world_of()
    a, gold = world.law(), world.gold(rule)
    z = sum(a[ids] for ids in gold)
    guarded = GuardedGenerator(world.pipeline(), rule, proposal=Twisted(), seed=3)
    attempts = guarded.attempts(world.prompt, 2_000, **world.settings)[0]
    weights = np.zeros(len(attempts))
    for place, attempt in enumerate(attempts):
        ids = attempt.draw.token_ids
        assert attempt.satisfied == (ids in gold)
        if attempt.satisfied and attempt.log_weight is not None and attempt.draw.log_proposal is not None:
            assert attempt.draw.log_proposal + attempt.log_weight == pytest.approx(math.log(a[ids]), abs=1e-5)
            weights[place] = math.exp(attempt.log_weight)
    assert np.mean(weights > 0) > min(0.9, 1.3 * z), "more attempts pass than of the model"
    assert abs(weights.mean() - z) < 5 * weights.std() / math.sqrt(len(weights)) + 1e-9


def test_what_no_automaton_follows_is_masked(tmp_path: Any) -> None:
    world = world_of()
    rule = Finished() & Keyword("a", on="full") | Keyword("b", on="full")
    outcomes = {}
    for proposal in (Twisted(), Masked()):
        guarded = GuardedGenerator(world.pipeline(), rule, proposal=proposal, seed=3)
        (outcomes[type(proposal)],) = guarded.run(
            world.prompt, num_return_sequences=20, sampler=qrs(1.0), **world.settings
        )
    assert outcomes[Twisted].texts == outcomes[Masked].texts
    assert outcomes[Twisted].report.proposal == "the model itself, masked"
    assert any("Twisted() masks tokens here" in note for note in outcomes[Twisted].report.notes)
    with pytest.raises(UsageError, match="leave learned= out"):
        GuardedGenerator(world.pipeline(), rule, proposal=Twisted(learned=tmp_path / "a.npz")).run(world.prompt)


@pytest.mark.parametrize(
    ("rule", "defaults"),
    [
        (RULE, (0.65, 0.6, 768)),
        (Length(max=3, unit="characters"), (0.65, 0.6, 768)),
        (Length(max=3, unit="characters") & Finished(), (0.8, 0.0, 384)),
        (RULE & Finished(), (0.8, 0.0, 384)),
        (~Regex(","), (0.65, 0.6, 768)),
        (JSONSchema({"type": "array", "items": {"type": "string"}}), (0.8, 0.0, 384)),
        (OneOf(["yes", "no"]), (0.8, 0.0, 384)),
        (Regex("[a-c]{3}", match="fullmatch"), (0.8, 0.0, 384)),
    ],
)
def test_steps_of_the_model_are_for_texts_that_pass_without_an_end(
    rule: Constraint, defaults: tuple[float, float, int]
) -> None:
    automaton = automaton_of(rule)
    assert automaton is not None
    assert defaults_for(automaton) == defaults
