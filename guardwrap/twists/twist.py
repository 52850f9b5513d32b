"""The proposal that looks ahead: next tokens are weighed by the values of the states that they lead to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from guardwrap.twists.automata import Automaton
from guardwrap.twists.state_values import LOG_DEAD, SoftCounts, Values
from guardwrap.twists.token_states import TokenStates

__all__ = ["Twist", "model_share_for"]

FLOOR = -12.0
"""The least factor of a token, in nats: every text of the model stays possible, should the automaton be wrong."""

MODEL_SHARE = 0.6
"""The share of each step that is the model's own distribution (a defensive mixture: Hesterberg 1995).

ψ knows how far a word has come and not what a text is about, so a text that g likes may have little ψ. Without the
mixture its weight is huge, and one attempt in thousands is accepted. For ten words of a story model, at strength .8,
QRS takes 1.01, .55, .47 and .44 of the attempts of rejection for a TVD of .1, and 7.0, 1.19, .74 and .62 for one of .05
(geometric means) with a share of 0, .2, .4 and .6 (``benchmarks/rare.py costs``).
"""


def model_share_for(automaton: Automaton) -> float:
    """Return ``MODEL_SHARE``, or 0 for a constraint that requires a text to end before the token limit.

    Such a text has few steps in which to end, and each of them would miss it with ``MODEL_SHARE`` times the usual
    probability: with at most eight words, finished, the effective sample size was .015 instead of .044 an attempt.
    """
    return MODEL_SHARE if np.array_equal(automaton.ended, automaton.cut) else 0.0


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
    model_share
        The share of the model's own distribution, among tokens after which a text may still satisfy the constraint.
    """

    states: TokenStates
    log_values: Values | None
    end_ids: Collection[int]
    most: int
    counts: SoftCounts | None = None
    strength: float = 1.0
    model_share: float = 0.0

    @property
    def learns(self) -> bool:
        """Whether it notes the distributions that it receives."""
        return self.counts is not None

    def __post_init__(self) -> None:
        self._ends = np.array(sorted(self.end_ids), dtype=np.int64)

    def log_factors(
        self, token_ids: Sequence[int], tokens: npt.NDArray[np.int64] | None, log_probabilities: Values
    ) -> Values:
        """Return log a'/a of the possible next tokens, in nats, up to a constant; see ``TokenTwist``.

        It is log ψ(after)/ψ(now), at least ``FLOOR``, and with ``model_share`` = c the logarithm of c + (1 - c) φ/N for
        tokens after which the constraint can be satisfied, where φ = ψ(after)/ψ(now) and N = Σ a φ.
        """
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
        ahead = self.log_values[left - 1][after]
        ahead[ends] = 0.0 if self.states.automaton.ended[state] else LOG_DEAD
        factors: Values = np.maximum(self.strength * (ahead - self.log_values[left][state]), FLOOR)
        if self.model_share:
            live = ahead > LOG_DEAD
            log_sum = np.logaddexp.reduce(log_probabilities + factors)
            factors[live] = np.logaddexp(
                np.log(self.model_share), np.log1p(-self.model_share) + factors[live] - log_sum
            )
        return factors
