"""Draws of g on which a policy is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from guardwrap.metrics import acceptance_rate, kl_gold_proposal_from_gold
from guardwrap.metrics.intervals import mean_of
from guardwrap.outcomes import Estimate
from guardwrap.training.learning_curve import Follow, Meter
from guardwrap.training.round_attempts import Drawn, draw_round
from guardwrap.training.rounds import BASE
from guardwrap.training.samples import Floats
from guardwrap.training.task import Task


@dataclass(frozen=True)
class Gold:
    """Draws of g: attempts of the model itself that satisfy the constraint."""

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

    def kl(self, log_policy: Sequence[float], prompts: int) -> Estimate | None:
        """Return KL(g‖π) in nats as a mean over prompts, or None if a prompt has fewer than 2 draws of g."""
        if min(self.drawn.accepted(prompts)) < 2:
            return None
        return mean_of([kl_gold_proposal_from_gold(*each) for each in self.log_ratios(log_policy, prompts)])

    def log_ratios(self, log_policy: Sequence[float], prompts: int) -> list[tuple[Floats, tuple[int, int]]]:
        """Return for each prompt log a/π of its draws of g, in nats, and the numbers of draws and of attempts."""
        ratios = np.array(self.log_base) - np.array(log_policy)
        which = np.array([sample.prompt for sample in self.drawn.samples])
        accepted = self.drawn.accepted(prompts)
        return [(ratios[which == i], (accepted[i], self.drawn.attempts)) for i in range(prompts)]

    def acceptance(self, prompts: int) -> Estimate:
        """Return the model's own acceptance rate over all prompts."""
        accepted = sum(self.drawn.accepted(prompts))
        return acceptance_rate(accepted, self.drawn.attempts * prompts, stopped_on_acceptance=False)
