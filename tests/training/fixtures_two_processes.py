"""A small training by one or more processes, each of which writes its draws and its final policy."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState

from guardwrap.testing import llama_world
from guardwrap.training import rounds, shards, train, trainer, training_state
from guardwrap.training.task import Task
from tests.training.fixtures_training import guarded_of, kl, settings_of, undrawn


def start(rank: int, processes: int, port: int, *options: Any) -> None:
    """Set up this process as one of several started by torchrun."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                   "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
                   "OMP_NUM_THREADS": "1"}  # fmt: skip
    run(*options)


def run(folder: str, others: dict[str, Any] | None = None, die_at: int | None = None, broken: bool = False) -> None:
    """Train.

    Parameters
    ----------
    folder, others
        Where, and settings.
    die_at
        Which checkpoint the first process dies at, before it writes it.
    broken
        Whether the processes forget to add up their gradients.
    """
    torch.set_num_threads(1)
    rounds.CHUNK = 40
    drawn: list[int] = []
    made: list[trainer.Trainer] = []
    written: list[int] = []
    draw: Callable[..., Any] = Task.draw
    write: Callable[..., bool] = training_state.write_checkpoint
    begin: Callable[..., None] = trainer.Trainer.__init__

    def counted(task: Any, count: int, *options: Any) -> Any:
        drawn.append(count)
        return draw(task, count, *options)

    def dying(*options: Any) -> bool:
        written.append(1)
        if len(written) == die_at:
            os._exit(1)
        return write(*options)

    def seen(self: Any, *options: Any) -> None:
        made.append(self)
        begin(self, *options)

    patch = pytest.MonkeyPatch()  # never undone: the process ends with the training
    undrawn(patch)
    patch.setattr(Task, "draw", counted)
    patch.setattr(trainer, "write_checkpoint", dying)
    patch.setattr(trainer.Trainer, "__init__", seen)
    if broken:
        patch.setattr(shards, "summed", lambda tensors: None)
    world = llama_world()
    trackers = ["tensorboard"]
    train(guarded_of(world), settings_of(world, **{"trackers": trackers, **(others or {})}), folder)
    buffer = [[sample.token_ids, sample.decided] for sample in made[0].state.buffer.samples]
    found = {"drawn": drawn, "buffer": buffer, "kl": kl(made[0], world), "policy": made[0].policy.digest()}
    state = PartialState()
    (Path(folder) / f"process-{state.process_index}-of-{state.num_processes}.json").write_text(json.dumps(found))
    state.destroy_process_group()
