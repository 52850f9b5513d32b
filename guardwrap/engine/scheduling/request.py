"""The scheduler's input: requests, each with a prompt, what is asked for it, and how attempts at it are drawn."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.explanation import Explanation, Rejection, explain_draw
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.constraints.kinds.share import Share, shares_of
from guardwrap.engine.scheduling.backend import Law, Lookahead, TokenTwist
from guardwrap.errors import GuardwrapError, own_error
from guardwrap.outcomes import ITSELF, Draw, Origin, Outcome, Remedy, Usage
from guardwrap.samplers import Sampler


@dataclass(frozen=True, slots=True)
class RejectedAttempt:
    """An attempt that violates the constraint. Show its text only to users who asked for rejected texts."""

    prompt: int  # number of its prompt in the call, from 0
    attempt: int  # its number among the attempts of the prompt, from 0
    draw: Draw  # what the model wrote
    part: str  # title of the first part of the constraint that rejected it
    place: str | None  # where in the text that part is violated, without generated text; None if that is not known
    whole: bool  # whether the attempt ended by itself or at the token limit, and not as soon as it could no longer pass
    constraint: Constraint

    def explain(self) -> Explanation:
        """Return all parts that reject the attempt; of one that was stopped early, the part that stopped it."""
        if self.whole and (explanation := explain_draw(self.constraint, self.draw)).rejections:
            return explanation
        in_json = self.place is not None and self.place.startswith("$")
        reasons = [] if in_json or self.place is None else [self.place]
        reasons += [] if self.whole else ["stopped early: no continuation can pass"]
        rejection = Rejection(self.part, ", ".join(reasons), self.place if in_json else None)
        return Explanation(self.draw.text, (rejection,))


OnRejected = Callable[[RejectedAttempt], None]
"""Called with each attempt that violates the constraint, in launch order."""


class Prepared(Protocol):
    """A prompt after preparation by a pipeline."""

    @property
    def number(self) -> int:
        """Its index in its call, from 0. Its random numbers depend on it."""

    @property
    def given(self) -> Any:
        """The prompt as the user passed it."""

    @property
    def law(self) -> Law:
        """The distribution that its attempts are drawn from."""


DrawOf = Callable[[Any, Any, bool, "float | None"], Draw]
"""Makes the draw that the user gets. Takes a prompt, the attempt's output (``AttemptState.grown``), whether the attempt
ended by itself, and log a' in nats."""


OnBusy = Callable[[bool], None]
"""Called with True when a call joins a batch, and with False when nothing is computed for it any more. The caller may
have left earlier, in the middle of a step."""
OnText = Callable[[int, Draw], None]
"""Called with the number of a prompt and an accepted text."""

OnOutcome = Callable[[int, Outcome], None]
"""Called with the number of a prompt and its outcome."""

OnEnd = Callable[["Request", Outcome], None]
"""Called with a request and its outcome."""

FollowUp = Callable[["Request", Outcome, RejectedAttempt], "Request | None"]
"""Makes the request that draws the missing texts of one that ended, given its outcome and its last rejected attempt."""

PassOn = Callable[["Request", int, str, bool], None]
"""Called with a request, the index of a text among its texts, the next piece of that text, and whether it is the last
one, which may be empty."""


class PlacingWatch(Protocol):
    """A watch that also says where an attempt that it has ended violates the constraint."""

    def __call__(self, grown: Any, /) -> str | None:
        """Return the title of the first part of the constraint that an attempt's beginning violates, or None."""

    def place(self, grown: Any, /) -> str | None:
        """Return where, without generated text; None if that is not known."""


class SettledPrefix(Protocol):
    """Says of the beginning of an attempt, which a watch has judged, whether it will be accepted."""

    def settled(self, grown: Any, /) -> str | None:
        """Return the text so far if each continuation of it satisfies the constraint; None if that is not known."""

    def undecided(self, grown: Any, /) -> str | None:
        """Return the title of the first part of the constraint that is undecided; None if that is not known."""


class Weigh(Protocol):
    """Computes log-weights; see ``models.proposal_draws.Weigher``."""

    @property
    def note(self) -> str | None:
        """A note for the report about rounding errors of the weights, or None."""

    def __call__(self, attempts: Sequence[tuple[Any, Draw, float]]) -> list[float]:
        """Return log a(y) - log a'(y) in nats for each attempt: its prompt, its draw, and its ``log_weight``."""


@dataclass(frozen=True)
class Spec:
    """What is asked for one prompt. Made once from a call's options, and carried by reference to the last attempt."""

    constraint: Constraint  # b: what the texts satisfy
    sampler: Sampler  # decides which attempts become texts
    budget: Budget  # the most that may be spent on the prompt
    seed: int  # with ``place`` it determines the prompt's random numbers
    place: int | None = None  # the number that they depend on; None for the prompt's number in its call

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The shares among the rules, looked for once for all prompts of a call."""
        return shares_of(self.constraint)


@dataclass(frozen=True)
class Hooks:
    """Whom a call tells what happens to its requests. They are called in the scheduler's thread."""

    on_text: OnText | None = None  # gets each text when it is accepted
    # Gets the outcome of a request that ended without an error. Requests before it may still be running.
    on_end: OnEnd | None = None
    on_rejected: OnRejected | None = None  # gets each attempt that violates the constraint, in launch order
    whole_rejected: bool = False  # whether attempts that can no longer pass are drawn to their end
    # Gets the pieces of each text: while it is drawn, as soon as it is certain to be accepted, or all at once when it
    # is. None if the call does not stream.
    pass_on: PassOn | None = None
    # says how a call is getting on if it takes long, in the words that a function returns; None for silence
    tells: Callable[[Callable[[], str]], None] | None = None
    on_busy: OnBusy | None = None  # called as the call joins its batch, and as it has left it


@dataclass(frozen=True, eq=False)
class Drawing:
    """How attempts at one prompt are drawn, watched and weighed. The source of a call says so."""

    draw_of: DrawOf  # turns an attempt into the draw that the user gets
    watch: PlacingWatch | None = None  # judges running attempts; None for no early abort
    # excludes next tokens that no text that satisfies the constraint can continue with, which changes the distribution
    # of attempts; None excludes none
    mask: Lookahead | None = None
    # determines the same tokens, but they are used only to skip attempts that are known to be rejected, which leaves
    # the distributions of texts and of attempt numbers unchanged, and to find out whether any text can satisfy the
    # constraint; see ``all_rejected``
    lookahead: Lookahead | None = None
    # weighs next tokens by how likely they are to lead to a text that satisfies the constraint, which changes the
    # distribution of attempts; None draws from the model itself
    twist: TokenTwist | None = None
    # Computes log a(y) - log a'(y) in nats for attempts that satisfy the constraint. None if the sampler does not use
    # weights, or if a' is the model itself, perhaps with a mask or a twist: the log-weight is then ``log_weight``.
    weigh: Weigh | None = None
    origin: Origin = ITSELF  # what attempts are drawn from
    notes: tuple[str, ...] = ()  # notes for the report
    # determines which attempts are certain to be accepted; None if that is not known before they are complete
    settled: SettledPrefix | None = None
    whole_because: str = "the backend gives whole texts"  # with ``settled=None``, the reason, in words
    prompt_tokens: int | None = None  # of the prompt that defines a(y), for the report; None if it is not known
    # what its call can do if texts are missing; of ``Remedy`` only those that depend on the call
    ways: frozenset[Remedy] = frozenset({Remedy.LENGTH, Remedy.PROMPT})
    # what was spent on learning the twist before the request was made: only the fields of learning are used
    learning: Usage = field(default_factory=Usage)


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt, what is asked for it, and how it is drawn. Requests of a batch share the backend, nothing else."""

    prompt: Prepared
    spec: Spec
    drawing: Drawing
    hooks: Hooks = field(default_factory=Hooks)
    # when the call was made, by ``time.monotonic()``, for the budget's ``timeout``
    called: float = field(default_factory=time.monotonic)
    # makes the request that draws the missing texts if this one's budget ends; None for no such request
    follow_up: FollowUp | None = None
    # the request that this one follows up, and its outcome; None for a request of a caller
    earlier: tuple[Request, Outcome] | None = None

    @property
    def first(self) -> Request:
        """The request of the caller: this one, or the one that it follows up."""
        return self if self.earlier is None else self.earlier[0]

    @property
    def number(self) -> int:
        """The prompt number that its random numbers depend on."""
        return self.prompt.number if self.spec.place is None else self.spec.place

    @cached_property
    def rule(self) -> Hashable:
        """The constraint and the titles of its parts: texts of requests in which both are equal are judged together.

        Constraints compare equal whatever their names, but each report must use the names from its own request.
        """
        constraint = self.spec.constraint
        return constraint, tuple(part.title for part in constraint.parts)

    @cached_property
    def runs_code(self) -> bool:
        """Whether judging its texts runs code from outside guardwrap."""
        return runs_code(self.spec.constraint)


@dataclass(frozen=True, slots=True)
class Served:
    """A request that has ended."""

    source: RequestStream  # the stream that the request came from
    number: int  # its index in the order in which the stream's requests were taken, from 0
    request: Request
    outcome: Outcome  # its outcome; with an error, the outcome up to then
    error: Exception | None = None  # the error that ended it, or None
    # with an error: numbers and outcomes so far of the stream's other requests that already have accepted texts
    unfinished: tuple[tuple[int, Outcome], ...] = ()


class RequestStream:
    """The requests of one caller."""

    def __init__(self, upcoming: Iterable[Request], window: int) -> None:
        self._upcoming = iter(upcoming)
        self._taken = 0
        self._exhausted = False
        self.window = window
        self.failure: Exception | None = None
        self.numbers: dict[Request, int] = {}

    def take(self) -> Request | None:
        """Return the next request, or None if there is none or ``window`` requests are in progress."""
        if self._exhausted or len(self.numbers) >= self.window:
            return None
        request = None
        try:
            request = next(self._upcoming, None)
        except BaseException as error:  # ``upcoming`` may be the user's generator
            self.failure = own_error(error)
        if request is None:
            self._exhausted = True
            return None
        self.numbers[request] = self._taken
        self._taken += 1
        return request

    @property
    def over(self) -> bool:
        """Whether all its requests have ended."""
        return self._exhausted and not self.numbers


class OrderedDelivery:
    """Delivers ended requests in the order in which they were taken from their stream."""

    def __init__(self, source: RequestStream) -> None:
        self._source = source
        self._window = source.window
        self._done: dict[int, Served] = {}
        self._following = 0

    def put(self, ended: Iterable[Served]) -> Iterator[tuple[Request, Outcome]]:
        """Add requests that ended, and yield those before which all others have ended."""
        for served in ended:
            self._done[served.number] = served
            if served.error is not None:
                raise _with_outcomes(served.error, [*self._done.values()], served.unfinished)
        while self._following in self._done:
            served = self._done.pop(self._following)
            self._following += 1
            yield served.request, served.outcome
        self._source.window = self._window - len(self._done)  # outcomes that wait for delivery take memory too

    def end(self) -> None:
        """Raise the error of the stream, if it has one. Call this after all taken requests were delivered."""
        if self._source.failure is not None:
            raise self._source.failure


def _with_outcomes(error: Exception, done: Sequence[Served], unfinished: Sequence[tuple[int, Outcome]]) -> Exception:
    """Attach the outcomes of other requests to an error."""
    if isinstance(error, GuardwrapError):
        ended = [(each.number, each.outcome) for each in done if each.error is None or each.outcome.texts]
        error.outcomes = tuple(outcome for _, outcome in sorted([*ended, *unfinished], key=lambda pair: pair[0]))
    return error
