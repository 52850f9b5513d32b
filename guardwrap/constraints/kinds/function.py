"""Constraints from the user's own functions."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Literal, overload

import numpy as np
from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from guardwrap.constraints.base import Constraint, require
from guardwrap.constraints.kinds.text import require_choice
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import VIEWS, View, view
from guardwrap.documents.time_limits import uncounted
from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.outcomes import Draw

__all__ = ["Python", "constraint", "runs_code"]


def _require_allowed(function: Any, info: ValidationInfo) -> Any:
    """Let a file name code only where the caller allows it, wherever in the file it stands."""
    if not (info.context or {}).get("allow_code"):
        raise ValueError(f"names Python code ({short(function)}); pass allow_code=True if you trust the file")
    return function


@dataclass(frozen=True, eq=False, repr=False)
class Python(Constraint):
    """A user's function judges the text. Usually made with the ``constraint`` decorator.

    Parameters
    ----------
    function
        Takes a string and returns a bool, or ``"module:function"``. With ``batched``, takes a list of strings and
        returns a list of bools.
    batched
        Whether the function takes many strings at once.
    prefix
        A function from a prefix to a Verdict, or ``"module:function"``. It must be sound: VIOLATED only if no
        continuation can satisfy the constraint. It sees the completion, so it goes with ``on="completion"`` only.
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If a function cannot be found or called.

    Notes
    -----
    Nothing limits the time that a function takes: it cannot be interrupted safely.

    The digest is that of ``module:function``. A lambda or a nested function has no such name: it cannot be written
    to YAML and its digest is new in every process.
    """

    function: Annotated[Callable[..., Any] | str, AfterValidator(_require_allowed), WithJsonSchema({"type": "string"})]
    batched: bool = field(default=False, kw_only=True)
    prefix: Annotated[Callable[[str], Verdict] | str | None, WithJsonSchema({"type": ["string", "null"]})] = field(
        default=None, kw_only=True
    )
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["python"] = field(default="python", kw_only=True)

    cost = 1

    def __post_init__(self) -> None:
        require_choice(self.on, VIEWS, "on")
        require(self.prefix is None or self.on == "completion", "prefix goes with on='completion' only")
        for given in (self.function,) if self.prefix is None else (self.function, self.prefix):
            require(isinstance(given, str) or callable(given), f"{given!r} is not a function")

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The function itself."""
        return resolve(self.function)

    @cached_property
    def call_prefix(self) -> Callable[[str], Verdict] | None:
        """The prefix function itself."""
        return None if self.prefix is None else resolve(self.prefix)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Call the function on the view of each draw."""
        texts = [view(draw, self.on) for draw in draws]
        flat = [text for group in texts for text in group]
        results = list(self.call(flat)) if self.batched else [self.call(text) for text in flat]
        if len(results) != len(flat):
            raise CheckFailed(self.title, f"returned {len(results)} results for {len(flat)} texts")
        for result in results:
            # Not truthiness: None from a forgotten return is a bug, not a rejection.
            if not isinstance(result, bool | np.bool_):
                raise CheckFailed(self.title, f"returned {type(result).__name__} instead of bool")
        ends = iter(results)
        return [min([bool(next(ends)) for _ in group]) for group in texts]

    def verdict(self, prefix: str, /) -> Verdict:
        """Ask the prefix function, if there is one."""
        if self.call_prefix is None:
            return Verdict.UNDECIDED
        with uncounted():
            return self.call_prefix(prefix)

    def spec(self) -> dict[str, Any]:
        """Spell functions as ``module:function``."""
        spec = {**super().spec(), "function": self._spell(self.function)}
        if self.prefix is not None:
            spec["prefix"] = self._spell(self.prefix)
        return spec

    def _spell(self, function: Callable[..., Any] | str) -> str:
        name = qualified(function)
        return name if importable(function) else f"{name}#{self._nonce}"

    @property
    def _looks(self) -> bool:
        """False: a function looks at no clock."""
        return False

    @property
    def in_memory(self) -> bool:
        """Whether a function cannot be found again by its name."""
        return not all(given is None or importable(given) for given in (self.function, self.prefix))

    @cached_property
    def _nonce(self) -> str:
        return secrets.token_hex(8)

    @cached_property
    def title(self) -> str:
        """Its name, or the function's."""
        function = self.function
        if self.name:
            return self.name
        return function if isinstance(function, str) else str(getattr(function, "__name__", repr(function)))


def resolve(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Find the function behind ``"module:function"``.

    Raises
    ------
    ConstraintError
        If there is none.
    """
    if not isinstance(function, str):
        return function
    module, _, path = function.partition(":")
    if not path:
        raise ConstraintError(f"{function!r} is not of the form 'module:function'")
    try:
        found: Any = import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConstraintError(f"cannot find {function!r}: {error}") from None
    if isinstance(found, Python):  # the decorator's result stands under the function's name
        found = resolve(found.function)
    if not callable(found):
        raise ConstraintError(f"{function!r} is not a function")
    return found  # type: ignore[no-any-return]


def qualified(function: Callable[..., Any] | str) -> str:
    """Spell a function as ``module:function``."""
    if isinstance(function, str):
        return function
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"


def importable(function: Callable[..., Any] | str) -> bool:
    """Whether another process finds this very function under ``module:function``."""
    if isinstance(function, str):
        return True
    name = qualified(function)
    if "<" in name or name.startswith("__main__:"):
        return False
    try:
        return resolve(name) is function
    except ConstraintError:
        return False


@overload
def constraint(function: Callable[..., Any], /) -> Python: ...
@overload
def constraint(
    *,
    batched: bool = ...,
    prefix: Callable[[str], Verdict] | None = ...,
    on: View = ...,
    name: str | None = ...,
) -> Callable[[Callable[..., Any]], Python]: ...


def constraint(
    function: Callable[..., Any] | None = None,
    /,
    *,
    batched: bool = False,
    prefix: Callable[[str], Verdict] | None = None,
    on: View = "completion",
    name: str | None = None,
) -> Python | Callable[[Callable[..., Any]], Python]:
    """Make a constraint of a function; see ``Python`` for the parameters.

    Examples
    --------
    >>> @constraint
    ... def palindrome(text: str) -> bool:
    ...     return text == text[::-1]
    >>> palindrome.accepts("level")
    True
    """

    def wrap(function: Callable[..., Any]) -> Python:
        return Python(function, batched=batched, prefix=prefix, on=on, name=name)

    return wrap if function is None else wrap(function)


def runs_code(constraint: Constraint) -> bool:
    """Return whether judging runs code that is not guardwrap's own, so that nothing limits the time it takes."""
    return not constraint.interruptible
