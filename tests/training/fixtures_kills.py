"""A small training in a separate process that kills itself at a given moment, or omits a step on purpose."""

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from guardwrap.testing import llama_world
from guardwrap.training import train, trainer
from tests.training.fixtures_training import guarded_of, settings_of, undrawn

WATCHED = ("draw_round", "update", "write_checkpoint")  # drawing, learning, writing a checkpoint
METHODS: dict[str, dict[str, Any]] = {
    "replay": {"rounds": 6, "updates": 10},
    "dpg": {"method": "dpg", "samples_per_step": 50, "hints": ["b{prompt}"], "warm_samples": 100},
}


@dataclass(frozen=True)
class Moment:
    """A watched function, the number of its call, and the number of a profiler event within it."""

    function: str
    call: int
    event: int


def run(folder: str, method: str, moment: Moment | None = None, forget: str | None = None) -> None:
    """Train, and write the number of events of each call."""
    torch.set_num_threads(1)
    counts: dict[str, list[int]] = {name: [] for name in WATCHED}
    for name in WATCHED:
        setattr(trainer, name, _watched(getattr(trainer, name), counts[name], name, moment))
    if forget:
        module: Any = trainer
        module.write_checkpoint = _forgetful(module.write_checkpoint, forget)
    undrawn(pytest.MonkeyPatch())  # never undone: the process ends with the training
    world = llama_world()
    train(guarded_of(world), settings_of(world, **METHODS[method]), folder)
    (Path(folder) / "counts.json").write_text(json.dumps(counts))


def _watched(function: Callable[..., Any], counts: list[int], name: str, moment: Moment | None) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        here = moment is not None and (name, len(counts)) == (moment.function, moment.call)
        last = moment.event if moment is not None and here else math.inf
        counts.append(0)
        if moment is not None and not here:  # only a run that is not killed counts all calls
            return function(*args, **options)

        def count(*_: Any) -> None:
            counts[-1] += 1
            if counts[-1] > last:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        try:
            return function(*args, **options)
        finally:
            sys.setprofile(None)
            if here:  # it took fewer events than in other calls, for instance because attempts were recorded
                os.kill(os.getpid(), signal.SIGKILL)

    return wrapped


def _forgetful(write: Callable[..., Any], what: str) -> Callable[..., Any]:
    def wrapped(folder: Path, tensors: dict[str, Any], state: dict[str, Any]) -> bool:
        if what == "adam":
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("adam ")}
        elif state["fit"]:
            state = {**state, "fit": {**state["fit"], what: 0}}
        return bool(write(folder, tensors, state))

    return wrapped
