"""Plans: the limits of a budget, the time of a single prompt, and proposals whose attempts have no weights."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Length, Prompt, Regex, qrs
from guardwrap.calls import base_session, twisting
from guardwrap.calls import job as job_module
from guardwrap.calls import pilot as pilot_module
from guardwrap.calls.plan import Means
from guardwrap.cli.shared import in_flags
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.engine import token_sampling
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.engine.scheduling import backend as seam
from guardwrap.engine.scheduling import request_state, scheduler
from guardwrap.errors import UsageError
from guardwrap.metrics import acceptance_rate
from guardwrap.outcomes import Estimate
from guardwrap.samplers import rejection
from guardwrap.support.formatting import digits
from guardwrap.testing import World, llama_world, table_world
from tests.fixtures_clock import Clock, ticking

RULE = Keyword("a", whole_words=False) & ~Regex("^b")


@pytest.fixture(scope="module")
def small() -> World:
    return llama_world(letters="abcdef")


def guarded_of(world: World, **options: object) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), RULE, seed=1, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["max_tokens", "max_computed_tokens"])
def test_each_limit_of_a_budget_counts(small: World, limit: str) -> None:
    """With half the mean number of tokens per text, most calls end without a text, and the plan predicts that."""
    guarded = guarded_of(small, batch_size=1)
    pilot = guarded.plan(small.prompt, pilot=200, seed=0, **small.settings)
    (forecast,) = pilot.forecasts
    drawn = forecast.tokens.value if limit == "max_tokens" else pilot.ways[0].tokens.value
    few = Budget(max_attempts=None, **{limit: max(1, int(drawn / 2))})
    plan = guarded.plan(small.prompt, pilot=200, seed=0, budget=few, num_return_sequences=4, **small.settings)
    assert plan.forecasts[0].suffices < 0.2
    assert f"without {limit}" in plan.advice
    assert plan.budget is not None
    assert getattr(plan.budget, limit) is None
    served = guarded.run([small.prompt] * 40, seed=1, budget=few, num_return_sequences=4, **small.settings)
    assert sum(outcome.ok for outcome in served) < 12
    plenty = Budget(max_attempts=None, **{limit: int(40 * drawn)})
    plan = guarded.plan(small.prompt, pilot=200, seed=0, budget=plenty, num_return_sequences=4, **small.settings)
    assert plan.forecasts[0].suffices > 0.99
    assert "as it is, which suffices" in plan.advice


@pytest.mark.slow
def test_a_prompt_that_is_alone_waits_for_whole_attempts(small: World) -> None:
    guarded = guarded_of(small, batch_size=32)
    alone = guarded.plan(small.prompt, pilot=100, seed=0, **small.settings).forecasts[0]
    assert alone.attempts.high < 32
    many = guarded.plan(small.prompt, pilot=100, seed=0, num_return_sequences=500, **small.settings).forecasts[0]
    assert many.seconds.low < many.seconds.value < many.seconds.high
    for forecast, rounds in ((alone, lambda attempts: math.log2(1 + attempts)), (many, lambda attempts: attempts)):
        told = forecast.seconds.high / forecast.seconds.value
        assert told == pytest.approx(rounds(forecast.attempts.high) / rounds(forecast.attempts.value))
    each = guarded.plan([small.prompt] * 64, pilot=10, seed=0, **small.settings).forecasts
    assert all(one.seconds.low < one.seconds.high for one in each if one.acceptance.value), "other prompts use the time"


@pytest.mark.slow
def test_a_hint_without_weights_is_planned_for_as_it_is(small: World) -> None:
    """Truncation makes QRS impossible; rejection works, and draws from g'."""
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    settings = {**small.settings, "top_k": 5}
    plan = guarded.plan(small.prompt, pilot=100, seed=0, **settings)
    assert plan.sampler == "rejection"
    assert "not g" in plan.advice
    assert plan.ways[0].sampler == "rejection"
    (outcome,) = guarded.run(small.prompt, seed=0, sampler="rejection", **settings)
    assert outcome.ok
    assert outcome.report.drawn_from.startswith("not your model's own distribution")
    for sampler in ("rejection", {"rejection": None}, rejection):
        named = guarded.plan(small.prompt, pilot=100, seed=0, sampler=sampler, **small.settings)
        assert named.ways[0].sampler == "rejection"
    assert guarded.plan(small.prompt, pilot=100, seed=0, **small.settings).chosen
    its_own = guarded_of(small, proposal=Prompt("{prompt}"), sampler="qrs")
    own = its_own.plan(small.prompt, pilot=100, seed=0, **small.settings)
    assert (own.sampler, own.chosen) == ("qrs", False)
    same = guarded_of(small, proposal=Prompt("{prompt}"))
    for pilot, asked, planned_for in ((100, None, "qrs"), (1000, None, "rejection"), (1000, "qrs", "qrs")):
        plan = same.plan(small.prompt, pilot=pilot, seed=0, sampler=asked, **small.settings)  # 100: 13 equal weights
        assert plan.sampler == plan.ways[0].sampler == planned_for
    with pytest.raises(UsageError, match=r"a plan can estimate only rejection and qrs, not imh; leave sampler out"):
        guarded.plan(small.prompt, pilot=10, sampler="imh", **small.settings)
    with pytest.raises(
        UsageError, match=r"top_k, here 5, keeps the proposal from texts.*pass top_k=0, or sampler='rejection'"
    ):
        guarded.plan(small.prompt, pilot=10, sampler="qrs", **settings)
    with pytest.raises(UsageError, match="temperature"):
        guarded.plan(small.prompt, pilot=10, **{**settings, "temperature": -1.0})


@pytest.mark.slow
def test_prompts_may_come_from_an_iterator(small: World) -> None:
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    told = [
        guarded.plan(prompts, pilot=50, seed=0, **small.settings)
        for prompts in ([small.prompt] * 2, iter([small.prompt] * 2))
    ]
    assert [len(plan.forecasts) for plan in told] == [2, 2]
    assert told[0].ways == told[1].ways


def test_a_plan_says_when_its_pilot_saw_little(small: World) -> None:
    guarded = guarded_of(small, budget=Budget(max_attempts=1))
    assert (
        "pilot=48 would give a better estimate" in guarded.plan(small.prompt, pilot=12, seed=0, **small.settings).advice
    )
    assert "better estimate" not in guarded.plan(small.prompt, pilot=400, seed=0, **small.settings).advice


def test_a_chat_is_told_by_its_last_message(small: World) -> None:
    small.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chat = [{"role": "system", "content": "b"}, {"role": "user", "content": "ab"}]
    told = str(guarded_of(small).plan([chat], pilot=50, seed=0, **small.settings))
    assert told.splitlines()[1] == "1 text for 'ab'"


def test_a_prompt_without_a_text_is_not_averaged_away(small: World) -> None:
    """The mean cost of a text is then unknown, however many texts other prompts had."""
    never = Regex("zz")
    guarded = guarded_of(small)
    plan = guarded.plan(
        [small.prompt] * 2, pilot=60, seed=0, constraint_each=[None, never], num_return_sequences=2, **small.settings
    )
    itself = plan.ways[0]
    assert (itself.without, itself.tokens.value, itself.attempts) == (1, math.inf, math.inf)
    assert itself.acceptance > 0
    told = (
        f"the model itself, rejection: at least {digits(itself.tokens.low)} computed tokens per text (no text in 60 "
        f"attempts for 1 prompt, {digits(itself.others)} for the others)"
    )
    assert f"\n  {told}\n" in str(plan)
    assert 0 < itself.others < itself.tokens.low
    both = guarded.plan([small.prompt] * 2, pilot=60, seed=0, num_return_sequences=2, **small.settings)
    attempts = [forecast.attempts.value for forecast in both.forecasts]
    assert both.ways[0].attempts == max(attempts)
    assert both.ways[0].without == 0


@pytest.mark.slow
def test_a_pilot_of_a_few_attempts_advises_a_larger_one_first(small: World) -> None:
    guarded = GuardedGenerator(small.pipeline(), Regex("zz"), seed=1)
    few = guarded.plan(small.prompt, pilot=5, **small.settings).advice
    why = "the prompt had no text in 5 attempts, so at most 52.2 % of them give one (95 %)"
    at_once = "; or ask for it at once, with a hint (proposal=Prompt(...))"
    assert few == f"a larger pilot first, pilot=256: {why}{at_once}"
    hinted = GuardedGenerator(small.pipeline(), Regex("zz"), seed=1, proposal=Prompt("a{prompt}"))
    assert "ask for it at once" not in hinted.plan(small.prompt, pilot=5, **small.settings).advice
    assert guarded.plan(small.prompt, pilot=100, **small.settings).advice.startswith("a larger pilot first, pilot=400")
    assert "train an adapter" in guarded.plan(small.prompt, pilot=200, **small.settings).advice


def test_figures_that_are_hardly_known_are_shown_as_intervals(small: World) -> None:
    plan = guarded_of(small).plan(small.prompt, pilot=8, seed=0, **small.settings)
    vague = Estimate(3.68e-9, 9.19e-11, 0.0183)
    costs = Estimate(4.05e7, 8.14, 1.62e9)
    (first,) = plan.forecasts
    unsure = replace(first, acceptance=vague, attempts=costs, tokens=costs, seconds=costs, suffices=math.nan)
    shown = str(replace(plan, forecasts=(unsure,), ways=(replace(plan.ways[0], tokens=costs),)))
    assert "acceptance   between 9.19e-11 and 0.0183 (95 %), from" in shown
    assert shown.count("between 8.14 and 1.62e+09 (95 %)") == 4
    assert "[8.14" not in shown
    for itself in (True, False):
        advice = replace(plan, forecasts=(unsure,), ways=(), means=Means(hint=itself, itself=itself)).advice
        assert "the acceptance rate is not known to within a factor of fifty" in advice
        assert advice.endswith("with a hint (proposal=Prompt(...))") == itself


def test_what_qrs_draws_first_is_told_apart(small: World) -> None:
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    plan = guarded.plan(small.prompt, pilot=200, seed=0, **small.settings)
    (forecast,) = plan.forecasts
    assert plan.sampler == "qrs"
    assert 0 < forecast.before < forecast.attempts.value
    passing = 200 - sum(forecast.rejections.values())
    assert forecast.before == plan.ways[0].before > 6 * 200 / passing
    rate = acceptance_rate(passing, 200, stopped_on_acceptance=False)
    assert forecast.attempts.low < forecast.before * rate.value / rate.high + 1 / forecast.acceptance.low, "not certain"
    assert forecast.attempts.high > forecast.before * rate.value / rate.low
    told = " ".join(str(plan).split())
    assert " for QRS, from 200 attempts of the pilot" in told
    assert f"the first {forecast.before:,.0f} for QRS's pilot tokens " in told
    assert f"computed tokens per text; its pilot takes {forecast.before:,.0f} attempts per prompt; then " in told


def test_a_handful_of_weights_tells_no_budget_of_qrs(small: World) -> None:
    """With more attempts, larger weights appear and QRS accepts a smaller share, so a small pilot is too optimistic."""
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    asked = {"seed": 0, "sampler": "qrs", **small.settings}
    plan = guarded.plan(small.prompt, pilot=6, **asked)
    (few,) = plan.forecasts
    assert math.isnan(few.suffices)
    assert plan.to_dict()["forecasts"][0]["suffices"] is None
    assert few.budget is None
    assert plan.budget is None
    assert few.more >= 4 * 6
    why = (
        "the pilot's 6 attempts are worth less than 10 of your model's own texts, and QRS often accepts a smaller "
        "share of more attempts"
    )
    assert f"  suffices     unknown: {why}\n" in str(plan)
    assert plan.advice.startswith("draw from ") or plan.advice == f"a larger pilot first, pilot={few.more}: {why}"
    (enough,) = guarded.plan(small.prompt, pilot=200, **asked).forecasts
    assert enough.more == 0
    assert 0 <= enough.suffices <= 1
    (plain,) = guarded_of(small).plan(small.prompt, pilot=6, **small.settings).forecasts
    assert plain.more == 0, "rejection does not use weights"


@pytest.mark.slow
def test_a_plan_of_qrs_says_how_heavy_the_tail_is(small: World) -> None:
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    asked = {"seed": 0, "sampler": "qrs", **small.settings}
    plan = guarded.plan(small.prompt, pilot=1_000, **asked)
    (heavy,) = plan.forecasts
    assert heavy.pareto_k is not None
    assert heavy.pareto_k_limit is not None
    unsure = "; the distance to g would be unknown from these attempts"
    assert heavy.pareto_k.value > heavy.pareto_k_limit, "a few texts have far more weight than all others"
    assert f"  Pareto k     {heavy.pareto_k}, above the limit of 0.516{unsure}\n" in str(plan)
    light = replace(plan, forecasts=(replace(heavy, pareto_k=Estimate(0.3, -0.1, 0.7)),))
    assert "  Pareto k     0.3 [-0.1, 0.7], at most the limit of 0.516\n" in str(light)
    few = str(guarded.plan(small.prompt, pilot=12, **asked))
    assert f"  Pareto k     unknown: too few weights{unsure}\n" in few
    plain = guarded.plan(small.prompt, pilot=200, **{**asked, "sampler": "rejection"})
    assert plain.forecasts[0].pareto_k is None
    assert "Pareto k" not in str(plain)


@pytest.mark.slow
def test_a_budget_of_qrs_has_to_do_for_its_pilot_and_its_texts(small: World) -> None:
    """Both numbers of attempts are random; the test draws them from their distributions given the pilot."""
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    asked = {"pilot": 200, "seed": 0, "sampler": qrs(pilot=100), "num_return_sequences": 60, **small.settings}
    (forecast,) = guarded.plan(small.prompt, **asked).forecasts
    chance = np.random.default_rng(0)

    def attempts(successes: int, seen: float) -> Any:
        rate = chance.beta(seen + 0.5, forecast.pilot - seen + 0.5, 40_000)
        return successes + chance.negative_binomial(successes, rate)

    satisfied = forecast.pilot - sum(forecast.rejections.values())
    both = attempts(100, satisfied) + attempts(60, forecast.acceptance.value * forecast.pilot)
    for share in (0.1, 0.5, 0.9):
        enough = Budget(max_attempts=int(np.quantile(both, share)))
        (planned,) = guarded.plan(small.prompt, budget=enough, **asked).forecasts
        assert planned.suffices == pytest.approx(share, abs=0.04)
        assert planned.allowed == enough
    assert forecast.budget == pytest.approx(np.quantile(both, 0.99), rel=0.03)


def test_a_plan_says_which_part_is_hard_of_what_is_left(small: World) -> None:
    plan = guarded_of(small).plan(small.prompt, pilot=200, seed=0, **small.settings)
    (first, most), (second, few) = sorted(plan.forecasts[0].rejections.items(), key=lambda part: -part[1])
    told = str(plan)
    assert f"  rejected by  {first}: {most} of 200\n" in told
    assert f"  rejected by  {second}: {few} of the other {200 - most}\n" in told
    assert "suffices     a budget of 1,000 attempts is enough with probability above 0.99\n" in told
    free = guarded_of(small, budget=Budget(max_attempts=None))
    assert "certain: the budget has no limit" in str(free.plan(small.prompt, pilot=20, seed=0, **small.settings))


def test_a_plan_says_what_it_took_itself(small: World) -> None:
    guarded = guarded_of(small, proposal=Prompt("a{prompt}"))
    plan = guarded.plan([small.prompt] * 3, pilot=20, seed=0, **small.settings)
    assert len(plan.ways) == 3
    attempts, seconds = plan.spent
    assert attempts == 3 * 3 * 20
    assert seconds > 0
    assert f"(this plan itself took 180 attempts and {seconds:.1f} s)" in str(plan)
    assert plan.to_dict()["spent"] == [attempts, seconds]


def test_each_prompt_has_its_own_rule_and_budget(small: World) -> None:
    """The prompt with the strictest constraint is named; a prompt with its own sampler still gets a pilot."""
    rare, few = Regex("^[ac]{3}"), Budget(max_attempts=1)
    each = [
        None,
        PerPromptOptions(rare, sampler="imh", budget=few),
        PerPromptOptions(budget=Budget(max_attempts=10_000)),
    ]
    for given in (each, iter(each)):
        plan = guarded_of(small).plan([small.prompt] * 3, pilot=100, seed=0, constraint_each=given, **small.settings)
        easy, hard, allowed = plan.forecasts
        assert [forecast.pilot for forecast in plan.forecasts] == [100] * 3
        assert hard.attempts.value > 2 * easy.attempts.value
        assert hard.suffices < 0.5 < 0.99 < min(easy.suffices, allowed.suffices)
        assert plan.advice.startswith("sampler='rejection' and Budget(max_attempts=")
        assert "enough with probability 0.99 for prompt 2, which needs most" in plan.advice


def test_prompts_that_look_alike_are_numbered(small: World) -> None:
    long = "a" * 60
    told = str(guarded_of(small).plan([long + "b", "ab", long + "c"], pilot=8, seed=0, max_new_tokens=2))
    headings = [line.split(" for ")[1] for line in told.splitlines() if line.startswith("1 text for ")]
    assert [heading.partition(":")[0] for heading in headings] == ["prompt 1", headings[1], "prompt 3"]
    assert headings[1] == "'ab'"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A second passes with each token of a batch."""
    places = [request_state, seam, scheduler, base_session, job_module, twisting, token_sampling, pilot_module]
    return ticking(monkeypatch, RefillBackend, places)


@pytest.mark.parametrize("seconds", [3, 10, 25, 60])
@pytest.mark.parametrize("prompts", [1, 6])
def test_a_plan_keeps_to_its_time(clock: Clock, seconds: float, prompts: int) -> None:
    """Attempts that run when it is over are dropped, of every prompt and way, and so are rounds of learning."""
    world = table_world(letters="abcd", max_new_tokens=20, temperature=0.8)
    guarded = GuardedGenerator(world.pipeline(), Keyword("abca", whole_words=False), batch_size=4, seed=1)
    plan = guarded.plan([world.prompt] * prompts, pilot=64, max_seconds=seconds, **world.settings)
    assert clock.now <= seconds + 1
    assert plan.spent[1] <= seconds + 1
    assert "attempts were dropped when the plan's time was over" in plan.left_out or not plan.forecasts


def test_a_plan_without_an_attempt_says_so(clock: Clock) -> None:
    world = table_world(letters="abcd", max_new_tokens=20, temperature=0.8)
    guarded = GuardedGenerator(world.pipeline(), Length(min=15), batch_size=4, seed=1)
    plan = guarded.plan(world.prompt, max_seconds=2, **world.settings)
    assert plan.advice == (
        "give the plan more time, plan(max_seconds=4): it was over before the first attempt was complete"
    )
    assert str(plan).startswith("recommended: give the plan more time")
    assert in_flags(plan.advice).startswith("give the plan more time, --plan-seconds 4:")
    assert json.dumps(plan.to_dict())
    assert guarded.plan(world.prompt, max_seconds=80, **world.settings).forecasts, "as it advises"
    with pytest.raises(UsageError, match="raise max_seconds"):
        guarded.run(world.prompt, sampler="auto", budget=Budget(max_seconds=2), **world.settings)


def test_negative_control_a_plan_that_lets_attempts_run_takes_longer(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = table_world(letters="abcd", max_new_tokens=20, temperature=0.8)
    guarded = GuardedGenerator(world.pipeline(), Length(min=15), batch_size=4, seed=1)
    monkeypatch.setattr(request_state.RequestState, "timeout", math.inf)
    guarded.plan(world.prompt, max_seconds=2, **world.settings)
    assert clock.now > 4
