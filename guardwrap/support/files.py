"""Files: what the package contains, atomic replacement, and digests."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from guardwrap.errors import ModelError, UsageError

CARD = "card.yaml"
"""The name of the file that describes an adapter, in its folder."""

CONFIG = "adapter_config.json"
"""The name of peft's configuration file, which every adapter folder contains."""

PREFIX = "catalogue:"
"""The prefix that marks a name in the catalogue, where a path is also possible."""


def content(kind: str) -> Path:
    """Return the folder of ``constraints`` or ``adapters``, in the installed wheel or in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "_content" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise ModelError(f"the {kind} of the catalogue are missing; reinstall guardwrap")


def adapters() -> dict[str, Path]:
    """Return the folders of the catalogue's adapters, by name. Each has a card."""
    return {path.parent.name: path.parent for path in sorted(content("adapters").glob(f"*/{CARD}"))}


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


_COMPUTES = (
    *(".json", ".jinja", ".txt", ".model", ".py", ".yaml"),
    *(".safetensors", ".bin", ".gguf", ".pt", ".pth", ".msgpack", ".h5"),
)
"""Suffixes of the files that determine a model's output: weights, configuration, tokenizer, templates and code."""


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hex digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def folder_digest(folder: Path) -> str:
    """Return a digest of the files of a model or adapter. Their place does not matter, nor do files of notes."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in _COMPUTES and path.is_file():
            whole.update(f"{path.name} {file_digest(path)}\n".encode())
    return f"sha256:{whole.hexdigest()}"
