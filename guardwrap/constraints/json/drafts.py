"""The supported drafts of JSON Schema, and the conversion of older drafts to draft 2020-12.

Each schema is read as the draft that it declares, and then rewritten in place to mean the same in draft 2020-12, so
that one set of keywords judges whole texts and prefixes. Keywords that the declared draft does not have are dropped.
References are resolved first, because their pointers refer to the schema as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from guardwrap.errors import ConstraintError

WHOLE = "integer written without a fraction"
"""The type of integers in draft 4, which does not include 1.0."""
UNSEEN = "contains does not evaluate"
"""A key next to a ``contains`` that does not count for ``unevaluatedItems``. It only counts since draft 2020-12."""

DISCRIMINATOR = "discriminator"
"""OpenAPI's keyword for the property that names the branch of a union. It does not affect whether a value is valid."""


class Draft(NamedTuple):
    """A draft of JSON Schema."""

    name: str  # its name in messages
    meta_schema: str  # the URI of its meta-schema, without a fragment
    keywords: frozenset[str]  # all of its keywords
    id: str = "$id"  # the keyword for the URI of a schema
    # whether keywords next to ``$ref`` are ignored, and anchors are written in ``id`` or ``$id``
    ref_is_alone: bool = False
    has_lists: bool = True  # whether ``items`` may be a list


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IN_4 = _words(
    "$ref $schema additionalItems additionalProperties allOf anyOf default definitions dependencies description enum "
    "exclusiveMaximum exclusiveMinimum format id items maxItems maxLength maxProperties maximum minItems minLength "
    "minProperties minimum multipleOf not oneOf pattern patternProperties properties required title type uniqueItems"
)
_IN_6 = _IN_4 - {"id"} | _words("$id const contains examples propertyNames")
_IN_7 = _IN_6 | _words("$comment contentEncoding contentMediaType else if readOnly then writeOnly")
_IN_2019 = _IN_7 - {"dependencies"} | _words(
    "$anchor $defs $recursiveAnchor $recursiveRef $vocabulary contentSchema dependentRequired dependentSchemas "
    "deprecated maxContains minContains unevaluatedItems unevaluatedProperties"
)
_OF_2019 = _words("additionalItems $recursiveAnchor $recursiveRef")
_IN_2020 = _IN_2019 - _OF_2019 | _words("$dynamicAnchor $dynamicRef prefixItems")

DRAFT_4 = Draft("draft 4", "http://json-schema.org/draft-04/schema", _IN_4, id="id", ref_is_alone=True)
DRAFT_6 = Draft("draft 6", "http://json-schema.org/draft-06/schema", _IN_6, ref_is_alone=True)
DRAFT_7 = Draft("draft 7", "http://json-schema.org/draft-07/schema", _IN_7, ref_is_alone=True)
DRAFT_2019 = Draft("draft 2019-09", "https://json-schema.org/draft/2019-09/schema", _IN_2019)
DRAFT_2020 = Draft("draft 2020-12", "https://json-schema.org/draft/2020-12/schema", _IN_2020, has_lists=False)
DRAFTS = (DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020)
UNDECLARED = DRAFT_2020._replace(keywords=_IN_2020 | {"additionalItems"}, has_lists=True)
"""Draft 2020-12, for schemas without ``$schema``. A list under ``items``, which that draft does not allow, is read as
in older drafts: it means the same in all of them, and is still common in schemas without ``$schema``."""

_BY_URI = {draft.meta_schema.partition("://")[2]: draft for draft in DRAFTS}
_BY_URI["json-schema.org/schema"] = DRAFT_2020  # the URI for the newest draft
_KNOWN = "draft 4, 6, 7, 2019-09 or 2020-12"


def draft_of(schema: Any, around: Draft) -> Draft:
    """Return the draft that a schema declares; without a declaration, the draft of the schema around it."""
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(declared, str) or (around.ref_is_alone and "$ref" in schema):
        return around
    scheme, _, uri = declared.removesuffix("#").partition("://")
    if scheme in ("http", "https") and uri in _BY_URI:
        return _BY_URI[uri]
    if uri == "json-schema.org/draft-03/schema":
        raise ConstraintError(f"$schema names draft 3, which is not supported; write the schema in {_KNOWN}")
    raise ConstraintError(
        f"$schema names an unknown dialect, {declared[:80]!r}; name {_KNOWN}, or leave $schema out for draft 2020-12"
    )


_ONE = _words(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames then unevaluatedItems "
    "unevaluatedProperties"
)
_MANY = _words("allOf anyOf items oneOf prefixItems")
_NAMED = _words("$defs definitions dependencies dependentSchemas patternProperties properties")


def subschemas(schema: dict[str, Any], draft: Draft) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yield the direct subschemas of a schema: for each its path, its container and its key in the container.

    The schema may be malformed; values that cannot be schemas are left out.
    """
    alone = draft.ref_is_alone and "$ref" in schema
    for keyword, argument in schema.items():
        if keyword not in draft.keywords or (alone and keyword != "definitions"):
            continue
        if keyword in _ONE and isinstance(argument, dict | bool):
            yield (keyword,), schema, keyword
        elif keyword in _MANY and isinstance(argument, list):
            yield from (((keyword, i), argument, i) for i, each in enumerate(argument) if isinstance(each, dict | bool))
        elif keyword in _NAMED and isinstance(argument, dict):
            named = argument.items()
            yield from (((keyword, name), argument, name) for name, each in named if isinstance(each, dict | bool))


def names_of(schema: dict[str, Any], draft: Draft) -> tuple[str | None, list[str]]:
    """Return the URI reference that names a schema, without its fragment (None if there is none), and its anchors."""
    if draft.ref_is_alone:
        uri, _, fragment = schema.get(draft.id, "").partition("#") if "$ref" not in schema else ("", "", "")
        return uri or None, [fragment] if fragment else []
    anchors = [schema[key] for key in ("$anchor", "$dynamicAnchor") if key in schema and key in draft.keywords]
    return schema.get("$id"), anchors


def modernize(schema: dict[str, Any], draft: Draft, uri: str | None) -> None:
    """Rewrite a schema in place as draft 2020-12, without its subschemas. Keywords unknown to its draft are removed."""
    alone = draft.ref_is_alone and "$ref" in schema
    kept = {"$ref": schema["$ref"]} if alone else {key: schema[key] for key in schema if key in draft.keywords}
    if isinstance(schema.get(DISCRIMINATOR), dict):  # kept for explanations
        kept[DISCRIMINATOR] = schema[DISCRIMINATOR]
    schema.clear()
    schema |= kept
    schema.pop("id", None)
    if uri is not None:
        schema["$id"] = uri
    else:
        schema.pop("$id", None)
    if draft.has_lists:
        _prefix_items(schema)
    if "$recursiveRef" in schema:
        schema["$dynamicRef"] = schema.pop("$recursiveRef")
    if "dependencies" in schema:
        needs = schema.pop("dependencies")
        schema["dependentRequired"] = {key: need for key, need in needs.items() if isinstance(need, list)}
        schema["dependentSchemas"] = {key: need for key, need in needs.items() if not isinstance(need, list)}
    if "contains" in schema and draft.meta_schema != DRAFT_2020.meta_schema:
        schema[UNSEEN] = True
    if draft is DRAFT_4:
        _from_4(schema)


def _prefix_items(schema: dict[str, Any]) -> None:
    """Rewrite ``items`` as a list, and ``additionalItems``, as ``prefixItems`` and ``items``."""
    others = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if others is not None:  # without additionalItems, further items must not count as evaluated
            schema["items"] = others


def _from_4(schema: dict[str, Any]) -> None:
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.pop(exclusive, False) and limit in schema:
            schema[exclusive] = schema.pop(limit)
    if "type" in schema:
        types = schema["type"]
        spelled = [WHOLE if each == "integer" else each for each in ([types] if isinstance(types, str) else types)]
        schema["type"] = spelled[0] if isinstance(types, str) else spelled
