"""Texts that a constraint compares with: documents that it holds, or the prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, Self

import regex

from guardwrap.constraints.base import require, shown
from guardwrap.constraints.kinds.text import TextConstraint
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.message_monitor import Context, Undecided
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.outcomes import Draw

__all__ = ["UNSPACED", "ComparedConstraint", "folding", "plain_documents", "size_in_words", "without_layout"]

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without spaces between words, as the content of a set for ``regex``."""

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
    """Return documents as a tuple, or raise ConstraintError.

    Parameters
    ----------
    texts
        A text or several.
    field_name
        The name of the field, for the error.
    """
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


class ComparedConstraint(TextConstraint):
    """A constraint that compares each text with ``source``: documents, or None for the prompt of the text."""

    source: str | Sequence[str] | None

    @property
    def documents(self) -> tuple[str, ...]:
        """The documents; none if the prompt is compared and not known yet."""
        return (self.source,) if isinstance(self.source, str) else tuple(self.source or ())

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Compare each text with its own prompt, or with the documents."""
        return [super(ComparedConstraint, self._of(draw.prompt)).check([draw])[0] for draw in draws]

    def fault_of(self, draw: Draw) -> str:
        """Return what is wrong with a draw, compared with its own prompt or with the documents."""
        return super(ComparedConstraint, self._of(draw.prompt)).fault_of(draw)

    def monitor(self) -> Monitor:
        """Return a monitor; without a prompt to compare with, one that knows nothing."""
        return Undecided() if self.source is None else super().monitor()

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that compares with the prompt, if it is known as text."""
        if self.source is None and context.prompt is None:
            return Undecided()
        return super(ComparedConstraint, self._of(context.prompt or "")).monitor_in(context)

    def verdict(self, prefix: str, /) -> Verdict:
        """Compare the prefix; UNDECIDED without a prompt to compare with."""
        return Verdict.UNDECIDED if self.source is None else super().verdict(prefix)

    def _of(self, prompt: str) -> Self:
        """Return the constraint with the prompt as its source, if it has none."""
        if self.source is not None:
            return self
        filled = copy.copy(self)
        object.__setattr__(filled, "source", prompt)
        filled.__dict__.pop("_on_completion", None)
        return filled
