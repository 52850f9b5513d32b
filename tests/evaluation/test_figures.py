"""Figures of proposals and samplers, compared with those of an enumerated world."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from guardwrap import Regex, metrics
from guardwrap.evaluation import tradeoff as tradeoff_module
from guardwrap.evaluation.evaluation_report import evaluation_charts
from guardwrap.evaluation.figures import figures_of, mean_over_prompts
from guardwrap.evaluation.tradeoff import COSTS, Point, reach
from guardwrap.outcomes import Draw, Estimate, plain
from guardwrap.outcomes.charts import alt_of, svg_of
from guardwrap.samplers import Attempt
from tests.evaluation.fixtures_recordings import placed

WORLD = placed()
STEPS = (1, 2, 5, 20)
BETAS = [share * WORLD.z for share in (0.5, 1, 3, 6)]


def evaluated(break_weight=lambda attempt: attempt, count=6000, **options):
    attempts = [break_weight(attempt) for attempt in WORLD.attempts(count, 1)]
    base = WORLD.attempts(count, 2, base=True)
    given: dict[str, Any] = {"place": Regex("a"), "betas": BETAS, "steps": STEPS, **options}
    return figures_of("p", base, {"cap": attempts}, **given)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Skip Self-BLEU, which takes most of the time and has a separate test."""
    monkeypatch.setattr(tradeoff_module, "diversity", lambda texts: {})
    monkeypatch.setattr("guardwrap.evaluation.figures.diversity", lambda texts: {})


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tradeoff_module, "diversity", lambda texts: {})
        patch.setattr("guardwrap.evaluation.figures.diversity", lambda texts: {})
        return evaluated()


def covers(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def test_figures_cover_the_truth(found):
    inside, gold, guarded = WORLD.satisfied, WORLD.gold, WORLD.rejection()
    accepted = float(WORLD.proposal[inside].sum())
    kl = float((gold[inside] * np.log(gold[inside] / guarded[inside])).sum())
    truth = {
        "acceptance_rate": accepted,
        "partition": WORLD.z,
        "kl_gold_proposal": kl - math.log(accepted),
        "kl_gold_guarded": kl,
        "tvd_gold_guarded": float(np.abs(gold - guarded).sum() / 2),
        "effective_sample_size": 6000 * WORLD.z**2 / float((WORLD.proposal * WORLD.weights**2).sum()),
        "log_partition_over_base_rate": 0.0,
        "theorem2_residual": 0.0,
    }
    figures = found.proposals["cap"].figures
    assert truth.keys() | {"pareto_k", "pareto_k_limit"} == figures.keys()
    assert (
        figures["pareto_k"].value
        < figures["pareto_k_limit"].value
        == metrics.pareto_k_limit(found.proposals["cap"].accepted)
    )
    assert [name for name in truth if not covers(figures[name], truth[name])] == []
    assert covers(found.base.figures["acceptance_rate"], WORLD.z)
    assert covers(found.base.figures["kl_gold_base"], -math.log(WORLD.z))
    shares = [*found.base.histogram, *found.proposals["cap"].histogram]
    truths = [*WORLD.places(gold), *WORLD.places(guarded)]
    assert sum(covers(share, p) for share, p in zip(shares, truths, strict=True)) >= 17, "of 20 intervals of 95 %"
    assert found.proposals["cap"].notes == ()


def test_negative_control_a_term_that_all_weights_miss(found):
    """The comparison with the model's own attempts shows it, for instance a missing end-of-sequence term."""
    off = evaluated(lambda attempt: replace(attempt, log_weight=attempt.log_weight - 0.8)).proposals["cap"]
    assert not covers(off.figures["log_partition_over_base_rate"], 0)
    assert not covers(off.figures["theorem2_residual"], 0)
    assert any("Z from the weights differs from the model's AR" in note for note in off.notes)


def test_a_heavy_tail_leaves_distances_without_an_upper_end(found):
    """The same attempts with weights to the power of five: a few of them have nearly all the weight."""
    heavy = evaluated(lambda attempt: replace(attempt, log_weight=5 * attempt.log_weight)).proposals["cap"]
    figures = heavy.figures
    assert figures["pareto_k"].value > figures["pareto_k_limit"].value
    assert (figures["tvd_gold_guarded"].high, figures["kl_gold_guarded"].high) == (1, math.inf)
    (note,) = [note for note in heavy.notes if "tail" in note]
    assert note.startswith(
        f"the weights' tail is too heavy (Pareto k {figures['pareto_k'].value:.3g}), so the distances"
    )
    light = found.proposals["cap"]
    assert light.figures["tvd_gold_guarded"].high < 1
    averaged = mean_over_prompts([found, replace(found, proposals={"cap": heavy})])["cap"]
    assert "tvd_gold_guarded" in averaged
    assert "pareto_k" not in averaged, "a mean of it says nothing"


def laws():
    return {
        ("rejection", None): WORLD.rejection(),
        **{("qrs", beta): WORLD.qrs(beta) for beta in BETAS},
        **{("imh", steps): WORLD.imh(steps) for steps in STEPS},
    }


def misses(found):
    """Return the settings whose projected KL differs from that of their distribution."""
    return [
        key
        for (key, law), point in zip(laws().items(), found.proposals["cap"].samplers, strict=True)
        if not covers(point.projected_kl, WORLD.projected(law))
    ]


def test_curves_are_those_of_the_laws(found):
    points = found.proposals["cap"].samplers
    assert [(point.sampler, pytest.approx(point.setting)) for point in points] == list(laws())
    assert misses(found) == []
    accepted = float(WORLD.proposal[WORLD.satisfied].sum())
    for point in points:
        if point.sampler == "qrs":
            rate = float((WORLD.proposal * np.minimum(1, WORLD.weights / point.setting)).sum())
            assert covers(point.cost, 1 / rate)
            assert point.relative_cost == pytest.approx(accepted / rate, rel=0.1)
            assert point.texts == pytest.approx(6000 * rate, rel=0.1)
        elif point.sampler == "imh":
            assert covers(point.cost, (point.setting + 1) / accepted)
            assert point.resampled == (point.setting > 2)
            assert point.texts == (1000 if point.resampled else found.proposals["cap"].accepted // (point.setting + 1))
            assert point.figures["moves"] == point.texts * point.setting


def test_negative_control_inverted_weights():
    def inverted(attempt):
        return replace(attempt, log_weight=-attempt.log_weight if attempt.satisfied else -math.inf)

    wrong = misses(evaluated(inverted))
    assert {sampler for sampler, _ in wrong} == {"qrs", "imh"}
    assert len(wrong) >= 6


@pytest.mark.slow
def test_negative_control_a_narrow_interval_for_resampled_texts(monkeypatch):
    """Texts of attempts that are drawn again also have the error of the recorded attempts."""

    base = WORLD.attempts(20_000, 0, base=True)

    def off():
        missed = 0
        for seed in range(1, 11):
            attempts = WORLD.attempts(400, seed)
            found = figures_of("p", base, {"x": attempts}, place=Regex("a"), betas=BETAS[:1], steps=(15,))
            estimate = found.proposals["x"].samplers[-1].projected_kl
            assert estimate is not None
            missed += not covers(estimate, WORLD.projected(WORLD.imh(15)))
        return missed

    assert off() <= 2
    monkeypatch.setattr(tradeoff_module, "effective_sample_size", lambda weights: Estimate(1e12, 1e12, 1e12))
    assert off() >= 6


@pytest.mark.slow
def test_resampled_texts_are_not_surer_to_be_near(monkeypatch):
    """The correction for the recorded attempts' error does not lower the upper end of the interval."""
    base = WORLD.attempts(2000, 0, base=True)
    early = Regex("^.{0,4}a")  # only two bins are used, so the correction for eleven is too large

    def ends():
        points: list[Any] = []
        for seed in range(1, 6):
            attempts = WORLD.attempts(100, seed)
            found = figures_of("p", base, {"x": attempts}, place=early, betas=BETAS[:1], steps=(20,))
            points.append(found.proposals["x"].samplers[-1])
        assert all(point.resampled for point in points)
        return np.array([point.projected_kl.high for point in points])

    real = ends()
    monkeypatch.setattr(tradeoff_module, "effective_sample_size", lambda weights: Estimate(1e12, 1e12, 1e12))
    assert (real >= ends()).all()


def test_beta_is_chosen_by_cost():
    points = [p for p in evaluated(betas=None, steps=(1,)).proposals["cap"].samplers if p.sampler == "qrs"]
    costs = [point.relative_cost for point in points]
    assert costs == sorted(costs)
    most = np.max([attempt.log_weight for attempt in WORLD.attempts(6000, 1)])
    assert points[-1].setting == pytest.approx(math.exp(most))
    for cost in (cost for cost in COSTS if cost < costs[-1]):
        assert min(abs(c - cost) for c in costs) < 1e-6
    assert min(abs(point.setting / WORLD.z - 1) for point in points) < 0.1, "β = Z"


def test_reach_is_read_off_the_curve():
    def point(sampler, cost, kl):
        interval = None if kl is None else Estimate(kl, kl / 2, 2 * kl)
        return Point(sampler, None, 1, False, Estimate(1, 1, 1), cost, interval)

    start = point("rejection", 1.0, 1.0)
    points = [start, point("qrs", 4.0, 0.25), point("qrs", 9.0, 0.0), point("imh", 2.0, 0.9), point("imh", 8.0, 0.3)]
    read: dict[Any, Any] = {(r.sampler, r.share): r for r in reach(points)}
    assert read["qrs", 0.5].cost == pytest.approx(2.0)
    assert 4 < read["qrs", 0.1].cost < 9
    assert read["imh", 0.5].cost == pytest.approx(2 * 4 ** (math.log(0.9 / 0.5) / math.log(3)))
    assert read["imh", 0.1].cost is None
    assert read["qrs", 0.5].low < 2 < read["qrs", 0.5].high
    assert [r.paper for r in reach(points, replication=True)] == [1.36, 10, 10, 50]
    assert not any(r.paper for r in reach(points))
    assert reach([point("rejection", 1.0, None), *points[1:]]) == []
    flat = replace(start, projected_kl=Estimate(0.01, 0.0, 0.02))
    assert reach([flat, *points[1:]]) == [], "there is nothing to halve"


def test_what_cannot_be_known_is_left_out():
    none = [Attempt(Draw("p", (1,), ""), False, -math.inf)] * 50
    some = WORLD.attempts(50, 3)
    empty = figures_of("p", none, {"none": none, "cap": some}, place=Regex("a"), steps=(1,))
    assert empty.proposals["none"].figures.keys() == {"acceptance_rate"}
    assert "nothing else can be estimated" in empty.proposals["none"].notes[0]
    assert empty.proposals["cap"].reach == []
    assert all(point.projected_kl is None for point in empty.proposals["cap"].samplers)
    assert any("its acceptance rate" in note for note in empty.proposals["cap"].notes)
    data = json.loads(json.dumps(plain(empty), allow_nan=False))
    assert data["base"]["figures"]["kl_gold_base"]["value"] is None


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 20])
@pytest.mark.parametrize("weird", ["none", "zero", "far"])
def test_few_and_weird_attempts(count, weird):
    """For any recording, figures and plots are computed or left out."""
    change = {"none": lambda w: w, "zero": lambda w: -math.inf, "far": lambda w: 60 * w}[weird]
    for seed in range(4):
        attempts = WORLD.attempts(count, seed)
        attempts[::2] = [replace(attempt, log_weight=change(attempt.log_weight)) for attempt in attempts[::2]]
        base = WORLD.attempts(count, 50 + seed, base=True)
        betas, place = [None, [1e-3, 1.0, 1e300]][seed % 2], [None, Regex("a")][seed // 2]
        found = figures_of("p", base, {"x": attempts}, betas=betas, place=place, steps=(1, 3), texts=20)
        json.dumps(plain(found), allow_nan=False)
        for name, chart in evaluation_charts(found).items() if seed % 3 == 0 else ():
            assert svg_of(chart, name).startswith("<svg ")
            assert "nan" not in alt_of(chart)


def test_a_text_without_the_place_has_a_bin_of_its_own():
    early = Regex("^.{0,4}a")  # a match begins at 0 or does not exist
    found = evaluated(place=early, steps=(1,))
    p, q = (float(WORLD.places(law)[:5].sum()) for law in (WORLD.gold, WORLD.rejection()))
    truth = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert covers(found.proposals["cap"].samplers[0].projected_kl, truth)
    assert found.base.histogram[0].value == 1
    nowhere = evaluated(count=500, place="dragon", steps=(1,))
    assert nowhere.base.histogram is None
    assert nowhere.proposals["cap"].samplers[0].projected_kl.value < 0.01


def test_mean_over_prompts(found):
    other = evaluated(count=2000, steps=(1,))
    mean = mean_over_prompts([found, other])
    name = "kl_gold_guarded"
    ends = [prompt.proposals["cap"].figures[name] for prompt in (found, other)]
    assert list(mean) == ["base", "cap"]
    assert mean["cap"][name].value == pytest.approx((ends[0].value + ends[1].value) / 2)
    assert mean["cap"][name].high - mean["cap"][name].value == pytest.approx(
        math.hypot(*(end.high - end.value for end in ends)) / 2
    )


@pytest.mark.slow
def test_self_bleu_where_there_are_texts_enough(monkeypatch):
    monkeypatch.undo()
    attempts, base = WORLD.attempts(400, 1), WORLD.attempts(400, 2, base=True)
    points = figures_of("p", base, {"x": attempts}, betas=[1.5], steps=(1, 5), texts=200).proposals["x"].samplers
    has = {(p.sampler, p.setting): list(p.self_bleu) for p in points}
    assert has["rejection", None] == ["2", "3", "4", "5"]
    assert points[1].texts < 100
    assert points[1].self_bleu == {}
    assert points[-1].resampled
    assert points[-1].self_bleu == {}
