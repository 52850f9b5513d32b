"""How early JSON is VIOLATED under a schema: a case for each keyword, and cases that must stay UNDECIDED."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.errors import ConstraintError
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile
from tests.constraints.json.test_schema_validation import values

V, U = Verdict.VIOLATED, Verdict.UNDECIDED


def obj(**properties: Any) -> dict[str, Any]:
    return {"properties": properties}


EARLY: list[tuple[Any, str]] = [
    # Each text is violated at its last character, and not before.
    (False, " 1"),
    ({"type": "object"}, "["),
    ({"type": "integer"}, "t"),
    ({"type": "boolean"}, "n"),
    ({"type": ["array", "null"]}, '"'),
    ({"type": "integer"}, "1.5 "),
    ({"enum": ["red", "green", "\u00e9a"]}, '"ro'),
    ({"enum": ["red", "green", "\u00e9a"]}, '"re"'),
    ({"enum": ["red", "\u00e9a"]}, '"\\u00e9b'),
    ({"enum": ["\U0001f642a"]}, '"\\ud83d\\ude43'),
    ({"enum": ["red", 12, None]}, "f"),
    ({"enum": ["red", 12, None]}, "13"),
    ({"enum": [12]}, "-"),
    ({"enum": [0.125, -3]}, "0.126"),
    ({"enum": [0.125, -3]}, "1e3 "),
    ({"enum": ["a"]}, "1"),
    ({"const": {"a": [1, {"b": None}]}}, '{"a": [1, {"b": f'),
    ({"const": {"a": [1, {"b": None}]}}, '{"a": [1, {"b": null},'),
    ({"const": {"a": [1, {"b": None}]}}, '{"b'),
    ({"const": [1, True]}, "[1, 1"),
    ({"enum": [[1], {"a": 2}]}, '{"a": 3'),
    (obj(a={"type": "string"}), '{"a": 1'),
    (obj(a=obj(b={"type": "string"})), '{"a": {"b": ['),
    (obj(a=False), '{"a"'),
    ({"required": ["a", "b"]}, '{"b": 1}'),
    ({"required": ["a", "b"], "maxProperties": 2}, '{"c"'),
    ({**obj(name={}, age={}), "additionalProperties": False}, '{"nu'),
    ({**obj(name={}, age={}), "additionalProperties": False}, '{"na"'),
    ({**obj(name={}, age={}), "additionalProperties": False}, '{"name": 1, "n'),
    ({**obj(name={}, age={}), "additionalProperties": False}, '{"name": 1, "age": 2,'),
    ({**obj(name={}), "additionalProperties": {"type": "null"}}, '{"names": 1'),
    ({"additionalProperties": False}, '{"'),
    ({"patternProperties": {"^x-": {"type": "null"}}}, '{"x-a": 1'),
    ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, '{"xy'),
    ({"propertyNames": {"maxLength": 2}}, '{"abc'),
    ({"propertyNames": {"enum": ["ab"]}}, '{"b'),
    ({"propertyNames": {"minLength": 2}}, '{"a"'),
    ({"propertyNames": False}, '{"'),
    ({"minProperties": 1}, "{}"),
    ({"maxProperties": 1}, '{"a": 1,'),
    ({"maxProperties": 0}, '{"'),
    ({}, '{"a": 1, "\\u0061"'),
    ({"items": {"type": "string"}}, '["a", 1'),
    ({"items": False}, "[1"),
    ({"prefixItems": [{"type": "string"}, {"type": "null"}]}, '["a", 1'),
    ({"prefixItems": [{}], "items": False}, "[1,"),
    ({"prefixItems": [{}], "items": {"type": "null"}}, "[1, 2"),
    ({"contains": {"type": "null"}}, "[1]"),
    ({"contains": {"type": "null"}, "minContains": 2}, "[null, 1]"),
    ({"contains": {"type": "null"}, "maxContains": 1}, "[null, n"),
    ({"minItems": 2}, "[1]"),
    ({"maxItems": 2}, "[1, 2,"),
    ({"maxItems": 0}, "[1"),
    ({"uniqueItems": True}, "[1, 1.0,"),
    ({"uniqueItems": True}, '[{"a": [1]}, {"a": [1]}'),
    ({"minLength": 2}, '"a"'),
    ({"maxLength": 2}, '"ab\\ud83d\\ude42'),
    ({"pattern": "^[a-z]+$"}, '"abC'),
    ({"pattern": "^\\d{3}$"}, '"1234'),
    ({"pattern": "b"}, '"aaa"'),
    ({"minimum": 3}, "2 "),
    ({"minimum": 1}, "-"),
    ({"exclusiveMinimum": 0}, "-"),
    ({"exclusiveMinimum": 0}, "0.0 "),
    ({"maximum": -1}, "4"),
    ({"exclusiveMaximum": 0}, "0"),
    ({"maximum": 3}, "4 "),
    ({"multipleOf": 3}, "4\n"),
    ({"allOf": [{"type": "array"}, {"maxItems": 1}]}, "[1,"),
    ({"anyOf": [{"type": "array"}, obj(a={"const": 1})]}, '{"a": "'),
    ({"anyOf": [{"maxItems": 1}, {"items": {"type": "null"}}]}, "[1,"),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"a": 1, "b": 2,'),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "3 "),
    ({"oneOf": [{"type": "boolean"}, {"enum": [True]}]}, "t"),
    ({"not": {"type": "string"}}, '"'),
    ({"not": {"required": ["a", "b"]}}, '{"b": 1, "a": 2,'),
    ({"not": {"const": "ab"}}, '"ab"'),
    ({"if": {**obj(a={"const": 1}), "required": ["a"]}, "then": obj(b={"type": "null"})}, '{"a": 1, "b": 2'),
    ({"if": {**obj(a={"const": 1}), "required": ["a"]}, "else": obj(b={"type": "null"})}, '{"a": 2, "b": 2'),
    ({"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "null"}}, "["),
    ({"dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
    ({"dependentSchemas": {"a": {"maxProperties": 1}}}, '{"a": 1,'),
    ({"dependentSchemas": {"a": {"maxProperties": 1}}}, '{"b": 1, "a"'),
    ({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}, "[[], [1"),
    ({"$ref": "#t", "$defs": {"t": {"$anchor": "t", "type": "null"}}}, "1"),
    ({"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", "type": "null"}}}, "1"),
    ({"items": {"$id": "a:b", "$ref": "#/$defs/t", "$defs": {"t": {"type": "null"}}}}, "[1"),
    ({"unevaluatedProperties": False, **obj(a={})}, '{"a": 1, "b": 2}'),
    ({"unevaluatedProperties": False, **obj(a={}), "anyOf": [{"required": ["a"]}]}, '{"a": 1, "b": 2}'),
    ({"not": {"unevaluatedProperties": False, **obj(a={})}}, '{"a": 1}'),
    ({"items": {"unevaluatedItems": False, "prefixItems": [{}]}}, "[[1, 2]"),
    # The syntax of JSON.
    (True, "[1 2"),
    (True, "[1,]"),
    (True, "01"),
    (True, "1.e"),
    (True, "-]"),
    (True, "nul "),
    (True, '"\t'),
    (True, '"\\x'),
    (True, "1e400,"),
    (True, "{} {"),
]


@pytest.mark.parametrize(("schema", "text"), EARLY, ids=repr)
def test_given_up_as_early_as_can_be(schema, text):
    constraint = JSONSchema(schema)
    assert [constraint.verdict(text[:end]) for end in range(len(text) + 1)] == [U] * len(text) + [V]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"minimum": 0}, "-0"),
        ({"minimum": 0}, "-0e-999"),
        ({"minimum": 0}, "5e-999"),
        ({"type": "integer"}, "1.50e1"),
        ({"enum": [12]}, "0.0120e3"),
        ({"enum": [0]}, "0.00e7"),
        ({"enum": [1e23]}, "100000000000000000000000.0"),
        ({"enum": [0.1]}, "0.0100e1"),
        ({"enum": [5e-324]}, "0.05e-322"),
        ({"const": 1}, "1.0"),
        ({"maxLength": 1}, '"\\ud83d\\ude42"'),
        ({"enum": ["\ud7ff", "\U0001f642"]}, '"\\ud7ff"'),
        ({"enum": ["a/b"]}, '"a\\/\\u0062"'),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"a": {"b": 1}}'),
        ({"not": {"required": ["a", "b"]}}, '{"a": {"b": 1}}'),
        ({"not": obj(a={"type": "string"})}, '{"a": 1}'),
        ({"not": {"unevaluatedProperties": False, **obj(a={})}}, '{"a": true, "b": 1}'),
        ({"not": {"patternProperties": {"b": False}, **obj(a={})}}, '{"a": true, "b": 1}'),
        ({"uniqueItems": True}, "[1, true, [1], [true], 0, false]"),
        (
            {"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/t"}}]}}},
            "[[null]]",
        ),
        ({"additionalProperties": False, "properties": {"": {}}}, '{"": 1}'),
        ({"dependentSchemas": {"a": False}}, '{"b": 1}'),
        ({"if": {**obj(a={"const": 1}), "required": ["a"]}, "then": obj(b={"type": "null"})}, '{"b": 2, "a": 2}'),
        ({"if": {**obj(a={"const": 1}), "required": ["a"]}, "else": obj(b={"type": "null"})}, '{"b": 2, "a": 1}'),
    ],
    ids=repr,
)
def test_nothing_is_given_up_too_early(schema, text):
    constraint = JSONSchema(schema)
    assert constraint.accepts(text)
    assert {constraint.verdict(text[:end]) for end in range(len(text) + 1)} == {U}


# ------------------------------------------------------------------------------------------- keys twice, white space


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "\\u0061": 2}}]'])
def test_a_key_that_stands_twice_is_refused(text):
    assert not JSONSchema({}).accepts(text)
    assert JSONSchema({}).verdict(text) is V
    assert JSONSchema({}).accepts(text.replace(', "', ', "x'))


@pytest.mark.parametrize(
    ("text", "compact"),
    [
        ('{"a": [1, 2, {"b": " \\n\\" : , "}]}', True),
        ('{"a":[1,2],"b":{}}', True),
        ("[]", True),
        (" []", False),
        ("[] ", False),
        ("[]\n", False),
        ("[ ]", False),
        ("[1,  2]", False),
        ("[1,\n2]", False),
        ("[1 ,2]", False),
        ('{"a" :1}', False),
        ('{ "a":1}', False),
        ('{"a":1 }', False),
    ],
)
def test_white_space(text, compact):
    constraint = JSONSchema({}, whitespace="compact")
    assert JSONSchema({}).accepts(text)
    assert constraint.accepts(text) is compact
    assert constraint.verdict(text) is (U if compact else V)
    assert JSONSchema({}, whitespace="compact", where="fenced").accepts(f"```\n{text}\n```") is compact
    check_constraint(constraint, [text])


@profile(150)
@given(values)
def test_what_json_dumps_writes_is_compact(value):
    constraint = JSONSchema({}, whitespace="compact")
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":"), ensure_ascii=False)):
        assert constraint.accepts(text)
        assert constraint.verdict(text) is U


def test_a_wrong_kind_of_white_space():
    with pytest.raises(ConstraintError, match="did you mean 'compact'"):
        JSONSchema({}, whitespace="compct")  # type: ignore[arg-type]
