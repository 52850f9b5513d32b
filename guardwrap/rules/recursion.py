"""Recursive parsers: what they can parse depends on the text alone, not on how deep in the stack they are called."""

from __future__ import annotations

from collections.abc import Callable

from guardwrap.documents.time_limits import CHECK_SECONDS, TimeLimit, check_deadline, time_limit
from guardwrap.environment.threads import in_thread

_LONGEST_WAIT = 30.0
"""Seconds of wall-clock time. The parsers called here end after far fewer CPU seconds, whatever the text."""


def fault_or_too_deep(parse: Callable[[], str | None]) -> str | None:
    """Return what a recursive parser finds wrong with a text; None if it accepts it.

    If Python's limit on recursion is reached, the text is parsed again in a thread, whose stack is empty. One that does
    not fit there either is nested too deeply, which is a rejection. The parser must not catch ``RecursionError``.
    """
    try:
        return parse()
    except RecursionError:
        check_deadline()

    def parse_in_time() -> str | None:
        with time_limit(CHECK_SECONDS):
            return parse()

    try:
        faults, _ = in_thread(parse_in_time, _LONGEST_WAIT, name="guardwrap-parser")
    except RecursionError:
        return "is nested too deeply"
    if not faults:
        raise TimeLimit(CHECK_SECONDS, shared=True)
    return faults[0]
