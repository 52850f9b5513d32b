"""What is asked of whatever comes from outside, before it is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["irregular", "is_text"]


def is_text(given: str) -> bool:
    """Whether a string is one of characters: half of a surrogate pair is none, and no tokenizer reads it."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def irregular(path: str | Path) -> str | None:
    """Say what stands in a file's place, so that reading it might never end. None for a file, and for nothing.

    What the shell opened is the caller's own to end, such as ``<(command)``: it counts as a file.
    """
    if os.fspath(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/")):
        return None
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # whoever reads it says so
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # of a folder the system says so, at once
        return None
    return "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
