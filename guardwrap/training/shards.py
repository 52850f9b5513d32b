"""Work shared by several processes; with one, nothing happens here.

``accelerate launch`` starts them on several GPUs (on CPUs it starts one, whatever it is told), ``torchrun`` anywhere.

Every process holds the whole state and takes every step. What costs time, drawing and gradients, is split by position
and put together again in the same order, so that the state stays the same everywhere, and the draws are those of one
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env

__all__ = ["device", "groups", "is_main", "latest", "mapped", "mine", "summed", "wait"]

T = TypeVar("T")
R = TypeVar("R")


def _state() -> PartialState:
    # Not told that they are on a CPU, accelerate's state takes each of several processes for the only one.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=cpu)


def device() -> torch.device | None:
    """Where this process's model belongs; None where there is one process, and its user's choice holds."""
    state = _state()
    return state.device if state.num_processes > 1 else None


def is_main() -> bool:
    """Whether this process writes files and talks."""
    return bool(_state().is_main_process)


def wait() -> None:
    """Wait for the other processes."""
    _state().wait_for_everyone()


def mine(items: Sequence[T]) -> Sequence[T]:
    """Return this process's part of some work."""
    state = _state()
    return items[state.process_index :: state.num_processes]


def groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield as many items at a time as there are processes: work that may end after any of them."""
    count = _state().num_processes
    for begin in range(0, len(items), count):
        yield items[begin : begin + count]


def mapped(work: Callable[[Sequence[T]], Iterable[R]], items: Sequence[T]) -> list[R]:
    """Do some work, one result an item, each process on its part; all get all results, in the order of the items."""
    state = _state()
    if state.num_processes == 1:
        return list(work(items))
    parts: list[list[R]] = gather_object([list(work(mine(items)))])
    results: list[Any] = [None] * len(items)
    for rank, part in enumerate(parts):
        results[rank :: state.num_processes] = part
    return results


def summed(tensors: Iterable[torch.Tensor]) -> None:
    """Replace tensors by their sums over the processes, in place."""
    if _state().num_processes > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)


def latest(seconds: float) -> float:
    """Return the largest of the processes' times, so that all decide alike."""
    return max(gather_object([seconds])) if _state().num_processes > 1 else seconds
