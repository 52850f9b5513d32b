"""References between the resources of a schema, for which ``referencing`` does not always follow draft 2020-12."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import referencing

from guardwrap.constraints import JSONSchema
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
