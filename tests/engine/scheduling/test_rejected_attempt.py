"""Rejected attempts: who asks for them gets each one, with its reasons, and nobody else sees a text."""

import logging
from typing import Any

import pytest

from guardwrap import Constraint, Draw, GuardedGenerator, JSONSchema, Regex, Verdict
from guardwrap.constraints.explanation import Rejection
from guardwrap.engine.scheduling.request import RejectedAttempt
from guardwrap.testing import llama_world

WORLD = llama_world(max_new_tokens=3)
RULE = ~Regex("[ae]", name="vowel") & Regex("b", name="has a b")
SETTINGS: dict[str, Any] = {**WORLD.settings, "seed": 3, "num_return_sequences": 3}


def rejected(constraint: Constraint = RULE, **options: Any) -> tuple[list[RejectedAttempt], list[Any]]:
    seen: list[RejectedAttempt] = []
    guarded = GuardedGenerator(WORLD.pipeline(), constraint)
    outcomes = list(guarded.stream(["a", "b"], on_rejected=seen.append, **{**SETTINGS, **options}))
    return seen, outcomes


def test_each_attempt_that_violates_the_constraint_is_passed_on_in_order() -> None:
    seen, outcomes = rejected()
    for number, outcome in enumerate(outcomes):
        own = [each for each in seen if each.prompt == number]
        assert len(own) == sum(outcome.report.rejections.values()) > 0
        assert [each.attempt for each in own] == sorted({each.attempt for each in own})
        for part, count in outcome.report.rejections.items():
            assert sum(each.part == part for each in own) == count
    assert not any(RULE.accepts(each.draw.text) for each in seen if each.whole)
    assert {each.whole for each in seen} == {True, False}


def test_on_request_they_are_drawn_to_their_end_and_the_texts_stay_the_same() -> None:
    stopped, before = rejected()
    whole, outcomes = rejected(whole_rejected=True)
    assert [each.texts for each in outcomes] == [each.texts for each in before]
    assert all(each.whole and not RULE.accepts(each.draw.text) for each in whole)
    for each in (stopped, whole):  # attempts at several prompts end in another order
        each.sort(key=lambda one: (one.prompt, one.attempt))
    assert [(each.prompt, each.attempt) for each in whole] == [(each.prompt, each.attempt) for each in stopped]
    pairs = list(zip(whole, stopped, strict=True))
    assert all(long.draw.text.startswith(short.draw.text) for long, short in pairs)
    assert any(len(long.draw.text) > len(short.draw.text) for long, short in pairs)


def test_texts_are_the_same_with_and_without_it() -> None:
    _, outcomes = rejected()
    plain = GuardedGenerator(WORLD.pipeline(), RULE).run(["a", "b"], **SETTINGS)
    assert [each.texts for each in outcomes] == [each.texts for each in plain]


def test_what_only_the_sampler_rejects_is_not_passed_on() -> None:
    seen, (outcome, _) = rejected(Regex(""), sampler="imh", top_k=0)
    assert outcome.report.usage.attempts >= 3
    assert seen == []


def test_a_whole_attempt_is_explained_by_all_parts_and_another_one_by_the_one_that_stopped_it() -> None:
    def attempt(**fields: Any) -> RejectedAttempt:
        known = {"prompt": 0, "attempt": 0, "draw": Draw("", (1,), "a"), "part": "has a b", "place": None}
        return RejectedAttempt(**{**known, "whole": True, "constraint": RULE, **fields})

    assert [each.part for each in attempt().explain().rejections] == ["~vowel", "has a b"]
    stopped = "stopped early: no continuation can pass"
    assert attempt(whole=False).explain().rejections == (Rejection("has a b", stopped),)
    place = Rejection("has a b", stopped, "$.a")
    assert attempt(whole=False, place="$.a").explain().rejections == (place,)
    unread = Rejection("has a b", f"not JSON, {stopped}")
    assert attempt(whole=False, place="not JSON").explain().rejections == (unread,)
    once = attempt(draw=Draw("", (1,), "b"), part="a model that changed its mind")
    assert once.explain().rejections == (Rejection("a model that changed its mind"),)
    of_json = attempt(constraint=JSONSchema({"type": "string"}, name="word"), draw=Draw("", (1,), "1"), part="word")
    assert str(of_json.explain().rejections[0]) == "'word' (1 is not of type 'string')"


@pytest.mark.parametrize(("level", "texts"), [(logging.INFO, False), (logging.DEBUG, True)])
def test_results_are_logged_as_info_and_texts_as_debug_only(
    level: int, texts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, logger="guardwrap"):
        seen, outcomes = rejected()
    infos = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert sorted(infos) == [f"prompt {n}: {outcome.report.headline()}" for n, outcome in enumerate(outcomes, 1)]
    debugs = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    told = [f"prompt {r.prompt + 1}: attempt {r.attempt + 1} rejected by {r.part!r}: {r.draw.text!r}" for r in seen]
    assert debugs == (told if texts else [])


def test_attempts_for_estimates_have_no_result_to_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="guardwrap"):
        GuardedGenerator(WORLD.pipeline(), RULE, seed=1).attempts("a", 5, weigh=False, **WORLD.settings)
    assert not [each for each in caplog.records if each.name.startswith("guardwrap")]  # transformers has warnings too


class Late(Constraint):
    """A rule without a verdict on prefixes."""

    def check(self, draws: Any, /) -> list[bool]:
        return [draw.text.startswith("b") for draw in draws]

    def verdict(self, prefix: str, /) -> Verdict:
        return Verdict.UNDECIDED

    def spec(self) -> dict[str, Any]:
        return {"kind": "late"}


def test_attempts_without_early_abort_are_whole() -> None:
    seen, _ = rejected(Late())
    assert seen
    assert all(each.whole and not each.explain().accepted for each in seen)
