"""The seam between the scheduler and whatever draws texts: what a backend is asked, and what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

__all__ = [
    "DEAD_END",
    "AttemptState",
    "Backend",
    "Capabilities",
    "JudgementCache",
    "Launch",
    "Law",
    "ReducedDistribution",
    "Scorer",
    "Streamed",
    "TokenMask",
    "Watch",
    "draw_all",
    "grouped",
]

Ids = tuple[int, ...]

DEAD_END = "a mask that left no token"
"""What reports say rejected an attempt all of whose next tokens were left out."""

Watch = Callable[[Any], "str | None"]
"""From ``AttemptState.grown`` to the part of a constraint that nothing can satisfy any more, or None."""


class TokenMask(Protocol):
    """Finds tokens that are not to be drawn; see ``pipelines.masking``."""

    @property
    def impossible(self) -> bool:
        """Whether it is known that no text can be drawn which satisfies the constraint."""

    @property
    def notes(self) -> Sequence[str]:
        """What the report says of it."""

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Say for each candidate of the next token whether it is left out."""

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any) -> Any:
        """Return which of all tokens that may come next are left out, by their probabilities; arrays, ``[tokens]``."""

    def close(self, token_ids: Sequence[int]) -> None:
        """Note that all tokens that may follow these were left out."""


class ReducedDistribution(Protocol):
    """The law of a request's attempts without those that are known to be rejected. The rest is the backend's affair."""

    @property
    def log_live(self) -> float:
        """Logarithm of the share of the law that is left; minus infinity where every text is known to be rejected."""

    @property
    def computed(self) -> int:
        """Tokens that the model was run for to find it."""


class Law(Protocol):
    """One prompt under the user's generation settings: what defines a(y). A backend knows more of it than this."""

    @property
    def count(self) -> int:
        """Texts asked for: ``num_return_sequences``."""

    @property
    def mode(self) -> Literal["sample", "greedy", "beam"]:
        """How a token follows from scores."""

    @property
    def max_time(self) -> float | None:
        """Seconds after which an attempt is cut, or None."""

    @property
    def beam_results(self) -> Sequence[tuple[Sequence[int], bool]] | None:
        """New tokens of each text that a beam search has found, best first, and whether it ended by itself; or None."""


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt about to be drawn.

    Parameters
    ----------
    law
        Of its prompt; launches that share the object share one prefill.
    seed, prompt, attempt
        What its randomness belongs to.
    deadline
        ``time.monotonic()`` at which it is abandoned, or None.
    watch
        Judges it as it grows; a title aborts it. None judges nothing.
    request
        Whose attempt it is.
    mask
        Which next tokens are left out of the law; None leaves all in.
    narrowed
        What the attempt is drawn from instead of the whole law: what the backend's ``narrow`` has returned.
    skipped
        Attempts before this one that were not drawn, as they are known to be rejected.
    """

    law: Any
    seed: int
    prompt: int
    attempt: int
    deadline: float | None = None
    watch: Watch | None = None
    request: Any = None
    mask: TokenMask | None = None
    narrowed: Any = None
    skipped: int = 0


@dataclass(eq=False, slots=True)
class JudgementCache:
    """What judging one sequence of tokens has found out, for attempts that end with the same ones.

    Parameters
    ----------
    judgements
        By everything that a judgement reads of a draw. All of one constraint: the backend keeps a memo for each.
    by_request
        The draw, its judgement and its log-weight in nats. Text and weight depend on the request: its prompt, its call,
        and whether its sampler weighs.
    """

    judgements: dict[Hashable, Any] = field(default_factory=dict)
    by_request: WeakKeyDictionary[Any, tuple[Any, Any, float]] = field(default_factory=WeakKeyDictionary)


@dataclass(slots=True)
class Streamed:
    """What has come of an attempt whose backend gives text in the place of token ids, or beside them.

    Parameters
    ----------
    text
        So far.
    tokens
        How many tokens that is, as far as is known.
    token_ids
        They themselves, where they are known.
    log_probability
        log a' of them in nats, where they are known.
    reading
        How far the text has been judged; the watch's own affair.
    """

    text: str = ""
    tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    reading: Any = field(default=None, repr=False)


@dataclass(slots=True)
class AttemptState:
    """An attempt on its way, or as the backend left it.

    Parameters
    ----------
    launch
        What was asked.
    token_ids
        The new tokens, the end-of-sequence token included. Empty where there is ``streamed``.
    streamed
        The new text, of a backend that gives no token ids; None of one that does.
    log_probability
        log a' of ``token_ids`` in nats, summed in float64.
    log_left
        With a mask: the sum of log Z_t in nats, Z_t being the share of the law that the mask has left.
    status
        ``"running"``, ``"finished"`` (ended by itself), ``"cut"`` (token limit, or ``max_time``), ``"aborted"``
        (verdict VIOLATED), ``"abandoned"`` (deadline), ``"cancelled"`` (not needed any more) or ``"failed"``.
    blame
        Which part of the constraint aborted it.
    error
        Why it failed: belongs to its request, and to no other.
    stream
        Its uniforms.
    began
        ``time.monotonic()`` of its launch.
    computed
        Tokens that the model was run for, on its behalf; those of prompts are not counted.
    place, branch
        Where it stands in what the backend knows already; the backend's own affair.
    memo
        What judging has found out about these tokens from attempts before; None where nothing is kept.
    remarks
        What the report says of attempts like this one, with ``{}`` for their number.
    """

    launch: Launch
    token_ids: list[int] = field(default_factory=list)
    streamed: Streamed | None = None
    log_probability: float = 0.0
    log_left: float = 0.0
    status: str = "running"
    blame: str | None = None
    error: Exception | None = None
    stream: Any = field(default=(), repr=False)
    began: float = field(default_factory=lambda: time.monotonic())
    computed: int = 0
    place: Any = field(default=None, repr=False)
    branch: Any = field(default=None, repr=False)
    memo: JudgementCache | None = field(default=None, repr=False)
    remarks: tuple[str, ...] = ()

    @property
    def grown(self) -> Any:
        """What has come so far: token ids, or ``Streamed``. A watch judges it, ``Request.draw_of`` decodes it."""
        return self.token_ids if self.streamed is None else self.streamed

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.token_ids) if self.streamed is None else self.streamed.tokens

    @property
    def whole(self) -> bool:
        """Whether the text ended by itself or at a limit, so that it can be judged."""
        return self.status in ("finished", "cut")

    def fail(self, error: Exception) -> None:
        """End the attempt because of an error."""
        self.status, self.error = "failed", error


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. What it cannot is refused by name, or said in the report.

    Parameters
    ----------
    repeats_seeds
        Whether the same seed gives the same texts, whatever else is in the batch.
    token_ids
        Whether attempts come with their token ids.
    ends_early
        Whether a running attempt can be ended, as when its verdict is VIOLATED.
    """

    repeats_seeds: bool = True
    token_ids: bool = True
    ends_early: bool = True


class Backend(Protocol):
    """Draws attempts side by side, for any number of requests. It decides nothing about them."""

    @property
    def can(self) -> Capabilities:
        """What it can do."""

    @property
    def mode(self) -> str:
        """What reports call it."""

    @property
    def room(self) -> int:
        """How many attempts can be launched now."""

    @property
    def running(self) -> int:
        """How many attempts are on their way."""

    def lengths(self) -> Mapping[Hashable, list[int]]:
        """How many tokens the attempts on their way have, by request."""

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        """Begin attempts, at most ``room`` of them; return those that ended at once."""

    def advance(self) -> list[AttemptState]:
        """Go on with those that run; return those that ended."""

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[AttemptState]:
        """Stop attempts that are not needed any more and return those that had begun."""

    def narrow(
        self, launch: Launch, lookahead: TokenMask, ended: Sequence[tuple[Ids, bool]]
    ) -> ReducedDistribution | None:
        """Leave out of a request's law what is known to be rejected.

        Parameters
        ----------
        launch
            The request's next attempt, with what was left out already. Nothing that is drawn from it is on its way.
        lookahead
            Finds tokens that lead nowhere.
        ended
            Tokens of attempts that were drawn since then, in launch order, and whether each ended with them and was
            rejected.

        Returns
        -------
        Narrowed or None
            None where the backend does no such thing.
        """


class Scorer(Protocol):
    """Computes log-probabilities of given texts, where a backend's model can."""

    def __call__(self, texts: Sequence[tuple[Any, Sequence[int]]]) -> list[float]:
        """Return log a(y) in nats for each law and its new tokens."""


def grouped(places: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return the places of attempts in groups of equal keys, each in order."""
    groups: dict[Hashable, list[int]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return list(groups.values())


def draw_all(backend: Backend, launches: Sequence[Launch]) -> list[AttemptState]:
    """Draw attempts that nobody judges, and return them in the order of their launches.

    Raises
    ------
    Exception
        What an attempt failed with.
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
