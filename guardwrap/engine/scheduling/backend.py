"""The interface between the scheduler and the backends that draw texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from guardwrap.outcomes import Obstacle

Ids = tuple[int, ...]

_T = TypeVar("_T")

DEAD_END = "a mask that left no token"
"""The name that reports give to the cause of rejection if a mask excluded every next token of an attempt."""


class TokenIds(list[int]):
    """New tokens of an attempt as they come, with what whoever follows the attempt has read of them so far.

    So a text is read once, whatever its length, and what was read ends with the attempt.
    """

    __slots__ = ("read",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        super().__init__(ids)
        self.read: dict[Any, tuple[int, Any]] = {}  # by reader: how many tokens it has read, and its state after them


def last_state(token_ids: Sequence[int], reader: Any) -> tuple[int, Any] | None:
    """Return how many of some tokens a reader has read, and its state after them; None if that is not kept."""
    return token_ids.read.get(reader) if isinstance(token_ids, TokenIds) else None


def keep_state(token_ids: Sequence[int], reader: Any, state: Any) -> None:
    """Keep the state of a reader that has read all tokens, if they are those of an attempt."""
    if isinstance(token_ids, TokenIds):
        token_ids.read[reader] = len(token_ids), state


Watch = Callable[[Any], "str | None"]
"""Takes ``AttemptState.grown``; returns the part of the constraint that no continuation can satisfy, or None."""


class TokenMask(Protocol):
    """Determines which tokens must not be drawn; see ``models.masking``."""

    @property
    def beyond(self) -> bool:
        """Whether a token may be drawn that truncation leaves out, where it leaves none that the mask allows."""

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        """Return which of all possible next ``tokens``, with probabilities ``shares``, are excluded; ``[tokens]``.

        ``beyond`` says whether these are tokens that truncation leaves out.
        """

    def close(self, token_ids: Sequence[int]) -> None:
        """Record that every possible next token after ``token_ids`` was excluded."""


class Lookahead(TokenMask, Protocol):
    """A mask that also says what it knows of tokens before they are drawn, and of the whole request."""

    @property
    def impossible(self) -> bool:
        """Whether it is certain that no text that can be drawn satisfies the constraint."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the report."""

    @property
    def dead_end(self) -> Ids | None:
        """New tokens after which every possible next token was excluded; None if that has not happened."""

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Return for each candidate for the next token whether it is excluded."""

    def outlook(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool | None]:
        """Return for each candidate for the next token whether it is possible: False if it is excluded.

        None if it is not excluded, but adds no visible text: white space, or half a character.
        """

    def unlimited(self) -> Self:
        """Return the mask for texts without a limit on their number of tokens."""


class TokenTwist(Protocol):
    """Weighs the next tokens; see ``twists``."""

    @property
    def learns(self) -> bool:
        """Whether it learns from the distributions that it receives."""

    @property
    def most_weight(self) -> float:
        """The largest a(y)/a'(y) that reports allow for in texts that were not drawn; infinity for none."""

    def log_factors(
        self, token_ids: Sequence[int], tokens: Any, log_probabilities: Any, log_weight: float = 0.0
    ) -> Any:
        """Return the logarithms of the tokens' factors in nats, ``[columns]``, float64, all finite.

        ``tokens`` has the token of each column, or is None if column i is token i; ``log_probabilities`` has their
        log-probabilities under a in nats, -inf for tokens that cannot be drawn; ``log_weight`` is log a/a' of the
        tokens so far in nats. ``[columns]`` each.

        It may be called again for the same tokens before one is drawn, since a batch is drawn again if one of its
        attempts raises, or has ties beyond the candidates. What is kept must then be the same as after one call.
        """

    def turned(self, attempt: AttemptState) -> bool:
        """Follow an attempt after each of its tokens; return whether the attempt now goes on from a shorter text.

        It then runs again, with other ``token_ids``, of which the last one is new, and ``rewound`` is set.
        """


class ReducedDistribution(Protocol):
    """The distribution of a request's attempts, given that they are not already known to be rejected.

    Its other contents are private to the backend.
    """

    @property
    def log_live(self) -> float:
        """Log-probability, in nats, that an attempt is not known to be rejected; -inf if every text is known to be."""

    @property
    def computed(self) -> int:
        """Tokens for which the model was run to compute it."""


class Diagnosis(NamedTuple):
    """Whether a request's settings leave any text that satisfies the constraint."""

    impossible: bool = False  # whether it is certain that they do not
    # the settings that are the reason; None if that is not known. They may be known although some texts are left.
    obstacle: Obstacle | None = None
    computed: int = 0  # tokens for which the model was run to find that out


class Law(Protocol):
    """The distribution a(y): one prompt with the user's generation settings. Backends add attributes of their own."""

    @property
    def count(self) -> int:
        """Number of texts requested: ``num_return_sequences``."""

    @property
    def mode(self) -> Literal["sample", "greedy", "beam"]:
        """How tokens are chosen from scores."""

    @property
    def max_time(self) -> float | None:
        """Seconds after which an attempt is cut, or None for no limit."""

    @property
    def beam_results(self) -> Sequence[tuple[Sequence[int], bool]] | None:
        """New tokens of each text from a beam search, best first, and whether it ended by itself; None otherwise."""


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt about to be drawn. Seed, prompt's number and attempt's number determine its random numbers."""

    law: Any  # the prompt and its settings; launches with the same object share one prefill
    seed: int  # of the call
    prompt: int
    attempt: int
    deadline: float | None = None  # ``time.monotonic()`` at which it is abandoned, or None
    # judges the attempt while it grows; if it returns a title, the attempt is aborted. None for no early abort.
    watch: Watch | None = None
    request: Any = None  # the request that the attempt belongs to
    mask: TokenMask | None = None  # determines which next tokens are excluded; None excludes none
    narrowed: Any = None  # the reduced distribution to draw from instead of ``law``, from the backend's ``narrow``
    skipped: int = 0  # attempts directly before this one that count but are not drawn, as they are known to be rejected
    twist: TokenTwist | None = None  # weighs the next tokens, together with ``mask=None``


@dataclass(eq=False, slots=True)
class JudgementCache:
    """Cached judgements of one sequence of tokens, for later attempts with exactly the same tokens."""

    # Judgements, by everything in a draw that a judgement may depend on. All are for one constraint: the backend keeps
    # a separate cache for each.
    judgements: dict[Hashable, Any] = field(default_factory=dict)
    # The draw, its judgement and its log-weight in nats, by request. Text and weight depend on the request: on its
    # prompt, its call, and whether its sampler uses weights.
    by_request: WeakKeyDictionary[Any, tuple[Any, Any, float]] = field(default_factory=WeakKeyDictionary)


@dataclass(slots=True)
class Streamed:
    """The output so far of an attempt whose backend returns text, with or without token ids."""

    text: str = ""
    tokens: int = 0  # the number of its tokens; an estimate if the backend does not report it
    counted: bool = False  # whether it does
    token_ids: list[int] = field(default_factory=list)  # its tokens, if the backend returns them; otherwise empty
    log_probability: float = 0.0  # log a' of ``token_ids`` in nats
    reading: Any = field(default=None, repr=False)  # how far the text has been judged; private to the watch


@dataclass(slots=True)
class AttemptState:
    """An attempt in flight, or as it ended."""

    launch: Launch
    # new tokens, with the end-of-sequence token; see ``streamed``
    token_ids: list[int] = field(default_factory=TokenIds)
    # the new text instead of ``token_ids``, for backends that return text; None for those that return only token ids
    streamed: Streamed | None = None
    log_probability: float = 0.0  # log a' of ``token_ids`` in nats, summed in float64
    log_weight: float = 0.0  # log a - log a' of ``token_ids`` in nats, if a mask or a twist changes a
    # "running", "finished" (ended by itself), "cut" (token limit, or ``max_time``), "aborted" (verdict VIOLATED),
    # "dead_end" (a mask left no token), "abandoned" (deadline), "cancelled" (no longer needed) or "failed"
    status: str = "running"
    blame: str | None = None  # the part of the constraint because of which it was aborted
    error: Exception | None = None  # why it failed, which affects only the request of this attempt
    stream: Any = field(default=(), repr=False)  # an iterator of its uniform random numbers
    began: float = field(default_factory=lambda: time.monotonic())
    computed: int = 0  # tokens for which the model was run because of this attempt, without those of prompts
    rewound: bool = False  # whether its row has states of tokens that its twist has taken back
    # its position in the backend's cached prefixes and in its reduced distribution; private to the backend
    place: Any = field(default=None, repr=False)
    branch: Any = field(default=None, repr=False)
    # judgements of earlier attempts with the same tokens; None if the backend keeps none
    memo: JudgementCache | None = field(default=None, repr=False)
    remarks: tuple[str, ...] = ()  # notes for the report on all attempts like this one, with ``{}`` for their number

    @property
    def grown(self) -> Any:
        """The output so far: token ids, or ``Streamed``. A watch judges it, and ``Drawing.draw_of`` decodes it."""
        return self.token_ids if self.streamed is None else self.streamed

    @property
    def length(self) -> int:
        """Number of new tokens so far."""
        return len(self.token_ids) if self.streamed is None else self.streamed.tokens

    @property
    def whole(self) -> bool:
        """Whether the text ended by itself or at a limit, so that it can be judged as a whole."""
        return self.status in ("finished", "cut")

    def fail(self, error: Exception) -> None:
        """End the attempt because of an error."""
        self.status, self.error = "failed", error


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of a backend. Asking for one that it lacks raises an error that names it, or adds a note to reports."""

    repeats_seeds: bool = True  # whether the same seed gives the same texts, whatever else is in the batch
    ends_early: bool = True  # whether a running attempt can be stopped, e.g. when its verdict is VIOLATED


class Backend(Protocol):
    """Draws attempts concurrently, for any number of requests. It never decides which are accepted."""

    @property
    def can(self) -> Capabilities:
        """The features that it supports."""

    @property
    def mode(self) -> str:
        """Its name in reports."""

    @property
    def room(self) -> int:
        """Number of attempts that can be launched now."""

    @property
    def running(self) -> int:
        """Number of attempts in flight."""

    def lengths(self) -> Mapping[Hashable, list[int]]:
        """Return the number of tokens of each attempt in flight, by request."""

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        """Start attempts, at most ``room`` of them; return those that already ended."""

    def advance(self) -> list[AttemptState]:
        """Continue the running attempts; return those that ended."""

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[AttemptState]:
        """Stop attempts that are no longer needed, and return those that had started."""

    def narrow(
        self, launch: Launch, lookahead: Lookahead, ended: Sequence[tuple[Ids, bool]]
    ) -> ReducedDistribution | None:
        """Return the distribution of a request's attempts, given that they are not known to be rejected.

        ``launch`` is the request's next attempt, with its current reduced distribution, of which no attempt may be in
        flight. ``lookahead`` determines which tokens lead to rejection only. ``ended`` has the tokens of the attempts
        drawn since the last call, in launch order, and whether each ended with these tokens and was rejected.

        None if the backend does not support this, or not for this request.
        """

    def diagnose(self, launch: Launch, lookahead: Lookahead) -> Diagnosis:
        """Find out whether a request's settings leave any text that satisfies the constraint.

        Called at most once per request, with its next attempt, when no attempt has satisfied the constraint and none is
        in flight. ``Diagnosis()`` if the backend does not support this, or not for this request.
        """


def grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Group items by key, keeping their order."""
    groups: dict[Hashable, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def draw_all(backend: Backend, launches: Sequence[Launch]) -> list[AttemptState]:
    """Draw attempts without judging them, and return them in the order of their launches.

    Raises
    ------
    Exception
        The error of an attempt that failed.
    """
    ended: list[AttemptState] = []
    rest = list(launches)
    while rest or backend.running:
        now, rest = rest[: backend.room], rest[backend.room :]
        ended += backend.launch(now) if now else backend.advance()
    for attempt in ended:
        if attempt.error is not None:
            raise attempt.error
    place = {id(launch): i for i, launch in enumerate(launches)}
    return sorted(ended, key=lambda attempt: place[id(attempt.launch)])
