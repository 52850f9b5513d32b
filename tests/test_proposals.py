"""Attempts drawn from a proposal: their weights, and the texts of QRS and IMH, end to end."""

import dataclasses
import math
import re
import statistics
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import Budget, BudgetExhausted, GuardedGenerator, Keyword, Length, Masked, Prompt, Regex, imh, qrs
from guardwrap.calls.estimates import Alternative, Forecast
from guardwrap.calls.plan import Plan
from guardwrap.constraints import ConstraintFile
from guardwrap.engine import sequence_scores
from guardwrap.errors import ModelError, UsageError
from guardwrap.outcomes import ITSELF, Estimate, Origin, Remedy, Shape
from guardwrap.samplers import Sampler
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from tests.fixtures_laws import Law, by_text, imh_law, normal, qrs_law

DRAWS = 2_000  # tests/samplers/test_weighing.py has 20 000 draws and more distributions, without a model
FITS, FAILS = 1e-3, 1e-9
CONSTRAINT = Keyword("a", whole_words=False) & ~Regex("^b")


def other_model() -> tuple[World, World]:
    """Return a model, and one with the same tokenizer that was trained for a few steps."""
    world, other = (table_world(letters="ab", max_new_tokens=4, temperature=0.8) for _ in range(2))
    with torch.no_grad():
        other.model.table.add_(0.6 * torch.randn(other.model.table.shape, generator=torch.Generator().manual_seed(5)))
    return world, other


def other_prompt() -> tuple[World, World]:
    """Return a model, and the same model with another prompt."""
    world = llama_world(letters="ab", max_new_tokens=4, temperature=0.8)
    return world, dataclasses.replace(world, prompt="ab" + world.prompt)


PAIRS: dict[str, Any] = {
    "other model": (other_model, lambda other: other.pipeline()),
    "other prompt": (other_prompt, lambda other: Prompt("ab{prompt}")),
}


def weights(world: World, other: World) -> tuple[Law, dict[tuple[int, ...], float]]:
    """The proposal's law on texts that satisfy the constraint, and P / a' of each."""
    a, proposal = world.law(), other.law()
    inside = world.gold(CONSTRAINT)
    return {ids: proposal[ids] for ids in inside}, {ids: a[ids] / proposal[ids] for ids in inside}


def drawn(world: World, sampler: str | Sampler, proposal: Any, count: int = DRAWS, **options: Any) -> Any:
    guarded = GuardedGenerator(
        world.pipeline(),
        CONSTRAINT,
        sampler=sampler,
        proposal=proposal,
        budget=Budget(max_attempts=None),
        batch_size=64,
    )
    (outcome,) = guarded.run(world.prompt, num_return_sequences=count, seed=1, **{**world.settings, **options})
    assert outcome.ok
    return outcome


def texts(outcome: Any) -> list[tuple[int, ...]]:
    return [draw.token_ids for draw in outcome.draws]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAIRS)
def test_what_the_samplers_return(kind: str) -> None:
    make, proposal = PAIRS[kind]
    world, other = make()
    inside = world.gold(CONSTRAINT)
    beta = 1.5 * sum(p for ids, p in world.law().items() if ids in inside)
    plain = drawn(world, "rejection", proposal(other))
    assert goodness_of_fit(texts(plain), by_text(normal, weights(world, other)[0])) > FITS
    assert goodness_of_fit(texts(plain), world.gold(CONSTRAINT)) < FAILS, "g' is g: the test shows nothing"
    assert plain.report.drawn_from.startswith("not your model's own distribution: attempts came from the ")
    assert plain.report.evidence == {}
    quasi = drawn(world, qrs(beta), proposal(other))
    law = by_text(qrs_law, *weights(world, other), beta=beta)
    assert goodness_of_fit(texts(quasi), law) > FITS
    assert quasi.report.drawn_from.startswith(
        "approximately your model's own distribution, given the constraint (g): QRS"
    )
    tvd = sum(abs(law[ids] - p) for ids, p in inside.items()) / 2
    assert quasi.report.evidence["tvd"].low < tvd < quasi.report.evidence["tvd"].high
    chain = drawn(world, imh(3), proposal(other), DRAWS // 3)
    assert goodness_of_fit(texts(chain), by_text(imh_law, *weights(world, other), steps=3)) > FITS
    assert chain.report.evidence["steps"] == 3
    for outcome in (plain, quasi, chain):
        assert str(outcome.report).count(outcome.report.proposal) == 1, "once, for every sampler"
    assert re.search(rf"\n  attempts from +{re.escape(chain.report.proposal)}\n", str(chain.report))
    assert "attempts of" not in str(drawn(world, "rejection", None, 2).report)


def test_beta_above_the_largest_weight_draws_from_g() -> None:
    world, other = other_model()
    most = max(weights(world, other)[1].values())
    outcome = drawn(world, qrs(most * 1.01), other.pipeline())
    assert goodness_of_fit(texts(outcome), world.gold(CONSTRAINT)) > FITS


def test_negative_control_the_end_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    world, other = other_model()
    most = max(weights(world, other)[1].values()) * 1.01
    whole = sequence_scores.of_tokens
    end = world.pipeline().model.generation_config.eos_token_id

    def without_end(scores: torch.Tensor, tokens: Any) -> torch.Tensor:
        return whole(scores, tokens)[: -1 if tokens[-1] == end else None]

    monkeypatch.setattr(sequence_scores, "of_tokens", without_end)
    outcome = drawn(world, qrs(most), other.pipeline())
    assert goodness_of_fit(texts(outcome), world.gold(CONSTRAINT)) < FAILS


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.7}, {"repetition_penalty": 1.3}])
def test_log_weights_are_those_of_the_enumerated_laws(kind: str, options: dict[str, Any]) -> None:
    make, proposal = PAIRS[kind]
    world, other = make()
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=proposal(other), batch_size=7)
    (attempts,) = guarded.attempts(world.prompt, 300, seed=2, **{**world.settings, **options})
    assert len(attempts) == 300
    assert {attempt.satisfied for attempt in attempts} == {True, False}
    assert all((attempt.log_weight == -math.inf) != attempt.satisfied for attempt in attempts)
    log_a: dict[Any, Any]
    if "repetition_penalty" in options:  # not enumerated here, so compared with the log a' seen in decoding
        back = GuardedGenerator(world.pipeline(), Length(min=0))
        (own,) = back.attempts(world.prompt, 400, seed=3, **{**world.settings, **options})
        log_a = {attempt.draw.token_ids: attempt.draw.log_proposal for attempt in own}
    else:
        log_a = {ids: math.log(p) for ids, p in dataclasses.replace(world, **options).law().items()}
    seen = [attempt for attempt in attempts if attempt.satisfied and attempt.draw.token_ids in log_a]
    assert len(seen) > 20
    for attempt in seen:
        assert attempt.draw.log_proposal is not None
        expected = log_a[attempt.draw.token_ids] - attempt.draw.log_proposal
        assert attempt.log_weight == pytest.approx(expected, abs=1e-4)


def test_top_k_is_part_of_a() -> None:
    world, other = other_model()
    cut = dataclasses.replace(world, top_k=2)
    # The proposal has another top 2, so it would not cover g.
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=other.pipeline())
    for draw in (
        lambda: guarded.run(world.prompt, sampler="qrs", **cut.settings),
        lambda: guarded.attempts(world.prompt, 10, **cut.settings),
    ):
        with pytest.raises(UsageError, match="top_k=0"):
            draw()
    assert len(guarded.attempts(world.prompt, 10, weigh=False, **cut.settings)[0]) == 10
    # The model itself with top-k covers its own g: every weight is 1.
    (outcome,) = GuardedGenerator(world.pipeline(), CONSTRAINT, sampler=qrs(1.0), seed=1).run(
        world.prompt, num_return_sequences=5_000, budget=Budget(max_attempts=None), **cut.settings
    )
    assert goodness_of_fit(texts(outcome), cut.gold(CONSTRAINT)) > FITS
    tvd = outcome.report.evidence["tvd"]
    assert isinstance(tvd, Estimate)
    assert tvd.value == 0


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.bfloat16, 1e-9), (torch.float16, 1e-9)])
def test_the_same_law_weighs_nothing(dtype: torch.dtype, most: float) -> None:
    world = llama_world(letters="abcdefgh ", max_new_tokens=24)
    world.model.to(dtype)
    guarded = GuardedGenerator(world.pipeline(), Length(min=1), proposal=Prompt("{prompt}"), sampler=qrs(1.0), seed=0)
    (attempts,) = guarded.attempts(world.prompt, 64, **world.settings)
    weights = np.array([attempt.log_weight for attempt in attempts if attempt.satisfied], float)
    assert np.abs(weights).max() <= most
    (outcome,) = guarded.run(world.prompt, num_return_sequences=20, **world.settings)
    assert any("off by" in note for note in outcome.report.notes) == (dtype != torch.float32)
    assert {p.dtype for p in world.model.parameters()} == {dtype}, "the user's model was changed"


def test_negative_control_half_precision_weights_without_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    world = llama_world(letters="abcdefgh ", max_new_tokens=24)
    world.model.to(torch.bfloat16)
    monkeypatch.setattr("guardwrap.models.proposal_draws.is_exact", lambda model: True)
    guarded = GuardedGenerator(world.pipeline(), Length(min=1), proposal=Prompt("{prompt}"))
    (attempts,) = guarded.attempts(world.prompt, 64, seed=0, **world.settings)
    weights = np.array([attempt.log_weight for attempt in attempts if attempt.satisfied], float)
    assert np.abs(weights).max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_mask_has_left_counts_in_half_precision_too(dtype: torch.dtype) -> None:
    """The same prompt as a masked proposal: the weight of a text is what the mask keeps."""
    world = llama_world(letters="abc", max_new_tokens=8)
    world.model.to(dtype)
    masked = Masked(Prompt("{prompt}"), unseen=0.0)
    guarded = GuardedGenerator(world.pipeline(), ~Regex("a|^.?$"), proposal=masked, sampler=qrs(1.0))
    itself = GuardedGenerator(world.pipeline(), ~Regex("a|^.?$"), proposal=Masked(unseen=0.0), sampler=qrs(1.0))
    pairs = [each.attempts(world.prompt, 64, seed=0, **world.settings)[0] for each in (guarded, itself)]
    for told, own in zip(*pairs, strict=True):
        assert told.draw.token_ids == own.draw.token_ids
        assert (own.log_weight or 0.0) < -0.5
        assert told.log_weight == pytest.approx(own.log_weight, abs=0.05)


def test_same_seed_same_texts_whatever_the_batch_size() -> None:
    world, _ = other_prompt()
    for sampler in (qrs(0.5), imh(2), qrs(target_tvd=0.3, pilot=10)):
        runs = []
        for size in (1, 7, 64):
            guarded = GuardedGenerator(
                world.pipeline(), CONSTRAINT, sampler=sampler, proposal=Prompt("ab{prompt}"), batch_size=size
            )
            outcomes = guarded.run([world.prompt, "b"], seed=3, num_return_sequences=6, **world.settings)
            runs.append([(outcome.texts, outcome.report.usage.attempts) for outcome in outcomes])
        assert runs[0] == runs[1] == runs[2]


def test_a_chat_is_told() -> None:
    told = Prompt("Be brief. {prompt}").apply([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}])
    assert told == [{"role": "system", "content": "s"}, {"role": "user", "content": "Be brief. hi"}]
    assert Prompt(lambda prompt: prompt + "!").apply("x") == "x!"
    for wrong in ([{"role": "system", "content": "s"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}]):
        with pytest.raises(UsageError, match="user message"):
            Prompt("a {prompt}").apply(wrong)
    with pytest.raises(UsageError, match="not a string or a chat"):
        Prompt(lambda prompt: 3).apply("x")
    with pytest.raises(UsageError, match=r"\{prompt\}"):
        Prompt("Be brief.")


def test_what_cannot_work() -> None:
    world, other = other_model()
    pipe = world.pipeline()
    with pytest.raises(UsageError, match="another tokenizer"):
        GuardedGenerator(pipe, CONSTRAINT, proposal=table_world(letters="ac").pipeline())
    with pytest.raises(UsageError, match="another tokenizer"):
        GuardedGenerator(pipe, CONSTRAINT, proposal=table_world(letters="abc").pipeline())
    for options, says in (
        ({"top_p": 0.9}, "top_p=None"),
        ({"min_p": 0.1}, "min_p=None"),
        ({"do_sample": False}, "greedy search"),
        ({"num_beams": 2, "do_sample": False}, "beam search"),
    ):
        for sampler in ("qrs", imh(3)):
            guarded = GuardedGenerator(pipe, CONSTRAINT, sampler=sampler, proposal=other.pipeline())
            with pytest.raises(UsageError, match=says):
                guarded.run(world.prompt, **{**world.settings, **options})
    with pytest.raises(UsageError, match="generate cannot draw from another prompt"):
        GuardedGenerator(pipe, CONSTRAINT, proposal=Prompt("b{prompt}")).generate(torch.tensor([[1]]))


def test_a_pilot_without_an_acceptance_says_so() -> None:
    world, other = other_model()
    never = Regex("^never$")
    for sampler, says in (
        ("qrs", "QRS first needs up to 100 attempts that satisfy the constraint, and had 0"),
        (imh(2), "no chain of IMH began"),
    ):
        guarded = GuardedGenerator(
            world.pipeline(), never, sampler=sampler, proposal=other.pipeline(), budget=Budget(max_attempts=30)
        )
        (outcome,) = guarded.run(world.prompt, **world.settings)
        assert says in outcome.report.drawn_from
        with pytest.raises(BudgetExhausted, match="no text from 30 attempts"):
            guarded(world.prompt, **world.settings)


@pytest.mark.slow
def test_plan() -> None:
    world = table_world(letters="ab", temperature=0.8)
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, budget=Budget(max_attempts=40))
    plan = guarded.plan([world.prompt, "b"], pilot=200, num_return_sequences=5, seed=0, **world.settings)
    z = sum(p for ids, p in world.law().items() if ids in world.gold(CONSTRAINT))
    first = plan.forecasts[0]
    assert first.texts == 5
    assert first.acceptance.low < z < first.acceptance.high
    assert first.attempts.low < 5 / z < first.attempts.high
    assert first.tokens.value == pytest.approx(first.attempts.value * 2, rel=0.6)
    assert 0.9 < first.suffices <= 1
    assert plan.sampler == "rejection"
    assert plan.budget is not None
    assert plan.budget.max_attempts is not None
    assert "recommended: " in str(plan)
    assert plan.to_dict()["forecasts"][1]["prompt"] == "b"
    # The suggested budget suffices 99 times in 100, and a much smaller one does not.
    enough = plan.budget.max_attempts
    hardest = min(plan.forecasts, key=lambda forecast: forecast.acceptance.value).prompt
    outcomes = guarded.run([hardest] * 300, seed=1, num_return_sequences=5, budget=plan.budget, **world.settings)
    assert sum(outcome.ok for outcome in outcomes) > 270
    few = Budget(max_attempts=enough // 2)
    outcomes = guarded.run([hardest] * 300, seed=1, num_return_sequences=5, budget=few, **world.settings)
    assert sum(outcome.ok for outcome in outcomes) < 270


def test_plan_without_an_acceptance() -> None:
    world = table_world(letters="ab")
    guarded = GuardedGenerator(world.pipeline(), Regex("^never$"), budget=Budget(max_attempts=1000))
    plan = guarded.plan(world.prompt, pilot=200, seed=0, **world.settings)
    (forecast,) = plan.forecasts
    assert forecast.acceptance.value == 0
    assert forecast.attempts.value == math.inf
    assert forecast.attempts.low > 10
    assert forecast.suffices < 0.95
    assert plan.budget is None
    assert "below 0.018 (95 %)" in str(plan)
    assert "inf" not in str(plan)
    assert "adapter" in plan.advice
    assert plan.to_dict()["forecasts"][0]["attempts"]["value"] is None


@pytest.mark.slow
def test_plan_of_a_proposal_chooses_a_sampler() -> None:
    world, other = other_model()
    far = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=other.pipeline())
    near = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=Prompt("{prompt}"))
    plans = [each.plan(world.prompt, pilot=400, seed=0, **world.settings) for each in (far, near)]
    assert [plan.sampler for plan in plans] == ["qrs", "rejection"]
    seen = far.run(world.prompt, seed=0, **world.settings)[0].report.acceptance
    assert seen is not None
    assert plans[0].forecasts[0].acceptance.value < seen.high


@pytest.mark.parametrize("sampler", ["qrs", "imh", None])
def test_a_weight_that_is_no_number_ends_the_call(sampler: str | None) -> None:
    """Estimates compare weights, and NaN compares false with every number."""
    world, other = other_model()
    with torch.no_grad():
        world.model.table[1:].fill_(math.nan)
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=other.pipeline())
    draw = partial(guarded.attempts, count=20) if sampler is None else partial(guarded.run, sampler=sampler)
    with pytest.raises(ModelError, match="a log-weight is nan"):
        draw(world.prompt, **world.settings)


def test_a_plan_says_what_other_ways_would_cost() -> None:
    world, other = other_model()
    rule = ~Regex("b")
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None))
    plan = guarded.plan(world.prompt, pilot=300, seed=0, **world.settings)
    assert (plan.ways[0].source, plan.ways[0].sampler) == ("the model itself", "rejection")
    assert [way.source for way in plan.ways] == ["the model itself", "the model itself, masked"]
    z = sum(p for ids, p in world.law().items() if ids in world.gold(rule))
    assert plan.ways[0].acceptance == pytest.approx(z, abs=0.1)
    assert plan.ways[1].acceptance > z
    assert plan.to_dict()["ways"][1]["source"] == "the model itself, masked"
    assert "the model itself, masked, " in str(plan)
    told = guarded.plan(world.prompt, pilot=50, seed=0, proposal=other.pipeline(), **world.settings)
    assert [way.source for way in told.ways][1:] == ["the model itself", "the model itself, masked"]
    assert told.ways[0].source.startswith("the model ")


def advice_between(*ways: Alternative, allowed: Budget = Budget()) -> tuple[str, str]:  # noqa: B008
    """Return what a plan that compared these ways advises instead of the call's own, and what it adds to that."""
    one = Estimate(1.0, 1.0, 1.0)
    forecast = Forecast("", 1, 300, one, one, one, one, 1.0, {}, 9, allowed=allowed)
    own = Plan((forecast,), "rejection", Budget()).advice
    advice = Plan((forecast,), "rejection", Budget(), ways=ways).advice
    return ("", advice.removeprefix(own)) if advice.startswith(own) else (advice, "")


def test_a_plan_names_the_cheaper_way() -> None:
    itself = Alternative(ITSELF, "rejection", 0.01, Estimate(400.0, 200.0, 900.0), 100.0, 400.0)
    masked = Alternative(Origin(shape=Shape.MASKED), "qrs", 0.5, Estimate(40.0, 30.0, 60.0), 104.0, 40.0)
    advice = "draw from the model itself, masked with sampler='qrs', approximately g, which takes 10 times fewer tokens"
    assert advice_between(itself, masked) == (advice, "")
    limited = f"{advice}, with Budget(max_attempts=210), twice its expected cost"
    assert advice_between(itself, masked, allowed=Budget(max_attempts=200)) == (limited, "")
    assert advice_between(masked, itself) == ("", "")
    unknown = Estimate(math.inf, 45.0, math.inf)
    never = Alternative(ITSELF, "rejection", 0.0, unknown, math.inf, math.inf, without=1, pilot=64)
    assert advice_between(never, never) == ("", "")
    more = dataclasses.replace(masked, pilot=64)
    unsure = ("", "; the model itself, masked with qrs may be cheaper, which 64 attempts cannot tell")
    assert advice_between(never, more) == unsure, "the model itself may be as cheap"
    rare = dataclasses.replace(never, tokens=Estimate(math.inf, 400.0, math.inf))
    assert advice_between(rare, masked)[0].endswith("takes at least 10 times fewer tokens")
    assert advice_between(itself, masked, allowed=Budget(max_computed_tokens=400)) == (advice, "")
    tight = Budget(max_attempts=None, max_computed_tokens=60)
    assert advice_between(itself, masked, allowed=tight)[0].endswith(
        "with Budget(max_computed_tokens=80), twice its expected cost"
    )


def test_a_good_way_is_not_dropped_after_one_success_of_the_model() -> None:
    """The upper end of the other way's cost decides, not its value."""
    adapter = Alternative(Origin("an adapter"), "qrs", 0.4, Estimate(4300.0, 3600.0, 5200.0), 9.0, 4300.0, pilot=64)
    drawn = Estimate(3140.0, 560.0, 124_000.0)
    lucky = Alternative(ITSELF, "rejection", 1 / 64, drawn, 64.0, 3140.0, pilot=64)
    unsure = "; the model itself with rejection may be cheaper, which 64 attempts cannot tell"
    assert advice_between(adapter, lucky) == ("", unsure)
    sure = dataclasses.replace(lucky, tokens=Estimate(2000.0, 1900.0, 2800.0))
    assert advice_between(adapter, sure)[0].startswith("draw from the model itself with ")


@pytest.mark.slow
def test_a_plan_counts_what_qrs_draws_before_its_first_text() -> None:
    world, other = other_model()
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=other.pipeline(), sampler="qrs")
    plan = guarded.plan(world.prompt, pilot=400, seed=0, **world.settings)
    (forecast,) = plan.forecasts
    enough, few = plan.budget, Budget(max_attempts=5)  # a pilot takes 6 that pass
    assert enough is not None
    served = guarded.run([world.prompt] * 60, seed=1, budget=enough, **world.settings)
    assert sum(outcome.ok for outcome in served) >= 57
    spent = [outcome.report.usage.attempts for outcome in served]
    assert statistics.mean(spent) == pytest.approx(forecast.attempts.value, rel=0.2)
    assert plan.ways[0].attempts == pytest.approx(forecast.attempts.value, rel=0.01)
    short = guarded.plan(world.prompt, pilot=400, seed=0, budget=few, **world.settings)
    assert short.forecasts[0].suffices < 0.01
    missed = guarded.run([world.prompt] * 20, seed=1, budget=few, **world.settings)
    assert not any(outcome.ok for outcome in missed)
    report = missed[0].report
    assert "QRS first needs up to 100 attempts that satisfy" in report.advice()
    assert "the sampler" not in report.advice(), "the sampler had no text yet"
    assert report.evidence["pilot_attempts"] == report.usage.attempts
    whole = served[0].report
    assert float(whole.evidence["pilot_attempts"]) < whole.usage.attempts  # type: ignore[arg-type]
    assert re.search(r"\n  pilot +\d+ attempts to set β, of which 100 satisfied the constraint\n", str(whole))
    impossible = dataclasses.replace(report, ended="impossible", remedies=(Remedy.TEXTS, Remedy.LENGTH))
    assert impossible.advice().endswith("allow the model more tokens, such as with top_k=0 or raise max_new_tokens")


def test_a_plan_blames_no_part_for_what_its_pilot_only_counts() -> None:
    world, other = other_model()
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=other.pipeline())
    (forecast,) = guarded.plan(world.prompt, pilot=100, seed=0, **world.settings).forecasts
    assert forecast.acceptance.value > 0.3
    assert forecast.rejections
    assert "the sampler" not in forecast.rejections


def test_a_call_may_leave_the_wrappers_proposal_out() -> None:
    world, other = other_model()
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, proposal=other.pipeline())
    (outcome,) = guarded.run(world.prompt, proposal=False, **world.settings)
    assert outcome.report.proposal is None


def test_a_file_says_what_is_drawn_from() -> None:
    world, _ = other_prompt()

    def drawn_from(file: Any, call: Any = None, **options: Any) -> tuple[Any, tuple[str, ...]]:
        guarded = GuardedGenerator(world.pipeline(), file, **options)
        (outcome,) = guarded.run(
            world.prompt, num_return_sequences=5, seed=1, budget=Budget(), **world.settings, **(call or {})
        )
        return outcome.report.proposal, outcome.texts

    told, masked = (
        ConstraintFile(CONSTRAINT, proposal=Prompt("ab{prompt}")),
        ConstraintFile(CONSTRAINT, proposal=Masked()),
    )
    in_python = drawn_from(CONSTRAINT, proposal=Prompt("ab{prompt}"))
    assert drawn_from(told) == in_python
    assert in_python[0] == "the prompt 'ab{prompt}'"
    assert drawn_from(CONSTRAINT, {"constraints": told}) == in_python
    assert drawn_from(masked)[0] == "the model itself, masked"
    # Precedence: the call, then the wrapper, then the constraint file.
    assert drawn_from(told, proposal=Masked())[0] == "the model itself, masked"
    assert drawn_from(told, proposal=False) == drawn_from(CONSTRAINT)
    assert drawn_from(told, {"proposal": False}) == drawn_from(CONSTRAINT)
    assert drawn_from(masked, {"constraints": told}) == in_python
    assert drawn_from(CONSTRAINT, {"constraints": told, "proposal": Masked()})[0] == "the model itself, masked"
    assert drawn_from(CONSTRAINT) != in_python
