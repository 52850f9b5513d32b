"""Calls to constraints: whatever a checker does, the caller gets judgements, a verdict or CheckFailed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from guardwrap.constraints.verdicts import READ_ALWAYS, REPLACEMENT, Monitor, Verdict
from guardwrap.errors import CheckFailed, GuardwrapError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import (
    VERDICT_SECONDS,
    OutOfTime,
    StepOver,
    TimeLimit,
    call_apart,
    check_deadline,
    judging,
    time_limit,
)

if TYPE_CHECKING:
    from guardwrap.constraints.base import Constraint


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging one draw."""

    satisfied: bool  # whether the draw satisfies the constraint: b(y)
    blame: str | None = None  # title of the first part that rejected the draw, or None
    # where in the draw that part is violated, without generated text; None if that is not known
    place: str | None = None
    features: tuple[bool, ...] = ()  # whether further rules hold, which reject nothing; of draws that satisfy it


def judge(constraint: Constraint, draws: Sequence[Draw]) -> list[Judgement]:
    """Judge finished draws, and name the first part that rejected each of them."""
    return judge_parts(constraint.parts, draws)


def judge_parts(parts: Sequence[Constraint], draws: Sequence[Draw], *, with_places: bool = False) -> list[Judgement]:
    """Judge draws by each part in order; a part sees only the draws that passed the parts before it.

    A draw with a ``fault`` is rejected, with the fault as its blame, and no part sees it. With ``with_places``,
    rejected draws are judged again to find the place.
    """
    judgements = [Judgement(draw.fault is None, draw.fault) for draw in draws]
    alive = [i for i, judgement in enumerate(judgements) if judgement.satisfied]
    with judging():
        for part in parts:
            if not alive:
                break
            passed = run_check(part, [draws[i] for i in alive])
            for i, ok in zip(alive, passed, strict=True):
                if not ok:
                    judgements[i] = Judgement(False, part.title, _place(part, draws[i]) if with_places else None)
            alive = [i for i, ok in zip(alive, passed, strict=True) if ok]
    return judgements


class Unknown(UsageError):
    """A rule reads something that is not known of a draw."""


def draw_without(*fields: str) -> type[Draw]:
    """Return a class of draws of which some fields are not known. A rule that reads one of them cannot judge them."""

    def read(draw: Draw) -> Any:
        raise Unknown("it is not known of this text")

    return type("DrawWithout", (Draw,), dict.fromkeys(fields, property(read, lambda draw, value: None)))


PromptlessDraw = draw_without("prompt", "begun")
"""Draws whose prompt is not known yet."""


def rule_against(parts: Sequence[Constraint], draw: Draw) -> str | None:
    """Return the title of the first part that rejects a draw. Parts that cannot judge it are left out."""
    for part in parts:
        try:
            (judgement,) = judge_parts([part], [draw])
        except GuardwrapError:
            continue
        if not judgement.satisfied:
            return part.title
    return None


def _place(part: Constraint, draw: Draw) -> str | None:
    """Return where a part rejects a draw; None if it cannot be found."""
    if not part.locates:
        return None
    try:
        return part.place_in(draw)
    except (GuardwrapError, TimeLimit):
        return None


def run_check(constraint: Constraint, draws: Sequence[Draw]) -> list[bool]:
    """Call ``check``. A crash, a wrong number of results or a result that is not a bool raises CheckFailed."""
    if not draws:
        return []
    with guarded_call(constraint), judging():
        check = partial(constraint.check, draws)
        results = list(check() if constraint.interruptible else call_apart(check, constraint))
    if len(results) != len(draws):
        raise CheckFailed(constraint.title, f"returned {len(results)} results for {len(draws)} texts")
    for result in results:
        if not isinstance(result, bool | np.bool_):
            raise CheckFailed(constraint.title, f"returned {type(result).__name__} instead of bool")
    return [bool(result) for result in results]


def run_verdict(constraint: Constraint, prefix: str) -> Verdict:
    """Call ``verdict``. Too slow a verdict is UNDECIDED; a crash or a result of another type raises CheckFailed."""
    with guarded_call(constraint):
        try:
            with time_limit(VERDICT_SECONDS):
                verdict = constraint.verdict(prefix)
        except OutOfTime:
            return Verdict.UNDECIDED
    if not isinstance(verdict, Verdict):
        raise CheckFailed(constraint.title, f"returned {type(verdict).__name__} instead of Verdict")
    return verdict


class guarded_call:  # noqa: N801  # reads as a function
    """Context that turns a checker's exception into CheckFailed, without its message, which may quote the text."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # SystemExit is converted too, because a rule that calls exit() would end the program as if it had succeeded.
        # KeyboardInterrupt in the main thread comes from the user and is passed through.
        interrupt = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if error is not None and not interrupt and not isinstance(error, GuardwrapError | StepOver):
            reason = f"raised {type(error).__name__}; its message may quote the text, see .original"
            raise CheckFailed(self.constraint.title, reason, error) from None


def _once(monitor: Monitor, ask: Callable[[], Verdict]) -> Verdict:
    """Return a monitor's verdict, computed once.

    This is not a ``cached_property``: until Python 3.12 that holds one lock for all monitors, so a user's function
    that hangs in one request would block the others.
    """
    attributes = vars(monitor)
    if "_verdict" not in attributes:
        attributes["_verdict"] = ask()
    verdict: Verdict = attributes["_verdict"]
    return verdict


@dataclass(frozen=True)
class Rereading(Monitor):
    """Monitor that judges the whole prefix again for each piece."""

    constraint: Constraint  # the constraint that judges
    prefix: str = ""  # the text read so far

    @property
    def verdict(self) -> Verdict:
        return _once(self, lambda: run_verdict(self.constraint, self.prefix))

    @property
    def rereads(self) -> bool:
        return True

    def read(self, text: str, /) -> Monitor:
        """Return the monitor of the longer prefix, or this one if its verdict is final."""
        decided = self.prefix and self.verdict is not Verdict.UNDECIDED
        return self if decided else Rereading(self.constraint, self.prefix + text)

    def may_begin(self, partial: bytes, /) -> bool:
        """Try one character of each group that the constraint treats alike, if it names the groups."""
        if self.may_read_one_of([REPLACEMENT]):
            return True
        possible = self.constraint.spelled_with(partial)
        return super().may_begin(partial) if possible is None else self.may_read_one_of(possible)


class Resumed(NamedTuple):
    """What is known of a text that may grow."""

    verdict: Verdict
    summary: Any  # all that counts of the text before ``rest``
    rest: str  # the end of the text, which has to be read again with what follows


@dataclass(frozen=True)
class Resuming(Monitor):
    """Monitor that keeps a summary of the text, and reads only its end again."""

    resume: Callable[[Any, str], Resumed | None]  # judges a summary, None for no text yet, and the text after it
    read_so_far: Resumed

    @property
    def verdict(self) -> Verdict:
        return self.read_so_far.verdict

    @property
    def rereads(self) -> bool:
        """Whether nothing has settled for long, so that much is read again for each piece."""
        return len(self.read_so_far.rest) > READ_ALWAYS

    def read(self, text: str, /) -> Monitor:
        verdict, summary, rest = self.read_so_far
        resumed = self.resume(summary, rest + text) if verdict is Verdict.UNDECIDED else None
        return self if resumed is None else Resuming(self.resume, resumed)


@dataclass(frozen=True)
class Combined(Monitor):
    """Monitor of several parts: Kleene's conjunction or disjunction of their verdicts."""

    choose: Callable[[Iterable[Verdict]], Verdict]  # ``min`` for a conjunction, ``max`` for a disjunction
    parts: Sequence[Monitor]  # the monitors

    @property
    def verdict(self) -> Verdict:
        return _once(
            self, lambda: self.choose(part.verdict for part in self.parts) if self.parts else Verdict.UNDECIDED
        )

    @property
    def rereads(self) -> bool:
        return any(part.rereads for part in self.parts)

    def read(self, text: str, /) -> Monitor:
        if self.verdict is not Verdict.UNDECIDED:
            return self
        read = []
        for part in self.parts:
            check_deadline()
            read.append(part.read(text))
        return Combined(self.choose, tuple(read))

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        if self.verdict is not Verdict.UNDECIDED:
            return [self.verdict] * len(texts)
        each = [part.verdicts(texts) for part in self.parts]
        return [self.choose(column) for column in zip(*each, strict=True)]

    @property
    def violated_at(self) -> str | None:
        """The place of the first part of a conjunction that is violated."""
        if self.choose is not min:
            return None
        places = (part.violated_at for part in self.parts if part.verdict is Verdict.VIOLATED)
        return next(places, None)

    @property
    def key(self) -> Hashable | None:
        keys = tuple(part.key for part in self.parts)
        return None if None in keys else keys

    @property
    def delimiters(self) -> bytes | None:
        each = [part.delimiters for part in self.parts]
        return None if None in each else b"".join(filter(None, each))

    def may_begin(self, partial: bytes, /) -> bool:
        """Combine the parts' answers. For a conjunction this may be True though no one character suits all parts."""
        if self.verdict is not Verdict.UNDECIDED:
            return self.verdict is Verdict.SATISFIED
        answers = (part.may_begin(partial) for part in self.parts)
        return all(answers) if self.choose is min else any(answers)


@dataclass(frozen=True)
class Negated(Monitor):
    """Monitor of a negated constraint."""

    part: Monitor  # the monitor of the constraint that must not hold

    @property
    def verdict(self) -> Verdict:
        return Verdict(-self.part.verdict)

    @property
    def rereads(self) -> bool:
        return self.part.rereads

    def read(self, text: str, /) -> Monitor:
        return Negated(self.part.read(text))

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        return [Verdict(-verdict) for verdict in self.part.verdicts(texts)]

    @property
    def key(self) -> Hashable | None:
        return self.part.key
