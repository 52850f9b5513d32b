"""The proposal that looks ahead: next tokens are weighed by the values of the states that they lead to."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from guardwrap.engine.scheduling.backend import AttemptState, keep_state, last_state
from guardwrap.twists.automata import Automaton
from guardwrap.twists.state_values import LOG_DEAD, SoftCounts, TokenStates, Values
from guardwrap.twists.tilt import LIKELY, StepRecords, step_of

_LOG_LIKELY = float(np.log(LIKELY))

FLOOR = -12.0
"""The least factor of a token by states, in nats."""

LEAST_SHARE = 0.05
"""The share of attempts that are the model's own, at least: a'(y) >= ``LEAST_SHARE`` a(y) for every text y.

So a weight a(y)/a'(y) is 20 at most, whatever the values, the tilt and the automaton are. It is a defensive mixture of
attempts (Hesterberg 1995), drawn step by step: if the tokens so far have the weight W = a/a', the model's own
distribution has the share ``LEAST_SHARE`` W in the next step, where a token would get less than that. It costs at most
this share of the attempts, and nothing where no token does.
"""


class Defaults(NamedTuple):
    """What a twist is drawn with unless the call says otherwise."""

    strength: float  # the power of ψ
    # the share of each step that is the model's own distribution (a defensive mixture: Hesterberg 1995)
    model_share: float
    attempts: int  # the attempts to learn from


ANY_END = Defaults(strength=0.65, model_share=0.6, attempts=768)
"""For constraints that texts of any length may satisfy, cut off or not, such as keywords.

ψ knows how far a word has come, and the tilt one direction of what texts are about, so a text that g likes may have
little of both. With a high power, or without the model's own share, its weight is huge, and one attempt in thousands is
accepted. For ten words of a story model at a power of .8, QRS takes 1.71, .46, .32 and .29 of the attempts of rejection
for a TVD of .1 with a share of 0, .2, .4 and .6 (geometric means; ``benchmarks/rare.py costs``). With a share of .6 and
powers of .5, .65 and .8 it takes .31, .35 and .41 after 384 attempts of learning, and .22, .23 and .28 after 768
(``benchmarks/rare_learning.py``). In Markov chains, where ψ is right, .8 is better than .65 by a fifth.
"""

MUST_END = Defaults(strength=0.8, model_share=0.0, attempts=384)
"""For constraints that require a text to end before the token limit, such as JSON.

Such a text has few steps in which to end, and each of them would miss it with the share of the model times the usual
probability: with at most eight words, finished, the effective sample size was .015 instead of .044 an attempt.
"""


def defaults_for(automaton: Automaton) -> Defaults:
    """Return the defaults for a constraint.

    ``MUST_END`` if texts that are cut off do not pass, or if a text that passes can hardly be continued: from none of
    its states do half of the kinds of characters lead to one from which texts pass. So it is for JSON, choices and most
    patterns for a whole text. At JSON with five strings, an attempt is worth .07 effective draws of g by either, and
    ``ANY_END`` takes twice the attempts of learning.
    """
    continued = automaton.live()[automaton.table[automaton.cut]].mean(axis=1) >= 0.5
    return ANY_END if np.array_equal(automaton.ended, automaton.cut) and continued.any() else MUST_END


@dataclass(eq=False)
class Twist:
    """Weighs the next tokens of one prompt: a'(x | prefix) ∝ a(x | prefix) exp(e_x · v) ψ(after x)/ψ(now)."""

    states: TokenStates  # the states after tokens
    # log ψ in nats by tokens left and state; see ``state_values.log_values``. None for ψ = 1.
    log_values: Values | None
    end_ids: Collection[int]  # the tokens that end a text
    most: int  # the most new tokens
    counts: SoftCounts | None = None  # where to note the soft counts of the next tokens; None to learn nothing
    strength: float = 1.0  # the power of ψ
    # the share of the model's own distribution, among tokens after which a longer text may satisfy the constraint
    model_share: float = 0.0
    # e_x · v of each token in nats, ``[tokens]``, for states from which success is not ``LIKELY``; see ``tilt``. None
    # for v = 0.
    tilt: Values | None = None
    records: StepRecords | None = None  # where to keep distributions from which v is learned; None to keep nothing
    least_share: float = 0.0  # the least a'(y)/a(y) of each text; 0 for no bound, for attempts that are not returned
    # the largest a(y)/a'(y) that reports allow for in texts that were not drawn; infinity for none
    most_weight: float = math.inf

    @property
    def learns(self) -> bool:
        """Whether it notes the distributions that it receives."""
        return self.counts is not None

    def __post_init__(self) -> None:
        self._ends = np.array(sorted(self.end_ids), dtype=np.int64)
        if self.log_values is not None:  # the states from which some text, however long, satisfies the constraint
            self._live = self.log_values[-1] > LOG_DEAD

    def log_factors(
        self,
        token_ids: Sequence[int],
        tokens: npt.NDArray[np.int64] | None,
        log_probabilities: Values,
        log_weight: float = 0.0,
    ) -> Values:
        """Return log a'/a of the possible next tokens, in nats, up to a constant; see ``TokenTwist``.

        It is log φ with φ = exp(e_x · v) ψ(after)/ψ(now), where the quotient is at least exp(``FLOOR``). With
        ``model_share`` = c it is the logarithm of c + (1 - c) φ/N, where N = Σ a φ, except for tokens after which no
        text satisfies the constraint, however long. The last token keeps the share too: without it, every attempt
        that lacks a word would end with that word, and nearly all of these would be of no use to a sampler.

        Last of all, every token gets the share that ``least_share`` requires.
        """
        state, begins = self.states.read(token_ids)
        after = self.states.ahead(state, begins, tokens, len(log_probabilities))
        ends = self._ends if tokens is None else np.isin(tokens, self._ends).nonzero()[0]
        seen = last_state(token_ids, self)
        if self.counts is not None and (seen is None or seen[0] < len(token_ids)):
            keep_state(token_ids, self, None)  # if it is called again for these tokens, they count once
            shares = np.exp(log_probabilities)
            ending = float(shares[ends].sum())
            shares[ends] = 0.0
            self.counts.note(state, after, shares, ending)
        if self.log_values is None:
            return np.zeros(len(log_probabilities))
        left = min(max(self.most - len(token_ids), 1), len(self.log_values) - 1)
        now, ahead = self.log_values[left][state], self.log_values[left - 1][after]
        ahead[ends] = self._ending(state)
        by_states: Values = np.maximum(self.strength * (ahead - now), FLOOR)
        tilted = now < _LOG_LIKELY and (self.tilt is not None or self.records is not None)
        tilts = np.zeros(len(ahead))
        if tilted and self.tilt is not None:  # e_x · v of each column
            tilts = self.tilt[: len(ahead)] if tokens is None else self.tilt[tokens]
        factors: Values = by_states + tilts
        log_sum = 0.0
        if self.model_share:
            live = self._live[after]
            live[ends] = self.states.automaton.ended[state]
            log_sum = _log_sum(log_probabilities + factors)
            factors[live] = self._mixed(factors[live], log_sum)
        if self.records is not None and tilted:
            shares = log_probabilities + by_states
            log_norm = _log_sum(log_probabilities + factors)
            worths = np.where(ahead >= _LOG_LIKELY, np.exp(log_probabilities + ahead), 0.0)
            weight_of = partial(self._log_weight, state, begins, left, log_sum, log_norm)
            kept = self.records.kept
            self.records.steps[tuple(token_ids)] = step_of(kept, tokens, shares, tilts, worths, weight_of)
        return self._bounded(factors, log_probabilities, log_weight) if self.least_share else factors

    def turned(self, attempt: AttemptState) -> bool:
        """Return False: no token is taken back; see ``TokenTwist``."""
        return False

    def _bounded(self, factors: Values, log_probabilities: Values, log_weight: float) -> Values:
        """Return the factors with the share of the model that keeps the weight of every text within its bound."""
        share = min(self.least_share * float(np.exp(min(log_weight, 700.0))), 1.0)
        if share == 0 or factors.min() - factors.max() >= np.log(share):  # the sum below is at most the largest factor
            return factors
        relative = factors - _log_sum(log_probabilities + factors)
        if (relative >= np.log(share)).all(where=log_probabilities > -np.inf):
            return factors
        # In logarithms, as the factor of a token of tiny probability may be too large for a float.
        return np.logaddexp(np.log(share), relative + np.log1p(-share)) if share < 1 else np.zeros(len(factors))

    def _ending(self, state: int) -> float:
        """Return log ψ after the end of a text in a state."""
        return 0.0 if self.states.automaton.ended[state] else LOG_DEAD

    def _mixed(self, factors: Values, log_sum: float) -> Values:
        """Return the factors with the model's share; ``log_sum`` is log Σ a φ."""
        mixed: Values = np.log(self.model_share + (1 - self.model_share) * np.exp(factors - log_sum))
        return mixed

    def _log_weight(self, state: int, begins: bool, left: int, log_sum: float, log_norm: float, token: int) -> float:
        """Return log a(x)/a'(x) in nats of a token x that is drawn in a state with some tokens left.

        ``log_norm`` is the logarithm of the sum of a(x) times the factors.
        """
        assert self.log_values is not None
        successors = self.states.after(state, begins=begins)
        after = int(successors[token]) if token < len(successors) else state
        ahead = self._ending(state) if token in self.end_ids else float(self.log_values[left - 1][after])
        factors = np.maximum(self.strength * np.array([ahead - self.log_values[left][state]]), FLOOR)
        factors += 0.0 if self.tilt is None else self.tilt[token]
        live = self.states.automaton.ended[state] if token in self.end_ids else self._live[after]
        if self.model_share and live:
            factors = self._mixed(factors, log_sum)
        return log_norm - float(factors[0])


def _log_sum(logs: Values) -> float:
    """Return log Σ exp(x)."""
    most = logs.max()  # numpy.logaddexp.reduce takes 25 times as long
    return float(most + np.log(np.exp(logs - most).sum()))
