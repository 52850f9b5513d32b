"""Rounds of a training on a small world: what is kept, and what they give."""

from pathlib import Path

import numpy as np

from guardwrap import GuardedGenerator, Regex
from guardwrap.testing import llama_world
from guardwrap.training import Settings
from guardwrap.training.trainer import REMEMBERED, Trainer


def test_the_oldest_laws_are_forgotten_and_z_stays_right(tmp_path: Path) -> None:
    world = llama_world()
    constraint = Regex("aa|bb")
    settings = Settings.model_validate(
        {
            "constraint": "given",
            "prompts": [world.prompt],
            "generation": world.settings,
            "hints": ["{prompt}a", "{prompt}b"],
            "hint_samples": 300,
            "samples": 3000,
            "rounds": REMEMBERED + 2,
            "rank": 2,
            "updates": 10,
            "look": 5,
        }
    )
    trainer = Trainer(GuardedGenerator(world.pipeline(), constraint, batch_size=64), settings, tmp_path)
    trainer.run()
    state = trainer.state
    assert state.done == REMEMBERED + 3
    assert "base" in state.laws
    assert [name for name in state.laws if name not in ("base", "branches")] == [f"policy {n}" for n in (3, 4, 5)]
    assert state.policies.keys() == {f"policy {n}" for n in (3, 4, 5)}
    assert all(len(column) == len(state.buffer.samples) for column in state.buffer.log_laws)
    gold = world.gold(constraint)
    z = sum(p for ids, p in world.law().items() if ids in gold)
    weights = np.exp(state.buffer.log_weights())
    error = weights.std() * len(weights) ** 0.5 / sum(count for (count,) in state.buffer.drawn) + 0.01
    assert abs(state.buffer.partition()[0] - z) < 4 * error
