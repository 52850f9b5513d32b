"""Advice that is given in Python's words, in those of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["in_flags"]

_SPELLED: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"draw from the model itself, masked with sampler=": "draw from the model itself, masked, with --masked sampler=",
    r"draw from the model itself with sampler=": "draw from the model itself with --no-proposal sampler=",
    r"sampler='(\w+)'": r"--sampler \1",
    r"proposal=Prompt\(\.\.\.\)": "--proposal '... {prompt}'",
    r"Budget\(([^)]*)\)": lambda budget: budget[1].replace(",", ""),
    r"\b(max_\w+|pilot)=(\d+)": lambda limit: f"--{limit[1].replace('_', '-')} {limit[2]}",
}
"""What stands in the place of what, one after the other."""


def in_flags(advice: str) -> str:
    """Spell what advice names in Python as options of the command line.

    Examples
    --------
    >>> in_flags("sampler='qrs' and Budget(max_attempts=8200), enough with probability 0.99")
    '--sampler qrs and --max-attempts 8200, enough with probability 0.99'
    """
    for pattern, flag in _SPELLED.items():
        advice = re.sub(pattern, flag, advice)
    return advice
