"""Models and adapters from the Hugging Face Hub, or from its cache if there is no network."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import getproxies

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
