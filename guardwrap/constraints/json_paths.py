"""Values of JSON texts, selected by a path such as ``$.items[*].price``, and places that reports may show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from guardwrap.constraints.field_checks import require, shown
from guardwrap.support.lexical import dump_spelled, load_spelled

Step = str | int | None
"""A step of a path: the name of a member, the place of an item, or None for each member or item."""

_STEP = re.compile(
    r"""\.(?P<name>[^\W\d]\w*)|\[(?P<place>-?\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*"|'[^'\\]*')\]|\.\*|\[\*\]"""
)


def read_path(path: str) -> tuple[Step, ...]:
    """Return the steps of a path: a part of RFC 9535, with names, places, ``*`` and no filters."""
    steps: list[Step] = []
    valid = isinstance(path, str) and path.startswith("$")
    place = 1
    while valid and place < len(path):
        match = _STEP.match(path, place)
        valid = match is not None
        if match is not None:
            steps.append(_step(match))
            place = match.end()
    require(valid, f"json={shown(path)} is not a path such as $.items[*].price")
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["place"] is not None:
        return int(match["place"])
    if match["quoted"] is None:
        return match["name"]
    quoted = match["quoted"]
    return quoted[1:-1] if quoted.startswith("'") else str(json.loads(quoted, strict=False))


def values_at(text: str, steps: Sequence[Step]) -> list[str]:
    """Return the values at a path: strings as they are, others as JSON, with each number as the text writes it.

    None of them if the text is not JSON.
    """
    try:
        return [_spelled(value) for value in _at(load_spelled(text), steps)]
    except (ValueError, OverflowError, RecursionError):
        return []


def settled_values(prefix: str, steps: Sequence[Step]) -> list[str]:
    """Return the values at a path that each JSON text with this prefix has.

    These are strings, ``true``, ``false`` and ``null`` only: a number's spelling is not known, and other values grow.
    """
    if any(isinstance(step, int) and step < 0 for step in steps):
        return []
    try:
        values = _at(_begun(prefix.encode("utf-8", "surrogatepass")), steps)
        return [_spelled(value) for value in values if value is None or isinstance(value, str | bool)]
    except (ValueError, RecursionError):
        return []


_ERROR_PLACE = re.compile(r"at line (\d+) column (\d+)\Z")


def _begun(prefix: bytes) -> Any:
    """Return what is complete of a JSON text, up to the first error: later text takes no value back."""
    try:
        return from_json(prefix, allow_partial=True)
    except ValueError as error:
        place = _ERROR_PLACE.search(str(error))
        if place is None:
            raise
        lines = prefix.split(b"\n")[: int(place[1])]
        lines[-1] = lines[-1][: int(place[2]) - 1]
        return from_json(b"\n".join(lines), allow_partial=True)


def _at(value: Any, steps: Sequence[Step]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values()) if step is None else [value[step]] if step in value else []
    elif isinstance(value, list):
        inner = value if step is None else _nth(value, step)
    for each in inner:
        yield from _at(each, rest)


def _nth(items: list[Any], step: Step) -> list[Any]:
    return [items[step]] if isinstance(step, int) and -len(items) <= step < len(items) else []


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else dump_spelled(value)


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
