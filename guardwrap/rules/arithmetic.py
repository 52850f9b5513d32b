"""The ``Arithmetic`` constraint: the equations in the text are right, computed in exact fractions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

import regex

from guardwrap.constraints.field_checks import is_between, require, require_choice, shortened, shown, verdict_on_count
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import is_count
from guardwrap.rules.numbers import LOCALES, is_edge, literal_at
from guardwrap.support.formatting import counted
from guardwrap.support.time_limits import check_deadline

Token = Fraction | str | None
"""A number (None if it cannot be read), one of ``+ - * / ^ ( )``, or ``%`` after a number."""

MAX_BITS = 4_000
"""Larger numerators and denominators are not computed."""


class TooLarge(ArithmeticError):
    """A value is too large to compute, cannot be read, or does not exist (division by zero)."""


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooLarge
    return value


def _divided(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise TooLarge
    return left / right


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError
    size = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if abs(exponent) > MAX_BITS or size * abs(exponent) > MAX_BITS or (base == 0 and exponent < 0):
        raise TooLarge
    return Fraction(base ** int(exponent))


_BINARY: dict[str, tuple[int, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": (1, lambda left, right: left + right),
    "-": (1, lambda left, right: left - right),
    "*": (2, lambda left, right: left * right),
    "/": (2, _divided),
    "^": (4, _power),
}
"""Precedence and function. A sign has the precedence 3: -2^2 is -4."""


def expression_value(tokens: Sequence[Token]) -> Fraction | None:
    """Return the value of an expression; None if it is not one, or its value is not rational."""
    values: list[Fraction] = []
    operators: list[str] = []
    after_operand = False

    def apply() -> None:
        operator = operators.pop()
        check_deadline()
        if operator == "sign":
            values.append(-values.pop())
            return
        right, left = values.pop(), values.pop()
        values.append(_bounded(_BINARY[operator][1](left, right)))

    def precedence(operator: str) -> int:
        return 0 if operator == "(" else 3 if operator == "sign" else _BINARY[operator][0]

    try:
        for token in tokens:
            if token is None:
                raise TooLarge
            if isinstance(token, Fraction):
                if after_operand:
                    return None
                values.append(_bounded(token))
                after_operand = True
            elif token == "(":
                if after_operand:
                    return None
                operators.append("(")
            elif token == ")":
                if not after_operand:
                    return None
                while operators[-1] != "(":
                    apply()
                operators.pop()
            elif token == "%":
                if not after_operand:
                    return None
                values.append(values.pop() / 100)
            elif not after_operand:
                if token not in "+-":
                    return None
                if token == "-":
                    operators.append("sign")
            else:
                while operators and (
                    precedence(operators[-1]) > precedence(token)
                    or (precedence(operators[-1]) == precedence(token) and token != "^")
                ):
                    apply()
                operators.append(token)
                after_operand = False
        if not after_operand or "(" in operators:
            return None
        while operators:
            apply()
    except (IndexError, ValueError):
        return None
    return values[0]


_AHEAD = 12
"""Whether an equation ends at a place does not depend on more characters after it."""

_OPERATORS = {
    **dict.fromkeys("+＋", "+"),
    **dict.fromkeys("-−–－", "-"),
    **dict.fromkeys("×✕⋅·∙", "*"),
    **dict.fromkeys("÷/∕／", "/"),
    "^": "^",
    **dict.fromkeys("%٪％", "%"),
    **dict.fromkeys("=＝", "="),
    **dict.fromkeys("≈≃", "≈"),
    **dict.fromkeys("(（", "("),
    **dict.fromkeys(")）", ")"),
}
_MARKER = regex.compile(r"[ \t]*(?:[-*+•][ \t]+|\p{Nd}{1,3}[.)][ \t]+)")
"""A list marker, which is no minus sign and no number."""

_SPACE = regex.compile(r"[ \t\u00a0\u202f\u2009$€£¥₹]{1,3}")
_STAR = regex.compile(r"\*\*?")
_TIMES = regex.compile(r"[xX](?=\s{0,3}[\p{Nd}(])")
_COLON = regex.compile(r"(?<=\s):(?=\s)")
_OF = regex.compile(r"\s?(?:of|von|de|di|z|от|van|的|の)(?=\s?\p{Nd})")
_BEFORE = "([{\"'“„‘«:,;>|`*_~$€£¥₹（「"
"""What a number may follow directly that begins an equation. After another symbol, such as √, it is unknown."""

_FUNCTIONS = regex.compile(r"(?i)(?<!\p{L})(?:sin|cos|tan|log|ln|lg|sqrt|exp|mod|div|root)\s*$")


def _is_number(token: Token) -> bool:
    return token is None or isinstance(token, Fraction)


class _Side(NamedTuple):
    """One side of an equation."""

    tokens: tuple[Token, ...] | None  # its tokens; None if it has parts that are not arithmetic
    literal: int | None  # the number of decimals, if it is one number as it is written; otherwise None


class _Reader:
    """Reads one line into equations."""

    def __init__(self, line: str, locale: str) -> None:
        self.line, self.locale = line, locale
        marker = _MARKER.match(line)
        self.place = marker.end() if marker else 0
        self.start()

    def start(self) -> None:
        """Begin an equation."""
        self.sides: list[_Side] = []
        self.signs: list[str] = []
        self.tokens: list[Token] = []
        self.decimals = 0
        self.depth = 0
        self.known = True
        self.spaced = True

    def equations(self) -> Iterator[tuple[int | None, _Side, str, _Side]]:
        """Yield pairs of sides with the sign between, and where the right one ends; None if at an equals sign."""
        while self.place < len(self.line):
            check_deadline()
            before = len(self.signs)
            at = self.place
            if self._reads_on():
                if len(self.signs) > before > 0:
                    yield None, self.sides[-2], self.signs[-2], self.sides[-1]
                continue
            yield from self._last(at)
            self.start()
            self.place = max(self.place, at + 1) if self.place == at else self.place
        yield from self._last(len(self.line))

    def _last(self, end: int) -> Iterator[tuple[int | None, _Side, str, _Side]]:
        if self.signs:
            touches = not self.spaced and end < len(self.line) and (is_edge(self.line[end]) or self.line[end] == "_")
            if touches:
                self.known = False
            self._end_side()
            yield end, self.sides[-2], self.signs[-1], self.sides[-1]

    def _end_side(self) -> None:
        tokens = self.tokens
        if self.depth and not self.sides and tokens[: self.depth] == ["("] * self.depth:
            tokens = tokens[self.depth :]  # a bracket around the equation
            self.depth = 0
        known = self.known and not self.depth and bool(tokens)
        unsigned = tokens[1:] if tokens[:1] == ["-"] else tokens
        literal = self.decimals if len(unsigned) == 1 and _is_number(unsigned[0]) else None
        self.sides.append(_Side(tuple(tokens) if known else None, literal))
        self.tokens, self.depth, self.known = [], 0, True

    def _after_operand(self) -> bool:
        return bool(self.tokens) and (_is_number(self.tokens[-1]) or self.tokens[-1] in (")", "%"))

    def _reads_on(self) -> bool:
        """Read one token of the equation; False if it ends here."""
        space = _SPACE.match(self.line, self.place)
        if space is not None:
            self.place, self.spaced = space.end(), True
            return _SPACE.match(self.line, self.place) is None
        number = literal_at(self.line, self.place, self.locale)
        if number is not None:
            return self._number(number.end, number.value, number.decimals)
        star = _STAR.match(self.line, self.place)
        if star is not None:
            return self._star(star.end(), "^" if len(star.group()) == 2 else "*")
        if self._after_operand():
            for pattern, operator in ((_TIMES, "*"), (_COLON, "/"), (_OF, "*")):
                match = pattern.match(self.line, self.place)
                if match is not None and (pattern is not _OF or self.tokens[-1] == "%"):
                    self.place, self.spaced = match.end(), False
                    self.tokens.append(operator)
                    return True
        operator = _OPERATORS.get(self.line[self.place], "")
        return operator != "" and self._operator(operator)

    def _number(self, end: int, value: Fraction | None, decimals: int) -> bool:
        if self._after_operand():
            return False
        before = self.line[self.place - 1 : self.place]
        begins = before == "" or before.isspace() or before in _BEFORE + "=＝≈≃"
        if not self.tokens and not begins and not (before.isalpha() and not is_edge(before)):
            self.known = False
        if not self.tokens and not self.sides and _FUNCTIONS.search(self.line[max(0, self.place - 9) : self.place]):
            self.known = False
        self.tokens.append(value)
        self.place, self.decimals, self.spaced = end, decimals, False
        return True

    def _star(self, end: int, operator: str) -> bool:
        rest = self.line[end : end + 4]
        following = rest.lstrip()[:1]  # a number; a word after a space is not multiplied: "**36** apples"
        multiplied = self.spaced or rest[:1].isalnum() or following.isdecimal() or following in tuple("(-−$€£")
        is_markup = not (self._after_operand() and multiplied)
        self.place = end
        if not is_markup:
            self.tokens.append(operator)
            self.spaced = False
        return True

    def _operator(self, operator: str) -> bool:
        if operator in "=≈":
            if self.sides and not self.tokens:  # "=="
                self.place += 1
                return True
            self._end_side()
            self.signs.append(operator)
        elif operator == ")" and self.depth == 0:
            return False
        elif operator == "(" and self._after_operand():
            if self.spaced:
                return False
            self.tokens += ["*", "("]
            self.depth += 1
        else:
            if not self.tokens and not self.sides and operator in "+-*/^%":
                self._sign(operator)
            self.tokens.append(operator)
            self.depth += {"(": 1, ")": -1}.get(operator, 0)
            if operator == "%" and len(self.tokens) > 2 and self.tokens[-3] in ("+", "-"):
                self.known = False  # 100 + 10 % is 100.1, or 110
        self.place += 1
        self.spaced = False
        return True

    def _sign(self, operator: str) -> None:
        """Note whether an operator that comes first is the sign of a number, or follows something unknown."""
        before = self.line[: self.place].rstrip()[-1:]
        attached = self.line[self.place + 1 : self.place + 2].isdecimal()
        self.known = self.known and operator == "-" and attached and (before == "" or before in _BEFORE)


def _is_right(left: _Side, sign: str, right: _Side) -> bool:
    """Whether two sides are equal, as precisely as they are written; True if one of them is not arithmetic."""
    if left.tokens is None or right.tokens is None:
        return True
    if left.literal is not None and right.literal is not None and sign == "=":
        return True  # as in "level 5 = 10 points", nothing is computed
    try:
        values = expression_value(left.tokens), expression_value(right.tokens)
    except TooLarge:
        return False
    if values[0] is None or values[1] is None:
        return True
    difference = abs(values[0] - values[1])
    decimals = [side.literal for side in (left, right) if side.literal is not None]
    rounded = [count for count in decimals if count > 0 or sign == "≈"]
    return difference == 0 or any(difference * 2 * 10**count <= 1 for count in rounded)


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(TextConstraint):
    """Every equation in the text is right, such as "12 × 3 = 36" and "2 + 3 = 5 = 10/2".

    Parameters
    ----------
    locale
        How the text writes numbers, as a tag such as ``"de"``.
    min_count
        Least number of equations; None for any.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Notes
    -----
    An equation is on one line, has numbers, ``+ - × x * · ÷ / : ^ ** ( ) %`` and ``=`` or ``≈``, and an operator on one
    side at least. ``:`` divides between spaces only. Symbols of currencies are skipped. With a variable or a unit
    within a side, or "100 + 10 %", which has two meanings, a side is not arithmetic and nothing is compared with it.

    Values are exact. A side that is a number with decimals may be rounded to them: 2/3 = 0.67 is right, but not 2/3 =
    0.66 and 7/2 = 4. After ≈, whole numbers may be rounded, too. An equation is wrong if it divides by zero, if a
    value has more than 4 000 bits, or if the locale does not write a number like this, such as "1.5" in German.

    An equation counts in a prefix when it is followed by another equals sign, a line break or 12 more characters:
    "12 × 3 = 3" may continue with "6" or "+ 33".

    Examples
    --------
    >>> Arithmetic().accepts("So 12 × 3 = 36, and 15% of 200 = 30.")
    True
    >>> Arithmetic().accepts("2 + 3 = 5 = 10/3")
    False
    """

    locale: str = field(default="en", kw_only=True)
    min_count: int | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["arithmetic"] = field(default="arithmetic", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.locale, tuple(LOCALES), "locale")
        valid = self.min_count is None or is_count(self.min_count)
        require(valid, f"min_count={shown(self.min_count)}: give a whole number of at least 0")
        object.__setattr__(self, "on", read_view(self.on))

    def _equations(self, text: str, *, whole: bool) -> Iterator[bool]:
        """Yield of each equation whether it is right; of a text that may continue, only those that have ended."""
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if not ("=" in line or "＝" in line or "≈" in line or "≃" in line):
                continue
            ended = whole or number < len(lines) - 1 or line != line.splitlines()[0]
            for end, left, sign, right in _Reader(line, self.locale).equations():
                is_arithmetic = left.tokens is not None and right.tokens is not None
                if is_arithmetic and (ended or end is None or end + _AHEAD <= len(line)):
                    yield _is_right(left, sign, right)

    def holds(self, text: str) -> bool:
        right = list(self._equations(text, whole=True))
        return all(right) and is_between(len(right), self.min_count, None)

    def fault(self, text: str) -> str:
        right = list(self._equations(text, whole=True))
        if all(right):
            return f"has {counted(len(right), 'equation')}, not at least {self.min_count}"
        line = next(line for line in text.splitlines() if not all(self._equations(line, whole=True)))
        return f"{right.count(False)} of {len(right)} equations are wrong, the first in {shortened(line)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        right = all(self._equations(prefix, whole=False))
        return Verdict.UNDECIDED if right else verdict_on_count(1, None, 0)
