"""Ray itself: started or joined, and kept quiet."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from guardwrap.errors import UsageError

__all__ = ["connected", "library"]

STORE = 256 * 2**20
"""Bytes of the store that a Ray of our own shares rows in; what is more goes to the disk."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


def library() -> Any:
    """Import Ray.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise UsageError("guardwrap.ray needs Ray: pip install 'guardwrap[ray]'") from None
    return ray


@contextmanager
def connected(address: str, workers: int, gpus: float = 0) -> Iterator[Any]:
    """Start a Ray on this machine, or join one, and let go of it at the end.

    Parameters
    ----------
    address
        ``"auto"``, which starts one unless ``RAY_ADDRESS`` names one, or host and port.
    workers, gpus
        How many workers there are to be, and the GPUs of each.

    Raises
    ------
    UsageError
        If Ray is not installed or not there, or has no room for so many workers.
    """
    ray = library()
    if ray.is_initialized():  # somebody else's, who ends it
        _require_room(ray, workers, gpus)
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if address == "auto":
        cpus = max(workers + 1, os.cpu_count() or 1)  # one for what reads rows
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE}
        with _nothing_said():
            ray.init(address="local", **own, **quiet)
    else:
        _require_there(address)
        try:
            with _nothing_said():
                ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError):
            raise UsageError(f"no Ray answers at {address!r}; see `ray status` there, and its version") from None
    try:
        _require_room(ray, workers, gpus)
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _nothing_said() -> Iterator[None]:
    """Keep off stderr what Ray's C++ part says there when it begins: that it is told to say nothing."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def _require_there(address: str) -> None:
    """Raise UsageError where nobody listens: Ray itself tries for a minute, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    way_out = "give --ray auto to start one here, or the HOST:PORT that `ray start --head` printed"
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is no address of a Ray; {way_out}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, UnicodeError):
        raise UsageError(f"no Ray answers at {address!r}; {way_out}") from None


def _require_room(ray: Any, workers: int, gpus: float) -> None:
    """Raise UsageError where workers would wait for ever for a place."""
    there = ray.cluster_resources()
    for name, each in (("CPU", 1), ("GPU", gpus)):
        if workers * each > there.get(name, 0):
            needed, has = f"{workers * each:g}", f"{there.get(name, 0):g}"
            raise UsageError(f"{workers} workers need {needed} {name}s, and this Ray has {has}; give fewer --workers")
