"""What errors and plans advise can be done by the call that they advise, and helps where that can be counted."""

from typing import Any

import pytest

from guardwrap import (
    Budget,
    Constraint,
    Count,
    Endpoint,
    Finished,
    Grammar,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    Prompt,
    Regex,
    Twisted,
    constraint,
)
from guardwrap.calls.pilot import takes_hint
from guardwrap.errors import UsageError
from guardwrap.outcomes import Remedy, Report
from guardwrap.samplers import imh, qrs
from guardwrap.testing import World, table_world

LETTERS = 'abcd{}": '


@pytest.fixture(scope="module")
def world() -> World:
    return table_world(2, letters=LETTERS, max_new_tokens=8, temperature=1.5)


@constraint
def has_ab(text: str) -> bool:
    return "ab" in text


# Per rule, whether most attempts are stopped at a token that a mask leaves out.
RULES: dict[str, tuple[Constraint, bool]] = {
    "keyword": (Keyword("abcd", whole_words=False), False),
    "keywords": (Keyword(["abc", "bcd"], match="all", whole_words=False), False),
    "ban": (Keyword(["a", "b", "c"], match="none", whole_words=False), True),
    "regex": (Regex("abcd"), False),
    "full match": (Regex("[ab]{6}", match="fullmatch"), True),
    "not": (~Regex("[abc]"), True),
    "shortest": (Length(min=40), False),
    "longest": (Length(max=1), True),
    "words": (Length(min=20, unit="words"), False),
    "count": (Count(max=0, pattern="[abc]"), True),
    "at least": (Count(min=8, pattern="a"), False),
    "schema": (JSONSchema({"type": "object"}), True),
    "grammar": (Grammar('start: "a" start | "b"'), True),
    "function": (has_ab & Length(min=40), False),
    "finished": (Finished() & Keyword("abcd", whole_words=False), False),
    "both": (Keyword("d", whole_words=False) & ~Regex("[abc]"), True),
}
PROPOSALS: dict[str, Any] = {
    "itself": False,
    "hint": Prompt("a{prompt}"),
    "mask": Masked(),
    "twist": Twisted(attempts=64),
}
SAMPLERS = {"rejection": "rejection", "qrs": qrs(), "imh": imh()}


def report_of(world: World, rule: Constraint, budget: Budget = Budget(24), **options: Any) -> Report:  # noqa: B008
    guarded = GuardedGenerator(world.pipeline(), rule, seed=1, batch_size=8, budget=budget)
    (outcome,) = guarded.run(world.prompt, **{**world.settings, "num_return_sequences": 400, **options})
    return outcome.report


@pytest.mark.slow
@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("rule", RULES)
def test_what_is_advised_is_accepted(world: World, rule: str, proposal: str) -> None:
    made, masks = RULES[rule]
    for sampler in SAMPLERS.values():
        options = {"proposal": PROPOSALS[proposal], "sampler": sampler}
        report = report_of(world, made, **options)
        assert report.remedies, report
        if report.ended != "impossible":
            assert (Remedy.MASK in report.remedies) is (masks and proposal == "itself"), report
        if Remedy.MASK in report.remedies:
            assert report_of(world, made, **{**options, "proposal": Masked()}).usage.attempts
        if Remedy.LENGTH in report.remedies:
            assert report_of(world, made, **options, max_new_tokens=9).usage.attempts
        if report.obstacle is not None:
            off = eval(f"dict({', '.join(each.removeprefix('pass ') for each in report.obstacle.remedies())})")
            assert report_of(world, made, **{**options, **off}).usage.attempts
        assert "Masked" not in report.advice(), "Python's advice names none"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [name for name, (_, masks) in RULES.items() if masks])
def test_a_mask_that_is_advised_helps(world: World, rule: str) -> None:
    made, _ = RULES[rule]
    before = report_of(world, made, Budget(400))
    after = report_of(world, made, Budget(400), proposal=Masked())
    assert Remedy.MASK in before.remedies
    assert after.accepted / after.usage.attempts > 1.5 * before.accepted / before.usage.attempts


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["keyword", "keywords", "at least", "regex"])
def test_negative_control_a_mask_does_not_help_where_it_is_not_advised(world: World, rule: str) -> None:
    made, _ = RULES[rule]
    before = report_of(world, made, Budget(2000))
    after = report_of(world, made, Budget(2000), proposal=Masked())
    assert Remedy.MASK not in before.remedies
    # Only the last token of a text is left out, if no text that ends with it passes.
    assert after.stopped == before.stopped == 0
    assert after.usage.tokens / after.usage.attempts >= before.usage.tokens / before.usage.attempts - 1


def test_a_text_that_no_setting_allows_is_no_reason_for_advice_on_settings(world: World) -> None:
    """The prompt alone violates the rule, so that another top_k or length cannot help, nor another prompt's words."""
    report = report_of(world, Regex("[bcd]+", match="fullmatch", on="full"), top_k=2)
    assert report.ended == "impossible"
    assert report.remedies == (Remedy.CONSTRAINT,)
    assert report.advice().endswith("; weaken the constraint")


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"min_new_tokens": 8}, "pass min_new_tokens=0"),
        ({"min_length": 9}, "pass min_length=0"),
        ({"max_new_tokens": 2}, "raise max_new_tokens"),
    ],
)
def test_settings_of_the_model_can_be_turned_off_as_advised(
    world: World, options: dict[str, Any], setting: str
) -> None:
    """They may come from the model's own configuration, from which a call cannot leave them out."""
    rule = Regex("a" if "min" in setting else "abc", match="fullmatch") & Finished()
    config = world.pipeline().model.generation_config
    before = {name: getattr(config, name) for name in options if "max" not in name}
    try:
        for name in before:
            setattr(config, name, options[name])
        more = {name: value for name, value in options.items() if name not in before}
        report = report_of(world, rule, Budget(300), **more)
        assert report.obstacle is not None
        assert setting in report.advice()
        off = {"max_new_tokens": 8} if "raise" in setting else eval(f"dict({setting.removeprefix('pass ')})")
        assert report_of(world, rule, Budget(2000), **{**more, **off}).accepted
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def test_greedy_search_is_not_advised_a_budget(world: World) -> None:
    report = report_of(world, RULES["keyword"][0], do_sample=False, temperature=None, num_return_sequences=1)
    assert report.ended == "deterministic"
    assert report.remedies == (Remedy.SAMPLING, Remedy.CONSTRAINT)
    assert report.advice().endswith("let the model sample or weaken the constraint")


@pytest.mark.slow
def test_a_plan_advises_a_hint_only_where_one_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = GuardedGenerator(world.pipeline(), Keyword("dcba", whole_words=False), seed=1)
    asked = {**world.settings, "pilot": 200}
    assert "proposal=Prompt" in guarded.plan(world.prompt, **asked).advice
    assert "proposal=Prompt" not in guarded.plan(world.prompt, **asked, proposal=Prompt("a{prompt}")).advice
    truncated = {**asked, "top_k": 3, "sampler": "qrs"}
    assert "proposal=Prompt" not in guarded.plan(world.prompt, **truncated).advice
    with pytest.raises(UsageError, match="top_k"):
        guarded.run(world.prompt, **{**world.settings, "top_k": 3}, sampler="qrs", proposal=Prompt("a{prompt}"))
    monkeypatch.setattr(guarded.session.call_class, "reads_text", False)
    advice = guarded.plan(world.prompt, **asked).advice
    assert "prompt" not in advice.replace("the prompt had", "")
    assert "; cheaper: train an adapter or weaken the constraint" in advice


def test_an_endpoint_trains_no_adapter() -> None:
    guarded = GuardedGenerator(Endpoint("http://127.0.0.1:9/v1", model="m"), Length(max=3))
    assert not guarded.session.trains
    assert takes_hint(guarded.session, ["a"], {})


def test_a_twist_that_is_too_long_advises_a_mask_only_if_one_leaves_something_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardwrap.calls.twisting.MOST_VALUES", 20)
    for name, masks in (("keyword", False), ("ban", True)):
        guarded = GuardedGenerator(world.pipeline(), RULES[name][0], proposal=Twisted(), seed=1)
        with pytest.raises(UsageError, match="set max_new_tokens to that at most") as raised:
            guarded.run(world.prompt, **world.settings)
        assert ("Masked()" in str(raised.value)) is masks
