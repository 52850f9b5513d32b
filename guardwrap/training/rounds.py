"""The plan of a training, as rounds of drawing and learning, and the attempts of a round.

Attempts are drawn in chunks that are kept on disk until the round ends.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from guardwrap.metrics import acceptance_rate
from guardwrap.metrics.divergence import unclipped_from_gold
from guardwrap.metrics.intervals import Floats
from guardwrap.outcomes import Estimate
from guardwrap.samplers import Attempt, from_row, to_row
from guardwrap.support.files import write_whole
from guardwrap.training import shards
from guardwrap.training.learning_curve import Follow, Meter, Units, mean_over
from guardwrap.training.task import Sample, Task
from guardwrap.training.training_settings import TrainingSettings

BASE, BRANCHES, POLICY = "base", "branches", "policy"

_GROWTH = 1.5
"""Growth of the number of draws from one round of ``replay`` to the next: later draws are worth more."""

_DEFENSIVE = 0.1
"""Share of the model itself in the draws of ``replay`` after the warm start. It bounds the weights by about 10. A
larger share would waste attempts: 1 000 gave 12 effective draws of g where the first policy gave 270 ("dragon")."""

CHUNK = 1000
"""Attempts per chunk, over all prompts."""

Draws = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Round:
    """Attempts to draw, and the method to learn from them."""

    # Pairs of a law (distribution) and the number of attempts per prompt. Laws are ``"base"``, ``"policy"``, the
    # template of a constraint-aware prompt, ``"masked"`` or ``"twisted"``.
    draws: Draws
    learn: Literal["replay", "dpg", "sft"]  # the method of learning


def rounds(settings: TrainingSettings, *, begun: Sequence[Round] | None = None) -> list[Round]:
    """Divide the samples among rounds. All prompts get the same number, so a few samples may remain unused.

    ``begun``: earlier rounds, after which there is no warm start; None at the beginning.
    """
    left, method = settings.samples // len(settings.prompts), settings.method
    if method == "sft":
        planned = [Round(_warm(size, settings), "sft") for size in _split(left, [1.0] * settings.rounds)]
    else:
        # Algorithm 2 has a warm start only with hints: it fine-tunes on their samples before DPG begins.
        cold = begun is not None or (method == "dpg" and not settings.hints)
        warm = 0 if cold else settings.warm // len(settings.prompts)
        planned = [Round(_warm(warm, settings), "replay" if method == "replay" else "sft")]
        before, rest = [*(begun or ()), *planned], left - warm
        planned += _replay(rest, settings, before) if method == "replay" else _dpg(rest, settings)
    planned = [replace(part, draws=tuple(draw for draw in part.draws if draw[1])) for part in planned]
    return [part for part in planned if part.draws]


def _warm(size: int, settings: TrainingSettings) -> Draws:
    """Divide attempts among the hints and, for ``replay``, the model itself, which gets all if there is no hint."""
    hints = settings.hints
    share = settings.base_share if settings.method == "replay" else 0.0
    base = round(size * share) if hints else size
    return (*zip(hints, _split(size - base, [1.0] * len(hints)), strict=True), (BASE, base))


def _replay(size: int, settings: TrainingSettings, before: Sequence[Round]) -> list[Round]:
    draws, planned = [draw for part in before for draw in part.draws], []
    for each in filter(None, _split(size, [_GROWTH**k for k in range(settings.rounds)])):
        attempts, of_model = each + sum(count for _, count in draws), sum(count for law, count in draws if law == BASE)
        # A tenth of a few attempts is none, and weights would have no bound: one is drawn if a tenth of all is missing.
        base = round(_DEFENSIVE * each) or int(of_model < _DEFENSIVE * attempts)
        planned.append(Round(((POLICY, each - base), (BASE, base)), "replay"))
        draws += planned[-1].draws
    return planned


def _dpg(size: int, settings: TrainingSettings) -> list[Round]:
    steps = max(1, round(size * len(settings.prompts) / settings.samples_per_step))
    return [Round(((POLICY, each),), "dpg") for each in _split(size, [1.0] * steps)]


def continued(begun: Sequence[Round], settings: TrainingSettings, drawn: int) -> list[Round]:
    """Return the new plan of a training whose number of samples was changed, or that drew fewer than planned.

    ``begun``: rounds that have drawn, which are kept, ``drawn`` samples in all. The remaining samples are divided into
    rounds without a warm start.
    """
    left = settings.samples - drawn
    if left < len(settings.prompts):
        return list(begun)
    return [*begun, *rounds(settings.model_copy(update={"samples": left}), begun=begun)]


def _split(total: int, sizes: list[float]) -> list[int]:
    """Divide an integer in given proportions into integers that sum to it."""
    ends = [round(total * sum(sizes[: k + 1]) / sum(sizes)) for k in range(len(sizes))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


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
    prompts: int = 1  # number of prompts
    # log P/a' of each sample as computed during decoding, of a proposal that looks ahead
    seen_weights: list[float] = field(default_factory=list)

    def texts(self, prompt: int) -> list[tuple[int, ...]]:
        """Return the new tokens of all attempts of a prompt."""
        satisfied = [sample.token_ids for sample in self.samples if sample.prompt == prompt]
        return satisfied + [ids for number, ids in self.rejected if number == prompt]

    def by_prompt(self, values: Sequence[float] | Floats) -> list[Floats]:
        """Divide a number for each sample by its prompt; ``[prompts][samples]``."""
        which = np.array([sample.prompt for sample in self.samples])
        return [np.asarray(values)[which == prompt] for prompt in range(self.prompts)]

    def log_weights(self, ratios: Sequence[float]) -> list[Floats]:
        """Return log P/a' of all attempts of each prompt, -inf for rejected ones; ``[prompts][attempts]``."""
        return [
            np.pad(each, (0, self.attempts - len(each)), constant_values=-np.inf) for each in self.by_prompt(ratios)
        ]

    @property
    def accepted(self) -> list[int]:
        """The number of samples of each prompt."""
        counts = np.bincount([sample.prompt for sample in self.samples], minlength=self.prompts)
        return [int(count) for count in counts]

    @property
    def acceptance(self) -> Estimate:
        """The acceptance rate over all prompts."""
        return acceptance_rate(len(self.samples), self.attempts * self.prompts, stopped_on_acceptance=False)


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
    prompts = len(task.prompts)
    each = max(1, CHUNK // prompts)
    chunks = [(i, min(each, count - begin)) for i, begin in enumerate(range(0, count, each))]
    drawn = Drawn(prompts=prompts)

    def chunk_of(number: int, size: int) -> dict[str, Any]:
        path, about = folder / f"{number:06d}.json", {"digest": digest, "size": size, "keeps_rejected": keep_rejected}
        with suppress(OSError, ValueError):
            recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if {name: recorded.get(name) for name in about} == about:
                return {**recorded, "kept": True}
        words = (seed[0], zlib.crc32(seed[1].encode()), number)
        chunk_seed = int(np.random.SeedSequence(words).generate_state(1)[0])
        chunk = about | _as_json(task.draw(size, chunk_seed, source, meter), keep_rejected)
        with suppress(OSError):  # an unrecorded chunk can be drawn again
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, [json.dumps(chunk).encode()])
        return chunk

    before = 0 if meter is None else meter.stage.done
    for group in shards.groups(chunks):
        if over(drawn.attempts * prompts, drawn.tokens):
            break
        for chunk in shards.mapped(lambda part: [chunk_of(*numbered) for numbered in part], group):
            drawn.attempts += chunk["size"]
            drawn.tokens += chunk["tokens"]
            if meter is not None:
                meter.reach(before + drawn.attempts * prompts, kept=chunk["size"] * prompts if "kept" in chunk else 0)
            for prompt, rows in enumerate(chunk["satisfied"]):
                for attempt in map(from_row, rows):
                    drawn.samples.append(task.sample(prompt, attempt.draw.token_ids))
                    drawn.log_seen.append(float(attempt.draw.log_proposal or 0.0))
                    drawn.seen_weights.append(float(attempt.log_weight or 0.0))
            for prompt, texts in enumerate(chunk["rejected"]):
                drawn.rejected += [(prompt, tuple(ids)) for ids in texts]
    return drawn


def _as_json(drawn: list[list[Attempt]], keep_rejected: bool) -> dict[str, Any]:
    """Return the attempts of each prompt as plain JSON types, those that violate the constraint only if asked to."""
    return {
        "tokens": sum(len(attempt.draw.token_ids) for attempts in drawn for attempt in attempts),
        "rejected": [
            [attempt.draw.token_ids for attempt in attempts if keep_rejected and not attempt.satisfied]
            for attempts in drawn
        ],
        "satisfied": [[to_row(attempt) for attempt in attempts if attempt.satisfied] for attempts in drawn],
    }


@dataclass(frozen=True)
class Gold:
    """Draws of g, on which a policy is measured: attempts of the model itself that satisfy the constraint."""

    drawn: Drawn  # all attempts
    log_base: Sequence[float]  # log a(y) of those that satisfy the constraint, in nats

    @staticmethod
    def draw(
        task: Task, count: int, folder: Path, seed: int = 0, digest: str = BASE, follow: Follow = lambda stage: None
    ) -> Gold:
        """Draw ``count`` attempts per prompt; those recorded in the folder are used again."""
        meter = Meter(follow, "gold", count * len(task.prompts))
        drawn = draw_round(task, None, count, seed=(seed, "gold"), digest=digest, folder=folder, meter=meter)
        return Gold(drawn, task.log_probabilities(task.model, drawn.samples))

    def kl(self, log_policy: Sequence[float], held_out: Sequence[bool] = (), units: Units = None) -> Estimate | None:
        """Return KL(g‖π) in nats as a mean over prompts, or None if a prompt has fewer than 2 draws of g.

        ``held_out``: whether each prompt is left out; empty for none. ``units``: as for ``mean_over``, of the others.
        """
        held = held_out or [False] * self.drawn.prompts
        ratios = [each for each, unseen in zip(self.log_ratios(log_policy), held, strict=True) if not unseen]
        if min(count for _, (count, _) in ratios) < 2:
            return None
        return mean_over({i: unclipped_from_gold(*each) for i, each in enumerate(ratios)}, units)

    def log_ratios(self, log_policy: Sequence[float]) -> list[tuple[Floats, tuple[int, int]]]:
        """Return for each prompt log a/π of its draws of g, in nats, and the numbers of draws and of attempts."""
        ratios = self.drawn.by_prompt(np.array(self.log_base) - np.array(log_policy))
        return [(each, (len(each), self.drawn.attempts)) for each in ratios]
