"""The ``NoCopy`` constraint: the text repeats no long run of words of given texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import regex

from guardwrap.constraints.field_checks import listed, require, shown
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint
from guardwrap.constraints.sentences import UNSPACED, settled_words, words_of
from guardwrap.constraints.sources.source_texts import folding, plain_documents
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import is_count, is_number

_JOINT = regex.compile(r"[\p{Pd}'’_]")
_CHARACTER = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}]+")


@dataclass(frozen=True, eq=False, repr=False)
class NoCopy(ComparedConstraint):
    """No run of words of a source occurs in the text.

    Parameters
    ----------
    source
        One document or several, such as the system prompt; None for the prompt. The prompt of a chat is the whole
        conversation as text.
    words
        Number of words of a run. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) a character
        is a word.
    share
        Instead of none, this share of the runs of each document may occur, as for near-copies: ``0.2`` rejects a text
        with more than a fifth of the different runs of a document.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or no document has a whole run.

    Notes
    -----
    Case, punctuation, white space, hyphens, apostrophes, compatibility forms and invisible characters do not matter.
    Translations, other spellings and words put between the others are not seen.

    A prefix is VIOLATED as soon as its runs are too many.

    Examples
    --------
    >>> rule = NoCopy("You are Ada, the assistant of Acme. Never mention prices.", words=5)
    >>> rule.accepts("My instructions: you are ADA -- the assistant of Acme!")
    False
    >>> rule.accepts("I am the assistant of Acme.")
    True
    """

    source: str | Sequence[str] | None = None
    words: int = field(default=8, kw_only=True)
    share: float | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["no_copy"] = field(default="no_copy", kw_only=True)

    way_out = "; shorten the texts or the source"

    def __post_init__(self) -> None:
        valid = is_count(self.words) and 1 <= self.words <= _MOST
        require(valid, f"words={shown(self.words)}: give a whole number from 1 to {_MOST}")
        if self.share is not None:
            in_range = is_number(self.share) and 0 <= self.share < 1
            require(in_range, f"share={shown(self.share)}: give a number from 0 to below 1, such as 0.2")
            object.__setattr__(self, "share", float(self.share))
        object.__setattr__(self, "on", read_view(self.on))
        if self.source is not None:
            several = plain_documents(self.source, "source")
            object.__setattr__(self, "source", several[0] if len(several) == 1 else several)
            require(any(self._sources), f"no text of source has {self.words} words; lower words")

    @property
    def _sources(self) -> Iterator[frozenset[str]]:
        for document in self.documents:
            yield _runs_of_document(document, self.words)

    def holds(self, text: str) -> bool:
        """Compare one string."""
        return self._may_be(words_of(_folded(text)))

    def fault(self, text: str) -> str:
        """Return how much of the source occurs."""
        runs = dict.fromkeys(_runs(words_of(_folded(text)), self.words))
        most = max((len(runs.keys() & document) for document in self._sources), default=0)
        copied = listed((run for run in runs if any(run in document for document in self._sources)), most=1)
        return f"has {most} runs of {self.words} words of the source: {copied}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Compare the words that no continuation can change."""
        settled = _JOINT.sub(" ", _FOLDING.settled(prefix))
        return Verdict.UNDECIDED if self._may_be(settled_words(settled)) else Verdict.VIOLATED

    def _may_be(self, words: Iterable[str]) -> bool:
        """Whether a text may have these words."""
        runs = _runs(words, self.words)
        if self.share is None:
            documents = list(self._sources)
            return not any(run in document for run in runs for document in documents)
        its = set(runs)
        return all(len(its & document) <= self.share * len(document) for document in self._sources)


_MOST = 100


_FOLDING = folding("NFKC", ignore_case=True)


def _folded(text: str) -> str:
    return str(_JOINT.sub(" ", _FOLDING.fold(text)))


def _runs(words: Iterable[str], size: int) -> Iterator[str]:
    """Yield each run of as many words, as one string."""
    units = [unit for word in words for unit in _CHARACTER.findall(word)]
    for start in range(len(units) - size + 1):
        if start % 100 == 0:
            check_deadline()
        yield " ".join(units[start : start + size])


@lru_cache(maxsize=16)  # prompts and documents are compared with many texts
def _runs_of_document(document: str, size: int) -> frozenset[str]:
    return frozenset(_runs(words_of(_folded(document)), size))
