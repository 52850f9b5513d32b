"""A training of one second: a Llama with 31 texts; those with doubled letters satisfy the constraint."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from guardwrap import GuardedGenerator, Regex
from guardwrap.testing import World, llama_world
from guardwrap.training import TrainingSettings
from guardwrap.training.task import Sample
from guardwrap.training.trainer import Trainer

DOUBLED = Regex("aa|bb")
PRELOADED = ["guardwrap.training", "matplotlib.backends.backend_agg", "torch.utils.tensorboard"]
"""Modules that training processes import; a fork server imports them once for all."""


def undrawn(patch: pytest.MonkeyPatch) -> None:
    """Leave out the charts of a training, which take as long as the training; ``test_train_command`` tests them."""
    patch.setattr(sys.modules["guardwrap.training.train"], "png_of", lambda chart: b"")


def settings_of(world: World, **others: Any) -> TrainingSettings:
    small = {
        "constraint": "doubled",
        "prompts": [world.prompt],
        "generation": world.settings,
        "samples": 400,
        "samples_per_step": 100,
        "rounds": 3,
        "updates": 10,
        "look": 5,
        "rank": 2,
        "learning_rate": 5e-3,
        "final_attempts": 100,
    }
    return TrainingSettings(**{**small, **others})


def guarded_of(world: World, constraint: Any = DOUBLED, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), constraint, batch_size=64, **options)


def trainer_of(folder: Path, world: World | None = None, constraint: Any = DOUBLED, **others: Any) -> Trainer:
    world = world or llama_world()
    return Trainer(guarded_of(world, constraint), settings_of(world, **others), folder)


def kl(trainer: Trainer, world: World, prompt: int = 0) -> float:
    """Return KL(g‖π) in nats, summed over all texts."""
    gold = world.gold(trainer.task.guarded.constraint)
    samples = [Sample(prompt, ids, len(ids)) for ids in gold]
    log_policy = trainer.task.log_probabilities(trainer.policy.model, samples)
    return sum(p * (math.log(p) - log) for p, log in zip(gold.values(), log_policy, strict=True))
