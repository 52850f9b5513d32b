"""Distribution of work over several processes; with one process these functions do nothing.

``accelerate launch`` starts several processes on GPUs but only one on CPUs; ``torchrun`` starts them on both.

Every process holds the whole state and takes every step. The expensive parts, drawing and gradients, are split by
position and gathered in the same order, so the state stays equal in all processes and the draws equal those of one
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env

T = TypeVar("T")
R = TypeVar("R")


def _state() -> PartialState:
    # Without cpu=True on a machine without GPUs, accelerate treats each process as the only one.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=cpu)


def device() -> torch.device | None:
    """Return the device for this process's model; None with one process, whose user chooses the device."""
    state = _state()
    return state.device if state.num_processes > 1 else None


def is_main() -> bool:
    """Return whether this is the process that writes files and logs."""
    return bool(_state().is_main_process)


def wait() -> None:
    """Wait for the other processes."""
    _state().wait_for_everyone()


def mine(items: Sequence[T]) -> Sequence[T]:
    """Return this process's part of some work."""
    state = _state()
    return items[state.process_index :: state.num_processes]


def groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield groups of items, one per process, so that work can end after any group."""
    count = _state().num_processes
    for begin in range(0, len(items), count):
        yield items[begin : begin + count]


def mapped(work: Callable[[Sequence[T]], Iterable[R]], items: Sequence[T]) -> list[R]:
    """Apply ``work`` to items, split over the processes; every process gets all results in the order of the items."""
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
    """Return the largest of the processes' times, so that all take the same decision."""
    return max(gather_object([seconds])) if _state().num_processes > 1 else seconds
