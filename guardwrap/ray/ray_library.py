"""Import of Ray, and connection to a new or existing cluster, without Ray's log output."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from guardwrap.errors import UsageError

STORE = 256 * 2**20
"""Size of the object store of a Ray that guardwrap starts, in bytes. Ray spills further objects to disk."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


def library() -> Any:
    """Import Ray."""
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
    """Start Ray on this machine, or connect to a cluster, and disconnect at the end."""
    ray = library()
    if ray.is_initialized():  # the caller has connected, and will disconnect
        _require_room(ray, workers, gpus)
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if address == "auto":
        cpus = max(workers + 1, os.cpu_count() or 1)  # one more to read the rows
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE}
        with _nothing_said():
            ray.init(address="local", **own, **quiet)
    else:
        _require_there(address)
        try:
            with _nothing_said():
                ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError):
            raise UsageError(f"no Ray answers at {address!r}; check `ray status` and the version there") from None
    try:
        _require_room(ray, workers, gpus)
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _nothing_said() -> Iterator[None]:
    """Discard what Ray's C++ part prints to stderr at start about its own log level."""
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
    """Raise UsageError if nothing listens at the address: Ray itself would wait for a minute, then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    way_out = "give --ray auto to start Ray here, or the HOST:PORT that `ray start --head` printed"
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not an address of Ray; {way_out}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, UnicodeError):
        raise UsageError(f"no Ray answers at {address!r}; {way_out}") from None


def _require_room(ray: Any, workers: int, gpus: float) -> None:
    """Raise UsageError if workers would wait forever for CPUs or GPUs."""
    resources = ray.cluster_resources()
    for name, each in (("CPU", 1), ("GPU", gpus)):
        if workers * each > resources.get(name, 0):
            needed, has = f"{workers * each:g}", f"{resources.get(name, 0):g}"
            raise UsageError(f"{workers} workers need {needed} {name}s, but Ray has {has}; give fewer --workers")
