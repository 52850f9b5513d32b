"""Lines that an interrupted run had ready while a slow prompt before them went on: kept in a file beside the output.

The output has its lines in the order of the prompts. What is ready before its turn waits in memory, and goes to this
file where a run is given up. A later run takes a line from it where it is what that run would write itself, so that a
file of some other run does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from guardwrap.documents.inputs import irregular
from guardwrap.environment.atomic_files import write_whole
from guardwrap.errors import UsageError

__all__ = ["keep_ahead", "path_of", "read_ahead"]


def path_of(output: Path) -> Path:
    """Return where the lines are that go with an output file."""
    return output.with_name(f"{output.name}.ahead")


def read_ahead(output: Path) -> tuple[dict[int, bytes], int | None]:
    """Return the lines by the numbers of their prompts, from 0, and the seed of their run; None where none says it.

    Raises
    ------
    UsageError
        If the file cannot be read, or is not what ``keep_ahead`` writes.
    """
    path = path_of(output)
    found: dict[int, bytes] = {}
    seed = None
    if irregular(output) or not path.exists():
        return found, seed
    try:
        for raw in path.read_bytes().splitlines(keepends=True):  # in JSON a line has no other ends
            number, _, line = raw.partition(b" ")
            data = json.loads(line)
            found[int(number)] = line
            if data.get("seed") is None:  # of a prompt that has none of its own
                seed = int(data["report"]["seed"])
    except OSError as error:
        raise UsageError(
            f"cannot read {str(path)!r}: {error.strerror}; remove it to draw these prompts again"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{str(path)!r} is no file that guardwrap generate wrote; remove it, or rename it") from None
    return found, seed


def keep_ahead(output: Path, lines: Mapping[int, bytes]) -> None:
    """Replace the file at once; without lines there is none.

    Raises
    ------
    OSError
        If that cannot be.
    """
    path = path_of(output)
    if not lines:
        if path.is_file():
            path.unlink()
        return
    write_whole(path, (b"%d %b" % (number, lines[number]) for number in sorted(lines)))
