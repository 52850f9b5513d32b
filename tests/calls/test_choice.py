"""The choice of ``sampler="auto"``."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Prompt, Regex
from guardwrap.calls import choice
from guardwrap.engine.scheduling.randomness import seed_for
from guardwrap.errors import UsageError
from guardwrap.samplers import auto, sampler_named
from guardwrap.testing import World, goodness_of_fit, table_world

EASY, RARE = Keyword("a", whole_words=False), Keyword("hgab", whole_words=False)


@pytest.fixture(scope="module")
def world() -> World:
    return table_world(3, letters="abcdefgh", max_new_tokens=12)


def guarded_of(world: World, rule: Any, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), rule, **{"sampler": "auto", "seed": 1, **options})


def test_what_often_passes_is_drawn_exactly(world: World) -> None:
    (outcome,) = guarded_of(world, EASY).run(world.prompt, **world.settings)
    assert outcome.report.sampler == "rejection"
    assert outcome.report.drawn_from.startswith("exactly")
    (note,) = [note for note in outcome.report.notes if "auto" in note]
    assert note.startswith("sampler='auto' chose rejection from the model itself: it is exact, and twice its cost is ")
    assert note.endswith("; its plan took 8 attempts, which are not part of this report's cost")
    hinted = guarded_of(world, EASY, proposal=Prompt("b{prompt}")).run(world.prompt, **world.settings)[0]
    assert hinted.report.drawn_from.startswith("exactly"), "a hint is not needed"


@pytest.mark.slow
def test_what_rarely_passes_is_drawn_from_a_twist_or_not_at_all(world: World) -> None:
    options = {"num_return_sequences": 64, **world.settings}
    wide = Budget(max_attempts=20_000)
    outcomes = [
        guarded_of(world, RARE, sampler=auto(target_tvd=0.2), budget=wide).run(world.prompt, **options)[0]
        for _ in range(2)
    ]
    assert outcomes[0].texts == outcomes[1].texts, "the choice and the texts belong to the seed"
    report = outcomes[0].report
    assert (report.sampler, report.proposal, report.accepted) == ("qrs", "the model itself, twisted", 64)
    assert report.evidence["near_enough"] == 0.2
    assert any("at a TVD of 0.2, where exact rejection takes about" in note for note in report.notes)
    with pytest.raises(
        UsageError, match=r"no way within the budget at a TVD of 0.05 \(the model itself, rejection: .*"
    ):
        guarded_of(world, RARE, budget=Budget(max_attempts=50)).run(world.prompt, **options)
    none = Budget(max_attempts=None)
    (exact,) = guarded_of(world, Keyword("ha", whole_words=False), budget=none).run(world.prompt, **world.settings)
    assert exact.report.sampler == "rejection", "there is no limit"


def test_a_budget_of_no_time_to_speak_of_has_no_way(world: World) -> None:
    short = Budget(max_seconds=1e-9)
    with pytest.raises(UsageError, match="raise max_seconds"):
        guarded_of(world, EASY, budget=short).run(world.prompt, **world.settings)


@pytest.mark.slow
def test_texts_follow_the_model_whatever_the_plan_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts of the plan decide, so they must not be those of the run."""
    world = table_world(letters="ab", max_new_tokens=3)
    rule = ~Regex("^b")
    law = world.gold(rule)

    def drawn(seed_of: Callable[[int, str], int]) -> list[bool]:
        """Return whether the first attempt passes, in calls whose plan saw at most half of its attempts pass."""
        seen: list[bool] = []
        for seed in range(300):
            guarded = guarded_of(world, rule, seed=seed)
            plan = guarded.plan(world.prompt, seed=seed_of(seed, "auto None"), **world.settings)
            if plan.forecasts[0].acceptance.value <= 0.5:
                seen += (guarded.run(world.prompt, **world.settings)[0].report.usage.attempts == 1,)
        return seen

    def same(seed: int, purpose: str) -> int:
        return seed

    rate = sum(p for ids, p in world.law().items() if ids in law)
    shares = drawn(seed_for)
    expected = {True: rate, False: 1 - rate}
    assert goodness_of_fit(shares, expected) > 1e-3
    monkeypatch.setattr(choice, "seed_for", same)
    assert goodness_of_fit(drawn(same), expected) < 1e-3, "negative control: the run repeats the attempts of the plan"


def test_it_is_named_wherever_samplers_are(world: World, tmp_path: Any) -> None:
    assert sampler_named("auto").name == "auto"
    assert sampler_named({"auto": {"target_tvd": 0.1}}).name == "auto"
    for wrong in (0.0, 1.0):
        with pytest.raises(UsageError, match="give a number between 0 and 1"):
            auto(target_tvd=wrong)
    file = tmp_path / "rule.yaml"
    file.write_text("guardwrap: 1\nconstraint: {kind: keyword, words: [a], whole_words: false}\nsampler: {auto: {}}\n")
    guarded = GuardedGenerator(world.pipeline(), file, seed=1)
    assert guarded.run(world.prompt, **world.settings)[0].report.sampler == "rejection"
    guarded = guarded_of(world, EASY)
    streamed = list(guarded.stream(iter([world.prompt] * 3), constraint_each=iter([None] * 3), **world.settings))
    assert [outcome.report.sampler for outcome in streamed] == ["rejection"] * 3
    (awaited,) = asyncio.run(guarded.arun(world.prompt, **world.settings))
    assert "auto" in awaited.report.notes[-1]
    assert len(guarded([world.prompt] * 2, **world.settings)) == 2
    assert guarded.run([], **world.settings) == []
    assert seed_for(1, "auto None") != 1
    with pytest.raises(UsageError, match="sampler='auto' is chosen for a whole call"):
        guarded.generate(world.tokenizer(world.prompt, return_tensors="pt")["input_ids"], **world.settings)
