"""References between the resources of a schema, for which ``referencing`` does not always follow draft 2020-12."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import jsonschema
import pytest
import referencing

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.json.references import Scope
from guardwrap.constraints.json.subschemas import Schema
from guardwrap.errors import ConstraintError
from guardwrap.testing import check_constraint

META = "https://json-schema.org/draft/2020-12/schema"


def library(schema: Any, text: str) -> bool:
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    return bool(validator.is_valid(json.loads(text)))


def check(schema: Any, accepted: list[str], rejected: list[str]) -> None:
    constraint = JSONSchema(schema)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []
    check_constraint(constraint, [*accepted, *rejected])


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"items": {"$ref": "item"}, "$defs": {"a": {"$id": "item", "type": "null"}}}, ["[null]"], ["[1]"]),
        (
            {
                "$id": "http://a.b/c/d",
                "items": {"$ref": "e#f"},
                "$defs": {"a": {"$id": "/c/e", "$anchor": "f", "const": 1}},
            },
            ["[1]"],
            ["[2]"],
        ),
        (
            {"$id": "urn:x:y", "items": {"$ref": "urn:x:y#/$defs/a"}, "$defs": {"a": {"const": 1}}},
            ["[1]"],
            ["[2]"],
        ),
        (
            # A pointer into another resource, whose references are relative to that resource.
            {
                "$id": "http://a/b",
                "$defs": {
                    "c": {"$id": "c/d", "$defs": {"e": {"$ref": "f"}}},
                    "f": {"$id": "c/f", "type": "null"},
                    "g": {"$id": "f", "type": "string"},
                },
                "$ref": "#/$defs/c/$defs/e",
            },
            ["null"],
            ['"a"'],
        ),
        ({"$ref": META}, ['{"type": "object"}', "true"], ['{"type": "thing"}', "1", '{"items": {"minimum": "a"}}']),
        ({"not": {"$ref": META}}, ["1"], ["{}", '{"type": "object"}', "true"]),
        (
            {"not": {"not": {"$ref": META}}},
            ['{"type": "object"}'],
            ['{"type": "thing"}', '{"items": {"minimum": "a"}}'],
        ),
        *(
            (
                {**schema, "$id": "http://a/x/y", "$defs": {"z": {"$id": "z/z", "type": "null"}, "o": {"$id": "z"}}},
                *texts,
            )
            for schema, texts in (
                ({"not": {"$id": "z/a", "$ref": "z"}}, (["1"], ["null"])),
                ({"if": {"$id": "z/a", "$ref": "z"}, "else": False}, (["null"], ["1"])),
            )
        ),
        (
            # Strict trees: the dynamic anchor of the outermost resource applies to children at every depth.
            {
                "$id": "http://a/strict",
                "$dynamicAnchor": "node",
                "$ref": "tree",
                "unevaluatedProperties": False,
                "$defs": {
                    "tree": {
                        "$id": "tree",
                        "$dynamicAnchor": "node",
                        "properties": {"of": {"items": {"$dynamicRef": "#node"}}, "data": True},
                    }
                },
            },
            ['{"of": [{"data": 1}, {"of": []}]}'],
            ['{"of": [{"daat": 1}]}', '{"of": [{"of": [{"a": 1}]}]}'],
        ),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_references_inside_a_bundle(schema: Any, accepted: list[str], rejected: list[str]) -> None:
    check(schema, accepted, rejected)


# Sections 8.2.3.1, 8.2.3.2 and 7.1 of the draft, which the library does not follow.
MISREAD: list[tuple[dict[str, Any], str, bool]] = [
    (
        # $ref to a dynamic anchor is one to a plain anchor.
        {
            "$id": "http://a/root",
            "$dynamicAnchor": "n",
            "properties": {"p": {"$ref": "x"}},
            "$defs": {"x": {"$id": "x", "$dynamicAnchor": "n", "type": "array", "items": {"$ref": "#n"}}},
            "type": "object",
        },
        '{"p": [[]]}',
        True,
    ),
    (
        # Below a dynamic anchor, references are relative to the resource of the anchor.
        {
            "$id": "http://a/root",
            "$ref": "x/y",
            "$defs": {
                "n": {"$dynamicAnchor": "n", "$ref": "z"},
                "x": {"$id": "x/y", "items": {"$dynamicRef": "#n"}, "$defs": {"n": {"$dynamicAnchor": "n"}}},
                "z": {"$id": "z", "type": "null"},
                "w": {"$id": "x/z", "type": "string"},
            },
        },
        "[null]",
        True,
    ),
    (
        # A resource counts for $dynamicRef, however it was entered.
        {
            "$id": "http://a/root",
            "properties": {
                "p": {
                    "$id": "p",
                    "items": {"$id": "q", "items": {"$dynamicRef": "#n"}, "$defs": {"n": {"$dynamicAnchor": "n"}}},
                    "$defs": {"n": {"$dynamicAnchor": "n", "type": "null"}},
                }
            },
        },
        '{"p": [[1]]}',
        False,
    ),
]


@pytest.mark.parametrize(("schema", "text", "valid"), MISREAD, ids=lambda value: repr(value)[:60])
def test_where_the_library_reads_another_schema(schema: Any, text: str, valid: bool) -> None:
    check(schema, [text] if valid else [], [] if valid else [text])
    try:
        theirs = library(schema, text)
    except Exception:
        theirs = not valid
    assert theirs is not valid, "the library reads it as we do: our own reading is not needed for this"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "http://json-schema.org/draft-03/schema#"}, "another document; only references within the schema"),
        ({"$id": "http://a/b", "$ref": "c"}, "refers to 'c', another document; only references within the schema"),
        ({"$defs": {"a": {"$id": "a"}}, "$ref": "a#b"}, "refers to 'a#b', which is not in it"),
        ({"$ref": META + "#/$defs/none"}, "which is not in it"),
        ({"allOf": [{"$id": "a"}, {"$id": "a"}]}, "two subschemas have the same \\$id 'a'"),
        ({"allOf": [{"$anchor": "a"}, {"$dynamicAnchor": "a"}]}, "two subschemas have the same anchor 'a'"),
        (
            {"enum": [{"$id": "a", "$ref": "#"}], "$ref": "#/enum/0"},
            "a subschema with \\$id in a place where no schema is expected; move it to \\$defs",
        ),
        ({"$schema": "http://a/b"}, "an unknown dialect, 'http://a/b'; name draft 4, 6"),
        ({"prefixItems": [{}], "$ref": "#/prefixItems/01"}, "which is not in it"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_not_followed(schema: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        JSONSchema(schema)
    assert len(str(caught.value).splitlines()) == 1


def test_the_same_name_in_two_resources() -> None:
    inner = {"$id": "a", "$anchor": "x", "type": "null"}
    check({"$anchor": "x", "type": "array", "items": {"$ref": "a#x"}, "$defs": {"a": inner}}, ["[null]"], ["[[]]"])
    check({"$anchor": "x", "type": "array", "items": {"$ref": "#x"}, "$defs": {"a": inner}}, ["[[]]"], ["[null]"])


def test_the_meta_schema_is_not_changed_by_whoever_refers_to_it() -> None:
    before = json.dumps(jsonschema.Draft202012Validator.META_SCHEMA)
    for _ in range(2):
        assert not JSONSchema({"$ref": META}).accepts('{"$anchor": "1"}')
    assert json.dumps(jsonschema.Draft202012Validator.META_SCHEMA) == before


def list_of(kind: str) -> dict[str, Any]:
    return {"$id": kind, "$ref": "list", "$defs": {"item": {"$dynamicAnchor": "item", "type": kind}}}


LISTS: dict[str, Any] = {
    "properties": {"numbers": {"$ref": "number"}, "strings": {"$ref": "string"}},
    "$defs": {
        "list": {
            "$id": "list",
            "items": {"$dynamicRef": "#item"},
            "unevaluatedItems": False,
            "$defs": {"item": {"$dynamicAnchor": "item"}},
        },
        "number": list_of("number"),
        "string": list_of("string"),
    },
}


def test_a_prefix_is_judged_by_the_target_that_the_way_leads_to() -> None:
    texts = [
        '{"numbers": [1], "strings": ["a"]}',
        '{"numbers": ["',
        '{"strings": ["a", 1',
        '{"strings": [], "numbers": [0',
    ]
    constraint = JSONSchema(LISTS)
    check_constraint(constraint, texts)
    assert [constraint.verdict(text) is Verdict.VIOLATED for text in texts] == [False, True, True, False]


def test_negative_control_subschemas_that_forget_the_way_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scope, "__hash__", lambda self: hash(self._base_uri))
    monkeypatch.setattr(Scope, "__eq__", lambda self, other: self._base_uri == other._base_uri)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(JSONSchema(LISTS), ['{"numbers": [1], "strings": ["a"]}'])


def test_a_schema_with_many_dynamic_scopes_takes_no_memory() -> None:
    keys = [f"p{i}" for i in range(12)]
    resources = {
        key: {"$id": key, "$dynamicAnchor": f"of-{key}", "properties": {each: {"$ref": each} for each in keys}}
        for key in keys
    }
    constraint = JSONSchema({"$ref": "p0", "$defs": resources})
    whole: Schema = constraint.monitor()._plans.top[0].whole  # type: ignore[attr-defined]
    whole._most = 1000
    verdicts = set()
    for order in permutations(keys[:5]):
        text = "".join(f'{{"{key}": ' for key in order)
        verdicts.add(constraint.verdict(f"{text}1"))
        verdicts.add(constraint.verdict(f"{text}]"))
    assert len(whole._made) == whole._most
    assert verdicts == {Verdict.UNDECIDED, Verdict.VIOLATED}
    assert constraint.accepts('{"p11": {"p10": {"p9": {}}}}')
