"""Attempts of one round, drawn in chunks that are kept on disk until the round ends."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from guardwrap.environment.files import write_whole
from guardwrap.samplers import Attempt, from_row, to_row
from guardwrap.training import shards
from guardwrap.training.learning_curve import Meter
from guardwrap.training.samples import Sample
from guardwrap.training.task import Task

CHUNK = 1000
"""Attempts per chunk, over all prompts."""


@dataclass
class Drawn:
    """Attempts from one distribution."""

    attempts: int = 0  # number of attempts per prompt
    tokens: int = 0  # number of new tokens over all attempts and prompts
    samples: list[Sample] = field(default_factory=list)  # the attempts that satisfy the constraint
    # log-probability of each sample as computed during decoding, in nats
    log_seen: list[float] = field(default_factory=list)
    # prompt index and new tokens of each other attempt, if ``keep_rejected`` was set
    rejected: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def texts(self, prompt: int) -> list[tuple[int, ...]]:
        """Return the new tokens of all attempts of a prompt."""
        satisfied = [sample.token_ids for sample in self.samples if sample.prompt == prompt]
        return satisfied + [ids for number, ids in self.rejected if number == prompt]

    def accepted(self, prompts: int) -> list[int]:
        """Return the number of samples of each prompt."""
        counts = np.bincount([sample.prompt for sample in self.samples], minlength=prompts)
        return [int(count) for count in counts]


def draw_round(
    task: Task,
    source: Any,
    count: int,
    *,
    seed: tuple[int, str],
    digest: str,
    folder: Path,
    over: Callable[[int, int], bool] = lambda attempts, tokens: False,
    meter: Meter | None = None,
    keep_rejected: bool = False,
) -> Drawn:
    """Draw attempts; several processes share the work.

    ``digest``: digest of everything that determines the attempts. Recorded chunks with another digest are drawn
    again.

    ``over``: function from the attempts and tokens so far to whether a budget has ended. It is called only before a
    chunk begins, so the selection of attempts does not depend on their length.

    ``meter``: counter for attempts over all prompts: those of this process as they are drawn, those of others after a
    chunk.
    """
    each = max(1, CHUNK // len(task.prompts))
    chunks = [(i, min(each, count - begin)) for i, begin in enumerate(range(0, count, each))]
    drawn = Drawn()

    def work(part: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        return [_chunk(task, source, size, seed, number, digest, folder, keep_rejected, meter) for number, size in part]

    before = 0 if meter is None else meter.stage.done
    for group in shards.groups(chunks):
        if over(drawn.attempts * len(task.prompts), drawn.tokens):
            break
        for chunk in shards.mapped(work, group):
            drawn.attempts += chunk["size"]
            drawn.tokens += chunk["tokens"]
            if meter is not None:
                kept = chunk["size"] * len(task.prompts) if chunk.get("kept") else 0
                meter.reach(before + drawn.attempts * len(task.prompts), kept=kept)
            for prompt, rows in enumerate(chunk["satisfied"]):
                for attempt in map(from_row, rows):
                    drawn.samples.append(task.sample(prompt, attempt))
                    drawn.log_seen.append(float(attempt.draw.log_proposal or 0.0))
            for prompt, texts in enumerate(chunk["rejected"]):
                drawn.rejected += [(prompt, tuple(ids)) for ids in texts]
    return drawn


def _chunk(
    task: Task,
    source: Any,
    size: int,
    seed: tuple[int, str],
    number: int,
    digest: str,
    folder: Path,
    keep: bool,
    on_attempt: Callable[[], None] | None,
) -> dict[str, Any]:
    path = folder / f"{number:06d}.json"
    about = {"digest": digest, "size": size}
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if {name: kept.get(name) for name in about} == about:
            return {**kept, "kept": True}
    except (OSError, ValueError):
        pass
    words = (seed[0], zlib.crc32(seed[1].encode()), number)
    chunk_seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    drawn: list[list[Attempt]] = task.draw(size, chunk_seed, source, on_attempt)
    kept = {
        **about,
        "tokens": sum(len(attempt.draw.token_ids) for attempts in drawn for attempt in attempts),
        "rejected": [
            [attempt.draw.token_ids for attempt in attempts if keep and not attempt.satisfied] for attempts in drawn
        ],
        "satisfied": [[to_row(attempt) for attempt in attempts if attempt.satisfied] for attempts in drawn],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, [json.dumps(kept).encode()])
    except OSError:  # an unrecorded chunk can be drawn again
        pass
    return kept
