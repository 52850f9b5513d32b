"""The base of constraints that compare each text with other texts, or with its prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import ClassVar, Self

from guardwrap.constraints.kinds.text import Fault, TextConstraint
from guardwrap.constraints.message_monitor import Context, Undecided
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.outcomes import Draw


class ComparedConstraint(TextConstraint):
    """A constraint that compares each text with its field ``compared``: a text or several, or None for the prompt."""

    compared: ClassVar[str] = "source"

    @property
    def documents(self) -> tuple[str, ...]:
        """The texts to compare with; none if that is the prompt, and it is not known yet."""
        source = getattr(self, self.compared)
        return (source,) if isinstance(source, str) else tuple(source or ())

    @property
    def _takes_prompt(self) -> bool:
        return getattr(self, self.compared) is None

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Compare each text with its own prompt, or with the documents."""
        return [super(ComparedConstraint, self._of(draw.prompt)).check([draw])[0] for draw in draws]

    def fault_of(self, draw: Draw) -> Fault:
        """Return what is wrong with a draw, compared with its own prompt or with the documents."""
        return super(ComparedConstraint, self._of(draw.prompt)).fault_of(draw)

    def match_of(self, draw: Draw) -> str:
        """Return what makes a draw hold, compared with its own prompt or with the documents."""
        return super(ComparedConstraint, self._of(draw.prompt)).match_of(draw)

    def monitor(self) -> Monitor:
        """Return a monitor; without a prompt to compare with, one that knows nothing."""
        return Undecided() if self._takes_prompt else super().monitor()

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that compares with the prompt, if it is known as text."""
        if self._takes_prompt and context.prompt is None:
            return Undecided()
        return super(ComparedConstraint, self._of(context.prompt or "")).monitor_in(context)

    def verdict(self, prefix: str, /) -> Verdict:
        """Compare the prefix; UNDECIDED without a prompt to compare with."""
        return Verdict.UNDECIDED if self._takes_prompt else super().verdict(prefix)

    def _of(self, prompt: str) -> Self:
        """Return the constraint with the prompt in place of None."""
        if not self._takes_prompt:
            return self
        filled = copy.copy(self)
        # What has been computed without the prompt does not hold with it.
        filled.__dict__.clear()
        filled.__dict__.update({each.name: getattr(self, each.name) for each in fields(self)})  # type: ignore[arg-type]
        object.__setattr__(filled, self.compared, prompt)
        return filled
