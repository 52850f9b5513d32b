"""Values of arithmetic expressions, as exact fractions of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from guardwrap.documents.time_limits import check_deadline

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
