"""Parsing of whole JSON texts, and the regular expressions for their strings, numbers and white space."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn


class Exact(Decimal):
    """The exact decimal value of a number with a fraction or an exponent. A float cannot represent 4.02 exactly."""

    def __repr__(self) -> str:
        return str(self)


def load_json(text: str) -> Any:
    """Return the value of a JSON text."""
    return _load(text, _finite)


def load_exact(text: str) -> Any:
    """Do the same as ``load_json``, but with ``Exact`` instead of float."""
    return _load(text, _exact)


@dataclass(frozen=True)
class Spelled:
    """A number as a JSON text writes it: ``1.10`` and ``1e5`` stay what they are."""

    digits: str


def load_spelled(text: str) -> Any:
    """Do the same as ``load_json``, but with ``Spelled`` instead of numbers."""

    def spelled(digits: str) -> Spelled:
        exact_number(digits)  # the same numbers are invalid
        return Spelled(digits)

    return _load(text, spelled, spelled)


def dump_spelled(value: Any) -> str:
    """Write a value that ``load_spelled`` has returned, or a part of it, with its numbers as they were."""
    # No string has a lone surrogate, so what begins with one is a number.
    text = json.dumps(value, ensure_ascii=False, default=lambda number: f"\ud800{number.digits}")
    return _NUMBER_MARKED.sub(r"\1", text) if "\ud800" in text else text


_NUMBER_MARKED = re.compile('"\ud800([^"]*)"')


def _load(text: str, parse_float: Any, parse_int: Any = None) -> Any:
    value = json.loads(
        text,
        parse_constant=_refuse,
        parse_float=parse_float,
        parse_int=parse_int or _whole,
        object_pairs_hook=_without_duplicates,
    )
    if has_lone_surrogate(text):
        raise ValueError("a lone half of a surrogate pair")
    return value


SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE_ESCAPE = re.compile(
    r"\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})", re.DOTALL
)


def has_lone_surrogate(text: str) -> bool:
    """Whether a string in a JSON text has half of a surrogate pair, which UTF-8 cannot encode."""
    return "\\" in _WHOLE_ESCAPE.sub("", text) or SURROGATE.search(text) is not None


def exact_number(digits: str) -> int | Exact:
    """Return the exact value of a JSON number. Raises the same errors as ``load_exact``."""
    return _exact(digits) if any(char in digits for char in ".eE") else _whole(digits)


def is_whole(value: Decimal) -> bool:
    """Whether a number has no fraction. Fast for any exponent."""
    return bool(value == value.to_integral_value())


def is_multiple(value: int | Decimal, of: int | Decimal) -> bool:
    """Whether a number is a multiple of ``of``, which is positive. Exact, and fast for any exponents.

    Powers of ten are computed modulo ``of``, never in full.
    """
    figures, exponent = _scientific(value)
    step, step_exponent = _scientific(of)
    shift = exponent - step_exponent
    if figures == "" or shift < 0:
        # The digits do not end in zero, so a number with smaller units than the step is not a multiple of it.
        return figures == ""
    # Python limits int() to 4300 digits; these numbers have fewer.
    return int(figures) * pow(10, shift, int(step)) % int(step) == 0


def _scientific(value: int | Decimal) -> tuple[str, int]:
    """Return the digits of a number, without zeros at either end, and the power of ten that multiplies them."""
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits)).lstrip("0")
    short = figures.rstrip("0")
    return short, exponent + len(figures) - len(short)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("beyond the range of a double")
    return number


def _exact(digits: str) -> Exact:
    _finite(digits)
    try:
        value = Exact(digits)
    except InvalidOperation:  # an exponent of about 19 digits
        value = Exact("NaN")  # the same result as if the user's decimal context does not trap this error
    if not value.is_finite():
        raise ValueError("beyond the range of a decimal")
    return value


def _whole(digits: str) -> int:
    number = int(digits)
    if len(digits) > 300:
        float(number)  # OverflowError
    return number


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return value


# These patterns run without a timeout: each covers one string, number or word, and backtracks over it once at most.
# No group is possessive: before Python 3.11.5 such a repeat of alternatives matches too much (CPython issue 106052).
BODY = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
"""The contents of a string, up to the first incomplete or invalid escape."""
ESCAPE_BEGUN = re.compile(r"\\(?:u(?:[dD](?:[0-9abAB][0-9a-fA-F]?)?|[0-9abcefABCEF][0-9a-fA-F]{0,2})?)?")
"""An incomplete escape that cannot become a low surrogate, which must follow a high one."""
HIGH_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""A high surrogate at the end of a body. It forms one character with the next escape, a low surrogate."""
LOW_SURROGATE_BEGUN = re.compile(r"\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?")
NUMBER_RUN = re.compile(r"[-+.0-9eE]*")

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*"')
_LOOSE = re.compile(r"[\t\n\r]|(?<![:,]) ")


def is_compact(text: str) -> bool:
    """Whether a JSON text has no white space outside strings, except single spaces after colons and commas."""
    return _LOOSE.search(_STRING.sub('""', text)) is None
