"""Progress of a training: one row per round, with warnings if its figures are misleading."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from guardwrap.metrics import effective_sample_size, kl_gold_proposal
from guardwrap.metrics.intervals import Floats, clip, mean_of, mean_over_units, sum_of
from guardwrap.outcomes import Estimate, estimate_of, plain
from guardwrap.outcomes.blocks import Strict
from guardwrap.support.files import write_whole

logger = logging.getLogger("guardwrap")

_ENOUGH = 20
"""Fewest accepted draws for a warning about Ẑ, whose random error is large with fewer."""

_FEW = 0.01
"""Share of effective among accepted draws below which the acceptance rate says little about g."""

LEAST_ACCEPTED = 8
"""Fewest accepted draws of a prompt whose KL counts in the mean over a population of prompts."""

Units = Sequence[str] | None

Part = Literal["gold", "samples", "final"]


@dataclass(frozen=True)
class Stage:
    """Progress of one part of a training.

    Parameters
    ----------
    name
        ``"gold"``: attempts of the model itself for measurements; ``"samples"``: attempts to learn from; ``"final"``:
        attempts of the trained proposal, to measure it.
    done, total
        Attempts so far, and planned unless a budget ends first.
    kept
        How many of those so far come from an earlier run.
    """

    name: Part
    done: int
    total: int
    kept: int


Follow = Callable[[Stage], None]


class Meter:
    """Counter for the attempts of one part of a training."""

    def __init__(self, follow: Follow, name: Part, total: int, done: int = 0) -> None:
        self._follow = follow
        self.stage: Stage = Stage(name, done, total, kept=done)
        follow(self.stage)

    def __call__(self) -> None:
        """Count one attempt."""
        self.reach(self.stage.done + 1)

    def reach(self, done: int, *, kept: int = 0) -> None:
        """Set the number of attempts so far, and add to those from an earlier run."""
        self.stage = replace(self.stage, done=done, kept=self.stage.kept + kept)
        self._follow(self.stage)


@dataclass
class Row(Strict):
    """Figures of one round.

    Parameters
    ----------
    round, law
        Number of the round, and the distribution that it drew from.
    samples, tokens, seconds
        Attempts, tokens and seconds of the whole training at the end of the round's drawing.
    acceptance
        Acceptance rate of the round's draws, over all prompts that are trained on.
    effective
        Effective sample size of the ``accepted`` draws, in draws of g; None if they have no weights.
    accepted
        Number of draws that satisfy the constraint.
    partition
        Ẑ from these draws, mean over prompts: an estimate of the model's own acceptance rate.
    kl
        KL(g‖a') of the distribution drawn from, in nats, estimated from its draws' weights: too low if it misses part
        of g.
    mixture
        Ẑ from all draws so far, mean over prompts; None for a method that keeps no draws.
    held_out
        KL(g‖π) after learning, in nats, from held-out weighted samples.
    kl_gold
        KL(g‖π) after learning, in nats, from draws of g, on the prompts that are trained on.
    updates
        Number of updates of the policy in this round.
    warnings
        Reasons why figures may be misleading.
    strength
        Factor on what ``replay`` learned, see ``trainer.STRENGTHS``.
    unseen_acceptance, unseen_kl
        ``acceptance`` and ``kl`` on held-out prompts; None if there are none.
    """

    round: int
    law: str
    samples: int
    tokens: int
    seconds: float
    acceptance: Estimate
    accepted: int
    effective: Estimate | None = None
    partition: float | None = None
    kl: Estimate | None = None
    mixture: float | None = None
    held_out: float | None = None
    kl_gold: Estimate | None = None
    updates: int = 0
    warnings: list[str] = field(default_factory=list)
    strength: float = 1.0
    unseen_acceptance: Estimate | None = None
    unseen_kl: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON types."""
        found: dict[str, Any] = plain(vars(self))
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """Read what ``to_dict`` returned."""
        names = ("acceptance", "effective", "kl", "kl_gold", "unseen_acceptance", "unseen_kl")
        return cls(**{**data, **{name: data[name] and estimate_of(data[name]) for name in names if name in data}})

    def __str__(self) -> str:
        parts = [f"{self.samples} samples", f"{self.tokens} tokens", f"AR {self.acceptance}"]
        parts += [] if self.effective is None else [f"effective {self.effective.value:.0f} of {self.accepted}"]
        parts += [] if self.partition is None else [f"Z {self.partition:.2g}"]
        parts += [] if self.kl is None else [f"KL(g‖a') of the source {self.kl}"]
        parts += [] if self.kl_gold is None else [f"after learning {self.kl_gold} on draws of g"]
        parts += [] if self.unseen_acceptance is None else [f"AR on held-out prompts {self.unseen_acceptance}"]
        parts += [] if self.held_out is None else [f"held out {self.held_out:.2f}"]
        return ", ".join(parts)


def summarise(
    row: Row, log_weights: Sequence[Floats], unseen: Sequence[Floats] = (), units: Sequence[Units] = (None, None)
) -> None:
    """Fill in the figures that follow from log P/a' of each prompt's attempts, -inf for rejected ones.

    ``unseen``: those of held-out prompts. ``units``: as for ``mean_over``, of both sides.
    """
    row.partition = float(np.mean([np.exp(weights).mean() for weights in (*log_weights, *unseen)]))
    met = [weights for weights in log_weights if weights.max() > -math.inf and len(weights) > 1]
    if met:
        row.effective = sum_of([effective_sample_size(weights) for weights in met])
    row.kl, row.unseen_kl = (_kl_over(*side) for side in zip((log_weights, unseen), units, strict=True))


def _kl_over(log_weights: Sequence[Floats], units: Units) -> Estimate | None:
    known = [i for i in enough(log_weights, units) if len(log_weights[i]) > 1]
    return mean_over({i: kl_gold_proposal(log_weights[i]) for i in known}, units) if known else None


def enough(log_weights: Sequence[Floats], units: Units) -> list[int]:
    """Return which prompts have a KL that can be estimated; of a population, those with a few accepted draws.

    The interval of a population's mean knows nothing of each prompt's own bias. From one accepted draw, KL(g‖g') would
    be 0. From eight it is 3 to 15 % too low at 0.3 to 0.7 nats, if log-weights are normal.
    """
    least = 1 if units is None else LEAST_ACCEPTED
    return [i for i, weights in enumerate(log_weights) if (weights > -math.inf).sum() >= least]


def mean_over(figures: Mapping[int, Estimate], units: Units) -> Estimate:
    """Average the figures of some prompts, by their numbers. The mean is not negative, as a rate or KL.

    ``units``: the unit of each prompt, such as its rule, for an interval for units like these; None for one for these
    prompts.
    """
    if units is None:
        return clip(mean_of([*figures.values()]))
    return clip(mean_over_units([figure.value for figure in figures.values()], [units[i] for i in figures]))


def learned(curve: Sequence[Row]) -> bool:
    """Return whether any update of a training was kept."""
    return any(row.updates for row in curve)


def warnings_of(row: Row, base: Estimate | None) -> list[str]:
    """Return warnings about misleading figures of a round."""
    if not row.accepted:
        return [
            f"none of these attempts satisfies the constraint (acceptance rate below {row.acceptance.high:.2g}), so "
            "there is nothing to learn from; draw more samples, or give hints"
        ]
    found = []
    known, what = (row.mixture, "Ẑ of all draws so far") if base is None else (base.low, "the model's acceptance rate")
    if row.partition is not None and known and row.accepted >= _ENOUGH and row.partition < known / 3:
        found.append(
            f"Ẑ = {row.partition:.2g} from these draws is far below {what}, {known:.2g}: these draws miss part of "
            "g, whatever their acceptance rate"
        )
    if row.effective is not None and row.accepted >= 100 and row.effective.value < max(_FEW * row.accepted, 5.0):
        found.append(
            f"{row.accepted} accepted draws are worth only {row.effective.value:.1f} draws of g: the acceptance rate "
            "says little about g, and KL(g‖a') from these draws is too low"
        )
    return found


def write_curve(rows: Sequence[Row], path: Path) -> None:
    """Write one JSON line per round; log a warning if that fails."""
    lines = [json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) for row in rows]
    try:
        write_whole(path, (f"{line}\n".encode() for line in lines))
    except OSError as error:
        logger.warning("cannot write the learning curve (%s)", error.strerror or type(error).__name__)
