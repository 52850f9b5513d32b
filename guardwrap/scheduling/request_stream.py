"""Requests of one caller: taken one by one as there is room, served in any order, handed out in theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from guardwrap.errors import GuardwrapError, own_error
from guardwrap.outcomes import Outcome
from guardwrap.scheduling.request import Request

__all__ = ["OrderedDelivery", "RequestStream", "Served"]


@dataclass(frozen=True, slots=True)
class Served:
    """A request that has ended.

    Parameters
    ----------
    source
        Whose request it was.
    number
        Its place in the order in which its source's requests were taken, from 0.
    request
        The request.
    outcome
        What it got, also before an error.
    error
        What ended it, or None.
    unfinished
        Beside an error: what others of its source have got so far, with their numbers, where they have got something.
    """

    source: RequestStream
    number: int
    request: Request
    outcome: Outcome
    error: Exception | None = None
    unfinished: tuple[tuple[int, Outcome], ...] = ()


class RequestStream:
    """Requests of one caller.

    Parameters
    ----------
    upcoming
        The requests, which are taken as there is room for them.
    window
        Under way at once, at most.

    Attributes
    ----------
    window : int
        May be changed at any time.
    failure : Exception or None
        What ``upcoming`` raised: nothing more is taken from it.
    numbers : dict of Request to int
        Of the requests under way.
    """

    def __init__(self, upcoming: Iterable[Request], window: int) -> None:
        self._upcoming = iter(upcoming)
        self._taken = 0
        self._exhausted = False
        self.window = window
        self.failure: Exception | None = None
        self.numbers: dict[Request, int] = {}

    def take(self) -> Request | None:
        """Return the next request, if there is one and its turn has come."""
        if self._exhausted or len(self.numbers) >= self.window:
            return None
        request = None
        try:
            request = next(self._upcoming, None)
        except BaseException as error:  # the user's generator too
            self.failure = own_error(error)
        if request is None:
            self._exhausted = True
            return None
        self.numbers[request] = self._taken
        self._taken += 1
        return request

    @property
    def over(self) -> bool:
        """Whether nothing is left to do for it."""
        return self._exhausted and not self.numbers


class OrderedDelivery:
    """Hands out what was served in the order in which a source's requests were taken."""

    def __init__(self, source: RequestStream) -> None:
        self._source = source
        self._window = source.window
        self._done: dict[int, Served] = {}
        self._following = 0

    def put(self, ended: Iterable[Served]) -> Iterator[tuple[Request, Outcome]]:
        """Take what was served, and yield those whose turn has come.

        Raises
        ------
        Exception
            What a request has raised, at once; an error's ``outcomes`` keep what others have got.
        """
        for served in ended:
            self._done[served.number] = served
            if served.error is not None:
                raise _with_outcomes(served.error, [*self._done.values()], served.unfinished)
        while self._following in self._done:
            served = self._done.pop(self._following)
            self._following += 1
            yield served.request, served.outcome
        self._source.window = self._window - len(self._done)  # those that wait for their turn take memory too

    def end(self) -> None:
        """Raise what taking a request has raised, once those before it are done."""
        if self._source.failure is not None:
            raise self._source.failure


def _with_outcomes(error: Exception, done: Sequence[Served], unfinished: Sequence[tuple[int, Outcome]]) -> Exception:
    """Keep what requests further on have got already."""
    if isinstance(error, GuardwrapError):
        ended = [(each.number, each.outcome) for each in done if each.error is None or each.outcome.texts]
        error.outcomes = tuple(outcome for _, outcome in sorted([*ended, *unfinished], key=lambda pair: pair[0]))
    return error
