"""What a sampler is: pure functions, ``init``, ``step`` and ``report``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from guardwrap.errors import ModelError, UsageError
from guardwrap.outcomes import Draw, Estimate

__all__ = ["Attempt", "Sampler", "Trace", "checked_weight", "finite_weight", "from_row", "to_row"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A decided attempt, as a sampler sees it.

    Parameters
    ----------
    draw
        The draw from the proposal a'.
    satisfied
        b(y): whether it satisfies the constraint.
    log_weight
        log P(y) / a'(y) in nats, with P(y) = a(y) b(y): minus infinity where b(y) = 0. None for a sampler that does
        not ask for weights.
    uniform
        A number in [0, 1) of the attempt's own, for a sampler that accepts at random.
    """

    draw: Draw
    satisfied: bool
    log_weight: float | None = None
    uniform: float = 0.0


class Sampler(NamedTuple):
    """Decides which attempts become texts. It sees the attempts of one prompt, each once, in launch order.

    Parameters
    ----------
    name
        Its name.
    init
        Returns the state before the first attempt.
    step
        Takes a state and an attempt; returns the next state, and the draw to return to the user or None.
    report
        Takes a state; returns in words what the returned draws are distributed as, for reports, and figures by name
        that say how well. A sampler that asks for no weights speaks of a proposal that is the model itself.
    weighs
        Whether attempts need log-weights: log a(y) is computed for those that satisfy the constraint.
    skips
        Whether an attempt that violates the constraint leaves the state as it is, so that it need not be shown.
    """

    name: str
    init: Callable[[], Any]
    step: Callable[[Any, Attempt], tuple[Any, Draw | None]]
    report: Callable[[Any], tuple[str, Mapping[str, Estimate | float]]]
    weighs: bool = False
    skips: bool = False


def checked_weight(attempt: Attempt) -> float:
    """Return an attempt's log-weight.

    Raises
    ------
    ModelError
        If it is NaN or infinite.
    UsageError
        If there is none.
    """
    weight = attempt.log_weight
    if weight is None:
        raise UsageError("this sampler needs log-weights, and the attempt has none")
    return finite_weight(weight)


def finite_weight(weight: float) -> float:
    """Return a log-weight, or raise ModelError where it is NaN or infinite: figures compare weights with each other."""
    if math.isnan(weight) or weight == math.inf:
        raise ModelError(f"a log-weight is {weight}: the model or the proposal gives no probability; try float32")
    return weight


class Trace(NamedTuple):
    """Values seen so far, the newest first: a list that can grow without a copy and without changing old states."""

    value: float
    before: Trace | None

    @staticmethod
    def values(trace: Trace | None) -> list[float]:
        """Return the values in the order in which they came."""
        return list(_backwards(trace))[::-1]


def _backwards(trace: Trace | None) -> Iterator[float]:
    while trace is not None:
        yield trace.value
        trace = trace.before


def to_row(attempt: Attempt) -> dict[str, Any]:
    """Spell an attempt as JSON types. The text of one that does not satisfy the constraint is not kept."""
    row: dict[str, Any] = {"satisfied": attempt.satisfied, "log_proposal": attempt.draw.log_proposal}
    if attempt.satisfied:
        row |= {
            "log_weight": None if attempt.log_weight == -math.inf else attempt.log_weight,
            "uniform": attempt.uniform,
            "text": attempt.draw.text,
            "token_ids": attempt.draw.token_ids,
            "finished": attempt.draw.finished,
        }
    return row


def from_row(row: Mapping[str, Any]) -> Attempt:
    """Read what ``to_row`` spelled; prompts are not kept.

    Raises
    ------
    ValueError
        If the weight is none.
    """
    if not row["satisfied"]:
        return Attempt(Draw("", (), "", log_proposal=row["log_proposal"]), False, -math.inf)
    weight = -math.inf if row["log_weight"] is None else float(row["log_weight"])
    if not weight < math.inf:  # JSON as Python reads it has NaN
        raise ValueError("a log-weight is NaN or infinite")
    draw = Draw("", tuple(row["token_ids"]), row["text"], row["finished"], row["log_proposal"])
    return Attempt(draw, True, weight, row["uniform"])
