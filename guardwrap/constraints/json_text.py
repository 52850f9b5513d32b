"""JSON texts: what is read as one, and the pieces that they are made of."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

__all__ = ["is_compact", "load", "number"]


def load(text: str) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    ValueError, OverflowError
        If it is none, has NaN, an infinity or a number beyond the range of a double, or an object that has a key twice.
    RecursionError
        If it is nested too deep.
    """
    return json.loads(
        text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole, object_pairs_hook=_without_duplicates
    )


def number(digits: str) -> int | float:
    """Return the value of a number that is spelled as JSON does; the errors are those of ``load``."""
    return _finite(digits) if any(char in digits for char in ".eE") else _whole(digits)


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


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


# In patterns of one string, number or word there is nothing to backtrack into.
BODY = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
"""What stands in a string, as far as it is whole."""
ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
HIGH_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""At the end of a body: an escape that becomes one character with the next, should that be a low surrogate."""
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?")
NUMBER_RUN = re.compile(r"[-+.0-9eE]*")

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_LOOSE = re.compile(r"[\t\n\r]|(?<![:,]) ")


def is_compact(text: str) -> bool:
    """Whether a JSON text has no white space outside strings but single spaces after colons and commas."""
    return _LOOSE.search(_STRING.sub('""', text)) is None
