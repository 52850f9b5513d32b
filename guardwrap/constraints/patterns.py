"""What a regular expression allows one to say about prefixes.

Two questions, answered by parsing with the standard library's own parser and looking at each operation. Anything
that is not known to be safe, any construct that the ``regex`` module reads differently from ``re`` included, gets
the cautious answer.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from re import _constants as op  # type: ignore[attr-defined]  # the parser that `re` itself uses
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["lookahead", "only_consumes"]

_CONSUMING = {op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY}
_REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT}
# `regex` reads {e<=1} as fuzzy matching and [[ ... ]] or [:alpha:] in its own way; `re` sees literals.
_FOREIGN = re.compile(r"\{(?!\d*,?\d*\})|\[\[|\[:|&&|\|\||--|~~")


class _Unknown(Exception):
    """The expression has something that is not known to be safe."""


def lookahead(pattern: str, flags: Sequence[str]) -> int | None:
    """How far beyond its end a match can be decided by later characters.

    Parameters
    ----------
    pattern
        The expression.
    flags
        Names of its flags.

    Returns
    -------
    int or None
        With the value w, a match of a search that ends at least w characters before the end of a prefix is a match
        in every text that begins with the prefix. None where no such number is known.
    """
    parsed = _parse(pattern, flags)
    if parsed is None:
        return None
    try:
        return max((_reach(code, argument, parsed.state.flags) for code, argument in _flatten(parsed)), default=0)
    except _Unknown:
        return None


def only_consumes(pattern: str, flags: Sequence[str]) -> bool:
    """Whether the expression has no zero-width assertion, so that a failed partial match means a dead prefix."""
    parsed = _parse(pattern, flags)
    if parsed is None:
        return False
    try:
        return all(code in _CONSUMING for code, _ in _flatten(parsed))
    except _Unknown:
        return False


def _parse(pattern: str, flags: Sequence[str]) -> Any:
    if _FOREIGN.search(pattern):
        return None
    bits = 0
    for flag in flags:
        bits |= getattr(re, flag.upper())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "possible nested set": the two modules would differ
            return parser.parse(pattern, bits)
    except (re.error, OverflowError, RecursionError, Warning):
        return None


def _flatten(parsed: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """Yield the operations that are not mere structure."""
    for code, argument in parsed:
        if code is op.BRANCH:
            for branch in argument[1]:
                yield from _flatten(branch)
        elif code is op.SUBPATTERN:
            yield from _flatten(argument[3])
        elif code in _REPEATS:
            yield from _flatten(argument[2])
        else:
            yield code, argument


def _reach(code: Any, argument: Any, flags: int) -> int:
    """How far beyond its own position an operation looks."""
    if code in _CONSUMING or code is op.GROUPREF:
        return 0
    if code is op.AT:
        if argument in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return 0
        if argument in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
            return 1
        if argument is op.AT_END and flags & re.MULTILINE:
            return 1
    if code in (op.ASSERT, op.ASSERT_NOT):
        direction, body = argument
        if all(inner in _CONSUMING for inner, _ in _flatten(body)):
            width = body.getwidth()[1]
            if direction < 0:
                return 0
            if width < 1000:
                return int(width)
    raise _Unknown
