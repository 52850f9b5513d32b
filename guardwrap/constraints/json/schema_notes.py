"""Finds probable mistakes in a valid JSON Schema.

These are misspelled keywords, keywords that its draft ignores, and objects that unintentionally allow further keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import regex

from guardwrap.constraints.base import Constraint, Not, walk
from guardwrap.constraints.json.drafts import DRAFT_2020, DRAFTS, UNDECLARED, Draft, draft_of, subschemas
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.constraints.kinds.text import Regex
from guardwrap.constraints.views import in_json
from guardwrap.errors import quoted

_CLOSE = 0.8
"""The least similarity to a keyword. "propertys", "minlength", "format_" and "item" reach it, "name" does not."""
_SAYS_NOTHING = {
    *("$anchor", "$comment", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary", "contentEncoding"),
    *("contentMediaType", "contentSchema", "default", "deprecated", "description", "examples", "id", "readOnly"),
    *("title", "writeOnly"),
}
"""Keywords that do not affect whether a value is valid. Names that resemble them are not reported."""
_OTHERS = frozenset(("discriminator", "example", "externalDocs", "nullable", "xml"))
"""OpenAPI keywords, which are written on purpose."""
_EVERY = frozenset().union(*(draft.keywords for draft in DRAFTS))
_JSON = ("json", "jsonl")
_LOOKS_AWAY = regex.compile(r"(?:\(\?[a-z]+\))?(?:\^|\\A)?\(\?!")
_PLACES = frozenset(("$defs", "definitions"))
"""Keywords that only hold schemas for references, which may point to them in every draft."""


def misspelt(schema: Any) -> dict[str, str]:
    """Return the names in a schema that are keywords of no draft but resemble one, each with that keyword."""
    misspelled: dict[str, str] = {}
    for inner, draft in _schemas(schema):
        says = draft.keywords - _SAYS_NOTHING
        for name in inner.keys() - _EVERY - _OTHERS:
            if close := get_close_matches(name, sorted(says), n=1, cutoff=_CLOSE):
                misspelled[name] = close[0]
    return misspelled


def unheeded(schema: Any) -> dict[str, str]:
    """Return the keywords of a schema that its draft ignores, each with the reason as the end of a sentence."""
    ignored: dict[str, str] = {}
    for inner, draft in _schemas(schema):
        if draft.ref_is_alone and "$ref" in inner:
            siblings = (inner.keys() & _EVERY) - _SAYS_NOTHING - _PLACES - {"$ref"}
            ignored |= dict.fromkeys(siblings, f"is ignored next to $ref in {draft.name}; put both into allOf")
            continue
        for name in (inner.keys() & _EVERY) - draft.keywords - _PLACES:
            if name != "id" or isinstance(inner[name], str):
                ignored[name] = f"is not a keyword of {_called(draft)}, but of {_those_that_know(name)}"
        if draft is UNDECLARED and "additionalItems" in inner and not isinstance(inner.get("items"), list):
            ignored["additionalItems"] = f"is not a keyword of {_called(draft)}; write items"
    return ignored


_JOINED = frozenset(("allOf", "dependencies", "dependentSchemas", "if", "unevaluatedProperties"))
"""Keywords with which several subschemas may declare the keys of one object, so that none may forbid further keys."""
_LIMITS_KEYS = frozenset(("additionalProperties", "maxProperties", "patternProperties", "propertyNames"))


def open_objects(schema: Any) -> list[str]:
    """Return a name for each object of a schema that declares keys, and probably allows others by oversight.

    The name is its title, its name under ``$defs``, or its first keys. Schemas that combine several subschemas for one
    object have none, because ``additionalProperties`` would then forbid keys that another subschema declares.
    """
    schemas = [inner for inner, _ in _schemas(schema)]
    if any(_JOINED & inner.keys() or {"$ref", "properties"} <= inner.keys() for inner in schemas):
        return []
    tests = {
        id(part) for inner in schemas for key in ("not", "contains") if key in inner for part, _ in _schemas(inner[key])
    }
    named = {id(inner): name for key in _PLACES for name, inner in _mapping(schema, key).items()}
    names = []
    for inner in schemas:
        keys = inner.get("properties")
        if keys and id(inner) not in tests and not _LIMITS_KEYS & inner.keys():
            title = inner.get("title") or named.get(id(inner)) or ", ".join(keys)
            title = " ".join(str(title).split())
            names.append(title if len(title) <= 40 else f"{title[:37]}...")
    return sorted(set(names))


def _mapping(schema: Any, key: str) -> dict[str, Any]:
    value = schema.get(key) if isinstance(schema, dict) else None
    return value if isinstance(value, dict) else {}


def further_keys(constraint: Constraint) -> list[str]:
    """Return a note for each JSONSchema or ToolCalls in a constraint whose objects may have keys that it lacks."""
    notes = []
    for part in walk(constraint):
        schemas = (
            part.arguments.values() if isinstance(part, ToolCalls) else [part] if isinstance(part, JSONSchema) else []
        )
        names = sorted({name for each in schemas for name in open_objects(each.schema)})
        if names:
            listed = ", ".join(map(quoted, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            python = isinstance(part, JSONSchema) and part.type is not None
            way_out = 'model_config = ConfigDict(extra="forbid")' if python else "additionalProperties: false"
            notes.append(
                f"{quoted(part.title)} allows keys that it does not declare in {listed}, so the model may add some; "
                f"to forbid them, set {way_out}"
            )
    return notes


def bans_as_written(constraint: Constraint) -> list[str]:
    """Return a note for each Regex that bans something in JSON, where it may be spelled with escapes."""
    parts = list(walk(constraint))
    if not any(isinstance(part, JSONSchema | ToolCalls) or getattr(part, "language", None) in _JSON for part in parts):
        return []
    negated = (inner for part in parts if isinstance(part, Not) for inner in walk(part.of))
    banning = (part for part in parts if isinstance(part, Regex) and _LOOKS_AWAY.match(part.pattern))
    regexes = {
        part.title: None
        for part in (*negated, *banning)
        if isinstance(part, Regex) and "folded" not in part.flags and part.on != "json_strings" and not in_json(part.on)
    }
    return [
        f"{quoted(title)} judges JSON as it is written, so \\u escapes can hide what it bans; "
        "write on: json_strings to judge the decoded strings"
        for title in regexes
    ]


def _called(draft: Draft) -> str:
    if draft is UNDECLARED:
        return f"{DRAFT_2020.name}, the default without $schema"
    return f"{draft.name}, which $schema declares"


def _those_that_know(name: str) -> str:
    knowing = [draft for draft in DRAFTS if name in draft.keywords]
    if knowing[-1] is DRAFTS[-1]:
        return f"{knowing[0].name} and later"
    return f"{knowing[-1].name} and older" if knowing[0] is DRAFTS[0] else " and ".join(each.name for each in knowing)


def _schemas(schema: Any) -> Iterator[tuple[dict[str, Any], Draft]]:
    todo = [(schema, UNDECLARED)]
    while todo:
        inner, around = todo.pop()
        if isinstance(inner, dict):
            draft = draft_of(inner, around)
            yield inner, draft
            todo += [(container[key], draft) for _, container, key in subschemas(inner, draft)]
