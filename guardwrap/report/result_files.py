"""Files of results, read strictly: what is broken, or of another version, is one line that names file and place.

Messages never quote what a file says, which may be generated text; they name its fields.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from guardwrap.documents.inputs import irregular
from guardwrap.errors import UsageError, first_line, nearest
from guardwrap.outcomes import estimate_of, plain
from guardwrap.report.blocks import Page

__all__ = ["loads", "read_page", "text_of", "validated_as", "write_page"]

_Kind = TypeVar("_Kind")

_LONG = 40  # characters of a name in a message


def read_page(path: str | Path) -> Page:
    """Read a ``page.json``.

    Raises
    ------
    UsageError
        If it cannot be read, is no JSON, or has a kind or a field that a page has not.
    """
    return validated_as(loads(text_of(path), str(path)), Page, str(path), "a page")


def write_page(page: Page, path: str | Path) -> None:
    """Write a ``page.json``; ``read_page`` reads it back."""
    data = json.dumps(plain(page), ensure_ascii=False, indent=1, allow_nan=False)
    # Half a surrogate pair, which JSON can spell and UTF-8 cannot, goes out escaped.
    Path(path).write_bytes((data + "\n").encode("utf-8", "backslashreplace"))


def text_of(path: str | Path) -> str:
    """Read a file as UTF-8 text.

    Raises
    ------
    UsageError
        If it cannot be read.
    """
    if what := irregular(path):
        raise UsageError(f"cannot read {str(path)!r}: it is {what}, and a file is needed")
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is no JSON: not UTF-8 text") from None


def loads(text: str, where: str) -> Any:
    """Parse JSON; each ``{value, low, high}`` of numbers and nulls becomes an ``Estimate``.

    Parameters
    ----------
    text
        JSON.
    where
        The file, and the line where it has several, for messages.

    Raises
    ------
    UsageError
        If it is no JSON, or a field stands twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where!r} is no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{where!r} is no JSON of ours: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where!r} is no JSON of ours: {first_line(error)}") from None


def validated_as(data: Any, kind: type[_Kind], where: str, what: str) -> _Kind:
    """Take parsed JSON as what it should be.

    Parameters
    ----------
    data
        As ``loads`` returns it.
    kind
        A dataclass or pydantic model.
    where
        The file, for messages.
    what
        The kind in words.

    Raises
    ------
    UsageError
        If it is something else, or of another version.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        place, problem = _problem(error.errors()[0], data)
        raise UsageError(f"{where!r} is not {what}: {place}{': ' if place else ''}{problem}") from None


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {_named(next(n for n in names if names.count(n) > 1))} stands twice")
    if found.keys() != {"value", "low", "high"}:
        return found
    try:
        value, low, high = (_float(found[name]) for name in ("value", "low", "high"))
    except (TypeError, OverflowError):
        return found  # whoever expects an Estimate here refuses it, and names the place
    if value is None:
        # null is infinite or unknown. Infinite it is where the interval has a beginning and no end.
        value = math.inf if low is not None and high is None else math.nan
    return estimate_of({"value": value, "low": low, "high": high})


def _float(number: Any) -> float | None:
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError
    return float(number)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON; write null")


def _problem(error: Any, data: Any) -> tuple[str, str]:
    """Say where in the data and what is wrong. pydantic's own places name its types, too."""
    place, rest, entered = "", data, True
    for part in error["loc"]:
        if entered and isinstance(rest, dict) and rest.get("kind") == part:
            entered = False  # the kind of a block, which may also be the name of one of its fields
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
        return place, f"needs the field {last!r}"
    if kind == "union_tag_invalid":
        known = [name.strip("'") for name in error["ctx"]["expected_tags"].split(", ")]
        tag = error["ctx"]["tag"]
        return place, f"unknown kind {_named(tag)}{nearest(tag, known)}; known: {', '.join(known)}"
    if kind == "union_tag_not_found":
        return place, "needs the field 'kind'"
    if kind == "is_instance_of":
        return place, "give {value, low, high}, each a number or null"
    message = first_line(ValueError(error["msg"])).removeprefix("Value error, ")
    return place, message[:1].lower() + message[1:]


def _named(name: object) -> str:
    text = str(name)
    return repr(text if len(text) <= _LONG else text[: _LONG - 1] + "…")


def _plainly(name: object) -> str:
    return _named(name)[1:-1]
