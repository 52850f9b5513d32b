"""State of a training, and its serialization for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from guardwrap.training.learning_curve import Row
from guardwrap.training.rounds import Round
from guardwrap.training.samples import Buffer, Sample

Tensors = dict[str, torch.Tensor]


@dataclass
class Fit:
    """State of the learning in the current round."""

    row: Row  # the round's row, filled in after drawing
    step: int = 0  # updates so far
    best: float = math.inf  # for replay: the lowest held-out KL in nats, its update, and the policy's parameters then
    best_step: int = 0
    bad: int = 0  # number of looks since then
    cooled: bool = False  # whether the learning rate has been lowered
    best_state: Tensors = field(default_factory=dict)


@dataclass
class State:
    """State of a training between two steps. Checkpoints also contain the policy's and the optimizer's parameters."""

    buffer: Buffer  # accepted samples so far; empty for dpg
    # distributions of the buffer's samples: ``"base"``, the template of a prompt, ``"branches"``, or ``"policy N"``,
    # the policy at the beginning of round N
    laws: list[str] = field(default_factory=list)
    policies: dict[str, Tensors] = field(default_factory=dict)  # parameters of those policies, by law
    # tokens at which attempts of the model branch; empty until they are known
    pivots: list[int] = field(default_factory=list)
    done: int = 0  # number of finished rounds
    samples: int = 0  # attempts, tokens and seconds spent
    tokens: int = 0
    seconds: float = 0.0
    asked: int = 0  # the number of samples in the settings, and the rounds planned for it
    plan: list[Round] = field(default_factory=list)
    partition: list[float] = field(default_factory=list)  # for dpg: the sum of P/π over all draws, for each prompt
    counted: int = 0  # for dpg: the number of draws in each of those sums
    dpg_steps: int = 0  # for dpg: the number of updates
    curve: list[Row] = field(default_factory=list)  # one row per finished round
    fit: Fit | None = None  # learning of the current round; None until it has drawn


_PLAIN = ("laws", "pivots", "done", "samples", "tokens", "seconds", "asked", "partition", "counted", "dpg_steps")


def state_to_json(state: State) -> tuple[Tensors, dict[str, Any]]:
    """Serialize a state as tensors and plain JSON."""
    buffer = state.buffer
    lengths = [len(sample.token_ids) for sample in buffer.samples]
    tensors: Tensors = {
        "buffer.prompt": torch.tensor([sample.prompt for sample in buffer.samples], dtype=torch.int32),
        "buffer.places": torch.tensor(buffer.places, dtype=torch.int64),
        "buffer.origin": torch.tensor(buffer.origin, dtype=torch.int32),
        "buffer.decided": torch.tensor([sample.decided for sample in buffer.samples], dtype=torch.int32),
        "buffer.length": torch.tensor(lengths, dtype=torch.int32),
        "buffer.tokens": torch.tensor([i for s in buffer.samples for i in s.token_ids], dtype=torch.int32),
        "buffer.log_base": torch.tensor(buffer.log_base, dtype=torch.float64),
        "buffer.log_laws": torch.tensor(buffer.log_laws, dtype=torch.float64),
    }
    for name, numbers in state.policies.items():
        tensors |= placed_under(name, numbers)
    data = {name: getattr(state, name) for name in _PLAIN}
    data["plan"] = [[part.draws, part.learn] for part in state.plan]
    data |= {"drawn": buffer.drawn, "prompts": buffer.prompts, "curve": [row.to_dict() for row in state.curve]}
    if state.fit is not None:
        fit = state.fit
        tensors |= placed_under("best", fit.best_state)
        best = None if fit.best == math.inf else fit.best
        data["fit"] = {"step": fit.step, "best": best, "best_step": fit.best_step, "bad": fit.bad, "cooled": fit.cooled}
        data["row"] = fit.row.to_dict()
    return tensors, data


def read_state(tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> State:
    """Return the state that ``state_to_json`` serialized."""
    names = ("prompt", "origin", "places", "decided", "length", "tokens", "log_base")
    get = {name: tensors[f"buffer.{name}"].tolist() for name in names}
    ends = [0]
    for length in get["length"]:
        ends.append(ends[-1] + length)
    samples = [
        Sample(prompt, tuple(get["tokens"][begin:end]), decided)
        for prompt, decided, begin, end in zip(get["prompt"], get["decided"], ends[:-1], ends[1:], strict=True)
    ]
    log_laws = tensors["buffer.log_laws"].tolist()
    buffer = Buffer(data["prompts"], samples, get["log_base"], get["origin"], get["places"], log_laws, data["drawn"])
    state = State(buffer, **{name: data[name] for name in _PLAIN})
    state.policies = {name: under(name, tensors) for name in state.laws if name.startswith("policy ")}
    state.plan = [Round(tuple((law, count) for law, count in draws), learn) for draws, learn in data["plan"]]
    state.curve = [Row.from_dict(row) for row in data["curve"]]
    if "fit" in data:
        fit = dict(data["fit"])
        fit["best"] = math.inf if fit["best"] is None else fit["best"]
        state.fit = Fit(Row.from_dict(data["row"]), **fit, best_state=under("best", tensors))
    return state


def placed_under(name: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Prefix the keys of tensors with a name."""
    return {f"{name}/{key}": tensor for key, tensor in tensors.items()}


def under(name: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the tensors whose keys have a name as prefix, without the prefix."""
    return {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}
