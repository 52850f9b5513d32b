"""What may be spent on one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from guardwrap.errors import UsageError, is_count, strict_arguments

__all__ = ["Budget", "budget_or_none"]


@strict_arguments
@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent on one prompt. None (in YAML: null) is no limit.

    The first three limits do not bias what is returned: they are looked at in launch order, before an attempt
    counts, and never end an attempt that has begun.

    Parameters
    ----------
    max_attempts
        Attempts. Exact, whatever the batch size.
    max_tokens
        Tokens over all attempts. Attempt i counts if the attempts before it took fewer than this; exact too.
    max_seconds
        Seconds since the prompt's first attempt, looked at before attempts are launched.
    deadline
        Hard limit in seconds: what is in flight is abandoned. Short texts are favoured, so the report says
        "biased by a deadline".
    max_computed_tokens
        Tokens that the model is run for, looked at before attempts are launched, as ``max_seconds`` is: what is on its
        way still counts. When it ends depends on the batch size, and not on any text.

    Raises
    ------
    UsageError
        If a limit is not a positive number.
    """

    # Read by pydantic when a constraint file is parsed.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    max_attempts: int | None = 1000
    max_tokens: int | None = None
    max_seconds: float | None = None
    deadline: float | None = None
    max_computed_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_tokens", "max_computed_tokens"):
            value = getattr(self, name)
            if value is not None and (not is_count(value) or value < 1):
                raise _no_limit(name, value, "a whole number of at least 1")
        for name in ("max_seconds", "deadline"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise _no_limit(name, value, "seconds above 0")


def _no_limit(name: str, value: object, wanted: str) -> UsageError:
    wrong = UsageError(f"Budget({name}={value!r}): give {wanted}, or None (in a file null) for no limit")
    wrong.location = (name,)
    return wrong


def budget_or_none(given: Any) -> Budget | None:
    """Return what was given as a budget, or raise UsageError."""
    if given is None or isinstance(given, Budget):
        return given
    count = given if isinstance(given, int) and given > 0 else 1000
    raise UsageError(f"budget={given!r} is no Budget: give Budget(max_attempts={count})")
