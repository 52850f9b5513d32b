"""What is valid in a JSON Schema and perhaps not meant: names that say nothing in its draft."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from guardwrap.constraints.json.drafts import DRAFT_2020, DRAFTS, UNDECLARED, Draft, draft_of, subschemas

__all__ = ["misspelt", "unheeded"]

_CLOSE = 0.8
""""propertys" and "minlength" are as close to a keyword, "format_" and "item" too; "name" and "options" are not."""
_SAYS_NOTHING = {
    *("$anchor", "$comment", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary", "contentEncoding"),
    *("contentMediaType", "contentSchema", "default", "deprecated", "description", "examples", "id", "readOnly"),
    *("title", "writeOnly"),
}
"""Keywords that decide nothing about a value, so that no other name is likely to mean them."""
_OTHERS = frozenset(("discriminator", "example", "externalDocs", "nullable", "xml"))
"""Names of OpenAPI, written on purpose."""
_EVERY = frozenset().union(*(draft.keywords for draft in DRAFTS))
_PLACES = frozenset(("$defs", "definitions"))
"""Keywords that only hold schemas for references, which find them in every draft."""


def misspelt(schema: Any) -> dict[str, str]:
    """Return names in a schema that are no keywords of any draft, but are close to one of its own: with that one."""
    found: dict[str, str] = {}
    for inner, draft in _schemas(schema):
        says = draft.keywords - _SAYS_NOTHING
        for name in inner.keys() - _EVERY - _OTHERS:
            if close := get_close_matches(name, sorted(says), n=1, cutoff=_CLOSE):
                found[name] = close[0]
    return found


def unheeded(schema: Any) -> dict[str, str]:
    """Return keywords that say nothing where they stand, because of the draft, with the reason in words."""
    found: dict[str, str] = {}
    for inner, draft in _schemas(schema):
        if draft.ref_is_alone and "$ref" in inner:
            beside = (inner.keys() & _EVERY) - _SAYS_NOTHING - _PLACES - {"$ref"}
            found |= dict.fromkeys(beside, f"stands beside $ref, where {draft.name} ignores it; put both into allOf")
            continue
        for name in (inner.keys() & _EVERY) - draft.keywords - _PLACES:
            if name != "id" or isinstance(inner[name], str):
                found[name] = f"is no keyword of {_called(draft)}, but of {_those_that_know(name)}"
        if draft is UNDECLARED and "additionalItems" in inner and not isinstance(inner.get("items"), list):
            found["additionalItems"] = f"is no keyword of {_called(draft)}; write items"
    return found


def _called(draft: Draft) -> str:
    if draft is UNDECLARED:
        return f"{DRAFT_2020.name}, which is meant where no $schema is declared"
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
