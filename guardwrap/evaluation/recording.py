"""Recordings of attempts as JSON Lines, from which an interrupted evaluation resumes."""

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

from guardwrap.documents.limits import irregular
from guardwrap.errors import UsageError
from guardwrap.proposals import Unweighable
from guardwrap.samplers import Attempt, from_row, to_row

CHUNK = 1000
"""Most attempts per prompt in one line of a recording; an interruption loses those of the unfinished line."""

Attempts = list[list[Attempt]]
"""The attempts of each prompt, in launch order."""


class AttemptSource(Protocol):
    """A source of attempts: a ``GuardedGenerator``."""

    @property
    def session(self) -> Any:
        """Has notes on weights computed with the model, as ``of_weights``."""

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
    """Callback for the progress of an evaluation."""

    def __call__(self, attempts: int, *, kept: bool = False) -> None:
        """Receive a number of new attempts over all prompts; ``kept`` if they come from an earlier run."""


def record(
    source: AttemptSource,
    law: Mapping[str, Any],
    proposal: Callable[[], Mapping[str, Any]],
    folder: Path,
    count: int,
    versions: Mapping[str, str],
    tick: Tick = lambda attempts, kept=False: None,
) -> tuple[Attempts, dict[str, str]]:
    """Return the attempts of one proposal: recorded ones, and new ones if those are too few.

    Recorded attempts are never discarded, so a recording that grew in steps differs from one made at once. Both are
    draws from the same distribution.

    ``law``: everything that determines the distribution, as plain JSON types: ``name``, ``prompts``, ``generation``,
    ``seed``, and others such as the proposal. A recording is used again only for an equal ``law``.

    ``proposal``: returns the keyword ``proposal=`` or ``adapter=`` for the source. Called only if attempts are drawn.
    """
    path = recording_path(folder, law)
    if what := irregular(path):
        raise UsageError(f"{str(path)!r} is {what}, not a recording; remove it")
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
            except Unweighable as error:
                needed = ", ".join(f"{name}: {json.dumps(value)}" for name, value in error.settings.items())
                raise UsageError(f"generation: {error.why}; write {needed}") from None
            if [len(attempts) for attempts in chunk] != [wanted] * len(law["prompts"]):
                raise UsageError(f"the source did not return the requested {wanted} attempts per prompt")
            file.write(_line({"attempts": [[to_row(a) for a in attempts] for attempts in chunk]}))
            file.flush()
            chunks += 1
            for attempts, more in zip(recorded, chunk, strict=True):
                attempts += more
    return recorded, begun


def recording_path(folder: Path, law: Mapping[str, Any]) -> Path:
    """Return the path of the recording for a law."""
    slug = re.sub(r"\W+", "-", law["name"], flags=re.ASCII).strip("-")[:40]
    digest = hashlib.sha256(json.dumps(law, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{slug or 'proposal'}-{digest}.jsonl"


def _seed(law: Mapping[str, Any], number: int) -> int:
    """Return the seed of a chunk; it depends on the law's name, so that figures of proposals are independent."""
    words = (law["seed"], zlib.crc32(law["name"].encode()), number)
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def _kept(path: Path, law: Mapping[str, Any], count: int) -> tuple[dict[str, str] | None, Attempts, int, int]:
    """Return the recorded versions, up to ``count`` attempts, their number of chunks, and the size of whole lines."""
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
            elif len(kept[0]) < count:  # further attempts stay in the file
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
    """Yield the complete lines of a file, if it exists, without an unfinished one at its end."""
    if path.exists():
        with path.open("rb") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    yield raw


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"
