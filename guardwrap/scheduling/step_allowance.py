"""What a request may compute in the steps of a batch that others are in: verdicts, masks and judgements together.

It may use a little in every step. What it leaves is saved up to a limit, so that a text may be judged at once; so is a
small share of the time that passes. Where the allowance is used up nothing is waited for: a verdict is UNDECIDED, a
mask leaves nothing out, and a judgement is made in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from guardwrap.documents.time_limits import StepOver, step_limit
from guardwrap.scheduling.backend import TokenMask, Watch

_Answer = TypeVar("_Answer")

__all__ = ["AllowedMask", "StepAllowance", "allowed_watch"]

EACH_STEP = 0.02
"""Seconds in every step; of the processor, and on the wall where a thread is waited for."""

SAVED = 0.1
"""Seconds beyond that, at once. Each request has them when it begins, so others wait as long for each that comes."""

SHARE = 0.1
"""Share of the time that passes which is saved again."""


class StepAllowance:
    """The seconds that one request may still use in this step.

    Attributes
    ----------
    limited : bool
        Whether others wait for it. A caller that is alone has all the time that it wants.
    given_up : int
        Next tokens of which a mask left out none, as there was no time.
    """

    def __init__(self) -> None:
        self.limited = False
        self.given_up = 0
        self._saved = SAVED
        self._used = 0.0
        self._began: float | None = None

    def begin(self, now: float, *, limited: bool) -> None:
        """Begin a step.

        Parameters
        ----------
        now
            Seconds on the wall.
        limited
            Whether others wait.
        """
        passed = 0.0 if self._began is None else now - self._began
        beyond = max(0.0, self._used - EACH_STEP)
        self._saved = min(SAVED, max(0.0, self._saved - beyond) + SHARE * max(0.0, passed))
        self._used, self._began, self.limited = 0.0, now, limited

    @property
    def left(self) -> float:
        """Seconds that are left in this step."""
        return EACH_STEP + self._saved - self._used

    def spent(self) -> AbstractContextManager[Any]:
        """Let what is done in this context be done within what is left, and book it.

        Raises
        ------
        StepOver
            At once, if nothing is left; and in the context, where the time ends.
        """
        if not self.limited:
            return nullcontext()
        if self.left <= 0:
            raise StepOver(EACH_STEP, shared=True)
        return _Spent(self)


class _Spent:
    """What is done in this context is booked."""

    def __init__(self, allowance: StepAllowance) -> None:
        self._allowance = allowance

    def __enter__(self) -> None:
        self._seconds = self._allowance.left
        self._clock = step_limit(self._seconds)
        self._clock.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._allowance._used += self._seconds - self._clock.left
        self._clock.__exit__(kind, error, trace)


def allowed_watch(watch: Watch, allowance: StepAllowance) -> Watch:
    """Return a watch whose verdicts are UNDECIDED where the allowance is used up."""

    def watched(grown: Any) -> str | None:
        try:
            with allowance.spent():
                return watch(grown)
        except StepOver:
            return None

    return watched


@dataclass(frozen=True)
class AllowedMask:
    """A mask that leaves nothing out where the allowance is used up, and counts for how many tokens.

    Parameters
    ----------
    mask
        The mask.
    allowance
        Of the request.
    """

    mask: TokenMask
    allowance: StepAllowance

    @property
    def impossible(self) -> bool:
        """As the mask has it."""
        return self.mask.impossible

    @property
    def notes(self) -> Sequence[str]:
        """As the mask has them."""
        return self.mask.notes

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Ask the mask."""
        return self._asked(lambda: self.mask.dead(token_ids, candidates), [False] * len(candidates))

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any) -> Any:
        """Ask the mask."""
        return self._asked(lambda: self.mask.left_out(token_ids, tokens, shares), np.zeros(len(tokens), dtype=bool))

    def close(self, token_ids: Sequence[int]) -> None:
        """Tell the mask."""
        self.mask.close(token_ids)

    def _asked(self, ask: Callable[[], _Answer], none: _Answer) -> _Answer:
        """Return the answer; that no token is left out, where there is no time for one."""
        try:
            with self.allowance.spent():
                answer = ask()
        except StepOver:
            answer = none
        if self.allowance.limited and self.allowance.left <= 0:
            self.allowance.given_up += 1
        return answer
