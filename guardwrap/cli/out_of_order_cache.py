"""Results that an interrupted run finished out of order, saved in a file beside its output.

The output has the order of the prompts, so results wait in memory for slower earlier prompts. If the run is
interrupted, they are saved in this file. A later run uses a line only if it would write the same line itself, so the
file of a different run does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from guardwrap.documents.inputs import irregular
from guardwrap.environment.atomic_files import write_whole
from guardwrap.errors import UsageError


def path_of(output: Path) -> Path:
    """Return the path of the file that belongs to an output file."""
    return output.with_name(f"{output.name}.ahead")


def read_ahead(output: Path) -> tuple[dict[int, bytes], int | None]:
    """Return the lines by prompt number, from 0, and the seed of their run, or None if it is not in any line."""
    path = path_of(output)
    lines: dict[int, bytes] = {}
    seed = None
    if irregular(output) or not path.exists():
        return lines, seed
    try:
        for raw in path.read_bytes().splitlines(keepends=True):  # JSON escapes line breaks within a line
            number, _, line = raw.partition(b" ")
            data = json.loads(line)
            lines[int(number)] = line
            if data.get("seed") is None:  # the prompt has no seed of its own, so the report has that of the run
                seed = int(data["report"]["seed"])
    except OSError as error:
        raise UsageError(
            f"cannot read {str(path)!r}: {error.strerror}; remove it to generate these prompts again"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{str(path)!r} was not written by guardwrap generate; remove or rename it") from None
    return lines, seed


def keep_ahead(output: Path, lines: Mapping[int, bytes]) -> None:
    """Replace the file atomically, or remove it if there are no lines."""
    path = path_of(output)
    if not lines:
        if path.is_file():
            path.unlink()
        return
    write_whole(path, (b"%d %b" % (number, lines[number]) for number in sorted(lines)))
