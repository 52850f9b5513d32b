r"""Kinds of characters: which of some classes, such as ``\w`` and ``[a-z]``, a character belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import regex

from guardwrap.documents.time_limits import check_deadline

Kind = tuple[bool, ...]
"""Whether a character belongs to each class."""


@cache
def _characters() -> str:
    """Return those that kinds are looked for in. The kinds of those beyond them, rare Han characters, occur in them."""
    return "".join(chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000)


@dataclass(frozen=True)
class CharacterClasses:
    """Classes of characters, and the kinds that they divide characters into."""

    sources: Sequence[tuple[str, int]]  # an expression of one character, and its flags, for each class

    @cached_property
    def kinds(self) -> dict[Kind, str]:
        """The kinds, each with its first character."""
        characters = _characters()
        codes = np.zeros(len(characters), dtype=np.int64)
        for number, (source, flags) in enumerate(self.sources):
            check_deadline()
            runs = regex.compile(f"(?:{source})+", flags, cache_pattern=False)
            codes *= 2
            for run in runs.finditer(characters):
                codes[run.start() : run.end()] += 1
            if number % 40 == 39:  # before they exceed 64 bits; kinds are a few hundred at most
                codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        firsts = [characters[place] for place in np.unique(codes, return_index=True)[1].tolist()]
        return {self._kind(char): char for char in firsts}

    def kind_of(self, char: str) -> Kind:
        """Return the kind of a character; that of an unassigned one if it has a kind of its own."""
        kind = self._kind(char)
        return kind if kind in self.kinds else self._kind("\u0378")

    def _kind(self, char: str) -> Kind:
        return tuple(each.match(char) is not None for each in self._compiled)

    @cached_property
    def _compiled(self) -> list[Any]:
        return [regex.compile(source, flags, cache_pattern=False) for source, flags in self.sources]
