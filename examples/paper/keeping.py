"""Results of steps, cached in files with a digest of their inputs."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guardwrap.outcomes import plain


def kept(folder: Path, name: str, about: Any, make: Callable[[], Any]) -> Any:
    """Return the result of a step, from its file or computed now.

    Parameters
    ----------
    folder, name
        Folder and name of the file.
    about
        Everything that the result depends on, as plain JSON. A result for other inputs is computed again.
    make
        Computes the result, which is returned as plain JSON in both cases.
    """
    path, digest = folder / f"{slug(name)}.json", digest_of(about)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["about"] == digest:
            return data["found"]
    except (OSError, ValueError, KeyError):
        pass
    print(f"{name} …", file=sys.stderr, flush=True)
    found = plain(make())
    write(path, {"about": digest, "found": found})
    return found


def digest_of(about: Any) -> str:
    """Return the digest of plain JSON."""
    return hashlib.sha256(json.dumps(plain(about), sort_keys=True).encode()).hexdigest()


def slug(name: str) -> str:
    """Return a name that is safe as a file name."""
    return re.sub(r"\W+", "-", name).strip("-")


def write(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".partial")
    half.write_text(json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    half.replace(path)
