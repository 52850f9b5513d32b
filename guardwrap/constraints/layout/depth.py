"""The ``Depth`` constraint: how deep brackets, quotes or lists are nested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import regex

from guardwrap.constraints.field_checks import (
    is_between,
    limits_in_words,
    require,
    require_choice,
    shown,
    verdict_on_count,
)
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.time_limits import check_deadline, matches
from guardwrap.errors import Unsatisfiable, is_count

Nested = Literal["brackets", "quotes", "lists"]

_BRACKETS = {"(": ")", "[": "]", "{": "}", "（": "）", "［": "］", "｛": "｝", "【": "】", "《": "》", "〈": "〉"}
_QUOTES = {"“": "”", "„": "“", "‘": "’", "‚": "‘", "«": "»", "‹": "›", "「": "」", "『": "』"}
_SYMMETRIC = {'"': '"', "'": "'"}
_APOSTROPHE = regex.compile(r"(?<=\w)['’](?=\w)")
_ITEM = regex.compile(r"(?m)^([ \t]*)(?:[*\-+•]|\p{Nd}{1,3}[.)])[ \t]+\S|^\S")
"""An item of a list with its indentation, or another line that ends a list."""


@dataclass(frozen=True, eq=False, repr=False)
class Depth(TextConstraint):
    r"""How deep something is nested is between two limits.

    Parameters
    ----------
    of
        ``"brackets"``: round, square, curly and East Asian ones; ``"quotes"``: straight and typographic ones, where an
        apostrophe between letters is none; ``"lists"``: bullets and numbered items of Markdown, by their indentation.
    min, max
        Limits, inclusive; None means no limit. A text without any has depth 0.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    Unsatisfiable
        If ``min`` exceeds ``max``.

    Notes
    -----
    Brackets and quotes count when they are closed, and a closing one that does not match the innermost open one is
    ignored. The depth never falls when text is added, so a text with more than ``max`` is VIOLATED at once.

    Examples
    --------
    >>> Depth("brackets", min=3).accepts("(a [b {c}])")
    True
    >>> Depth("lists", max=1).accepts("- tea\n  - green")
    False
    """

    of: Nested
    min: int | None = field(default=None, kw_only=True)
    max: int | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["depth"] = field(default="depth", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.of, get_args(Nested), "of")
        for limit in (self.min, self.max):
            require(limit is None or is_count(limit), f"limit {shown(limit)}: give a whole number of at least 0")
        require(self.min is not None or self.max is not None, "Depth needs min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Unsatisfiable(f"Depth min={self.min} exceeds max={self.max}")
        object.__setattr__(self, "on", read_view(self.on))

    def measure(self, text: str) -> int:
        """Return the greatest depth in one string."""
        return max(_DEPTHS[self.of](text), default=0)

    def holds(self, text: str) -> bool:
        """Measure one string."""
        return is_between(self.measure(text), self.min, self.max)

    def fault(self, text: str) -> str:
        """Return the depth, and the limits."""
        return f"has {self.of} nested {self.measure(text)} deep, not {limits_in_words(self.min, self.max)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge by what has been closed so far."""
        if prefix[-1:] in ("'", "’"):  # it is an apostrophe if a letter follows
            prefix = prefix[:-1]
        return verdict_on_count(self.measure(prefix), self.min, self.max)


def _closed(text: str, opening: dict[str, str]) -> Iterator[int]:
    """Yield the depth of each pair where it is closed."""
    closers: list[str] = []
    marks = {*opening, *opening.values()}
    for place, char in enumerate(text):
        if not place % 1000:
            check_deadline()
        if char not in marks:
            continue
        if closers and char == closers[-1]:
            yield len(closers)
            closers.pop()
        elif char in opening:
            closers.append(opening[char])


def _quotes(text: str) -> Iterator[int]:
    return _closed(_APOSTROPHE.sub("", text), _QUOTES | _SYMMETRIC)


def _levels(text: str) -> Iterator[int]:
    """Yield the level of each item of a list: how many items it stands within."""
    indents: list[int] = []
    for match in matches(_ITEM, text):
        if match[1] is None:
            indents.clear()
            continue
        indent = len(match[1].expandtabs(4))
        while indents and indents[-1] >= indent:
            indents.pop()
        indents.append(indent)
        yield len(indents)


_DEPTHS: dict[str, Callable[[str], Iterator[int]]] = {
    "brackets": lambda text: _closed(text, _BRACKETS),
    "quotes": _quotes,
    "lists": _levels,
}
