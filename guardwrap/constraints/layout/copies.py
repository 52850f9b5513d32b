"""The ``Copy`` constraint: the text repeats the prompt, or a given text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, begun_length, read_view
from guardwrap.documents.limits import count_items
from guardwrap.errors import is_count


@dataclass(frozen=True, eq=False, repr=False)
class Copy(ComparedConstraint):
    """The text is a copy of another text, or begins or ends with one. White space around it does not matter.

    Parameters
    ----------
    text
        What is copied; None for the prompt. The prompt of a chat is the whole conversation as text.
    at
        ``"whole"``: nothing else may come; ``"start"``, ``"end"``: the text begins or ends with the copy.
    times
        Number of copies, one after the other; more than one only with ``at="whole"``.
    separator
        What stands between copies.
    span
        Two numbers: only the units from the first to before the second are copied, counted from 0.
    unit
        ``"characters"``, or ``"words"``, which are separated by any white space.
    change
        What is not copied: ``"first_word"``: the first word must be another one; ``"one_word"``: exactly one word must.
        Only with ``at="whole"`` and ``unit="words"``.
    ignore_case
        Whether upper and lower case are the same.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

    Notes
    -----
    A prefix is VIOLATED as soon as it differs from the copy, except with ``at="end"``.

    Examples
    --------
    >>> Copy("Tea is good.", times=2, separator="******").accepts("Tea is good. ****** Tea is good.")
    True
    >>> Copy("Tea is good.", unit="words", change="first_word").accepts("Coffee is good.")
    True
    """

    text: str | None = None
    at: Literal["whole", "start", "end"] = field(default="whole", kw_only=True)
    times: int = field(default=1, kw_only=True)
    separator: str = field(default="\n", kw_only=True)
    span: Annotated[Sequence[int], Field(min_length=2, max_length=2)] | None = field(default=None, kw_only=True)
    unit: Literal["characters", "words"] = field(default="characters", kw_only=True)
    change: Literal["first_word", "one_word"] | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["copy"] = field(default="copy", kw_only=True)

    compared = "text"

    def __post_init__(self) -> None:
        valid = self.text is None or (isinstance(self.text, str) and self.text.strip() != "")
        require(valid, f"text must be a text that is not blank, or None for the prompt, not {shown(self.text)}")
        require_choice(self.at, ("whole", "start", "end"), "at")
        require_choice(self.unit, ("characters", "words"), "unit")
        require(
            is_count(self.times) and self.times > 0, f"times={shown(self.times)}: give a whole number of at least 1"
        )
        require(self.times == 1 or self.at == "whole", "times requires at='whole'")
        valid = isinstance(self.separator, str) and self.separator != ""
        require(valid, f"separator must be a text, not {shown(self.separator)}")
        if self.span is not None:
            span = tuple(self.span) if isinstance(self.span, Sequence) else ()
            valid = len(span) == 2 and all(map(is_count, span)) and span[0] < span[1]
            require(valid, f"span must be two numbers such as [0, 20], not {shown(self.span)}")
            object.__setattr__(self, "span", span)
        if self.change is not None:
            require_choice(self.change, ("first_word", "one_word"), "change")
            require(self.at == "whole" and self.unit == "words", "change requires at='whole' and unit='words'")
        require(isinstance(self.ignore_case, bool), "ignore_case must be true or false")
        object.__setattr__(self, "on", read_view(self.on))
        if self.text is not None:
            count_items(len(self.text), "the text has")
            require(self.times == 1 or self.separator not in self._copy, "the separator occurs in what is copied")
            require(self._copy != "", f"text has no {self.unit} in the span {shown(self.span)}")

    @property
    def _copy(self) -> str:
        """What is copied, with one space between words if they are the unit."""
        source = self.text or ""
        start, end = self.span or (0, None)
        if self.unit == "words":
            return self._folded(" ".join(source.split()[start:end]))
        return self._folded(source[start:end].strip())

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text

    def holds(self, text: str) -> bool:
        """Compare one string."""
        pieces = [text] if self.times == 1 else text.split(self.separator)
        return len(pieces) == self.times and all(map(self._is_copy, pieces))

    def _is_copy(self, piece: str) -> bool:
        """Whether a whole piece is a copy, with the change that is required."""
        expected = self._copy
        text = self._folded(" ".join(piece.split()) if self.unit == "words" else piece.strip())
        if self.change is not None:
            return _changes(text.split(), expected.split(), self.change) and text.count(" ") == expected.count(" ")
        if self.at == "whole":
            return text == expected
        return text.startswith(expected) if self.at == "start" else text.endswith(expected)

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Compare what has been written so far."""
        if self.at == "end":
            return Verdict.UNDECIDED
        ended: list[str] = []
        growing = prefix
        if self.times > 1:
            *ended, growing = prefix.split(self.separator)
            growing = growing[: len(growing) - begun_length(growing, [self.separator])]
        if len(ended) >= self.times or not all(map(self._is_copy, ended)):
            return Verdict.VIOLATED
        return self._begun(growing)

    def _begun(self, growing: str) -> Verdict:
        """Judge a piece that has not ended."""
        expected = self._copy
        begun = growing.lstrip()
        if self.unit == "words":
            ends = begun != begun.rstrip()  # the last word has ended
            begun = " ".join(begun.split()) + " " * (ends and begun != "")
        begun = self._folded(begun)
        if self.change is not None:
            return self._changed(begun, expected.split())
        if self.at == "start" and begun.startswith(expected):
            return Verdict.SATISFIED if begun and self.text else Verdict.UNDECIDED
        possible = expected.startswith(begun) or (self.at == "whole" and begun.rstrip() == expected)
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED

    def _changed(self, begun: str, expected: list[str]) -> Verdict:
        words = begun.split()
        ended = words if begun.endswith(" ") else words[:-1]
        possible = len(words) <= len(expected) and _may_change(ended, expected, str(self.change))
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED


def _differences(words: list[str], expected: list[str]) -> list[int]:
    return [place for place, (one, two) in enumerate(zip(words, expected, strict=False)) if one != two]


def _changes(words: list[str], expected: list[str], change: str) -> bool:
    """Whether words differ from those that are expected just as they must."""
    places = _differences(words, expected)
    return places == [0] if change == "first_word" else len(places) == 1


def _may_change(words: list[str], expected: list[str], change: str) -> bool:
    """Whether words that come first may still turn out to differ as they must."""
    places = _differences(words, expected)
    return (not words or places == [0]) if change == "first_word" else len(places) < 2
