"""Reports in words: the first line, the rows and the advice."""

import dataclasses
import json
import math
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Length, imh
from guardwrap.outcomes import Closeness, Distribution, Estimate, Usage
from guardwrap.support.formatting import digits
from guardwrap.testing import World
from tests.outcomes.fixtures_weights import HEAVY, LIGHT, qrs_report


@pytest.mark.parametrize(
    ("weights", "options", "begins", "said"),
    [
        ([0.0, 0.1] * 500, {}, "nearly as", "within the target of 0.05"),
        ([0.0, 3.0] * 500, {"target_tvd": 0.3}, "perhaps nearly as", "as estimated, but not certain"),
        ([0.0, 3.0] * 500, {"beta": 1.0}, "not quite as", "above 0.05"),
        ([0.0, 3.0] * 500, {"target_tvd": 0.6}, "nearly as", "within the target of 0.6"),
        ([0.0, 3.0] * 500, {"target_acceptance": 0.9}, "not quite as", "above 0.05"),
    ],
)
def test_the_first_line_says_how_sure_it_is(
    world: World, weights: list[float], options: dict[str, Any], begins: str, said: str
) -> None:
    """Determined from the figures, not from the description."""
    distribution, evidence = qrs_report(weights, **options)
    assert said in str(distribution)
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    report = dataclasses.replace(outcome.report, distribution=Distribution(Closeness.APPROXIMATE), evidence=evidence)
    assert report.headline().startswith(f"1 text, {begins} your model writes it")
    assert evidence["near_enough"] == options.get("target_tvd", 0.05)
    without = dataclasses.replace(report, evidence={})
    unknown = "1 text, which satisfies the constraint; the distance to your model's own texts is unknown"
    assert without.headline().startswith(unknown), "for a sampler without such figures"


def test_no_report_of_imh_says_that_its_texts_are_near(world: World) -> None:
    """No figure tells the distance: neither the number of moves nor how many of them were made."""
    said = "the distance to your model's own texts is unknown"
    for options in ({"steps": 0}, {"steps": 40}, {"steps": 3, "thinning": 1}, {"steps": 5, "move": "raw"}):
        guarded = GuardedGenerator(world.pipeline(), Length(min=1), seed=3, sampler=imh(**options))
        (outcome,) = guarded.run("ab", num_return_sequences=3, **world.settings)
        assert said in outcome.report.headline()
        assert "nearly" not in str(outcome.report)
        assert outcome.report.drawn_from.endswith("distance (TVD) unknown")


@pytest.mark.parametrize("evidence", [{}, {"tvd": Estimate(0.01, 0.0, 0.02)}, {"near_enough": 0.05}])
def test_nearness_is_said_only_where_figures_show_it(world: World, evidence: dict[str, Any]) -> None:
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    for sampler in ("imh", "qrs", "one of a plug-in"):
        distribution = Distribution(Closeness.APPROXIMATE, sampler)
        report = dataclasses.replace(outcome.report, distribution=distribution, evidence=evidence)
        assert "is unknown" in report.headline()


@pytest.mark.parametrize("count", [22, 30, 60, 99])
def test_few_texts_are_not_called_a_heavy_tail(count: int) -> None:
    said = [str(qrs_report([*LIGHT[start : start + count]], beta=1.0)[0]) for start in range(0, 300, count)]
    assert not [words for words in said if "heavy (Pareto" in words]
    assert count > 30 or any("too few texts to tell" in words for words in said)


def test_a_handful_of_weights_tells_no_distance(world: World) -> None:
    """One attempt outweighs all others, so the figures depend on a single text."""
    distribution, evidence = qrs_report([-1.0] * 300 + [7.0], target_tvd=0.2, pilot=50)
    assert evidence["effective_sample_size"].value < 3
    assert distribution.detail.endswith(", distance (TVD) unknown")
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    report = dataclasses.replace(outcome.report, distribution=distribution, evidence=evidence)
    said = "which satisfies the constraint; the distance to your model's own texts is unknown"
    assert said in dataclasses.replace(report, usage=Usage(attempts=301)).headline()


@pytest.mark.parametrize(
    ("weights", "options", "ends", "begins"),
    [
        (HEAVY, {"beta": 1.0}, "the weights' tail is too heavy (Pareto k 0.818); above 0.05", "not quite as"),
        (
            HEAVY,
            {"target_tvd": 0.5, "pilot": 50},
            "(Pareto k 0.818); the target of 0.5 cannot be confirmed",
            "which sat",
        ),
        (
            [*LIGHT[:20]],
            {"beta": 1.0},
            "too few texts to tell how heavy the weights' tail is; 0.05 cannot be confirmed",
            "which satisfies the",
        ),
    ],
)
def test_a_heavy_tail_tells_no_upper_end(
    world: World, weights: list[float], options: dict[str, Any], ends: str, begins: str
) -> None:
    distribution, evidence = qrs_report(weights, **options)
    assert str(distribution).endswith(ends)
    assert evidence["tvd"].high == 1
    assert evidence["kl"].high == math.inf
    assert not evidence["pareto_k"].value <= evidence["pareto_k_limit"]
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    report = dataclasses.replace(outcome.report, distribution=distribution, evidence=evidence)
    assert report.headline().startswith(f"1 text, {begins}")
    json.dumps(report.to_dict(), allow_nan=False)
    rows = [" ".join(line.split()) for line in str(report).splitlines()]
    for name in ("tvd", "kl"):
        low = evidence[name].low
        least = f"at least {digits(low)} (95 %), upper end " if low else ""
        assert any(
            row.startswith((f"{name} {least}unknown: the weights", f"{name} {least}unknown: too few")) for row in rows
        )
    known = f"{evidence['pareto_k']}, above the limit of 0.616"
    assert f"pareto k {known if len(weights) > 20 else 'unknown: too few weights'}" in rows


def test_negative_control_a_light_tail_tells_the_interval(world: World) -> None:
    distribution, evidence = qrs_report(LIGHT, target_tvd=0.05, pilot=50)
    assert "cannot" not in str(distribution)
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")

    def printed(figures: dict[str, Any]) -> list[str]:
        report = dataclasses.replace(outcome.report, distribution=distribution, evidence=figures)
        return [" ".join(line.split()) for line in str(report).splitlines()]

    rows = printed(evidence)
    assert f"tvd {evidence['tvd']}" in rows
    assert f"pareto k {evidence['pareto_k']}, at most the limit of 0.616" in rows
    assert "pareto k none: all weights are equal" in printed(qrs_report([0.0] * 400, beta=1.0)[1])
    without = {name: figure for name, figure in evidence.items() if not name.startswith("pareto")}
    assert f"tvd {evidence['tvd']}" in printed(without)


def test_what_a_pilot_takes_is_told_apart(world: World) -> None:
    distribution, evidence = qrs_report([0.0, 3.0] * 40, target_tvd=0.3, pilot=60)
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    report = dataclasses.replace(
        outcome.report,
        distribution=distribution,
        evidence=evidence,
        usage=Usage(attempts=80),
        rejected={"a rule": 3},
        passed_over=75,
    )
    assert report.headline().endswith("about 80 attempts per text, with a pilot of 60")
    rows = [" ".join(line.split()) for line in str(report).splitlines()]
    assert "pilot 60 attempts to set β, of which 60 satisfied the constraint" in rows
    assert rows[-2:] == [
        "rejected by a rule: 3 of 80",
        "rejected by the sampler: 15 of 16 that satisfied the constraint",
    ]
    assert report.rejections == {"the sampler": 75, "a rule": 3}
    only = dataclasses.replace(report, rejected={}, passed_over=60)
    assert "rejected by" not in str(only)
    decided = dataclasses.replace(only, evidence={**evidence, "pilot_returned": 20})
    rows = [" ".join(line.split()) for line in str(decided).splitlines()]
    assert "pilot 60 attempts to set β, of which 60 satisfied the constraint, and 20 of these were accepted" in rows
    assert rows[-1] == "rejected by the sampler: 60 of 61 that satisfied the constraint"


def test_what_the_token_limit_cut_off_is_counted_and_said(world: World) -> None:
    (outcome,) = GuardedGenerator(world.pipeline(), Keyword("zz"), seed=1, on_exhausted="none").run(
        "ab", max_new_tokens=3, budget=Budget(max_attempts=60)
    )
    drawn = GuardedGenerator(world.pipeline(), Length(min=0), seed=1).run(
        "ab", max_new_tokens=3, num_return_sequences=60
    )
    cut = sum(not draw.finished for draw in drawn[0].draws)
    assert 0 < cut < 60
    assert outcome.report.cut_off == cut, "the same attempts, as the seed is the same"
    assert f"; {cut} were cut off by max_new_tokens, so try a larger one; " in outcome.report.advice()
    assert drawn[0].report.cut_off == 0
    few = dataclasses.replace(outcome.report, cut_off=5)
    assert "cut off" not in few.advice()


def test_advice_names_the_place_in_words(world: World) -> None:
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    usage = Usage(attempts=9)
    report = dataclasses.replace(outcome.report, rejected={"it": 7, "b": 2}, usage=usage, places={"it": {"$.a": 5}})
    assert report.advice().startswith("'it' rejected 7 of 9 (5 at $.a), 'b' rejected 2 of the other 2; ")
    assert "where      $.a: 5 of 7" in str(report)
    report = dataclasses.replace(report, places={"it": {"not JSON": 5, "$": 2}})
    assert report.advice().startswith("'it' rejected 7 of 9 (5 not JSON), ")
