"""Places of violations, in errors and reports: where they are, and that they contain no generated text."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Part, Regex
from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.checking import judge_parts
from guardwrap.constraints.json import json_monitor, schema_validation
from guardwrap.constraints.json_paths import INCOMPLETE, NOT_JSON, PYTHON_TYPE, WHITE_SPACE, declared_names, shown_place
from guardwrap.errors import UsageError
from guardwrap.outcomes import Draw
from tests.constraints.fixtures_strategies import profile


def tagged(name: str, **arguments: Any) -> dict[str, Any]:
    inner = {"type": "object", "properties": arguments, "required": [*arguments], "additionalProperties": False}
    properties = {"kind": {"const": name}, "arguments": inner}
    return {"type": "object", "properties": properties, "required": ["kind", "arguments"]}


UNIT = {"enum": ["C", "F"]}
BRANCHES = [tagged("weather", unit=UNIT, days={"items": {"type": "integer"}}), tagged("mail", to={"type": "string"})]


def calls(branches: list[Any], keyword: str = "anyOf", **more: Any) -> dict[str, Any]:
    return {"properties": {"call": {keyword: branches, **more}}}


WEATHER = {"unit": "C", "days": [1]}
K = {"call": {"kind": "weather", "arguments": {**WEATHER, "unit": "K"}}}


class Weather(pydantic.BaseModel):
    kind: Literal["weather"]
    unit: Literal["C", "F"]


class Mail(pydantic.BaseModel):
    kind: Literal["mail", "letter"]
    to: str


class Calls(pydantic.BaseModel):
    call: Weather | Mail | None
    tagged: list[Weather | Mail] = pydantic.Field(default=[], discriminator=None)


OPEN_API = {
    "properties": {"pet": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": {
        "propertyName": "type", "mapping": {"feline": "#/$defs/Cat", "canine": "Dog"},
    }}},
    "$defs": {
        "Cat": {"properties": {"type": {"type": "string"}, "lives": {"type": "integer"}}, "required": ["lives"]},
        "Dog": {"properties": {"type": {"type": "string"}, "barks": {"type": "boolean"}}, "required": ["barks"]},
    },
}  # fmt: skip
IMPLICIT = json.loads(json.dumps(OPEN_API))
del IMPLICIT["properties"]["pet"]["discriminator"]["mapping"]

UNIONS: list[tuple[Any, Any, str]] = [
    (calls(BRANCHES), K, "$.call.arguments.unit: 'K' is not one of 'C', 'F'"),
    (calls(BRANCHES, "oneOf"), K, "$.call.arguments.unit: 'K' is not one of 'C', 'F'"),
    (calls([*BRANCHES, {"type": "null"}]), K, "$.call.arguments.unit: 'K' is not one of 'C', 'F'"),
    (calls(BRANCHES), {"call": {"kind": "mail", "arguments": {}}}, "$.call.arguments: 'to' is a required property"),
    (calls(BRANCHES), {"call": {"kind": "fax"}}, "$.call.kind: 'fax' is not one of 'weather', 'mail'"),
    (calls(BRANCHES), {"call": {}}, "$.call: 'kind' is a required property"),
    (calls(BRANCHES), {"call": {"kind": 1}}, "$.call.kind: 1 is not one of 'weather', 'mail'"),
    ({"items": calls(BRANCHES)}, [{}, K], "$[1].call.arguments.unit: 'K' is not one of 'C', 'F'"),
    # A union in a union, a branch that refers to another schema, and one in allOf:
    (calls([{"anyOf": BRANCHES}, {"type": "null"}]), K, "$.call.arguments.unit: 'K' is not one of 'C', 'F'"),
    (
        {**calls([{"$ref": "#/$defs/w"}, {"allOf": [BRANCHES[1]]}]), "$defs": {"w": BRANCHES[0]}},
        K,
        "$.call.arguments.unit: 'K' is not one of 'C', 'F'",
    ),
    # Without a tag: the only branch whose type fits.
    ({"anyOf": [{"type": "null"}, {"properties": {"a": UNIT}, "type": "object"}]}, {"a": 1}, "$.a: 1 is not one of"),
    ({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 1}]}, "ab", "'ab' is too long"),
    (
        {"anyOf": [{"properties": {"a": UNIT}}, {"properties": {"b": UNIT}}]},
        {"a": 1, "b": 1},
        "{'a': 1, 'b': 1} is not",
    ),
    ({"anyOf": [{"type": "null"}, {"type": "string"}]}, 1, "1 is not valid under any of the given schemas"),
    ({"oneOf": [{}, {}]}, 1, "is valid under 2 of the given schemas"),
    # Two branches with one tag: the tag names none.
    (calls([BRANCHES[0], BRANCHES[0]]), K, "$.call: {'kind': 'weather', 'arguments': "),
    # Pydantic and OpenAPI:
    (Calls, {"call": {"kind": "letter"}}, "$.call: 'to' is a required property"),
    (Calls, {"call": {"kind": "weather", "unit": "K"}}, "$.call.unit: 'K' is not one of 'C', 'F'"),
    (Calls, {"call": {"kind": "fax"}}, "$.call.kind: 'fax' is not one of 'weather', 'mail', 'letter'"),
    (OPEN_API, {"pet": {"type": "feline", "lives": "9"}}, "$.pet.lives: '9' is not of type 'integer'"),
    (OPEN_API, {"pet": {"type": "canine"}}, "$.pet: 'barks' is a required property"),
    (OPEN_API, {"pet": {"type": "cow"}}, "$.pet.type: 'cow' is not one of 'feline', 'canine'"),
    (IMPLICIT, {"pet": {"type": "Dog"}}, "$.pet: 'barks' is a required property"),
    # The schema refers to itself.
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, None, ""),
]


@pytest.mark.parametrize(("schema", "value", "reason"), UNIONS, ids=lambda value: json.dumps(value, default=str)[:60])
def test_a_union_is_explained_by_the_branch_that_was_meant(schema, value, reason):
    fault = JSONSchema(schema).fault(json.dumps(value)) if reason else reason
    assert fault.startswith(reason)


def test_negative_control_the_union_itself_is_blamed(monkeypatch):
    monkeypatch.setattr(schema_validation, "_meant", lambda error: (None, None))
    changed = [
        case for case in UNIONS if not case[2] or not JSONSchema(case[0]).fault(json.dumps(case[1])).startswith(case[2])
    ]
    assert len(changed) > len(UNIONS) / 2


branch = st.sampled_from(["weather", "mail"])
parts: st.SearchStrategy[Any] = st.sampled_from(["C", "K", 1, None, [1], ["x"], {}])


@profile(200)
@given(branch, st.dictionaries(st.sampled_from(["unit", "days", "to", "x"]), parts, max_size=3))
def test_the_fault_of_a_union_is_that_of_its_branch(name, arguments):
    value = json.dumps({"kind": name, "arguments": arguments})
    alone = JSONSchema(BRANCHES[name == "mail"])
    assert JSONSchema({"anyOf": BRANCHES}).fault(value) == alone.fault(value)


# ------------------------------------------------------------------------------------------------ no generated text

SECRET = "s3cr3t"
NESTED = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#"},
        "b": {"type": "array", "items": {"$ref": "#"}},
        "c": {"anyOf": [{"type": "integer"}, {"const": "c"}, *BRANCHES]},
    },
    "patternProperties": {"^s": {"minLength": 9}},
    "propertyNames": {"pattern": "^(a|b|c|s.*|x)$"},
    "additionalProperties": False,
    "maxProperties": 3,
    "required": ["c"],
}
secrets = st.recursive(
    st.sampled_from([SECRET, 1, "c", None, {"kind": SECRET}, {"kind": "mail", "arguments": {SECRET: SECRET}}]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(st.tuples(st.sampled_from(["a", "b", "c", SECRET, "x"]), inner), max_size=3).map(dict)
    ),
    max_leaves=6,
)
PLACE = re.compile(r"\$(?:\.(?:a|b|c|kind|arguments|unit|days|to|\*)|\[\])*…?")


def places(constraint: JSONSchema, text: str) -> list[str]:
    """Return the places that the check and the monitor name for a text that is invalid."""
    monitor, at_once = constraint.monitor(), constraint.monitor().read(text)
    for char in text:
        monitor = monitor.read(char)
    assert monitor.violated_at == at_once.violated_at
    assert (monitor.violated_at is None) is (monitor.verdict is not Verdict.VIOLATED)
    return [place for place in (constraint.place_in(Draw("", (), text)), monitor.violated_at) if place is not None]


def quotes(constraint: JSONSchema, text: str) -> bool:
    """Whether a place or the error of ``parse`` has generated text."""
    if constraint.accepts(text):
        return False
    with pytest.raises(UsageError) as caught:
        constraint.parse(text)
    named = places(constraint, text)
    return SECRET in str(caught.value) or not all(place == NOT_JSON or PLACE.fullmatch(place) for place in named)


@pytest.mark.slow
@profile(400)
@given(secrets, st.integers(0, 99))
def test_no_generated_text_in_places_and_errors(value, cut):
    constraint = JSONSchema(NESTED, name="it")
    text = json.dumps(value)
    assert not quotes(constraint, text)
    assert not quotes(constraint, text[:cut] + SECRET)


def test_negative_control_keys_that_are_quoted(monkeypatch):
    def quoted(steps: Any, declared: frozenset[str]) -> str:
        return shown_place(steps := [*steps], declared | {step for step in steps if isinstance(step, str)})

    text = json.dumps({"c": 1, SECRET: "short"})
    assert places(JSONSchema(NESTED), text) == ["$.*", "$.*"]
    for module in (schema_validation, json_monitor):
        with monkeypatch.context() as patch:
            patch.setattr(module, "shown_place", quoted)
            assert quotes(JSONSchema(NESTED), text)


def test_deep_places_are_cut():
    assert shown_place(["a"] * 20, frozenset("a")) == "$" + ".a" * 8 + "…"
    assert shown_place(["it's", "x-y", 0], frozenset(("it's", "x-y"))) == '$["it\'s"].x-y[]'


def test_declared_names_are_those_of_all_subschemas():
    assert declared_names(NESTED) == {"a", "b", "c", "kind", "arguments", "unit", "days", "to"}
    assert declared_names({"required": ["r", 1], "properties": True, "items": [{"properties": {"p": {}}}]}) == {
        "r",
        "p",
    }


# ------------------------------------------------------------------------------------------- the check and the monitor

SAME: list[tuple[Any, str, str]] = [
    (calls(BRANCHES), json.dumps(K), "$.call.arguments.unit"),
    (calls(BRANCHES), '{"call": {"kind": "fax"}}', "$.call.kind"),
    (calls(BRANCHES), '{"call": {"kind": "mail", "arguments": {}}}', "$.call.arguments.to"),
    (calls(BRANCHES), '{"call": {"kind": "mail", "arguments": {"to": "", "cc": 1}}}', "$.call.arguments.*"),
    (
        calls(BRANCHES),
        '{"call": {"kind": "weather", "arguments": {"unit": "C", "days": [1, "x"]}}}',
        "$.call.arguments.days[]",
    ),
    ({"type": "object"}, "[1]", "$"),
    ({"items": {"type": "integer"}}, '["a"]', "$[]"),
    ({"properties": {"a": {"maximum": 3}}}, '{"a": 4}', "$.a"),
    ({"properties": {"a": {"type": "null"}}}, '{"a": true}', "$.a"),
    ({"properties": {"a": {"minItems": 2}}}, '{"a": [1]}', "$.a"),
    ({"required": ["a", "b"]}, '{"b": {}}', "$.a"),
    ({}, "Sure! {", NOT_JSON),
    ({}, '{"a": 1, "a": 2}', NOT_JSON),
]


@pytest.mark.parametrize(("schema", "text", "place"), SAME, ids=repr)
def test_the_check_and_the_monitor_name_the_same_place(schema, text, place):
    assert places(JSONSchema(schema), text + " ") == [place, place]


@pytest.mark.slow
@profile(400)
@given(secrets, st.integers(0, 99), st.booleans())
def test_a_text_that_no_continuation_helps_has_the_place_of_an_early_abort(value, cut, finished):
    constraint = JSONSchema(NESTED)
    text = json.dumps(value)[:cut] + "x"
    stopped = constraint.monitor().read(text).violated_at
    assert stopped in (None, constraint.place_in(Draw("", (), text, finished)))


def test_an_order_is_blamed_on_the_late_key():
    constraint = JSONSchema({"properties": {"a": {}, "b": {}}}, order="schema")
    assert places(constraint, '{"b": 1, "a": 2}') == ["$.a", "$.a"]


def test_other_reasons():
    def place(constraint: Any, text: str, *, finished: bool = True) -> str | None:
        (judgement,) = judge_parts([constraint], [Draw("", (), text, finished)], with_places=True)
        assert not judgement.satisfied
        assert judge_parts([constraint], [Draw("", (), text, finished)])[0].place is None
        return judgement.place

    class Even(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def _even(cls, number: int) -> int:
            asked.append(number)
            assert number % 2 == 0
            return number

    asked: list[int] = []
    assert place(JSONSchema(Even), '{"number": 1}') == PYTHON_TYPE
    assert asked == [1, 1]  # once by each check: finding the place does not run it again
    assert place(JSONSchema(Even), '{"number": "a"}') == "$.number"
    assert place(JSONSchema({}, whitespace="compact"), "[1,  2]") == WHITE_SPACE
    assert places(JSONSchema({}, whitespace="compact"), "[1,  2]") == [WHITE_SPACE] * 2
    assert place(JSONSchema({}), '{"a', finished=False) == INCOMPLETE
    assert place(JSONSchema({}), '{"a') == NOT_JSON
    assert place(JSONSchema({}, where="fenced"), "x") == "0 fenced blocks"
    assert place(JSONSchema({"items": {"type": "null"}}, where="fenced"), "```\n[1]\n```") == "$[]"
    assert place(JSONSchema({"type": "null"}, on=Part(after="A:")), "A: 1") == "$"
    assert place(JSONSchema({"type": "null"}, on="lines"), "null\n1") == "$"
    assert place(Regex("a"), "b") is None
    assert place(~JSONSchema({}), "1") is None


def test_parts_of_a_text_have_places_too():
    part = JSONSchema({"items": {"type": "null"}}, on=Part(after="A:"))
    assert part.monitor().read("x A: [1").violated_at == "$[]"
    assert (part & Regex("x")).monitor().read("x A: [1").violated_at == "$[]"
    assert (part | Regex("^z", match="fullmatch")).monitor().read("x A: [1").violated_at is None


def test_errors_of_parse_name_the_place():
    with pytest.raises(UsageError, match=r"\(\$\.call\.arguments\.unit is not one of 'C', 'F'\), so it is not parsed"):
        JSONSchema(calls(BRANCHES)).parse(json.dumps(K))
    with pytest.raises(UsageError, match=r"\(not JSON\), so it is not parsed"):
        JSONSchema({}).parse("Sure")
