"""Notes on schemas whose objects may have keys that they do not declare."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic
import pytest
from typing_extensions import TypedDict

from guardwrap import Budget, GuardedGenerator, Regex, ToolCalls
from guardwrap.constraints import JSONSchema
from guardwrap.constraints.json.schema_notes import further_keys, open_objects


class Inner(pydantic.BaseModel):
    a: int


class Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    inner: Inner


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    a: int


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    a: int


class Keys(TypedDict):
    a: int


@dataclasses.dataclass
class Point:
    x: int


A: dict[str, Any] = {"properties": {"a": {}}}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (A, ["a"]),
        ({**A, "title": "An A"}, ["An A"]),
        ({"items": A}, ["a"]),
        ({"$ref": "#/$defs/One", "$defs": {"One": A}}, ["One"]),
        ({"anyOf": [A, {"properties": {"b": A}}]}, ["a", "b"]),
        (Inner.model_json_schema(), ["Inner"]),
        (Outer.model_json_schema(), ["Inner"]),
        ({"properties": {"k" * 60: {}}}, ["k" * 37 + "..."]),
        # Nothing to advise:
        (Closed.model_json_schema(), []),
        (Open.model_json_schema(), []),
        ({}, []),
        (True, []),
        ({"type": "object"}, []),
        ({**A, "additionalProperties": False}, []),
        ({**A, "additionalProperties": {"type": "string"}}, []),
        ({**A, "patternProperties": {"^x-": {}}}, []),
        ({**A, "maxProperties": 1}, []),
        ({"not": A}, []),
        ({"contains": {"items": A}}, []),
        ({"const": A}, []),
        # To forbid keys in one subschema would forbid those of another:
        ({"allOf": [A, {"properties": {"b": {}}}]}, []),
        ({"$ref": "#/$defs/a", "properties": {"b": {}}, "$defs": {"a": A}}, []),
        ({"unevaluatedProperties": False, "anyOf": [A]}, []),
        ({**A, "if": {"required": ["a"]}, "then": {"properties": {"b": {}}}}, []),
    ],
    ids=repr,
)
def test_which_objects_may_have_further_keys(schema, names):
    assert open_objects(schema) == names


@pytest.mark.parametrize("kind", [Inner, Keys, Point, list[Inner]])
def test_types_are_closed_in_python(kind):
    (note,) = further_keys(JSONSchema(kind) & Regex("a"))
    assert 'set model_config = ConfigDict(extra="forbid")' in note


def test_schemas_are_closed_in_json():
    (note,) = further_keys(~JSONSchema({"anyOf": [A, *({"title": f"t{i}", **A} for i in range(4))]}, name="mine"))
    assert note == (
        "'mine' allows keys that it does not declare in 'a', 't0', 't1' and 2 more, so the model may add some; "
        "to forbid them, set additionalProperties: false"
    )
    assert len(further_keys(ToolCalls([{"name": "f", "parameters": A}]))) == 1
    assert further_keys(JSONSchema(Closed) & ToolCalls([Closed])) == []


@pytest.mark.slow
def test_a_report_notes_it_where_the_token_limit_cost_texts():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    def notes(rule: JSONSchema, tokens: int) -> list[str]:
        guarded = GuardedGenerator("local", rule, budget=Budget(max_attempts=3))
        (outcome,) = guarded.run("{", max_new_tokens=tokens, seed=1)
        assert not outcome.ok
        return [note for note in outcome.report.notes if "may add some" in note]

    assert len(notes(JSONSchema(schema, where="fenced"), 5)) == 1
    assert notes(JSONSchema({**schema, "additionalProperties": False}, where="fenced"), 5) == []
