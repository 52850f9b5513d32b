"""The requests of one caller: taken as there is room, served in any order, and delivered in the order taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from guardwrap.errors import GuardwrapError, own_error
from guardwrap.outcomes import Outcome
from guardwrap.scheduling.request import Request


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
