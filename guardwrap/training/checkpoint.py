"""Checkpoints: one file each, there in whole or not at all, and checked when it is read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

__all__ = ["newest", "write"]

logger = logging.getLogger("guardwrap")

_KEPT = 2  # the newest, and the one before it


def write(folder: Path, number: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> bool:
    """Write a checkpoint, and remove those that are older than the one before it.

    Parameters
    ----------
    folder
        Where checkpoints are.
    number
        Larger than those of the checkpoints before.
    tensors, state
        What to keep; the state is plain JSON.

    Returns
    -------
    bool
        False where it could not be written, e.g. because the disk is full: the checkpoint before it stays, and a
        warning is logged.
    """
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"state": json.dumps(state)})
    path = folder / f"{number:08d}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    partial = folder / "partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        logger.warning(
            "no checkpoint written in %s (%s): the one before it stays", folder, error.strerror or type(error).__name__
        )
        partial.unlink(missing_ok=True)
        return False
    for old in _found(folder)[_KEPT:]:
        old.unlink(missing_ok=True)
    return True


def newest(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Read the newest checkpoint that is whole; None where there is none.

    A damaged one is left out with a warning, and the one before it is read.
    """
    for path in _found(folder):
        try:
            content = path.read_bytes()
            if not path.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
                raise ValueError("its content is not what was written")
            size = int.from_bytes(content[:8], "little")
            state = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["state"])
            return load(content), state
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            logger.warning("checkpoint %s cannot be used (%s): going on from the one before it", path.name, error)
    return None


def _found(folder: Path) -> list[Path]:
    """Return the checkpoints, the newest first."""
    return sorted(folder.glob("*.safetensors"), reverse=True)
