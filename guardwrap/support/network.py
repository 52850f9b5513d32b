"""The network: models and adapters from the Hugging Face Hub or its cache, and servers with OpenAI's protocol."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse, urlsplit
from urllib.request import getproxies

from guardwrap.errors import UsageError
from guardwrap.support.files import PREFIX, adapters, file_digest, folder_digest

SECONDS = 3.0
"""Maximum time to wait for a connection to the Hub, in seconds."""


def cached_or_online(source: str) -> str:
    """Return where to load a model from: ``source`` itself, or without a network the folder of its cached copy.

    Without this, the libraries retry for more than a minute before they use their cache.
    """
    from huggingface_hub import constants, snapshot_download

    if Path(source).exists() or reachable():
        return source
    try:
        return str(snapshot_download(source, local_files_only=True))
    except Exception:  # ValueError for a malformed id, an error of the library for one that is not cached
        host = urlparse(constants.ENDPOINT).hostname
        raise OSError(
            f"{host} cannot be reached, and there is no cached copy; connect, or give the path of a folder"
        ) from None


def commit_of(source: str, revision: str | None = None) -> str | None:
    """Return the commit that a Hub id stands for now, or its cached copy without a network; None if it is not known."""
    from huggingface_hub import HfApi, constants, snapshot_download

    with suppress(Exception):  # no such repository, no access, a malformed id, no network in the end …
        if reachable() and not constants.HF_HUB_OFFLINE:
            return HfApi().model_info(source, revision=revision).sha
    with suppress(Exception):
        return Path(snapshot_download(source, revision=revision, local_files_only=True)).name
    return None


def reachable() -> bool:
    """Return whether the Hub can be reached. Also True with a proxy, or if the libraries are set to be offline."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():
        return True
    at = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((at.hostname or "", at.port or (80 if at.scheme == "http" else 443)), SECONDS).close()
    except OSError:
        return False
    return True


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


def plain_address(url: str, whose: str) -> str:
    """Return a URL without a trailing slash."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"{whose}: base_url is not a valid URL; give one like 'http://localhost:8000/v1'") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(f"{whose}: base_url has more than a host and a path; pass a key as api_key=")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{whose}: base_url={url!r} is not a valid URL; give one like 'http://localhost:8000/v1'")
    return url.rstrip("/")


def environment_key() -> str | None:
    """Return the key in ``OPENAI_API_KEY``; None if it is empty or not set."""
    return os.environ.get("OPENAI_API_KEY") or None


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later, after an HTTP status of at least 400."""
    return status in (408, 409, 425, 429) or (status >= 500 and status != 501)
