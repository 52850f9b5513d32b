"""The name of a choice: the sampler that is replaced by another one before a call begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from guardwrap.errors import UsageError, strict_arguments
from guardwrap.outcomes import Draw, Estimate
from guardwrap.samplers.protocol import NEAR, Attempt, Goal, Sampler


@strict_arguments
def auto(*, target_tvd: float = NEAR) -> Sampler:
    """Return the sampler that chooses rejection or QRS, and what to draw from, by a plan.

    Exact rejection from the model itself is chosen if twice its expected cost is within the budget. Otherwise it is the
    cheapest of QRS over a mask, a twist, and the call's own proposal, if that is within the budget and its weights can
    tell the distance to g. If there is none, the call raises UsageError with the figures of each way. A note in the
    report says what was chosen, why, and how many attempts the plan took. None of them is returned as a text.

    Parameters
    ----------
    target_tvd
        The total variation distance to g that QRS aims at, in (0, 1).

    Raises
    ------
    UsageError
        If ``target_tvd`` is out of range. Calls raise it if they cannot be planned: for single prompts of a call, which
        share its sampler, and for ``generate``.
    """
    if not 0 < target_tvd < 1:
        raise UsageError(f"target_tvd={target_tvd!r}: give a number between 0 and 1")
    return Sampler("auto", _unchosen, _step, _report, goal=Goal(target_tvd))


def _unchosen() -> NoReturn:
    raise UsageError("sampler='auto' is chosen for a whole call of the wrapper or run(); name another sampler here")


def _step(state: None, attempt: Attempt) -> tuple[None, Draw | None]:
    return state, None


def _report(state: None) -> tuple[str, Mapping[str, Estimate | float]]:
    return "nothing: no sampler was chosen", {}
