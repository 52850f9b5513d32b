"""The error tree: everything guardwrap raises on purpose.

::

    GuardwrapError
    ├── UsageError (ValueError)        a call that cannot work: unknown keyword, unsupported setting
    │   ├── PromptError                an empty prompt, or one longer than the model's context
    │   └── UnknownName                no such kind, sampler or catalogue entry; names the nearest one
    ├── ConstraintError (ValueError)   a constraint that is not well formed
    │   ├── SpecError                  the same, in a constraint file: names path and line
    │   └── Unsatisfiable              no text can satisfy it
    ├── ModelError                     the model or its files cannot be used
    │   └── EndpointError              a server cannot be used: not reached, wrong key or model, broken too often
    ├── AdapterError                   an adapter's files cannot be used: missing, corrupt, tampered with, unsupported
    │   └── AdapterMismatch            they are fine, and for another model or constraint
    ├── NoAcceptance (ValueError)      a figure about g, from attempts none of which satisfies the constraint
    ├── CheckFailed                    a checker crashed, timed out or returned a non-bool
    └── GenerationFailed               generation ended without the texts asked for
        ├── BudgetExhausted            the budget ended first; carries the outcomes
        └── Deterministic              greedy or beam search gave a text that violates the constraint

Messages never contain generated text: a text that has not passed its constraint must not leak through an
error message. What a checker itself raised is kept in ``CheckFailed.original``, and stays in its process: a copy or
pickle of an error is without it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from guardwrap.outcomes import Outcome

__all__ = [
    "AdapterError",
    "AdapterMismatch",
    "BudgetExhausted",
    "CheckFailed",
    "ConstraintError",
    "Deterministic",
    "EndpointError",
    "GenerationFailed",
    "GuardwrapError",
    "ModelError",
    "NoAcceptance",
    "PromptError",
    "SpecError",
    "UnknownName",
    "Unsatisfiable",
    "UsageError",
    "first_line",
    "nearest",
    "own_error",
    "require_arguments",
    "strict_arguments",
]


class GuardwrapError(Exception):
    """Base of every error that guardwrap raises on purpose.

    Attributes
    ----------
    outcomes : tuple of Outcome
        The outcomes that a call for several prompts had when the error came up: nothing that was accepted is lost.
    location : tuple of str or int
        Of a constraint or a budget, which field is wrong, and where in it: keys and numbers that lead there; () where
        that is not known.
    """

    outcomes: tuple[Outcome, ...] = ()
    location: tuple[str | int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by __init__, which takes other arguments than the message; and without what may quote a text.
        kept = {name: value for name, value in vars(self).items() if name != "original"}
        return _rebuilt, (type(self), self.args), kept


def _rebuilt(kind: type[GuardwrapError], args: tuple[Any, ...]) -> GuardwrapError:
    """Make an error with the message that it had; what else it has is set afterwards."""
    return kind.__new__(kind, *args)


class UsageError(GuardwrapError, ValueError):
    """A call that cannot work as written."""


class PromptError(UsageError):
    """A prompt that the model cannot continue: empty, or longer than the context."""


class UnknownName(UsageError):
    """A name that is not registered.

    Parameters
    ----------
    what
        What was looked up, e.g. ``"sampler"``.
    name
        The name that was given.
    known
        The names that exist.
    """

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"unknown {what} {name!r}{nearest(name, names)}; known: {', '.join(names)}")
        self.name = name
        self.known = names


class ConstraintError(GuardwrapError, ValueError):
    """A constraint that is not well formed."""


class SpecError(ConstraintError):
    """A constraint file that is not well formed; the message names the path and the line."""


class Unsatisfiable(ConstraintError):
    """A constraint that no text can satisfy, seen before anything was generated."""


class ModelError(GuardwrapError):
    """The model or its files cannot be used."""


class EndpointError(ModelError):
    """A server that texts are drawn from cannot be used: it was not reached, refuses, or has failed too often."""


class AdapterError(GuardwrapError):
    """An adapter's files cannot be used."""


class AdapterMismatch(AdapterError):
    """An adapter that was trained for another model or another constraint; ``allow_mismatch=True`` takes it anyway."""


class NoAcceptance(GuardwrapError, ValueError):
    """None of the attempts satisfies the constraint, so nothing can be estimated about g.

    Parameters
    ----------
    attempts
        How many there were, or None where that is not known.
    """

    def __init__(self, attempts: int | None) -> None:
        which = "none of the attempts" if attempts is None else f"none of {attempts} attempts"
        super().__init__(
            f"{which} satisfies the constraint; make more, weaken it, or use a proposal that meets it more"
        )
        self.attempts = attempts


class CheckFailed(GuardwrapError):
    """A checker crashed, timed out or returned something that is not a bool.

    A crash is not a violation: it ends the run instead of burning the budget.

    Parameters
    ----------
    constraint
        Label of the constraint.
    reason
        What happened, without any generated text.
    original
        What the checker raised. Its own message may quote the text it was judging, so it is kept here and not
        shown in the traceback; None in a copy, and in another process.
    """

    original: BaseException | None = None

    def __init__(self, constraint: str, reason: str, original: BaseException | None = None) -> None:
        super().__init__(f"constraint {quoted(constraint)} {reason}")
        self.constraint = constraint
        self.original = original


class GenerationFailed(GuardwrapError):
    """Generation ended without the texts asked for. ``outcomes`` has one for each prompt, the successful ones too."""

    def __init__(self, message: str, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class BudgetExhausted(GenerationFailed):
    """The budget ended before enough texts were accepted.

    Attributes
    ----------
    report : Report
        The report of the first prompt that exhausted its budget.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if not outcome.ok]
        self.report = failed[0].report
        others = f" (and {len(failed) - 1} other prompts)" if len(failed) > 1 else ""
        super().__init__(f"{self.report.headline()}{others}; {self.report.advice()}", outcomes)


class Deterministic(GenerationFailed):
    """Greedy or beam search gave a text that violates the constraint; asking again would give the same text."""


def own_error(error: BaseException) -> Exception:
    """Return what somebody's own code raised as an Exception, which ends what it belongs to and nothing else.

    A ``SystemExit`` or ``CancelledError`` would end the thread that serves everyone. In the main thread Ctrl-C and
    signals raise such errors too, and nobody else is served there: they are raised again.
    """
    if isinstance(error, Exception):
        return error
    if threading.current_thread() is threading.main_thread():
        raise error
    return UsageError(f"code of the call raised {type(error).__name__}; let it raise an Exception, such as ValueError")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type's name."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def quoted(text: str) -> str:
    """Return a text in quotation marks and in one line, with backslashes as they are written: people read it."""
    return repr(text).replace("\\\\", "\\")


def nearest(name: object, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known name, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


Made = TypeVar("Made", bound=Callable[..., Any])


def strict_arguments(made: Made) -> Made:
    """Let a function or class refuse arguments that it does not take with a UsageError that names what it does.

    Python's own TypeError names no nearest option before 3.13, and never the options that need their names.
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
    """Raise an error unless a function has all of these options, and a place for what is given without a name.

    Parameters
    ----------
    function, name
        The function, and what to call it. A method is given as a function: its ``self`` is among what is given.
    given, options
        Arguments without a name, and the names of the others.
    error
        What to raise.
    """
    known = inspect.signature(function).parameters
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
    """Return a whole number that is large enough, or raise UsageError.

    Parameters
    ----------
    name
        What the number is called in the message.
    value, least
        The number, and the smallest one that is allowed.
    """
    if not is_count(value) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")
    return value
