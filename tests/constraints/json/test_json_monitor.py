"""Verdicts on prefixes of JSON under a schema: sound, independent of how the text is cut, and early."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
import regex
from hypothesis import find, given
from hypothesis import strategies as st

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.json import applicators, frames, json_monitor, subschemas
from guardwrap.constraints.json.subschemas import NumberRange, Pattern
from guardwrap.constraints.regex_analysis import extent
from guardwrap.errors import ConstraintError
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import (
    AWKWARD_PATTERNS,
    LETTERS,
    assert_sound,
    judged,
    mutated,
    patterns,
    profile,
    up_to,
)
from tests.constraints.json.test_schema_validation import CORNERS, LISTS, MAPS, values, whole_schemas

V, U = Verdict.VIOLATED, Verdict.UNDECIDED

# ------------------------------------------------------------------------------------- one value, spelled in many ways


space = st.sampled_from(["", "", "", " ", "\n\t"])


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    """Write a value as JSON: with white space, escapes, other number formats, and sometimes a duplicate key."""
    if isinstance(value, dict):
        pairs = list(value.items())
        if pairs and draw(up_to(4)) == 0:
            pairs.insert(draw(up_to(len(pairs))), (draw(st.sampled_from(pairs))[0], draw(values)))
        inner = [draw(spelled(key)) + draw(space) + ":" + draw(spelled(item)) for key, item in pairs]
        return draw(space) + "{" + ",".join(inner) + draw(space) + "}" + draw(space)
    if isinstance(value, list):
        return draw(space) + "[" + ",".join(draw(spelled(item)) for item in value) + "]" + draw(space)
    if isinstance(value, str):
        return '"' + "".join(draw(st.sampled_from([char, *escaped(char)])) for char in value) + '"'
    forms = [json.dumps(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        forms += [f"{value}.0", f"{value}0e-1", f"{value}E0", f"{value / 10}e1"] + ["-0", "-0e-999"] * (value == 0)
    return draw(space) + draw(st.sampled_from(forms))


def escaped(char: str) -> list[str]:
    """Return all escapes of a character."""
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
@profile(600)
@given(whole_schemas(), st.lists(texts | mutated(texts), min_size=1, max_size=4), cuts)
def test_verdicts_are_sound_and_the_same_however_the_text_is_cut(schema, written, where):
    constraint = JSONSchema(schema)
    for text in written:
        assert_sound(constraint, text + " ")
        assert in_pieces(constraint, text, where) is constraint.verdict(text)


@pytest.mark.slow
@profile(300)
@given(st.sampled_from(CORNERS), st.sampled_from([*LISTS, *MAPS, 1, "a", None]).flatmap(spelled), cuts)
def test_corners_are_sound(schema, text, where):
    constraint = JSONSchema(schema)
    assert_sound(constraint, text + " ")
    assert in_pieces(constraint, text, where) is constraint.verdict(text)


@pytest.mark.slow
@profile(300)
@given(whole_schemas(), texts)
def test_what_is_finished_and_wrong_is_violated(schema, text):
    constraint = JSONSchema(schema)
    assert constraint.verdict(text + " ") is (U if constraint.accepts(text) else V)


@pytest.mark.parametrize("schema", [*CORNERS, {"uniqueItems": True}, {"enum": [{"a": [1]}, "ab", 12]}], ids=json.dumps)
def test_the_laws_of_a_monitor(schema):
    written = [json.dumps(value) for value in (*LISTS[3:], *MAPS[3:], "ab", 12)]
    check_constraint(JSONSchema(schema), [*written, '{"a": 1, "\\u0061": 1}', "[1.0, 1e0] ", '"\\ud83d\\ude00'])


# A pattern for a string that still grows, and for a key.
STRINGS = [*LETTERS, "\n", "1", "8", ".", " ", "-", "é", "🙂", "aab", "abb"]


def assert_pattern_is_sound(pattern: str, text: str) -> None:
    if not extent(pattern, ()).dies:
        return
    schemas: list[tuple[dict[str, Any], str, str]] = [
        ({"pattern": pattern}, "", ""),
        ({"patternProperties": {pattern: True}, "additionalProperties": False}, "{", ":1}"),
    ]
    for schema, before, after in schemas:
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
@profile(600)
@given(patterns() | patterns(("a", "b", r"\n", ".")), st.lists(st.sampled_from(STRINGS), max_size=8).map("".join))
def test_patterns_are_sound(pattern, text):
    assert_pattern_is_sound(pattern, text)
    assert_pattern_is_sound(f"^{pattern}$", text)


def test_awkward_patterns_are_sound():
    for pattern in [*AWKWARD_PATTERNS, r"(?>$|\n)b", r"(?:$|\n)+b", r"^(a|b)$|^c", r"(^a|b$)", "(?:a$|b)*", r"(?m)a$"]:
        for text in ("ab", "a\n", "\nb", "aab\nb", "c", "abb.b", "\n", ""):
            assert_pattern_is_sound(pattern, text)


def test_negative_control_the_end_has_the_last_word():
    """``$`` matches at the end of the prefix, so the atomic group never tries its other branch."""
    hasty = Pattern(regex.compile(r"^(?>$|\n)b"), dies=True)
    assert not hasty.may_be_found("\n", -1)
    assert hasty.found_in("\nb")
    assert not extent(r"^(?>$|\n)b", ()).dies
    assert extent(r"^(?:a$|b)$|c$", ()).dies is False
    assert extent(r"^(a|b$)|c$", ()).dies


# ------------------------------------------------------------------------------------- does the property see anything?

PERSON = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "additionalProperties": False}
person_texts = st.fixed_dictionaries({"a": st.sampled_from([0, 0, 1, "x", 0.5])}).flatmap(spelled)


class LastOfTwo(JSONSchema):
    """Accept duplicate keys, and keep the last value, as ``json.loads`` does."""

    def holds(self, text: str) -> bool:
        try:
            return bool(self.validator.is_valid(json.loads(text)))
        except ValueError:
            return False


def no_minus(limits: NumberRange, digits: str) -> bool:
    return digits[0] != "-" or limits.least < 0


def no_float(limits: NumberRange, value: float) -> bool:
    return isinstance(value, int) and limits.least <= value <= limits.most


LIMITS = [(150, 190), (0, 9), (-5, 5), (-190, -150), (None, 12), (12, None), (-3, None), (None, -3), (1000, 1000)]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("least", "most"), LIMITS)
def test_without_exponents_digits_end_where_no_number_is_within_the_limits(least, most, exclusive):
    limits = {} if least is None else {"exclusiveMinimum": least - 1} if exclusive else {"minimum": least}
    limits |= {} if most is None else {"exclusiveMaximum": most + 1} if exclusive else {"maximum": most}
    reading = JSONSchema({"type": "integer", **limits}).monitor()
    assert isinstance(reading, json_monitor.JSONMonitor)
    plain = reading.without_exponents()
    numbers = [str(n) for n in range(-3000, 3000) if (least is None or n >= least) and (most is None or n <= most)]
    beginnings = {number[:end] for number in numbers for end in range(1, len(number) + 1)}
    for number in range(-300, 300):
        text = str(number)
        assert (plain.read(text).verdict is not V) == (text in beginnings), text


def test_without_exponents_digits_end_where_they_begin_no_number_of_a_list():
    numbers = [1, 25, 300, -4, 0.5]
    reading = JSONSchema({"enum": numbers}).monitor()
    assert isinstance(reading, json_monitor.JSONMonitor)
    beginnings = {str(number)[:end] for number in numbers for end in range(1, 5)} | {"1.0", "25.00", "0.50", "-4.0"}
    for text in (*beginnings, *map(str, range(-50, 400)), "0.05", "0.55", "1.5", "25.1", "-4.5"):
        assert (reading.without_exponents().read(text).verdict is not V) == (text in beginnings), text


def test_without_exponents_fractions_count_up_to_exclusive_limits():
    reading = JSONSchema({"type": "number", "exclusiveMinimum": 2, "exclusiveMaximum": 10}).monitor()
    assert isinstance(reading, json_monitor.JSONMonitor)
    monitor = reading.without_exponents()
    dead = {"0", "1", "1.9", "10", "10.", "-", "-3"}
    for text in (*dead, "2", "2.0", "2.00", "9", "9.9"):
        assert (monitor.read(text).verdict is V) == (text in dead), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "place", "name", "wrong"),
    [
        (LastOfTwo, NumberRange, "hold", NumberRange.hold),  # here the constraint itself is wrong
        (JSONSchema, NumberRange, "may_hold", no_minus),
        (JSONSchema, NumberRange, "hold", no_float),
        (JSONSchema, json, "loads", lambda body: body[1:-1]),
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


# --------------------------------------------------------------------------------------------------------------- costs


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the steps; the time limit never ends."""
    taken: list[int] = []
    for module in (json_monitor, frames, applicators, subschemas):
        monkeypatch.setattr(module, "check_deadline", lambda: taken.append(1))
    monkeypatch.setattr(json_monitor, "VERDICT_SECONDS", 60)
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
        patch.setattr(json_monitor, "VERDICT_SECONDS", -1)
        late = reading.read("[")
        assert reading.verdicts(["}", "["]) == [U, U]
    assert late.verdict is late.read("}").verdict is U
    assert reading.read("}").verdict is V


def test_plans_are_forgotten_where_they_are_many(monkeypatch):
    monkeypatch.setattr(json_monitor.ApplicatorCache, "LARGEST", 50)
    inner = {"properties": {"b": {"type": "null"}}}
    constraint = JSONSchema({"properties": {"a": inner, "c": {"type": "string"}}})
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
