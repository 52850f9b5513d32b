"""Digests of what results depend on and no name shows: weights, tokenizers, code, learned values."""

from __future__ import annotations

import hashlib
from pathlib import Path

from guardwrap.environment.hub import commit_of
from guardwrap.environment.package_data import PREFIX, adapters
from guardwrap.errors import UsageError

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


def local_path(source: str) -> Path | None:
    """Return where a source would be on this machine; None if nothing of its name comes with guardwrap."""
    return adapters().get(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else Path(source).expanduser()


def source_digest(source: str, revision: str | None = None) -> str | None:
    """Return what identifies the content of a source: a digest of its files, or its commit on the Hub."""
    path = local_path(source)
    if path is None:
        return None
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # a name that no path may have
        return None
    if is_folder:
        return folder_digest(path)
    if is_file:
        return f"sha256:{file_digest(path)}"
    commit = commit_of(source, revision)
    return None if commit is None else f"commit:{commit}"
