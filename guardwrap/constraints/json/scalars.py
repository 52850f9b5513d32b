"""Strings and numbers under a JSON Schema while they are typed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection
from typing import Any, NamedTuple

from guardwrap.constraints.json.drafts import WHOLE
from guardwrap.constraints.json.lexical import Exact, is_whole
from guardwrap.documents.time_limits import check_deadline, within

__all__ = ["NumberRange", "Pattern", "Words", "limits_of"]


class Words:
    """Strings, one of which is being typed.

    Parameters
    ----------
    words
        The strings.
    """

    __slots__ = ("_sorted", "longest")

    def __init__(self, words: Collection[str]) -> None:
        self._sorted = sorted(set(words))
        self.longest = max(map(len, words), default=-1)

    def __contains__(self, text: str) -> bool:
        i = bisect_left(self._sorted, text)
        return i < len(self._sorted) and self._sorted[i] == text

    def may_become(self, prefix: str, but: Collection[str] = ()) -> bool:
        """Whether one of them begins with the prefix, and is none of those that are left out."""
        for i in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            check_deadline()
            if not self._sorted[i].startswith(prefix):
                return False
            if self._sorted[i] not in but:
                return True
        return False

    def following(self, prefix: str) -> set[str]:
        """Return the characters that follow the prefix in those that begin with it."""
        found: set[str] = set()
        for i in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            check_deadline()
            if not self._sorted[i].startswith(prefix):
                break
            found.update(self._sorted[i][len(prefix) : len(prefix) + 1])
        return found


_EACH = 256  # up to so many characters an expression is asked at each


class Pattern(NamedTuple):
    """A regular expression that a string must have a match of.

    Parameters
    ----------
    compiled
        The expression.
    dies
        Whether a failed partial search means that there will be none.
    """

    compiled: Any
    dies: bool

    def found_in(self, text: str) -> bool:
        """Whether a whole string has a match."""
        return within(self.compiled.search, text) is not None

    def may_be_found(self, prefix: str, before: int) -> bool:
        """Whether a string that begins like this may have a match.

        In long strings this looks only now and then, so that all looks together take linear time. Which prefixes it
        looks at does not depend on how the string is cut.

        Parameters
        ----------
        prefix
            The string so far.
        before
            How long the string was when this was asked last.
        """
        if not self.dies:
            return True
        end = _checkpoint(len(prefix))
        return end == _checkpoint(before) or within(self.compiled.search, prefix[:end], partial=True) is not None


def _checkpoint(length: int) -> int:
    """Return the last length, at most this one, at which an expression is asked: then each quarter more."""
    if length <= _EACH:
        return length
    steps = int(math.log(length / _EACH, 1.25))
    while _EACH * 1.25 ** (steps + 1) <= length:
        steps += 1
    while _EACH * 1.25**steps > length:
        steps -= 1
    return int(_EACH * 1.25**steps)


_LEAST, _MOST = Exact("-Infinity"), Exact("Infinity")


class NumberRange(NamedTuple):
    """What is said of numbers.

    Parameters
    ----------
    integer
        ``"integer"`` if it must be a whole number, of which 1.0 is one; ``WHOLE`` if it must be spelled as one.
    least, above, most, below
        Limits, the second and the last exclusive.
    choices
        It must be in each of these.
    multiple
        Whether the validator is asked of ``multipleOf``.
    """

    integer: str
    least: int | Exact
    above: int | Exact | None
    most: int | Exact
    below: int | Exact | None
    choices: tuple[frozenset[int | Exact], ...]
    multiple: bool

    def hold(self, value: int | Exact) -> bool:
        """Whether they hold of a number, ``multipleOf`` left aside."""
        return (
            (self.integer == "number" or isinstance(value, int) or (self.integer == "integer" and is_whole(value)))
            and self.least <= value <= self.most
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and all(value in chosen for chosen in self.choices)
        )

    def may_hold(self, digits: str) -> bool:
        """Whether they may hold of a number that is spelled like this so far.

        An exponent makes any number small, so all that is sure is the sign, and what the first digits are. -0 is 0, and
        so is -0e9.
        """
        if self.integer == WHOLE and not digits.lstrip("-").isdigit() and digits != "-":
            return False
        if digits[0] == "-":
            possible = self.least <= 0 and (self.above is None or self.above < 0)
        else:
            possible = self.most >= 0 and (self.below is None or self.below > 0)
        return possible and all(_one_begins(chosen, digits) for chosen in self.choices)


def limits_of(schema: dict[str, Any], choices: list[list[int | Exact]], integer: str) -> NumberRange | None:
    """Return what a subschema says of numbers, if anything.

    Parameters
    ----------
    schema
        Its JSON.
    choices
        The numbers in its enum, and the one in its const.
    integer
        Its type.
    """
    names = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    if integer == "number" and not choices and not names & schema.keys():
        return None
    return NumberRange(
        integer=integer,
        least=schema.get("minimum", _LEAST),
        above=schema.get("exclusiveMinimum"),
        most=schema.get("maximum", _MOST),
        below=schema.get("exclusiveMaximum"),
        choices=tuple(frozenset(chosen) for chosen in choices),
        multiple="multipleOf" in schema,
    )


_FEW = 64  # more choices than these are not compared digit by digit


def _one_begins(choices: frozenset[int | Exact], digits: str) -> bool:
    return len(choices) > _FEW or any(_begins(choice, digits) for choice in choices)


def _begins(choice: int | Exact, digits: str) -> bool:
    """Whether some number that is spelled like this so far is this one.

    Zeros before and after the figures of a number, and an exponent, only move its point.
    """
    check_deadline()
    typed = digits.replace("E", "e").partition("e")[0].lstrip("-").replace(".", "").lstrip("0")
    if choice == 0:
        return not typed
    if (digits[0] == "-") != (choice < 0):
        return False
    figures = "".join(map(str, Exact(choice).as_tuple().digits)).rstrip("0")
    return figures.startswith(typed) or typed.rstrip("0") == figures
