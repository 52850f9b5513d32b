"""Rates that a pilot alone cannot tell, the ways that a plan compares, and what the plan itself may cost."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from guardwrap import Constraint, GuardedGenerator, Keyword, Prompt, Regex, Twisted, qrs
from guardwrap.adapters.card import Figure, Figures
from guardwrap.calls import pilot as pilot_module
from guardwrap.calls.estimates import MARKOV, model_rate
from guardwrap.calls.pilot import PilotAttempts, Planner, Way, expected_attempts
from guardwrap.engine.scheduling.randomness import seed_for
from guardwrap.errors import UsageError
from guardwrap.outcomes import Draw, Estimate
from guardwrap.samplers import Attempt, rejection
from guardwrap.samplers.protocol import Goal
from guardwrap.testing import World, table_world

RULE = Keyword("cab", whole_words=False)


def world_of(seed: int = 0, temperature: float = 0.6) -> World:
    return table_world(seed, letters="abc", max_new_tokens=6, temperature=temperature)


def rate_of(world: World, rule: Constraint = RULE) -> float:
    law = world.law()
    return sum(law[ids] for ids in world.gold(rule))


def guarded_of(world: World, rule: Constraint = RULE, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), rule, **{"seed": 1, **options})


def attempts_of(log_weights: Any) -> list[Attempt]:
    return [Attempt(Draw("", (), ""), weight > -math.inf, float(weight)) for weight in log_weights]


@pytest.mark.slow
def test_a_twist_tells_a_rate_that_the_pilot_cannot() -> None:
    """Of 12 rare rules, at most one interval misses the rate, and most are narrow. Unweighed shares miss nearly all."""
    hits: list[bool] = []
    narrow: list[bool] = []
    unweighed: list[bool] = []
    seed = 0
    while len(hits) < 12:
        seed += 1
        world = world_of(seed, 0.5)
        rate = rate_of(world)
        if not 1e-5 < rate < 0.01:
            continue
        (forecast,) = guarded_of(world).plan(world.prompt, pilot=64, seed=0, **world.settings).forecasts
        value, low, high = forecast.acceptance
        assert low <= value <= high
        hits.append(low <= rate <= high)
        narrow.append(high < 5 * low and "weighed attempts of a twist and 64 attempts of the model" in forecast.basis)
        drawn = guarded_of(world).attempts(world.prompt, 64, proposal=Twisted(), seed=0, **world.settings)[0]
        unweighed.append(sum(attempt.satisfied for attempt in drawn) / 64 < 2 * rate)
    assert sum(hits) >= 11
    assert sum(narrow) >= 8
    assert sum(unweighed) <= 2, "the attempts of a twist are not those of the model"


def test_weights_with_a_heavy_tail_tell_only_what_always_holds() -> None:
    none = [dataclasses.replace(each, log_weight=None) for each in attempts_of([-math.inf] * 64)]
    chance = np.random.default_rng(0)
    heavy = attempts_of(np.log(chance.pareto(0.6, 100)) - 12)
    estimate, known = model_rate(none, heavy)
    assert not known
    binomial, _ = model_rate(none, [])
    assert estimate.high == binomial.high
    mean = np.exp([each.log_weight or 0.0 for each in heavy]).mean()
    assert estimate.low == pytest.approx(min(MARKOV * mean, binomial.high))
    light = attempts_of([*chance.normal(-9, 0.5, 100), *[-math.inf] * 100])
    estimate, known = model_rate(none, light)
    assert known
    assert estimate.low < np.exp(-9) / 2 * np.exp(0.125) < estimate.high < 3 * estimate.low
    often = attempts_of([0.0] * 9 + [-math.inf] * 55)
    estimate, known = model_rate(often, light)
    assert not known, "the model's own attempts pass far more often than the weights say"
    assert estimate.low == model_rate(often, [])[0].low


@pytest.mark.slow
def test_a_twist_is_one_of_the_ways_and_pays_for_what_it_learns() -> None:
    world = world_of(7, 0.5)
    options = {"pilot": 128, "seed": 0, **world.settings}
    plan = guarded_of(world).plan(world.prompt, num_return_sequences=1, **options)
    *_, twisted = plan.ways
    assert (twisted.source, twisted.learning) == ("the model itself, twisted", 768)
    assert "768 attempts to learn from; " in str(twisted)
    many = guarded_of(world).plan(world.prompt, num_return_sequences=10_000, **options).ways[-1]
    assert many.tokens.value < twisted.tokens.value / 10, "learning is shared by all texts"
    drawn, _ = plan.spent
    assert drawn == 128 + 128 + 768 + 256 + 128
    for rule in (Regex(r"(a)\1"), RULE | Regex(r"(c)\1")):
        sources = [way.source for way in guarded_of(world, rule).plan(world.prompt, **options).ways]
        assert sources == ["the model itself", "the model itself, masked"], "no automaton follows it"
    few = guarded_of(world).plan(world.prompt, **{**options, "pilot": 63})
    assert few.left_out == "a twist was not tried, as it takes hundreds of attempts to learn; pass pilot=64 or more"
    assert str(few).endswith(f"({few.left_out})")
    plan = guarded_of(world, proposal=Twisted(), sampler="qrs").plan(world.prompt, **options)
    assert [way.source for way in plan.ways].count("the model itself, twisted") == 1
    assert plan.ways[0].learning == 768


@pytest.mark.slow
def test_a_plan_is_cheap_beside_its_run() -> None:
    """Unless a pilot is asked for, it takes a tenth of the run at most, or 8 attempts."""
    easy = table_world(0, letters="abc", max_new_tokens=6)
    often = Keyword("a", whole_words=False)
    plan = guarded_of(easy, often).plan(easy.prompt, **easy.settings)
    assert plan.spent[0] == plan.forecasts[0].pilot == 8
    remedy = "to keep the plan below a tenth of the run; pass pilot=64 to try them whatever the plan costs"
    assert plan.left_out == f"a mask and a twist were not tried, {remedy}"
    assert not guarded_of(easy, often).plan(easy.prompt, pilot=64, **easy.settings).left_out
    asked = guarded_of(easy, often).plan(easy.prompt, pilot=100, **easy.settings)
    assert (asked.spent[0], asked.left_out) == (200, "")
    for seed in range(6):
        world = world_of(seed, 0.5)
        run = 1000 / rate_of(world)
        plan = guarded_of(world).plan(world.prompt, num_return_sequences=1000, **world.settings)
        assert plan.spent[0] <= 0.1 * run
    rare = guarded_of(world_of(7, 0.5)).plan("a", num_return_sequences=1000, **world_of(7, 0.5).settings)
    assert rare.ways[-1].source == "the model itself, twisted"
    assert "weighed attempts of a twist" in str(rare)


def test_a_plan_has_a_time_limit_of_its_own() -> None:
    world = world_of(7, 0.5)
    plan = guarded_of(world).plan(world.prompt, pilot=5_000, max_seconds=1e-3, **world.settings)
    assert not plan.forecasts
    assert plan.advice.startswith("give the plan more time")
    wrong: Any
    for wrong in (0, -1.0, "1"):
        with pytest.raises(UsageError, match="give seconds above 0, or None"):
            guarded_of(world).plan(world.prompt, max_seconds=wrong, **world.settings)


def test_stages_draw_other_attempts_and_a_plan_takes_one_seed() -> None:
    world = world_of(7, 0.5)
    plans = [guarded_of(world).plan(world.prompt, num_return_sequences=64, **world.settings) for _ in range(2)]
    assert dataclasses.replace(plans[0].forecasts[0], seconds=None) == dataclasses.replace(  # type: ignore[arg-type]
        plans[1].forecasts[0],
        seconds=None,  # type: ignore[arg-type]
    )
    texts = []
    for pilot in (None, 12):
        guarded = guarded_of(world, Keyword("a", whole_words=False))
        guarded.plan(world.prompt, pilot=pilot, **world.settings)
        texts.append(guarded.run(world.prompt, num_return_sequences=5, **world.settings)[0].texts)
    assert texts[0] == texts[1], "the seeds of later calls depend on the size of a pilot"
    assert (
        len({seed_for(1, "attempts from 8"), seed_for(1, "attempts from 16"), seed_for(2, "attempts from 8"), 1}) == 4
    )


def test_expected_attempts() -> None:
    passing = attempts_of([0.0] * 4 + [-math.inf] * 6)
    assert expected_attempts(PilotAttempts([], [passing]), 7) == pytest.approx(7 * 10 / 3.5)
    assert expected_attempts(PilotAttempts([], [passing, passing[4:]]), 7) == math.inf


def test_ways_are_compared_at_the_distance_of_the_call() -> None:
    assert Goal() == rejection.goal == qrs().goal == Goal(0.05, None)
    assert qrs(target_tvd=0.2, pilot=30).goal == Goal(0.2, 30)
    assert qrs(2.0).goal == Goal(0.05, 0)
    world = world_of(1, 1.0)
    costs = []
    for tvd in (0.02, 0.3):
        guarded = guarded_of(world, Keyword("a", whole_words=False), proposal=Prompt("b{prompt}"))
        plan = guarded.plan(world.prompt, pilot=300, seed=0, sampler=qrs(target_tvd=tvd, pilot=20), **world.settings)
        costs.append(plan.ways[0].attempts)
        assert plan.forecasts[0].before == plan.ways[0].before == pytest.approx(20 * 300 / _passing(plan))
    assert costs[0] > costs[1]


def _passing(plan: Any) -> int:
    (forecast,) = plan.forecasts
    return int(forecast.pilot - sum(forecast.rejections.values()))


def test_the_figures_of_a_card_that_fits_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(1, 1.0)
    guarded = guarded_of(world, proposal=Prompt("b{prompt}"))
    asked = {"pilot": 20, "seed": 0, "sampler": "rejection", **world.settings}
    without = guarded.plan(world.prompt, **asked)
    figures = Figures(
        acceptance_before=Figure(value=0.001, low=0.0008, high=0.0013),
        acceptance_after=Figure(value=0.4, low=0.38, high=0.42),
    )
    monkeypatch.setattr(pilot_module, "card_figures", lambda *_: figures)
    (forecast,) = (plan := guarded.plan(world.prompt, **asked)).forecasts
    assert forecast.acceptance == Estimate(0.4, 0.38, 0.42)
    assert forecast.basis == "the adapter's card"
    assert plan.ways[0].acceptance == 0.4
    itself = next(way for way in plan.ways if way.source == "the model itself")
    assert itself.acceptance == 0.001
    assert itself.tokens.value > without.ways[1].tokens.value


def test_a_later_stage_draws_new_attempts() -> None:
    world = world_of(1, 1.0)
    planner = Planner(guarded_of(world).session, world.prompt, seed=3, asked=None)
    tried = planner.tried(Way("", world.settings, weighs=False), 8)
    first, both = tried.pilot, planner.tried(tried, 8).pilot
    texts = [attempt.draw.token_ids for attempt in both.attempts[0]]
    assert (both.least, planner.drawn) == (16, both.outcomes[0].report.usage.attempts)
    assert texts[:8] == [attempt.draw.token_ids for attempt in first.attempts[0]]
    assert texts[8:] != texts[:8]
