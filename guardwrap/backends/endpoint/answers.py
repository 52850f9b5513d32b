"""Fields of a server's answers, which may hold anything, as values that the rest of guardwrap can rely on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from guardwrap.documents.inputs import is_text
from guardwrap.errors import EndpointError

__all__ = ["AnswerLimit", "count_of", "ids_of", "log_probabilities_of", "printable_line", "text_piece"]

_PIECES, _CHARACTERS = 16, 1000
"""Pieces and characters of a text for each of its tokens, at most. Servers send a piece for each token; proxies may cut
them smaller. Tokens have a dozen characters, very few over a hundred."""

_FEW = 256
"""Tokens beyond those asked for that are forgiven: a short text may be cut in many pieces."""

_GREATEST_ID = 2**31


class AnswerLimit:
    """What a text may have: a server that goes on for ever is found out.

    Parameters
    ----------
    where
        The server, in words.
    max_tokens
        Tokens that were asked for, at most.
    """

    def __init__(self, where: str, max_tokens: int) -> None:
        self._where, self._max_tokens = where, max_tokens
        self._pieces = self._characters = self._ids = 0

    @property
    def tokens(self) -> int:
        """Tokens that a server may say a text has, at most."""
        return self._max_tokens + _FEW

    def take(self, text: str, ids: Sequence[int]) -> None:
        """Count a piece.

        Raises
        ------
        EndpointError
            If the text has more than a text of so many tokens can have.
        """
        self._pieces += 1
        self._characters += len(text)
        self._ids += len(ids)
        most = self.tokens
        if self._pieces > _PIECES * most or self._characters > _CHARACTERS * most or self._ids > self._max_tokens:
            raise EndpointError(
                f"{self._where} does not keep max_tokens={self._max_tokens}: a text goes on far beyond it; draw from a "
                "server that does"
            )


def text_piece(value: Any) -> str:
    """Return a piece of text; nothing is none.

    Raises
    ------
    ValueError
        If it is something else, or has half of a surrogate pair.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or not is_text(value):
        raise ValueError("no text")
    return value


def count_of(value: Any, most: int) -> int | None:
    """Return a number of tokens, or None where it cannot be one."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= most else None


def ids_of(value: Any) -> list[int] | None:
    """Return token ids, or None where they cannot be."""
    if not isinstance(value, list | tuple):
        return None
    good = all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < _GREATEST_ID for each in value)
    return list(value) if good else None


def log_probabilities_of(values: Any) -> list[float] | None:
    """Return log-probabilities in nats, or None where one is missing, infinite, or no number."""
    if not isinstance(values, list | tuple):
        return None
    try:
        numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    except OverflowError:  # a whole number beyond every float
        return None
    return numbers if len(numbers) == len(values) and all(map(math.isfinite, numbers)) else None


def printable_line(said: Any, most: int) -> str:
    """Return what a server says as one line that a terminal can show, cut to so many characters."""
    text = said if isinstance(said, str) else ""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 100 * most])
    return " ".join(shown.split())[:most]
