"""Models and adapters by the ids of the Hugging Face Hub, also where there is no network."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import getproxies

__all__ = ["cached_or_online", "reachable"]

SECONDS = 3.0
"""That the Hub may take to answer at all."""


def cached_or_online(source: str) -> str:
    """Return where to load a model from: the folder of a cached copy, where there is no network; else what was given.

    The libraries try again and again, for more than a minute, before they look at their own cache.

    Parameters
    ----------
    source
        An id of the Hub, or a folder.

    Raises
    ------
    OSError
        If there is neither a network nor a copy; says so in one line.
    """
    from huggingface_hub import constants, snapshot_download

    if Path(source).exists() or reachable():
        return source
    try:
        return str(snapshot_download(source, local_files_only=True))
    except Exception:  # a malformed id is a ValueError, a missing one an error of the library's
        host = urlparse(constants.ENDPOINT).hostname
        raise OSError(
            f"{host} cannot be reached, and there is no copy in the cache; connect, or give the path of a folder"
        ) from None


def reachable() -> bool:
    """Whether the Hub, or a proxy that may lead to it, is there; True where the libraries are told not to ask it."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():
        return True
    at = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((at.hostname or "", at.port or (80 if at.scheme == "http" else 443)), SECONDS).close()
    except OSError:
        return False
    return True
