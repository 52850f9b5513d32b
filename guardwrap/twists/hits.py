"""Texts with a rare word, drawn from paths that need not have it: the word is written where a path leads up to it.

An attempt draws a whole path x from a mixture of tilted models, whether or not the word occurs. Before each token x_t
it notes whether the word could be written now, so that this is its first occurrence: h(t, s) is a guess of a(the tokens
s of the word, then no letter | x_1 ... x_{t-1}), and r(t) = a/mixture of the tokens before. When the path ends, one
(t, s) is chosen in proportion to its term of W = Σ r(t) h(t, s). The tokens from x_t on are taken back, s is written,
and the model itself draws the rest. The weight of the text is W a(s, then no letter)/h(t, s). On paths and choices
together, attempts with these weights have the distribution g: what was taken back is an auxiliary variable, as in
pseudo-marginal methods (Andrieu and Roberts 2009). So E W = Z, and nearly every attempt counts, where only one in 1/Z
has the word by itself.

A path that has the word by itself ends there. If its tokens are not listed, it has the term r, so nothing is lost that
the model can write. r is by the whole mixture (the balance heuristic: Veach and Guibas 1995), so a beginning that one
component misses is caught by another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.engine.scheduling.backend import AttemptState, TokenIds, keep_state, last_state
from guardwrap.metrics import log_beta_for_tvd, qrs_acceptance
from guardwrap.metrics.weights import kong, scaled
from guardwrap.models.vocabulary import Vocabulary
from guardwrap.outcomes import Draw
from guardwrap.support.threads import cached_property
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import TokenStates, Values
from guardwrap.twists.tilt import StepRecords, TiltData, TokenEmbeddings, step_of
from guardwrap.twists.twist import NEVER

MODEL_SHARE = 0.5
"""The share of the model itself in the mixture, so that no beginning has a weight above 1/``MODEL_SHARE``."""

TOPICS = 3
"""The number of clusters of beginnings that get a tilt of their own."""

TVD = 0.1
"""The distance from g at which the attempts for a text are compared."""

LEAST_DRAWS = 5.0
"""The fewest effective draws of g by which words are written at all, as fewer weights say nothing of the cost."""

MARGIN = 3.0
"""How many times as many attempts must seem to be needed where words are written, so that attempts go by states.

Both estimates are from a few hundred attempts, which miss the same tail: by exact draws of g a text takes about three
times as many. For ten words writing then took .59 of the attempts by states, and a comparison without a margin chose
states for two to four of them (``benchmarks/rare.py written``).
"""

_WRITTEN = (
    "words are written where attempts lead up to them: {0:.3g} attempts per text at a TVD of {2}, and {1:.3g} by states"
)
_BY_STATES = "attempts go by states: {1:.3g} attempts per text at a TVD of {2}, and {0:.3g} if words were written"
_AS_LEARNED = ", by the few attempts of learning, which miss what is rare"

RULED_OUT = "a word that the settings rule out"
"""The cause of rejection of attempts that cannot write the word, as truncation left out a token of it."""

_REST = math.log(0.3), math.log(0.8)
"""The logarithms of the guesses for a further token of the word, and for what is no letter after it."""


def word_rule(constraint: Constraint) -> Keyword | None:
    """Return the only part of a constraint that requires one of some words to occur; None without one."""
    parts = constraint.of if isinstance(constraint, All) else (constraint,)
    words = [each for each in parts if isinstance(each, Keyword) and each.match == "any" and each.least == 1]
    if len(words) != 1 or words[0].max_count is not None or words[0].on != "completion":
        return None
    return words[0]


def spellings_of(rule: Keyword, encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return how a tokenizer writes the words of a rule, as they are and capitalized, after some other text.

    None of them ends with another one: a text with such a word would be written in two ways, and drawn too often.
    """
    spellings: dict[tuple[int, ...], None] = {}
    for word in rule.words:
        for form in (word,) if rule.case_sensitive else (word, word.capitalize()):
            for before, text in (("", form), ("a", f"a {form}"), ('"', f'"{form}')):
                context, ids = tuple(encode(before)) if before else (), tuple(encode(text))
                if ids[: len(context)] == context and len(ids) > len(context):
                    spellings[ids[len(context) :]] = None
    return tuple(
        ids for ids in spellings if not any(ids != other and ids[-len(other) :] == other for other in spellings)
    )


def attempts_a_text(log_weights: Values, tvd: float = TVD) -> float:
    """Estimate the attempts that QRS takes for a text at a distance from g; infinity if none passes."""
    if log_weights.max() == -np.inf:
        return math.inf
    return 1 / qrs_acceptance(log_weights, log_beta_for_tvd(log_weights, tvd)).value


def decided(written: Sequence[Values], by_states: Sequence[Values]) -> tuple[bool, str]:
    """Return whether words are written, and not values of states followed, and the reason in words.

    Both have log-weights of attempts by prompt that their proposal was not learned from.
    """
    written_cost, states_cost = (sum(map(attempts_a_text, way)) / len(way) for way in (written, by_states))
    draws = sum(kong(scaled(logs)[0]) for logs in written if logs.max() > -np.inf)
    writes = draws >= LEAST_DRAWS and written_cost < MARGIN * states_cost
    return writes, (_WRITTEN if writes else _BY_STATES).format(written_cost, states_cost, TVD) + _AS_LEARNED


@dataclass(frozen=True, eq=False)
class Mixture:
    """Tilted models: component c draws next tokens x in proportion to a(x | prefix) exp(tilts[c, x])."""

    log_shares: Values  # ``[components]``, in nats
    tilts: Values  # ``[components, tokens]``, in nats

    @cached_property
    def gains(self) -> npt.NDArray[np.float32]:
        """The factors exp(tilts), ``[components, tokens]``, in the precision of the model's scores."""
        return np.exp(self.tilts.astype(np.float32))

    @classmethod
    def of(cls, data: TiltData, embeddings: TokenEmbeddings, whole: Values) -> Mixture:
        """Fit a tilt to each cluster of beginnings, beside ``whole``, that of all; each is also used at half length."""
        fits = [(0.35, whole)] + [(share, part.fitted(embeddings)) for share, part in data.topics(embeddings, TOPICS)]
        fits = [(share, tilt) for share, tilt in fits if tilt.any()]
        shares, tilts = [MODEL_SHARE], [np.zeros(len(whole))]
        for share, tilt in fits:
            shares += [share / 2, share / 2]
            tilts += [0.5 * tilt, tilt]
        relative = np.array(shares)
        relative[1:] *= (1 - MODEL_SHARE) / max(relative[1:].sum(), 1e-300)
        return cls(np.log(relative / relative.sum()), np.stack(tilts))


class _Beginning(NamedTuple):
    """The first tokens of a path."""

    state: int  # the automaton's
    begins: bool  # whether no text has been written
    log_model: float  # log a of the tokens, in nats


class _Place(NamedTuple):
    """Where the word could be written."""

    before: int  # how many tokens come before
    spelling: int  # -1 if the path has the word by itself
    log_first: float  # log a of its first token
    log_term: float  # log r(t) h(t, s), in nats


@dataclass(eq=False)
class _Path:
    """An attempt's path, and what is left to write."""

    log_parts: Values  # log of each component's share times its density relative to a, of the tokens that were seen
    log_norms: Values  # log Σ a(x) exp(tilt of x) of the newest step, ``[components]``
    beginnings: list[_Beginning]
    places: list[_Place] = field(default_factory=list)
    next_places: list[_Place] = field(default_factory=list)  # those before the next token, until it is drawn
    rest: tuple[int, ...] | None = None  # the tokens to write; None while the path is drawn
    edge: bool = False  # whether what follows them must not belong to the word
    stuck: bool = False  # whether that cannot be drawn
    log_unwritten: float = 0.0  # the log-weight of what has been written, if the rest were certain


@dataclass(eq=False)
class Hits:
    """The twist of one prompt that draws paths and writes the word; see the module."""

    states: TokenStates  # of the word alone, whatever other rules say
    end_ids: Collection[int]
    most: int  # the most new tokens
    whole: bool  # whether the word must end where it does
    spellings: Sequence[tuple[int, ...]]
    log_rests: Sequence[float]  # the guess of log a(tokens after the first, then no letter), for each spelling
    mixture: Mixture
    passes: Callable[[AttemptState], bool] | None = None  # whether a whole text has the word, as the rule itself says
    records: StepRecords | None = None  # where to keep distributions to learn tilts from; None to keep nothing
    paths: list[tuple[int, ...]] = field(default_factory=list)  # with ``records``, the paths before they were turned
    # with ``records``, of what was written: the spelling, log W, and log a(tokens after the first, then no letter)
    written: list[tuple[int, float, float]] = field(default_factory=list)

    learns: ClassVar[bool] = True  # each distribution must be seen, and not be taken from a cache
    most_weight: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        self._safe = self.states.automaton.safe()
        self._ends = np.array(sorted(self.end_ids), dtype=np.int64)
        self._possible: dict[tuple[int, bool], list[int]] = {}

    def log_factors(
        self,
        token_ids: Sequence[int],
        tokens: npt.NDArray[np.int64] | None,
        log_probabilities: Values,
        log_weight: float = 0.0,
    ) -> Values:
        """Return log a'/a of the possible next tokens in nats, up to a constant; see ``TokenTwist``.

        That of the mixture until the path ends. Then only the word can be drawn, then only what ends it, and then
        everything, as by the model itself.
        """
        path = self._path(token_ids)
        if path.rest is None:
            return self._mixed(path, token_ids, tokens, log_probabilities, log_weight)
        columns = np.arange(len(log_probabilities)) if tokens is None else tokens
        if path.rest:
            allowed = columns == path.rest[0]
        elif path.edge:
            state, begins, _ = path.beginnings[-1]
            allowed = self._safe[self.states.ahead(state, begins, tokens, len(columns))]
            allowed[np.isin(columns, self._ends)] = self.states.automaton.ended[state]
        else:
            return np.zeros(len(columns))
        path.stuck = not (allowed & (log_probabilities > -np.inf)).any()
        return np.where(allowed, 0.0, NEVER)

    def turned(self, attempt: AttemptState) -> bool:
        """Follow an attempt after each token; when its path ends, write the word. See ``TokenTwist.turned``."""
        path, ids = self._path(attempt.token_ids), attempt.token_ids
        if attempt.status not in ("running", "finished", "cut", "aborted"):
            return False
        if path.rest is None:
            path.log_parts += self.mixture.tilts[:, ids[-1]] - path.log_norms
            path.places += path.next_places
        state, begins, _ = path.beginnings[-1]
        ended = ids[-1] in self.end_ids
        if not ended:
            state, begins = self.states.step(state, begins, ids[-1])
        path.beginnings.append(_Beginning(state, begins, attempt.log_probability + attempt.log_weight))
        if path.rest is not None:
            self._wrote(path, attempt)
            return False
        whole = attempt.status in ("finished", "cut")
        if whole:
            automaton = self.states.automaton
            passing = automaton.ended if attempt.status == "finished" else automaton.cut
            itself = bool(passing[state]) or (self.passes is not None and self.passes(attempt))
        else:
            itself = attempt.status == "running" and bool(self._safe[state])
        if not itself and attempt.status == "running":
            return False
        if itself and not any(self._writes(place, ids, ended or self._safe[state]) for place in path.places):
            path.places.append(_Place(len(ids), -1, 0.0, attempt.log_weight))
        if self.records is not None:
            self.paths.append(tuple(ids))
        return bool(path.places) and self._turn(path, attempt)

    def _turn(self, path: _Path, attempt: AttemptState) -> bool:
        """Choose a place and write the first token of the word there."""
        logs = np.array([place.log_term for place in path.places])
        log_sum = float(logsumexp(logs))
        sums = np.cumsum(np.exp(logs - log_sum))
        chosen = min(int(np.searchsorted(sums, next(attempt.stream) * sums[-1], side="right")), len(sums) - 1)
        place = path.places[chosen]
        if place.spelling < 0:
            path.rest = ()
            attempt.log_probability += attempt.log_weight - log_sum
            attempt.log_weight = log_sum
            return False
        path.rest, path.edge = self.spellings[place.spelling], self.whole
        path.places = [place._replace(log_term=log_sum)]
        attempt.log_weight = log_sum - self.log_rests[place.spelling]
        path.log_unwritten = attempt.log_weight
        # log a' is such that the weight is a/a', as it is for other attempts.
        log_model = path.beginnings[place.before].log_model + place.log_first
        attempt.log_probability = log_model - attempt.log_weight
        attempt.rewound = len(attempt.token_ids) - 1 > place.before
        del path.beginnings[place.before + 1 :]
        attempt.token_ids = TokenIds([*attempt.token_ids[: place.before], path.rest[0]])
        keep_state(attempt.token_ids, self, path)
        attempt.status, attempt.blame = "running", None
        return True

    def _wrote(self, path: _Path, attempt: AttemptState) -> None:
        """Follow what is written after the path has ended."""
        assert path.rest is not None
        if not path.rest and not path.edge:
            return
        if path.rest:
            path.rest = path.rest[1:]
        else:
            path.edge = False
        over = attempt.status in ("finished", "cut")
        if path.stuck or (over and path.rest):
            attempt.status, attempt.blame = "dead_end", RULED_OUT
        elif not path.rest and (over or not path.edge):
            place = path.places[0]
            path.edge = False
            if self.records is not None:
                self.written.append((place.spelling, place.log_term, attempt.log_weight - path.log_unwritten))

    def _path(self, token_ids: Sequence[int]) -> _Path:
        kept = last_state(token_ids, self)
        if kept is not None:
            path: _Path = kept[1]
            return path
        path = _Path(self.mixture.log_shares.copy(), np.zeros(len(self.mixture.log_shares)), [_Beginning(0, True, 0.0)])
        keep_state(token_ids, self, path)
        return path

    def _mixed(
        self,
        path: _Path,
        token_ids: Sequence[int],
        tokens: npt.NDArray[np.int64] | None,
        log_probabilities: Values,
        log_weight: float,
    ) -> Values:
        """Return the factors of the mixture, and note where the word could be written.

        An earlier call's places for the same tokens are replaced; ``turned`` adds them once a token is drawn.
        """
        gains = self.mixture.gains[:, : len(log_probabilities)] if tokens is None else self.mixture.gains[:, tokens]
        norms = gains @ np.exp(log_probabilities.astype(np.float32))
        path.log_norms = np.log(norms.astype(np.float64))
        posterior = np.exp(path.log_parts - logsumexp(path.log_parts)) / norms
        factors: Values = np.log(posterior.astype(np.float32) @ gains).astype(np.float64)
        state, begins, _ = path.beginnings[-1]
        path.next_places = []
        worths = np.zeros(len(log_probabilities)) if self.records is not None else None
        for spelling in self._first_here(state, begins):
            ids = self.spellings[spelling]
            column = ids[0] if tokens is None else next(iter(np.flatnonzero(tokens == ids[0])), None)
            if column is None or len(token_ids) + len(ids) > self.most or log_probabilities[column] == -np.inf:
                continue
            log_first = float(log_probabilities[column])
            log_here = log_first + self.log_rests[spelling]
            path.next_places.append(_Place(len(token_ids), spelling, log_first, log_weight + log_here))
            if worths is not None:
                worths[column] += math.exp(log_here)
        if self.records is not None and worths is not None:
            weight_of = partial(self._log_weight, posterior)
            kept = self.records.kept
            step = step_of(kept, tokens, log_probabilities, factors, worths, weight_of)
            self.records.steps[tuple(token_ids)] = step
        return factors

    def _log_weight(self, posterior: Values, token: int) -> float:
        """Return log a(x)/a'(x) in nats of a token x of a path."""
        return -float(np.log(posterior @ self.mixture.gains[:, token]))

    def _first_here(self, state: int, begins: bool) -> list[int]:
        """Return the spellings that would be the first occurrence of the word if they were written in a state."""
        key = state, begins
        if key not in self._possible:
            self._possible[key] = [
                number for number, ids in enumerate(self.spellings) if self._is_first(state, begins, ids)
            ]
        return self._possible[key]

    def _is_first(self, state: int, begins: bool, ids: tuple[int, ...]) -> bool:
        automaton = self.states.automaton
        for token in ids:
            if self._safe[state]:
                return False
            state, begins = self.states.step(state, begins, token)
        if not self.whole:
            return bool(self._safe[state])
        return bool(automaton.ended[state] and automaton.cut[state] and not self._safe[state])

    def _writes(self, place: _Place, ids: Sequence[int], edged: bool) -> bool:
        """Return whether the text up to its first occurrence is what writing the word at a place gives.

        ``edged``: whether its last token is what follows the word.
        """
        spelling = self.spellings[place.spelling]
        end = place.before + len(spelling)
        return end == len(ids) - (self.whole and edged) and tuple(ids[place.before : end]) == spelling


@dataclass(eq=False)
class LearnedHits:
    """What is known of a word for all prompts."""

    rule: Keyword
    states: TokenStates  # of the rule alone
    spellings: tuple[tuple[int, ...], ...]
    log_rests: list[float] = field(init=False)  # see ``Hits``
    mixture: Mixture | None = None  # None before it is learned
    _written: list[tuple[int, float, float]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        edge = _REST[1] * self.rule.whole_words
        self.log_rests = [_REST[0] * (len(ids) - 1) + edge for ids in self.spellings]

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary, encode: Callable[[str], Sequence[int]]) -> Self | None:
        """Return the word that a constraint requires; None if it requires none, or one that no automaton follows."""
        rule = word_rule(constraint)
        automaton = None if rule is None else automaton_of(rule)
        if rule is None or automaton is None:
            return None
        spellings = spellings_of(rule, encode)
        return cls(rule, TokenStates(automaton, vocabulary), spellings) if spellings else None

    def twist(
        self, law: Any, draw_of: Callable[[AttemptState], Draw] | None = None, records: StepRecords | None = None
    ) -> Hits:
        """Return the twist of a prompt, whose attempts ``draw_of`` decodes; None while it learns."""
        assert self.mixture is not None
        passes = None if draw_of is None else lambda attempt: self.rule.check([draw_of(attempt)])[0]
        whole, spellings, log_rests = self.rule.whole_words, self.spellings, self.log_rests
        mixture = self.mixture
        return Hits(self.states, law.end_ids, law.most_new, whole, spellings, log_rests, mixture, passes, records)

    def learn_rests(self, twists: Sequence[Hits]) -> None:
        """Learn how likely the words are once their first token is written, from where they were written so far.

        Places are chosen in proportion to the guess, so the mean of what it misses, weighted by W, is the mean under a.
        """
        self._written += [each for twist in twists for each in twist.written]
        top = max((log_sum for _, log_sum, _ in self._written), default=0.0)
        for number, before in enumerate(self.log_rests):
            its = [(np.exp(log_sum - top), rest) for spelling, log_sum, rest in self._written if spelling == number]
            weights, rests = np.array([weight for weight, _ in its]), np.exp([rest for _, rest in its])
            # The guess counts as much as one of five attempts of mean weight.
            prior = 0.2 * float(weights.mean()) if its else 1.0
            mean = (weights @ rests + prior * math.exp(before)) / (weights.sum() + prior)
            self.log_rests[number] = math.log(mean)
