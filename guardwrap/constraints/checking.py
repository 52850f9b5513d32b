"""Calls to constraints: whatever a checker does, the caller gets judgements, a verdict or CheckFailed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from guardwrap.constraints.verdicts import Verdict
from guardwrap.documents.time_limits import VERDICT_SECONDS, StepOver, TimeLimit, call_apart, judging, time_limit
from guardwrap.errors import CheckFailed, GuardwrapError, UsageError
from guardwrap.outcomes import Draw

if TYPE_CHECKING:
    from guardwrap.constraints.base import Constraint


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging one draw."""

    satisfied: bool  # whether the draw satisfies the constraint: b(y)
    blame: str | None = None  # title of the first part that rejected the draw, or None
    # where in the draw that part is violated, without generated text; None if that is not known
    place: str | None = None


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
    except StepOver:
        raise
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
        except TimeLimit:
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
