"""One clock for whatever is done with what others gave: reading a file, judging a text, judging a prefix.

A constraint file may come from anyone, and so may the texts. Each of these gets some seconds, all parts together; every
loop over what was given looks at the clock. The user's own functions and classifiers are not interrupted, for that
cannot be done safely.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from guardwrap.environment.threads import in_thread

__all__ = [
    "StepOver",
    "TimeLimit",
    "call_apart",
    "charged",
    "check_deadline",
    "giving_way",
    "judging",
    "matches",
    "seconds_left",
    "step_is_over",
    "step_limit",
    "time_limit",
    "uncounted",
    "within",
]

_Answer = TypeVar("_Answer")

# Of judging one text, and of a verdict on a prefix, which is asked for at every token; all parts together.
CHECK_SECONDS = 2.0
VERDICT_SECONDS = 0.05

WORKS = 2e-3  # seconds in a row that a thread works which gives way to others


class TimeLimit(TimeoutError):
    """The time is over. Becomes CheckFailed, SpecError or UNDECIDED before anyone else sees it.

    Parameters
    ----------
    seconds
        The limit that was reached.
    shared
        Whether it is that of all parts together, not of one match.
    """

    def __init__(self, seconds: float, *, shared: bool) -> None:
        super().__init__(f"took more than {seconds:g} s")
        self.seconds = seconds
        self.shared = shared


class StepOver(TimeLimit):
    """What a request may do while others wait is over: the same may be done elsewhere, or is left out.

    No judgement of its text and no fault of a checker, so nothing turns it into CheckFailed.
    """


class _Running(threading.local):
    # Of the thread, not of the context: a context may go on in another thread, where another clock runs.
    clock: time_limit | None = None
    step: step_limit | None = None
    gives_way: bool = False  # to threads that others wait for
    rested: float = 0.0  # when it did so last, on the wall
    used: dict[int, tuple[object, float]] | None = None
    wall: float = -math.inf  # when the system was asked last, and
    cpu: float = 0.0  # what it said


_running = _Running()

_STALE = 1e-2  # seconds


def now() -> float:
    """Return the CPU seconds of this thread, at most a hundredth too many.

    Of its own computing: a machine that is busy with something else decides nothing. (`regex` counts those of all
    threads of the process, and holds the interpreter while it does, so the two differ by little.) Asking the system
    costs up to 15 µs, and this is asked several times a verdict. A thread computes for no longer than the clock on the
    wall says, so for a hundredth of a second that will do.
    """
    wall = time.monotonic()
    if not 0 <= wall - _running.wall <= _STALE:
        _running.wall, _running.cpu = wall, time.thread_time()
    return _running.cpu + wall - _running.wall


class time_limit:  # noqa: N801  # reads as a function; entered at every token, so it is no generator
    """Let what is done in this context take so many seconds. Of limits in each other the earliest holds.

    Parameters
    ----------
    seconds
        The limit.
    anew
        Whether a limit that runs already is left aside, unless that is firm.
    firm
        Whether it holds for limits that begin anew as well.

    Attributes
    ----------
    late : bool
        Whether something gave up because of it, or because of a limit of its own within it.
    """

    __slots__ = ("_anew", "_before", "_firm", "end", "late", "outer", "seconds")

    def __init__(self, seconds: float, *, anew: bool = False, firm: bool = False) -> None:
        self.seconds = seconds
        self._anew = anew
        self._firm = firm
        self.late = False

    def __enter__(self) -> Self:
        self._before = _running.clock
        self.outer = self._before
        while self._anew and self.outer is not None and not self.outer._firm:
            self.outer = self.outer.outer
        self.end = now() + self.seconds
        if self.outer is not None and self.outer.end < self.end:
            self.seconds, self.end = self.outer.seconds, self.outer.end
        _running.clock = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _running.clock = self._before
        self.late = self.late or isinstance(error, TimeLimit)
        if self.outer is not None and self.late:
            self.outer.late = True


class step_limit(time_limit):  # noqa: N801  # reads as a function
    """Let what is done in this context take so many seconds while others wait, whatever limits begin within it.

    Parameters
    ----------
    seconds
        The limit.
    """

    __slots__ = ()

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, anew=True, firm=True)

    def __enter__(self) -> Self:
        super().__enter__()
        _running.step = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _running.step = None
        super().__exit__(kind, error, trace)

    @property
    def left(self) -> float:
        """Seconds that are left; none or less where it is over."""
        return self.end - now()


def step_is_over() -> bool:
    """Whether others wait and what may be done meanwhile is over."""
    return _running.step is not None and _running.step.left <= 0


_left_behind: dict[int, threading.Thread] = {}


def call_apart(call: Callable[[], _Answer], owner: object) -> _Answer:
    """Call what nothing can interrupt. While others wait it gets a thread of its own, and they wait for a moment only.

    Parameters
    ----------
    call
        It holds its owner.
    owner
        Whose it is. While a thread is left behind, its owner gets no other one.

    Raises
    ------
    StepOver
        If it did not return in time; its thread is left behind.
    """
    step = _running.step
    if step is None:
        return call()
    before = _left_behind.pop(id(owner), None)
    if before is not None and before.is_alive():
        _left_behind[id(owner)] = before
        raise StepOver(step.seconds, shared=True)
    check_deadline()
    start = time.monotonic()
    try:
        answer, thread = in_thread(call, step.left, name="guardwrap-apart")
    finally:
        step.end -= time.monotonic() - start  # waiting takes no processor time
    if not answer:
        _left_behind[id(owner)] = thread
        raise StepOver(step.seconds, shared=True)
    return answer[0]


@contextmanager
def giving_way() -> Iterator[None]:
    """Let threads that others wait for go first: this one rests twice as long as it works, wherever it looks."""
    _running.gives_way = True
    try:
        yield
    finally:
        _running.gives_way = False


def _rest() -> None:
    wall = time.monotonic()
    if not 0 <= wall - _running.rested <= WORKS:
        time.sleep(2 * WORKS)
        _running.rested = time.monotonic()


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out what is done in this context: the user's own functions have no limit, and use up no one else's."""
    start = now()
    try:
        yield
    finally:
        clock = _running.clock
        while clock is not None:
            clock.end += now() - start
            clock = clock.outer


def check_deadline() -> None:
    """Raise TimeLimit if the time is over."""
    if _running.gives_way:
        _rest()
    clock = _running.clock
    if clock is not None and now() >= clock.end:
        raise _over(clock.seconds, shared=True)


def seconds_left(most: float = math.inf) -> float | None:
    """Return the seconds that are left, at most so many; None where no limit runs. Raise TimeLimit at none."""
    clock = _running.clock
    if clock is None:
        return None if math.isinf(most) else most
    left = clock.end - now()
    if left <= 0:
        raise _over(clock.seconds, shared=True)
    return min(most, left, clock.seconds)  # the clock may have gone back by what it was ahead when this began


def within(match: Callable[..., Any], text: str, *, most: float = math.inf, **options: Any) -> Any:
    """Call a method of a regular expression; TimeLimit where the time ends first."""
    limit = _Patience(most)
    while True:
        try:
            return match(text, timeout=limit.timeout, **options)
        except TimeoutError:
            limit.require_more()


def matches(pattern: Any, text: str, *, most: float = math.inf, **options: Any) -> Iterator[Any]:
    """Yield the matches of a regular expression; TimeLimit where the time ends first."""
    limit = _Patience(most)
    told = 0
    while True:
        try:
            for number, match in enumerate(pattern.finditer(text, timeout=limit.timeout, **options)):
                check_deadline()  # at what is done with the matches, too
                if number >= told:
                    told += 1
                    yield match
        except TimeLimit:
            raise
        except TimeoutError:
            limit.require_more()
        else:
            return


class _Patience:
    """How long a match may take. `regex` counts what all threads compute, and so ends it early where others do.

    Then it begins again, with twice the time, until this thread itself has computed for as long as it may.

    Attributes
    ----------
    timeout : float or None
        What `regex` is given.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._seconds = self.timeout = seconds_left(most)
        self._began, self._all_began = now(), time.process_time()

    def require_more(self) -> None:
        """Raise TimeLimit if this thread has computed for so long, or if the time of all parts is over."""
        spent, of_all, clock = now() - self._began, time.process_time() - self._all_began, _running.clock
        others = self.timeout is not None and of_all >= 0.9 * self.timeout
        if self._seconds is None or self.timeout is None or not others or spent >= 0.9 * self._seconds - _STALE:
            if clock is not None and self._seconds != self._most:
                raise _over(clock.seconds, shared=True) from None
            raise _over(self._most, shared=False) from None
        seconds_left(self._most)
        self.timeout *= 2
        self._began, self._all_began = now(), time.process_time()


def _over(seconds: float, *, shared: bool) -> TimeLimit:
    step = _running.step
    # A hundredth is nothing here: `regex` stops a little early where other threads compute, too.
    over = step is not None and step.left <= max(_STALE, 0.1 * step.seconds)
    return StepOver(seconds, shared=True) if over else TimeLimit(seconds, shared=shared)


@contextmanager
def judging() -> Iterator[None]:
    """Remember what each draw has cost so far: all parts of a constraint together have one limit for it."""
    outer = _running.used
    _running.used = {} if outer is None else outer
    try:
        yield
    finally:
        _running.used = outer


@contextmanager
def charged(draw: object) -> Iterator[None]:
    """Judge a draw, within what is left of its limit."""
    used = {} if _running.used is None else _running.used
    _, spent = used.get(id(draw), (draw, 0.0))
    start = now()
    try:
        # Not within the limit of a verdict: only a user's prefix function judges whole texts there.
        with time_limit(CHECK_SECONDS - spent, anew=True) as clock:
            clock.seconds = CHECK_SECONDS
            yield
    finally:
        used[id(draw)] = (draw, spent + now() - start)  # the draw is kept, so that its id stays its own
