"""What comes ready-made with the package: constraint files and adapters."""

from __future__ import annotations

from pathlib import Path

from guardwrap.errors import ModelError

__all__ = ["CARD", "CONFIG", "PREFIX", "adapters", "content"]

CARD = "card.yaml"
"""What is known about an adapter, in its folder."""

CONFIG = "adapter_config.json"
"""What makes a folder an adapter's, by peft's name for it."""

PREFIX = "catalogue:"
"""Of the name of something ready-made, where a path could stand."""


def content(kind: str) -> Path:
    """Return the folder of ``constraints`` or ``adapters``: package data of a wheel, or the folder of a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "_content" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise ModelError(f"the ready-made {kind} are missing; reinstall guardwrap")


def adapters() -> dict[str, Path]:
    """Return the folders of the ready-made adapters, by name. Each has a card."""
    return {path.parent.name: path.parent for path in sorted(content("adapters").glob(f"*/{CARD}"))}
