"""Learning the values of twisted proposals, and twists for the prompts of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.vocabulary import Vocabulary
from guardwrap.twists.automata import MOST_STATES
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import SoftCounts, Values, log_values
from guardwrap.twists.token_states import TokenStates
from guardwrap.twists.twist import Twist

__all__ = ["PROMPTS", "MakeTwist", "Spent", "TwistedConstraint", "Twists"]

PROMPTS = 4
"""The most prompts of a call whose attempts are learned from."""

ROUNDS, ATTEMPTS = 3, 128
"""Rounds of learning, and attempts in each. The first round draws from the model, the others with what is known."""

_LEARNED = "the twist was learned from {} attempts, {} computed tokens, which are not part of this report's cost"
_NONE = (
    "Twisted() follows keywords, lengths, Finished(), and their combinations by &, | and ~, with up to {} states; "
    "{} is none of these, so use Masked()"
)

MakeTwist = Callable[[PreparedPrompt], Twist]


class Spent(NamedTuple):
    """The cost of attempts that are not returned."""

    attempts: int
    computed_tokens: int


Attempts = Callable[[Sequence[PreparedPrompt], int, int, MakeTwist], Spent]
"""Draws attempts for each of several prompts: their number, a seed, and the twist of each prompt."""


@dataclass(eq=False)
class TwistedConstraint:
    """A constraint whose progress is followed, and what has been learned about it.

    Attributes
    ----------
    values : numpy.ndarray or None
        log ψ in nats, ``[tokens + 1, states]``, for a strength of 1; None before it is learned.
    spent : Spent
        The cost of learning.
    """

    states: TokenStates
    counts: SoftCounts
    values: Values | None = None
    spent: Spent = field(default_factory=lambda: Spent(0, 0))
    _learning: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary | None) -> TwistedConstraint:
        """Return the constraint with its automaton.

        Raises
        ------
        UsageError
            If there is none, or the text of tokens is not known.
        """
        if vocabulary is None:
            raise UsageError("Twisted() reads tokens as text, which this tokenizer does not allow; leave it out")
        automaton = automaton_of(constraint)
        if automaton is None:
            raise UsageError(_NONE.format(MOST_STATES, constraint.title))
        return cls(TokenStates(automaton, vocabulary), SoftCounts(len(automaton)))

    def learn(self, prompts: Sequence[PreparedPrompt], attempts: Attempts) -> None:
        """Learn the values from attempts for some prompts. The first caller learns, and others wait."""
        with self._learning:
            if self.values is not None:
                return
            most = max(map(_most, prompts))
            values: Values | None = None
            for number in range(ROUNDS):
                spent = attempts(
                    prompts,
                    -(-ATTEMPTS // len(prompts)),
                    number,
                    lambda prompt, known=values: Twist(  # type: ignore[misc]
                        self.states, known, prompt.law.end_ids, _most(prompt), self.counts
                    ),
                )
                self.spent = Spent(*map(sum, zip(self.spent, spent, strict=True)))
                self.counts.close_round()
                values = log_values(self.states.automaton, self.counts, most)
            self.values = values


@dataclass(frozen=True)
class Twists:
    """The twists of one call.

    Parameters
    ----------
    constraint
        The constraint with its values.
    strength
        The power of ψ.
    """

    constraint: TwistedConstraint
    strength: float

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for reports."""
        return (_LEARNED.format(*self.constraint.spent),)

    def twist(self, prompt: PreparedPrompt) -> Twist:
        """Return the twist of a prompt."""
        assert self.constraint.values is not None
        return Twist(
            self.constraint.states, self.constraint.values, prompt.law.end_ids, _most(prompt), strength=self.strength
        )


def _most(prompt: PreparedPrompt) -> int:
    """Return the most new tokens of a prompt's texts."""
    return prompt.law.max_length - len(prompt.law.ids)
