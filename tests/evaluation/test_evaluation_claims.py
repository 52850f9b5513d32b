"""Conclusions of an evaluation: verdicts that follow from intervals, and a recommendation that follows from them."""

import math
from dataclasses import replace

import pytest

from guardwrap import Regex
from guardwrap.evaluation.evaluation_report import claims_of_evaluation, next_step, page_of
from guardwrap.evaluation.evaluation_run import evaluate
from guardwrap.evaluation.evaluation_settings import EvaluationSettings
from guardwrap.evaluation.figures import BaseFigures, Evaluation, PromptFigures, ProposalFigures
from guardwrap.evaluation.tradeoff import Point
from guardwrap.outcomes import Estimate, exactly
from guardwrap.outcomes.blocks import Points, Table, Text
from tests.evaluation.fixtures_recordings import Source, placed

CHEAP, SAME, DEAR = Estimate(0.6, 0.55, 0.65), Estimate(0.12, 0.08, 0.17), Estimate(0.01, 0.005, 0.015)
NEAR, OPEN, FAR = Estimate(0.02, 0.01, 0.04), Estimate(0.02, 0.01, 0.08), Estimate(0.4, 0.3, 0.5)
BASE = Estimate(0.1, 0.09, 0.11)
SETTINGS = EvaluationSettings(constraint="x", prompts=["p"], proposals={"hint": "h {prompt}"})


def of_qrs(beta, tvd, cost, sampler="qrs"):
    return Point(sampler, beta, 500, False, Estimate(cost, 0.9 * cost, 1.1 * cost), cost, figures={"tvd": tvd})


def proposal(rate=CHEAP, tvd=NEAR, *points, worth=500.0, agrees=True):
    gap = Estimate(0.0, -0.1, 0.1) if agrees else Estimate(-1.0, -1.2, -0.8)
    figures = {
        "acceptance_rate": rate,
        "tvd_gold_guarded": tvd,
        "kl_gold_guarded": tvd,
        "effective_sample_size": Estimate(worth, worth - 5, worth + 5),
        "log_partition_over_base_rate": gap,
    }
    rejection = Point("rejection", None, 500, False, Estimate(1.7, 1.6, 1.8), 1.0)
    return ProposalFigures(1000, 600, figures, samplers=(rejection, *points))


def evaluation(*of_prompts, base=BASE, sampler=None):
    prompts = [
        PromptFigures(
            "p", BaseFigures(1000, round(1000 * base.value), {"acceptance_rate": base}, None, {}, []), {"hint": of}
        )
        for of in of_prompts
    ]
    return Evaluation(SETTINGS.model_copy(update={"sampler": sampler}), "x", "d", None, prompts, {}, {})


def answers(*of_prompts, **options):
    """Return for each way whether it is cheaper and close."""
    found = [claim.answer for claim in claims_of_evaluation(evaluation(*of_prompts, **options))]
    return list(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize(("rate", "answer"), [(CHEAP, "holds"), (SAME, "undecided"), (DEAR, "does not hold")], ids=str)
def test_cheaper(rate, answer):
    assert answers(proposal(rate)) == [(answer, "holds")]


@pytest.mark.parametrize(("tvd", "answer"), [(NEAR, "holds"), (OPEN, "undecided"), (FAR, "does not hold")], ids=str)
def test_near(tvd, answer):
    assert answers(proposal(CHEAP, tvd)) == [("holds", answer)]


def test_negative_control_values_alone_would_say_more(monkeypatch):
    """With the value alone, a figure whose interval crosses the limit would hold."""
    assert answers(proposal(SAME, OPEN)) == [("undecided", "undecided")]
    for name, sign in (("above", 1), ("below", -1)):
        by_value = lambda figure, limit, sign=sign: "holds" if sign * (figure.value - limit) > 0 else "does not hold"  # noqa: E731
        monkeypatch.setattr(f"guardwrap.evaluation.evaluation_report.{name}", by_value)
    assert answers(proposal(SAME, OPEN)) == [("holds", "holds")]


def test_the_sentence_has_the_figure():
    cheap, near = claims_of_evaluation(evaluation(proposal()))
    assert cheap.sentence == "Rejection sampling from hint costs 6 times fewer attempts than the model"
    assert cheap.figure.value == pytest.approx(6)
    # Independent figures: each end is the root of the sum of squares of both, in logarithms.
    low = math.hypot(math.log(0.6 / 0.55), math.log(0.11 / 0.1))
    assert cheap.figure.low == pytest.approx(6 * math.exp(-low))
    assert near.sentence == "Rejection sampling from hint comes within a total variation distance of 0.05 of the target"
    assert near.figure == NEAR
    dear, _ = claims_of_evaluation(evaluation(proposal(DEAR)))
    assert "costs fewer attempts" in dear.sentence


@pytest.mark.parametrize("doubt", [{"worth": 40.0}, {"agrees": False}], ids=str)
def test_a_distance_that_may_be_too_small_does_not_hold(doubt):
    """Attempts that miss part of g make every distance look small."""
    assert answers(proposal(CHEAP, NEAR, **doubt)) == [("holds", "undecided")]
    assert answers(proposal(CHEAP, FAR, **doubt)) == [("holds", "does not hold")]
    *_, near = claims_of_evaluation(evaluation(proposal(CHEAP, NEAR, **doubt)))
    assert "see the notes" in near.rule


@pytest.mark.parametrize("tvd", [NEAR, OPEN, FAR], ids=str)
def test_attempts_worth_a_handful_tell_no_distance(tvd):
    """A distance is neither small nor large if its figure depends on one or two texts."""
    found = evaluation(proposal(CHEAP, tvd, worth=1.5))
    *_, near = claims_of_evaluation(found)
    assert near.answer == "undecided"
    assert near.rule.endswith("these attempts are worth only 1.5 draws of g")
    assert next_step(found).startswith(
        "Draw from the model itself, which is exact and takes about 10 attempts per text. It is undecided whether"
    )


def test_a_heavy_tail_is_the_reason_given():
    """Its distance has no upper end, so it may be undecided or too large, and never holds."""

    def near(low, k):
        found = proposal(CHEAP, Estimate(0.06, low, 1.0))
        figures = {**found.figures, "pareto_k": Estimate(k, 0.1, 1.4), "pareto_k_limit": exactly(0.6)}
        return claims_of_evaluation(evaluation(replace(found, figures=figures)))[-1]

    assert near(0.01, 0.9).answer == "undecided"
    assert near(0.01, 0.9).rule == "at most 0.05; but the weights' tail is too heavy (Pareto k 0.9)"
    assert near(0.055, 0.9).answer == "does not hold"
    assert near(0.055, 0.9).rule == near(0.01, 0.5).rule == "at most 0.05"


def test_more_attempts_are_advised_only_where_they_lead_somewhere():
    """A hint whose attempts are worth less than those of the model itself saves nothing, however many are drawn."""
    rare = Estimate(0.001, 0.0005, 0.0015)
    told = next_step(evaluation(proposal(CHEAP, NEAR, worth=5.0), base=rare))
    assert told.startswith("Make more attempts, for example attempts: 200000 instead of 10000 (recordings are kept)")
    assert told.endswith("the model itself, which is exact and takes about 1000 attempts per text.")
    assert "attempts: 40000 instead" in next_step(evaluation(proposal(CHEAP, NEAR, worth=60.0), base=rare))
    told = next_step(evaluation(proposal(CHEAP, NEAR, worth=60.0)))
    assert told.startswith("Draw from the model itself, which is exact and takes about 10 attempts per text.")
    assert "more attempts are unlikely to help" in told
    assert told.endswith("Another hint, or an adapter trained for this constraint, may do better.")
    of_two = evaluation(proposal(CHEAP, OPEN), proposal(CHEAP, NEAR, worth=60.0))
    assert next_step(of_two).startswith("Draw from"), "for one prompt it leads nowhere"


def test_of_qrs_the_cheapest_setting_before_one_that_is_not_near():
    """EvaluationSettings are tested from the most expensive on, up to the first that is not close."""
    points = of_qrs(0.1, NEAR, 2.0), of_qrs(0.2, OPEN, 2.5), of_qrs(0.3, NEAR, 3.0), of_qrs(0.4, NEAR, 5.0)
    found = claims_of_evaluation(evaluation(proposal(CHEAP, FAR, *points)))
    assert found[2].sentence == "QRS from hint with β = 0.3 costs 3.33 times fewer attempts than the model"
    assert [claim.answer for claim in found[2:]] == ["holds", "holds"]
    dearest_open = claims_of_evaluation(evaluation(proposal(CHEAP, FAR, *points[:2])))
    assert "β = 0.2" in dearest_open[2].sentence
    assert dearest_open[3].answer == "undecided"


def test_the_sampler_of_the_settings_has_its_own_target():
    own = of_qrs(None, OPEN, 3.0, "sampler: qrs, target_tvd = 0.1")
    found = claims_of_evaluation(evaluation(proposal(CHEAP, FAR, own), sampler={"qrs": {"target_tvd": 0.1}}))
    assert found[-1].sentence == (
        "qrs, target_tvd = 0.1 from hint comes within a total variation distance of 0.1 of the target"
    )
    assert found[-1].answer == "holds"
    assert answers(proposal(CHEAP, FAR, own), sampler={"qrs": {"beta": 1.0}})[-1] == ("holds", "undecided")


def test_of_several_prompts_it_has_to_hold_for_each():
    assert answers(proposal(), proposal()) == [("holds", "holds")]
    assert answers(proposal(), proposal(SAME)) == [("undecided", "holds")]
    assert answers(proposal(), proposal(SAME, FAR), proposal(DEAR)) == [("does not hold", "does not hold")]
    cheap, near = claims_of_evaluation(evaluation(proposal(), proposal(SAME, FAR)))
    assert cheap.sentence.endswith("for each of 2 prompts")
    assert cheap.figure.value == pytest.approx(1.2), "of the prompt where least is saved"
    assert near.figure == FAR


def test_what_to_do_next():
    assert next_step(evaluation(proposal())).startswith("Use rejection sampling from hint: its texts are within")
    qrs = of_qrs(0.3, NEAR, 3.0)
    assert next_step(evaluation(proposal(CHEAP, FAR, qrs))).startswith("Use QRS from hint with β = 0.3: ")
    told = next_step(evaluation(proposal(CHEAP, OPEN)))
    assert told.startswith("Make more attempts, for example attempts: 40000 instead of")
    assert "whether rejection sampling from hint is both close" in told
    assert next_step(evaluation(proposal(CHEAP, FAR))).startswith("Draw from the model itself")
    # It is close and expensive: nothing to gain.
    assert next_step(evaluation(proposal(DEAR, NEAR))).startswith("Draw from the model itself")
    none = next_step(evaluation(proposal(CHEAP, NEAR, agrees=False), base=Estimate(0.0, 0.0, 0.004)))
    assert none.startswith("Make more attempts of the model itself")


def test_the_best_is_the_one_that_saves_most_for_sure():
    both = evaluation(proposal(CHEAP, NEAR))
    other = proposal(Estimate(0.7, 0.2, 0.9), NEAR)  # a higher estimate, with a lower end of its interval
    prompt = both.prompts[0]
    both = replace(both, prompts=[replace(prompt, proposals={"wide": other, **prompt.proposals})])
    assert "rejection sampling from hint" in next_step(both)


def test_nothing_passed_at_all():
    none = Estimate(0.0, 0.0, 0.01)
    nothing = ProposalFigures(300, 0, {"acceptance_rate": none})
    (cheap,) = claims_of_evaluation(evaluation(nothing))
    assert (cheap.answer, cheap.figure.value) == ("does not hold", 0)
    (cheap,) = claims_of_evaluation(evaluation(nothing, base=none))
    assert cheap.answer == "undecided"
    assert math.isnan(cheap.figure.value)


@pytest.mark.slow
def test_what_was_found_comes_first_and_settings_last(tmp_path):
    settings = SETTINGS.model_copy(update={"attempts": 250, "steps": [1], "texts": 60})
    found = evaluate(Source(placed()), settings, Regex("a"), tmp_path)
    sections = page_of(found).sections
    assert [section.title for section in sections] == [
        "Results", "Prompt", "How figures are computed", "Settings"
    ]  # fmt: skip
    words, claims, picture = sections[0].blocks
    assert isinstance(words, Text)
    assert words.text == next_step(found)
    assert isinstance(claims, Table)
    assert [row[0] for row in claims.rows] == [claim.sentence for claim in claims_of_evaluation(found)]
    assert isinstance(picture, Points)
    assert not any(isinstance(block, Points) for block in sections[1].blocks), "one picture of it is enough"
