"""Places in JSON texts, written without generated text, so that errors and reports may show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NOT_JSON = "not JSON"
INCOMPLETE = "incomplete JSON"
WHITE_SPACE = "forbidden white space"
PYTHON_TYPE = "rejected by the Python type"
"""What reports show instead of a place, for faults that belong to none."""

_DEEPEST = 8
"""The most steps of a place. A recursive schema has places of any depth, and a report counts each one."""


def declared_names(schema: Any) -> frozenset[str]:
    """Return all names of properties in a schema, as plain JSON types. Other keys in a text may be generated."""
    names: set[str] = set()
    todo = [schema]
    while todo:
        inner = todo.pop()
        if isinstance(inner, list):
            todo += inner
        elif isinstance(inner, dict):
            properties, required = inner.get("properties"), inner.get("required")
            names.update(properties if isinstance(properties, dict) else ())
            names.update(each for each in (required if isinstance(required, list) else ()) if isinstance(each, str))
            todo += inner.values()
    return frozenset(names)


def shown_place(steps: Iterable[str | int], declared: frozenset[str]) -> str:
    """Return a place as a path. Items are ``[]``, and keys that are not declared are ``*``.

    Examples
    --------
    >>> shown_place(["calls", 3, "city", "x y"], frozenset({"calls", "city"}))
    '$.calls[].city.*'
    """
    written = ["$"]
    for step in steps:
        if len(written) > _DEEPEST:
            return "".join([*written, "…"])
        name = step if isinstance(step, str) and step in declared else "*"
        written.append("[]" if isinstance(step, int) else f".{name}" if _is_plain(name) else f"[{name!r:.80}]")
    return "".join(written)


def _is_plain(name: str) -> bool:
    return name == "*" or name.replace("-", "_").isidentifier()
