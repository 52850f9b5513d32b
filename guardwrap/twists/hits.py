"""Texts with rare words, drawn from paths that need not have them: words are written where a path leads up to them.

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

Where several words must occur, each in turn, in any order, x is a path up to whichever comes first, from there another
path leads up to the next one, and so on: E W_1 W_2 = Z, as each W has the conditional mean of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
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
from guardwrap.twists.progress_of import automaton_of, read_as
from guardwrap.twists.state_values import TokenStates, Values
from guardwrap.twists.tilt import StepRecords, TiltData, TokenEmbeddings, step_of

MODEL_SHARE = 0.5
"""The share of the model itself in the mixture, so that no beginning has a weight above 1/``MODEL_SHARE``."""

TOPICS = 3
"""The number of clusters of beginnings that get a tilt of their own."""

MOST_WORDS = 4
"""The most words that are written in turn: each has states of its own, and half of its paths are the model's."""

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

_WRITTEN = "words are written where attempts lead up to them; attempts per text at a TVD of {0}: {1}, and by states {2}"
_BY_STATES = "attempts go by states; attempts per text at a TVD of {0}: {2}, and if words were written {1}"
_AS_LEARNED = ", by the few attempts of learning, which miss what is rare"
_TOO_FEW = "attempts go by states: those of learning that wrote words are worth {:.2g} draws of g, too few to compare"

NEVER = -1e3
"""The factor of tokens that must not be drawn, in nats."""

RULED_OUT = "a word that the settings rule out"
"""The cause of rejection of attempts that cannot write the word, as truncation left out a token of it."""

_REST = math.log(0.3), math.log(0.8)
"""The logarithms of the guesses for a further token of the word, and for what is no letter after it."""


def word_rules(constraint: Constraint) -> list[Keyword]:
    """Return rules of which a constraint requires each, and which require one of some words to occur."""
    rules = []
    for part in constraint.of if isinstance(constraint, All) else (constraint,):
        if isinstance(part, Keyword) and part.least == 1 and part.max_count is None and part.on == "completion":
            singly = part.match == "all"
            rules += [replace(part, words=(word,), match="any") for word in part.words] if singly else [part]
    return [rule for rule in rules if rule.match == "any"]


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
    draws = sum(kong(scaled(logs)[0]) for logs in written if logs.max() > -np.inf)
    if draws < LEAST_DRAWS:
        return False, _TOO_FEW.format(draws)
    costs = [sum(map(attempts_a_text, way)) / len(way) for way in (written, by_states)]
    writes = costs[0] < MARGIN * costs[1]
    shown = (f"{cost:.3g}" if math.isfinite(cost) else "unknown, as none passed" for cost in costs)
    return writes, (_WRITTEN if writes else _BY_STATES).format(TVD, *shown) + _AS_LEARNED


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
    def of(cls, fits: Sequence[tuple[float, Values]], tokens: int) -> Mixture:
        """Return the model itself beside tilts, ``[tokens]``, with their shares; each is also used at half length."""
        shares, tilts = [MODEL_SHARE], [np.zeros(tokens)]
        for share, tilt in fits:
            shares += [share / 2, share / 2]
            tilts += [0.5 * tilt, tilt]
        relative = np.array(shares)
        relative[1:] *= (1 - MODEL_SHARE) / max(relative[1:].sum(), 1e-300)
        return cls(np.log(relative / relative.sum()), np.stack(tilts))


@dataclass(eq=False)
class LearnedWord:
    """A word that must occur: how it is spelled, and what is known for all prompts."""

    rule: Keyword  # requires the word, or one of several, to occur
    states: TokenStates  # of the rule alone
    spellings: tuple[tuple[int, ...], ...]
    log_rests: list[float] = field(init=False)  # guesses of log a(tokens after the first, then no letter), by spelling
    fits: list[tuple[float, Values]] = field(default_factory=list)  # tilts towards it, with their shares
    data: TiltData = field(default_factory=TiltData, repr=False)  # what the tilts are fitted to
    _written: list[tuple[int, float, float]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        edge = _REST[1] * self.rule.whole_words
        self.log_rests = [_REST[0] * (len(ids) - 1) + edge for ids in self.spellings]
        self.safe = self.states.automaton.safe()

    def ends_in(self, state: int) -> bool:
        """Return whether a text that ends in a state has the word."""
        return bool(self.states.automaton.ended[state] and self.states.automaton.cut[state])

    def learn(self, number: int, twists: Sequence[Hits], embeddings: TokenEmbeddings, tilt: Values | None) -> None:
        """Learn from what was drawn since the last time, as the word of some number; ``tilt``: the fit to all data.

        How likely the word is once its first token is written: places are chosen in proportion to the guess, so the
        mean of what it misses, weighted by W, is the mean under a. And tilts to all beginnings and to clusters of them.
        """
        self._written += [its[1:] for twist in twists for its in twist.written if its[0] == number]
        top = max((log_sum for _, log_sum, _ in self._written), default=0.0)
        for spelling, before in enumerate(self.log_rests):
            its = [(np.exp(log_sum - top), rest) for other, log_sum, rest in self._written if other == spelling]
            weights, rests = np.array([weight for weight, _ in its]), np.exp([rest for _, rest in its])
            # The guess counts as much as one of five attempts of mean weight.
            prior = 0.2 * float(weights.mean()) if its else 1.0
            mean = (weights @ rests + prior * math.exp(before)) / (weights.sum() + prior)
            self.log_rests[spelling] = math.log(mean)
        for twist in twists:
            paths = [(ids, start) for ids, start, missing in twist.paths if number in missing]
            self.data.add([ids for ids, _ in paths], twist.records[number], [start for _, start in paths])
        fits = [(0.35, self.data.fitted(embeddings) if tilt is None else tilt)]
        fits += [(share, part.fitted(embeddings)) for share, part in self.data.topics(embeddings, TOPICS)]
        self.fits = [(share, tilt) for share, tilt in fits if tilt.any()]


class _Beginning(NamedTuple):
    """The first tokens of a text."""

    states: tuple[int, ...]  # those of the words' automata
    begins: bool  # whether no text has been written
    log_model: float  # log a of the tokens, in nats


class _Place(NamedTuple):
    """Where a word could be written."""

    before: int  # how many tokens come before
    word: int
    spelling: int  # -1 if the path has a word by itself
    log_first: float  # log a of its first token
    log_guess: float  # log of the guess of a(the other tokens and all that must follow)
    log_term: float  # log r(t) h(t, s), in nats


@dataclass(eq=False)
class _Path:
    """An attempt's path, and what is left to write."""

    beginnings: list[_Beginning]
    missing: tuple[int, ...]  # the words of which the path leads up to one
    mixture: Mixture
    start: int = field(init=False)  # how many tokens come before the path
    log_parts: Values = field(init=False)  # log of each component's share times its density relative to a
    log_norms: Values = field(init=False)  # log Σ a(x) exp(tilt of x) of the newest step, ``[components]``
    places: list[_Place] = field(default_factory=list)
    next_places: list[_Place] = field(default_factory=list)  # those before the next token, until it is drawn
    rest: tuple[int, ...] | None = None  # the tokens to write; None while the path is drawn
    edge: bool = False  # whether what follows them must not belong to the word
    stuck: bool = False  # whether that cannot be drawn
    log_unwritten: float = 0.0  # the log-weight of what has been written, if the rest were certain

    def __post_init__(self) -> None:
        self.start = len(self.beginnings) - 1
        self.log_parts, self.log_norms = self.mixture.log_shares.copy(), np.zeros(len(self.mixture.log_shares))


@dataclass(eq=False)
class Hits:
    """The twist of one prompt that draws paths and writes the words; see the module."""

    learned: LearnedHits
    end_ids: Collection[int]
    most: int  # the most new tokens
    draw_of: Callable[[AttemptState], Draw] | None = None  # decodes a whole text, for rules to say if it has their word
    # where to keep distributions to learn tilts from, those for each word; empty to keep nothing
    records: Sequence[StepRecords] = ()
    # with ``records``, the paths before they were turned, how many tokens come before them, and the words they lead to
    paths: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = field(default_factory=list)
    # with ``records``, of what was written: word, spelling, log W, and log a(tokens after the first, then no letter)
    written: list[tuple[int, int, float, float]] = field(default_factory=list)

    learns: ClassVar[bool] = True  # each distribution must be seen, and not be taken from a cache
    most_weight: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        self.words = self.learned.words
        self._ends = np.array(sorted(self.end_ids), dtype=np.int64)
        self._possible: dict[tuple[Any, ...], list[tuple[int, int]]] = {}

    def log_factors(
        self,
        token_ids: Sequence[int],
        tokens: npt.NDArray[np.int64] | None,
        log_probabilities: Values,
        log_weight: float = 0.0,
    ) -> Values:
        """Return log a'/a of the possible next tokens in nats, up to a constant; see ``TokenTwist``.

        That of the mixture until the path ends. Then only the word can be drawn, then only what ends it, and then,
        unless another word is missing, everything, as by the model itself.
        """
        path = self._path(token_ids)
        if path.rest is None:
            return self._mixed(path, token_ids, tokens, log_probabilities, log_weight)
        columns = np.arange(len(log_probabilities)) if tokens is None else tokens
        if path.rest:
            allowed = columns == path.rest[0]
        elif path.edge:
            word = self.words[path.places[0].word]
            states, begins, _ = path.beginnings[-1]
            state = states[path.places[0].word]
            allowed = word.safe[word.states.ahead(state, begins, tokens, len(columns))]
            allowed[np.isin(columns, self._ends)] = word.states.automaton.ended[state]
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
            path.log_parts += path.mixture.tilts[:, ids[-1]] - path.log_norms
            path.places += path.next_places
        states, begins, _ = path.beginnings[-1]
        ended = ids[-1] in self.end_ids
        if not ended:
            states, begins = self._step(states, begins, ids[-1])
        path.beginnings.append(_Beginning(states, begins, attempt.log_probability + attempt.log_weight))
        if path.rest is not None:
            self._wrote(path, attempt)
            return False
        if attempt.status in ("finished", "cut"):
            itself = any(self._passes(number, states[number], attempt) for number in path.missing)
        else:
            itself = attempt.status == "running" and len(self._missing(path.missing, states)) < len(path.missing)
        if not itself and attempt.status == "running":
            return False
        if itself and not any(self._writes(place, ids, ended, states) for place in path.places):
            path.places.append(_Place(len(ids), -1, -1, 0.0, 0.0, attempt.log_weight))
        if self.records:
            self.paths.append((tuple(ids), path.start, path.missing))
        return bool(path.places) and self._turn(path, attempt)

    def _turn(self, path: _Path, attempt: AttemptState) -> bool:
        """Choose a place and write the first token of the word there."""
        logs = np.array([place.log_term for place in path.places])
        log_sum = float(logsumexp(logs))
        sums = np.cumsum(np.exp(logs - log_sum))
        chosen = min(int(np.searchsorted(sums, next(attempt.stream) * sums[-1], side="right")), len(sums) - 1)
        place = path.places[chosen]
        if place.spelling < 0:
            attempt.log_probability += attempt.log_weight - log_sum
            attempt.log_weight = log_sum
            self._go_on(path, attempt)
            return False
        word = self.words[place.word]
        path.rest, path.edge = word.spellings[place.spelling], word.rule.whole_words
        path.places = [place._replace(log_term=log_sum)]
        attempt.log_weight = log_sum - place.log_guess
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
            if self.records:
                rest = attempt.log_weight - path.log_unwritten
                self.written.append((place.word, place.spelling, place.log_term, rest))
            self._go_on(path, attempt)

    def _go_on(self, path: _Path, attempt: AttemptState) -> None:
        """Lead up to the next word, or let the model write the rest of the text."""
        path.rest, path.edge = (), False
        missing = self._missing(path.missing, path.beginnings[-1].states)
        if missing and attempt.status == "running":
            keep_state(attempt.token_ids, self, _Path(path.beginnings, missing, self.learned.mixture_for(missing)))

    def _path(self, token_ids: Sequence[int]) -> _Path:
        kept = last_state(token_ids, self)
        if kept is not None:
            path: _Path = kept[1]
            return path
        every = tuple(range(len(self.words)))
        path = _Path([_Beginning((0,) * len(every), True, 0.0)], every, self.learned.mixture_for(every))
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
        """Return the factors of the mixture, and note where words could be written.

        An earlier call's places for the same tokens are replaced; ``turned`` adds them once a token is drawn.
        """
        gains = path.mixture.gains[:, : len(log_probabilities)] if tokens is None else path.mixture.gains[:, tokens]
        norms = gains @ np.exp(log_probabilities.astype(np.float32))
        path.log_norms = np.log(norms.astype(np.float64))
        posterior = np.exp(path.log_parts - logsumexp(path.log_parts)) / norms
        factors: Values = np.log(posterior.astype(np.float32) @ gains).astype(np.float64)
        states, begins, _ = path.beginnings[-1]
        path.next_places = []
        worths = np.zeros((len(self.records), len(log_probabilities)))
        for number, spelling in self._first_here(states, begins, path.missing):
            word = self.words[number]
            ids = word.spellings[spelling]
            column = ids[0] if tokens is None else next(iter(np.flatnonzero(tokens == ids[0])), None)
            if column is None or len(token_ids) + len(ids) > self.most or log_probabilities[column] == -np.inf:
                continue
            log_first, log_rest = float(log_probabilities[column]), word.log_rests[spelling]
            # The fewer tokens are left, the less probable are the words that are missing then.
            left = max(self.most - len(token_ids) - len(ids), 0.5) / self.most
            log_guess = log_rest + (len(path.missing) - 1) * math.log(left)
            log_term = log_weight + (log_first + log_guess)
            path.next_places.append(_Place(len(token_ids), number, spelling, log_first, log_guess, log_term))
            if self.records:
                worths[number, column] += math.exp(log_first + log_rest)
        if self.records:
            weight_of = partial(_log_weight, path.mixture, tuple(posterior.tolist()))
            step = step_of(self.records[0].kept, tokens, log_probabilities, factors, worths.sum(axis=0), weight_of)
            for records, its in zip(self.records, worths, strict=True):
                leaps = np.flatnonzero(its)
                its_tokens = leaps if tokens is None else tokens[leaps]
                records.steps[tuple(token_ids)] = replace(step, leaps=its_tokens.astype(np.int32), worths=its[leaps])
        return factors

    def _step(self, states: tuple[int, ...], begins: bool, token: int) -> tuple[tuple[int, ...], bool]:
        """Return the states after one more token, and whether no text has been written yet."""
        after = [word.states.step(state, begins, token) for word, state in zip(self.words, states, strict=True)]
        return tuple(state for state, _ in after), after[0][1]

    def _missing(self, words: Collection[int], states: tuple[int, ...]) -> tuple[int, ...]:
        """Return which of some words have not occurred for certain."""
        return tuple(number for number in words if not self.words[number].safe[states[number]])

    def _passes(self, number: int, state: int, attempt: AttemptState) -> bool:
        """Return whether a whole text has a word."""
        word = self.words[number]
        passing = word.states.automaton.ended if attempt.status == "finished" else word.states.automaton.cut
        return bool(passing[state]) or (self.draw_of is not None and word.rule.check([self.draw_of(attempt)])[0])

    def _first_here(self, states: tuple[int, ...], begins: bool, missing: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return the words and spellings that would be the first to occur if they were written in some states."""
        key = states, begins, missing
        if key not in self._possible:
            self._possible[key] = [
                (number, spelling)
                for number in missing
                for spelling, ids in enumerate(self.words[number].spellings)
                if self._is_first(states, begins, missing, number, ids)
            ]
        return self._possible[key]

    def _is_first(
        self, states: tuple[int, ...], begins: bool, missing: tuple[int, ...], number: int, ids: tuple[int, ...]
    ) -> bool:
        for token in ids:
            if len(self._missing(missing, states)) < len(missing):
                return False
            states, begins = self._step(states, begins, token)
        word, others = self.words[number], [other for other in missing if other != number]
        if len(self._missing(others, states)) < len(others):
            return False  # otherwise a text might be written in two ways, and drawn too often
        if not word.rule.whole_words:
            return bool(word.safe[states[number]])
        if any(self.words[other].rule.whole_words and self.words[other].ends_in(states[other]) for other in others):
            return False
        return word.ends_in(states[number]) and not bool(word.safe[states[number]])

    def _writes(self, place: _Place, ids: Sequence[int], ended: bool, states: tuple[int, ...]) -> bool:
        """Return whether the text up to its first occurrence of a word is what writing one at a place gives."""
        word = self.words[place.word]
        spelling = word.spellings[place.spelling]
        end = place.before + len(spelling)
        # Whether the last token is what follows the word.
        edged = word.rule.whole_words and (ended or bool(word.safe[states[place.word]]))
        return end == len(ids) - edged and tuple(ids[place.before : end]) == spelling


def _log_weight(mixture: Mixture, posterior: tuple[float, ...], token: int) -> float:
    """Return log a(x)/a'(x) in nats of a token x of a path."""
    return -float(np.log(posterior @ mixture.gains[:, token]))


@dataclass(eq=False)
class LearnedHits:
    """What is known of the words of a constraint for all prompts."""

    words: Sequence[LearnedWord]
    tokens: int = 0  # those of the model's embeddings; 0 before anything is learned
    mixtures: dict[tuple[int, ...], Mixture] = field(default_factory=dict)  # by the words that are missing

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary, encode: Callable[[str], Sequence[int]]) -> Self | None:
        """Return the words that a constraint requires; None if it requires none, or one that no automaton follows."""
        words = []
        for rule in word_rules(constraint)[: MOST_WORDS + 1]:
            read, automaton, spellings = read_as(rule), automaton_of(rule), spellings_of(rule, encode)
            if read is None or automaton is None or not spellings:
                return None
            words.append(LearnedWord(read, TokenStates(automaton, vocabulary), spellings))
        return cls(words) if 0 < len(words) <= MOST_WORDS else None

    def twist(
        self, law: Any, draw_of: Callable[[AttemptState], Draw] | None = None, records: StepRecords | None = None
    ) -> Hits:
        """Return the twist of a prompt, whose attempts ``draw_of`` decodes; None while it learns."""
        each = () if records is None else [replace(records, steps={}) for _ in self.words]
        return Hits(self, law.end_ids, law.most_new, draw_of, each)

    def mixture_for(self, missing: tuple[int, ...]) -> Mixture:
        """Return the mixture of paths that lead up to one of some words."""
        if missing not in self.mixtures:
            fits = [fit for number in missing for fit in self.words[number].fits]
            self.mixtures[missing] = Mixture.of(fits, self.tokens)
        return self.mixtures[missing]

    def learn(self, twists: Sequence[Hits], embeddings: TokenEmbeddings, tilt: Values | None) -> None:
        """Learn from what was drawn since the last time; ``tilt``: the fit of a single word to attempts by states."""
        for number, word in enumerate(self.words):
            word.learn(number, twists, embeddings, tilt)
        self.tokens, self.mixtures = len(embeddings.weight), {}
