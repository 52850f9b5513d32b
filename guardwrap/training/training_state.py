"""State of a training: its accepted samples with their weights, its progress, and checkpoints of both."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save

from guardwrap.errors import UsageError, first_line
from guardwrap.metrics.intervals import Floats
from guardwrap.metrics.weights import scaled
from guardwrap.support.files import write_whole
from guardwrap.training.learning_curve import Row
from guardwrap.training.rounds import Round
from guardwrap.training.task import Sample

logger = logging.getLogger("guardwrap")

Tensors = dict[str, torch.Tensor]

_HELD_OUT = 5  # one of this many samples is held out

_PRIOR = 2.0
"""For how many draws of g the mean Ẑ of all prompts counts in that of a prompt, as few draws tell little of it.

With 8 attempts for each of 300 prompts whose Z vary by a factor of e, the TVD between the samples and g was .09 instead
of .20 with 0, and with 200 attempts .023 instead of .025; 5 gave .08 and .022, but for 30 prompts .053 instead of .051
(as ``test_shrinking_z_brings_samples_closer_to_g``).
"""


@dataclass
class Buffer:
    """All accepted samples so far, from several laws.

    A law is a distribution that attempts were drawn from: the model, a constraint-aware prompt, or the policy at some
    step. Together the draws are a stratified sample of the mixture q_p(y) = Σ_k (N_kp / N_p) a'_k(y), so the weight of
    each is P(y) / q_p(y), whichever law it came from: the balance heuristic (Veach and Guibas 1995; "multiple
    importance sampling" in Owen, *Monte Carlo theory*, chapter 9). With the model among the laws no weight exceeds
    N_p / N_base,p.
    """

    prompts: int  # number of prompts
    held_out: list[bool] = field(default_factory=list)  # whether each prompt is held out; empty if none is
    samples: list[Sample] = field(default_factory=list)  # the samples in the order in which they were added
    log_base: list[float] = field(default_factory=list)  # log a(y) in nats; ``[samples]``
    origin: list[int] = field(default_factory=list)  # index of the law that each sample was drawn from; ``[samples]``
    # Numbers that decide which samples are held out; ``[samples]``. They do not depend on the text: if few texts carry
    # g, both sides must have them. They never change, so that no sample moves from training to held-out.
    places: list[int] = field(default_factory=list)
    log_laws: list[list[float]] = field(default_factory=list)  # log a'_k(y) in nats; ``[laws][samples]``
    # log of the law's density in ``log_laws`` over the one that the sample was drawn with; ``[samples]``
    corrections: list[float] = field(default_factory=list)
    # Numbers of attempts N_kp; ``[laws][prompts]``. The number that branches are worth may be fractional.
    drawn: list[list[float]] = field(default_factory=list)

    def extend(
        self,
        samples: Sequence[Sample],
        origin: int,
        log_base: Sequence[float],
        log_laws: Sequence[Sequence[float]],
        places: Sequence[int] | None = None,
        corrections: Sequence[float] | None = None,
    ) -> None:
        """Add samples of one law, with their log-probabilities under every law.

        Dependent samples have equal ``places``; None is for independent samples. ``corrections``: None for zeros.
        """
        begin = self.origin.count(origin)
        self.places += range(begin, begin + len(samples)) if places is None else places
        self.samples += samples
        self.origin += [origin] * len(samples)
        self.log_base += log_base
        self.corrections += [0.0] * len(samples) if corrections is None else corrections
        for known, more in zip(self.log_laws, log_laws, strict=True):
            known += more

    def forget(self, law: int) -> None:
        """Remove a law and its samples. The others are a sample of the remaining laws' mixture."""
        kept = [i for i, origin in enumerate(self.origin) if origin != law]
        self.samples = [self.samples[i] for i in kept]
        self.log_base = [self.log_base[i] for i in kept]
        self.places = [self.places[i] for i in kept]
        self.corrections = [self.corrections[i] for i in kept]
        self.origin = [self.origin[i] - (self.origin[i] > law) for i in kept]
        del self.log_laws[law], self.drawn[law]
        self.log_laws = [[known[i] for i in kept] for known in self.log_laws]

    def log_weights(self) -> Floats:
        """Return log P(y) / q(y), ``[samples]``, in nats."""
        which = [sample.prompt for sample in self.samples]
        drawn = np.array(self.drawn, float)
        with np.errstate(divide="ignore"):
            share = np.log(drawn / drawn.sum(axis=0))[:, which]
        mixture = np.logaddexp.reduce(share + np.array(self.log_laws), axis=0)
        return np.asarray(np.array(self.log_base) - mixture + np.array(self.corrections))

    def partition(self) -> Floats:
        """Estimate Z_p = E_q[P / q] for each prompt, ``[prompts]``; unbiased."""
        total = np.bincount([s.prompt for s in self.samples], np.exp(self.log_weights()), self.prompts)
        return np.asarray(total / np.array(self.drawn, float).sum(axis=0))

    def shares(self, *, held_out: bool) -> Floats:
        """Return the share of the learning that each sample on one side has, ``[samples]``; 0 on the other side.

        The held-out side has the samples of held-out prompts, or a part of each prompt's samples if no held-out prompt
        has any. A sample has w/Z of its prompt, so the shares sum to 1, equally for prompts with many draws of g. Z is
        shrunk towards the mean of the prompts: samples that hardly weigh anything are not those of their prompt's g.
        (A mask may go on with white space after a complete object, which has weights of e^-100.)
        """
        which = np.array([sample.prompt for sample in self.samples], int)
        places = np.array(self.places, int)
        unseen = np.array(self.held_out or [False] * self.prompts, bool)
        by_prompt = unseen[which].any()
        side = unseen[which] if by_prompt else places % _HELD_OUT == 0
        logs = np.where(side == held_out, self.log_weights(), -np.inf)
        if not (logs > -np.inf).any():
            return np.zeros(len(logs))
        weights = scaled(logs)[0]
        attempts = np.array(self.drawn, float).sum(axis=0)
        total, squares = (np.bincount(which, weights**power, self.prompts) for power in (1, 2))
        draws = np.divide(total**2, squares, out=np.zeros(self.prompts), where=squares > 0)
        z = total / attempts
        sides = unseen == held_out if by_prompt else ~unseen
        shrunk = (draws * z + _PRIOR * z[sides].mean()) / (draws + _PRIOR)
        shares = weights / (shrunk * attempts)[which]
        return np.asarray(shares / shares.sum())


def systematic(weights: Floats, count: int, offset: float) -> NDArray[np.int64]:
    """Choose indexes in proportion to weights by systematic resampling (Kitagawa 1996).

    ``offset``: number from 0 to 1. If it is drawn uniformly, the expected count of each index is ``count`` times its
    share.
    """
    points = (np.arange(count) + offset) / count
    return np.searchsorted(np.cumsum(weights) / weights.sum(), points).clip(max=len(weights) - 1)


@dataclass
class Fit:
    """State of the learning in the current round."""

    __pydantic_config__: ClassVar[Any] = {"arbitrary_types_allowed": True}

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

    __pydantic_config__: ClassVar[Any] = {"arbitrary_types_allowed": True}

    buffer: Buffer  # accepted samples so far; empty for dpg
    # distributions of the buffer's samples: ``"base"``, the template of a prompt, ``"branches"``, or ``"policy N"``,
    # the policy at the beginning of round N
    laws: list[str] = field(default_factory=list)
    policies: dict[str, Tensors] = field(default_factory=dict)  # parameters of those policies, by law
    # log Ẑ, over all prompts, from attempts of a law that looks ahead; -inf if none satisfies the constraint
    log_z: dict[str, float] = field(default_factory=dict)
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


_SERIAL = TypeAdapter(State)
_BEST = "best"


def state_to_json(state: State) -> tuple[Tensors, dict[str, Any]]:
    """Serialize a state as tensors and plain JSON."""
    data = _SERIAL.dump_python(state, exclude={"policies": True, "fit": {"best_state"}})
    tensors = {} if state.fit is None else placed_under(_BEST, state.fit.best_state)
    for law, numbers in state.policies.items():
        tensors |= placed_under(law, numbers)
    return tensors, data


def read_state(tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> State:
    """Return the state that ``state_to_json`` serialized."""
    state = _SERIAL.validate_python(data)
    state.policies = {law: under(law, tensors) for law in state.laws if law.startswith("policy ")}
    if state.fit is not None:
        state.fit.best_state = under(_BEST, tensors)
    return state


def placed_under(name: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Prefix the keys of tensors with a name."""
    return {f"{name}/{key}": tensor for key, tensor in tensors.items()}


def under(name: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the tensors whose keys have a name as prefix, without the prefix."""
    return {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}


# Checkpoints: one file each, written atomically and verified when it is read.

_KEPT = 2  # the newest and the previous one
_NAME = re.compile(r"(\d{8})-([0-9a-f]{16})\.safetensors")  # number, beginning of the digest

_LEFT = ".*.safetensors.*.tmp"  # temporary files of killed processes


def write_checkpoint(folder: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> bool:
    """Write a checkpoint, and remove all older ones except the previous one."""
    # The header of safetensors has a limit of 100 MB, so the state is a tensor of bytes.
    packed = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    content = save({"state": packed} | {name: tensor.contiguous() for name, tensor in tensors.items()})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(_LEFT):
            left.unlink()
        number = max((number for number, _, _ in _checkpoints(folder)), default=0) + 1
        write_whole(folder / f"{number:08d}-{_digest(content)}.safetensors", [content])
    except OSError as error:
        logger.warning("cannot write a checkpoint in %s (%s): the previous one is kept", folder, _reason(error))
        return False
    for _, _, old in _checkpoints(folder)[_KEPT:]:
        with suppress(OSError):
            old.unlink()
    return True


def newest_checkpoint(folder: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """Read the newest undamaged checkpoint; return None if there is none.

    A damaged checkpoint is removed with a warning, and the previous one is read.
    """
    checkpoints = _checkpoints(folder)
    for _, digest, path in checkpoints:
        try:
            content = path.read_bytes()
            if _digest(content) != digest:
                path.unlink(missing_ok=True)  # otherwise it would count as the previous one at the next write
                raise ValueError("it is damaged")
            tensors = load(content)
            packed = tensors.pop("state", None)
            state = None if packed is None else json.loads(packed.numpy().tobytes())
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("cannot use checkpoint %s (%s): trying the previous one", path, _reason(error))
            continue
        if state is None:
            raise UsageError(f"{str(path)!r} is of an older version; finish with that version, or give another folder")
        return tensors, state
    if checkpoints:
        logger.warning("no usable checkpoint in %s: the training starts from the beginning", folder)
    return None


def _checkpoints(folder: Path) -> list[tuple[int, str, Path]]:
    """Return number, digest and path of each checkpoint, the newest first."""
    names = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*") if path.is_file()]
    return sorted(((int(name[1]), name[2], path) for name, path in names if name), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or first_line(error)
