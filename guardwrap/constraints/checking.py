"""Constraints asked: whatever they do, the answer is a judgement, a verdict or CheckFailed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from guardwrap.constraints.verdicts import Verdict
from guardwrap.documents.time_limits import VERDICT_SECONDS, StepOver, TimeLimit, call_apart, judging, time_limit
from guardwrap.errors import CheckFailed, GuardwrapError
from guardwrap.outcomes import Draw

if TYPE_CHECKING:
    from guardwrap.constraints.base import Constraint

__all__ = ["Judgement", "judge", "run_check", "run_verdict"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one draw.

    Parameters
    ----------
    satisfied
        b(y).
    blame
        Title of the first part that rejected it, or None.
    """

    satisfied: bool
    blame: str | None = None


def judge(constraint: Constraint, draws: Sequence[Draw]) -> list[Judgement]:
    """Judge finished draws and say which part was first to reject each."""
    return judge_parts(constraint.parts, draws)


def judge_parts(parts: Sequence[Constraint], draws: Sequence[Draw]) -> list[Judgement]:
    """Hand the survivors of each part on to the next; a draw with a fault is none."""
    judgements = [Judgement(draw.fault is None, draw.fault) for draw in draws]
    alive = [i for i, judgement in enumerate(judgements) if judgement.satisfied]
    with judging():
        for part in parts:
            if not alive:
                break
            passed = run_check(part, [draws[i] for i in alive])
            for i, ok in zip(alive, passed, strict=True):
                if not ok:
                    judgements[i] = Judgement(False, part.title)
            alive = [i for i, ok in zip(alive, passed, strict=True) if ok]
    return judgements


def run_check(constraint: Constraint, draws: Sequence[Draw]) -> list[bool]:
    """Call ``check``; a crash, a wrong length or a non-bool becomes CheckFailed."""
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
    """Call ``verdict``; what takes too long is UNDECIDED, a crash or another type becomes CheckFailed."""
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
    """Turn what a checker raises into CheckFailed, without its message: that may quote the text."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # SystemExit too: a rule that ends the program would end it as if all were well. In the main thread an
        # interrupt is the user's own.
        interrupt = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if error is not None and not interrupt and not isinstance(error, GuardwrapError | StepOver):
            reason = f"raised {type(error).__name__}; its message may quote the text, see .original"
            raise CheckFailed(self.constraint.title, reason, error) from None
