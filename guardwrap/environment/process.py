"""Settings of the process that a command or a worker runs in."""

from __future__ import annotations

import ctypes
import logging
import sys


def keep_freed_memory() -> None:
    """Let glibc keep up to a gigabyte of freed memory, instead of returning large blocks at every forward pass.

    Allocating them again cost a ninth of the CPU time, and up to a half on a busy machine (docs/production.md).
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):  # musl has none
        mallopt(-4, 0)  # M_MMAP_MAX: no separate mappings, which are returned at once when freed
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def quieten_transformers() -> None:
    """Hide transformers' progress bars and warnings, unless guardwrap logs at level INFO or below."""
    if not logging.getLogger("guardwrap").isEnabledFor(logging.INFO):
        from transformers.utils import logging as theirs

        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
