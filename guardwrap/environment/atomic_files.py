"""Files that are written all at once: whatever happens, a file is the old one or the new one, and never half of it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["unfollowed", "write_whole"]

_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNFOLLOWED | getattr(os, "O_BINARY", 0)

_LONGEST = 40
"""Characters of a file's name that the new file's begins with: names have a limit."""


def write_whole(path: Path, content: Iterable[bytes]) -> int:
    """Write a file, or replace it, all at once.

    The content goes to a new file in the same folder first. Its name cannot be guessed, and nothing that is there
    already is opened: not a link that somebody has put in the way, and not a pipe that nobody reads.

    Parameters
    ----------
    path
        The file. A link is replaced itself; resolve it first to write what it leads to.
    content
        What it is to hold, piece by piece.

    Returns
    -------
    int
        The size of the file, in bytes. Its permissions are those of the file before it, or else what the umask gives.

    Raises
    ------
    OSError
        If that cannot be; what was there stays.
    """
    beside = path.with_name(f".{path.name[:_LONGEST]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(beside, _NEW, 0o666), "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        before = _permissions(path)
        if before is not None:
            beside.chmod(before)
        beside.replace(path)
    except (Exception, KeyboardInterrupt):
        with suppress(OSError):
            beside.unlink()
        raise
    return size


def unfollowed(path: str, flags: int) -> int:
    """Open a file for ``open(..., opener=unfollowed)``: a link in its place is an OSError, and is not followed."""
    return os.open(path, flags | _UNFOLLOWED, 0o666)


def _permissions(path: Path) -> int | None:
    """Return the permissions of a regular file, or None where there is none."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        return mode & 0o777 if stat.S_ISREG(mode) else None
    return None
