"""What to do when memory runs out."""

from __future__ import annotations

import logging

import torch

from guardwrap.errors import ModelError

__all__ = ["halved"]

logger = logging.getLogger("guardwrap")


def halved(size: int, error: torch.OutOfMemoryError) -> int:
    """Return half as many attempts at once, because memory ran out.

    Raises
    ------
    ModelError
        If it ran out with one.
    """
    if size == 1:
        raise ModelError("out of memory with one attempt at a time; shorten the prompt or max_new_tokens") from error
    logger.warning("out of memory: going on with %d attempts at once", size // 2)
    torch.cuda.empty_cache()
    return size // 2
