"""Checks of the fields of constraints, and how values, limits and texts appear in errors and explanations."""

from __future__ import annotations

import reprlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import regex

from guardwrap.constraints.verdicts import Verdict
from guardwrap.errors import ConstraintError, Unsatisfiable, is_count, nearest, quoted
from guardwrap.support.formatting import digits

_LONGEST = 60
_WORD = regex.compile(r"\S+")
_AROUND = ".,;:!?()[]{}<>\"'“”‘’«»*_`"


def shown(value: object) -> str:
    """Describe a value of the wrong type for an error message: its ``repr``, shortened, and its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    spelling = reprlib.repr(value)
    spelling = spelling if len(spelling) <= 40 else f"{spelling[:37]}..."
    return spelling if value is None else f"{spelling} ({type(value).__name__})"


def require(condition: bool, message: str) -> None:
    """Raise ConstraintError unless the condition holds."""
    if not condition:
        raise ConstraintError(message)


def require_booleans(constraint: object, *names: str) -> None:
    """Raise ConstraintError unless some fields of a constraint are true or false: a "no" would count as true."""
    for name in names:
        require(isinstance(getattr(constraint, name), bool), f"{name} must be true or false")


@contextmanager
def about(name: str | int, *, inside: bool = True) -> Iterator[None]:
    """Add a field to the location of a ConstraintError, so that errors about a file can give its line number.

    ``inside``: whether to keep the error's own location, as a place within that field.
    """
    try:
        yield
    except ConstraintError as error:
        error.location = (name, *(error.location if inside else ()))
        raise


def require_choice(value: object, choices: tuple[str, ...], field_name: str) -> None:
    """Raise ConstraintError, which suggests the nearest choice, unless a value is one of the choices."""
    require(
        value in choices,
        f"{field_name}={value!r} is not one of {', '.join(choices)}{nearest(value, choices)}",
    )


def require_counts(constraint: object, least: str = "min", most: str = "max") -> None:
    """Raise ConstraintError unless two fields are limits on a count: whole numbers in order, or None."""
    low, high = getattr(constraint, least), getattr(constraint, most)
    for limit in (low, high):
        require(limit is None or is_count(limit), f"limit {shown(limit)}: give a whole number of at least 0")
    require_order(constraint, low, high, f"{least}={low} exceeds {most}={high}")


def require_order(constraint: object, least: Any, most: Any, problem: str) -> None:
    """Raise Unsatisfiable if the lower one of two limits is above the upper one."""
    if least is not None and most is not None and least > most:
        raise Unsatisfiable(f"{type(constraint).__name__} {problem}")


def is_between(number: float, least: float | None, most: float | None) -> bool:
    """Whether a number is between two limits; None is no limit."""
    return (least is None or number >= least) and (most is None or number <= most)


def number_in_words(number: float) -> str:
    """Return a count in full, and a share with three digits."""
    return str(number) if isinstance(number, int) else digits(number)


def limits_in_words(least: float | None, most: float | None) -> str:
    """Return two limits, as in ``at least 2 and at most 5``; None is no limit."""
    limits = (("least", least), ("most", most))
    return " and ".join(f"at {word} {number_in_words(limit)}" for word, limit in limits if limit is not None)


def verdict_on_count(count: int, least: float | None, most: float | None) -> Verdict:
    """Return the verdict on a text whose count never falls when text is added."""
    if most is not None:
        return Verdict.VIOLATED if count > most else Verdict.UNDECIDED
    return Verdict.SATISFIED if is_between(count, least, most) else Verdict.UNDECIDED


def shortened(text: str) -> str:
    """Quote a text in one line, cut to 60 characters."""
    line = " ".join(text.split())
    return quoted(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…")


def listed(items: Iterable[str], most: int = 3) -> str:
    """Quote the first different items of a list; "" if there is none."""
    first = list(islice(dict.fromkeys(items), most + 1))
    return ", ".join(map(shortened, first[:most])) + (", …" if len(first) > most else "")


def excerpt(text: str, matches: Callable[[str], bool]) -> str:
    """Return a piece of a text, in whole words, that matches as the text does.

    It is found by bisection: the first word with which the beginning of the text matches, and the last one from which
    that beginning still does.
    """
    words = [match.span() for match in _WORD.finditer(text)]
    if not words or not matches(text[: words[-1][1]]):
        return text
    last = bisect_left(words, True, hi=len(words) - 1, key=lambda word: matches(text[: word[1]]))
    end = words[last][1]
    first = bisect_left(words, True, lo=1, hi=last + 1, key=lambda word: not matches(text[word[0] : end])) - 1
    piece = text[words[first][0] : end]
    bare = piece.strip(_AROUND)
    return bare if bare != piece and matches(bare) else piece
