"""The proposal π during training, and its updates: gradient steps on KL(g‖π), as a sum over weighted samples.

The gradient of KL(g‖π) is -E_g ∇ log π(y) (paper App. C). DPG estimates it with draws of π itself, weighted by
P(y) / (π(y) Z); the replay objective with every accepted sample so far, weighted by P(y) over the mixture it came
from. Both are -Σ_i w_i log π(y_i), so they share ``update``.

Once a prefix satisfies the constraint for good (verdict SATISFIED), every continuation is allowed, so g continues it
exactly as a does. From there on the replay objective takes the expectation over the next token instead of the drawn
one: the same objective with less variance (Rao and Blackwell).
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import LoraConfig

from guardwrap.adapters.adapter_folder import Files, fetched, read_adapter
from guardwrap.adapters.lora import attach, merged, require_plain
from guardwrap.engine.model_weights import is_quantised
from guardwrap.engine.refill.mode_selection import as_tried
from guardwrap.engine.sequence_scores import of_tokens, scored
from guardwrap.errors import AdapterMismatch, ModelError, UsageError
from guardwrap.metrics.intervals import Floats
from guardwrap.training import shards
from guardwrap.training.task import Sample, Task

Numbers = Mapping[str, torch.Tensor]


class Policy:
    """A model with trainable parameters: those of a LoRA adapter, or all of a copy.

    The parameters are float32 whatever the model's dtype: at a learning rate of 1.4e-5 an update is below the
    resolution of bfloat16, so 98 of 100 weights would never change.
    """

    def __init__(self, base: Any, rank: int | None, seed: int, start: Files | None = None) -> None:
        self.rank, self._base = rank, base
        if any(_packed(module) for module in base.modules()):
            raise UsageError(
                "the fast CPU kernel for 4-bit weights does not propagate gradients, so training would silently fail; "
                "load the model in 8 bits or in bfloat16, or train on a GPU"
            )
        if rank is None:
            require_plain(base)
            if is_quantised(base):
                raise UsageError("quantized weights cannot be trained; train an adapter (full: false)")
            self.model = copy.deepcopy(base).float().requires_grad_(True).eval()
        else:
            new = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules="all-linear")
            config, tensors = (new, None) if start is None else (start.config, start.tensors)
            self.model = attach(base, config, tensors, trainable=True, seed=seed)
        self.parameters = {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def adam(self, rate: float) -> Any:
        """Return a new Adam optimizer for the parameters."""
        return torch.optim.Adam(self.parameters.values(), lr=rate)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the trainable parameters by name, on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.parameters.items()}

    def load_state_dict(self, numbers: Numbers) -> None:
        """Set the trainable parameters."""
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(numbers[name])

    def towards_base(self, numbers: Numbers, strength: float) -> dict[str, torch.Tensor]:
        """Interpolate linearly between the model itself, at strength 0, and the given parameters, at 1."""
        if self.rank is not None:  # the update is the product B A, so scaling B scales it
            return {name: strength * tensor if "lora_B" in name else tensor for name, tensor in numbers.items()}
        base = dict(self._base.named_parameters())
        return {name: base[name].detach().float().cpu().lerp(tensor, strength) for name, tensor in numbers.items()}

    def source(self) -> Any:
        """Return a model to draw from: in float32 with the adapter merged, which saves a tenth of the time.

        In half precision merging would round the distribution, so the adapter stays separate.
        """
        if self.rank is None or self.model.dtype != torch.float32 or is_quantised(self.model.get_base_model()):
            return self.model
        return as_tried(merged(self.model), self._base)

    def digest(self) -> str:
        """Return a SHA-256 digest of the trainable parameters."""
        digest = hashlib.sha256()
        for name in sorted(self.parameters):
            digest.update(self.parameters[name].detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def read_start(base: Any, source: str) -> Files:
    """Read an adapter from which a training starts."""
    files = read_adapter(fetched(source))
    if misfit := files.misfit(base):
        raise AdapterMismatch(f"start: {misfit}; give an adapter of this model")
    return files


def _packed(module: torch.nn.Module) -> bool:
    """Return whether bitsandbytes uses a CPU layout for a layer that its backward pass does not support."""
    return bool(getattr(module, "support_avx512bf16_for_cpu", False)) and module.weight.device.type == "cpu"


@torch.enable_grad()  # the caller may have disabled gradients
def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    task: Task,
    samples: Sequence[Sample],
    weights: Sequence[float] | Floats,
    *,
    exact_ends: bool = True,
    clip: float | None = None,
) -> float:
    """Take one gradient descent step on -Σ_i w_i log π(y_i), and return that sum in nats.

    ``exact_ends``: whether tokens after the constraint is decided contribute their expectation instead of the drawn
    token, which DPG uses. ``clip``: largest norm of the gradient, to which longer gradients are scaled.
    """
    optimizer.zero_grad(set_to_none=False)
    joined: dict[Sample, float] = {}  # each text is computed once; few texts may carry most of g
    for sample, weight in zip(samples, weights, strict=True):
        joined[sample] = joined.get(sample, 0.0) + float(weight)
    parts: dict[bool, list[tuple[Sample, float]]] = {True: [], False: []}
    for sample, weight in shards.mine(list(joined.items())):
        parts[exact_ends and sample.decided < len(sample.token_ids)].append((sample, weight))
    total = sum(_backward(policy, task, part, exact_ends=early) for early, part in parts.items())
    loss = torch.tensor(total, device=task.model.device, dtype=torch.float32)  # on the device of the gradients
    for parameter in policy.parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    shards.summed([loss, *(parameter.grad for parameter in policy.parameters.values() if parameter.grad is not None)])
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(policy.parameters.values(), clip)
    optimizer.step()
    return float(loss)


def _backward(policy: Policy, task: Task, pairs: Sequence[tuple[Sample, float]], *, exact_ends: bool) -> float:
    """Accumulate the gradient of a part of the sum; the model itself is run only with ``exact_ends``."""
    total = 0.0
    texts = task.texts([sample for sample, _ in pairs])
    reference = scored(task.model, texts)
    for batch in scored(policy.model, texts):
        with torch.no_grad():
            base = dict(next(reference)) if exact_ends else {}
        terms = []
        for i, scores in batch:
            sample, weight = pairs[i]
            log_policy = of_tokens(scores, sample.token_ids)
            if exact_ends:
                expected = _expected(scores[sample.decided :], base[i][sample.decided :])
                log_policy = torch.cat([log_policy[: sample.decided], expected])
            terms.append(-weight * log_policy.sum())
        loss = torch.stack(terms).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def _expected(policy: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return Σ_v a(v) log π(v) of each token, in nats, from scores of π and of a; both ``[tokens, vocabulary]``."""
    law, log_policy = base.softmax(-1), policy.log_softmax(-1)
    # A token that a processor forbids has a = π = 0, which would give 0 times -inf.
    return (law * torch.where(law > 0, log_policy, 0.0)).sum(-1).double()


def require_number(loss: float) -> None:
    """Raise ModelError if a loss is infinite or NaN: the update made the policy's probabilities invalid."""
    if not math.isfinite(loss):
        raise ModelError("the training has diverged: the policy has no valid probabilities; lower learning_rate")
