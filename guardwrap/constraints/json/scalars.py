"""Rules of a JSON Schema for strings and numbers, for values that are still incomplete."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection
from typing import Any, NamedTuple

from guardwrap.constraints.json.drafts import WHOLE
from guardwrap.documents.lexical import Exact, is_whole
from guardwrap.documents.time_limits import check_deadline, within


class Words:
    """A set of allowed strings, with fast lookup by prefix."""

    __slots__ = ("_sorted", "longest")

    def __init__(self, words: Collection[str]) -> None:
        self._sorted = sorted(set(words))
        self.longest = max(map(len, words), default=-1)

    def __contains__(self, text: str) -> bool:
        i = bisect_left(self._sorted, text)
        return i < len(self._sorted) and self._sorted[i] == text

    def may_become(self, prefix: str, but: Collection[str] = ()) -> bool:
        """Whether one of the strings begins with the prefix and is not in ``but``."""
        for i in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            check_deadline()
            if not self._sorted[i].startswith(prefix):
                return False
            if self._sorted[i] not in but:
                return True
        return False

    def following(self, prefix: str) -> set[str]:
        """Return the characters that follow the prefix in the strings that begin with it."""
        characters: set[str] = set()
        for i in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            check_deadline()
            if not self._sorted[i].startswith(prefix):
                break
            characters.update(self._sorted[i][len(prefix) : len(prefix) + 1])
        return characters


_EACH = 256  # up to this length an expression is tried after every character


class Pattern(NamedTuple):
    """A regular expression that must match somewhere in a string."""

    compiled: Any  # the compiled expression
    dies: bool  # whether a failed partial search proves that no longer string has a match

    def found_in(self, text: str) -> bool:
        """Whether a complete string has a match."""
        return within(self.compiled.search, text) is not None

    def may_be_found(self, prefix: str, before: int) -> bool:
        """Whether a string that begins with the prefix may have a match.

        In long strings the expression is tried only at some lengths, so that all tries together take linear time. These
        lengths do not depend on how the string is cut into pieces.
        """
        if not self.dies:
            return True
        end = _checkpoint(len(prefix))
        return end == _checkpoint(before) or within(self.compiled.search, prefix[:end], partial=True) is not None


def _checkpoint(length: int) -> int:
    """Return the greatest length, up to this one, at which an expression is tried: beyond ``_EACH``, every 25 %."""
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
    """The rules for numbers in one subschema."""

    # ``"number"``; ``"integer"`` for whole numbers, including 1.0; ``WHOLE`` for whole numbers written without a
    # fraction
    integer: str
    least: int | Exact  # inclusive limits
    above: int | Exact | None  # exclusive limits, or None
    most: int | Exact
    below: int | Exact | None
    choices: tuple[frozenset[int | Exact], ...]  # sets of numbers; the number must be in each of them
    multiple: bool  # whether there is a ``multipleOf``, which the validator checks

    def hold(self, value: int | Exact) -> bool:
        """Whether a complete number satisfies the rules, except ``multipleOf``."""
        return (
            (self.integer == "number" or isinstance(value, int) or (self.integer == "integer" and is_whole(value)))
            and self.least <= value <= self.most
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and all(value in chosen for chosen in self.choices)
        )

    def may_hold(self, digits: str) -> bool:
        """Whether a number that begins with these characters may satisfy the rules.

        An exponent can still make the number small or large, so only its sign and its first digits are certain. -0 and
        -0e9 equal 0.
        """
        if self.integer == WHOLE and not digits.lstrip("-").isdigit() and digits != "-":
            return False
        if digits[0] == "-":
            possible = self.least <= 0 and (self.above is None or self.above < 0)
        else:
            possible = self.most >= 0 and (self.below is None or self.below > 0)
        return possible and all(_one_begins(chosen, digits) for chosen in self.choices)


def limits_of(schema: dict[str, Any], choices: list[list[int | Exact]], integer: str) -> NumberRange | None:
    """Return the rules for numbers in a subschema; None if there are none."""
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


_FEW = 64  # the most choices that are compared digit by digit


def _one_begins(choices: frozenset[int | Exact], digits: str) -> bool:
    return len(choices) > _FEW or any(_begins(choice, digits) for choice in choices)


def _begins(choice: int | Exact, digits: str) -> bool:
    """Whether a number that begins with these characters can equal a choice.

    Leading and trailing zeros and an exponent only move the decimal point, so the significant digits are compared.
    """
    check_deadline()
    typed = digits.replace("E", "e").partition("e")[0].lstrip("-").replace(".", "").lstrip("0")
    if choice == 0:
        return not typed
    if (digits[0] == "-") != (choice < 0):
        return False
    figures = "".join(map(str, Exact(choice).as_tuple().digits)).rstrip("0")
    return figures.startswith(typed) or typed.rstrip("0") == figures
