"""YAML as validated data: the location of an error, and what it suggests, for all kinds of files."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter

from guardwrap.budget import Budget
from guardwrap.constraints import Constraint, Regex
from guardwrap.errors import SpecError
from guardwrap.support.validation import Invalid, _without_names_of_types, read_as, validated


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    size: int = 0
    mode: Literal["fast", "slow"] = "fast"


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    first: Part = Part()
    several: list[Part] = []
    named: dict[str, Part] = {}
    budget: Budget | None = None
    rule: Constraint | None = None
    either: str | list[str] | dict[str, str] = ""


CASES = [
    ("first:\n  sise: 1", 2, "first.sise: unknown field 'sise' (did you mean 'size'?); known: size, mode"),
    (
        "several:\n  - size: 1\n  - mod: fast",
        3,
        "several.1.mod: unknown field 'mod' (did you mean 'mode'?); known: size",
    ),
    ("named:\n  a b:\n    sizes: 1", 3, "named.'a b'.sizes: unknown field 'sizes' (did you mean 'size'?); known: size"),
    ("budget: {max_atempts: 1}", 1, "budget.max_atempts: unknown field 'max_atempts' (did you mean 'max_attempts'?)"),
    ("first: {mode: fsat}", 1, "first.mode: 'fsat' is not one of fast, slow (did you mean 'fast'?)"),
    (
        "rule:\n  kind: not\n  of: {kind: regex, patern: a}",
        3,
        "rule.of.patern: unknown field 'patern' (did you mean 'pa",
    ),
    ("rule: {kind: any, of: [{kind: all, of: []}]}", 1, "rule.of.0.of: Value should have at least 1 item"),
    ("rule: {of: 1}", 1, "rule: needs a field 'kind'"),
    (
        "rule: {kind: python, function: 'os:getcwd'}",
        1,
        "rule.function: names Python code ('os:getcwd'); pass allow_code",
    ),
    ("either: [a, 1]", 1, "either.1: must be a string, not int; put it in quotes"),
    ("either: {a: 1}", 1, "either.a: must be a string, not int; put it in quotes"),
    (
        "frist: {}",
        1,
        "frist: unknown field 'frist' (did you mean 'first'?); known: first, several, named, budget, rule",
    ),
    ("first: 3", 1, "first: "),
]


@pytest.mark.parametrize(("text", "line", "says"), CASES)
def test_one_line_with_place_and_nearest_spelling(tmp_path: Any, text: str, line: int, says: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text + "\n")
    with pytest.raises(SpecError) as raised:
        read_as(path, Whole)
    assert str(raised.value).startswith(f"{path}:{line}: {says}")
    assert "\n" not in str(raised.value)


def test_what_is_right_is_read(tmp_path: Any) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("first: {size: 2, mode: slow}\nrule: {kind: not, of: {kind: regex, pattern: a}}\neither: [a]\n")
    found = read_as(path, Whole)
    assert (found.first.size, found.first.mode, found.either) == (2, "slow", ["a"])
    assert found.rule == ~Regex("a")


def test_code_is_read_only_where_the_reader_says_so() -> None:
    kind = TypeAdapter(Constraint)
    code = {"kind": "all", "of": [{"kind": "finished"}, {"kind": "python", "function": "os:getcwd"}]}
    for context in ({}, {"allow_code": False}, {"other": True}):
        with pytest.raises(Invalid) as raised:
            validated(code, kind, **context)
        assert raised.value.location == ("of", 1, "function")
    assert len(validated(code, kind, allow_code=True).parts) == 2


def test_what_is_no_data_is_no_traceback() -> None:
    with pytest.raises(Invalid, match="has the type set, which YAML does not support"):
        validated({"first": {1, 2}}, TypeAdapter(Whole))


@pytest.mark.parametrize(
    ("loc", "location"),
    [
        (("rule", "size", "size"), ("rule", "size")),  # a kind that has the name of one of its fields
        (("rule", "size", "part", "kind", "kind"), ("rule", "part", "kind")),
        (("rule", "size", "other"), ("rule",)),
    ],
)
def test_names_of_kinds_are_no_places(loc: Any, location: Any) -> None:
    data = {"rule": {"kind": "size", "size": "x", "part": {"kind": "kind"}}}
    assert _without_names_of_types(loc, data, missing=False) == location
