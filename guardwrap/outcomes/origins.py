"""Where texts come from: their distribution and what attempts are drawn from, as facts with their words."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Closeness(StrEnum):
    """How texts are distributed, relative to the model's own distribution given the constraint (g)."""

    EXACT = "exact"
    """They follow g."""

    APPROXIMATE = "approximate"
    """They follow g approximately; the report's figures say how closely, if that is known."""

    OTHER = "other"
    """They follow another distribution, such as that of a proposal (g')."""

    BIASED = "biased"
    """A deadline favors short texts."""

    SEARCH = "search"
    """They are results of greedy or beam search, not draws."""

    NOTHING = "nothing"
    """There is no text."""

    UNKNOWN = "unknown"
    """Only the description by the sampler is known, if it is not one of guardwrap."""


_BEGINNINGS = {
    Closeness.EXACT: "exactly your model's own distribution, given the constraint (g)",
    Closeness.APPROXIMATE: "approximately your model's own distribution, given the constraint (g)",
    Closeness.OTHER: "not your model's own distribution",
    Closeness.BIASED: "biased by a deadline",
    Closeness.NOTHING: "nothing",
}
"""How the description of a distribution begins."""


class Distribution(NamedTuple):
    """The distribution of returned texts, which ``str`` describes in words.

    Parameters
    ----------
    closeness
        How it is related to the model's own distribution, given the constraint (g).
    detail
        The rest of its description, such as the sampler's settings, or the reason why there is no text.
    """

    closeness: Closeness
    detail: str = ""

    def __str__(self) -> str:
        return ": ".join(words for words in (_BEGINNINGS.get(self.closeness, ""), self.detail) if words)


EXACT = Distribution(Closeness.EXACT)
"""The model's own distribution, given the constraint: g."""


class Shape(StrEnum):
    """How next tokens are changed before attempts are drawn."""

    MASKED = "masked"
    TWISTED = "twisted"


class Source(NamedTuple):
    """What attempts are drawn from, which ``str`` describes in words.

    Parameters
    ----------
    other
        Another model, prompt or adapter, in words; empty for the model itself under the user's prompt.
    shape
        How its next tokens are changed; None for its own distribution.
    by
        Who changes them and why, in words; empty if that is guardwrap.
    """

    other: str = ""
    shape: Shape | None = None
    by: str = ""

    @property
    def shaped(self) -> str:
        """How next tokens are changed, in words; empty if they are not."""
        return "" if self.shape is None else f"{self.shape}{' ' * bool(self.by)}{self.by}"

    def __str__(self) -> str:
        return ", ".join(words for words in (self.other or "the model itself", self.shaped) if words)

    def accepted(self) -> Distribution:
        """Return the distribution of attempts that satisfy the constraint: g', which is not g."""
        origin = f"attempts came from {self}" if self.other else f"tokens were {self.shaped}"
        return Distribution(Closeness.OTHER, f"{origin} (g')")


ITSELF = Source()
"""The model itself: a, under the user's prompt and settings."""
