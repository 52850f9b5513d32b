"""Checkpoints: one file each, written atomically and verified when it is read."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from guardwrap.environment.files import write_whole
from guardwrap.errors import first_line

logger = logging.getLogger("guardwrap")

_KEPT = 2  # the newest and the previous one
_NAME = re.compile(r"(\d{8})-([0-9a-f]{16})\.safetensors")  # number, beginning of the digest

_LEFT = ".*.safetensors.*.tmp"  # temporary files of killed processes


def write(folder: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> bool:
    """Write a checkpoint, and remove all older ones except the previous one."""
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"state": json.dumps(state)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(_LEFT):
            left.unlink()
        number = max((number for number, _, _ in _found(folder)), default=0) + 1
        write_whole(folder / f"{number:08d}-{_digest(content)}.safetensors", [content])
    except OSError as error:
        logger.warning("cannot write a checkpoint in %s (%s): the previous one is kept", folder, _reason(error))
        return False
    for _, _, old in _found(folder)[_KEPT:]:
        with suppress(OSError):
            old.unlink()
    return True


def newest(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Read the newest undamaged checkpoint; return None if there is none.

    A damaged checkpoint is removed with a warning, and the previous one is read.
    """
    found = _found(folder)
    for _, digest, path in found:
        try:
            content = path.read_bytes()
            if _digest(content) != digest:
                path.unlink(missing_ok=True)  # otherwise it would count as the previous one at the next write
                raise ValueError("it is damaged")
            size = int.from_bytes(content[:8], "little")
            state = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["state"])
            return load(content), state
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            logger.warning("cannot use checkpoint %s (%s): trying the previous one", path, _reason(error))
    if found:
        logger.warning("no usable checkpoint in %s: the training starts from the beginning", folder)
    return None


def _found(folder: Path) -> list[tuple[int, str, Path]]:
    """Return number, digest and path of each checkpoint, the newest first."""
    names = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*") if path.is_file()]
    return sorted(((int(name[1]), name[2], path) for name, path in names if name), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or first_line(error)
