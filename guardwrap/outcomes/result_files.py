"""Strict readers of result files: a broken file, or one of another version, raises an error with file and field.

Messages name a file's fields but never quote its values, which may be generated text.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from guardwrap.errors import UsageError, first_line, nearest
from guardwrap.outcomes import estimate_of, plain
from guardwrap.outcomes.blocks import Page
from guardwrap.support.limits import irregular

_Kind = TypeVar("_Kind")

_LONG = 40  # characters of a name in a message


def read_page(path: str | Path) -> Page:
    """Read a ``page.json``."""
    return validated_as(loads(text_of(path), str(path)), Page, str(path), "a page")


def write_page(page: Page, path: str | Path) -> None:
    """Write a ``page.json``; ``read_page`` reads it back."""
    data = json.dumps(plain(page), ensure_ascii=False, indent=1, allow_nan=False)
    # A lone surrogate is valid in JSON but not in UTF-8, so it is written escaped.
    Path(path).write_bytes((data + "\n").encode("utf-8", "backslashreplace"))


def text_of(path: str | Path) -> str:
    """Read a file as UTF-8 text."""
    if what := irregular(path):
        raise UsageError(f"cannot read {str(path)!r}: it is {what}, not a file")
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is not JSON: it is not UTF-8 text") from None


def loads(text: str, where: str) -> Any:
    """Parse JSON; each ``{value, low, high}`` of numbers and nulls becomes an ``Estimate``."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where!r} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{where!r} is not a file of guardwrap: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where!r} is not a file of guardwrap: {first_line(error)}") from None


def validated_as(data: Any, kind: type[_Kind], where: str, what: str) -> _Kind:
    """Validate parsed JSON as a dataclass or model."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        place, problem = _problem(error.errors()[0], data)
        raise UsageError(f"{where!r} is not {what}: {place}{': ' if place else ''}{problem}") from None


def _object(pairs: list[tuple[str, Any]]) -> Any:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {_named(next(n for n in names if names.count(n) > 1))} occurs twice")
    if fields.keys() != {"value", "low", "high"}:
        return fields
    try:
        value, low, high = (_float(fields[name]) for name in ("value", "low", "high"))
    except (TypeError, OverflowError):
        return fields  # validated_as rejects it later, with its place in the file
    if value is None:
        # null is infinite or unknown; it is infinite if the interval has a lower bound and no upper one.
        value = math.inf if low is not None and high is None else math.nan
    return estimate_of({"value": value, "low": low, "high": high})


def _float(number: Any) -> float | None:
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError
    return float(number)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number; write null")


def _problem(error: Any, data: Any) -> tuple[str, str]:
    """Return the place of an error in the data, without the type names in pydantic's locations, and its message."""
    place, rest, entered = "", data, True
    for part in error["loc"]:
        if entered and isinstance(rest, dict) and rest.get("kind") == part:
            entered = False  # pydantic adds the kind of a block to the location
            continue
        entered = True
        if isinstance(rest, dict) and part in rest:
            place, rest = f"{place}.{_plainly(part)}" if place else _plainly(part), rest[part]
        elif isinstance(rest, list) and isinstance(part, int) and part < len(rest):
            place, rest = f"{place}[{part}]", rest[part]
    last = error["loc"][-1] if error["loc"] else ""
    kind = error["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return place.removesuffix(_plainly(last)).removesuffix("."), f"unknown field {_named(last)}"
    if kind == "missing":
        return place, f"the field {last!r} is missing"
    if kind == "union_tag_invalid":
        known = [name.strip("'") for name in error["ctx"]["expected_tags"].split(", ")]
        tag = error["ctx"]["tag"]
        return place, f"unknown kind {_named(tag)}{nearest(tag, known)}; known: {', '.join(known)}"
    if kind == "union_tag_not_found":
        return place, "the field 'kind' is missing"
    if kind == "is_instance_of":
        return place, "give {value, low, high} with numbers or nulls"
    message = first_line(ValueError(error["msg"])).removeprefix("Value error, ")
    return place, message[:1].lower() + message[1:]


def _named(name: object) -> str:
    text = str(name)
    return repr(text if len(text) <= _LONG else text[: _LONG - 1] + "…")


def _plainly(name: object) -> str:
    return _named(name)[1:-1]
