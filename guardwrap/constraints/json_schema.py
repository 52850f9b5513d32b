"""A constraint on JSON: the text, or the fenced block in it, parses and validates."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NoReturn

import regex
from referencing.exceptions import Unresolvable

from guardwrap.constraints.base import Verdict, require
from guardwrap.constraints.limits import look
from guardwrap.constraints.schemas import read_schema
from guardwrap.constraints.text import TextConstraint, require_choice
from guardwrap.constraints.views import VIEWS, View
from guardwrap.errors import CheckFailed, ConstraintError

__all__ = ["JSONSchema"]


@dataclass(frozen=True, eq=False, repr=False)
class JSONSchema(TextConstraint):
    """The text is JSON that validates (draft 2020-12, through ``jsonschema``).

    Parameters
    ----------
    schema
        The schema; ``{}`` or True accepts any JSON. References must stay inside it.
    where
        ``"text"``: the whole text is JSON; ``"fenced"``: the text holds exactly one fenced block (three
        backticks, with or without ``json``), and that is JSON.
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If the schema is invalid.

    Notes
    -----
    NaN and infinities are refused, as in RFC 8259, and so are numbers beyond the range of a double, such as 1e400:
    they are not JSON that can be read. Expressions in the schema are those of the ``regex`` module. ``format`` and
    ``$schema`` are not looked at: a schema is one of draft 2020-12. References begin with ``#``.

    Every step into a schema or a text takes some of Python's stack. Where that ends, the check raises CheckFailed: with
    Python's usual limit at 100 to 200 levels of a text whose schema refers to itself.

    Examples
    --------
    >>> JSONSchema({"type": "object", "required": ["name"]}).accepts('{"name": "Ada"}')
    True
    """

    schema: dict[str, Any] | bool
    where: Literal["text", "fenced"] = field(default="text", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["json_schema"] = field(default="json_schema", kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.schema, dict | bool), "schema must be a mapping or a bool")
        try:
            # A private copy, and proof that the schema is JSON.
            object.__setattr__(self, "schema", _read(json.dumps(self.schema, allow_nan=False)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConstraintError(f"schema is not JSON: {type(error).__name__}") from None
        self.validator  # noqa: B018  # what is wrong with the schema is reported here, not at the first text
        require_choice(self.where, ("text", "fenced"), "where")
        require_choice(self.on, VIEWS, "on")

    @cached_property
    def validator(self) -> Any:
        """What judges values; its references are looked up and its expressions compiled."""
        return read_schema(self.schema)

    def __getstate__(self) -> dict[str, Any]:
        # The validator is not to be pickled; a copy makes its own.
        return {key: value for key, value in self.__dict__.items() if key != "validator"}

    def holds(self, text: str) -> bool:
        """Parse and validate one string."""
        if self.where == "fenced":
            blocks = fenced(text)
            if len(blocks) != 1:
                return False
            text = blocks[0]
        look()
        try:
            value = _read(text)
        except (
            ValueError,
            OverflowError,
            RecursionError,
        ):  # not JSON, or beyond reading: digits, depth
            return False
        try:
            return bool(self.validator.is_valid(value))
        except RecursionError:
            raise CheckFailed(self.title, "got a text nested too deep for its schema") from None
        except Unresolvable:
            raise CheckFailed(self.title, "has a reference that cannot be followed from everywhere") from None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """VIOLATED where no JSON text, or none of the schema's top-level types, begins like this."""
        if self.where == "fenced":
            return Verdict.UNDECIDED
        start = prefix.lstrip(" \t\n\r")[:1]
        if start and self.starts is not None and start not in self.starts:
            return Verdict.VIOLATED
        return Verdict.UNDECIDED if begins_json(prefix) else Verdict.VIOLATED

    @cached_property
    def starts(self) -> str | None:
        """First characters of the types that the schema's top level allows; None where it does not say."""
        types = self.schema.get("type") if isinstance(self.schema, dict) else None
        if types is None:
            return None
        return "".join(_STARTS[name] for name in ([types] if isinstance(types, str) else types))


_STARTS = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}


def _read(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("beyond the range of a double")
    return number


def _whole(digits: str) -> int:
    number = int(digits)
    if len(digits) > 300:
        float(number)  # OverflowError
    return number


def fenced(text: str) -> list[str]:
    """Return what stands between lines of three backticks, the first of two perhaps with ``json``."""
    blocks: list[str] = []
    lines = text.split("\n")
    first: int | None = None  # line of the block that is open
    for number, line in enumerate(lines):
        bare = line.strip(" \t")
        if first is not None and bare == "```":
            blocks.append("\n".join(lines[first:number]))
            first = None
        elif first is None and bare in ("```", "```json"):
            first = number + 1
    return blocks


# One value or a part of one, in the states below. Whole words and numbers are matched by what may follow.
_NUMBER = regex.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = regex.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_SPACE = " \t\n\r"


def begins_json(prefix: str) -> bool:
    """Whether some JSON text begins with this prefix: a pushdown recogniser for RFC 8259.

    Parameters
    ----------
    prefix
        Any string.

    Returns
    -------
    bool
        False only where no JSON text can begin like this.
    """
    stack: list[str] = []
    want = "value"  # value | key | colon | comma | first (value or ]) | first_key (key or }) | end
    i = 0
    while i < len(prefix):
        look()
        char = prefix[i]
        if char in _SPACE:
            i += 1
            continue
        if want == "comma":
            if char == "," and stack:
                want = "key" if stack[-1] == "{" else "value"
            elif stack and char == {"{": "}", "[": "]"}[stack[-1]]:
                stack.pop()
            else:
                return False
            i += 1
            continue
        if want == "colon":
            if char != ":":
                return False
            want, i = "value", i + 1
            continue
        if (want == "first" and char == "]") or (want == "first_key" and char == "}"):
            stack.pop()
            want, i = "comma", i + 1
            continue
        if want in ("key", "first_key"):
            if char != '"':
                return False
        elif char in "{[":
            stack.append(char)
            want, i = ("first_key" if char == "{" else "first"), i + 1
            continue
        end = _scalar(prefix, i)
        if end is None:
            return False
        if end > len(prefix):
            return True
        want = "colon" if want in ("key", "first_key") else "comma"
        i = end
    return True


def _scalar(text: str, start: int) -> int | None:
    """Where the string, number or word at ``start`` ends; beyond the text if it may go on; None if it is none."""
    char = text[start]
    if char == '"' or char in "-0123456789":
        kind = _STRING if char == '"' else _NUMBER
        # A full match is tried first: "1." would be the number 1 and a stray point, though it may become 1.5.
        if char != '"' and kind.fullmatch(text, start, partial=True):
            return len(text) + 1
        found = kind.match(text, start, partial=True)
        if found is None:
            return None
        return len(text) + 1 if found.partial else int(found.end())
    for word in ("true", "false", "null"):
        if word.startswith(text[start : start + len(word)]):
            return start + len(word)
    return None
