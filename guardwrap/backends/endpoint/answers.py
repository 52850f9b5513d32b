"""Validation of a server's answers, whose fields may contain anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from guardwrap.documents.limits import is_text
from guardwrap.errors import EndpointError

_PIECES, _CHARACTERS = 16, 1000
"""Maximum number of pieces and characters of a text per token. Servers send one piece per token; proxies may split
them. Most tokens have at most a dozen characters, very few over a hundred."""

_FEW = 256
"""Tokens beyond ``max_tokens`` that are tolerated, because a short text may be split into many pieces."""

_GREATEST_ID = 2**31


class AnswerLimit:
    """The maximum size of one text, so that a server that never ends a text is detected."""

    def __init__(self, where: str, max_tokens: int) -> None:
        self._where, self._max_tokens = where, max_tokens
        self._pieces = self._characters = self._ids = 0

    @property
    def tokens(self) -> int:
        """The largest token count for a text that is accepted from the server."""
        return self._max_tokens + _FEW

    def take(self, text: str, ids: Sequence[int]) -> None:
        """Count a piece of the text."""
        self._pieces += 1
        self._characters += len(text)
        self._ids += len(ids)
        most = self.tokens
        if self._pieces > _PIECES * most or self._characters > _CHARACTERS * most or self._ids > self._max_tokens:
            raise EndpointError(
                f"{self._where} ignores max_tokens={self._max_tokens}: a text is far longer; use one that respects it"
            )


def text_piece(value: Any) -> str:
    """Return a piece of text: empty for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not is_text(value):
        raise ValueError("not a string of valid Unicode")
    return value


def count_of(value: Any, most: int) -> int | None:
    """Return a token count, or None if it is not an integer from 0 to ``most``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= most else None


def ids_of(value: Any) -> list[int] | None:
    """Return token ids, or None if the value is not a list of valid ids."""
    if not isinstance(value, list | tuple):
        return None
    good = all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < _GREATEST_ID for each in value)
    return list(value) if good else None


def log_probabilities_of(values: Any) -> list[float] | None:
    """Return log-probabilities in nats, or None if the value is not a list of finite numbers."""
    if not isinstance(values, list | tuple):
        return None
    try:
        numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    except OverflowError:  # an integer too large for a float
        return None
    return numbers if len(numbers) == len(values) and all(map(math.isfinite, numbers)) else None


def printable_line(said: Any, most: int) -> str:
    """Return a server's message as one printable line of at most ``most`` characters; empty if it is not a string."""
    text = said if isinstance(said, str) else ""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 100 * most])
    return " ".join(shown.split())[:most]
