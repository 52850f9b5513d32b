"""The process that a command or a worker runs in."""

from __future__ import annotations

import ctypes
import logging
import sys

__all__ = ["keep_freed_memory", "quieten_transformers"]


def keep_freed_memory() -> None:
    """Let glibc keep a gigabyte that was freed, for this process: it gives large blocks back at every forward pass.

    Getting them again cost a ninth of the CPU time, and up to a half on a busy machine (docs/performance.md).
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):  # musl has none
        mallopt(-4, 0)  # M_MMAP_MAX: no block apart from the heap, which goes back at once
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def quieten_transformers() -> None:
    """Keep transformers' progress bars and remarks off the terminal, unless guardwrap itself was asked to talk."""
    if not logging.getLogger("guardwrap").isEnabledFor(logging.INFO):
        from transformers.utils import logging as theirs

        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
