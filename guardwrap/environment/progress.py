"""A progress bar for calls."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TypeVar

__all__ = ["tracked"]

_T = TypeVar("_T")


def tracked(served: Iterator[_T], prompts: Sized, wanted: bool | None) -> Iterator[_T]:
    """Show a progress bar on standard error while items are taken.

    Parameters
    ----------
    served
        The items, one per prompt.
    prompts
        The prompts; only their number is used.
    wanted
        Whether to show the bar; None shows it for two or more prompts on a terminal.
    """
    if not (len(prompts) > 1 if wanted is None else wanted):
        return served
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if wanted is None and not console.is_terminal:
        return served
    return iter(track(served, "generating", total=len(prompts), console=console, transient=True))
