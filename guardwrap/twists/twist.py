"""The proposal that looks ahead: next tokens are weighed by the values of the states that they lead to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from guardwrap.twists.state_values import SoftCounts, Values
from guardwrap.twists.token_states import TokenStates

__all__ = ["Twist"]

FLOOR = -12.0
"""The least factor of a token, in nats: every text of the model stays possible, should the automaton be wrong."""


@dataclass(eq=False)
class Twist:
    """Weighs the next tokens of one prompt: a'(x | prefix) is a(x | prefix) ψ(after x)/ψ(now), normalized.

    Parameters
    ----------
    states
        The states after tokens.
    log_values
        log ψ in nats by tokens left and state; see ``state_values.log_values``. None for ψ = 1.
    end_ids
        The tokens that end a text.
    most
        The most new tokens.
    counts
        Where to note the soft counts of the next tokens; None to learn nothing.
    strength
        The power of ψ.
    """

    states: TokenStates
    log_values: Values | None
    end_ids: Collection[int]
    most: int
    counts: SoftCounts | None = None
    strength: float = 1.0

    @property
    def learns(self) -> bool:
        """Whether it notes the distributions that it receives."""
        return self.counts is not None

    def __post_init__(self) -> None:
        self._ends = np.array(sorted(self.end_ids), dtype=np.int64)

    def log_factors(
        self, token_ids: Sequence[int], tokens: npt.NDArray[np.int64] | None, log_probabilities: Values
    ) -> Values:
        """Return log ψ(after)/ψ(now) of the possible next tokens, in nats, at least ``FLOOR``; see ``TokenTwist``."""
        state, begins = self.states.read(token_ids)
        successors = self.states.after(state, begins=begins)
        if len(successors) < len(log_probabilities):  # rows of the model without a token
            successors = np.append(successors, np.full(len(log_probabilities) - len(successors), state, dtype=np.int32))
        after = successors[: len(log_probabilities)] if tokens is None else successors[tokens]
        ends = self._ends if tokens is None else np.isin(tokens, self._ends).nonzero()[0]
        if self.counts is not None:
            shares = np.exp(log_probabilities)
            ending = float(shares[ends].sum())
            shares[ends] = 0.0
            self.counts.note(state, after, shares, ending)
        if self.log_values is None:
            return np.zeros(len(log_probabilities))
        left = min(max(self.most - len(token_ids), 1), len(self.log_values) - 1)
        factors: Values = self.strength * (self.log_values[left - 1][after] - self.log_values[left][state])
        factors[ends] = -self.strength * self.log_values[left][state] if self.states.automaton.ended[state] else FLOOR
        return np.maximum(factors, FLOOR)
