"""The time that verdicts, masks and judgements of one request may take in a step.

In a batch with other callers, each request may use a little time in every step, and more at once from a reserve, which
refills with a small share of the time that passes. A step in which a timeout ends gives no request more time than is
left until then, also where a caller is alone. When the time is used up, nobody waits: a verdict is UNDECIDED, a mask
excludes nothing, and a text is judged in a separate thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from guardwrap.engine.scheduling.backend import TokenMask, Watch
from guardwrap.support.time_limits import StepOver, step_limit

_Answer = TypeVar("_Answer")

EACH_STEP = 0.02
"""Seconds in every step: processor time, or wall-clock time while waiting for a thread."""

SAVED = 0.1
"""Largest reserve in seconds. Each request starts with a full one, so each new request may delay others that long."""

SHARE = 0.1
"""Share of the wall-clock time that refills the reserve."""


class StepAllowance:
    """The time that one request may still use in this step.

    ``limited``: whether the limit of each step applies, because others wait. A single caller may use any amount of
    time.

    ``alone``: whether the request is the only one in the batch. A request that comes waits for one step of its masks,
    which have a limit of their own.
    """

    def __init__(self) -> None:
        self.limited = self.alone = False
        self.given_up = 0
        self._saved = SAVED
        self._used = 0.0
        self._began: float | None = None
        self._until = math.inf

    def begin(self, now: float, *, limited: bool, alone: bool = False, until: float = math.inf) -> None:
        """Start a step.

        ``until``: when the next timeout of a request in the batch is over, by ``time.monotonic()``; infinite for
        none.
        """
        passed = 0.0 if self._began is None else now - self._began
        beyond = max(0.0, self._used - EACH_STEP)
        self._saved = min(SAVED, max(0.0, self._saved - beyond) + SHARE * max(0.0, passed))
        self._used, self._began, self._until = 0.0, now, until
        self.limited, self.alone = limited, alone

    @property
    def left(self) -> float:
        """Seconds left in this step; infinite without a limit."""
        return min(EACH_STEP + self._saved - self._used if self.limited else math.inf, self.until_timeout)

    @property
    def until_timeout(self) -> float:
        """Seconds until the next timeout in the batch."""
        return self._until if math.isinf(self._until) else self._until - time.monotonic()

    def spent(self, *, mask: bool = False) -> AbstractContextManager[Any]:
        """Return a context that limits its body to the time left, and subtracts the time used."""
        uncharged = mask and self.alone
        left = self.until_timeout if uncharged else self.left
        if math.isinf(left):
            return nullcontext()
        if left <= 0:
            raise StepOver(EACH_STEP, shared=True)
        return step_limit(left) if uncharged else _Spent(self)


class _Spent:
    """A context that subtracts the time that its body takes."""

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
    """Return a watch whose verdicts are UNDECIDED when the allowance is used up."""

    def watched(grown: Any) -> str | None:
        try:
            with allowance.spent():
                return watch(grown)
        except StepOver:
            return None

    return watched


@dataclass(frozen=True)
class AllowedMask:
    """A mask that excludes nothing when the allowance is used up, and counts how often."""

    mask: TokenMask  # the mask to limit
    allowance: StepAllowance  # the time that its request may use

    @property
    def beyond(self) -> bool:
        """Whether a token may be drawn that truncation leaves out, where it leaves none that the mask allows."""
        return self.mask.beyond

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        """Return which of all possible next tokens are excluded; none is without time left."""
        try:
            with self.allowance.spent(mask=True):
                excluded = self.mask.left_out(token_ids, tokens, shares, beyond=beyond)
        except StepOver:
            excluded = np.zeros(len(tokens), dtype=bool)
        if self.allowance.left <= 0:
            self.allowance.given_up += 1
        return excluded

    def close(self, token_ids: Sequence[int]) -> None:
        """Record that every possible next token after ``token_ids`` was excluded."""
        self.mask.close(token_ids)
