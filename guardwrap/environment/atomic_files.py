"""Atomic replacement of files: whatever happens, a file is either the old one or the new one, and never incomplete."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNFOLLOWED | getattr(os, "O_BINARY", 0)

_LONGEST = 40
"""Number of characters of the file's name to use in the temporary file's name, whose length is limited."""


def write_whole(path: Path, content: Iterable[bytes]) -> int:
    """Write a file, or replace it, atomically.

    The content is first written to a new file in the same folder, with a name that cannot be guessed. No existing file
    is opened, so symbolic links and pipes that somebody has placed there have no effect.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, _NEW, 0o666), "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        permissions = _permissions(path)
        if permissions is not None:
            temporary.chmod(permissions)
        temporary.replace(path)
    except (Exception, KeyboardInterrupt):
        with suppress(OSError):
            temporary.unlink()
        raise
    return size


def unfollowed(path: str, flags: int) -> int:
    """Open a file for ``open(..., opener=unfollowed)``, which raises OSError for a symbolic link."""
    return os.open(path, flags | _UNFOLLOWED, 0o666)


def _permissions(path: Path) -> int | None:
    """Return the permissions of a regular file, or None if there is none."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        return mode & 0o777 if stat.S_ISREG(mode) else None
    return None
