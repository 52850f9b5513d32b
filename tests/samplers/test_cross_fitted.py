"""QRS with a pilot: each text follows the law of its own β, which is chosen from the weights of other attempts."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from guardwrap import Budget, GuardedGenerator, Masked, Regex, Twisted
from guardwrap.constraints import Constraint
from guardwrap.outcomes import Draw
from guardwrap.samplers import Attempt, Sampler, qrs, rejection
from guardwrap.samplers.qrs import ALIKE, accepts
from guardwrap.testing import goodness_of_fit, table_world
from tests.fixtures_laws import qrs_law

qrs_module = sys.modules["guardwrap.samplers.qrs"]  # the package has a function of this name

FITS, FAILS = 1e-3, 1e-6
REQUESTS = 4_000
PROPOSAL = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
WEIGHTS = np.array([0.2, 0.4, 0.9, 2.0, 6.0])
"""A world of five texts that satisfy the constraint. With a pilot of 4 each text has much influence on β."""

ALIKE_WEIGHTS = WEIGHTS**0.4

Text = tuple[int, ...]
Row = tuple[Text, float]  # a text, and log β that it was accepted by


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember β of the same weights; those of attempts that violate the constraint do not matter."""
    known = cache(qrs_module.log_beta_for_tvd)

    def log_beta(log_weights: list[float], target: float) -> float:
        return known(tuple(sorted(weight for weight in log_weights if weight > -math.inf)), target)

    monkeypatch.setattr(qrs_module, "log_beta_for_tvd", log_beta)


def attempts(seed: int, weights: np.ndarray = WEIGHTS) -> Iterator[Attempt]:
    chance = np.random.default_rng(seed)
    while True:
        texts = chance.choice(len(PROPOSAL), 10_000, p=PROPOSAL).tolist()
        for text, (fails, uniform) in zip(texts, chance.random((10_000, 2)).tolist(), strict=True):
            satisfied = fails < 0.8
            weight = math.log(weights[text]) if satisfied else -math.inf
            yield Attempt(Draw("", (text,), ""), satisfied, weight, uniform)


def recording(sampler: Sampler, rows: list[list[Row]], weights: dict[Text, float] | None = None) -> Sampler:
    """Return the sampler, which also adds each text of each request with its β to ``rows``, and weights by text."""

    def init() -> Any:
        rows.append([])
        return sampler.init(), rows[-1]

    def step(state: Any, attempt: Attempt) -> tuple[Any, Sequence[Draw]]:
        after, draws = sampler.returned(state[0], attempt)
        if weights is not None and attempt.satisfied:
            weights[attempt.draw.token_ids] = math.exp(attempt.log_weight or 0.0)
        for draw in draws:
            state[1].append((draw.token_ids, state[0].log_beta if draw is attempt.draw else after.pilot_beta))
        return (after, state[1]), draws

    needs = sampler.needs
    assert needs is not None
    return sampler._replace(
        init=init,
        step=step,
        report=lambda state: sampler.report(state[0]),
        needs=lambda state, missing: needs(state[0], missing),
    )


def drawn(sampler: Sampler, texts: int, requests: int = REQUESTS, weights: np.ndarray = WEIGHTS) -> list[list[Row]]:
    rows: list[list[Row]] = []
    recorded, stream = recording(sampler, rows), attempts(1, weights)
    for _ in range(requests):
        state = recorded.init()
        while len(rows[-1]) < texts:
            state, _ = recorded.returned(state, next(stream))
    return [row[:texts] for row in rows]


def fit(rows: Sequence[Row], proposal: Mapping[Text, float], weights: Mapping[Text, float]) -> float:
    """Return how well texts fit the mean of the laws of their β."""
    inside = np.array(list(proposal.values()))
    values = np.array([weights[text] for text in proposal])
    law, counts = np.zeros(len(inside)), np.unique([log_beta for _, log_beta in rows], return_counts=True)
    for log_beta, number in zip(*counts, strict=True):
        law += number * qrs_law(inside, values, max(math.exp(log_beta), 1e-300))
    expected = dict(zip(proposal, law / law.sum(), strict=True))
    return goodness_of_fit([text for text, _ in rows], expected)


def fit_of_slot(rows: Sequence[Sequence[Row]], slot: int, weights: np.ndarray = WEIGHTS) -> float:
    def named(values: np.ndarray) -> dict[Text, float]:
        return {(text,): float(value) for text, value in enumerate(values)}

    return fit([row[slot] for row in rows], named(PROPOSAL), named(weights))


def test_every_text_follows_the_law_of_its_beta() -> None:
    """The first texts, those of the pilot, and those after them: fixed positions of a request."""
    rows = drawn(qrs(target_tvd=0.2, pilot=4), 7)
    for slot in range(7):
        assert fit_of_slot(rows, slot) > FITS, slot
    assert len({log_beta for row in rows for _, log_beta in row}) > 20
    gold = PROPOSAL * WEIGHTS / (PROPOSAL @ WEIGHTS)
    first = [row[0][0] for row in rows]
    assert goodness_of_fit(first, {(text,): p for text, p in enumerate(gold)}) < FAILS, "p_β is not g"


def test_so_do_texts_whose_beta_is_chosen_in_blocks() -> None:
    """A pilot of the default length, which ends as its own weights require, and the blocks after it."""
    rows = drawn(qrs(target_tvd=0.05), 30, 400, ALIKE_WEIGHTS)
    for slot in range(0, 30, 3):
        assert fit_of_slot(rows, slot, ALIKE_WEIGHTS) > FITS, slot
    assert max(len({log_beta for _, log_beta in row}) for row in rows) > 4


def test_beta_is_set_again_whenever_the_attempts_have_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text follows the law of its β, and later texts are nearer to g, as the large weight is known by then."""
    monkeypatch.setattr(qrs_module, "ALIKE", {6: 0.95})
    monkeypatch.setattr(qrs_module, "PILOT", 8)
    rows = drawn(qrs(target_tvd=0.1), 40, 2_000)
    for slot in range(0, 40, 3):
        assert fit_of_slot(rows, slot) > FITS, slot
    assert max(len({log_beta for _, log_beta in row}) for row in rows) >= 5
    assert np.mean([row[39][1] for row in rows]) > np.mean([row[0][1] for row in rows]) + 0.2
    fixed = drawn(qrs(target_tvd=0.1, pilot=8), 40, 100)
    assert {len({log_beta for _, log_beta in row}) for row in fixed} <= {1, 2}, "a pilot of a given length is the last"


def broken(change: Callable[[Any, Any, Attempt], Any]) -> Sampler:
    """Return a QRS whose state is changed after each step, from the state before it, it, and the attempt."""
    sampler = qrs(target_tvd=0.2, pilot=4)

    def step(state: Any, attempt: Attempt) -> tuple[Any, Any]:
        after, draws = sampler.step(state, attempt)
        return change(state, after, attempt), draws

    return sampler._replace(step=step)


def test_negative_control_beta_from_its_own_half() -> None:
    """The texts of the pilot are accepted by the β that was chosen from them."""

    def own(before: Any, after: Any, attempt: Attempt) -> Any:
        return after._replace(pilot_beta=after.log_beta, quota=1) if after.held else after

    assert fit_of_slot(drawn(broken(own), 2), 1) < FAILS


def test_negative_control_beta_from_its_own_weight() -> None:
    """An attempt of the pilot becomes a text by the β that it completes."""
    sampler = qrs(target_tvd=0.2, pilot=4)
    rows: list[Row] = []
    stream = attempts(1)
    while len(rows) < REQUESTS:
        state = sampler.init()
        while state.log_beta is None:
            attempt = next(stream)
            state, _ = sampler.returned(state, attempt)
        if accepts(state.log_beta, attempt):
            rows.append((attempt.draw.token_ids, state.log_beta))
    assert fit_of_slot([[row] for row in rows], 0) < FAILS


@pytest.mark.slow
def test_negative_control_a_place_that_depends_on_the_weights() -> None:
    """The pilot's texts come as soon as their β is known: how many come before them depends on their own weights."""

    def at_once(before: Any, after: Any, attempt: Attempt) -> Any:
        return after._replace(quota=0) if after.held else after

    rows = drawn(broken(at_once), 7, 3 * REQUESTS)
    assert min(fit_of_slot(rows, slot) for slot in range(1, 7)) < FITS


RULE = Regex("a.*b|b.*a")


@pytest.mark.parametrize("proposal", [Masked(unseen=0.0), Twisted(attempts=64)], ids=["mask", "twist"])
def test_over_masks_and_twists(proposal: Any) -> None:
    world = table_world(letters="abc", max_new_tokens=3, temperature=0.8)
    rows: list[list[Row]] = []
    weights: dict[Text, float] = {}
    budget = Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), RULE, proposal=proposal, budget=budget, seed=3)
    sampler = recording(qrs(target_tvd=0.1, pilot=8), rows, weights)
    outcomes = guarded.run([world.prompt] * 60, sampler=sampler, num_return_sequences=12, **world.settings)
    gold, a = world.gold(RULE), world.law()
    assert set(weights) <= set(gold)
    inside = {text: a[text] / weight for text, weight in weights.items()}
    assert fit([each for row in rows for each in row[:12]], inside, weights) > FITS
    wrong = {text: 1 / weight for text, weight in weights.items()}
    assert fit([each for row in rows for each in row[:12]], inside, wrong) < FAILS
    assert sorted(tuple(draw.token_ids for draw in outcome.draws) for outcome in outcomes) == sorted(
        tuple(text for text, _ in row[:12]) for row in rows
    )
    for outcome in outcomes:
        report = outcome.report
        assert report.usage.attempts == report.accepted + report.passed_over + sum(report.rejected.values())
        assert report.evidence["pilot_satisfied"] == 8
    assert any("pilot_returned" in outcome.report.evidence for outcome in outcomes)
    used = [outcome.report.usage for outcome in outcomes]
    assert sum(use.surplus_attempts for use in used) < 0.5 * sum(use.attempts for use in used)


def test_a_budget_that_ends_within_the_pilot_gives_no_text() -> None:
    world = table_world(letters="abc", max_new_tokens=4, temperature=0.8)
    guarded = GuardedGenerator(world.pipeline(), RULE, proposal=Masked(), sampler=qrs(pilot=50), seed=3)
    (outcome,) = guarded.run(world.prompt, budget=Budget(max_attempts=30), on_exhausted="none", **world.settings)
    assert not outcome.draws
    assert str(outcome.report.distribution).startswith("nothing: QRS first needs 50 attempts that satisfy")


@pytest.mark.parametrize("answer", ["one", "several"])
def test_a_sampler_of_ones_own_returns_a_draw_or_several(answer: str) -> None:
    """Several at once keep their order; those beyond the texts that were asked for stay out."""
    world = table_world(letters="abc", max_new_tokens=4)

    def step(state: tuple[Draw, ...], attempt: Attempt) -> tuple[tuple[Draw, ...], Any]:
        if answer == "one":
            return (), attempt.draw if attempt.satisfied else None
        held = (*state, attempt.draw) if attempt.satisfied else state
        return ((), list(reversed(held))) if len(held) == 4 else (held, [])

    sampler = rejection._replace(name="own", init=tuple, step=step, takes_all=False)
    constraint: Constraint = Regex("a")
    guarded = GuardedGenerator(world.pipeline(), constraint, seed=3)
    (plain,) = guarded.run(world.prompt, num_return_sequences=12, seed=3, **world.settings)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=6, seed=3, sampler=sampler, **world.settings)
    order = (0, 1, 2, 3, 4, 5) if answer == "one" else (3, 2, 1, 0, 7, 6)
    assert outcome.texts == tuple(plain.texts[number] for number in order)
    report = outcome.report
    assert report.passed_over == (0 if answer == "one" else 2)
    assert report.usage.attempts == report.accepted + report.passed_over + sum(report.rejected.values())


def test_few_attempts_are_drawn_that_are_not_needed() -> None:
    """Negative control: as if a sampler that needs several attempts for a text returned a share at random."""
    world = table_world(letters="abc", max_new_tokens=4)
    guarded = GuardedGenerator(world.pipeline(), Regex("a|b"), proposal=Masked(unseen=0.0), seed=3)
    sampler, surplus, texts = qrs(target_tvd=0.3), [], []
    for each in (sampler, sampler._replace(needs=None)):
        options = {"sampler": each, "num_return_sequences": 4, "seed": 3, **world.settings}
        outcomes = guarded.run([world.prompt] * 10, **options)
        surplus.append(sum(outcome.report.usage.surplus_attempts for outcome in outcomes))
        texts.append([outcome.texts for outcome in outcomes])
    assert texts[0] == texts[1]
    assert 2 * surplus[0] < surplus[1]


def test_lengths_of_the_pilot() -> None:
    """The fewer weights, the more alike they have to be."""
    assert min(ALIKE) == 6
    assert list(ALIKE) == sorted(ALIKE)
    assert sorted(ALIKE.values(), reverse=True) == list(ALIKE.values())


def test_distances_are_those_of_the_mean_over_the_texts() -> None:
    """Negative control: those of one β alone are others."""
    times = (PROPOSAL * 20_000).round().astype(int)
    weights = np.append(np.repeat(np.log(WEIGHTS), times), [-math.inf] * 50)
    laws = ((math.log(0.3), 6), (math.log(1.5), 2))
    mean = sum(number * qrs_law(PROPOSAL, WEIGHTS, math.exp(log_beta)) for log_beta, number in laws) / 8
    gold = PROPOSAL * WEIGHTS / (PROPOSAL @ WEIGHTS)
    tvd, kl = qrs_module._distances(weights, laws)
    assert tvd.value == pytest.approx(np.abs(gold - mean).sum() / 2, abs=1e-3)
    assert kl.value == pytest.approx(gold @ np.log(gold / mean), abs=1e-3)
    for law in laws:
        assert abs(qrs_module._distances(weights, (law,))[0].value - tvd.value) > 0.02
