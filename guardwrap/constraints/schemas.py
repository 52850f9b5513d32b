"""JSON Schemas, draft 2020-12: whether one is well formed, and what it refers to.

The rules of the draft's own meta-schema, in one pass, so that reading a schema takes time in proportion to its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from guardwrap.constraints.limits import look
from guardwrap.constraints.patterns import compile_pattern
from guardwrap.errors import ConstraintError

__all__ = ["TYPES", "Known", "read_schema"]

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

_Path = tuple[str | int, ...]
_ANCHORS = ("$anchor", "$dynamicAnchor")

# Keywords by what they hold.
_ONE = {
    *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAPS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_COUNTS = {
    *("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength"),
    "minProperties",
}
_NUMBERS = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
_STRINGS = {
    *("$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema", "contentEncoding"),
    *("contentMediaType", "description", "format", "pattern", "title"),
}
_BOOLS = {"deprecated", "readOnly", "uniqueItems", "writeOnly"}
_LISTED = {"enum", "examples"}
_SPELT = {"$anchor": r"[A-Za-z_][-A-Za-z0-9._]*", "$dynamicAnchor": r"[A-Za-z_][-A-Za-z0-9._]*", "$id": r"[^#]*#?"}


class Known(NamedTuple):
    """What was found when a schema was read.

    Parameters
    ----------
    referred
        What ``$ref`` and ``$dynamicRef`` refer to: by the identity of the schema that they stand in, and the keyword.
    patterns
        Compiled expressions by their spelling.
    """

    referred: dict[tuple[int, str], Any]
    patterns: dict[str, Any]


def read_schema(schema: Any) -> Known:
    """Check a schema and everything that it refers to.

    Raises
    ------
    ConstraintError
        If it is not well formed, or refers to what is not in it.
    """
    known = Known({}, {})
    # A schema with the resource that it belongs to: the innermost one around it with an $id. References are relative
    # to that, and as they must begin with #, the $id itself is of no importance.
    todo = _stand_in(schema, schema, ())
    roots = {id(schema): schema} | {id(inner): inner for _, inner in todo if "$id" in inner}
    anchors = {(id(root), inner[key]): inner for root, inner in todo for key in _ANCHORS if key in inner}
    seen = {id(inner) for _, inner in todo}
    dynamic = any("$dynamicRef" in inner for _, inner in todo)
    if dynamic and len(roots) > 1:
        raise ConstraintError("schema has $dynamicRef and an inner $id, which do not go together here; use $ref")
    while todo:
        root, inner = todo.pop()
        look()
        for expression in [*([inner["pattern"]] if "pattern" in inner else []), *inner.get("patternProperties", ())]:
            if expression not in known.patterns:
                known.patterns[expression] = compile_pattern(expression)
        for key in ("$ref", "$dynamicRef"):
            if key in inner:
                found = known.referred[id(inner), key] = _referred(inner[key], root, anchors)
                if id(found) not in seen:
                    # It stands where no schema is expected: under a keyword that nobody knows, or in an enum.
                    more = [part for part in _stand_in(found, root, (inner[key],)) if id(part[1]) not in seen]
                    seen.update(id(part) for _, part in more)
                    todo += more
    return known


def _referred(reference: str, root: Any, anchors: dict[tuple[int, str], Any]) -> Any:
    if not reference.startswith("#"):
        raise ConstraintError(f"schema refers to {reference[:80]!r}; only references inside it (#/...) work")
    place = unquote(reference[1:])
    try:
        if place and not place.startswith("/"):
            return anchors[id(root), place]
        found = root
        for step in place.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found[int(step) if isinstance(found, list) and step.isdecimal() else step]
    except (LookupError, TypeError):
        raise ConstraintError(f"schema refers to {reference[:80]!r}, which is not in it") from None
    return found


def _stand_in(schema: Any, root: Any, path: _Path) -> list[tuple[Any, dict[str, Any]]]:
    """Return a schema and all that stand in it, but for bools, each with its resource. Raise if one is malformed."""
    found: list[tuple[Any, dict[str, Any]]] = []
    todo = [(root, schema, path)]
    while todo:
        root, inner, path = todo.pop()
        look()
        if isinstance(inner, bool):
            continue
        if not isinstance(inner, dict):
            raise _invalid(path, f"a schema is a mapping or a bool, not {_named(inner)}")
        for key, value in inner.items():
            if problem := _problem(key, value):
                raise _invalid((*path, key), problem)
        root = inner if "$id" in inner else root
        found.append((root, inner))
        todo += [(root, child, (*path, *place)) for place, child in _children(inner)]
    return found


def _children(schema: dict[str, Any]) -> Iterator[tuple[_Path, Any]]:
    """Yield the schemas that stand in a schema, with their places in it."""
    for key, value in schema.items():
        if key in _ONE:
            yield (key,), value
        elif key in _LISTS and isinstance(value, list):
            for i, item in enumerate(value):
                yield (key, i), item
        elif key in _MAPS and isinstance(value, dict):
            for name, item in value.items():
                yield (key, name), item
        elif key == "dependencies" and isinstance(value, dict):  # of older drafts: known, and without effect
            for name, item in value.items():
                if not isinstance(item, list):
                    yield (key, name), item


def _invalid(path: _Path, problem: str) -> ConstraintError:
    return ConstraintError(f"invalid JSON Schema at {'/'.join(map(str, path))[:200] or 'the top'}: {problem[:200]}")


def _named(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _problem(key: str, value: Any) -> str | None:
    """Say what is wrong with a keyword's value, leaving aside the schemas in it."""
    if key in _STRINGS:
        if not isinstance(value, str):
            return f"must be a string, not {_named(value)}"
        return None if key not in _SPELT or re.fullmatch(_SPELT[key], value) else f"{value[:60]!r} is not a valid {key}"
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, not {_named(value)}"
        return "must be above 0" if key == "multipleOf" and value <= 0 else None
    if key in _COUNTS:
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        return None if whole and value >= 0 else "must be a whole number of at least 0"
    if key in _BOOLS:
        return None if isinstance(value, bool) else f"must be a bool, not {_named(value)}"
    if key in _LISTED:
        return None if isinstance(value, list) else f"must be a list, not {_named(value)}"
    if key in _LISTS:
        return None if isinstance(value, list) and value else "must be a list of schemas, not empty"
    if key in _MAPS or key == "dependencies":
        if not isinstance(value, dict):
            return f"must be a mapping, not {_named(value)}"
        wrong = key == "dependencies" and any(isinstance(v, list) and not _names(v) for v in value.values())
        return "must hold schemas or lists of different strings" if wrong else None
    if key == "required":
        return None if _names(value) else "must be a list of different strings"
    if key == "dependentRequired":
        good = isinstance(value, dict) and all(map(_names, value.values()))
        return None if good else "must be a mapping to lists of different strings"
    if key == "type":
        types = value if isinstance(value, list) and value else [value]
        good = all(isinstance(name, str) and name in TYPES for name in types) and len(set(types)) == len(types)
        return None if good else f"must be one of {', '.join(TYPES)}, or a list of different ones"
    if key == "$vocabulary":
        good = isinstance(value, dict) and all(isinstance(used, bool) for used in value.values())
        return None if good else "must be a mapping to bools"
    return None


def _names(value: Any) -> bool:
    """Whether a value is a list of different strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)
