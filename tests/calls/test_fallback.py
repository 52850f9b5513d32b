"""Fallbacks: a constant text is judged before anything is drawn, and a withheld one is named in the error."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from guardwrap import Budget, Constraint, Endpoint, Fallback, GuardedGenerator, Keyword, Length, Regex, constraint
from guardwrap.constraints import Python
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.errors import BudgetExhausted, CheckFailed, Deterministic, UsageError
from guardwrap.outcomes import Draw, Outcome
from guardwrap.testing import llama_world

WORLD = llama_world(max_new_tokens=3)
NEVER = Regex("never", name="says never")
FEW = Budget(max_attempts=2)


@dataclass(frozen=True, eq=False, repr=False)
class Model(Constraint):
    """A rule that stands in for one that runs a model."""

    judged: list[str]
    passes: Callable[[Draw], bool]
    name: str = "a model"

    cost = 2

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        self.judged.extend(draw.text for draw in draws)
        return list(map(self.passes, draws))

    def spec(self) -> dict[str, Any]:
        return {"kind": "model"}


def made(rule: Any, on_exhausted: Any = "raise") -> GuardedGenerator:
    return GuardedGenerator(WORLD.pipeline(), rule, budget=FEW, on_exhausted=on_exhausted, seed=1)


def called(guarded: GuardedGenerator, way: str, **options: Any) -> list[Outcome]:
    """Return the outcomes of a call of a wrapper in one of the ways to call it."""
    options = {**WORLD.settings, **options}
    if way == "run":
        return guarded.run("ab", **options)
    if way == "stream":
        return list(guarded.stream(["ab"], **options))
    return asyncio.run(guarded.arun("ab", **options))


WAYS = ["run", "stream", "arun"]


@pytest.mark.parametrize(
    ("rule", "title"),
    [
        (NEVER, "says never"),
        (Keyword("x") & NEVER, "says never"),
        (Length(max=1, unit="tokens", name="one token"), "one token"),
        (Regex("^never", on="answer", name="the answer is never"), "the answer is never"),
        (Python(lambda text: text == "no", name="the function"), "the function"),
        (Regex("never", on="full") | NEVER & Regex("."), None),
    ],
)
def test_a_constant_that_breaks_a_rule_is_an_error_of_the_wrapper(rule: Constraint, title: str | None) -> None:
    if title is None:  # the prompt may satisfy it
        made(rule, Fallback("x y"))
        return
    with pytest.raises(UsageError, match=f"the fallback violates the constraint: '{title}' rejects it; give a text"):
        made(rule, Fallback("x y"))


def test_an_endpoint_judges_it_too() -> None:
    server = Endpoint("http://127.0.0.1:9/v1", model="m")
    with pytest.raises(UsageError, match="'says never' rejects it"):
        GuardedGenerator(server, NEVER, on_exhausted=Fallback("x"))


def test_what_cannot_be_judged_without_a_prompt_is_judged_when_it_is_needed() -> None:
    """The first rule reads the prompt as a view, the second in a function, and the third raises."""

    @constraint
    def repeats(prompt: str, text: str) -> bool:
        return text == prompt

    @constraint
    def broken(text: str) -> bool:
        raise ValueError(text)

    for rule in (Regex("^abab$", on="full"), repeats):
        for way in WAYS:
            (outcome,) = called(made(rule & Regex("ab"), Fallback("ab")), way, max_new_tokens=1)
            assert (outcome.texts, outcome.report.fallback) == (("ab",), True)
            assert "; the fallback was returned\n" in str(outcome.report)
        (outcome,) = made(rule, Fallback("cd")).run("ab", max_new_tokens=1)
        assert (outcome.texts, outcome.report.fallback_rejected_by) == ((), rule.title)
    with pytest.raises(CheckFailed, match="broken"):
        made(broken, Fallback("ab")).run("ab")


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_that_runs_a_model_is_asked_once_and_at_the_first_call(way: str) -> None:
    judged: list[str] = []
    rejects = Model(judged, lambda draw: draw.text != "no")
    guarded = made(rejects, Fallback("no"))
    assert judged == [], "making a wrapper runs no model"
    with pytest.raises(UsageError, match="'a model' rejects it"):
        called(guarded, way)
    assert judged == ["no"], "nothing was drawn"
    judged.clear()
    guarded = made(rejects, Fallback("yes"))
    for _ in range(2):
        called(guarded, way)
    assert judged.count("yes") == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_call_decides_for_itself(way: str) -> None:
    guarded = made(NEVER)
    (outcome,) = called(guarded, way, on_exhausted=Fallback("never"))
    assert (outcome.texts, outcome.report.fallback) == (("never",), True)
    (outcome,) = called(guarded, way)
    assert outcome.texts == (), "the next call has the wrapper's own again"
    with pytest.raises(UsageError, match="'says never' rejects it"):
        called(guarded, way, on_exhausted=Fallback("x"))
    with pytest.raises(UsageError, match="did you mean 'none'"):
        called(guarded, way, on_exhausted="non")
    with pytest.raises(UsageError, match="'has a z' rejects it"):  # the wrapper's fallback under the call's rule
        called(made(NEVER, Fallback("never")), way, constraints=Regex("z", name="has a z"))


def test_a_call_in_the_format_of_the_pipeline_decides_for_itself() -> None:
    guarded = made(NEVER)
    options = {**WORLD.settings, "return_full_text": False}
    with pytest.raises(BudgetExhausted):
        guarded("ab", **options)
    assert guarded("ab", on_exhausted="none", **options) == [{"generated_text": None}]
    assert guarded("ab", on_exhausted=Fallback("never"), **options) == [{"generated_text": "never"}]
    lazily = guarded((prompt for prompt in ["ab"]), on_exhausted="none", **options)
    assert list(lazily) == [[{"generated_text": None}]]
    with pytest.raises(BudgetExhausted):
        made(NEVER, "none")("ab", on_exhausted="raise", **options)


def test_generate_has_no_place_for_a_missing_text() -> None:
    ids = WORLD.tokenizer("ab", return_tensors="pt")["input_ids"]
    with pytest.raises(UsageError, match="generate has no place for a missing text"):
        made(NEVER).generate(ids, on_exhausted="none", **WORLD.settings)
    assert made(Length(min=0)).generate(ids, on_exhausted="raise", **WORLD.settings).shape[0] == 1


def test_the_error_of_a_withheld_fallback_names_the_rule() -> None:
    guarded = made(NEVER, Fallback(lambda prompt: "a secret"))
    with pytest.raises(BudgetExhausted, match="the fallback was withheld, because 'says never' rejects it") as caught:
        guarded("ab", **WORLD.settings)
    assert "secret" not in str(caught.value)
    assert caught.value.report.fallback_rejected_by == "says never"
    with pytest.raises(
        Deterministic, match="the fallback was withheld, because 'says never' rejects it; pass"
    ) as greedy:
        guarded("ab", do_sample=False)
    assert "secret" not in str(greedy.value)
    with pytest.raises(BudgetExhausted) as none:
        made(NEVER)("ab", **WORLD.settings)
    assert "fallback" not in str(none.value)


def file_of(text: str | None, pattern: str = "never|ask") -> ConstraintFile:
    return ConstraintFile(Regex(pattern, name="asks"), fallback=text)


@pytest.mark.parametrize("way", WAYS)
def test_the_fallback_of_a_constraint_file_applies_unless_an_option_says_otherwise(way: str) -> None:
    (outcome,) = called(made(file_of("ask")), way)
    assert (outcome.texts, outcome.report.fallback) == (("ask",), True)
    (outcome,) = called(made(file_of("ask"), Fallback("never")), way)
    assert outcome.texts == ("never",)
    (outcome,) = called(made(file_of("ask"), "none"), way)
    assert outcome.texts == ()
    (outcome,) = called(made(file_of("ask")), way, on_exhausted="none")
    assert outcome.texts == ()
    (outcome,) = called(made(file_of("ask")), way, constraints=file_of(None))
    assert outcome.texts == ()  # the file of the call replaces the one of the wrapper
    (outcome,) = called(made(NEVER), way, constraints=file_of("ask again"))
    assert outcome.texts == ("ask again",)


def test_a_fallback_of_a_file_that_breaks_a_rule_is_an_error() -> None:
    with pytest.raises(UsageError, match="'asks' rejects it"):
        made(file_of("no"))
    with pytest.raises(UsageError, match="share their fallback"):
        made(NEVER).run("ab", constraint_each=[file_of("ask")], **WORLD.settings)
