"""Limits on the cost of one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from guardwrap.errors import UsageError, is_count, strict_arguments


@strict_arguments
@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the cost of one prompt. None (in YAML: null) is no limit.

    All limits except ``deadline`` and ``timeout`` leave the distribution of the texts unchanged: they are checked
    before an attempt starts or counts, and what is decided never depends on the attempt's own text.

    Parameters
    ----------
    max_attempts
        Most attempts. Exact for any batch size.
    max_tokens
        Most new tokens over all attempts. Attempt i counts if the attempts before it have fewer tokens in total than
        this. Exact for any batch size.
    max_seconds
        Most seconds since the prompt's first attempt. Checked before attempts start; running attempts are finished.
    deadline
        Hard limit in seconds since the prompt's first attempt: running attempts are dropped. This favors short texts,
        so the report says "biased by a deadline".
    timeout
        The same limit in seconds since the call, for all its prompts together: waiting for other callers and learning
        a twist count too. The answer, the fallback or the error is there within one step of the model after it.
    max_computed_tokens
        Most new tokens for which the model is run. Checked before attempts start; running attempts are finished. Where
        it ends depends on the batch size.

    Raises
    ------
    UsageError
        If a limit is not a positive number.
    """

    # pydantic reads this when it parses a constraint file.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    max_attempts: int | None = 1000
    max_tokens: int | None = None
    max_seconds: float | None = None
    deadline: float | None = None
    max_computed_tokens: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_tokens", "max_computed_tokens"):
            value = getattr(self, name)
            if value is not None and (not is_count(value) or value < 1):
                raise _no_limit(name, value, "a whole number of at least 1")
        for name in ("max_seconds", "deadline", "timeout"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise _no_limit(name, value, "seconds above 0")


def _no_limit(name: str, value: object, wanted: str) -> UsageError:
    wrong = UsageError(f"Budget({name}={value!r}): give {wanted}, or None (in a file null) for no limit")
    wrong.location = (name,)
    return wrong


def budget_or_none(given: Any) -> Budget | None:
    """Return a Budget or None unchanged; raise UsageError for any other value."""
    if given is None or isinstance(given, Budget):
        return given
    count = given if isinstance(given, int) and given > 0 else 1000
    raise UsageError(f"budget={given!r} is not a Budget; pass Budget(max_attempts={count})")
