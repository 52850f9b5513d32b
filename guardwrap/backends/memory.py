"""Reduction of the batch size when memory runs out."""

from __future__ import annotations

import logging

import torch

from guardwrap.errors import ModelError

logger = logging.getLogger("guardwrap")


def halved(size: int, error: torch.OutOfMemoryError) -> int:
    """Return half the number of concurrent attempts, after memory ran out."""
    if size == 1:
        raise ModelError("out of memory with one attempt at a time; shorten the prompt or max_new_tokens") from error
    logger.warning("out of memory: continuing with at most %d attempts at once", size // 2)
    torch.cuda.empty_cache()
    return size // 2
