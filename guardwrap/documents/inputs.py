"""Checks of strings and paths from outside, before they are used."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_text(text: str) -> bool:
    """Whether a string has no half of a surrogate pair, which is not a character and which no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(text: str) -> str:
    """Return a text with U+FFFD in place of each half of a surrogate pair, which no tokenizer accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def irregular(path: str | Path) -> str | None:
    """Return the type of a special file, reading which might never end; None for a regular file or a missing one.

    Files that the shell opened, such as ``<(command)``, count as regular, because the caller controls when they end.
    """
    if os.fspath(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/")):
        return None
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # opening the file will report the error
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # opening a folder fails at once
        return None
    return "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
