"""Finds probable mistakes in a valid JSON Schema: misspelled keywords, and keywords that its draft ignores."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from guardwrap.constraints.json.drafts import DRAFT_2020, DRAFTS, UNDECLARED, Draft, draft_of, subschemas

__all__ = ["misspelt", "unheeded"]

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
