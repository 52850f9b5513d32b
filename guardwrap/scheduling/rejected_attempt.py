"""Attempts that violate the constraint, for users who ask to see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.explanation import Explanation, Rejection, explain_draw
from guardwrap.outcomes import Draw


@dataclass(frozen=True, slots=True)
class RejectedAttempt:
    """An attempt that violates the constraint. Show its text only to users who asked for rejected texts."""

    prompt: int  # number of its prompt in the call, from 0
    attempt: int  # its number among the attempts of the prompt, from 0
    draw: Draw  # what the model wrote
    part: str  # title of the first part of the constraint that rejected it
    place: str | None  # where in the text that part is violated, without generated text; None if that is not known
    whole: bool  # whether the attempt ended by itself or at the token limit, and not as soon as it could no longer pass
    constraint: Constraint

    def explain(self) -> Explanation:
        """Return all parts that reject the attempt; of one that was stopped early, the part that stopped it."""
        if self.whole and (explanation := explain_draw(self.constraint, self.draw)).rejections:
            return explanation
        in_json = self.place is not None and self.place.startswith("$")
        reasons = [] if in_json or self.place is None else [self.place]
        reasons += [] if self.whole else ["stopped early: no continuation can pass"]
        rejection = Rejection(self.part, ", ".join(reasons), self.place if in_json else None)
        return Explanation(self.draw.text, (rejection,))


OnRejected = Callable[[RejectedAttempt], None]
"""Called with each attempt that violates the constraint, in launch order."""
