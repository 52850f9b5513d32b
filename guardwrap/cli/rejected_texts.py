"""The option ``--show-rejected``: rejected attempts on stderr, with the parts that reject them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import typer

from guardwrap.cli.shared import printable_text
from guardwrap.errors import GuardwrapError, quoted
from guardwrap.scheduling.rejected_attempt import RejectedAttempt

INDENT = "    "


class RejectedTexts:
    """Prints the first rejected attempts of each prompt."""

    def __init__(self, limit: int, where: Callable[[int], str]) -> None:
        self._limit = limit
        self._where = where
        self._shown: Counter[int] = Counter()

    def __call__(self, rejected: RejectedAttempt) -> None:
        """Print an attempt, unless its prompt has had enough of them."""
        if self._shown[rejected.prompt] >= self._limit:
            return
        self._shown[rejected.prompt] += 1
        head = f"{self._where(rejected.prompt)}, attempt {rejected.attempt + 1}, rejected by {_parts(rejected)}:"
        lines = printable_text(rejected.draw.text).splitlines() or ["(no text)"]
        with suppress(OSError):  # a closed stderr must not end the run
            typer.echo("\n".join([head, *(f"{INDENT}{line}" for line in lines)]), err=True)


def _parts(rejected: RejectedAttempt) -> str:
    try:
        return ", ".join(map(str, rejected.explain().rejections))
    except GuardwrapError:  # the attempt has been judged already, so the run can continue
        return quoted(rejected.part)
