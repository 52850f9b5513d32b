"""Translation of Python names in messages to command-line options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from guardwrap.errors import UsageError
from guardwrap.outcomes import Origin

_SPELLED: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"Repair\(\) continues a chat \(a list of messages\), and this prompt is none: .*": (
        'a repair turn continues a chat, and this prompt is plain text: add --chat, or give "messages" with --jsonl, '
        "or leave out the turns with --repair 0"
    ),
    r"\bplan\(max_seconds=([\d.]+)\)": r"--plan-seconds \1",
    r"sampler='(\w+)'": r"--sampler \1",
    r"proposal=Prompt\(\.\.\.\)": "--proposal '... {prompt}'",
    r"Budget\(([^)]*)\)": lambda budget: budget[1].replace(",", ""),
    r"\b(max_\w+|pilot|top_k|top_p)=(\d+(?:\.\d+)?)": lambda limit: f"--{limit[1].replace('_', '-')} {limit[2]}",
    r"(?<!\w)(?<!ended by )(top_k|top_p|max_(?:\w+_)?(?:tokens|attempts|seconds))(?![\w=])": lambda option: (
        f"--{option[1].replace('_', '-')}"
    ),
}
"""Regular expressions and their replacements, applied one after the other."""


def in_flags(message: str) -> str:
    """Replace Python arguments in advice or in an error message by options of the command line.

    Examples
    --------
    >>> in_flags("sampler='qrs' and Budget(max_attempts=8200), enough with probability 0.99")
    '--sampler qrs and --max-attempts 8200, enough with probability 0.99'
    """
    for pattern, flag in _SPELLED.items():
        message = re.sub(pattern, flag, message)
    return message


@contextmanager
def told_in_flags() -> Iterator[None]:
    """Raise a ``UsageError`` again with options of the command line instead of Python arguments."""
    try:
        yield
    except UsageError as error:
        raise UsageError(in_flags(str(error))) from error.__cause__


def switched_to(source: Origin, used_flags: Sequence[str]) -> str:
    """Say which options to give, and which of the used ones to leave out, to draw from something else."""
    if source.other:
        return " with"
    comma, kept = ("", "") if source.shape is None else (",", f"--{source.shape}")
    left_out = " and ".join(each for each in used_flags if each != kept)
    if left_out:
        return f"{comma} without {left_out}, with{' ' * bool(kept)}{kept}"
    return f"{comma} with {kept or '--no-proposal'}"
