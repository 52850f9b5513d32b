"""Texts that a constraint compares with, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import regex

from guardwrap.constraints.field_checks import require, shown
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.sentences import UNSPACED

MARKS = "\"'“”„‟«»‹›‘’‚‛「」『』〝〞〟＂＇"
"""Quotation marks and apostrophes, of all languages."""

_MAX_CHARACTERS = 1_000_000
_SPACE = regex.compile(r"\s+")
_NO_SPACE = regex.compile(rf"(?<=[{UNSPACED}]) | (?=[{UNSPACED}])")
_MARK = regex.compile(f"[{MARKS}`´]")
_LONG_WORD = regex.compile(r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_LETTERS_OF_A_WORD = 5
"""Letters that count as one word in Thai, Lao, Khmer and Burmese, whose words only a dictionary can tell apart."""


def plain_documents(texts: object, field_name: str) -> tuple[str, ...]:
    """Return documents as a tuple, or raise ConstraintError."""
    several = (texts,) if isinstance(texts, str) else tuple(texts) if isinstance(texts, Sequence) else ()
    valid = several != () and all(isinstance(text, str) and text.strip() != "" for text in several)
    require(valid, f"{field_name} must be a text that is not blank, or a list of these, not {shown(texts)}")
    size = sum(map(len, several))
    require(size <= _MAX_CHARACTERS, f"{field_name} has {size} characters; at most {_MAX_CHARACTERS} are possible")
    return several


def without_layout(text: str) -> str:
    """Return a folded text with one kind of quotation mark, and one space for white space between words."""
    return str(_NO_SPACE.sub("", _SPACE.sub(" ", _MARK.sub("'", text)))).strip()


def folding(form: Literal["NFC", "NFKC"], *, ignore_case: bool) -> TextFolding:
    """Return how texts are folded that are compared with sources."""
    return TextFolding(form, case_sensitive=not ignore_case, ignore_invisible=True, keep_capital_i=False)


def size_in_words(words: Sequence[str]) -> int:
    """Count words; in Thai, Lao, Khmer and Burmese, five letters are one."""
    return sum(max(1, len(_LONG_WORD.findall(word)) // _LETTERS_OF_A_WORD) for word in words)
