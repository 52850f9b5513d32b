"""The constraint files and adapters that the package contains."""

from __future__ import annotations

from pathlib import Path

from guardwrap.errors import ModelError

CARD = "card.yaml"
"""The name of the file that describes an adapter, in its folder."""

CONFIG = "adapter_config.json"
"""The name of peft's configuration file, which every adapter folder contains."""

PREFIX = "catalogue:"
"""The prefix that marks a name in the catalogue, where a path is also possible."""


def content(kind: str) -> Path:
    """Return the folder of ``constraints`` or ``adapters``, in the installed wheel or in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "_content" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise ModelError(f"the {kind} of the catalogue are missing; reinstall guardwrap")


def adapters() -> dict[str, Path]:
    """Return the folders of the catalogue's adapters, by name. Each has a card."""
    return {path.parent.name: path.parent for path in sorted(content("adapters").glob(f"*/{CARD}"))}
