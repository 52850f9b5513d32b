"""JSON texts: what is read as one, and the pieces that they are made of."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

__all__ = [
    "Exact",
    "exact_number",
    "has_lone_surrogate",
    "is_compact",
    "is_multiple",
    "is_whole",
    "load_exact",
    "load_json",
]


class Exact(Decimal):
    """A number with a fraction or an exponent, exactly as it is written: 4.02 is no double."""

    def __repr__(self) -> str:
        return str(self)


def load_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    ValueError, OverflowError
        If it is none, has NaN, an infinity or a number beyond the range of a double, a lone surrogate, or an object
        that has a key twice.
    RecursionError
        If it is nested too deep.
    """
    return _load(text, _finite)


def load_exact(text: str) -> Any:
    """Return the value of a JSON text, with ``Exact`` for numbers that are not integers; errors as ``load_json``."""
    return _load(text, _exact)


def _load(text: str, parse_float: Any) -> Any:
    value = json.loads(
        text, parse_constant=_refuse, parse_float=parse_float, parse_int=_whole, object_pairs_hook=_without_duplicates
    )
    if has_lone_surrogate(text):
        raise ValueError("half of a surrogate pair stands alone")
    return value


SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE_ESCAPE = re.compile(
    r"\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})", re.DOTALL
)


def has_lone_surrogate(text: str) -> bool:
    """Whether a string in a JSON text has half of a surrogate pair, which is no character and no UTF-8."""
    return "\\" in _WHOLE_ESCAPE.sub("", text) or SURROGATE.search(text) is not None


def exact_number(digits: str) -> int | Exact:
    """Return the exact value of a number that is spelled as JSON does; the errors are those of ``load_exact``."""
    return _exact(digits) if any(char in digits for char in ".eE") else _whole(digits)


def is_whole(value: Decimal) -> bool:
    """Whether a number has no fraction; of any exponent, at once."""
    return bool(value == value.to_integral_value())


def is_multiple(value: int | Decimal, of: int | Decimal) -> bool:
    """Whether a number is a multiple of another, which is positive. Exact, and quick for any exponents.

    Powers of ten are counted and taken modulo the other number; they are never written out.
    """
    figures, exponent = _scientific(value)
    step, step_exponent = _scientific(of)
    shift = exponent - step_exponent
    if figures == "" or shift < 0:
        # The figures do not end in zero, so what is finer than the step is no multiple of it.
        return figures == ""
    # Python converts no more than some thousand figures; a double and a step have fewer.
    return int(figures) * pow(10, shift, int(step)) % int(step) == 0


def _scientific(value: int | Decimal) -> tuple[str, int]:
    """Return the figures of a number, without zeros at either end, and the power of ten that multiplies them."""
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
    except InvalidOperation:  # an exponent of some 19 digits
        value = Exact("NaN")  # as where the user's context does not trap it
    if not value.is_finite():
        raise ValueError("beyond the range of a decimal")
    return value


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
ESCAPE_BEGUN = re.compile(r"\\(?:u(?:[dD](?:[0-9abAB][0-9a-fA-F]?)?|[0-9abcefABCEF][0-9a-fA-F]{0,2})?)?")
"""An escape that is not whole, and does not become a low surrogate: one needs a high one before it."""
HIGH_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""At the end of a body: an escape that becomes one character with the next, which must be a low surrogate."""
LOW_SURROGATE_BEGUN = re.compile(r"\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?")
NUMBER_RUN = re.compile(r"[-+.0-9eE]*")

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_LOOSE = re.compile(r"[\t\n\r]|(?<![:,]) ")


def is_compact(text: str) -> bool:
    """Whether a JSON text has no white space outside strings but single spaces after colons and commas."""
    return _LOOSE.search(_STRING.sub('""', text)) is None
