"""Schemas of all drafts, compared with the validators of ``jsonschema``."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import referencing
from hypothesis import given
from hypothesis import strategies as st

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.json import drafts
from guardwrap.constraints.json.drafts import DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020, DRAFTS, WHOLE, Draft
from guardwrap.constraints.json.schema_notes import misspelt, unheeded
from guardwrap.errors import ConstraintError
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import assert_sound, profile
from tests.constraints.json.test_schema_validation import schemas, values

LIBRARY: dict[Draft, Any] = {
    DRAFT_4: jsonschema.Draft4Validator,
    DRAFT_6: jsonschema.Draft6Validator,
    DRAFT_7: jsonschema.Draft7Validator,
    DRAFT_2019: jsonschema.Draft201909Validator,
    DRAFT_2020: jsonschema.Draft202012Validator,
}


def of(draft: Draft, schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": f"{draft.meta_schema}#", **schema}


def theirs(draft: Draft, schema: Any, value: Any) -> bool:
    return bool(LIBRARY[draft](schema, registry=referencing.Registry()).is_valid(value))


ONE, NULL = {"type": "integer"}, {"type": "null"}
OLDER, MIDDLE, NEWER = (DRAFT_4, DRAFT_6, DRAFT_7), (DRAFT_6, DRAFT_7), (DRAFT_2019, DRAFT_2020)
# Schemas that drafts read differently, each with the drafts whose meta-schemas allow it.
DIFFERENT: list[tuple[dict[str, Any], tuple[Draft, ...]]] = [
    *(
        (schema, (*OLDER, DRAFT_2019))
        for schema in (
            {"items": [ONE, NULL]},
            {"items": [ONE], "additionalItems": False},
            {"items": [ONE], "additionalItems": NULL},
            {"items": [{"items": [ONE], "additionalItems": False}]},
            {"additionalItems": False},
            {"items": ONE, "additionalItems": False},
        )
    ),
    *(
        (schema, OLDER)
        for schema in (
            {"dependencies": {"a": ["b"]}},
            {"dependencies": {"a": {"required": ["c"]}, "b": ["a"]}},
            {"definitions": {"t": NULL}, "items": {"$ref": "#/definitions/t", "type": "integer", "minimum": 9}},
            {"definitions": {"t": {"items": {"$ref": "#"}}}, "$ref": "#/definitions/t", "maxItems": 0},
            {"dependentRequired": {"a": ["b"]}, "minContains": 2, "unevaluatedItems": False, "$dynamicRef": "#none"},
            {"prefixItems": [False], "unevaluatedProperties": False, "$anchor": 5, "$recursiveRef": "no"},
        )
    ),
    *(
        ({"type": "number", limit: 2, exclusive: flag}, (DRAFT_4,))
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
        for flag in (True, False)
    ),
    ({"type": "integer"}, DRAFTS),
    ({"type": ["integer", "string"]}, DRAFTS),
    ({"not": {"type": "integer"}}, DRAFTS),
    ({"type": ["integer", "number"]}, DRAFTS),
    *(
        (schema, (DRAFT_4,))
        for schema in ({"const": 1}, {"contains": 5}, {"propertyNames": {"maxLength": 0}}, {"if": True, "then": False})
    ),
    ({"const": 1}, (*MIDDLE, *NEWER)),
    ({"contains": ONE, "minContains": 2}, (*MIDDLE, *NEWER)),
    ({"propertyNames": {"maxLength": 1}}, (*MIDDLE, *NEWER)),
    ({"if": ONE, "then": {"minimum": 2}, "else": NULL}, (*MIDDLE, *NEWER)),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, (*MIDDLE, *NEWER)),
    ({"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": {"required": ["c"]}}}, NEWER),
    ({"$defs": {"t": ONE}, "items": {"$ref": "#/$defs/t", "minimum": 2}}, DRAFTS),
    ({"unevaluatedProperties": False, "properties": {"a": True}}, NEWER),
    ({"unevaluatedItems": False, "items": [ONE]}, (DRAFT_2019,)),
    ({"unevaluatedItems": False, "items": [ONE], "additionalItems": NULL}, (DRAFT_2019,)),
    ({"unevaluatedItems": False, "allOf": [{"items": [True, True]}]}, (DRAFT_2019,)),
    ({"dependencies": {"a": ["b"]}}, NEWER),
    ({"$recursiveRef": "#", "$recursiveAnchor": True, "maxItems": 1}, (DRAFT_7,)),
]
VALUES: list[Any] = [
    *([], [1], [None], [1, None], [1, 1], [None, None, 2], [[1], [2]], [[1, 2]], [1, 2.0], [2, 3, 9]),
    *({}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"ab": 1}, {"a": None, "b": 2, "c": 3}),
    *(1, 2, 3, 1.0, 2.0, 1.5, 1e2, -1, "a", "", None, True),
]


@pytest.mark.parametrize(
    ("schema", "draft"),
    [(schema, draft) for schema, drafts in DIFFERENT for draft in drafts],
    ids=lambda each: each.name if isinstance(each, Draft) else json.dumps(each)[:70],
)
def test_each_draft_is_read_as_it_says(schema: dict[str, Any], draft: Draft) -> None:
    constraint = JSONSchema(of(draft, schema))
    for value in VALUES:
        text = json.dumps(value)
        assert constraint.accepts(text) is theirs(draft, schema, value), text
        assert constraint.verdict(text + " ") is not Verdict.SATISFIED
        assert_sound(constraint, text + " ")


def points_elsewhere(schema: Any) -> bool:
    """Whether a schema has references that the library cannot follow in older drafts, which do not have them."""
    return any(f'"{name}"' in json.dumps(schema) for name in ("#here", "#there", "#"))


@pytest.mark.slow
@profile(400)
@given(st.sampled_from(DRAFTS), schemas(), st.lists(values, min_size=1, max_size=3))
def test_any_schema_is_read_as_the_draft_says(draft: Draft, schema: Any, instances: list[Any]) -> None:
    if isinstance(schema, bool) or points_elsewhere(schema):
        return
    schema = {**schema, "$defs": {"a": {"type": "integer"}, "b": {"enum": ["a", 1, []]}}}
    try:
        constraint = JSONSchema(of(draft, schema), formats=False)
    except ConstraintError:
        with pytest.raises(jsonschema.SchemaError):
            LIBRARY[draft].check_schema(schema)
        return
    for value in instances:
        text = json.dumps(value)
        assert constraint.accepts(text) is theirs(draft, schema, value), text
        assert_sound(constraint, text + " ")


def test_negative_control_dependencies_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the conversion, the draft of a schema has no effect."""
    schema, text = {"dependencies": {"a": ["b"]}}, '{"a": 1}'
    assert JSONSchema(of(DRAFT_7, schema)).accepts(text) is theirs(DRAFT_7, schema, json.loads(text)) is False
    monkeypatch.setattr("guardwrap.constraints.json.schema_validation.modernize", lambda schema, draft, uri: None)
    assert JSONSchema(of(DRAFT_7, schema)).accepts(text)


# ------------------------------------------------------------------------------------------------ what programs write

ZOD_3: dict[str, Any] = {
    "$ref": "#/definitions/Order",
    "definitions": {
        "Order": {
            "type": "object",
            "properties": {
                "pair": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": [{"type": "string"}, {"type": "number"}],
                },
                "rest": {
                    "type": "array",
                    "minItems": 1,
                    "items": [{"type": "string"}],
                    "additionalItems": {"type": "null"},
                },
                "price": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
                "id": {"type": "string", "format": "uuid"},
                "next": {"anyOf": [{"$ref": "#/definitions/Order"}, {"type": "null"}]},
            },
            "required": ["pair"],
            "additionalProperties": False,
        }
    },
    "$schema": "http://json-schema.org/draft-07/schema#",
}
PYDANTIC_1: dict[str, Any] = {
    "title": "Line",
    "type": "object",
    "properties": {
        "span": {
            "title": "Span",
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": [{"type": "integer"}, {"$ref": "#/definitions/End"}],
        },
        "end": {"title": "End", "default": {"x": 1}, "allOf": [{"$ref": "#/definitions/End"}]},
    },
    "required": ["span"],
    "definitions": {"End": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (
            ZOD_3,
            [
                '{"pair": ["a", 1.5]}',
                '{"pair": ["a", 1], "rest": ["a", null], "price": 4.02, "next": {"pair": ["", 0]}}',
            ],
            [
                '{"pair": [1, "a"]}',
                '{"pair": ["a", 1, 2]}',
                '{"pair": ["a", 1], "rest": ["a", 1]}',
                '{"pair": ["a", 1], "price": 0}',
                '{"pair": ["a", 1], "price": 4.025}',
                '{"pair": ["a", 1], "id": "1"}',
                '{"pair": ["a", 1], "next": {}}',
            ],
        ),
        (
            PYDANTIC_1,
            ['{"span": [1, {"x": 2}]}', '{"span": [1.0, {"x": 2, "y": 3}], "end": {"x": 1}}'],
            ['{"span": [{"x": 2}, 1]}', '{"span": [1, {"x": 2}, 3]}', '{"span": [1, {"x": "a"}]}', '{"span": [1, {}]}'],
        ),
    ],
    ids=["zod 3", "pydantic 1"],
)
def test_what_programs_write(schema: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    constraint = JSONSchema(schema)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.verdict(text) is not Verdict.VIOLATED] == []
    check_constraint(constraint, [*accepted, *rejected])


# --------------------------------------------------------------------------------------------- which draft is declared


@pytest.mark.parametrize("spelling", ["{}", "{}#"])
@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.name)
def test_a_draft_has_several_spellings(draft: Draft, spelling: str) -> None:
    for uri in (draft.meta_schema, draft.meta_schema.replace("http:", "https:")):
        assert drafts.draft_of({"$schema": spelling.format(uri)}, drafts.UNDECLARED) is draft


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"$schema": "http://json-schema.org/draft-03/schema#"},
            r"names draft 3, which is not supported; write the schema in",
        ),
        (
            {"$schema": "https://json-schema.org/draft/next/schema"},
            r"an unknown dialect, .*; name draft 4, 6, 7, 2019-09",
        ),
        (
            {"$schema": "http://a/b"},
            "an unknown dialect, 'http://a/b'; name draft 4, 6, 7, 2019-09 or 2020-12, or leave",
        ),
        ({"$schema": "draft-07"}, "an unknown dialect, 'draft-07'"),
        ({"items": {"$schema": "http://a/b"}}, "an unknown dialect"),
        ({"$schema": 7}, r"at \$schema: 7 is not of type 'string'"),
        (
            of(DRAFT_2020, {"items": [{}]}),
            r'at items: .*; write prefixItems, or declare an older draft, such as "\$schema": ',
        ),
        ({"prefixItems": [{"type": "null"}], "items": [{}]}, r"at items: .*; write prefixItems"),
        (
            {"exclusiveMinimum": True},
            r'write the limit itself, or declare draft 4, "\$schema": "http://json-schema.org/draft-04',
        ),
        (of(DRAFT_7, {"items": {"exclusiveMaximum": False}}), "at items/exclusiveMaximum: .*declare draft 4"),
        (of(DRAFT_4, {"exclusiveMinimum": 5}), "at exclusiveMinimum: 5 is not of type 'boolean'"),
        (of(DRAFT_4, {"items": True}), "at items: True is not valid"),
        (of(DRAFT_4, {"required": []}), "at required: "),
        (of(DRAFT_4, {"properties": {"a": {"$ref": 5}}}), r"\$ref must be a string, not 5"),
        ({"items": [{"type": "thing"}]}, "at items/0/type: unknown type 'thing'"),
        ({"items": []}, "at items: "),
        (
            {"properties": {"a": of(DRAFT_4, {"items": {"minimum": "1"}})}},
            "at properties/a/items/minimum: '1' is not of type",
        ),
        (
            of(DRAFT_2019, {"items": {"$recursiveAnchor": True}}),
            r"a subschema with \$recursiveAnchor has no \$id; give it one",
        ),
        (
            of(DRAFT_7, {"$id": "http://a/b", "allOf": [{"$id": "c"}, {"$id": "c"}], "items": {"$ref": "c"}}),
            "several subschemas have that name",
        ),
        (
            of(DRAFT_7, {"x": {"$id": "http://a/b", "items": {"$ref": "#"}}, "items": {"$ref": "#/x"}}),
            "where no schema is expected",
        ),
        (
            {"$dynamicRef": "r", "$defs": {"r": of(DRAFT_2019, {"$id": "r", "$recursiveAnchor": True})}},
            r"\$dynamicRef 'r' leads to a schema with \$recursiveAnchor; use \$ref",
        ),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_refused_by_name(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        JSONSchema(schema)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        # A subschema has the draft that it declares, with or without a URI.
        (
            {"prefixItems": [of(DRAFT_4, {"minimum": 1, "exclusiveMinimum": True, "const": 9}), {"const": 1}]},
            ["[2, 1]"],
            ["[1, 1]", "[2, 2]"],
        ),
        (
            of(
                DRAFT_7,
                {"definitions": {"n": of(DRAFT_2020, {"$id": "n", "prefixItems": [NULL]})}, "items": {"$ref": "n"}},
            ),
            ["[[null]]"],
            ["[[1]]"],
        ),
        (
            of(DRAFT_2020, {"$defs": {"o": of(DRAFT_7, {"$id": "http://a/o", "items": [NULL]})}, "$ref": "http://a/o"}),
            ["[null, 1]"],
            ["[1]"],
        ),
        # Pointers refer to the schema as it was written.
        (of(DRAFT_7, {"items": [NULL, {"$ref": "#/items/0"}]}), ["[null, null]"], ["[null, 1]"]),
        (
            of(DRAFT_4, {"dependencies": {"a": ["b"], "c": NULL}, "items": {"$ref": "#/dependencies/c"}}),
            ["[null]"],
            ["[1]"],
        ),
        # Names in older drafts: id in draft 4, and anchors in ids.
        (
            of(DRAFT_4, {"items": {"$ref": "#n"}, "definitions": {"n": {"id": "#n", "type": "null"}}}),
            ["[null]"],
            ["[1]"],
        ),
        (
            of(DRAFT_7, {"items": {"$ref": "#n"}, "definitions": {"n": {"$id": "#n", "type": "null"}}}),
            ["[null]"],
            ["[1]"],
        ),
        (
            of(
                DRAFT_6,
                {"$id": "http://a/b", "items": {"$ref": "c"}, "definitions": {"n": {"$id": "c", "type": "null"}}},
            ),
            ["[null]"],
            ["[1]"],
        ),
        (of(DRAFT_7, {"allOf": [{"$id": "c"}, {"$id": "c"}]}), ["1"], []),
        (of(DRAFT_7, {"items": {"$ref": "#/x"}, "x": {"$id": "named", "type": "null"}}), ["[null]"], ["[1]"]),
        # References to the meta-schemas.
        (
            of(DRAFT_7, {"$ref": "http://json-schema.org/draft-07/schema#"}),
            ['{"items": [true]}'],
            ['{"type": "thing"}'],
        ),
        ({"$ref": "http://json-schema.org/draft-04/schema#"}, ['{"type": "null"}'], ['{"items": true}', "true"]),
        (
            # The outermost tree applies to children at every depth.
            of(
                DRAFT_2019,
                {
                    "$id": "http://a/strict",
                    "$recursiveAnchor": True,
                    "$ref": "tree",
                    "unevaluatedProperties": False,
                    "$defs": {
                        "tree": {
                            "$id": "tree",
                            "$recursiveAnchor": True,
                            "properties": {"of": {"items": {"$recursiveRef": "#"}}, "data": True},
                        }
                    },
                },
            ),
            ['{"of": [{"data": 1}, {"of": []}]}'],
            ['{"of": [{"daat": 1}]}'],
        ),
        # In draft 2019-09, contains does not evaluate the items that it matches.
        (of(DRAFT_2019, {"contains": ONE, "unevaluatedItems": False}), [], ["[1]"]),
        (of(DRAFT_2020, {"contains": ONE, "unevaluatedItems": False}), ["[1]"], []),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_drafts_in_drafts(schema: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    constraint = JSONSchema(schema)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []
    check_constraint(constraint, [*accepted, *rejected])


def test_a_whole_number_of_draft_4_is_noticed_early() -> None:
    assert JSONSchema(of(DRAFT_4, {"type": "integer"})).verdict("1.") is Verdict.VIOLATED
    assert JSONSchema(of(DRAFT_6, {"type": "integer"})).verdict("1.") is Verdict.UNDECIDED
    assert WHOLE in JSONSchema(of(DRAFT_4, {"type": "integer"})).fault("1.0")


# -------------------------------------------------------------------------------------------------- what says nothing


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (of(DRAFT_4, {"const": 1, "examples": [1], "if": {}, "minimum": 1}), {"const", "examples", "if"}),
        (of(DRAFT_4, {"properties": {"const": {"propertyNames": {}}}}), {"propertyNames"}),
        (
            of(DRAFT_7, {"prefixItems": [{}], "unevaluatedItems": False, "$defs": {}}),
            {"prefixItems", "unevaluatedItems"},
        ),
        (of(DRAFT_7, {"items": {"$ref": "#", "minItems": 1, "title": "a"}}), {"minItems"}),
        (of(DRAFT_2019, {"items": {"$ref": "#", "minItems": 1}, "$dynamicAnchor": "a"}), {"$dynamicAnchor"}),
        (of(DRAFT_2020, {"dependencies": {}, "id": "a", "properties": {"id": {"id": {}}}}), {"dependencies", "id"}),
        ({"dependencies": {}, "additionalItems": False}, {"dependencies", "additionalItems"}),
        ({"items": [{}], "additionalItems": False, "definitions": {}}, set()),
        (True, set()),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_what_a_draft_does_not_know_is_named(schema: Any, names: set[str]) -> None:
    assert unheeded(schema).keys() == names


def test_reasons_name_the_draft() -> None:
    assert unheeded(of(DRAFT_4, {"const": 1})) == {
        "const": "is not a keyword of draft 4, which $schema declares, but of draft 6 and later"
    }
    assert unheeded({"dependencies": {}}) == {
        "dependencies": "is not a keyword of draft 2020-12, the default without $schema, but of draft 7 and older"
    }
    assert "is ignored next to $ref in draft 7" in unheeded(of(DRAFT_7, {"$ref": "#", "minItems": 1}))["minItems"]


def test_close_names_are_those_of_the_draft() -> None:
    assert misspelt(of(DRAFT_4, {"propertys": {}, "constt": 1})) == {"propertys": "properties"}
    assert misspelt(of(DRAFT_7, {"constt": 1})) == {"constt": "const"}
