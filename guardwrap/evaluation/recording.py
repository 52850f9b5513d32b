"""Attempts drawn once and kept as JSON Lines, so that an interrupted evaluation goes on where it was."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from guardwrap.documents.inputs import irregular
from guardwrap.errors import UsageError
from guardwrap.proposals import OR_REJECTION
from guardwrap.samplers import Attempt, from_row, to_row

__all__ = ["CHUNK", "AttemptSource", "Attempts", "Tick", "record", "recording_path"]

CHUNK = 1000
"""Attempts of each prompt in one line of a recording, at most; those of a line that was begun are lost."""

Attempts = list[list[Attempt]]
"""For each prompt its attempts, in launch order."""


class AttemptSource(Protocol):
    """What draws attempts: a ``Session``, or a ``GuardedGenerator``."""

    def attempts(
        self,
        prompts: Any,
        count: int,
        *,
        proposal: Any = None,
        adapter: Any = None,
        seed: int | None = None,
        on_attempt: Callable[[], None] | None = None,
        **options: Any,
    ) -> Attempts:
        """Draw ``count`` attempts for each prompt, with log-weights."""


class Tick(Protocol):
    """Told how far an evaluation is."""

    def __call__(self, attempts: int, *, kept: bool = False) -> None:
        """Take a number of attempts that are there now, over all prompts: drawn, or kept from an earlier run."""


def record(
    source: AttemptSource,
    law: Mapping[str, Any],
    proposal: Callable[[], Mapping[str, Any]],
    folder: Path,
    count: int,
    versions: Mapping[str, str],
    tick: Tick = lambda attempts, kept=False: None,
) -> tuple[Attempts, dict[str, str]]:
    """Return the attempts of one proposal: those that are recorded, and new ones for the rest.

    What is recorded is kept whatever its size, so a recording that has grown in steps has other attempts than one that
    was made at once; both are draws of the same law.

    Parameters
    ----------
    source
        What draws.
    law
        Everything that attempts depend on, as plain JSON types: ``name``, ``prompts``, ``generation`` and ``seed``, and
        what else tells two laws apart, such as the proposal. A recording is used again only for the same law.
    proposal
        Returns what the source is told to draw from, ``proposal=`` or ``adapter=``. Called only where something is
        drawn.
    folder
        Where recordings are.
    count
        Attempts for each prompt.
    versions
        Kept with a new recording.
    tick
        Called whenever some attempts are there.

    Returns
    -------
    tuple
        The attempts, and the versions that the recording was begun with.

    Raises
    ------
    UsageError
        If the source gives other attempts than it was asked for.
    """
    path = recording_path(folder, law)
    if what := irregular(path):
        raise UsageError(f"{str(path)!r} is {what} and no recording; remove it")
    begun, recorded, chunks, size = _kept(path, law, count)
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(size)
        if begun is None:
            begun = dict(versions)
            file.write(_line({"law": law, "versions": begun}))
        tick(sum(map(len, recorded)), kept=True)
        while (done := len(recorded[0])) < count:
            wanted = min(CHUNK, count - done)
            try:
                chunk = source.attempts(
                    law["prompts"],
                    wanted,
                    seed=_seed(law, chunks),
                    on_attempt=partial(tick, 1),
                    **proposal(),
                    **law["generation"],
                )
            except UsageError as error:
                if (problem := str(error)) == (without := problem.removesuffix(OR_REJECTION)):
                    raise
                way_out = re.sub(r"pass (\w+)=(\w+)$", r"write \1: \2", without)
                raise UsageError(f"generation: {way_out}") from None
            if [len(attempts) for attempts in chunk] != [wanted] * len(law["prompts"]):
                raise UsageError(f"asked for {wanted} attempts a prompt and got another number")
            file.write(_line({"attempts": [[to_row(a) for a in attempts] for attempts in chunk]}))
            file.flush()
            chunks += 1
            for attempts, more in zip(recorded, chunk, strict=True):
                attempts += more
    return recorded, begun


def recording_path(folder: Path, law: Mapping[str, Any]) -> Path:
    """Return where the attempts of a law are kept."""
    slug = re.sub(r"\W+", "-", law["name"], flags=re.ASCII).strip("-")[:40]
    digest = hashlib.sha256(json.dumps(law, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{slug or 'proposal'}-{digest}.jsonl"


def _seed(law: Mapping[str, Any], number: int) -> int:
    """Seed a chunk: laws share no randomness, so that their figures are independent."""
    words = (law["seed"], zlib.crc32(law["name"].encode()), number)
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def _kept(path: Path, law: Mapping[str, Any], count: int) -> tuple[dict[str, str] | None, Attempts, int, int]:
    """Read what is recorded: the versions, so many attempts or fewer, their chunks, and where the file is whole."""
    begun: dict[str, str] | None = None
    kept: Attempts = [[] for _ in law["prompts"]]
    chunks = size = 0
    for raw in _whole_lines(path):
        try:
            data = json.loads(raw)
            if begun is None:
                if data["law"] != law:
                    raise ValueError
                begun = dict(data["versions"])
            elif len(kept[0]) < count:  # a longer recording is kept as it is
                chunk = [[from_row(row) for row in rows] for rows in data["attempts"]]
                if len(chunk) != len(kept) or not chunk[0] or len({len(attempts) for attempts in chunk}) > 1:
                    raise ValueError
                chunks += 1
                for attempts, more in zip(kept, chunk, strict=True):
                    attempts += more[: count - len(attempts)]
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{str(path)!r} is not a recording of these attempts; remove it") from None
        size += len(raw)
    return begun, kept, chunks, size


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, if there is one, but for half a line at its end."""
    if path.exists():
        with path.open("rb") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    yield raw


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"
