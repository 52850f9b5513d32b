"""The ``Split`` constraint: the parts of a text between separators, and what holds for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from guardwrap.constraints.base import All, AnyOf, Constraint, Not, walk
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.field_checks import is_between, limits_in_words, require, shortened, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.layout.copies import Copy
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import TEXT_VIEWS, View, begun_length, read_view, view
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import Unsatisfiable, is_count
from guardwrap.formatting import counted
from guardwrap.outcomes import Draw

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
        for limit in (self.min, self.max):
            require(limit is None or is_count(limit), f"limit {shown(limit)}: give a whole number of at least 0")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Unsatisfiable(f"Split min={self.min} exceeds max={self.max}")
        useful = (self.min, self.max, self.each) != (None, None, None) or self.different
        require(useful, "Split needs min, max, each or different")
        require(isinstance(self.different, bool), "different must be true or false")
        if self.each is not None:
            require(isinstance(self.each, Constraint), f"each must be a constraint, not {shown(self.each)}")
            leaves = [part for part in walk(self.each) if not isinstance(part, All | AnyOf | Not)]
            for leaf in leaves:
                textual = isinstance(leaf, TextConstraint) and getattr(leaf, "unit", "") != "tokens"
                textual = textual and not (isinstance(leaf, Copy) and leaf.text is None)
                require(textual, f"{leaf.title} cannot be used within each, as it judges more than a text")
                on = getattr(leaf, "on", "completion")
                require(on in _WITHIN, f"on={on!r} within each: name a view of text, such as 'lines'")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        """Split one string, and judge its parts."""
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
        """Return the number of parts and the limits, if it is that."""
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
        """Judge the parts that have ended, and the one that still grows."""
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
