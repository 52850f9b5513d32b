"""The sampler protocol, three pure functions ``init``, ``step`` and ``report``; and the samplers without weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from guardwrap.constraints.base import Constraint
from guardwrap.errors import ModelError, UsageError
from guardwrap.outcomes import EXACT, Distribution, Draw, Estimate


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
        not use weights.
    uniform
        A random number in [0, 1), independent of every other attempt, for a sampler that accepts at random.
    most_weight
        The largest P(y) / a'(y) to allow for in texts that were not drawn, for reports; infinity for none.
    features
        Which of the sampler's ``features`` hold; empty if the attempt does not satisfy the constraint.
    """

    draw: Draw
    satisfied: bool
    log_weight: float | None = None
    uniform: float = 0.0
    most_weight: float = math.inf
    features: tuple[bool, ...] = ()


NEAR = 0.05
"""A total variation distance to g that counts as near enough."""


class Goal(NamedTuple):
    """What a sampler aims at, for plans.

    Parameters
    ----------
    tvd
        The total variation distance to g.
    pilot
        The attempts that must satisfy the constraint before the first text; None if their number depends on the
        weights.
    """

    tvd: float = NEAR
    pilot: int | None = None


class Sampler(NamedTuple):
    """Decides which attempts become texts. It sees the attempts of one prompt, each once, in launch order.

    Parameters
    ----------
    name
        The sampler's name, as in reports and files.
    init
        Returns the state before the first attempt.
    step
        Takes a state and an attempt; returns the next state, and the draw to return to the user, several in the order
        of their texts, or None.
    report
        Takes a state; returns the ``Distribution`` of the returned draws, or its description in words, for reports, and
        figures by name that say how close it is to g. A sampler without weights describes the case a' = a.
    weighs
        Whether attempts need log-weights: log a(y) is computed for those that satisfy the constraint.
    skips
        Whether an attempt that violates the constraint leaves the state unchanged, so that ``step`` need not be called
        for it.
    records
        Whether it records attempts and never returns a text, so that all attempts of the budget are drawn even if none
        of them can satisfy the constraint.
    goal
        What it aims at.
    takes_all
        Whether every attempt that satisfies the constraint is returned. Only then may a text be streamed while it is
        drawn.
    options
        Its options by name, as plain JSON types, so that calls with the same options can be recognized; None if they
        are not known.
    needs
        Takes a state and the number of texts that are missing; returns how many further attempts must satisfy the
        constraint for these, as expected; infinity if it will return none. None to estimate it by the share that was
        returned so far.
    features
        Further rules that attempts which satisfy the constraint are judged by. They reject none of them.
    """

    name: str
    init: Callable[[], Any]
    step: Callable[[Any, Attempt], tuple[Any, Draw | Sequence[Draw] | None]]
    report: Callable[[Any], tuple[Distribution | str, Mapping[str, Estimate | float]]]
    weighs: bool = False
    skips: bool = False
    records: bool = False
    goal: Goal = Goal()
    takes_all: bool = False
    options: tuple[tuple[str, Any], ...] | None = None
    needs: Callable[[Any, int], float] | None = None
    features: tuple[Constraint, ...] = ()

    def returned(self, state: Any, attempt: Attempt) -> tuple[Any, Sequence[Draw]]:
        """Return the next state, and the draws to return to the user."""
        state, draws = self.step(state, attempt)
        return state, (draws,) if isinstance(draws, Draw) else draws or ()


def checked_weight(attempt: Attempt) -> float:
    """Return an attempt's log-weight.

    Raises
    ------
    ModelError
        If it is NaN or infinite.
    UsageError
        If the attempt has no log-weight.
    """
    weight = attempt.log_weight
    if weight is None:
        raise UsageError("this sampler needs log-weights, and the attempt has none; define it with weighs=True")
    return finite_weight(weight)


def finite_weight(weight: float) -> float:
    """Return a log-weight, or raise ModelError if it is NaN or +inf, which would make every figure meaningless."""
    if math.isnan(weight) or weight == math.inf:
        raise ModelError(
            f"a log-weight is {weight}: the model or the proposal computed an invalid probability; try float32"
        )
    return weight


class Trace(NamedTuple):
    """A linked list of values, the newest first: adding one copies nothing and leaves old states unchanged."""

    value: float
    before: Trace | None

    @staticmethod
    def values(trace: Trace | None) -> list[float]:
        """Return the values in the order in which they were added."""
        return list(_backwards(trace))[::-1]


def _backwards(trace: Trace | None) -> Iterator[float]:
    while trace is not None:
        yield trace.value
        trace = trace.before


def to_row(attempt: Attempt) -> dict[str, Any]:
    """Convert an attempt to JSON types, without the text if it does not satisfy the constraint."""
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
    """Return the attempt that ``to_row`` converted. Its prompt is empty, as rows do not store prompts.

    Raises
    ------
    ValueError
        If the log-weight is NaN or +inf.
    """
    if not row["satisfied"]:
        return Attempt(Draw("", (), "", log_proposal=row["log_proposal"]), False, -math.inf)
    weight = -math.inf if row["log_weight"] is None else float(row["log_weight"])
    if not weight < math.inf:  # Python's JSON parser accepts NaN and Infinity
        raise ValueError("a log-weight is NaN or infinite")
    draw = Draw("", tuple(row["token_ids"]), row["text"], row["finished"], row["log_proposal"])
    return Attempt(draw, True, weight, row["uniform"])


def _step(state: None, attempt: Attempt) -> tuple[None, Draw | None]:
    return state, attempt.draw if attempt.satisfied else None


rejection = Sampler("rejection", lambda: None, _step, lambda state: (EXACT, {}), skips=True, takes_all=True, options=())
"""The sampler that accepts every attempt with b(y) = 1. It samples g' ∝ a' b, which is g if a' = a (paper, Section 3
and App. B.3)."""


def collecting(weigh: bool, on_attempt: Callable[[], None] | None = None) -> tuple[Sampler, list[list[Attempt]]]:
    """Return a sampler that records the attempts of each prompt, and the lists that it records them in.

    Parameters
    ----------
    weigh
        Whether attempts that satisfy the constraint get log-weights.
    on_attempt
        Called for each attempt.

    Returns
    -------
    Sampler
        A sampler to use in one call only.
    list of list of Attempt
        One list per prompt, in the order of the prompts, filled while the call runs with the prompt's attempts in
        launch order.
    """
    attempts: list[list[Attempt]] = []

    def init() -> list[Attempt]:
        attempts.append([])
        return attempts[-1]

    def step(state: list[Attempt], attempt: Attempt) -> tuple[list[Attempt], None]:
        state.append(attempt)
        if on_attempt is not None:
            on_attempt()
        return state, None

    return Sampler("attempts", init, step, lambda state: ("all attempts, judged", {}), weigh, records=True), attempts
