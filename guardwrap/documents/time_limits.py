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

from guardwrap.environment.threads import in_thread

_Answer = TypeVar("_Answer")

# Limits for all parts of a constraint together. A verdict is needed after every token, so its limit is short.
CHECK_SECONDS = 2.0  # for judging one text
VERDICT_SECONDS = 0.05  # for a verdict on one prefix

WORKS = 2e-3  # seconds that a thread which gives way to others works before it rests


class TimeLimit(TimeoutError):
    """A time limit was exceeded. It becomes CheckFailed, SpecError or UNDECIDED before it reaches the user."""

    def __init__(self, seconds: float, *, shared: bool) -> None:
        super().__init__(f"took more than {seconds:g} s")
        self.seconds = seconds
        self.shared = shared


class StepOver(TimeLimit):
    """A request has used up the time that it may take while other requests wait.

    The work is done elsewhere, or left out. This is no failure of the checker, so it never becomes CheckFailed.
    """


class _Running(threading.local):
    # Per thread and not per context, because a context may continue in another thread, which has its own CPU time.
    clock: time_limit | None = None  # the innermost limit
    step: step_limit | None = None
    gives_way: bool = False  # whether this thread rests regularly so that others can run
    rested: float = 0.0  # when it last rested, by time.monotonic()
    used: dict[int, tuple[object, float]] | None = None  # draws by id, with the seconds that judging each has taken
    wall: float = -math.inf  # time.monotonic() when the CPU time was last read
    cpu: float = 0.0  # the CPU time at that moment


_running = _Running()

_STALE = 1e-2  # seconds


def now() -> float:
    """Return the CPU seconds of this thread; the result may be up to 0.01 s too high.

    Limits count the thread's own CPU time, so that they do not depend on how busy the machine is. (`regex` counts the
    CPU time of all threads of the process, but holds the interpreter lock meanwhile, so the two differ little.) Reading
    the CPU time takes up to 15 µs, several times per verdict. For 0.01 s after each reading, the elapsed wall time is
    added instead, which is never less than the CPU time used.
    """
    wall = time.monotonic()
    if not 0 <= wall - _running.wall <= _STALE:
        _running.wall, _running.cpu = wall, time.thread_time()
    return _running.cpu + wall - _running.wall


class time_limit:  # noqa: N801  # reads as a function; entered at every token, so it is no generator
    """Context that limits the CPU seconds of its body. Of nested limits, the one that ends first applies."""

    __slots__ = ("_before", "_firm", "_ignore_outer", "end", "late", "outer", "seconds")

    def __init__(self, seconds: float, *, ignore_outer: bool = False, firm: bool = False) -> None:
        self.seconds = seconds
        self._ignore_outer = ignore_outer
        self._firm = firm
        self.late = False

    def __enter__(self) -> Self:
        self._before = _running.clock
        self.outer = self._before
        while self._ignore_outer and self.outer is not None and not self.outer._firm:
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
    """Context that limits a request's CPU seconds while other requests wait. It applies to all limits within it."""

    __slots__ = ()

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, ignore_outer=True, firm=True)

    def __enter__(self) -> Self:
        super().__enter__()
        _running.step = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _running.step = None
        super().__exit__(kind, error, trace)

    @property
    def left(self) -> float:
        """The remaining seconds; zero or negative once the limit is exceeded."""
        return self.end - now()


def step_is_over() -> bool:
    """Whether a ``step_limit`` applies to this thread and is exceeded."""
    return _running.step is not None and _running.step.left <= 0


_left_behind: dict[int, threading.Thread] = {}


def call_apart(call: Callable[[], _Answer], owner: object) -> _Answer:
    """Call code that cannot be interrupted. Within a ``step_limit`` it runs in a thread, so that others need not wait.

    ``owner``: the object that the call belongs to. While a thread of an earlier call still runs, its owner gets no
    other one.
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
        step.end -= time.monotonic() - start  # waiting uses no CPU time, so it is charged here
    if not answer:
        _left_behind[id(owner)] = thread
        raise StepOver(step.seconds, shared=True)
    return answer[0]


@contextmanager
def giving_way() -> Iterator[None]:
    """Context that lets urgent threads run first: ``check_deadline`` makes this one rest twice as long as it works."""
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
    """Context for users' functions, which have no time limit: their time does not count towards any limit."""
    start = now()
    try:
        yield
    finally:
        clock = _running.clock
        while clock is not None:
            clock.end += now() - start
            clock = clock.outer


def check_deadline() -> None:
    """Raise TimeLimit if the current limit is exceeded."""
    if _running.gives_way:
        _rest()
    clock = _running.clock
    if clock is not None and now() >= clock.end:
        raise _over(clock.seconds, shared=True)


def seconds_left(most: float = math.inf) -> float | None:
    """Return the remaining seconds of the current limit, at most ``most``; raise TimeLimit if none are left.

    None if there is no limit and ``most`` is infinite.
    """
    clock = _running.clock
    if clock is None:
        return None if math.isinf(most) else most
    left = clock.end - now()
    if left <= 0:
        raise _over(clock.seconds, shared=True)
    return min(most, left, clock.seconds)  # now() may have been up to 0.01 s ahead when the limit began


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
        except TimeLimit:
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
    # Allow 0.01 s or 10 %, because `regex` stops a little early if other threads compute, too.
    over = step is not None and step.left <= max(_STALE, 0.1 * step.seconds)
    return StepOver(seconds, shared=True) if over else TimeLimit(seconds, shared=shared)


@contextmanager
def judging() -> Iterator[None]:
    """Context that adds up the time spent on each draw, because all parts of a constraint share one limit for it."""
    outer = _running.used
    _running.used = {} if outer is None else outer
    try:
        yield
    finally:
        _running.used = outer


@contextmanager
def charged(draw: object) -> Iterator[None]:
    """Context for judging a draw within the time that is left for it."""
    used = {} if _running.used is None else _running.used
    _, spent = used.get(id(draw), (draw, 0.0))
    start = now()
    try:
        # The limit of a verdict does not apply: within one, only a user's prefix function judges whole texts.
        with time_limit(CHECK_SECONDS - spent, ignore_outer=True) as clock:
            clock.seconds = CHECK_SECONDS
            yield
    finally:
        used[id(draw)] = (draw, spent + now() - start)  # keep the draw, so that its id is not reused
