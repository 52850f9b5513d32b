"""Short pieces of a text for explanations: what in it matched, or what in it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import regex

from guardwrap.errors import quoted

_LONGEST = 60
_WORD = regex.compile(r"\S+")
_AROUND = ".,;:!?()[]{}<>\"'“”‘’«»*_`"


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
    if not words:
        return text
    low, high = 0, len(words) - 1  # the beginning up to ``high`` matches, except perhaps for the white space after it
    if not matches(text[: words[high][1]]):
        return text
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if matches(text[: words[middle][1]]) else (middle + 1, high)
    end = words[high][1]
    first, last = 0, high  # from ``first`` on, it matches
    while first < last:
        middle = (first + last + 1) // 2
        first, last = (middle, last) if matches(text[words[middle][0] : end]) else (first, middle - 1)
    piece = text[words[first][0] : end]
    bare = piece.strip(_AROUND)
    return bare if bare != piece and matches(bare) else piece
