"""Validation of values: our keywords compared with those of ``jsonschema``."""

from __future__ import annotations

import copy
import json
import pickle
from functools import cache
from typing import Any

import jsonschema
import pytest
import referencing
from hypothesis import given
from hypothesis import strategies as st

from guardwrap.constraints import JSONSchema
from guardwrap.constraints.json.keywords import canonical
from guardwrap.constraints.json.schema_validation import read_schema
from guardwrap.errors import ConstraintError
from guardwrap.support.lexical import load_exact
from tests.constraints.fixtures_strategies import TYPES, profile

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, -1, 2, 1.5, 0.1, 10**20, 1e20, "", "a", "b", "ab", "1"])
names = st.sampled_from(["a", "b", "ab", "x"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)
expressions = st.sampled_from(["a", "^b", "b$", "^$", "x|a"])
REFERENCES = ["#", "#/$defs/a", "#/$defs/b", "#here", "#there"]
sizes = st.integers(0, 3)
numbers = st.sampled_from([0, 1, 2, 1.5, -1])


def keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Return every keyword with the arguments that it may have."""
    schemas, some = st.lists(inner, min_size=1, max_size=3), st.dictionaries(names, inner, max_size=3)
    lists = st.lists(names, max_size=2, unique=True)
    found: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(values, max_size=4),
        "const": values,
        "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 1.0, 3]),
        "uniqueItems": st.booleans(),
        "pattern": expressions,
        "patternProperties": st.dictionaries(expressions, inner, max_size=2),
        "required": lists,
        "dependentRequired": st.dictionaries(names, lists, max_size=2),
        "$ref": st.sampled_from(REFERENCES[1:4]),
        "$dynamicRef": st.sampled_from(REFERENCES[1:]),
        "format": st.just("date"),
        "unheard": values,
    }
    found |= dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), sizes)
    found |= dict.fromkeys(("minContains", "maxContains"), sizes)
    found |= dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), numbers)
    found |= dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), schemas)
    found |= dict.fromkeys(("properties", "dependentSchemas"), some)
    found |= dict.fromkeys(("items", "contains", "not", "if", "then", "else", "propertyNames"), inner)
    return found | dict.fromkeys(("additionalProperties", "unevaluatedItems", "unevaluatedProperties"), inner)


GROUPS = [
    ["prefixItems", "items", "contains", "minContains", "maxContains", "unevaluatedItems", "anyOf", "allOf", "if"],
    ["properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "dependentSchemas", "$ref"],
    ["if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "oneOf", "properties", "prefixItems"],
    ["type", "enum", "const", "multipleOf", "minimum", "uniqueItems", "not"],
]


@cache
def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    """Draw a schema, about half of the time with keywords that depend on each other."""
    if depth == 0:
        return st.booleans() | st.sampled_from([{}, {"type": "integer"}, {"const": "a"}, {"minimum": 1}])
    known = keywords(schemas(depth - 1))
    groups = [*GROUPS, sorted(known)]
    names = st.sampled_from([st.lists(st.sampled_from(group), max_size=4, unique=True) for group in groups])

    @st.composite
    def drawn(draw: st.DrawFn) -> Any:
        return {key: draw(known[key]) for key in draw(draw(names))}

    return drawn()


types = st.sampled_from(TYPES)


@st.composite
def whole_schemas(draw: st.DrawFn) -> Any:
    """Draw a schema whose references have targets and form no cycle."""
    parts = {"a": draw(schemas(0)), "b": {"$anchor": "here", "type": draw(types)}}
    parts["c"] = {"$dynamicAnchor": "there", "maxItems": 1}
    schema = draw(schemas())
    return schema if isinstance(schema, bool) else {**schema, "$defs": parts}


def theirs(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema, registry=referencing.Registry()).is_valid(value))


def ours(validator: Any, value: Any) -> bool:
    return bool(validator.is_valid(load_exact(json.dumps(value))))


A, ONE = {"properties": {"a": {"type": "integer"}}}, {"type": "integer"}
# One case for each rule of our keywords, because Hypothesis seldom draws schemas and values that interact.
CORNERS: list[dict[str, Any]] = [
    {**A, "additionalProperties": False},
    {**A, "patternProperties": {"^b": {"const": 1}}, "additionalProperties": {"type": "null"}},
    *({"contains": ONE, **more} for more in ({}, {"minContains": 0}, {"minContains": 2}, {"maxContains": 1})),
    *({keyword: [ONE, {"minimum": 2}, {"const": 1}]} for keyword in ("anyOf", "oneOf")),
    {"uniqueItems": True},
    {"uniqueItems": False},
    *(
        {"unevaluatedItems": False, **more}
        for more in (
            {"items": True},
            {"prefixItems": [True]},
            {"contains": ONE},
            {"contains": ONE, "minContains": 0},
            {"allOf": [{"prefixItems": [True, True]}]},
            {"allOf": [{"unevaluatedItems": ONE}]},
            {"anyOf": [{"prefixItems": [ONE]}, {"prefixItems": [True, {"const": "a"}]}]},
            {"oneOf": [{"prefixItems": [{"const": "a"}]}, {"prefixItems": [ONE, True]}]},
            {"if": {"prefixItems": [ONE]}, "then": {"prefixItems": [True] * 2}, "else": {"items": True}},
            {"if": {"prefixItems": [ONE]}, "else": {"prefixItems": [True]}},
            {"$ref": "#/$defs/p", "$defs": {"p": {"prefixItems": [True]}}},
            {"$dynamicRef": "#p", "$defs": {"p": {"$dynamicAnchor": "p", "prefixItems": [True]}}},
        )
    ),
    {"unevaluatedItems": ONE, "prefixItems": [True]},
    *(
        {"unevaluatedProperties": False, **more}
        for more in (
            A,
            {"patternProperties": {"^b": True}},
            {"allOf": [{"additionalProperties": ONE}]},
            {"allOf": [{"unevaluatedProperties": ONE}]},
            {"anyOf": [A, {"properties": {"b": {"const": "a"}}}]},
            {"dependentSchemas": {"a": {"properties": {"a": True, "b": True}}, "c": {"additionalProperties": True}}},
            {"if": A, "then": {"properties": {"b": True}}, "else": {"properties": {"a": True}}},
            {"$ref": "#/$defs/p", "$defs": {"p": A}},
        )
    ),
    {"unevaluatedProperties": ONE, **A},
]
LISTS: list[Any] = [
    [],
    [1],
    ["a"],
    [1, "a"],
    ["a", 1],
    [1, 1],
    [1, True],
    [1, 2, "a"],
    [[1], [True]],
    [{"a": 1}, {"a": 2}],
]
MAPS: list[Any] = [{}, *({"a": a} for a in (1, "a")), {"b": 1}, {"b": "a"}, {"a": 1, "b": 1}, {"a": "a", "b": "a"}]


@pytest.mark.parametrize("schema", CORNERS, ids=lambda schema: json.dumps(schema)[:90])
def test_our_own_keywords_are_those_of_jsonschema(schema):
    validator = read_schema(schema)
    for value in [*LISTS, *MAPS, {"c": None, "a": 1}, {"bc": 1, "d": None}, 1, 2, 0, True, None, "a"]:
        assert ours(validator, value) is theirs(schema, value), value


def test_what_is_true_is_not_one():
    for one, other in ((True, 1), (False, 0), ([True], [1]), ({"a": False}, {"a": 0})):
        assert canonical(one) != canonical(other)
    assert canonical({"a": [1, {}]}) == canonical({"a": [1.0, {}]})


@pytest.mark.slow
@profile(250)
@given(whole_schemas(), st.lists(values, min_size=1, max_size=4))
def test_what_is_valid_is_valid_to_jsonschema(schema, instances):
    validator = read_schema(schema)
    for value in instances:
        assert ours(validator, value) is theirs(schema, value), value


@pytest.mark.parametrize(
    "key", ["$ref", "$schema", "$id", "$anchor", "$vocabulary", "examples", "type", "not", "allOf"]
)
@pytest.mark.parametrize("value", [None, 1, "", "a b", [], {}, [1], {"a": 1}], ids=repr)
def test_what_is_well_formed_is_so_to_jsonschema(key, value):
    schema = {"items": {key: value}}
    try:
        JSONSchema(schema)
        problem = ""
    except ConstraintError as error:
        problem = str(error)
    try:
        jsonschema.Draft202012Validator.check_schema(schema, format_checker=None)  # type: ignore[arg-type]  # the stubs have no None
    except jsonschema.SchemaError:
        assert problem.startswith("invalid JSON Schema at items/")
    else:
        assert not problem.startswith("invalid JSON Schema at"), problem


@profile(120)
@given(values, values)
def test_canonical_forms_are_equal_where_the_values_are(one, other):
    assert (canonical(one) == canonical(other)) is theirs({"const": one}, other)


@profile(100)
@given(st.lists(values, max_size=6))
def test_unique_items_are_those_of_jsonschema(items):
    assert JSONSchema({"uniqueItems": True}).accepts(json.dumps(items)) is all(
        not theirs({"const": one}, other) for i, one in enumerate(items) for other in items[:i]
    )


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b"}, ["null"], ["1"]),
        ({"$defs": {"a b": {"type": "null"}}, "$ref": "#/$defs/a%20b"}, ["null"], ["1"]),
        ({"allOf": [{"type": "null"}, {"not": {"$ref": "#/allOf/2"}}, {"const": 1}]}, [], ["null"]),
        ({"unheard": {"a": {"pattern": "a"}}, "$ref": "#/unheard/a"}, ['"a"'], ['"b"']),
        ({"enum": [{"type": "null"}, None], "$ref": "#/enum/0"}, ["null"], ["1", '{"type": "null"}']),
        (
            {"properties": {"a": {"$id": "b", "$ref": "#/$defs/c", "$defs": {"c": {"type": "null"}}}}},
            ["{}"],
            ['{"a":1}'],
        ),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "items": {"$ref": "#"}, "minimum": 1},
            ["[1]"],
            ["[0]"],
        ),
        ({"unevaluatedProperties": False, "patternProperties": {"^a": {}}}, ['{"ab": 1}'], ['{"b": 1}']),
        ({"pattern": r"^\p{Lu}"}, ['"É"'], ['"é"']),
        ({"multipleOf": 0.1}, ["1e300", "0.2"], ["0.25"]),
        ({"multipleOf": 5e-324}, ["1e300", "0"], []),
        ({"allOf": [{"$dynamicRef": "#/$defs/b"}, {"$id": "a:b"}], "$defs": {"b": {"type": "null"}}}, ["null"], ["1"]),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_references_and_corners(schema, accepted, rejected):
    constraint = JSONSchema(schema)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"title": "a", "$ref": "#/title"}, "at #/title: 'a' is not of type 'object', 'boolean'"),
        ({"unheard": {"type": "thing"}, "$ref": "#/unheard"}, "at #/unheard/type: unknown type 'thing'"),
        ({"items": {"properties": {"a": [1]}}}, r"at items/properties/a: \[1\] is not of type"),
        ({"required": ["a", "a"]}, "at required: .*not unique"),
        ({"$anchor": "1a"}, "'1a' does not match"),
        ({"allOf": []}, "at allOf: .*non-empty"),
        ({"multipleOf": 0}, "at multipleOf: "),
        ({"multipleOf": 10**330}, "not JSON"),
        ({"$ref": "#/title", "title": {"$ref": "#/none"}}, "is not of type|not in it"),
        ({"unheard": {"$ref": "#/none"}, "$ref": "#/unheard"}, "not in it"),
        ({"items": {"$id": "http://["}}, r"an \$id or a reference in it, 'http://\['"),
        ({"$ref": "http://[#a"}, r"an \$id or a reference in it, 'http://\[#a'"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_wrong_with_a_schema(schema, message):
    with pytest.raises(ConstraintError, match=message) as caught:
        JSONSchema(schema)
    assert len(str(caught.value).splitlines()) == 1


def test_copies_know_their_own_schema():
    made = JSONSchema({"$defs": {"n": {"pattern": "a"}}, "items": {"$ref": "#/$defs/n"}})
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert copied == made
        assert [copied.accepts(text) for text in ('["a"]', '["b"]')] == [True, False]
