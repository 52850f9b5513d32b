"""The ready-made constraint files (the catalogue), in an installed wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

import yaml

from guardwrap.environment.files import content
from guardwrap.errors import UnknownName


def catalogue_names() -> list[str]:
    """Return the names of the ready-made constraint files."""
    return sorted(path.stem for path in content("constraints").glob("*.yaml"))


def catalogue_path(name: str) -> Path:
    """Return the path of a ready-made constraint file; raise UnknownName if there is none with this name."""
    if name not in catalogue_names():
        raise UnknownName("catalogue entry", name, catalogue_names())
    return content("constraints") / f"{name}.yaml"


def catalogue_descriptions() -> dict[str, str]:
    """Return the description of each ready-made file, by name, without its constraint, which may require an extra."""
    files = {name: catalogue_path(name).read_text(encoding="utf-8") for name in catalogue_names()}
    return {name: yaml.safe_load(text).get("description", "") for name, text in files.items()}
