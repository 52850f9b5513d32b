"""Learning the values of twisted proposals, and twists for the prompts of a call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import TIMEOUT_MAX, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from guardwrap.constraints.base import Constraint
from guardwrap.engine.scheduling.backend import AttemptState, TokenTwist
from guardwrap.errors import UsageError
from guardwrap.metrics import effective_sample_size
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.models.vocabulary import Vocabulary
from guardwrap.outcomes import Draw, Usage
from guardwrap.samplers.protocol import Attempt
from guardwrap.support.yaml_nodes import short
from guardwrap.twists.hits import Hits, LearnedHits, decided
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import SoftCounts, TokenStates, Values, log_values
from guardwrap.twists.tilt import StepRecords, TiltData, TokenEmbeddings
from guardwrap.twists.twist import LEAST_SHARE, Defaults, Twist, defaults_for
from guardwrap.twists.twist_file import TwistHeader, automaton_digest, read_twist, write_twist

if TYPE_CHECKING:
    from guardwrap.adapters.card import Fingerprint

PROMPTS = 4
"""The most prompts of a call whose attempts are learned from."""

FEWEST = 64
"""The attempts of each of the first rounds of learning; see ``rounds_of``."""

ENOUGH = 0.4
"""Learning ends after a round whose attempts are worth this many effective draws of g each."""

MOST_VALUES = 4_000_000
"""The most values of a constraint, 32 MB: states, times tokens."""

MOST_PRODUCTS = 2_000_000_000
"""The most products to compute the values of what a file has, about two seconds: transitions, times tokens."""

_NOTHING_LEARNED = "the time was over before the twist had learned anything"
_LEARNED = "the twist was learned from {} attempts, {} computed tokens, which are not part of this report's cost"
MASKED_INSTEAD = "Twisted() masks tokens here, as Masked() does: {1} has no automaton, or none with up to {0} states"
"""The note of calls whose constraint has no automaton."""

_TOO_LONG = "{} has {} states, which Twisted() follows for up to {} tokens; set max_new_tokens to that at most"

_READ = "the twist was read from a file; it had been learned from {} attempts{}"
_OTHER_MODEL = " of another model, so fewer attempts may pass"
_OTHER_CONSTRAINT = "the twist {!r} was learned for another constraint ({}); give one that was learned for {}"
_OTHER_VOCABULARY = "the twist {!r} has a tilt for {} tokens, and the model {}; learn it again"
_TOO_MUCH = (
    "the twist of {} has too many transitions for texts of {} tokens; set max_new_tokens to at most {}, or leave "
    "learned= out"
)
_UNLIKE = "the twist {!r} was learned by another version of guardwrap, which followed {} otherwise; learn it again"


def rounds_of(attempts: int) -> tuple[int, ...]:
    """Return how many attempts each round of learning has.

    The first draws from the model, and the second with the values of states. From the third on, tokens are tilted as
    well, and attempts are drawn with the strength and the share of the model that calls use. From the fifth on, every
    other round is twice as large, as each one fits the tilt to all attempts so far.
    """
    sizes: list[int] = []
    while (rest := attempts - sum(sizes)) > 0:
        sizes.append(min(FEWEST << max(0, (len(sizes) - 2) // 2), rest))
    return tuple(sizes)


def hit_rounds_of(attempts: int) -> tuple[int, ...]:
    """Return how many attempts each round of writing words has, after so many by states; the last one decides."""
    return attempts // 6, attempts // 3


class Spent(NamedTuple):
    """The cost of attempts that are not returned; seconds are wall-clock time."""

    attempts: int = 0
    computed_tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def total(cls, costs: Iterable[Spent]) -> Spent:
        """Return the sum of costs."""
        return cls(*map(sum, zip(cls(), *costs, strict=True)))

    @property
    def usage(self) -> Usage:
        """The cost as the part of a report's usage that was spent on learning."""
        return Usage(
            learning_attempts=self.attempts,
            learning_computed_tokens=self.computed_tokens,
            learning_seconds=self.seconds,
        )


class Learned(NamedTuple):
    """What attempts for learning give."""

    spent: Sequence[Spent]  # their cost, for each prompt
    attempts: Sequence[Sequence[Attempt]]  # the attempts of each prompt, with their log-weights

    @property
    def log_weights(self) -> list[Values]:
        """The log-weights of the attempts of each prompt, -inf for those that do not pass."""
        return [
            np.array([-np.inf if each.log_weight is None else each.log_weight for each in attempts])
            for attempts in self.attempts
        ]

    @property
    def worth(self) -> float:
        """Effective draws of g for each attempt: the least of the prompts' (Σ w)² / (n Σ w²)."""
        worths = []
        for logs in self.log_weights:
            passed = bool(len(logs)) and logs.max() > -np.inf
            worths.append(effective_sample_size(logs).value / len(logs) if passed else 0.0)
        return min(worths)


DrawAttempts = Callable[[Sequence[PreparedPrompt], Sequence[TokenTwist], int, int], Learned]
"""Draws attempts for each of several prompts with their twists: how many for each, and a seed."""


@dataclass(eq=False)
class TwistedConstraint:
    """A constraint whose progress is followed, and what has been learned about it."""

    states: TokenStates
    counts: SoftCounts
    defaults: Defaults  # what it is drawn with unless the call says otherwise
    title: str = ""
    sizes: tuple[int, ...] = ()  # the attempts of each round of learning
    by_states: int = 0  # the number of rounds with values of states. In the later ones words are written; see ``hits``.
    # the output embeddings of the model that attempts are drawn from, for the tilt; None for no tilt
    embeddings: TokenEmbeddings | None = None
    hits: LearnedHits | None = None  # the word that is written where attempts lead up to it; None for none
    # why texts are drawn in that way, or by the values of states, for reports; "" before it is decided
    decision: str = ""
    writes: bool = False  # whether they are drawn in that way
    # log ψ in nats, ``[tokens + 1, states]``, for a strength of 1; None before it is learned
    values: Values | None = None
    tilt: Values | None = None  # e_x · v in nats, ``[tokens]``; None if there is no tilt, or not yet
    # the rounds of learning that were not cut short by a time limit; their number once nothing is left to learn
    rounds: int = 0
    spent: Spent = field(default_factory=Spent)  # the cost of learning
    origin: str | None = None  # for reports, where the values were read from; None if they were learned here
    earlier: int = 0  # the attempts that values from a file had been learned from
    # the log-weights of the attempts of the last round by states, by prompt
    _by_states: list[Values] = field(default_factory=list, repr=False)
    _data: TiltData = field(default_factory=TiltData, repr=False)
    _learning: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def of(
        cls,
        constraint: Constraint,
        vocabulary: Vocabulary | None,
        model: Any,
        attempts: int | None,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> TwistedConstraint | None:
        """Return the constraint with its automaton, to learn from attempts of a model; None if there is none.

        ``encode`` returns the tokens of a text, to write words where attempts lead up to them; None if attempts cannot
        be taken back.
        """
        if vocabulary is None:
            raise UsageError("Twisted() reads tokens as text, which this tokenizer does not allow; leave it out")
        automaton = automaton_of(constraint)
        if automaton is None:
            return None
        states = TokenStates(automaton, vocabulary)
        defaults = defaults_for(automaton)
        sizes = rounds_of(attempts or defaults.attempts)
        embeddings = TokenEmbeddings.of(model)
        counts = SoftCounts(len(automaton))
        hits = None
        if encode is not None and embeddings is not None:
            hits = LearnedHits.of(constraint, vocabulary, encode)
        by_states = len(sizes)
        if hits is not None:
            sizes += hit_rounds_of(sum(sizes))
        twisted = cls(states, counts, defaults, constraint.title, sizes, by_states, embeddings, hits)
        if hits is not None and len(hits.words) == 1:
            hits.words[0].data = twisted._data  # attempts by states lead up to the same word
        return twisted

    def read(self, path: Path, digest: str, model: Fingerprint) -> None:
        """Take what was learned from a file.

        ``model``: the fingerprint of the model that attempts are drawn from. If the file is for another one, reports
        say so.
        """
        header, self.counts, tilt = read_twist(path, len(self.states.automaton))
        if header.constraint != digest:
            raise UsageError(_OTHER_CONSTRAINT.format(path.name, short(header.title), self.title))
        if header.automaton != automaton_digest(self.states.automaton):
            raise UsageError(_UNLIKE.format(path.name, self.title))
        same = header.model == model.model_dump()
        if same and tilt is not None and self.embeddings is not None:
            tokens = len(self.embeddings.weight)
            if len(tilt) != tokens:
                raise UsageError(_OTHER_VOCABULARY.format(path.name, len(tilt), tokens))
            self.tilt = tilt  # it belongs to the model's tokens
        # As many rows as texts have tokens follow when a call needs them.
        self.values, self.rounds = log_values(self.states.automaton, self.counts, 0), len(self.sizes)
        self.earlier = header.attempts
        self.origin = _READ.format(header.attempts, "" if same else _OTHER_MODEL)

    def write(self, path: Path, digest: str, model: Fingerprint) -> None:
        """Write what was learned to a file; see ``read``."""
        assert self.values is not None
        header = TwistHeader(
            constraint=digest,
            title=self.title,
            automaton=automaton_digest(self.states.automaton),
            model=model.model_dump(),
            attempts=self.earlier + self.spent.attempts,
        )
        write_twist(path, header, self.counts, self.tilt)

    @property
    def learned(self) -> bool:
        """Whether nothing is left to learn."""
        return self.rounds == len(self.sizes)

    @property
    def knows_states(self) -> bool:
        """Whether the values of states are final, whatever is left to learn of where words are written."""
        return self.rounds >= self.by_states

    @property
    def left(self) -> int:
        """The most attempts that it has still to be learned from."""
        return 0 if self.learned else sum(self.sizes[self.rounds :])

    def learn(
        self,
        prompts: Sequence[PreparedPrompt],
        attempts: DrawAttempts,
        left: Callable[[], float | None] = lambda: None,
    ) -> list[Spent]:
        """Learn the values from attempts for some prompts. The first caller learns, and others wait.

        If a time limit cuts that short, the values are those of the attempts so far, and the next call learns on. A
        caller whose timeout is over neither waits nor learns.
        """
        costs = [Spent()] * len(prompts)
        seconds = left()
        if not self._learning.acquire(timeout=-1 if seconds is None else min(max(0.0, seconds), TIMEOUT_MAX)):
            return costs
        try:
            most, states = max(prompt.law.most_new for prompt in prompts), len(self.states.automaton)
            if (most + 1) * states > MOST_VALUES:
                # A mask helps only where some token leads to a state from which no text satisfies the constraint.
                masks = "" if self.states.automaton.live().all() else ", or use Masked()"
                raise UsageError(_TOO_LONG.format(self.title, states, MOST_VALUES // states - 1) + masks)
            # With functions of the user's own, or max_time, no token is taken back. Other calls learn to write words.
            takes_back = all(prompt.law.is_stateless for prompt in prompts)
            last_round = len(self.sizes) if takes_back else self.by_states
            while self.rounds < last_round and ((seconds := left()) is None or seconds > 0):
                count = -(-self.sizes[self.rounds] // len(prompts))
                began = time.monotonic()
                twists: list[Twist | Hits] = [self._learning_twist(each, count * len(prompts)) for each in prompts]
                # After a round that was cut short, the next one draws other attempts.
                learned = attempts(prompts, twists, count, self.spent.attempts)
                if self.rounds < self.by_states:
                    self.counts.close_round()
                    self.values = log_values(self.states.automaton, self.counts, most)
                self._fit(twists, learned)
                share = (time.monotonic() - began) / len(prompts)
                drawn = [spent._replace(seconds=share) for spent in learned.spent]
                costs = [Spent.total(both) for both in zip(costs, drawn, strict=True)]
                self.spent = Spent.total((self.spent, *drawn))
                if sum(spent.attempts for spent in drawn) < count * len(prompts):
                    return costs
                rounds = self.rounds + 1
                if self.hits is not None and rounds == self.by_states:
                    self._by_states = learned.log_weights
                if rounds <= self.by_states and learned.worth >= ENOUGH:
                    rounds = len(self.sizes)
                elif self.hits is not None and rounds == len(self.sizes):
                    self.writes, self.decision = decided(learned.log_weights, self._by_states)
                self.rounds = rounds  # from here on, other calls do not wait
            if self.learned:
                for data in (self._data, *(word.data for word in (self.hits.words if self.hits else ()))):
                    data.attempts.clear()
        finally:
            self._learning.release()
        return costs

    def values_for(self, tokens: int) -> Values | None:
        """Return the values, with rows for up to ``tokens`` tokens left if ``MOST_VALUES`` allows that.

        A later call may allow longer texts than the one that learned. The further rows follow from the same counts,
        once these no longer change; until then the last row stands for them. It does not wait for others that learn.
        None if a timeout was over before anything was learned.
        """
        values, automaton = self.values, self.states.automaton
        if values is None:
            return None
        tokens = min(tokens, MOST_VALUES // len(automaton) - 1)
        if self.knows_states and tokens >= len(values):
            # The values of what a file has may take long to compute for so many tokens.
            most = MOST_PRODUCTS // max(1, sum(row.nnz for row in self.counts.onward.values()))
            if self.origin is not None and tokens > most:
                raise UsageError(_TOO_MUCH.format(self.title, tokens, most))
            self.values = values = log_values(automaton, self.counts, tokens)
        return values

    def _learning_twist(self, prompt: PreparedPrompt, attempts: int) -> Twist | Hits:
        """Return the twist of a prompt in the next of the rounds of ``attempts`` attempts."""
        if self.rounds >= self.by_states:
            assert self.hits is not None
            return self.hits.twist(prompt.law, records=StepRecords(attempts, prompt.law.most_new))
        twist = Twist(self.states, self.values, prompt.law.end_ids, prompt.law.most_new, self.counts)
        if self.rounds < 2:
            return twist
        records = None if self.embeddings is None else StepRecords(attempts, prompt.law.most_new)
        strength, share, _ = self.defaults
        return replace(twist, strength=strength, model_share=share, tilt=self.tilt, records=records)

    def _fit(self, twists: Sequence[Twist | Hits], learned: Learned) -> None:
        """Fit the tilts to the attempts so far."""
        if self.embeddings is None:
            return
        tilt = None
        if self.rounds < self.by_states:
            for twist, attempts in zip(twists, learned.attempts, strict=True):
                if isinstance(twist, Twist) and twist.records is not None:
                    self._data.add([attempt.draw.token_ids for attempt in attempts], twist.records)
            tilt = self._data.fitted(self.embeddings)
            self.tilt = tilt if tilt.any() else None
        if self.hits is not None and self.rounds + 1 >= self.by_states:
            tilt = tilt if len(self.hits.words) == 1 else None
            self.hits.learn([twist for twist in twists if isinstance(twist, Hits)], self.embeddings, tilt)


@dataclass(frozen=True)
class Twists:
    """The twists of one call."""

    constraint: TwistedConstraint  # the constraint with its values
    strength: float | None  # the power of ψ; None for the default
    model_share: float | None = None  # the share of the model itself in each step, at most the default; None for that

    def notes(self, prompt: PreparedPrompt) -> tuple[str, ...]:
        """Return notes for the report of a prompt."""
        spent = self.constraint.spent
        learned = self.constraint.origin or (_LEARNED.format(*spent) if spent.attempts else _NOTHING_LEARNED)
        decision = self.constraint.decision
        return (learned, decision) if decision and self._may_write(prompt) else (learned,)

    def twist(self, prompt: PreparedPrompt, draw_of: Callable[[AttemptState], Draw]) -> Twist | Hits:
        """Return the twist of a prompt, whose attempts ``draw_of`` decodes."""
        hits = self.constraint.hits
        if hits is not None and self.constraint.writes and self._may_write(prompt):
            return hits.twist(prompt.law, draw_of)
        most, defaults = prompt.law.most_new, self.constraint.defaults
        share = defaults.model_share
        return Twist(
            self.constraint.states,
            self.constraint.values_for(most),
            prompt.law.end_ids,
            most,
            strength=defaults.strength if self.strength is None else self.strength,
            tilt=self.constraint.tilt,
            model_share=share if self.model_share is None else min(self.model_share, share),
            least_share=LEAST_SHARE,
            # Nobody here has seen what a file was learned from, so reports allow for what it may hide.
            most_weight=math.inf if self.constraint.origin is None else 1 / LEAST_SHARE,
        )

    def _may_write(self, prompt: PreparedPrompt) -> bool:
        """Return whether words may be written for a prompt, if that was decided."""
        return self.strength is None and self.model_share is None and prompt.law.is_stateless
