"""Facts of reports and plans, with their words: decisions follow from the facts alone."""

import json
import math
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Length, Regex, Report, Twisted
from guardwrap.outcomes import (
    EXACT,
    ITSELF,
    Closeness,
    Distribution,
    Estimate,
    Obstacle,
    Origin,
    Shape,
    bounded,
    estimate_of,
    exactly,
    facts,
    heavy_tail,
    plain,
    tail_and_limit,
    without_end,
)
from guardwrap.samplers import Sampler, rejection
from guardwrap.testing import World, llama_world

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    "estimate", [Estimate(0.5, 0.1, math.inf), Estimate(0.0, -math.inf, 2.0), Estimate(math.inf, 3.0, math.inf)]
)
def test_estimates_are_strict_json_and_are_read_again(estimate: Estimate) -> None:
    written = json.loads(json.dumps(plain(estimate), allow_nan=False))
    assert estimate_of(written) == estimate


def test_figures_within_lists_and_mappings_are_plain() -> None:
    figures = {1: (exactly(2.0), math.nan), "steps": [3, None]}
    assert plain(figures) == {"1": [{"value": 2.0, "low": 2.0, "high": 2.0}, None], "steps": [3, None]}


def test_estimates_in_words() -> None:
    assert str(Estimate(0.5, 0.1, math.inf)) == "0.5 [0.1, ∞]"
    assert bounded(Estimate(1790.4, 12.0, 2000.0)) == "1790 [12, 2000]"
    assert bounded(Estimate(math.inf, 12.0, math.inf)) == "at least 12 (95 %)"
    assert bounded(Estimate(0.5, 0.1, math.inf)) == "0.5 [0.1, ∞]"
    assert bounded(Estimate(math.inf, -math.inf, math.inf)) == "unknown"


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(3.68e-9, 9.19e-11, 0.0183), "between 9.19e-11 and 0.0183 (95 %)"),
        (Estimate(4.05e7, 8.14, 1.62e9), "between 8.14 and 1.62e+09 (95 %)"),
        (Estimate(0.01, 0.0, 0.3), "between 0 and 0.3 (95 %)"),
        (Estimate(2.0, 0.01, 10.0), "2 [0.01, 10]"),
        (Estimate(0.0, 0.0, 0.0), "0 [0, 0]"),
        (Estimate(0.5, -0.1, 2.0), "0.5 [-0.1, 2]"),
    ],
)
def test_a_value_is_shown_only_if_its_interval_spans_no_factor_above_1000(estimate: Estimate, words: str) -> None:
    assert bounded(estimate) == words


@pytest.mark.parametrize(
    ("k", "words", "tail"),
    [
        (Estimate(0.8, 0.7, 0.9), "0.8 [0.7, 0.9], above the limit of 0.6", 0.8),
        (Estimate(0.6, 0.5, 0.7), "0.6 [0.5, 0.7], at most the limit of 0.6", None),
        (exactly(-math.inf), "none: all weights are equal", None),
        (UNKNOWN, "unknown: too few weights", math.nan),
        (Estimate(0.65, 0.5, 0.8), "0.65 [0.5, 0.8], above the limit of 0.6", math.nan),  # not with more texts
    ],
)
def test_a_tail_is_heavy_above_its_limit(k: Estimate, words: str, tail: float | None) -> None:
    assert tail_and_limit(k, 0.6) == words
    assert heavy_tail({"pareto_k": k, "pareto_k_limit": 0.6}) == pytest.approx(tail, nan_ok=True)
    assert heavy_tail({"pareto_k": k}) is None


@pytest.mark.parametrize(("k", "tail"), [(Estimate(0.9, 0.2, 1.6), math.nan), (Estimate(1.5, 0.8, 2.2), 1.5)])
def test_few_weights_tell_of_a_heavy_tail_only_if_all_of_the_interval_does(k: Estimate, tail: float) -> None:
    assert heavy_tail({"pareto_k": k, "pareto_k_limit": 0.3}) == pytest.approx(tail, nan_ok=True)


def test_a_distance_without_an_upper_end_has_a_lower_one() -> None:
    heavy = "the weights' tail is too heavy (Pareto k 0.8)"
    assert without_end(Estimate(0.2, 0.1, 1.0), 0.8) == f"at least 0.1 (95 %), upper end unknown: {heavy}"
    assert without_end(Estimate(0.2, 0.0, 1.0), 0.8) == f"unknown: {heavy}"


RULE = Regex("b", name="the sampler")
"""A rule that is called like what reports call the sampler."""


@pytest.fixture(scope="module")
def world() -> World:
    return llama_world(letters="abcdef")


def reports_of(world: World) -> list[Report]:
    """Return reports of exact, approximate and other texts, of none, and of those that a deadline biased."""
    calls: list[dict[str, Any]] = [
        {},
        {"proposal": Twisted()},
        {"proposal": Twisted(), "sampler": {"qrs": {"pilot": 5}}},
        {"proposal": Twisted(), "sampler": {"qrs": {"pilot": 500}}},
        {"constraints": Keyword("zz"), "budget": Budget(max_attempts=20)},
        {"budget": Budget(deadline=60)},
    ]
    guarded = GuardedGenerator(
        world.pipeline(), Regex("b"), seed=1, on_exhausted="none", budget=Budget(max_attempts=99)
    )
    return [guarded.run(world.prompt, num_return_sequences=3, **call, **world.settings)[0].report for call in calls]


@pytest.fixture(scope="module")
def reports(world: World) -> list[Report]:
    return reports_of(world)


def decided(report: Report) -> tuple[str, list[str], Any]:
    """Return what a report decides by the distribution: its first line, which rows it has, and its JSON."""
    data = {name: value for name, value in report.to_dict().items() if name not in ("drawn_from", "usage")}
    return report.headline(), [line[:15] for line in str(report).splitlines()[1:]], (data, report.advice())


@pytest.mark.parametrize("wrong", [False, True])
def test_decisions_do_not_depend_on_words(
    world: World, reports: list[Report], monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """The words are those of another language, or those of another fact."""
    assert {each.distribution.closeness for each in reports} == {
        Closeness.EXACT, Closeness.APPROXIMATE, Closeness.OTHER, Closeness.NOTHING, Closeness.BIASED
    }  # fmt: skip
    known, usual = [decided(each) for each in reports], facts._BEGINNINGS
    words = [*list(usual.values())[1:], usual[Closeness.EXACT]] if wrong else [f"Verteilung {name}" for name in usual]
    monkeypatch.setattr(facts, "_BEGINNINGS", dict(zip(usual, words, strict=True)))
    after = reports_of(world)
    assert [decided(each) for each in after] == known
    assert not any(each.drawn_from.startswith(begins) for each, begins in zip(after, DRAWN_FROM, strict=True))


DRAWN_FROM = [
    "exactly your model's own distribution, given the constraint (g)",
    "not your model's own distribution: tokens were twisted (g')",
    "approximately your model's own distribution, given the constraint (g): QRS, β = ",
    "nothing: QRS first needs 500 attempts that satisfy the constraint, by qrs(pilot=500), and had ",
    "nothing",
    "biased by a deadline",
]


def test_the_words_that_users_read_and_store(reports: list[Report]) -> None:
    for report, words in zip(reports, DRAWN_FROM, strict=True):
        assert report.drawn_from.startswith(words)
        assert report.to_dict()["drawn_from"] == report.drawn_from
        assert report.to_dict()["distribution"] == report.distribution.closeness.value
        assert report.to_dict()["proposal"] == report.proposal


def test_plans_do_not_depend_on_words(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned() -> tuple[Any, ...]:
        rare = GuardedGenerator(world.pipeline(), Regex("^bad"), seed=1, proposal=Twisted())
        often = GuardedGenerator(world.pipeline(), Regex("b"), seed=1)
        plan = rare.plan(world.prompt, pilot=64, **world.settings)
        (chosen,) = often.run(world.prompt, sampler="auto", proposal=Twisted(), **world.settings)
        return [way.drawn_from for way in plan.ways], plan.spent[0], chosen.report.sampler, chosen.texts

    before = planned()
    assert before[0].count(Origin(shape=Shape.TWISTED)) == 1, "it is the call's own way, and not tried again"
    assert before[2] == "rejection", "from the model itself, which is cheap enough"
    monkeypatch.setattr(Origin, "__str__", lambda self: "the model itself")
    assert planned() == before


def test_a_source_that_is_called_like_another_one_is_not_taken_for_it() -> None:
    twisted, named = Origin(shape=Shape.TWISTED), Origin("the model itself, twisted")
    assert str(twisted) == str(named) == "the model itself, twisted"
    assert twisted != named
    assert Origin("the model itself") != ITSELF
    assert str(twisted.accepted()) == "not your model's own distribution: tokens were twisted (g')"
    by_server = Origin(shape=Shape.MASKED, by="by the server for 'x'")
    assert str(by_server) == "the model itself, masked by the server for 'x'"
    assert by_server.accepted().detail == "tokens were masked by the server for 'x' (g')"
    assert Origin("the prompt 'x'", Shape.MASKED).accepted().detail == (
        "attempts came from the prompt 'x', masked (g')"
    )


def test_a_rule_may_be_called_like_the_sampler(world: World) -> None:
    """Its rejections are those of a rule in plans, telemetry and advice."""
    guarded = GuardedGenerator(world.pipeline(), RULE, seed=1, on_exhausted="none")
    plan = guarded.plan(world.prompt, pilot=40, **world.settings)
    (outcome,) = guarded.run(world.prompt, budget=Budget(max_attempts=40), num_return_sequences=40, **world.settings)
    report = outcome.report
    assert report.passed_over == 0
    assert report.rejected == {RULE.title: 40 - report.accepted} == report.rejections
    assert plan.forecasts[0].rejections.keys() == {RULE.title}
    (own,) = guarded.run(world.prompt, sampler={"qrs": {"pilot": 4}}, proposal=Twisted(), **world.settings)
    assert own.report.passed_over > 0
    assert own.report.rejections["the sampler"] == own.report.passed_over + own.report.rejected.get(RULE.title, 0)


@pytest.mark.parametrize(
    ("described", "closeness", "begins"),
    [
        ("exactly what I like", Closeness.UNKNOWN, "exactly what I like"),
        (Distribution(Closeness.EXACT, "by my own proof"), Closeness.EXACT, f"{EXACT}: by my own proof"),
    ],
)
def test_a_sampler_of_ones_own_says_what_it_draws(
    world: World, described: Distribution | str, closeness: Closeness, begins: str
) -> None:
    """In words, which are shown and not believed, or as a fact."""
    sampler: Sampler = rejection._replace(name="own", report=lambda state: (described, {}))
    guarded = GuardedGenerator(world.pipeline(), Length(min=0), sampler=sampler, seed=1)
    (outcome,) = guarded.run(world.prompt, **world.settings)
    assert outcome.report.distribution.closeness is closeness
    assert outcome.report.drawn_from == begins
    assert ("as your model writes it" in outcome.report.headline()) == (closeness is Closeness.EXACT)


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        (
            Obstacle(("top_k=50",), 0.0031),
            "top_k=50 leaves out all possible first tokens, which have probability 0.0031 without it",
        ),
        (
            Obstacle(("a", "b=1", "c"), 0.25),
            "a, b=1 and c leave out all possible first tokens, which have probability 0.25 without them",
        ),
        (
            Obstacle(("top_k=50",), 0.25, after=1, at_least=True),
            "top_k=50 leaves out all tokens that are possible after the first token, which have probability "
            "at least 0.25 without it",
        ),
        (
            Obstacle(("top_k=50",), 0.25, after=3, textless=True),
            "top_k=50 leaves out all tokens that are possible after the first 3 tokens except those without visible "
            "text, which have probability 0.25 without it",
        ),
        (
            Obstacle(("max_new_tokens=2",), 1.0, after=2),
            "max_new_tokens=2 ends every text too early, and the tokens that are possible after the first 2 tokens "
            "have probability 1 without it",
        ),
    ],
)
def test_obstacles_in_words(obstacle: Obstacle, words: str) -> None:
    assert str(obstacle) == words


def test_each_setting_has_a_remedy() -> None:
    obstacle = Obstacle(("top_k=50", "max_new_tokens=2", "bad_words_ids"), 0.25)
    assert obstacle.names == ["top_k", "max_new_tokens", "bad_words_ids"]
    assert obstacle.remedies() == ["pass top_k=0", "raise max_new_tokens", "leave out bad_words_ids"]
