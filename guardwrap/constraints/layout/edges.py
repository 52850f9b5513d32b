"""The ``Edges`` constraint: how a text begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from guardwrap.constraints.field_checks import require, shortened, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.limits import count_items


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

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

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
        require(isinstance(self.ignore_case, bool), "ignore_case must be true or false")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        """Compare both ends of one string."""
        text = self._folded(text.strip())
        starts = [len(start) for start in self._starts if text.startswith(start)]
        ends = [len(end) for end in self._ends if text.endswith(end)]
        return bool(starts) and bool(ends) and min(starts) + min(ends) <= len(text)

    def found_in(self, text: str) -> str:
        """Return the beginning and the end that it has."""
        text = self._folded(text.strip())
        ends = [f"begins with {shortened(start)}" for start in self._starts if start and text.startswith(start)]
        ends += [f"ends with {shortened(end)}" for end in self._ends if end and text.endswith(end)]
        return ", ".join(ends)

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Compare the beginning, as far as it is known."""
        begun = self._folded(prefix.lstrip())
        if any(map(begun.startswith, self._starts)):
            return Verdict.UNDECIDED if self.end or not begun else Verdict.SATISFIED
        return Verdict.UNDECIDED if any(start.startswith(begun) for start in self._starts) else Verdict.VIOLATED

    @cached_property
    def _starts(self) -> tuple[str, ...]:
        return tuple(map(self._folded, self.start)) or ("",)

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        return tuple(map(self._folded, self.end)) or ("",)

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text
