"""Time limits for work on input from outside: reading a file, judging a text, judging a prefix.

Constraint files and texts may come from anyone. Each task gets some seconds of CPU time, which all parts share, and
every loop over the input calls ``check_deadline``. Users' functions and classifiers are not interrupted, because that
cannot be done safely.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from guardwrap.support.threads import in_thread

_Answer = TypeVar("_Answer")

# Limits for all parts of a constraint together. A verdict is needed after every token, so its limit is short.
CHECK_SECONDS = 2.0  # for judging one text
VERDICT_SECONDS = 0.05  # for a verdict on one prefix

WORKS = 2e-3  # seconds that a thread which gives way to others works before it rests


class OutOfTime(TimeoutError):
    """A limit on the time of a computation was exceeded: its own, or that of the step in which it runs."""

    def __init__(self, seconds: float, *, shared: bool) -> None:
        super().__init__(f"took more than {seconds:g} s")
        self.seconds = seconds
        self.shared = shared


class TimeLimit(OutOfTime):
    """A time limit was exceeded. It becomes CheckFailed, SpecError or UNDECIDED before it reaches the user."""


class StepOver(OutOfTime):
    """A request has used up the time that it may take while other requests wait.

    The work is done elsewhere, or left out. This is no failure of the checker, and no ``TimeLimit``, so it does not
    become CheckFailed.
    """


_STALE = 1e-2  # seconds


class _CpuClock(threading.local):
    """The CPU time of the current thread, which limits count so that they do not depend on how busy the machine is.

    (`regex` counts the CPU time of all threads of the process, but holds the interpreter lock meanwhile, so the two
    differ little.) Reading the CPU time takes up to 15 µs, several times per verdict. For 0.01 s after each reading,
    the elapsed wall time is added instead, which is never less than the CPU time used.
    """

    read_at: float = -math.inf  # time.monotonic() when the CPU time was last read
    cpu: float = 0.0  # the CPU time at that moment

    def now(self) -> float:
        """Return the CPU seconds of this thread; the result may be up to 0.01 s too high."""
        wall = time.monotonic()
        if not 0 <= wall - self.read_at <= _STALE:
            self.read_at, self.cpu = wall, time.thread_time()
        return self.cpu + wall - self.read_at


class _Limits(threading.local):
    """The limits on the current thread. A context would not do: it may continue in another thread."""

    innermost: time_limit | None = None
    step: step_limit | None = None
    spent_on: dict[int, tuple[object, float]] | None = None  # draws by id, with the seconds that judging each has taken
    rested_at: float | None = None  # time.monotonic() of the last rest; None if the thread does not give way to others

    def exceeded(self, seconds: float, *, shared: bool = True) -> OutOfTime:
        """Return the error for a limit that is exceeded: ``StepOver`` if the step's is, too."""
        # Allow 0.01 s or 10 %, because `regex` stops a little early if other threads compute, too.
        over = self.step is not None and self.step.left <= max(_STALE, 0.1 * self.step.seconds)
        return StepOver(seconds, shared=True) if over else TimeLimit(seconds, shared=shared)

    def rest(self) -> None:
        """Sleep twice as long as the thread has worked, so that urgent threads run first."""
        if not 0 <= time.monotonic() - (self.rested_at or 0) <= WORKS:
            time.sleep(2 * WORKS)
            self.rested_at = time.monotonic()


_clock = _CpuClock()
_limits = _Limits()
now = _clock.now


class time_limit:  # noqa: N801  # reads as a function; entered at every token, so it is no generator
    """Context that limits the CPU seconds of its body. Of nested limits, the one that ends first applies."""

    __slots__ = ("_before", "_firm", "_ignore_outer", "end", "late", "outer", "seconds")

    def __init__(self, seconds: float, *, ignore_outer: bool = False, firm: bool = False) -> None:
        self.seconds = seconds
        self._ignore_outer = ignore_outer
        self._firm = firm
        self.late = False

    def __enter__(self) -> Self:
        self._before = _limits.innermost
        self.outer = self._before
        while self._ignore_outer and self.outer is not None and not self.outer._firm:
            self.outer = self.outer.outer
        self.end = now() + self.seconds
        if self.outer is not None and self.outer.end < self.end:
            self.seconds, self.end = self.outer.seconds, self.outer.end
        _limits.innermost = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _limits.innermost = self._before
        self.late = self.late or isinstance(error, OutOfTime)
        if self.outer is not None and self.late:
            self.outer.late = True


class step_limit(time_limit):  # noqa: N801  # reads as a function
    """Context that limits a request's CPU seconds while other requests wait. It applies to all limits within it."""

    __slots__ = ()

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, ignore_outer=True, firm=True)

    def __enter__(self) -> Self:
        super().__enter__()
        _limits.step = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _limits.step = None
        super().__exit__(kind, error, trace)

    @property
    def left(self) -> float:
        """The remaining seconds; zero or negative once the limit is exceeded."""
        return self.end - now()


def step_is_over() -> bool:
    """Whether a ``step_limit`` applies to this thread and is exceeded."""
    return _limits.step is not None and _limits.step.left <= 0


_left_behind: dict[int, threading.Thread] = {}


def call_apart(call: Callable[[], _Answer], owner: object) -> _Answer:
    """Call code that cannot be interrupted. Within a ``step_limit`` it runs in a thread, so that others need not wait.

    ``owner``: the object that the call belongs to. While a thread of an earlier call still runs, its owner gets no
    other one.
    """
    step = _limits.step
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
        step.end -= time.monotonic() - start  # waiting uses no CPU time, so it is charged here
    if not answer:
        _left_behind[id(owner)] = thread
        raise StepOver(step.seconds, shared=True)
    return answer[0]


@contextmanager
def giving_way() -> Iterator[None]:
    """Context that lets urgent threads run first: ``check_deadline`` makes this one rest twice as long as it works."""
    _limits.rested_at = -math.inf
    try:
        yield
    finally:
        _limits.rested_at = None


@contextmanager
def uncounted() -> Iterator[None]:
    """Context for users' functions, which have no time limit: their time does not count towards any limit."""
    start = now()
    try:
        yield
    finally:
        limit = _limits.innermost
        while limit is not None:
            limit.end += now() - start
            limit = limit.outer


def check_deadline() -> None:
    """Raise TimeLimit if the current limit is exceeded."""
    if _limits.rested_at is not None:
        _limits.rest()
    limit = _limits.innermost
    if limit is not None and now() >= limit.end:
        raise _limits.exceeded(limit.seconds)


def seconds_left(most: float = math.inf) -> float | None:
    """Return the remaining seconds of the current limit, at most ``most``; raise TimeLimit if none are left.

    None if there is no limit and ``most`` is infinite.
    """
    limit = _limits.innermost
    if limit is None:
        return None if math.isinf(most) else most
    left = limit.end - now()
    if left <= 0:
        raise _limits.exceeded(limit.seconds)
    return min(most, left, limit.seconds)  # now() may have been up to 0.01 s ahead when the limit began


def within(match: Callable[..., Any], text: str, *, most: float = math.inf, **options: Any) -> Any:
    """Call a method of a compiled expression on a text, with a time limit."""
    limit = _Patience(most)
    while True:
        try:
            return match(text, timeout=limit.timeout, **options)
        except TimeoutError:
            limit.require_more()


def matches(pattern: Any, text: str, *, most: float = math.inf, **options: Any) -> Iterator[Any]:
    """Yield the matches of a compiled expression in a text, with a time limit; arguments as for ``within``."""
    limit = _Patience(most)
    yielded = 0
    while True:
        try:
            for number, match in enumerate(pattern.finditer(text, timeout=limit.timeout, **options)):
                check_deadline()  # the caller's work between matches counts, too
                if number >= yielded:
                    yielded += 1
                    yield match
        except OutOfTime:
            raise
        except TimeoutError:
            limit.require_more()
        else:
            return


class _Patience:
    """Timeout for one match. `regex` counts the CPU time of all threads, so it stops early if others compute.

    The match is then repeated with twice the timeout, until this thread itself has used up its time.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._seconds = self.timeout = seconds_left(most)
        self._began, self._all_began = now(), time.process_time()

    def require_more(self) -> None:
        """Double the timeout; raise TimeLimit if this thread has used up its time, or all parts together have."""
        spent, of_all, limit = now() - self._began, time.process_time() - self._all_began, _limits.innermost
        others = self.timeout is not None and of_all >= 0.9 * self.timeout
        if self._seconds is None or self.timeout is None or not others or spent >= 0.9 * self._seconds - _STALE:
            if limit is not None and self._seconds != self._most:
                raise _limits.exceeded(limit.seconds) from None
            raise _limits.exceeded(self._most, shared=False) from None
        seconds_left(self._most)
        self.timeout *= 2
        self._began, self._all_began = now(), time.process_time()


@contextmanager
def judging() -> Iterator[None]:
    """Context that adds up the time spent on each draw, because all parts of a constraint share one limit for it."""
    outer = _limits.spent_on
    _limits.spent_on = {} if outer is None else outer
    try:
        yield
    finally:
        _limits.spent_on = outer


@contextmanager
def charged(draw: object) -> Iterator[None]:
    """Context for judging a draw within the time that is left for it."""
    spent_on = {} if _limits.spent_on is None else _limits.spent_on
    _, spent = spent_on.get(id(draw), (draw, 0.0))
    start = now()
    try:
        # The limit of a verdict does not apply: within one, only a user's prefix function judges whole texts.
        with time_limit(CHECK_SECONDS - spent, ignore_outer=True) as clock:
            clock.seconds = CHECK_SECONDS
            yield
    finally:
        spent_on[id(draw)] = (draw, spent + now() - start)  # keep the draw, so that its id is not reused
