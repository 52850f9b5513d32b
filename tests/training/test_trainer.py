"""Rounds of a training on a small world: their state and results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import GuardedGenerator, Regex
from guardwrap.testing import llama_world
from guardwrap.training import TrainingSettings
from guardwrap.training.mixture import REMEMBERED, Begun, branches
from guardwrap.training.policy import update
from guardwrap.training.trainer import OFTEN, STRENGTHS, Trainer
from guardwrap.training.training_state import Buffer, Fit
from tests.training.fixtures_training import kl, trainer_of


@pytest.mark.slow
def test_the_oldest_laws_are_forgotten_and_z_stays_right(tmp_path: Path) -> None:
    world = llama_world()
    constraint = Regex("aa|bb")
    settings = TrainingSettings.model_validate(
        {
            "constraint": "given",
            "prompts": [world.prompt],
            "generation": world.settings,
            "hints": ["{prompt}a", "{prompt}b"],
            "warm_samples": 300,
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


def test_few_texts_are_not_learned_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(policy: Any, optimizer: Any, task: Any, samples: Any, weights: Any, **options: Any) -> float:
        sizes.append(len(samples))
        return update(policy, optimizer, task, samples, weights, **options)

    monkeypatch.setattr("guardwrap.training.trainer.update", counted)
    trainer = trainer_of(
        tmp_path, samples=30, warm_samples=30, updates=1000, look=1000, batch_size=64, learning_rate=1e-4
    )
    trainer.run()
    shares = trainer.state.buffer.shares(held_out=False)
    assert trainer.state.buffer.shares(held_out=True).any()
    assert OFTEN / (shares**2).sum() <= sum(sizes) < OFTEN / (shares**2).sum() + 64
    assert len(sizes) < 50  # shows that this limit applied


def learned_from_and_measured_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return for each round how many held-out samples were used for learning in the round before."""
    sides: dict[int, bool] = {}
    mixed: list[int] = []
    kept: list[object] = []  # keeps samples alive, so that ids stay unique
    learn = Trainer._learn

    def watched(self: Trainer, number: int, replays: bool) -> None:
        buffer = self.state.buffer
        measures = buffer.shares(held_out=True) > 0
        now = {id(sample): bool(side) for sample, side in zip(buffer.samples, measures, strict=True)}
        mixed.append(sum(side and not sides.get(sample, True) for sample, side in now.items()))
        sides.update(now)
        kept.append(buffer.samples)
        learn(self, number, replays)

    monkeypatch.setattr(Trainer, "_learn", watched)
    trainer_of(folder, samples=2300, rounds=REMEMBERED + 3, updates=2, look=2).run()
    return mixed


@pytest.mark.slow
def test_what_was_learned_from_never_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned_from_and_measured_on(tmp_path, monkeypatch) == [0] * (REMEMBERED + 4)


@pytest.mark.slow
def test_negative_control_places_that_move_when_a_law_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = Buffer.forget

    def moves(self: Buffer, law: int) -> None:
        forget(self, law)
        self.places = list(range(len(self.samples)))

    monkeypatch.setattr(Buffer, "forget", moves)
    assert max(learned_from_and_measured_on(tmp_path, monkeypatch)) > 10


def test_branches_of_one_attempt_are_held_out_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Begun] = []

    def recorded(*given: Any) -> list[Begun]:
        begun.extend(branches(*given))
        return begun

    monkeypatch.setattr("guardwrap.training.mixture.branches", recorded)
    # Some of the attempts branch, although only about two contain "b".
    for module in ("trainer", "mixture"):
        monkeypatch.setattr(f"guardwrap.training.{module}.reserved", lambda attempts: attempts * 3 // 4)
    trainer = trainer_of(tmp_path, samples=400, warm_samples=400, updates=2, look=2)  # one round, of the model itself
    trainer.run()
    (branched,) = begun
    assert len(set(branched.parents)) < len(branched.parents), "some attempts branch twice"
    buffer = trainer.state.buffer
    place = trainer.state.laws.index("branches")
    measures = buffer.shares(held_out=True) > 0
    parents = [number for number, origin in zip(buffer.places, buffer.origin, strict=True) if origin == place]
    sides = [bool(side) for side, origin in zip(measures, buffer.origin, strict=True) if origin == place]
    assert {True, False} == set(sides)
    assert set(parents) <= set(branched.parents)
    for parent in set(parents):
        assert len({side for number, side in zip(parents, sides, strict=True) if number == parent}) == 1


@pytest.mark.slow
def test_less_of_what_was_learned_is_kept_where_that_is_nearer_to_g(tmp_path: Path) -> None:
    world = llama_world()
    trainer = trainer_of(tmp_path, world, samples=2000, rounds=1, updates=20)
    trainer.run()
    held_out = trainer.state.buffer.shares(held_out=True)

    def shrunk(numbers: dict[str, torch.Tensor]) -> Fit:
        row = replace(trainer.state.curve[-1], strength=1.0)
        trainer.policy.load_state_dict(numbers)
        fit = Fit(row, best=trainer._held_out_kl(held_out), best_step=1, best_state=numbers)
        trainer._shrink(fit, held_out)
        return fit

    good = trainer.policy.state_dict()
    too_much = {name: 1.4 * tensor if "lora_B" in name else tensor for name, tensor in good.items()}
    trainer.policy.load_state_dict(too_much)
    before = kl(trainer, world)
    fit = shrunk(too_much)
    assert fit.row.strength in STRENGTHS
    assert kl(trainer, world) < before
    assert fit.best == pytest.approx(trainer._held_out_kl(held_out))
    too_little = trainer.policy.towards_base(good, 0.5)
    assert shrunk(too_little).row.strength == 1.0
    assert all(torch.equal(tensor, too_little[name]) for name, tensor in trainer.policy.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_the_way_to_the_policy_begins_at_the_model_and_ends_at_the_policy(tmp_path: Path, full: bool) -> None:
    world = llama_world(dtype=torch.float32)  # the dtype of the policy's parameters
    trainer = trainer_of(tmp_path, world, full=full, samples=200, rounds=1)
    trainer.run()
    numbers, samples = trainer.policy.state_dict(), trainer.state.buffer.samples
    base = trainer.task.log_probabilities(trainer.task.model, samples)
    at = {}
    for strength in (0.0, 0.5, 1.0):
        trainer.policy.load_state_dict(trainer.policy.towards_base(numbers, strength))
        at[strength] = np.array(trainer.task.log_probabilities(trainer.policy.model, samples))
    assert at[0.0] == pytest.approx(base, abs=1e-6)
    trainer.policy.load_state_dict(numbers)
    assert at[1.0] == pytest.approx(trainer.task.log_probabilities(trainer.policy.model, samples), abs=1e-6)
    assert np.abs(at[1.0] - at[0.5]).max() > 0.01
