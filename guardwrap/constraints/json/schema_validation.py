"""Reads a JSON Schema: checks it, resolves its references and returns its validator. Also explains invalid values.

A schema of an older draft is first rewritten as draft 2020-12 (``drafts``), so that one validator judges all drafts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urldefrag

from jsonschema import ValidationError

from guardwrap.constraints.json.drafts import DISCRIMINATOR, DRAFTS, UNDECLARED, Draft, draft_of, modernize, subschemas
from guardwrap.constraints.json.ecma_patterns import compile_expression
from guardwrap.constraints.json.formats import FORMATS
from guardwrap.constraints.json.keywords import VALIDATOR, UnionError
from guardwrap.constraints.json.references import References, meta_schemas
from guardwrap.constraints.json_paths import shown_place
from guardwrap.constraints.kinds.text_constraint import Fault
from guardwrap.errors import ConstraintError, nearest
from guardwrap.support import lexical
from guardwrap.support.time_limits import check_deadline
from guardwrap.support.yaml_nodes import one_line, short

_MOST_ERRORS = 100
"""The most errors that are compared to report one: a long list may have an error for each item."""


def read_schema(schema: Any, *, formats: bool = False, ordered: bool = False) -> Any:
    """Check a schema and everything that it refers to, and return its validator."""
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
        target = references.found[base, reference].base
        if not urldefrag(reference).fragment and "" in references.dynamic.get(target, ()):
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
                part["dependentSchemas"] = {"prefixItems": {"properties": {"items": meta}}}
            references.add_document(part)
    return _validator_of({"$ref": draft.meta_schema}, references)


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def _require_well_formed(schema: Any, around: Draft = UNDECLARED, place: tuple[str | int, ...] = ()) -> None:
    """Check a schema against the meta-schema of its draft, and subschemas of other drafts against theirs."""
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


class Misfit(NamedTuple):
    """What is wrong with a text: a message, which may quote it, and a place and a reason, which do not."""

    message: Fault
    place: str
    reason: str
    stopped: str | None = None  # where an early abort stops such a text; None if it may still become valid


def misfit_of(validator: Any, value: Any, declared: frozenset[str]) -> Misfit | None:
    """Return what is invalid in a value; None if the value is valid. Its place names only the declared keys.

    It is the first fault of the outermost value that has one. Where no branch of a union is valid, it is a fault of the
    branch that the value was meant for, if that is known.
    """
    error = _outermost(validator.iter_errors(value))
    if error is None:
        return None
    path: tuple[str | int, ...] = ()
    while isinstance(error, UnionError):
        check_deadline()
        tag, branch = _meant(error)
        if branch is not None:
            inner = _outermost(error.judge.descend(error.instance, branch))
        elif tag is not None:
            inner = next(error.judge.descend(error.instance, tag), None)
        else:
            break
        if inner is None:
            break
        path, error = (*path, *error.absolute_path), inner
    path = (*path, *error.absolute_path)
    # The library's message has the whole value; its beginning is enough to recognize it.
    quoted_value = short(error.instance)
    message = str(error.message).replace(repr(error.instance), quoted_value)
    if error.validator == "enum":
        message = f"{quoted_value} {_reason(error)}"
    fault = Fault(one_line(message), one_line(ValidationError("", path=path).json_path) if path else None)
    # The place ends with the key of a missing property, or with ``"*"`` for one that is not allowed.
    if error.validator == "required":
        path = (*path, *[key for key in error.validator_value if key not in error.instance][:1])
    elif error.validator in ("additionalProperties", "unevaluatedProperties"):
        path = (*path, "*")
    return Misfit(fault, shown_place(path, declared), one_line(_reason(error)))


def _outermost(errors: Iterator[Any]) -> Any:
    return min(islice(errors, _MOST_ERRORS), key=lambda each: len(each.absolute_path), default=None)


def _reason(error: Any) -> str:
    """Return what is wrong, without the value."""
    keyword, argument = error.validator, error.validator_value
    if keyword == "enum":
        return f"is not one of {', '.join(map(short, argument[:8]))}{', ...' if len(argument) > 8 else ''}"
    if keyword == "const":
        return f"is not {short(argument)}"
    if keyword == "type":
        return f"is not of type {argument if isinstance(argument, str) else ' or '.join(argument)}"
    if keyword == "required":
        return "is missing"
    if keyword == "properties":
        return "comes after a key that the schema declares later"
    if isinstance(error, UnionError):
        return "fits no branch of the union"
    if keyword is None or argument is False:
        return "is not allowed"
    return f"violates {keyword}" + (f": {short(argument)}" if isinstance(argument, str | int | Decimal) else "")


# ------------------------------------------------------------------------------------------------- branches of a union


def _meant(error: UnionError) -> tuple[Any, Any]:
    """Return a schema for the tag that names a branch, if the value has none of the tags, and the branch it names.

    A tag is a property whose value tells the branches apart (``const``, ``enum``, or OpenAPI's ``discriminator``).
    Without tags, the branch is the only one whose type fits. Both are None if the branch is not known.
    """
    judge, value = error.judge, error.instance
    schema: Any = error.schema
    branches = [each for each in schema[error.validator] if _may_be(judge, each, value)]
    named = schema.get(DISCRIMINATOR, {})
    if isinstance(value, dict) and len(branches) > 1:
        for key in dict.fromkeys([named.get("propertyName"), *_shared_keys(judge, branches)]):
            tags = [_tags(judge, each, key, named) for each in branches]
            every = [tag for each in tags for tag in each]
            if not all(tags) or len({*every}) < len(every):
                continue
            meant = [each for each, of in zip(branches, tags, strict=True) if value.get(key) in of]
            if meant:
                return None, meant[0]
            return {"required": [key], "properties": {key: {"enum": every}}}, None
    return None, branches[0] if len(branches) == 1 else None


def _same_value(judge: Any, schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those that it applies to the same value by ``$ref`` and ``allOf``."""
    todo, seen = [(judge._resolver, schema)], set[int]()
    while todo:
        scope, inner = todo.pop()
        if not isinstance(inner, dict) or id(inner) in seen:
            continue
        check_deadline()
        seen.add(id(inner))
        yield inner
        todo += [(scope, each) for each in inner.get("allOf", ())]
        if "$ref" in inner:
            target = scope.within(inner).lookup(inner["$ref"])
            todo.append((target.resolver, target.contents))


def _may_be(judge: Any, schema: Any, value: Any) -> bool:
    """Whether a branch allows the type of the value."""
    if schema is False:
        return False
    asked = [each["type"] for each in _same_value(judge, schema) if "type" in each]
    return all(any(judge.is_type(value, name) for name in ([of] if isinstance(of, str) else of)) for of in asked)


def _shared_keys(judge: Any, branches: list[Any]) -> list[str]:
    keys = [[key for each in _same_value(judge, branch) for key in each.get("properties", ())] for branch in branches]
    return [key for key in keys[0] if all(key in each for each in keys)]


def _tags(judge: Any, branch: Any, key: str | None, named: dict[str, Any]) -> list[str]:
    """Return the values of a property that name a branch; empty if there are none."""
    if key is None:
        return []
    for each in _same_value(judge, branch):
        for inner in _same_value(judge, each.get("properties", {}).get(key)):
            values = [inner["const"]] if "const" in inner else inner.get("enum", ())
            if values and all(isinstance(value, str) for value in values):
                return list(values)
    reference = branch.get("$ref", "") if key == named.get("propertyName") and isinstance(branch, dict) else ""
    mapping = named.get("mapping") or {}
    listed = [tag for tag, target in mapping.items() if reference and target in (reference, reference.split("/")[-1])]
    return listed or ([reference.split("/")[-1]] if reference else [])
