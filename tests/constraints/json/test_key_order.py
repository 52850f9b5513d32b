"""``JSONSchema(order="schema")``: which texts it excludes, how early, and its digest."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import GuardedGenerator, Masked
from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.files.constraint_file import dump, parse
from guardwrap.constraints.json import keywords
from guardwrap.constraints.json.references import Scope
from guardwrap.constraints.json.subschemas import Objects
from guardwrap.errors import ConstraintError
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import assert_sound, mutated, profile
from tests.constraints.json.test_json_monitor import cuts, in_pieces, texts
from tests.constraints.json.test_schema_validation import whole_schemas

V, U = Verdict.VIOLATED, Verdict.UNDECIDED


def ordered(schema: Any, **options: Any) -> JSONSchema:
    return JSONSchema(schema, order="schema", **options)


def obj(*keys: str, **more: Any) -> dict[str, Any]:
    return {"properties": {key: {} for key in keys}, **more}


class Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    reasoning: str
    answer: int
    notes: str | None = None


# ------------------------------------------------------------------------------------------------- what is excluded


def in_order(schema: Any, value: Any) -> bool:
    """Whether a value is valid and in order: a second implementation, by recursion over the schema."""
    if isinstance(schema, bool) or not jsonschema.Draft202012Validator(schema).is_valid(value):
        return schema is True
    properties = schema.get("properties", {})
    some = [schema["anyOf"]] if "anyOf" in schema else []
    some += [schema["oneOf"]] if "oneOf" in schema else []
    every = list(schema.get("allOf", ()))
    if "if" in schema:
        met = jsonschema.Draft202012Validator(schema["if"]).is_valid(value)
        every.append(schema.get("then" if met else "else", True))
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        declared = [key for key in value if key in properties]
        if declared != [key for key in properties if key in value]:
            return False
        others = schema.get("additionalProperties", True)
        children = [(properties.get(key, others), each) for key, each in value.items()]
        every += [each for key, each in schema.get("dependentSchemas", {}).items() if key in value]
    elif isinstance(value, list):
        children = [(schema.get("items", True), each) for each in value]
    return (
        all(in_order(inner, value) for inner in every)
        and all(any(in_order(inner, value) for inner in group) for group in some)
        and all(in_order(inner, child) for inner, child in children)
    )


keys = st.permutations(["a", "b", "x"]).flatmap(lambda names: st.integers(1, 3).map(lambda count: names[:count]))


KEYWORDS = st.lists(st.sampled_from(["allOf", "anyOf", "oneOf", "not", "if", "more"]), max_size=2)
MORE = st.sampled_from(["additionalProperties", "items", "contains"])


@cache
def nested(depth: int = 2) -> st.SearchStrategy[Any]:
    """Draw a schema whose objects have several properties, combined in every way."""
    if depth == 0:
        return st.sampled_from([True, {"type": "integer"}, {"const": {"b": 1, "a": 1}}, {"type": "object"}])
    inner = nested(depth - 1)
    branches = st.lists(inner, min_size=1, max_size=3)

    @st.composite
    def drawn(draw: st.DrawFn) -> Any:
        schema: dict[str, Any] = {"properties": {key: draw(inner) for key in draw(keys)}}
        for keyword in draw(KEYWORDS):
            if keyword == "not":
                schema["not"] = draw(inner)
            elif keyword == "if":
                schema |= {"if": draw(inner), "then": draw(inner), "else": draw(inner)}
            elif keyword == "more":
                schema |= {draw(MORE): draw(inner), "required": draw(keys), "dependentSchemas": {"a": draw(inner)}}
            else:
                schema[keyword] = draw(branches)
        return schema

    return drawn()


def pairs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(st.sampled_from("abx"), inner), max_size=4)


objects = st.recursive(
    st.sampled_from([1, 2, "a", None]), lambda inner: pairs(inner).map(dict) | st.lists(inner, max_size=2), max_leaves=8
)


@pytest.mark.slow
@profile(300)
@given(nested(), st.lists(objects, min_size=1, max_size=5))
def test_the_check_and_the_monitor_agree_with_the_definition(schema, values):
    constraint = ordered(schema)
    for value in values:
        text = json.dumps(value)
        assert constraint.accepts(text) is in_order(schema, value)
        assert constraint.verdict(text + " ") is (U if in_order(schema, value) else V)
        assert bool(constraint.fault(text)) is not constraint.accepts(text)


@pytest.mark.slow
@profile(150)
@given(whole_schemas(), st.lists(texts | mutated(texts), min_size=1, max_size=3), cuts)
def test_verdicts_are_sound_and_texts_only_excluded(schema, written, where):
    constraint, plain = ordered(schema), JSONSchema(schema)
    for text in written:
        assert_sound(constraint, text + " ")
        assert in_pieces(constraint, text, where) is constraint.verdict(text)
        assert plain.accepts(text) or not constraint.accepts(text)


AB, BA = obj("a", "b"), obj("b", "a")
CASES: list[tuple[Any, str, bool]] = [
    (AB, '{"a": 1, "b": 2}', True),
    (AB, '{"b": 2, "a": 1}', False),
    (AB, '{"b": 2}', True),
    (AB, '{"x": 0, "b": 2, "y": 0}', True),
    (AB, '{"a": 1, "x": 0, "b": 2}', True),
    ({"items": AB}, '[{"b": 2, "a": 1}]', False),
    ({"$ref": "#/$defs/d", "$defs": {"d": AB}}, '{"b": 2, "a": 1}', False),
    ({"$ref": "#d", "$defs": {"d": {"$anchor": "d", **AB}}}, '{"b": 2, "a": 1}', False),
    ({"$id": "s:s", "items": {"$id": "s:t", "$ref": "#/$defs/d", "$defs": {"d": AB}}}, '[{"b": 2, "a": 1}]', False),
    ({"allOf": [AB, BA]}, '{"a": 1, "b": 2}', False),
    ({"allOf": [AB, BA]}, '{"a": 1}', True),
    ({"anyOf": [AB, BA]}, '{"b": 2, "a": 1}', True),
    ({"anyOf": [AB, {**BA, "required": ["x"]}]}, '{"b": 2, "a": 1}', False),
    # Exactly one branch holds in any order, and it must be in order.
    ({"oneOf": [AB, BA]}, '{"a": 1, "b": 2}', False),
    ({"oneOf": [AB, {**BA, "required": ["x"]}]}, '{"b": 2, "a": 1}', False),
    ({"oneOf": [AB, {**BA, "required": ["x"]}]}, '{"a": 1, "b": 2}', True),
    # Tests demand no order: otherwise "not" would allow what it excludes, and "if" would not apply.
    ({"not": {**AB, "required": ["a", "b"]}}, '{"b": 2, "a": 1}', False),
    ({"if": {**AB, "required": ["a"]}, "then": {"required": ["x"]}}, '{"b": 2, "a": 1}', False),
    ({"contains": {**AB, "required": ["a"]}, "maxContains": 1}, '[{"a": 1, "b": 2}, {"b": 2, "a": 1}]', False),
    ({"contains": {**AB, "required": ["a"]}}, '[{"b": 2, "a": 1}]', True),
    ({"if": {"$ref": "#/$defs/d"}, "then": False, "$defs": {"d": {**AB, "required": ["a"]}}}, '{"b":2,"a":1}', False),
    ({"const": {"a": 1, "b": 2}}, '{"b": 2, "a": 1}', True),
    ({"enum": [{"a": 1, "b": 2}]}, '{"b": 2, "a": 1}', True),
    ({"$schema": "http://json-schema.org/draft-04/schema#", **AB}, '{"b": 2, "a": 1}', False),
    ({"dependentSchemas": {"a": AB}}, '{"b": 2, "a": 1}', False),
    ({"dependentSchemas": {"x": AB}}, '{"b": 2, "a": 1}', True),
    ({"unevaluatedProperties": AB}, '{"y": {"b": 2, "a": 1}}', False),
]


@pytest.mark.parametrize(("schema", "text", "accepted"), CASES, ids=repr)
def test_which_texts_are_excluded(schema, text, accepted):
    assert ordered(schema).accepts(text) is accepted
    assert ordered(schema).verdict(text + " ") is (U if accepted else V)


def test_types_keep_the_order_of_their_fields():
    constraint = ordered(Answer)
    assert constraint.accepts('{"reasoning": "", "answer": 1}')
    assert not constraint.accepts('{"answer": 1, "reasoning": ""}')
    assert constraint.parse('{"reasoning": "", "answer": 1}') == Answer(reasoning="", answer=1)
    assert constraint.fault('{"answer": 1, "reasoning": ""}') == (
        "$.reasoning: comes after 'answer', which the schema declares later"
    )


def test_a_fenced_block_is_checked_too():
    constraint = ordered(AB, where="fenced")
    assert constraint.accepts('```json\n{"a": 1, "b": 2}\n```')
    assert not constraint.accepts('```json\n{"b": 2, "a": 1}\n```')


def test_another_order_is_refused():
    with pytest.raises(ConstraintError, match="give 'schema', or None for any order"):
        JSONSchema({}, order="alphabet")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- how early

CLOSED = Answer.model_json_schema()
EARLY: list[tuple[Any, str]] = [
    # Each text is violated at its last character, and not before.
    (AB, '{"b": 1, "a"'),
    ({**AB, "required": ["a"]}, '{"b"'),  # the required key could only come too late
    (CLOSED, '{"a'),
    (CLOSED, '{"n'),
    (CLOSED, '{"reasoning": "", "n'),
    (CLOSED, '{"reasoning": "", "answer": 1, "r'),
    (CLOSED, '{"reasoning": "", "answer": 1, "notes": null,'),
    ({"anyOf": [AB, obj("x", "b", "a", required=["x"])]}, '{"b": 1, "a"'),
]


@pytest.mark.parametrize(("schema", "text"), EARLY, ids=repr)
def test_violated_as_early_as_can_be(schema, text):
    constraint = ordered(schema)
    assert [constraint.verdict(text[:end]) for end in range(len(text) + 1)] == [U] * len(text) + [V]


def test_a_mask_leaves_out_keys_in_the_wrong_order():
    monitor = ordered(Answer.model_json_schema()).monitor().read("{")
    assert monitor.verdicts(['"r', '"reasoning": "', '"answer', '"notes', '"']) == [U, U, V, V, U]
    monitor = monitor.read('"reasoning": "",')
    assert monitor.verdicts(['"answer', '"notes', '"reasoning', '"']) == [U, V, V, U]


@pytest.mark.slow
def test_masked_attempts_are_in_order():
    schema = {
        "properties": {"b": {"enum": [1, 2]}, "a": {"enum": [1, 2]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    constraint = ordered(schema, whitespace="compact")
    chat = [{"role": "user", "content": 'Write {"a": 1, "b": 2} as JSON.'}]
    (outcome,) = GuardedGenerator("local", constraint).run(
        chat, num_return_sequences=3, max_new_tokens=40, seed=1, proposal=Masked()
    )
    assert outcome.ok
    assert [list(json.loads(text)) for text in outcome.texts] == [["b", "a"]] * 3


@pytest.mark.parametrize("schema", [case[0] for case in CASES[:16:3]], ids=repr)
def test_the_laws_of_a_monitor(schema):
    written = [text for _, text, _ in CASES[:12]]
    check_constraint(ordered(schema), written)


# ------------------------------------------------------------------------------------------------- digest and files


def test_the_digest_depends_on_the_order():
    swapped = {"items": {"anyOf": [BA]}}
    one = {"items": {"anyOf": [AB]}}
    assert JSONSchema(one).digest == JSONSchema(swapped).digest
    assert len({JSONSchema(one).digest, ordered(one).digest, ordered(swapped).digest}) == 3
    assert (~ordered(one)).digest != (~ordered(swapped)).digest
    assert ordered(one, name="a").digest == ordered(one).digest
    # Other keys may have any order.
    assert ordered({"type": "object", **AB}).digest == ordered({**AB, "type": "object"}).digest


def test_a_file_keeps_the_order():
    python = ordered(CLOSED)
    written = dump(python)
    assert "order: schema" in written
    read = parse(written).constraint
    assert isinstance(read, JSONSchema)
    assert list(read.schema["properties"]) == ["reasoning", "answer", "notes"]
    assert read.digest == python.digest


# ------------------------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (Scope, "unordered", lambda scope: scope),
        (Objects, "barred", lambda rules, seen: {*rules.order} if rules.order else seen),
        (keywords, "_unordered", lambda validator: validator),
    ],
    ids=["the monitor's tests demand order", "every key is barred", "tests of whole texts demand order"],
)
def test_negative_controls(place, name, wrong, monkeypatch):
    monkeypatch.setattr(place, name, wrong)

    def differs(schema: Any, text: str, accepted: bool) -> bool:
        constraint = ordered(schema)
        return constraint.accepts(text) is not accepted or (constraint.verdict(text + " ") is U) is not accepted

    assert any(differs(*case) for case in CASES)
