"""What transformers says against the arguments of a call, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from transformers import GenerationConfig

from guardwrap.errors import GuardwrapError, UsageError, first_line, nearest


def translated(known: Sequence[str], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and raise transformers' errors as errors of ours."""
    try:
        return call(*args, **kwargs)
    except GuardwrapError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(_say(error, known)) from None


def _say(error: Exception, known: Sequence[str]) -> str:
    """One line of transformers' complaint, with the nearest spelling of an unknown argument."""
    message = first_line(error)
    unused = re.search(r"not used by the model: \['(\w+)'", message)
    if not unused:
        return message
    names = [*vars(GenerationConfig()), *known]
    if unused[1] in _ELSEWHERE:
        return f"unknown argument {unused[1]!r}: here it is {_ELSEWHERE[unused[1]]!r}"
    if unused[1] in BUDGET_LIMITS:
        return f"unknown argument {unused[1]!r}: it belongs to the budget, budget=Budget({unused[1]}=...)"
    if unused[1] in _ONCE:
        return f"unknown argument {unused[1]!r}: it belongs to the wrapper, GuardedGenerator(..., {unused[1]}=...)"
    return f"unknown argument {unused[1]!r}{nearest(unused[1], [n for n in names if not n.startswith('_')])}"


_ELSEWHERE = {"n": "num_return_sequences", "max_tokens": "max_new_tokens", "stop": "stop_strings"}
"""What other libraries call it."""

BUDGET_LIMITS = ("max_attempts", "max_seconds", "deadline", "max_computed_tokens", "timeout")
"""The limits of a ``Budget``, except ``max_tokens``, which other libraries call ``max_new_tokens``."""

_ONCE = ("allow_code",)
"""What is said when a pipeline is wrapped, and not in a call."""
