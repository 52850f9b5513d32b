"""Automata of JSON say of whole texts what their schemas say."""

import json
import random
from typing import Any

import pytest

from guardwrap import Constraint, Finished, JSONSchema, Parses
from guardwrap.twists.automata import Automaton
from guardwrap.twists.progress_of import automaton_of

STRING = {"type": "string"}
NUMBER = {"type": "number"}


def closed(keys: Any, required: Any = None) -> dict[str, Any]:
    """Return the schema of an object with these keys only; strings if they are names."""
    properties = keys if isinstance(keys, dict) else dict.fromkeys(keys, STRING)
    names = [*properties] if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


FIVE = closed(["name", "age", "email", "city", "job"])
POINT = closed({"x": NUMBER})
ARRAY = {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 3}
RULES = [
    JSONSchema(True),
    Parses("json"),
    JSONSchema(FIVE),
    JSONSchema(FIVE, order="schema"),
    JSONSchema(FIVE, whitespace="compact"),
    JSONSchema(closed("abcdefg")),
    JSONSchema(closed("abcdefg", ["a", "b"])),
    JSONSchema({"type": "array", "items": STRING}),
    JSONSchema(ARRAY),
    JSONSchema({"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 2}),
    JSONSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2}),
    JSONSchema(closed({"a": STRING, "ab": NUMBER}, ["a"])),
    JSONSchema({"type": "object", "properties": {"a": STRING}, "required": ["a"]}),
    JSONSchema({"type": "object", "additionalProperties": NUMBER, "required": ["a"]}),
    JSONSchema(closed({"a": {"enum": ["x", "xy", 1, 10, None]}, "b": {"type": "boolean"}}, ["a"])),
    JSONSchema(closed({"a": {"const": "x"}, "b": False}, ["a"])),
    JSONSchema({"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [STRING, NUMBER], "items": False}]}),
    JSONSchema({"$defs": {"point": POINT}, "type": "array", "items": {"$ref": "#/$defs/point"}}),
    JSONSchema({"allOf": [POINT], "title": "a point"}),
    JSONSchema(closed({"p": closed("ab"), "q": closed("ab"), "r": ARRAY})),
]


def like(schema: Any, chance: random.Random, depth: int = 0) -> Any:
    """Return a value that a schema allows, or nearly."""
    if not isinstance(schema, dict) or depth > 2 or chance.random() < 0.04:
        flat = ["", "xy", 'é"\n', -3, 1.5, True, None]
        return chance.choice([*flat, *([[1], {"a": "b"}, [], {}] if depth < 2 else [])])
    if "$ref" in schema or "allOf" in schema:
        schema = POINT
    if "anyOf" in schema:
        return like(chance.choice(schema["anyOf"]), chance, depth)
    if "enum" in schema or "const" in schema:
        return chance.choice(schema.get("enum", [schema.get("const")]))
    if schema["type"] == "object":
        declared = schema.get("properties", {})
        keys = [key for key in declared or "ab" if chance.random() < 0.9]
        if chance.random() < 0.5:
            chance.shuffle(keys)
        keys += ["zz"] * (chance.random() < 0.1)
        return {
            key: like(declared.get(key, schema.get("additionalProperties", True)), chance, depth + 1) for key in keys
        }
    if schema["type"] == "array":
        if "prefixItems" in schema:
            return [like(item, chance, depth + 1) for item in schema["prefixItems"]][: chance.randrange(4)]
        return [like(schema["items"], chance, depth + 1) for _ in range(chance.randrange(5))]
    values = {"string": chance.choice(["", "x", "abc", "abcd", "ü\t"]), "integer": chance.randrange(-5, 30)}
    return {**values, "number": chance.choice([1, 2.5, -1e5]), "boolean": True}.get(schema["type"])


def texts(schema: Any, seed: int, count: int = 400) -> list[str]:
    """Return texts of JSON, some of them with a character too many or too few."""
    chance, written = random.Random(seed), []
    for _ in range(count):
        separators = chance.choice([None, (",", ":")])
        value = like(schema, chance)
        text = json.dumps(
            value, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, None, 1]), separators=separators
        )
        place, what = chance.randrange(len(text) + 1), chance.random()
        if what < 0.15:
            text = text[:place] + chance.choice('",:{}[]\\ x1.-ntu0\n') + text[place:]
        elif what < 0.25:
            text = text[:place]
        elif what < 0.35:
            text = text[:place] + text[place + 1 :]
        written.append(text)
    return written


def known(rule: Constraint) -> Automaton:
    automaton = automaton_of(rule)
    assert automaton is not None
    return automaton


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_automata_of_json_agree_with_schemas(rule: JSONSchema) -> None:
    automaton, passed = known(rule), 0
    live = automaton.live()
    for text in texts(getattr(rule, "schema", True), seed=1):
        state, passes = automaton.read(text), rule.accepts(text)
        assert (bool(automaton.ended[state]), bool(automaton.cut[state])) == (passes, passes), text
        assert live[state] or not passes
        passed += passes
    assert 12 < passed < 388, "the texts test both"


def test_the_beginnings_of_valid_texts_are_live_and_others_are_dead() -> None:
    automaton = known(JSONSchema(FIVE))
    live = automaton.live()
    text = '{"job": "", "name": "a\\u00e9\\n", "age": "3", "email": "x", "city": "y"}'
    assert all(live[automaton.read(text[:size])] for size in range(len(text) + 1))
    assert live[automaton.read(" \n" + text + "\t")]
    wrong = (
        '{"job": 1',
        '{"joke',
        '{"job": "", "job":',
        '{"job": ""}',
        "x",
        "[",
        text + "x",
        '{"job": "\n',
        '{"job": "\\x',
    )
    assert not any(live[automaton.read(text)] for text in wrong)


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_numbers(kind: str) -> None:
    rule = JSONSchema({"type": kind})
    automaton = known(rule)
    for text in ("", "-", "0", "-0", "01", "10", "+1", "1 2", " 7\n", "7a", "NaN"):
        assert bool(automaton.ended[automaton.read(text)]) == rule.accepts(text), text
    for text in ("1.", ".5", "1.5", "1e", "1e+", "1e5", "-0.5E+3", "1e5.2", "1.5e-07"):
        passes = kind == "number" and rule.accepts(text)
        assert bool(automaton.ended[automaton.read(text)]) == passes, text


def test_what_a_schema_leaves_to_its_own_check_is_not_judged() -> None:
    number = known(JSONSchema({"type": "number", "minimum": 3}))
    assert number.ended[number.read("1")]
    text = known(JSONSchema({"type": "string", "pattern": "^a", "format": "date"}))
    assert text.ended[text.read('"b"')]
    keys = known(
        JSONSchema({"type": "object", "properties": dict.fromkeys("abcdefgh", STRING), "required": [*"abcdefgh"]})
    )
    assert not keys.ended[keys.read('{"a": "", "b": ""}')]
    assert keys.ended[keys.read(json.dumps(dict.fromkeys("hgfedcba", "")))]


@pytest.mark.parametrize(
    "rule",
    [
        JSONSchema({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}),
        JSONSchema({"anyOf": [closed("ab"), closed("cd")]}),
        JSONSchema({"allOf": [closed("ab"), {"minProperties": 1}]}),
        JSONSchema({"not": STRING}),
        JSONSchema({"enum": [[1], [2]]}),
        JSONSchema(closed(['a"b'])),
        JSONSchema(FIVE, where="fenced"),
        JSONSchema(FIVE, on="first_line"),
        JSONSchema({"type": "array", "items": closed({key: closed("abcdef") for key in "abcdef"})}),
        JSONSchema({"type": "object", "properties": {f"key{n}": {"enum": [n]} for n in range(1000)}}),
        Parses("yaml"),
    ],
    ids=str,
)
def test_schemas_that_no_automaton_follows(rule: Constraint) -> None:
    assert automaton_of(rule) is None


def test_combinations_with_json() -> None:
    whole = known(JSONSchema(FIVE) & Finished())
    state = whole.read(json.dumps(dict.fromkeys(FIVE["required"], "")))
    assert whole.ended[state]
    assert not whole.cut[state]
