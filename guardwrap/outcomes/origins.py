"""Where texts come from: their distribution and what attempts are drawn from, as facts with their words."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Closeness(StrEnum):
    """How texts are distributed, relative to the model's own distribution given the constraint (g)."""

    EXACT = "exact"
    APPROXIMATE = "approximate"  # the report's figures say how closely, if that is known
    OTHER = "other"  # such as g', that of a proposal
    BIASED = "biased"  # by a deadline, which favors short texts
    SEARCH = "search"  # results of greedy or beam search, which are not drawn
    NOTHING = "nothing"  # there is no text
    UNKNOWN = "unknown"  # a sampler that is not guardwrap's describes it in words


_BEGINNINGS = {
    Closeness.EXACT: "exactly your model's own distribution, given the constraint (g)",
    Closeness.APPROXIMATE: "approximately your model's own distribution, given the constraint (g)",
    Closeness.OTHER: "not your model's own distribution",
    Closeness.BIASED: "biased by a deadline",
    Closeness.NOTHING: "nothing",
}
"""How the description of a distribution begins."""


class Distribution(NamedTuple):
    """The distribution of returned texts: ``str`` gives its description."""

    closeness: Closeness
    detail: str = ""  # the rest of the description: the sampler's settings, or the reason why there is no text

    def __str__(self) -> str:
        return ": ".join(filter(None, (_BEGINNINGS.get(self.closeness), self.detail)))


EXACT = Distribution(Closeness.EXACT)


class Shape(StrEnum):
    """How next tokens are changed before attempts are drawn."""

    MASKED = "masked"
    TWISTED = "twisted"


class Origin(NamedTuple):
    """What attempts are drawn from: ``str`` gives its description."""

    other: str = ""  # another model, prompt or adapter, in words; empty for the model itself under the user's prompt
    shape: Shape | None = None  # how its next tokens are changed; None for its own distribution
    by: str = ""  # who changes them and why, in words; empty if that is guardwrap

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.other or "the model itself", self._shaped)))

    @property
    def _shaped(self) -> str:
        return " ".join(filter(None, (self.shape, self.by)))

    def accepted(self) -> Distribution:
        """Return the distribution of attempts that satisfy the constraint: g', which is not g."""
        origin = f"attempts came from {self}" if self.other else f"tokens were {self._shaped}"
        return Distribution(Closeness.OTHER, f"{origin} (g')")


ITSELF = Origin()
"""The model itself: a, under the user's prompt and settings."""
