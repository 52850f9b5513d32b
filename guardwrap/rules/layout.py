"""``Edges``, ``Depth`` and ``Split``: how a text begins and ends, how deep it nests, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import regex

from guardwrap.constraints.base import All, AnyOf, Constraint, Not, walk
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.field_checks import (
    is_between,
    limits_in_words,
    require,
    require_booleans,
    require_choice,
    require_counts,
    shortened,
    shown,
    verdict_on_count,
)
from guardwrap.constraints.kinds.text import whole_text
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint, TextConstraint
from guardwrap.constraints.verdicts import Progress, TextPattern, Verdict
from guardwrap.constraints.views import TEXT_VIEWS, View, begun_length, read_view, view
from guardwrap.outcomes import Draw
from guardwrap.support.formatting import counted
from guardwrap.support.limits import count_items
from guardwrap.support.time_limits import check_deadline, matches


@dataclass(frozen=True, eq=False, repr=False)
class Edges(TextConstraint):
    """The text begins and ends with given texts, without the white space around it.

    Parameters
    ----------
    start
        The beginning, or several of which one must come; none by default.
    end
        The end, or several. It does not overlap with the beginning: ``"`` alone is no text in quotes.
    ignore_case
        Whether upper and lower case are the same.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Notes
    -----
    A prefix is VIOLATED as soon as it differs from each beginning.

    Examples
    --------
    >>> Edges(start="Hello", end=["Yours", "Bye!"]).accepts("Hello Ada, see you. Bye!")
    True
    """

    start: str | Sequence[str] = field(default=(), kw_only=True)
    end: str | Sequence[str] = field(default=(), kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["edges"] = field(default="edges", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            # A set is rejected: its order, and so the digest, would differ from one process to the next.
            require(isinstance(value, Sequence), f"{name} must be a text or a list of texts, not {shown(value)}")
            texts = (value,) if isinstance(value, str) else tuple(value)
            valid = all(isinstance(text, str) and text.strip() == text != "" for text in texts)
            require(valid, f"{name} must be texts without white space around them, not {shown(value)}")
            object.__setattr__(self, name, texts)
            count_items(sum(map(len, texts)), f"{name} texts have")
        require(bool(self.start or self.end), "Edges needs start, end or both")
        require_booleans(self, "ignore_case")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        text = self._folded(text.strip())
        starts = [len(start) for start in self._starts if text.startswith(start)]
        ends = [len(end) for end in self._ends if text.endswith(end)]
        return bool(starts) and bool(ends) and min(starts) + min(ends) <= len(text)

    def found_in(self, text: str) -> str:
        text = self._folded(text.strip())
        ends = [f"begins with {shortened(start)}" for start in self._starts if start and text.startswith(start)]
        ends += [f"ends with {shortened(end)}" for end in self._ends if end and text.endswith(end)]
        return ", ".join(ends)

    def prefix_verdict(self, prefix: str) -> Verdict:
        begun = self._folded(prefix.lstrip())
        if any(map(begun.startswith, self._starts)):
            return Verdict.UNDECIDED if self.end or not begun else Verdict.SATISFIED
        return Verdict.UNDECIDED if any(start.startswith(begun) for start in self._starts) else Verdict.VIOLATED

    def progress(self) -> Sequence[TextPattern]:
        return [whole_text(self.start, self.end, ignore_case=self.ignore_case)]

    @cached_property
    def _starts(self) -> tuple[str, ...]:
        return tuple(map(self._folded, self.start)) or ("",)

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        return tuple(map(self._folded, self.end)) or ("",)

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text


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
        require(self.min is not None or self.max is not None, "Depth needs min, max or both")
        require_counts(self)
        object.__setattr__(self, "on", read_view(self.on))

    def measure(self, text: str) -> int:
        """Return the greatest depth in one string."""
        return max(_DEPTHS[self.of](text), default=0)

    def holds(self, text: str) -> bool:
        return is_between(self.measure(text), self.min, self.max)

    def fault(self, text: str) -> str:
        return f"has {self.of} nested {self.measure(text)} deep, not {limits_in_words(self.min, self.max)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
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


_WITHIN = tuple(name for name in TEXT_VIEWS if name not in ("full", "message"))


@dataclass(frozen=True, eq=False, repr=False)
class Split(TextConstraint):
    r"""The number of parts between separators is between two limits, and a constraint holds for each part.

    Parameters
    ----------
    by
        The separator, such as ``"***"`` or ``"\n\n"``.
    min, max
        Limits on the number of parts, inclusive; None means no limit.
    each
        A constraint on texts that each part must satisfy, without the white space around it. Its ``on`` is the name of
        a view of the part, such as ``"sentences"``.
    different
        Whether no two parts may be equal.
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
    A separator at the very beginning or end of the text is left out; a text with two separators in a row, or only
    white space between them, is rejected. A text without a separator has one part.

    A prefix is VIOLATED with the first part too many, and as soon as a part cannot satisfy ``each``.

    Examples
    --------
    >>> Split("***", min=2, max=2, different=True).accepts("Tea. *** Coffee.")
    True
    >>> Split("\n", each=Split(",", min=3, max=3)).accepts("a,b,c\nd,e")
    False
    """

    by: str
    min: int | None = field(default=None, kw_only=True)
    max: int | None = field(default=None, kw_only=True)
    each: Constraint | None = field(default=None, kw_only=True)
    different: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["split"] = field(default="split", kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.by, str) and self.by != "", f"by must be a separator, not {shown(self.by)}")
        require_counts(self)
        useful = (self.min, self.max, self.each) != (None, None, None) or self.different
        require(useful, "Split needs min, max, each or different")
        require_booleans(self, "different")
        if self.each is not None:
            require(isinstance(self.each, Constraint), f"each must be a constraint, not {shown(self.each)}")
            leaves = [part for part in walk(self.each) if not isinstance(part, All | AnyOf | Not)]
            for leaf in leaves:
                textual = isinstance(leaf, TextConstraint) and getattr(leaf, "unit", "") != "tokens"
                textual = textual and not (isinstance(leaf, ComparedConstraint) and not leaf.documents)  # the prompt
                require(textual, f"{leaf.title} cannot be used within each, as it judges more than a text")
                on = getattr(leaf, "on", "completion")
                require(on in _WITHIN, f"on={on!r} within each: name a view of text, such as 'lines'")
        object.__setattr__(self, "on", read_view(self.on))

    def progress(self) -> Progress | None:
        return _progress(self) if self.each is None and not self.different else None

    def holds(self, text: str) -> bool:
        pieces = [piece.strip() for piece in text.split(self.by)]
        if not all(pieces[1:-1]):
            return False
        parts = [piece for piece in pieces if piece]
        return is_between(len(parts), self.min, self.max) and self._all_hold(parts)

    def _all_hold(self, parts: list[str]) -> bool:
        if self.different and len({*parts}) < len(parts):
            return False
        return self.each is None or all(_holds(self.each, part) for part in parts)

    def fault(self, text: str) -> str:
        count = sum(bool(piece.strip()) for piece in text.split(self.by))
        if is_between(count, self.min, self.max):
            return self._wrong_part(text)
        return f"has {counted(count, 'part')}, not {limits_in_words(self.min, self.max)}"

    def _wrong_part(self, text: str) -> str:
        """Return the first part that is empty, repeated or wrong."""
        parts, seen = [piece.strip() for piece in text.split(self.by)], set[str]()
        for number, part in enumerate(parts, start=1):
            if not part:
                if 1 < number < len(parts):
                    return f"part {number} is empty"
                continue
            if self.different and part in seen:
                return f"part {number} is repeated: {shortened(part)}"
            if self.each is not None and not _holds(self.each, part):
                return f"part {number} is {shortened(part)}"
            seen.add(part)
        return ""

    def prefix_verdict(self, prefix: str) -> Verdict:
        *ended, growing = prefix.split(self.by)
        pieces = [piece.strip() for piece in ended]
        growing = growing[: len(growing) - begun_length(growing, [self.by])].strip()
        parts = [piece for piece in pieces if piece]
        too_many = self.max is not None and len(parts) + bool(growing) > self.max
        if too_many or not all(pieces[1:]) or not self._all_hold(parts):
            return Verdict.VIOLATED
        if self.each is not None and growing and run_verdict(self.each, growing) is Verdict.VIOLATED:
            return Verdict.VIOLATED
        return Verdict.UNDECIDED


def _holds(constraint: Constraint, part: str) -> bool:
    """Judge one part within the time limit of the whole text."""
    check_deadline()
    if isinstance(constraint, All):
        return all(_holds(each, part) for each in constraint.of)
    if isinstance(constraint, AnyOf):
        return any(_holds(each, part) for each in constraint.of)
    if isinstance(constraint, Not):
        return not _holds(constraint.of, part)
    assert isinstance(constraint, TextConstraint)
    return all(map(constraint.holds, view(Draw("", (), part), constraint.on) or ()))


class _Place(NamedTuple):
    """The place in a text with separators."""

    parts: int = 0  # the number of parts that have ended, up to what makes a difference
    begun: int = 0  # how many characters of a separator have been read
    shown: bool = False  # whether the part before them is more than white space
    first: bool = True  # whether there was no separator yet


def _progress(constraint: Split) -> Progress:
    """Return the automaton that counts the parts between separators (Knuth, Morris and Pratt 1977)."""
    by, least, most = constraint.by, constraint.min, constraint.max
    enough = (least or 0) if most is None else most + 1
    borders = _borders(by)

    def kind_of(char: str) -> str:
        return char if char in by else "space" if char.isspace() else "other"

    def step(state: _Place | None, kind: str) -> _Place | None:
        if state is None:
            return None
        begun, shown = state.begun, state.shown
        while begun and by[begun] != kind:
            shown = shown or by[: begun - borders[begun - 1]].strip() != ""
            begun = borders[begun - 1]
        if by[begun] != kind:
            blank = kind == "space" or kind.isspace()
            return state._replace(begun=0, shown=shown or not blank)
        if begun + 1 < len(by):
            return state._replace(begun=begun + 1, shown=shown)
        parts = state.parts + shown
        if not (shown or state.first) or (most is not None and parts > most):
            return None
        return _Place(min(enough, parts), first=False)

    def satisfied(state: _Place | None, ended: bool) -> bool:
        if state is None:
            return False
        shown = state.shown or by[: state.begun].strip() != ""
        return is_between(min(enough, state.parts + shown), least, most)

    return Progress(_Place(), tuple(dict.fromkeys((*by, "space", "other"))), kind_of, step, satisfied)


def _borders(by: str) -> list[int]:
    """Return for each number of characters of a separator, from 1 on, how many of them can begin another one."""
    borders = [0]
    for char in by[1:]:
        size = borders[-1]
        while size and by[size] != char:
            size = borders[size - 1]
        borders.append(size + (by[size] == char))
    return borders
