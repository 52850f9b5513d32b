"""What is said in Python's words, in those of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from guardwrap.errors import UsageError

__all__ = ["as_said", "by_places", "in_flags", "told_in_flags"]

_SPELLED: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"draw from the model itself, masked with sampler=": "draw from the model itself, masked, with --masked sampler=",
    r"draw from the model itself with sampler=": "draw from the model itself with --no-proposal sampler=",
    r"sampler='(\w+)'": r"--sampler \1",
    r"proposal=Prompt\(\.\.\.\)": "--proposal '... {prompt}'",
    r"Budget\(([^)]*)\)": lambda budget: budget[1].replace(",", ""),
    r"\b(max_\w+|pilot|top_k)=(\d+)": lambda limit: f"--{limit[1].replace('_', '-')} {limit[2]}",
    r"(?<!\w)(?<!ended by )(top_k|top_p|max_(?:\w+_)?(?:tokens|attempts|seconds))(?![\w=])": lambda option: (
        f"--{option[1].replace('_', '-')}"
    ),
}
"""What stands in the place of what, one after the other."""


def in_flags(said: str) -> str:
    """Spell what advice or an error names in Python as options of the command line.

    Examples
    --------
    >>> in_flags("sampler='qrs' and Budget(max_attempts=8200), enough with probability 0.99")
    '--sampler qrs and --max-attempts 8200, enough with probability 0.99'
    """
    for pattern, flag in _SPELLED.items():
        said = re.sub(pattern, flag, said)
    return said


@contextmanager
def told_in_flags() -> Iterator[None]:
    """Raise what is said to be wrong with a call again, in the words of the command line."""
    try:
        yield
    except UsageError as error:
        raise UsageError(in_flags(str(error))) from error.__cause__


def as_said(advice: str, given: Sequence[str]) -> str:
    """Name the options that are to be left out of the command, where the advice is to draw from something else."""
    for flag, kept in (("--no-proposal", None), ("--masked", "--masked")):
        left_out = " and ".join(each for each in given if each != kept)
        if left_out and f" with {flag} " in advice:
            return advice.replace(f" with {flag} ", f" without {left_out}, with {f'{kept} ' if kept else ''}")
    return advice


def by_places(advice: str, places: Sequence[str]) -> str:
    """Call the prompts that advice on a plan numbers by where they stand.

    Examples
    --------
    >>> by_places("Budget(max_attempts=8), enough for prompt 2, which needs most", ["in.jsonl:1", "in.jsonl:7"])
    'Budget(max_attempts=8), enough for in.jsonl:7, which needs most'
    """
    # In its own words alone: a proposal's, which it may quote, can have a number too.
    numbered = r"\bprompt (\d+)(?= had no text|, which needs most)|(?<=\(the first is )number (\d+)(?=\))"
    return re.sub(numbered, lambda found: places[int(found[1] or found[2]) - 1], advice)
