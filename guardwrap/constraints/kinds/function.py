"""The ``Python`` constraint, which calls a user's function, and the ``constraint`` decorator that creates it."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Literal, overload

import numpy as np
from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from guardwrap.constraints.base import Constraint, source_file
from guardwrap.constraints.field_checks import require, require_booleans
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view, view
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.outcomes import Draw
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import uncounted
from guardwrap.support.validation import require_code_allowed
from guardwrap.support.yaml_nodes import short


def _require_allowed(function: Any, info: ValidationInfo) -> Any:
    """Reject a function in a file, at any depth, unless the caller passed ``allow_code=True``."""
    require_code_allowed(info, f"Python code ({short(function)})")
    return function


@dataclass(frozen=True, eq=False, repr=False)
class Python(Constraint):
    """A user's function judges the text. Usually created with the ``constraint`` decorator.

    Parameters
    ----------
    function
        A function from a string to a bool, or its name as ``"module:function"``. With ``batched``, a function from a
        list of strings to a list of bools. With two parameters it receives the prompt as text first, or a list of
        prompts.
    batched
        Whether the function judges a list of strings in one call.
    prefix
        A function from a prefix to a Verdict, or its name as ``"module:function"``. It must be sound: VIOLATED only if
        no continuation can satisfy the constraint. It receives the completion, so it requires ``on="completion"``.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a function cannot be found or called.

    Notes
    -----
    There is no time limit for a function, because Python cannot interrupt one safely.

    The digest is computed from ``module:function``. A lambda or a nested function has no such name, so it cannot be
    written to YAML, and its digest differs in every process.
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
        object.__setattr__(self, "on", read_view(self.on))
        require_booleans(self, "batched")
        require(self.prefix is None or self.on == "completion", "prefix requires on='completion'")
        for function in (self.function,) if self.prefix is None else (self.function, self.prefix):
            require(isinstance(function, str) or callable(function), f"{function!r} is not a function")
        if not isinstance(self.function, str):
            self._takes_prompt  # noqa: B018  # so that a function that cannot be called is noticed now

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The function, imported if it was given by name."""
        return resolve(self.function)

    @cached_property
    def _takes_prompt(self) -> bool:
        """Whether the function has two parameters: the prompt and the text."""
        try:
            parameters = inspect.signature(self.call).parameters.values()
        except (TypeError, ValueError):  # some functions written in C have no signature
            return False
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = sum(each.default is each.empty and each.kind in positional for each in parameters)
        by_name = any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters)
        several = any(each.kind is each.VAR_POSITIONAL or each.kind in positional for each in parameters)
        if needed > 2 or by_name or not several:
            name = getattr(self.call, "__name__", "it")
            raise ConstraintError(f"a function takes the text, or the prompt and the text; {name} does not")
        return needed == 2

    @cached_property
    def call_prefix(self) -> Callable[[str], Verdict] | None:
        """The prefix function, imported if it was given by name."""
        return None if self.prefix is None else resolve(self.prefix)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        texts = [view(draw, self.on) for draw in draws]
        flat = [text for group in texts for text in group or ()]
        before: tuple[list[str], ...] = ()
        if self._takes_prompt:
            before = ([draw.prompt for draw, group in zip(draws, texts, strict=True) for _ in group or ()],)
        results = list(self.call(*before, flat)) if self.batched and flat else list(map(self.call, *before, flat))
        if len(results) != len(flat):
            raise CheckFailed(self.title, f"returned {len(results)} results for {len(flat)} texts")
        for result in results:
            # Truthiness is not enough: None from a forgotten return is a bug, not a rejection.
            if not isinstance(result, bool | np.bool_):
                raise CheckFailed(self.title, f"returned {type(result).__name__} instead of bool")
        remaining = iter(results)
        passed = [[bool(next(remaining)) for _ in group or ()] for group in texts]
        return [group is not None and all(each) for group, each in zip(texts, passed, strict=True)]

    def verdict(self, prefix: str, /) -> Verdict:
        if self.call_prefix is None:
            return Verdict.UNDECIDED
        with uncounted():
            return self.call_prefix(prefix)

    def spec(self) -> dict[str, Any]:
        """Return the canonical form, with functions as ``module:function``."""
        spec = {**super().spec(), "function": self._spell(self.function)}
        if self.prefix is not None:
            spec["prefix"] = self._spell(self.prefix)
        return spec

    def _spell(self, function: Callable[..., Any] | str) -> str:
        name = qualified(function)
        return name if importable(function) else f"{name}#{self._nonce}"

    def sources(self) -> dict[str, str]:
        """Return the files of the functions. What they import is not known."""
        return source_file(self.call) | (source_file(self.call_prefix) if self.call_prefix is not None else {})

    @classmethod
    def open_to_clients(cls) -> bool:
        return False

    @property
    def _looks(self) -> bool:
        """False: a user's function does not check the time limit."""
        return False

    @property
    def in_memory(self) -> bool:
        return not all(function is None or importable(function) for function in (self.function, self.prefix))

    @cached_property
    def _nonce(self) -> str:
        return secrets.token_hex(8)

    @cached_property
    def title(self) -> str:
        function = self.function
        if self.name:
            return self.name
        return function if isinstance(function, str) else str(getattr(function, "__name__", repr(function)))


def resolve(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Import a function that is given as ``"module:function"``; return any other function as it is."""
    if not isinstance(function, str):
        return function
    module, _, path = function.partition(":")
    if not path:
        raise ConstraintError(f"{function!r} is not of the form 'module:function'")
    try:
        resolved: Any = import_module(module)
        for attribute in path.split("."):
            resolved = getattr(resolved, attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConstraintError(f"cannot find {function!r}: {error}") from None
    if isinstance(resolved, Python):  # a decorated function: its name is bound to the constraint
        resolved = resolve(resolved.function)
    if not callable(resolved):
        raise ConstraintError(f"{function!r} is not a function")
    return resolved  # type: ignore[no-any-return]


def qualified(function: Callable[..., Any] | str) -> str:
    """Return a function's name as ``module:function``."""
    if isinstance(function, str):
        return function
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"


def importable(function: Callable[..., Any] | str) -> bool:
    """Whether another process can import this function as ``module:function``."""
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
    """Turn a function into a constraint. See ``Python`` for the parameters.

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
    """Return whether judging runs code other than guardwrap's own, for which there is no time limit."""
    return not constraint.interruptible
