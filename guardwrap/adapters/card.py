"""Cards of trained adapters: ``card.yaml``, the fingerprint of the model in it, and the README generated from it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import peft
import torch
import transformers
from pydantic import BaseModel, ConfigDict, Field, model_validator

import guardwrap
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.files.template import ConstraintTemplate, names_of_fields
from guardwrap.engine.model_weights import is_quantised
from guardwrap.errors import AdapterError, SpecError
from guardwrap.outcomes import Estimate
from guardwrap.support.validation import read_as
from guardwrap.support.yaml_nodes import to_yaml

SHOWN = 3
"""Most prompts that a card contains in full …"""

LONGEST = 2_000
"""… and most characters of each."""


SAMPLE = 256
"""Number of values sampled from each parameter."""

_VOLATILE = {
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "transformers_weights",
    "use_cache",
}
"""Configuration fields that do not affect the model's computation, such as storage and generation settings."""


class _Frozen(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class Fingerprint(_Frozen):
    """Digests that identify the model of an adapter: of its configuration and of its weights.

    The digest of the weights covers names and shapes of all parameters, and a fixed sample of each parameter's values,
    rounded to bfloat16. It takes milliseconds for any model, and the same file has the same digest whether it is loaded
    in float32, bfloat16 or float16. (Rounding from float32 to float16 to bfloat16 differs from rounding to bfloat16
    directly, so there are two digests; a model in float16 has only one of them.)

    It detects another checkpoint, another size, a resized vocabulary, and training that changed some of the sampled
    values by more than half a unit of bfloat16 (0.2 to 0.4 %), as almost any training of a whole tensor does. It does
    not detect a change of a few values outside the sample, and it is not a signature. Quantized weights have no digest,
    so only configurations are compared.

    Parameters
    ----------
    config
        SHA-256 of the configuration.
    weights
        SHA-256 of the weights for each rounding, ``"bfloat16"`` and ``"float16"``; empty for quantized models.
    """

    config: str
    weights: dict[str, str] = {}


def fingerprint(model: Any) -> Fingerprint:
    """Compute a model's fingerprint.

    Parameters
    ----------
    model
        A transformers model without an adapter.
    """
    config = json.dumps(_plain(model.config.to_diff_dict()), sort_keys=True, default=str)
    digest = hashlib.sha256(config.encode()).hexdigest()
    return Fingerprint(config=digest, weights={} if is_quantised(model) else _weights(model))


def difference(model: Any, wanted: Fingerprint) -> str | None:
    """Return in a few words how a model differs from a fingerprint, or None if it matches.

    If one of the models is quantized, only the configurations are compared.
    """
    actual = fingerprint(model)
    both = actual.weights.keys() & wanted.weights.keys()
    other_weights = bool(both) and all(actual.weights[name] != wanted.weights[name] for name in both)
    parts = [("configuration", actual.config != wanted.config), ("weights", other_weights)]
    different = [name for name, differs in parts if differs]
    return f"another {' and other '.join(different)}" if different else None


def _plain(config: Any) -> Any:
    if isinstance(config, Mapping):
        kept = {str(key): _plain(value) for key, value in config.items() if key not in _VOLATILE}
        return {key: value for key, value in kept.items() if value is not None}
    if isinstance(config, list | tuple):
        return [_plain(value) for value in config]
    return config


@torch.no_grad()
def _weights(model: Any) -> dict[str, str]:
    ways = ("float16",) if model.dtype == torch.float16 else ("bfloat16", "float16")
    digests = {way: hashlib.sha256() for way in ways}
    for name, parameter in sorted(model.named_parameters()):
        count = parameter.numel()
        # Positions spread over all rows and columns; a fixed step could stay in one column.
        places = torch.arange(count) if count <= SAMPLE else torch.arange(SAMPLE) * 2_654_435_761 % count
        sample = parameter.detach().flatten()[places.to(parameter.device)].float().cpu()
        for way, digest in digests.items():
            rounded = (sample.half() if way == "float16" else sample).bfloat16()
            digest.update(f"{name} {list(parameter.shape)}\n".encode())
            digest.update(rounded.float().numpy().astype("<f4").tobytes())
    return {way: digest.hexdigest() for way, digest in digests.items()}


class Figure(_Frozen):
    """A value inside its 95 % interval; ``high`` is None if the interval has no upper bound."""

    value: float = Field(allow_inf_nan=False)
    low: float = Field(allow_inf_nan=False)
    high: float | None = Field(allow_inf_nan=False)

    @model_validator(mode="after")
    def _inside(self) -> Figure:
        high = math.inf if self.high is None else self.high
        if not self.low <= self.value <= high:
            raise ValueError(f"{self.value:g} is outside its interval, {self.low:g} to {high:g}")
        return self

    @classmethod
    def of(cls, estimate: Estimate | None) -> Figure | None:
        """Convert an estimate, or return None if its value is unknown."""
        if estimate is None or not math.isfinite(estimate.value) or not math.isfinite(estimate.low):
            return None
        high = float(estimate.high) if math.isfinite(estimate.high) else None
        return cls(value=float(estimate.value), low=float(estimate.low), high=high)

    @property
    def estimate(self) -> Estimate:
        """The figure as an estimate."""
        return Estimate(self.value, self.low, math.inf if self.high is None else self.high)


class Figures(_Frozen):
    """Figures measured on the card's prompts; those that begin with ``unseen_``, on prompts held out of the training.

    Parameters
    ----------
    acceptance_before, acceptance_after
        Acceptance rate without and with the adapter: E_a b and E_a' b.
    kl_gold_proposal
        KL(g‖a') in nats, a mean over prompts.
    kl_gold_guarded
        KL(g‖g') in nats, where g' ∝ a' b: the distance to g of texts that rejection sampling draws from the adapter.
    pareto_k
        Tail index of the weights a / a' of the adapter's own draws, see ``guardwrap.metrics.pareto_k``; of several
        prompts, the largest. If it is high, samplers that weigh cannot confirm a small distance to g.
    """

    acceptance_before: Figure | None = None
    acceptance_after: Figure | None = None
    kl_gold_proposal: Figure | None = None
    kl_gold_guarded: Figure | None = None
    pareto_k: Figure | None = None
    unseen_acceptance_before: Figure | None = None
    unseen_acceptance_after: Figure | None = None
    unseen_kl_gold_proposal: Figure | None = None
    unseen_kl_gold_guarded: Figure | None = None


def prompt_digest(prompt: Any) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a prompt, a string or a list of messages."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:12]


class CardPrompts(_Frozen):
    """The prompts that an adapter was trained on."""

    count: int = Field(ge=0)  # number of prompts
    digest: str  # SHA-256 of all prompts, as JSON
    first: list[str | list[dict[str, Any]]] = []  # the first few prompts, texts or chats, unless they are long
    digests: str = ""  # ``prompt_digest`` of each of more prompts than are in ``first``; empty on cards of version 0.1
    rules: str = ""  # ``prompt_digest`` of the different values of the fields, of an adapter for a family
    held_out: int = Field(default=0, ge=0)  # number of further prompts, which were only measured on
    start: CardPrompts | None = None  # those of the adapter that the training started from, if they are others

    @classmethod
    def of(
        cls,
        prompts: Sequence[Any],
        held_out: int = 0,
        start: CardPrompts | None = None,
        rules: Sequence[Mapping[str, Any]] = (),
    ) -> CardPrompts:
        """Convert prompts, which are strings or lists of messages, and the values of the fields at each."""
        encoded = [json.dumps(prompt, ensure_ascii=False, sort_keys=True) for prompt in prompts]
        digest = hashlib.sha256(json.dumps(encoded).encode()).hexdigest()
        first = [json.loads(text) for text in encoded[:SHOWN] if len(text) <= LONGEST]
        digests = " ".join(map(prompt_digest, prompts)) if len(prompts) > len(first) else ""
        of_rules = " ".join(dict.fromkeys(map(prompt_digest, rules)))
        start = start.start if start is not None and (start.digest, start.rules) == (digest, of_rules) else start
        return cls(
            count=len(prompts),
            digest=digest,
            first=first,
            digests=digests,
            rules=of_rules,
            held_out=held_out,
            start=start,
        )

    def has(self, prompt: Any) -> bool | None:
        """Return whether a prompt is one of them or of ``start``; None if unknown, as older cards have only a few."""
        known = {each._names(prompt) for each in self._chain}
        return True if True in known else None if None in known else False

    def has_rule(self, values: Mapping[str, Any]) -> bool | None:
        """Return whether the fields had these values at one of them or of ``start``; None if that is unknown."""
        known = [prompt_digest(values) in each.rules for each in self._chain if each.rules]
        return any(known) if known else None

    @property
    def _chain(self) -> list[CardPrompts]:
        return [self, *(() if self.start is None else self.start._chain)]

    def _names(self, prompt: Any) -> bool | None:
        if not isinstance(prompt, str) and not all(isinstance(message, dict) for message in prompt):
            return None  # token ids, which cards do not contain
        if self.digests:
            return prompt_digest(prompt) in self.digests
        if prompt in self.first or self.of([prompt]).digest == self.digest:
            return True
        return False if len(self.first) == self.count or self.count == 1 else None


class Base(_Frozen):
    """The model of an adapter: its Hub id or name, and its fingerprint."""

    name: str
    fingerprint: Fingerprint


class Card(_Frozen):
    """The provenance and figures of an adapter.

    Parameters
    ----------
    guardwrap_adapter
        Version of the format.
    base
        The model.
    constraint
        The ``constraint`` field of a constraint file; None if no single file has the constraint, as in Python.
    fields
        The names of the constraint's fields, if the adapter is for whatever constraint is filled from it.
    constraint_digest
        SHA-256 of the constraint's canonical form.
    constraint_description
        The constraint in words.
    prompts
        The prompts of the training.
    settings
        Arguments of ``generate`` that define a(y).
    method
        The training method, in words.
    hyperparameters
        Hyperparameters of the method.
    seed
        Random seed of the training.
    samples, tokens, seconds
        Cost of the training: attempts, their tokens, wall-clock seconds.
    figures
        Measured figures.
    versions
        Versions of guardwrap, torch, transformers and peft.
    files
        SHA-256 of the folder's other files, by name; filled in by ``save_adapter``.
    license
        Identifier of the adapter's license on the Hub, e.g. ``"apache-2.0"``.
    notes
        Further remarks, one sentence each.
    """

    guardwrap_adapter: Literal[1] = 1
    base: Base
    constraint: dict[str, Any] | list[Any] | None = None
    fields: list[str] = []
    constraint_digest: str
    constraint_description: str = ""
    prompts: CardPrompts
    settings: dict[str, Any] = {}
    method: str
    hyperparameters: dict[str, Any] = {}
    seed: int
    samples: int = Field(ge=0)
    tokens: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0)
    figures: Figures = Figures()
    versions: dict[str, str] = {}
    files: dict[str, str] = {}
    license: str | None = None
    notes: list[str] = []

    @classmethod
    def read(cls, path: str | Path) -> Card:
        """Read a card without building or running anything in it.

        Raises
        ------
        AdapterError
            If it cannot be read or is not well formed; the message names path and line.
        """
        try:
            return read_as(path, cls)
        except SpecError as error:
            raise AdapterError(str(error)) from None

    def to_yaml(self) -> str:
        """Return the card as the text of ``card.yaml``."""
        return to_yaml(self.model_dump(mode="json"))


def describe(
    model: Any,
    constraint: Constraint,
    prompts: Sequence[Any],
    *,
    name: str,
    settings: Mapping[str, Any],
    method: str,
    seed: int,
    samples: int,
    held_out: int = 0,
    start: CardPrompts | None = None,
    rules: Sequence[Mapping[str, Any]] = (),
    **others: Any,
) -> Card:
    """Make a card with the model's fingerprint, the constraint, the prompts' digest and the installed versions.

    Parameters
    ----------
    model
        The model that the adapter is for.
    constraint
        The constraint that the adapter was trained for.
    prompts
        Strings or lists of messages.
    name
        Hub id or name of the model; not a path, because the card is read on other machines.
    held_out
        Number of further prompts, which were only measured on.
    start
        The prompts of the adapter that the training started from, from its card; they count as trained on.
    rules
        The values of the constraint's fields at each prompt, of an adapter for a family.
    settings, method, seed, samples, **others
        Fields of the card; see ``Card``.
    """
    in_file: Any = None if any(part.in_memory for part in walk(constraint)) else constraint.spec()
    if isinstance(constraint, ConstraintTemplate):
        in_file = constraint.data
    fields = {
        "fields": list(names_of_fields(constraint)),
        "settings": dict(settings),
        "method": method,
        "seed": seed,
        "samples": samples,
        **others,
    }
    packages = (guardwrap, torch, transformers, peft)
    return Card(
        base=Base(name=name, fingerprint=fingerprint(model)),
        constraint=in_file,
        constraint_digest=constraint.digest,
        constraint_description=fields.pop("constraint_description", constraint.title),
        prompts=CardPrompts.of(prompts, held_out, start, rules),
        versions={package.__name__: str(package.__version__) for package in packages},
        **fields,
    )


_MEASURED = {
    "acceptance_before": ("acceptance rate without the adapter", ""),
    "acceptance_after": ("acceptance rate with it", ""),
    "kl_gold_proposal": ("KL(g‖a')", " nats"),
    "kl_gold_guarded": ("KL(g‖g')", " nats"),
    "pareto_k": ("Pareto k of the weights (a light tail: about 0.5 or less)", ""),
}
_TABLE = "| measured on the training's prompts | 95 % interval |\n|---|---|\n"


def readme(card: Card, folder: str) -> str:
    """Return the README of an adapter's folder, with front matter for the Hub."""
    front: dict[str, Any] = {
        "base_model": card.base.name,
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["guardwrap", "lora"],
    }
    if card.license is not None:
        front["license"] = card.license
    table = [
        f"| {words}{where} | {figure.estimate}{unit} |"
        for prefix, where in (("", ""), ("unseen_", ", prompts not trained on"))
        for name, (words, unit) in _MEASURED.items()
        if (figure := getattr(card.figures, prefix + name, None)) is not None
    ]
    settings = [f"{name}={value!r}" for name, value in card.settings.items()]
    settings = [f"fields={dict.fromkeys(card.fields, '...')!r}"] * bool(card.fields) + settings
    constraint_file = ""
    if card.constraint is not None:
        fields = {"fields": card.fields} if card.fields else {}
        constraint_file = to_yaml({"guardwrap": 1, **fields, "constraint": card.constraint})
    spent = [f"{card.samples} samples"]
    spent += [] if card.tokens is None else [f"{card.tokens} tokens"]
    spent += [] if card.seconds is None else [f"{card.seconds:.0f} seconds"]
    lines = [
        f"---\n{to_yaml(front)}---",
        f"# {folder}",
        f"A LoRA adapter for `{card.base.name}` that satisfies a constraint more often than the model itself: "
        f"{card.constraint_description or card.constraint_digest[:12]}",
        *([f"```yaml\n# rules.yaml\n{constraint_file}```"] if constraint_file else []),
        "By default all texts satisfy the constraint, and their distribution is the adapter's, given the constraint "
        "(g' ∝ a' b). `sampler=\"qrs\"` brings it closer to the model's own distribution, given the constraint (g).",
        "```python\nfrom guardwrap import GuardedGenerator\n\n"
        f'guarded = GuardedGenerator("{card.base.name}", "rules.yaml", adapter="{folder}")\n'
        f"guarded({', '.join([repr(next(iter(card.prompts.first), '...')), *settings])})\n```",
        *(["The figures are valid for these settings and the training's prompts."] if table else []),
        *([_TABLE + "\n".join(table)] if table else []),
        f"Trained by {card.method} with {', '.join(spent)}, seed {card.seed}. Everything else is in `card.yaml`"
        + (", the learning curve in `curve.jsonl`." if "curve.jsonl" in card.files else "."),
        *card.notes,
    ]
    return "\n\n".join(lines) + "\n"
