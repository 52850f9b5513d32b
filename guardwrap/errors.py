"""The error tree: everything guardwrap raises on purpose.

::

    GuardwrapError
    ├── UsageError (ValueError)        a call that cannot work: unknown keyword, unsupported setting
    │   ├── PromptError                an empty prompt, or one longer than the model's context
    │   │   └── ContextExceeded        a prompt, or a prompt and its longest text, longer than the context
    │   └── UnknownName                no such kind, sampler or catalogue entry; names the nearest one
    ├── ConstraintError (ValueError)   a constraint that is not well formed
    │   ├── SpecError                  the same in a constraint file; names path and line
    │   │   └── ForeignFile            a YAML file that is probably meant for something else
    │   └── Unsatisfiable              no text can satisfy it
    ├── ModelError                     the model or its files cannot be used
    │   └── EndpointError              a server cannot be used: unreachable, wrong key or model, too many failures
    ├── AdapterError                   an adapter's files cannot be used: missing, corrupt, tampered with, unsupported
    │   └── AdapterMismatch            valid files for another model or constraint
    ├── NoAcceptance (ValueError)      no attempt satisfies the constraint, so a figure about g is undefined
    ├── CheckFailed                    a checker crashed, timed out or returned a non-bool
    └── GenerationFailed               generation ended without the requested texts
        ├── BudgetExhausted            the budget ended first; carries the outcomes
        └── Deterministic              greedy or beam search gave a text that violates the constraint

Messages never contain generated text, so that no text leaks that has not passed its constraint. The exception of a
checker is kept in ``CheckFailed.original`` within the process; copies and pickles of an error do not contain it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from guardwrap.outcomes import Outcome, Report

__all__ = [
    "AdapterError",
    "AdapterMismatch",
    "BudgetExhausted",
    "CheckFailed",
    "ConstraintError",
    "ContextExceeded",
    "Deterministic",
    "EndpointError",
    "ForeignFile",
    "GenerationFailed",
    "GuardwrapError",
    "ModelError",
    "NoAcceptance",
    "PromptError",
    "SpecError",
    "UnknownName",
    "Unsatisfiable",
    "UsageError",
]


class GuardwrapError(Exception):
    """Base of every error that guardwrap raises on purpose.

    Attributes
    ----------
    outcomes : tuple of Outcome
        Outcomes of a call for several prompts up to the error, so that accepted texts are not lost.
    location : tuple of str or int
        Path of keys and indexes to the invalid field of a constraint or budget; () if unknown.
    """

    outcomes: tuple[Outcome, ...] = ()
    location: tuple[str | int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # __init__ has other parameters than the message, and ``original`` may quote a generated text.
        kept = {name: value for name, value in vars(self).items() if name != "original"}
        return _rebuilt, (type(self), self.args), kept


def _rebuilt(kind: type[GuardwrapError], args: tuple[Any, ...]) -> GuardwrapError:
    """Create an error without calling ``__init__``; pickle sets its attributes afterwards."""
    return kind.__new__(kind, *args)


class UsageError(GuardwrapError, ValueError):
    """A call that cannot work as written."""


class PromptError(UsageError):
    """A prompt that the model cannot continue: empty, or longer than the context."""


class ContextExceeded(PromptError):
    """A prompt that does not fit into the model's context, by itself or with the longest text that it may get."""


class UnknownName(UsageError):
    """A name that is not registered.

    Parameters
    ----------
    what
        Kind of the name, e.g. ``"sampler"``.
    name
        The unknown name.
    known
        All existing names.
    """

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"unknown {what} {name!r}{nearest(name, names)}; known: {', '.join(names)}")
        self.name = name
        self.known: list[str] = names


class ConstraintError(GuardwrapError, ValueError):
    """A constraint that is not well formed."""


class SpecError(ConstraintError):
    """A constraint file that is not well formed; the message names the path and the line."""


class ForeignFile(SpecError):
    """A YAML file that is probably meant for something else: it is empty, no mapping, or lacks the format's version."""


class Unsatisfiable(ConstraintError):
    """A constraint that no text can satisfy, detected before generation."""


class ModelError(GuardwrapError):
    """The model or its files cannot be used."""


class EndpointError(ModelError):
    """A server cannot be used: it is unreachable, rejects requests, or has failed too often."""


class AdapterError(GuardwrapError):
    """An adapter's files cannot be used."""


class AdapterMismatch(AdapterError):
    """An adapter that was trained for another model or constraint; ``allow_mismatch=True`` accepts it."""


class NoAcceptance(GuardwrapError, ValueError):
    """None of the attempts satisfies the constraint, so nothing can be estimated about g.

    Parameters
    ----------
    attempts
        Number of attempts, or None if unknown.
    """

    def __init__(self, attempts: int | None) -> None:
        which = "none of the attempts" if attempts is None else f"none of {attempts} attempts"
        super().__init__(
            f"{which} satisfies the constraint; make more, weaken it, or use a proposal that satisfies it more often"
        )
        self.attempts = attempts


class CheckFailed(GuardwrapError):
    """A checker crashed, timed out or returned something that is not a bool.

    A crash is not a violation: it ends the run instead of spending the budget.

    Parameters
    ----------
    constraint
        Label of the constraint.
    reason
        The problem, without any generated text.
    original
        The checker's exception. Its message may quote the checked text, so it is not shown in the traceback. None in
        copies and in other processes.
    """

    original: BaseException | None = None

    def __init__(self, constraint: str, reason: str, original: BaseException | None = None) -> None:
        super().__init__(f"constraint {quoted(constraint)} {reason}")
        self.constraint = constraint
        self.original = original


class GenerationFailed(GuardwrapError):
    """Generation ended without the requested texts. ``outcomes`` has one for each prompt, also for successful ones."""

    def __init__(self, message: str, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(message)
        self.outcomes: tuple[Outcome, ...] = tuple(outcomes)


class BudgetExhausted(GenerationFailed):
    """The budget ended before enough texts were accepted.

    Attributes
    ----------
    report : Report
        The report of the first prompt that exhausted its budget.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if not outcome.ok]
        self.report: Report = failed[0].report
        others = f" (and {len(failed) - 1} other prompts)" if len(failed) > 1 else ""
        super().__init__(f"{self.report.headline()}{others}; {self.report.advice()}", outcomes)


class Deterministic(GenerationFailed):
    """Greedy or beam search gave a text that violates the constraint; another call would give the same text."""


def own_error(error: BaseException) -> Exception:
    """Convert what user code raised to an Exception, so that it ends only the request it belongs to.

    A ``SystemExit`` or ``CancelledError`` would end the thread that serves all requests. In the main thread, which
    serves no others, such errors also come from Ctrl-C and signals, so they are raised again.
    """
    if isinstance(error, Exception):
        return error
    if threading.current_thread() is threading.main_thread():
        raise error
    return UsageError(f"code of the call raised {type(error).__name__}; raise an Exception, such as ValueError")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def quoted(text: str) -> str:
    """Return a text in quotation marks on one line, with single backslashes for readability."""
    return repr(text).replace("\\\\", "\\")


REMOVED = {
    "cache": "answers are not cached, since no key has all that a text depends on; keep the outcomes yourself",
}
"""Options that were removed, and what to do instead."""


def nearest(name: object, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known name, or nothing; for a removed name, what to do."""
    if str(name) in REMOVED:
        return f" ({REMOVED[str(name)]})"
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


Made = TypeVar("Made", bound=Callable[..., Any])


def strict_arguments(made: Made) -> Made:
    """Decorate a function or class to raise UsageError for invalid arguments, with the valid ones in the message.

    Python's TypeError suggests similar names only from 3.13 on, and never lists keyword-only options.
    """
    if not isinstance(made, type):
        checked: Made = _checked(made, made.__qualname__.removesuffix(".__init__"))
        return checked
    made.__init__ = _checked(made.__init__, made.__name__)  # type: ignore[misc]
    return made


def _checked(function: Any, name: str) -> Any:
    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        require_arguments(function, name, given, options, UsageError)
        return function(*given, **options)

    return call


def require_arguments(
    function: Any, name: str, given: Sequence[object], options: Iterable[str], error: type[GuardwrapError]
) -> None:
    """Raise an error unless a function accepts these positional arguments (with ``self`` for a method) and keywords."""
    known = _parameters(function)
    kinds = {each.kind for each in known.values()}
    names = [name for name in known if name != "self"]
    places = [each for each in known.values() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(given) > len(places) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        without = [each.name for each in places if each.name in names]
        others = [f"{name}=..." for name in names if name not in without]
        takes = f"{name} takes {len(without) or 'no'} argument{'s' * (len(without) > 1)} without a name"
        surplus = f"{takes}, not {len(given) - len(places) + len(without)}"
        raise error(f"{surplus}; " + (f"write {name}({', '.join(without + others)})" if names else "leave them out"))
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    for option in options:
        if option not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise error(f"{name} has no option {option!r}{nearest(option, names)}; {has}")


@functools.lru_cache(maxsize=256)
def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, which takes 0.1 ms to find out."""
    return inspect.signature(function).parameters


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def require_whole(name: str, value: int, least: int) -> int:
    """Return a whole number that is at least ``least``, or raise UsageError, which calls it ``name``."""
    if not is_count(value) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")
    return value
