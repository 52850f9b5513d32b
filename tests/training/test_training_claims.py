"""Conclusions of a training: verdicts that depend on intervals and on the draws they were measured on."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from guardwrap.metrics import acceptance_rate
from guardwrap.metrics.divergence import kl_gold_proposal_from_gold
from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Table
from guardwrap.outcomes.claims import Answer
from guardwrap.training.training_report import Result, Training, claims_of_training, on_draws_of_g, pages_of
from guardwrap.training.training_settings import TrainingSettings

BEFORE = Estimate(0.1, 0.09, 0.11)  # -log of it is 2.3 [2.21, 2.41]
CHEAP, SAME, DEAR = Estimate(0.6, 0.55, 0.65), Estimate(0.12, 0.08, 0.17), Estimate(0.01, 0.005, 0.015)
NEAR, OPEN, FAR = Estimate(1.0, 0.8, 1.2), Estimate(2.2, 1.9, 2.6), Estimate(4.0, 3.5, 4.5)
LOW = Estimate(0.5, 0.4, 0.6)  # the estimate from weights


def settings(prompts=1, gold=1000):
    return TrainingSettings(constraint="x", prompts=[f"p{i}" for i in range(prompts)], gold_attempts=gold)


def figures(after=CHEAP, kl=NEAR, **others):
    given = {"acceptance_before": BEFORE, "acceptance_after": after, "kl_gold_proposal": kl}
    return {**given, "weighted_kl_gold_proposal": LOW, **others}


def answers(found, told=None):
    return [claim.answer for claim in claims_of_training("dpg", found, told or settings())]


@pytest.mark.parametrize(("after", "answer"), [(CHEAP, "holds"), (SAME, "undecided"), (DEAR, "does not hold")], ids=str)
def test_attempts_fall(after, answer):
    assert answers(figures(after)) == [answer, "holds"]


@pytest.mark.parametrize(("kl", "answer"), [(NEAR, "holds"), (OPEN, "undecided"), (FAR, "does not hold")], ids=str)
def test_nearer_to_g(kl, answer):
    assert answers(figures(kl=kl)) == ["holds", answer]


def test_negative_control_values_alone_would_say_more(monkeypatch):
    assert answers(figures(SAME, OPEN)) == ["undecided", "undecided"]
    by_value = lambda figure, limit: "holds" if figure.value > limit else "does not hold"  # noqa: E731
    monkeypatch.setattr("guardwrap.training.training_report.above", by_value)
    assert answers(figures(SAME, OPEN)) == ["holds", "holds"]


def test_the_sentences_have_their_figures():
    cheap, near = claims_of_training("dpg", figures(), settings())
    assert (cheap.sentence, near.sentence) == (
        "dpg costs 6 times fewer attempts than the model",
        "dpg is closer to g than the model",
    )
    assert cheap.figure.value == pytest.approx(6)
    assert near.figure.value == pytest.approx(-math.log(0.1) - 1.0)
    assert near.figure.low == pytest.approx(near.figure.value - math.hypot(math.log(0.11 / 0.1), 0.2))
    assert near.rule == "KL(g‖a) - KL(g‖a') is above 0"


def test_what_weights_alone_say_does_not_hold():
    """Draws that miss part of g make a proposal look better, so a negative verdict stands."""
    by_weights = figures(kl=LOW)
    assert not on_draws_of_g(by_weights)
    assert answers(figures(kl=LOW, weighted_kl_gold_proposal=NEAR)) == ["holds", "holds"]
    assert answers(by_weights) == ["holds", "undecided"]  # draws of g, but too few of them for KL
    assert answers(by_weights, settings(gold=0)) == ["undecided", "undecided"]
    cost, near = claims_of_training("dpg", by_weights, settings(gold=0))
    assert "gold_attempts" in cost.rule
    assert "gold_attempts" in near.rule
    worse = figures(DEAR, FAR, weighted_kl_gold_proposal=FAR)
    assert answers(worse, settings(gold=0)) == ["does not hold", "does not hold"]


def test_of_several_prompts_a_lower_bound_refutes_nothing():
    several = settings(prompts=3)
    assert answers(figures(), several) == ["holds", "holds"]
    assert answers(figures(DEAR, FAR), several) == ["does not hold", "undecided"]
    cost, near = claims_of_training("dpg", figures(), several)
    assert cost.sentence.endswith(", over 3 prompts together")
    assert near.sentence.endswith(", as a mean over 3 prompts")
    # Two prompts with acceptance rates 0.5 and 0.001: the model is further from g than the mean rate suggests.
    assert (math.log(2) + math.log(1000)) / 2 > -math.log((0.5 + 0.001) / 2)


@pytest.mark.parametrize("name", ["acceptance_before", "kl_gold_proposal", "acceptance_after"])
def test_what_is_not_known_cannot_be_told(name):
    found = figures()
    del found[name]
    cost, near = claims_of_training("dpg", found, settings())
    assert (cost.answer == "holds") == (name == "kl_gold_proposal")
    assert (near.answer == "holds") == (name == "acceptance_after")
    none = figures(acceptance_before=Estimate(0.0, 0.0, 0.01))
    assert answers(none) == ["holds", "undecided"]


def test_a_model_that_is_no_nearer_is_hardly_ever_said_to_be():
    """a' equals a up to noise with mean 0 under g, so at most 2.5 % of the verdicts are "holds"."""
    rng = np.random.default_rng(0)
    told, by_value = [], 0
    for _ in range(1000):
        accepted = int(rng.binomial(2000, 0.1))
        ratios = rng.normal(0, 0.5, accepted)  # log a/a' of draws of g, KL(g‖a') = KL(g‖a)
        found = figures(
            acceptance_before=acceptance_rate(accepted, 2000, stopped_on_acceptance=False),
            kl=kl_gold_proposal_from_gold(ratios, (accepted, 2000)),
        )
        (_, near) = claims_of_training("dpg", found, settings())
        told.append(near.answer)
        by_value += near.figure.value > 0
    assert told.count(Answer.HOLDS) <= 45  # of Binomial(1000, 0.025) more have probability 1e-4
    assert by_value > 400, "negative control: by its value alone the claim would hold in every other training"


def test_the_page_begins_with_the_claims():
    result = Result(Path("adapter"), figures(), 100, 1000, 1.0, (), (), (), settings=settings())
    (page,) = pages_of([Training("dpg", (), result), Training("sft", (), result)])
    table = page.sections[0].blocks[0]
    assert isinstance(table, Table)
    claims = [claim for name in ("dpg", "sft") for claim in claims_of_training(name, result.figures, result.settings)]
    assert [row[:2] for row in table.rows] == [(claim.sentence, "✓ holds") for claim in claims]
    (page,) = pages_of([Training("dpg", (), None)])
    assert "Claims" not in str(page), "of an interrupted training nothing is claimed"


def test_trainings_for_other_rules_of_a_family_have_separate_pages():
    def of(*values):
        told = TrainingSettings(
            constraint="family.yaml", prompts=["a", "b"], fields=[{"word": each} for each in values]
        )
        return Training("replay", (), Result(Path("adapter"), figures(), 100, 1000, 1.0, (), (), (), settings=told))

    assert len(pages_of([of("tea", "milk"), of("tea", "milk")])) == 1
    assert len(pages_of([of("tea", "milk"), of("milk", "tea")])) == 2
    changed = of("tea", "milk")
    changed = replace(changed, result=replace(changed.result, constraint_digest="a"))
    assert len(pages_of([of("tea", "milk"), changed])) == 2, "the file of the rule was changed in between"
