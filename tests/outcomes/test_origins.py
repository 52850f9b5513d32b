"""Facts of reports and plans: decisions follow from them, whatever their words are."""

from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Length, Regex, Report, Twisted
from guardwrap.outcomes import EXACT, ITSELF, Closeness, Distribution, Origin, Shape, origins
from guardwrap.samplers import Sampler, rejection
from guardwrap.testing import World, llama_world

RULE = Regex("b", name="the sampler")
"""A rule that is called like what reports call the sampler."""


@pytest.fixture(scope="module")
def world() -> World:
    return llama_world(letters="abcdef")


def reports(world: World) -> list[Report]:
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


def decided(report: Report) -> tuple[str, list[str], Any]:
    """Return what a report decides by the distribution: its first line, which rows it has, and its JSON."""
    data = {name: value for name, value in report.to_dict().items() if name not in ("drawn_from", "usage")}
    return report.headline(), [line[:15] for line in str(report).splitlines()[1:]], (data, report.advice())


@pytest.mark.parametrize("wrong", [False, True])
def test_decisions_do_not_depend_on_words(world: World, monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    """The words are those of another language, or those of another fact."""
    before = reports(world)
    assert {each.distribution.closeness for each in before} == {
        Closeness.EXACT, Closeness.APPROXIMATE, Closeness.OTHER, Closeness.NOTHING, Closeness.BIASED
    }  # fmt: skip
    known, usual = [decided(each) for each in before], origins._BEGINNINGS
    words = [*list(usual.values())[1:], usual[Closeness.EXACT]] if wrong else [f"Verteilung {name}" for name in usual]
    monkeypatch.setattr(origins, "_BEGINNINGS", dict(zip(usual, words, strict=True)))
    after = reports(world)
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


def test_the_words_that_users_read_and_store(world: World) -> None:
    for report, words in zip(reports(world), DRAWN_FROM, strict=True):
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
