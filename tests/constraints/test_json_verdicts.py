"""Verdicts on prefixes of JSON under a schema: sound, the same however the text is cut, and as early as they can be."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
import regex
from hypothesis import find, given
from hypothesis import strategies as st
from strategies import AWKWARD_PATTERNS, LETTERS, assert_sound, judged, mutated, patterns, profile
from test_schemas import CORNERS, LISTS, MAPS, values, whole_schemas

from guardwrap.constraints import (
    JSONSchema,
    Verdict,
    json_frames,
    json_plans,
    json_reading,
    json_scalars,
    json_subschemas,
)
from guardwrap.constraints.json_scalars import Limits, Pattern
from guardwrap.constraints.patterns import extent
from guardwrap.draws import Draw
from guardwrap.errors import ConstraintError
from guardwrap.testing import check_constraint

V, U = Verdict.VIOLATED, Verdict.UNDECIDED

# ------------------------------------------------------------------------------------- one value, spelled in many ways


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    """Write a value as JSON: with white space, escapes, numbers in other forms, and now and then a key twice."""
    space = st.sampled_from(["", "", "", " ", "\n\t"])
    if isinstance(value, dict):
        pairs = list(value.items())
        if pairs and draw(st.integers(0, 4)) == 0:
            pairs.insert(draw(st.integers(0, len(pairs))), (draw(st.sampled_from(pairs))[0], draw(values)))
        inner = [draw(spelled(key)) + draw(space) + ":" + draw(spelled(item)) for key, item in pairs]
        return draw(space) + "{" + ",".join(inner) + draw(space) + "}" + draw(space)
    if isinstance(value, list):
        return draw(space) + "[" + ",".join(draw(spelled(item)) for item in value) + "]" + draw(space)
    if isinstance(value, str):
        return '"' + "".join(draw(st.sampled_from([char, *escaped(char)])) for char in value) + '"'
    forms = [json.dumps(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        forms += [f"{value}.0", f"{value}0e-1", f"{value}E0", f"{value / 10}e1"] + ["-0", "-1e-999"] * (value == 0)
    return draw(space) + draw(st.sampled_from(forms))


def escaped(char: str) -> list[str]:
    """Return the ways of escaping a character."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return ["".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))]


texts = values.flatmap(spelled)
cuts = st.lists(st.integers(0, 40), max_size=4)


def in_pieces(constraint: JSONSchema, text: str, where: list[int]) -> Verdict:
    monitor = constraint.monitor()
    places = sorted({0, len(text), *(min(place, len(text)) for place in where)})
    for start, end in pairwise(places):
        monitor = monitor.read(text[start:end])
    return monitor.verdict


@pytest.mark.slow
@profile(1500)
@given(whole_schemas(), st.lists(texts | mutated(texts), min_size=1, max_size=4), cuts)
def test_verdicts_are_sound_and_the_same_however_the_text_is_cut(schema, written, where):
    constraint = JSONSchema(schema)
    for text in written:
        assert_sound(constraint, text + " ")
        assert in_pieces(constraint, text, where) is constraint.verdict(text)


@profile(300)
@given(st.sampled_from(CORNERS), st.sampled_from([*LISTS, *MAPS, 1, "a", None]).flatmap(spelled), cuts)
def test_corners_are_sound(schema, text, where):
    constraint = JSONSchema(schema)
    assert_sound(constraint, text + " ")
    assert in_pieces(constraint, text, where) is constraint.verdict(text)


@profile(300)
@given(whole_schemas(), texts)
def test_what_is_finished_and_wrong_is_violated(schema, text):
    constraint = JSONSchema(schema)
    assert constraint.verdict(text + " ") is (U if constraint.accepts(text) else V)


@pytest.mark.parametrize("schema", [*CORNERS, {"uniqueItems": True}, {"enum": [{"a": [1]}, "ab", 12]}], ids=json.dumps)
def test_the_laws_of_a_monitor(schema):
    written = [json.dumps(value) for value in (*LISTS[3:], *MAPS[3:], "ab", 12)]
    check_constraint(JSONSchema(schema), [*written, '{"a": 1, "\\u0061": 1}', "[1.0, 1e0] ", '"\\ud83d\\ude00'])


# A pattern on a string that still grows, and on a key.
STRINGS = [*LETTERS, "\n", "1", "8", ".", " ", "-", "é", "🙂", "aab", "abb"]


def assert_pattern_is_sound(pattern: str, text: str) -> None:
    if not extent(pattern, ()).dies:
        return
    for schema, before, after in [
        ({"pattern": pattern}, "", ""),
        ({"patternProperties": {pattern: True}, "additionalProperties": False}, "{", ":1}"),
    ]:
        try:
            constraint = JSONSchema(schema)
        except ConstraintError:
            return
        monitor, alive = constraint.monitor().read(before + '"'), []
        for end in range(len(text) + 1):
            whole = before + json.dumps(text[:end], ensure_ascii=False) + after
            if judged(constraint, Draw("", (), whole)):
                assert V not in alive, (schema, text[:end])
                assert constraint.verdict(whole) is U
            monitor = monitor.read(json.dumps(text[end : end + 1], ensure_ascii=False)[1:-1])
            alive.append(monitor.verdict)


@pytest.mark.slow
@profile(1500)
@given(patterns() | patterns(("a", "b", r"\n", ".")), st.lists(st.sampled_from(STRINGS), max_size=8).map("".join))
def test_patterns_are_sound(pattern, text):
    assert_pattern_is_sound(pattern, text)
    assert_pattern_is_sound(f"^{pattern}$", text)


def test_awkward_patterns_are_sound():
    for pattern in [*AWKWARD_PATTERNS, r"(?>$|\n)b", r"(?:$|\n)+b", r"^(a|b)$|^c", r"(^a|b$)", "(?:a$|b)*", r"(?m)a$"]:
        for text in ("ab", "a\n", "\nb", "aab\nb", "c", "abb.b", "\n", ""):
            assert_pattern_is_sound(pattern, text)


def test_negative_control_the_end_has_the_last_word():
    """``$`` is true at the end of the prefix, and an atomic group cannot be entered again where it is not."""
    hasty = Pattern(regex.compile(r"(?>$|\n)b"), dies=True)
    assert not hasty.may_be_found("\n", -1)
    assert hasty.found_in("\nb")
    assert not extent(r"(?>$|\n)b", ()).dies
    assert extent(r"^(?:a$|b)$|c$", ()).dies is False
    assert extent(r"^(a|b$)|c$", ()).dies


# ------------------------------------------------------------------------------------- does the property see anything?

PERSON = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "additionalProperties": False}
person_texts = st.fixed_dictionaries({"a": st.sampled_from([0, 0, 1, "x", 0.5])}).flatmap(spelled)


class LastOfTwo(JSONSchema):
    """A key that stands twice counts as ``json.loads`` has it."""

    def holds(self, text: str) -> bool:
        try:
            return bool(self.validator.is_valid(json.loads(text)))
        except ValueError:
            return False


def no_minus(limits: Limits, digits: str) -> bool:
    return digits[0] != "-" or limits.least < 0


def no_float(limits: Limits, value: float) -> bool:
    return isinstance(value, int) and limits.least <= value <= limits.most


@pytest.mark.parametrize(
    ("kind", "place", "name", "wrong"),
    [
        (LastOfTwo, Limits, "hold", Limits.hold),  # the constraint is what is wrong
        (JSONSchema, Limits, "may_hold", no_minus),
        (JSONSchema, Limits, "hold", no_float),
        (JSONSchema, json_reading.json, "loads", lambda body: body[1:-1]),
    ],
    ids=["the last of two keys", "-0 is below 0", "1.0 is no integer", "escapes are not read"],
)
def test_negative_controls(kind, place, name, wrong, monkeypatch):
    constraint = kind(PERSON)

    def caught(text: str) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, wrong)
            verdicts = [constraint.verdict(text[:end]) for end in range(len(text) + 1)]
        return V in verdicts and constraint.accepts(text)

    assert caught(find(person_texts, caught, settings=profile(3000)))


# ------------------------------------------------------------------------------------------------------- how early


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
    # JSON itself.
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
        ({"minimum": 0}, "-1e-999"),
        ({"maximum": 0}, "5e-999"),
        ({"type": "integer"}, "1.50e1"),
        ({"enum": [12]}, "0.0120e3"),
        ({"enum": [0]}, "7e-999"),
        ({"enum": [1e23]}, "99999999999999991611392.0"),
        ({"enum": [0.1]}, "0.1000000000000000055"),
        ({"enum": [5e-324]}, "4e-324"),
        ({"const": 1}, "1.0"),
        ({"maxLength": 1}, '"\\ud83d\\ude42"'),
        ({"enum": ["\ud83d", "\U0001f642"]}, '"\\ud83d"'),
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
        JSONSchema({}, whitespace="compct")


# --------------------------------------------------------------------------------------------------------------- costs


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the steps that are taken; the clock never runs out."""
    taken: list[int] = []
    for module in (json_reading, json_frames, json_plans, json_scalars, json_subschemas):
        monkeypatch.setattr(module, "look", lambda: taken.append(1))
    monkeypatch.setattr(json_reading, "VERDICT_SECONDS", 60)
    return taken


@pytest.mark.parametrize("schema", [{}, {"uniqueItems": True}, {"items": {"unevaluatedProperties": False}}], ids=repr)
def test_a_piece_costs_what_is_new(schema, looks):
    def steps(before: str) -> int:
        reading = JSONSchema(schema).monitor().read("[-1,").read(before)
        looks.clear()
        assert reading.read('{"a": 1}, -2, "').verdict in (U, V)
        return len(looks)

    assert steps(",".join(map(str, range(3000))) + ",") == steps("1,2,3,")
    assert steps('{"a":' * 3000) == steps('{"a":' * 3)


def test_a_schema_that_doubles_is_no_work(looks):
    parts: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    constraint = JSONSchema({"$defs": {**parts, "d40": {"maxItems": 1}}, "$ref": "#/$defs/d0"})
    assert constraint.verdict("[1,") is V
    assert len(looks) < 2000


def test_what_goes_in_circles_is_undecided():
    for schema in ({"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"not": {"$ref": "#"}}):
        assert JSONSchema(schema).verdict("[1] ") is U


def test_a_reading_that_takes_too_long_is_undecided(monkeypatch):
    constraint = JSONSchema({"type": "array"})
    reading = constraint.monitor().read("[")
    with monkeypatch.context() as patch:
        patch.setattr(json_reading, "VERDICT_SECONDS", -1)
        late = reading.read("[")
        assert reading.verdicts(["}", "["]) == [U, U]
    assert late.verdict is late.read("}").verdict is U
    assert reading.read("}").verdict is V


def test_plans_are_forgotten_where_they_are_many(monkeypatch):
    monkeypatch.setattr(json_reading.Plans, "LARGEST", 50)
    constraint = JSONSchema(obj(a=obj(b={"type": "null"}), c={"type": "string"}))
    for _ in range(5):
        assert constraint.verdict('{"a": {"b": null}, "d": [1, ""], "c": "x", "e": {"b": 1}}') is U
        assert constraint.verdict('{"c": "x", "a": {"b": 1') is V


def test_copies_read_on_their_own():
    made = JSONSchema({"items": {"pattern": "^a"}})
    assert made.verdict('["b') is V
    assert pickle.loads(pickle.dumps(made)).verdict('["b') is V


def test_monitors_of_other_views_read_all_again():
    assert JSONSchema({"type": "null"}, on="lines").monitor().read("1\nnull").verdict is V
    assert JSONSchema({"type": "null"}, where="fenced").monitor().read("```\n1").verdict is U
