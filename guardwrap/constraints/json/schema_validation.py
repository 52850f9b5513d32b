"""Reads a JSON Schema: checks it, resolves its references and returns its validator. Also explains invalid values.

A schema of an older draft is first rewritten as draft 2020-12 (``drafts``), so that one validator judges all drafts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any
from urllib.parse import urldefrag

from guardwrap.constraints.json import lexical
from guardwrap.constraints.json.drafts import DRAFTS, UNDECLARED, Draft, draft_of, modernize, subschemas
from guardwrap.constraints.json.ecma_patterns import compile_expression
from guardwrap.constraints.json.formats import FORMATS
from guardwrap.constraints.json.keywords import VALIDATOR
from guardwrap.constraints.json.references import References, meta_schemas
from guardwrap.documents.time_limits import check_deadline
from guardwrap.documents.yaml_nodes import one_line, short
from guardwrap.errors import ConstraintError, nearest

__all__ = ["read_schema", "schema_misfit"]

_MOST_ERRORS = 100
"""The most errors that are compared to report one: a long list may have an error for each item."""


def read_schema(schema: Any, *, formats: bool = False, ordered: bool = False) -> Any:
    """Check a schema and everything that it refers to, and return its validator.

    Parameters
    ----------
    schema
        The schema, as plain JSON types.
    formats
        Whether ``format`` is checked.
    ordered
        Whether objects must have their keys in the order of ``properties``.

    Returns
    -------
    jsonschema.protocols.Validator
        A validator with all references resolved and all expressions compiled. It fetches nothing.

    Raises
    ------
    ConstraintError
        If the schema is invalid, or refers to something outside of it.
    """
    try:
        # Work on a copy, which is rewritten below, with exact decimal numbers.
        schema = lexical.load_exact(json.dumps(schema))
        _require_well_formed(schema)
        return _validator_of(schema, References(), formats=formats, ordered=ordered)
    except RecursionError:
        raise ConstraintError("schema is nested too deeply") from None


def _validator_of(schema: Any, references: References, *, formats: bool = False, ordered: bool = False) -> Any:
    """Resolve all references of a schema and of the schemas that it refers to, and rewrite these as draft 2020-12."""
    scope = replace(references.add_document(schema), ordered=ordered)
    while references.unread:
        check_deadline()
        inner, base, draft, _ = references.unread.pop()
        for keyword in sorted(_FOLLOWED & draft.keywords & inner.keys()):
            place = references.follow(inner[keyword], base)
            if id(place.contents) not in references.known:
                # It is in a place where no schema is expected, such as an unknown keyword or an enum.
                _require_well_formed(place.contents, place.draft, (inner[keyword],))
                references.add(place, names=False)
    for inner, base, draft, is_named in references.known.values():
        _require_one_meaning(inner, base, draft, references)
        modernize(inner, draft, base if is_named else None)
        if "pattern" in inner:
            inner["pattern"] = compile_expression(inner["pattern"])
        if "patternProperties" in inner:
            expressions = inner["patternProperties"].items()
            inner["patternProperties"] = {compile_expression(key): value for key, value in expressions}
    return VALIDATOR(schema, format_checker=FORMATS if formats else None, _resolver=scope)


_FOLLOWED = {"$ref", "$dynamicRef", "$recursiveRef"}


def _require_one_meaning(schema: Any, base: str, draft: Draft, references: References) -> None:
    """Reject a ``$dynamicRef`` to a schema with ``$recursiveAnchor`` (draft 2019-09): no draft defines its meaning."""
    if "$dynamicRef" in schema and "$dynamicRef" in draft.keywords:
        reference = schema["$dynamicRef"]
        if not urldefrag(reference).fragment and (references.found[base, reference].base, "") in references.dynamic:
            raise ConstraintError(f"$dynamicRef {reference[:80]!r} leads to a schema with $recursiveAnchor; use $ref")


@cache
def _well_formed(draft: Draft) -> Any:
    references = References()
    if draft is UNDECLARED:
        for part in meta_schemas(draft.meta_schema):
            if part["$id"].endswith("/applicator"):
                meta = part["properties"]["items"]
                part["properties"]["items"] = {
                    "if": {"type": "array"},
                    "then": {"$ref": "#/$defs/schemaArray"},
                    "else": meta,
                }
                part["properties"]["additionalItems"] = meta
            references.add_document(part)
    return _validator_of({"$ref": draft.meta_schema}, references)


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def _require_well_formed(schema: Any, around: Draft = UNDECLARED, place: tuple[str | int, ...] = ()) -> None:
    """Check a schema against the meta-schema of its draft, and subschemas of other drafts against theirs.

    Parameters
    ----------
    schema
        The schema.
    around
        The draft of the schema that contains it.
    place
        Its location in error messages, if it was reached by a reference.
    """
    todo: list[tuple[Any, Draft, tuple[str | int, ...]]] = [(schema, around, ())]
    while todo:
        inner, around, path = todo.pop()
        draft = _declared(inner, around, path)
        others: list[tuple[Any, Any, Any, tuple[str | int, ...]]] = []
        same = [(inner, path)]
        while same:
            check_deadline()
            each, way = same.pop()
            for steps, container, key in subschemas(each, draft) if isinstance(each, dict) else ():
                child, there = container[key], (*way, *steps)
                if _declared(child, draft, there) is draft:
                    same.append((child, there))
                else:
                    others.append((container, key, child, there))
        for container, key, _, _ in others:
            container[key] = {}
        _require_conforming(inner, draft, path, place)
        for container, key, child, there in others:
            container[key] = child
            todo.append((child, draft, there))


def _declared(schema: Any, around: Draft, path: tuple[str | int, ...]) -> Draft:
    try:
        return draft_of(schema, around)
    except ConstraintError as error:
        error.location = (*path, "$schema")
        raise


def _require_conforming(schema: Any, draft: Draft, path: tuple[str | int, ...], place: tuple[str | int, ...]) -> None:
    error = next(_well_formed(draft).iter_errors(schema), None)
    if error is None:
        return
    path = (*path, *error.absolute_path)
    if error.validator == "anyOf" and path and path[-1] != "type":  # look for the error in the subschemas, if any
        inner = error.instance if isinstance(error.instance, list) else [error.instance]
        for i, each in enumerate(inner):
            if isinstance(each, dict):
                _require_conforming(each, draft, (*path, i) if each is not error.instance else path, place)
    problem = error.message[:200]
    if error.validator == "anyOf" and path and path[-1] == "type":
        problem = f"unknown type {error.instance!r:.80}{nearest(error.instance, _TYPES)}; known: {', '.join(_TYPES)}"
    wrong = ConstraintError(
        f"invalid JSON Schema at {'/'.join(map(str, (*place, *path)))[:200] or 'the top'}: {problem}"
        f"{_of_another_draft(error, path)}"
    )
    wrong.location = () if place else path
    raise wrong


def _of_another_draft(error: Any, path: tuple[str | int, ...]) -> str:
    """Return advice if the mistake is the syntax of another draft."""
    if not path or (path[-1], type(error.instance)) not in _SPELLED_OTHERWISE:
        return ""
    return f"; {_SPELLED_OTHERWISE[path[-1], type(error.instance)]}"


_4, _7 = (f'"$schema": "{draft.meta_schema}#"' for draft in (DRAFTS[0], DRAFTS[2]))
_SPELLED_OTHERWISE: dict[tuple[str | int, type], str] = {
    ("items", list): f"write prefixItems, or declare an older draft, such as {_7}",
    ("exclusiveMinimum", bool): f"write the limit itself, or declare draft 4, {_4}",
    ("exclusiveMaximum", bool): f"write the limit itself, or declare draft 4, {_4}",
}


def schema_misfit(validator: Any, value: Any) -> str | None:
    """Return in one line what is invalid in a value, and where; None if the value is valid."""
    errors = list(islice(validator.iter_errors(value), _MOST_ERRORS))
    if not errors:
        return None
    error = min(errors, key=lambda each: len(each.absolute_path))  # the first error about the outermost value
    # The library's message has the whole value; its beginning is enough to recognize it.
    message = str(error.message).replace(repr(error.instance), short(error.instance))
    return one_line(message if error.json_path == "$" else f"{error.json_path}: {message}")
