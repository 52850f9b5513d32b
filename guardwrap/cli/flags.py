"""Advice that is given in Python's words, in those of the command line."""

from __future__ import annotations

import re

__all__ = ["in_flags"]

_SPELLED = {
    r"draw from the model itself, masked with sampler=": "draw from the model itself, masked, with --masked sampler=",
    r"draw from the model itself with sampler=": "draw from the model itself with --no-proposal sampler=",
    r"sampler='(\w+)'": r"--sampler \1",
    r"proposal=Prompt\(\.\.\.\)": "--proposal '... {prompt}'",
    r"\b(max_attempts|max_tokens|max_computed_tokens|pilot)=(\d+)": r"--\1 \2",
}


def in_flags(advice: str) -> str:
    """Spell what advice names in Python as options of the command line.

    Examples
    --------
    >>> in_flags("sampler='qrs' and Budget(max_attempts=8200), enough with probability 0.99")
    '--sampler qrs and --max-attempts 8200, enough with probability 0.99'
    """
    advice = re.sub(r"Budget\(([^)]*)\)", lambda found: found[1].replace(",", ""), advice)
    for pattern, flag in _SPELLED.items():
        advice = re.sub(pattern, flag, advice)
    return re.sub(r"--max_\w+", lambda found: found.group().replace("_", "-"), advice)
