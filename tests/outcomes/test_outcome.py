"""Budgets, reports and outcomes."""

import copy
import dataclasses
import json
import math
import pickle
from typing import Any

import pytest
from pydantic import RootModel

from guardwrap import Budget, Fallback, GuardedGenerator, JSONSchema, Keyword, Length, Regex
from guardwrap.errors import UsageError
from guardwrap.outcomes import Estimate
from guardwrap.testing import World, llama_world


@pytest.mark.parametrize(
    "limits",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"max_tokens": -1},
        {"max_seconds": 0},
        {"max_seconds": float("nan")},
        {"deadline": "1"},
    ],
)
def test_budgets_that_make_no_sense(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(limits))):
        Budget(**limits)


def test_reports_print_and_serialise(world: World) -> None:
    judged = Keyword("a", whole_words=False, name="has an a") & Length(max=4, name="short")
    guarded = GuardedGenerator(world.pipeline(), judged, seed=3)
    for outcome in guarded.run(["ab", [{"role": "user", "content": "b"}]], num_return_sequences=3, temperature=2.0):
        data = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
        assert data["report"]["usage"]["attempts"] == outcome.report.usage.attempts
        assert data["report"]["rejections"] == dict(outcome.report.rejections)
        assert set(data["report"]["rejections"]) <= {"has an a", "short"}
        assert data["texts"] == list(outcome.texts)
        text = str(outcome.report)
        assert "exactly your model's own distribution, given the constraint (g)" in text
        assert all(len(line) < 120 for line in text.splitlines())


def test_infinite_evidence_is_strict_json(world: World) -> None:
    """An interval may have no upper end, and strict JSON cannot express infinity."""
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3).run("ab")
    figures: dict[str, Estimate | float] = {"kl": Estimate(0.5, 0.1, math.inf), "beta": math.inf, "steps": 3.0}
    report = dataclasses.replace(outcome.report, evidence=figures, acceptance=Estimate(0.5, 0.0, math.inf))
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["evidence"] == {"kl": {"value": 0.5, "low": 0.1, "high": None}, "beta": None, "steps": 3.0}
    assert data["acceptance"] == {"value": 0.5, "low": 0.0, "high": None}
    fields = {field.name for field in dataclasses.fields(report)}
    assert data.keys() == fields - {"origin", "rejected"} | {"drawn_from", "proposal", "rejections"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        json.dumps(dataclasses.asdict(report), allow_nan=False)


def test_attempts_are_exact(world: World) -> None:
    never = Length(min=100)
    for size in (1, 7, 64):
        guarded = GuardedGenerator(world.pipeline(), never, batch_size=size, budget=Budget(max_attempts=23))
        (outcome,) = guarded.run("ab", max_new_tokens=2)
        assert outcome.report.usage.attempts == 23
        assert outcome.report.usage.surplus_attempts == 0
        assert dict(outcome.report.rejections) == {"Length(min=100)": 23}


def test_unchecked_text_is_in_no_error_and_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Unchecked text is never returned, not in an error message of a checker either."""
    import traceback

    from guardwrap import CheckFailed, constraint

    seen = []

    @constraint
    def leaky(text: str) -> bool:
        seen.append(text)
        raise RuntimeError(f"cannot judge {text!r}")

    with caplog.at_level("INFO"), pytest.raises(CheckFailed) as caught:
        GuardedGenerator(world.pipeline(), leaky, seed=1)("ab", max_new_tokens=6, min_new_tokens=6)
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert seen[0]
    assert seen[0] not in shown.replace("\n", "")
    assert "leaky" in str(caught.value)
    assert seen[0] in repr(caught.value.original).replace("\\n", "\n")


def test_a_constraint_file_chooses_budget_and_sampler(world: World, tmp_path: Any) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "guardwrap: 1\nconstraint: {kind: length, min: 100}\nsampler: rejection\nbudget: {max_attempts: 5}\n"
    )
    guarded = GuardedGenerator(world.pipeline(), path)
    assert guarded.run("ab", max_new_tokens=2)[0].report.usage.attempts == 5
    assert guarded.run("ab", max_new_tokens=2, budget=Budget(max_attempts=2))[0].report.usage.attempts == 2
    plain = GuardedGenerator(world.pipeline(), Regex("zzz"), budget=Budget(max_attempts=3))
    assert plain.run("ab", max_new_tokens=2, constraints=str(path))[0].report.usage.attempts == 5


class Digits(RootModel[int]):
    """One whole number."""


class Even(RootModel[int]):
    """An even number."""

    def model_post_init(self, context: Any) -> None:
        if self.root % 2:
            raise ValueError("odd")


NUMBERS: dict[str, Any] = {"num_return_sequences": 6, "max_new_tokens": 3, "do_sample": True, "top_k": 0}


def test_values_are_what_the_texts_say() -> None:
    pipe = llama_world(letters="0123").pipeline()
    for judged, kind in ((JSONSchema({"type": "integer"}), int), (JSONSchema(Digits) & Length(min=2), Digits)):
        (outcome,) = GuardedGenerator(pipe, judged, seed=3).run("12", **NUMBERS)
        assert len(outcome.values) == len(outcome.texts) == 6
        assert [type(value) for value in outcome.values] == [kind] * 6
        numbers = [value.root if isinstance(value, Digits) else value for value in outcome.values]
        assert numbers == [int(text) for text in outcome.texts]
        assert "values" not in outcome.to_dict()
        assert copy.copy(outcome).values == outcome.values
        assert pickle.loads(pickle.dumps(outcome)).values == outcome.values


def test_a_text_that_the_type_refuses_is_not_returned() -> None:
    """Its schema is that of any integer."""
    pipe = llama_world(letters="0123").pipeline()
    seen = {
        judged: GuardedGenerator(pipe, JSONSchema(judged), seed=3).run("12", **{**NUMBERS, "num_return_sequences": 40})
        for judged in (Even, Digits)
    }
    odd = {kind: [value for value in outcome[0].values if value.root % 2] for kind, outcome in seen.items()}
    assert not odd[Even]
    assert odd[Digits], "without the type's validator there are odd numbers"


def test_values_of_fallbacks_and_of_missing_texts() -> None:
    pipe, judged = llama_world(letters="0123").pipeline(), JSONSchema(Digits) & Length(min=99)
    options: dict[str, Any] = {"budget": Budget(max_attempts=4), "seed": 1}
    fallback = Fallback("7" * 99)
    (outcome,) = GuardedGenerator(pipe, judged, on_exhausted=fallback, **options).run("12", **NUMBERS)
    assert outcome.values == (Digits(int("7" * 99)),) * 6
    (outcome,) = GuardedGenerator(pipe, judged, on_exhausted="none", **options).run("12", **NUMBERS)
    assert outcome.values == ()


def test_values_without_exactly_one_schema(world: World) -> None:
    number = JSONSchema({"type": "integer"})
    for judged in (Length(min=1), number | Length(min=1), JSONSchema({}, on="lines") | Length(min=1)):
        (outcome,) = GuardedGenerator(world.pipeline(), judged, seed=3).run("ab", max_new_tokens=2)
        with pytest.raises(UsageError, match="values need exactly one JSONSchema"):
            _ = outcome.values
