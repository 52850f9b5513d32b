"""Learning the values of twisted proposals, and twists for the prompts of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.vocabulary import Vocabulary
from guardwrap.twists.automata import MOST_STATES
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import SoftCounts, Values, log_values
from guardwrap.twists.token_states import TokenStates
from guardwrap.twists.twist import Twist, model_share_for
from guardwrap.twists.twist_file import TwistHeader, automaton_digest, read_twist, write_twist

if TYPE_CHECKING:
    from guardwrap.adapters.fingerprints import Fingerprint

__all__ = ["PROMPTS", "MakeTwist", "Spent", "TwistedConstraint", "Twists"]

PROMPTS = 4
"""The most prompts of a call whose attempts are learned from."""

ROUNDS, ATTEMPTS = 3, 128
"""Rounds of learning, and attempts in each. The first round draws from the model, the others with what is known."""

MOST_VALUES = 4_000_000
"""The most values of a constraint, 32 MB: states, times tokens."""

_LEARNED = "the twist was learned from {} attempts, {} computed tokens, which are not part of this report's cost"
_NONE = (
    "Twisted() follows keywords, lengths, Finished(), regular expressions, counts, closed JSON schemas, and their "
    "combinations by &, | and ~, with up to {} states; {} is none of these, so use Masked()"
)

_TOO_LONG = (
    "{} has {} states, which Twisted() follows for up to {} tokens; set max_new_tokens to that at most, or use Masked()"
)

_READ = "the twist was read from {!r}; it had been learned from {} attempts{}"
_OTHER_MODEL = " of another model, so fewer attempts may pass"
_OTHER_CONSTRAINT = "the twist {!r} was learned for another constraint ({}); give one that was learned for {}"
_UNLIKE = "the twist {!r} was learned by another version of guardwrap, which followed {} otherwise; learn it again"

MakeTwist = Callable[[PreparedPrompt], Twist]


class Spent(NamedTuple):
    """The cost of attempts that are not returned."""

    attempts: int = 0
    computed_tokens: int = 0


Attempts = Callable[[Sequence[PreparedPrompt], int, int, MakeTwist], Spent]
"""Draws attempts for each of several prompts: their number, a seed, and the twist of each prompt."""


@dataclass(eq=False)
class TwistedConstraint:
    """A constraint whose progress is followed, and what has been learned about it.

    Attributes
    ----------
    values : numpy.ndarray or None
        log ψ in nats, ``[tokens + 1, states]``, for a strength of 1; None before it is learned.
    rounds : int
        The rounds of learning that were not cut short by a time limit.
    spent : Spent
        The cost of learning.
    origin : str or None
        For reports, where the values were read from; None if they were learned here.
    earlier : int
        The attempts that values from a file had been learned from.
    """

    states: TokenStates
    counts: SoftCounts
    title: str = ""
    values: Values | None = None
    rounds: int = 0
    spent: Spent = field(default_factory=Spent)
    origin: str | None = None
    earlier: int = 0
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
        return cls(TokenStates(automaton, vocabulary), SoftCounts(len(automaton)), constraint.title)

    def read(self, path: Path, digest: str, model: Fingerprint) -> None:
        """Take what was learned from a file.

        Parameters
        ----------
        path
            A file that ``write`` has written.
        digest
            The digest of the constraint.
        model
            The fingerprint of the model that attempts are drawn from. If the file is for another one, reports say so.

        Raises
        ------
        UsageError
            If it cannot be read, or is for another constraint.
        """
        header, self.counts = read_twist(path, len(self.states.automaton))
        if header.constraint != digest:
            raise UsageError(_OTHER_CONSTRAINT.format(str(path), header.title, self.title))
        if header.automaton != automaton_digest(self.states.automaton):
            raise UsageError(_UNLIKE.format(str(path), self.title))
        most = min(header.tokens, MOST_VALUES // len(self.states.automaton) - 1)
        self.values, self.rounds = log_values(self.states.automaton, self.counts, most), ROUNDS
        self.earlier = header.attempts
        other = "" if header.model == model.model_dump() else _OTHER_MODEL
        self.origin = _READ.format(str(path), header.attempts, other)

    def write(self, path: Path, digest: str, model: Fingerprint) -> None:
        """Write what was learned to a file; see ``read``.

        Raises
        ------
        UsageError
            If it cannot be written.
        """
        assert self.values is not None
        header = TwistHeader(
            constraint=digest,
            title=self.title,
            automaton=automaton_digest(self.states.automaton),
            model=model.model_dump(),
            tokens=len(self.values) - 1,
            attempts=self.earlier + self.spent.attempts,
        )
        write_twist(path, header, self.counts)

    @property
    def learned(self) -> bool:
        """Whether nothing is left to learn."""
        return self.rounds == ROUNDS

    def learn(self, prompts: Sequence[PreparedPrompt], attempts: Attempts) -> None:
        """Learn the values from attempts for some prompts. The first caller learns, and others wait.

        If a time limit cuts that short, the values are those of the attempts so far, and the next call learns on.

        Raises
        ------
        UsageError
            If texts may have so many tokens that there are more than ``MOST_VALUES`` values.
        """
        with self._learning:
            most, states = max(prompt.law.most_new for prompt in prompts), len(self.states.automaton)
            if (most + 1) * states > MOST_VALUES:
                raise UsageError(_TOO_LONG.format(self.title, states, MOST_VALUES // states - 1))
            count = -(-ATTEMPTS // len(prompts))
            while not self.learned:
                before = self.values
                # After a round that was cut short, the next one draws other attempts.
                spent = attempts(prompts, count, self.spent.attempts, partial(self._learning_twist, before))
                self.spent = Spent(*map(sum, zip(self.spent, spent, strict=True)))
                self.counts.close_round()
                self.values = log_values(self.states.automaton, self.counts, most)
                if spent.attempts < count * len(prompts):
                    return
                self.rounds += 1

    def values_for(self, tokens: int) -> Values:
        """Return the values, with rows for up to ``tokens`` tokens left if ``MOST_VALUES`` allows that.

        A later call may allow longer texts than the one that learned. The further rows follow from the same counts,
        once these no longer change; until then the last row stands for them. It does not wait for others that learn.
        """
        assert self.values is not None
        values, automaton = self.values, self.states.automaton
        tokens = min(tokens, MOST_VALUES // len(automaton) - 1)
        if self.learned and tokens >= len(values):
            self.values = values = log_values(automaton, self.counts, tokens)
        return values

    def _learning_twist(self, values: Values | None, prompt: PreparedPrompt) -> Twist:
        return Twist(self.states, values, prompt.law.end_ids, prompt.law.most_new, self.counts)


@dataclass(frozen=True)
class Twists:
    """The twists of one call.

    Parameters
    ----------
    constraint
        The constraint with its values.
    strength
        The power of ψ.
    model_share
        The share of the model itself in each step; None for that of ``Twisted()``.
    """

    constraint: TwistedConstraint
    strength: float
    model_share: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for reports."""
        return (self.constraint.origin or _LEARNED.format(*self.constraint.spent),)

    def twist(self, prompt: PreparedPrompt) -> Twist:
        """Return the twist of a prompt."""
        most, share = prompt.law.most_new, model_share_for(self.constraint.states.automaton)
        return Twist(
            self.constraint.states,
            self.constraint.values_for(most),
            prompt.law.end_ids,
            most,
            strength=self.strength,
            model_share=share if self.model_share is None else min(self.model_share, share),
        )
