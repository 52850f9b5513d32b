"""``JSONSchema``: the recognizer of prefixes compared with json.loads, and schemas."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.checking import run_check, run_verdict
from guardwrap.constraints.json import json_monitor
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.outcomes import Draw
from guardwrap.support import time_limits
from tests.constraints.fixtures_strategies import json_texts, mutated, profile


def refuse(name):
    raise ValueError(name)


def distinct(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key twice")


def parses(text):
    try:
        value = json.loads(text, parse_constant=refuse, object_pairs_hook=distinct)
        json.dumps(value, ensure_ascii=False).encode()  # UTF-8 cannot encode half of a surrogate pair
    except (ValueError, RecursionError):
        return False
    return True


ANY = JSONSchema(True)


def begins_json(prefix):
    return ANY.monitor().read(prefix).verdict is not Verdict.VIOLATED


@pytest.mark.slow
@profile(600)
@given(json_texts())
def test_every_prefix_of_json_begins_json(text):
    for end in range(len(text) + 1):
        assert begins_json(text[:end]), text[:end]


JSON_PIECES = [
    *'{}[]:,"\\0123456789.eE+-tfn \n\r\t/bu\x00\x1f\x7f\ufeff\u2028\u00a0',
    "true",
    "false",
    "null",
    "NaN",
    "\\u00",
]
JSON_PIECES += ["1.5", "-0", "01", "1e", '"a":', '{"', '"}', "Infinity", "-I", "\\ud800", "é", "0x", "\x0c"]
soup = st.lists(st.sampled_from(JSON_PIECES), max_size=10).map("".join)
continuations = st.lists(soup | json_texts(), min_size=1, max_size=3)


@pytest.mark.slow
@profile(600)
@given(mutated(json_texts()) | soup, continuations)
def test_a_dead_prefix_has_no_continuation(text, rests):
    if parses(text):
        assert begins_json(text)
    for end in range(len(text) + 1):
        prefix = text[:end]
        if not begins_json(prefix):
            assert not parses(text)
            assert not begins_json(text), "dead prefixes stay dead"
            assert not any(parses(prefix + rest) for rest in rests)
            break


def completion(prefix):
    """Complete the prefix in some way that makes it JSON."""
    endings = [
        "",
        "0",
        '"',
        '0"',
        '":0',
        ":0",
        "0000",
        '\\"',
        '\\\\"',
        '\\u0000"',
        "00",
        "000",
        "n",
        '":0}',
        "u0000",
        '""',
        "\\",
    ]
    endings += [word[i:] for word in ("true", "false", "null") for i in range(5)]
    endings += [digits + '\\udc00"'[i:] for digits in ("00", "0", "") for i in range(6)]  # the second half of a pair
    endings += [x + '"' for x in ("u0000", "0000", "000", "00", "0", "n")]
    opened, closers, i = [], "", 0
    while i < len(prefix):  # brackets outside strings
        if prefix[i] == '"':
            i += 1
            while i < len(prefix) and prefix[i] != '"':
                i += 2 if prefix[i] == "\\" else 1
        elif prefix[i] in "{[":
            opened.append(prefix[i])
        elif prefix[i] in "}]":
            opened.pop()
        i += 1
    closers = "".join({"{": "}", "[": "]"}[char] for char in reversed(opened))
    for ending in endings:
        for more in ("", ":0", '"a":0', "0"):
            if parses(prefix + ending + more + closers):
                return prefix + ending + more + closers
    return None


@pytest.mark.slow
@profile(600)
@given(mutated(json_texts()) | soup)
def test_a_live_prefix_has_a_continuation(text):
    """The recognizer is exact: if a prefix is not VIOLATED, it can be completed."""
    for end in range(len(text) + 1):
        if not begins_json(text[:end]):
            break
        assert completion(text[:end]) is not None, text[:end]


@pytest.mark.slow
def test_deep_nesting_is_linear(monkeypatch):
    monkeypatch.setattr(json_monitor, "VERDICT_SECONDS", 60)

    def seconds(count):
        start = time.process_time()
        assert begins_json("[" * count)
        assert begins_json('{"a":' * count)
        assert not begins_json("[" * count + "}")
        assert begins_json('"' + "a" * count)
        assert begins_json("1" * count)
        return time.process_time() - start

    seconds(1000)
    assert seconds(100_000) < 10


def test_deep_nesting_is_no_crash():
    for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000):
        assert JSONSchema({}).accepts(text) is False
    recursive = JSONSchema({"$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"})
    assert recursive.accepts("[[[]]]")
    with pytest.raises(CheckFailed, match="nested too deeply"):
        recursive.accepts("[" * 500 + "]" * 500)


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "[Infinity]", "\ufeff{}", "", " ", "{'a': 1}", "[1,]", "01", "1" * 5000]
)
def test_refuses_what_is_not_json(text):
    assert JSONSchema(True).accepts(text) is False


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (True, ["1", " null\n"], ["", "a"]),
        (False, [], ["1", "{}"]),
        ({"type": "integer"}, ["1", "-2.0"], ["1.5", "true", '"1"']),
        ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
        ({"required": ["a"], "properties": {"a": {"type": "string"}}}, ['{"a": ""}', "[]"], ['{"a": 1}', "{}"]),
        ({"additionalProperties": False, "properties": {"a": {}}}, ['{"a": 1}'], ['{"b": 1}']),
        (
            {
                "additionalProperties": {"type": "null"},
                "properties": {"a": {}},
                "patternProperties": {"^x|y$": {"type": "integer"}},
            },
            ['{"a": "", "x1": 1, "1y": 2, "b": null}'],
            ['{"b": 1}', '{"x": null}'],
        ),
        ({"pattern": r"^\d{3}$"}, ['"123"', "1234"], ['"1234"', '"a"']),
        ({"propertyNames": {"pattern": "^a"}}, ['{"ab": 1}'], ['{"b": 1}']),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]}, ['{"a": 1}'], ['{"b": 1}']),
        ({"$defs": {"n": {"type": "null"}}, "items": {"$ref": "#/$defs/n"}}, ["[null]"], ["[1]"]),
        ({"$defs": {"n": {"$anchor": "here", "type": "null"}}, "items": {"$ref": "#here"}}, ["[null]"], ["[1]"]),
        ({"const": {"$ref": "http://example.com/"}}, ['{"$ref": "http://example.com/"}'], ["{}"]),
        ({"enum": [{"pattern": "("}]}, ['{"pattern": "("}'], ["{}"]),
        (
            {"properties": {"pattern": {"type": "null"}, "$ref": {"type": "null"}}},
            ['{"pattern": null}'],
            ['{"$ref": 1}'],
        ),
    ],
    ids=repr,
)
def test_schemas(schema, accepted, rejected):
    constraint = JSONSchema(schema)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "```json\n{}\n```",
        "Sure:\n```\n{}\n```\nDone",
        "  ```json  \n {}\n  ```  ",
    ],
)
def test_fenced(text):
    assert JSONSchema({"type": "object"}, where="fenced").accepts(text)


@pytest.mark.parametrize(
    "text", ["{}", "```json\n{}", "```json\n[]\n```", "```\n{}\n```\n```\n{}\n```", "```python\n{}\n```", ""]
)
def test_not_fenced(text):
    assert not JSONSchema({"type": "object"}, where="fenced").accepts(text)


def test_catastrophic_patterns_end(monkeypatch):
    monkeypatch.setattr(time_limits, "CHECK_SECONDS", 0.05)
    bad, key = r"^(?:\w|\w\w)+$", "a" * 5000 + "!"
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"pattern": bad}, key),
        ({"patternProperties": {bad: {}}}, {key: 1}),
        ({"patternProperties": {bad: {}}, "additionalProperties": False}, {key: 1}),
        ({"propertyNames": {"pattern": bad}}, {key: 1}),
    ]
    for schema, value in cases:
        constraint = JSONSchema(schema)
        draw = Draw("", (), json.dumps(value))
        with pytest.raises(CheckFailed, match="ran out") as caught:
            run_check(constraint, [draw])
        assert "aaaa" not in str(caught.value)
        run_verdict(constraint, draw.text)
    # On a final part of a view, the verdict may give up, but must not raise.
    assert JSONSchema({"pattern": bad}, on="lines").verdict(f'"{key}"\n') == 0


def test_a_number_beyond_all_printing():
    with pytest.raises(ConstraintError, match="not JSON"):
        JSONSchema({"const": 10**5000})


def test_bad_fields():
    with pytest.raises(ConstraintError, match="did you mean 'fenced'"):
        JSONSchema({}, where="fence")  # type: ignore[arg-type]
    with pytest.raises(ConstraintError, match="did you mean 'lines'"):
        JSONSchema({}, on="line")  # type: ignore[arg-type]


def test_a_schema_that_contains_itself_forever():
    with pytest.raises(CheckFailed, match="nested too deeply"):
        JSONSchema({"$ref": "#"}).accepts("1")


class Ticket(BaseModel):
    a: int


@pytest.mark.parametrize(
    ("schema", "title"),
    [
        ({"title": "Tick\net", "properties": {"a": {}}}, "JSONSchema(Tick et)"),
        ({"title": "", "properties": {"a": {}, "b": {}}}, "JSONSchema(keys a, b)"),
        (
            {"properties": {f"key{i}": {} for i in range(30)}},
            "JSONSchema(keys key0, key1, key2, key3, key4, key5, k...)",
        ),
        (Ticket, "JSONSchema(Ticket)"),
        (list[int], "JSONSchema(schema={'items': {'type': 'integer'}, 'type': ..."),
        (True, "JSONSchema(schema=True)"),
    ],
)
def test_reports_call_it_by_what_tells_it_from_others(schema, title):
    assert JSONSchema(schema).title == title
    assert (~JSONSchema(schema)).title == f"~{title}"
    assert JSONSchema(schema, name="mine").title == "mine"
