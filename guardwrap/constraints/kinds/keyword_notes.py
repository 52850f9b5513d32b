"""Notes on words of a ``Keyword`` that are valid but hardly ever occur as their author probably expects."""

from __future__ import annotations

import unicodedata

import regex

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.errors import quoted

_AFFIX = regex.compile(r"[-~…]\p{L}+|\p{L}+[-~…]")
_WILDCARD = regex.compile(r"\p{L}+\*|\*\p{L}+|\.\*\p{L}+|\p{L}+\.\*")


def unlikely_words(keyword: Keyword) -> list[str]:
    """Return notes on words that are lists, parts of words, wildcards or single marks."""
    notes = [note for word in keyword.words if (note := _note(word, keyword)) is not None]
    if len(keyword.words) == 1 and "," in keyword.words[0]:
        notes.append(f"{quoted(keyword.words[0])} is one phrase; for several words write a list: [tea, coffee]")
    return notes


def _note(word: str, keyword: Keyword) -> str | None:
    if _AFFIX.fullmatch(word):
        part = quoted(word.strip("-~…"))
        return f"{quoted(word)} occurs only with its dash; for a part of words write {part} and whole_words: false"
    if _WILDCARD.fullmatch(word):
        return f"{quoted(word)} is searched for as written, as a keyword has no wildcards; use kind: regex"
    if word != word.strip():
        shorter = quoted(word.strip())
        return f"{quoted(word)} occurs only with the white space around it; write {shorter} to find it anywhere"
    if keyword.whole_words and unicodedata.combining(keyword.folding.fold(word)[0]):
        return f"{quoted(word)} begins with a mark, which belongs to the letter before it; set whole_words: false"
    return None
