"""Settings of a training: one YAML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from guardwrap.adapters.card import prompt_digest
from guardwrap.calls.task_settings import TaskSettings, beside, read_task_settings, rows_of
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.file_fields import NAMED
from guardwrap.constraints.files.template import names_of_fields
from guardwrap.proposals import Prompt
from guardwrap.support.formatting import counted

_POPULATION = 50
"""Least number of different prompts, or of rules of a family, of which a fifth is held out by default."""


class TrainingSettings(TaskSettings):
    """Model, constraint, method and budget of a training.

    Parameters
    ----------
    model
        A Hub id, a folder, or ``"local"``, the embedded model.
    name
        Name of the model on the adapter's card, e.g. its Hub id; None for ``model``.
    dtype
        The model's dtype; None for that of its stored weights. The adapter is always float32.
    constraint
        ``catalogue:NAME``, the path of a constraint file, or the content of its ``constraint`` field: a constraint, or
        a list of constraints that must all hold.
    prompts
        One or more prompts, or a file of prompts: JSON Lines with the field ``prompt`` if its name ends in ``.jsonl``,
        otherwise one per line. g and Z differ between prompts; KL(g‖a') is a mean over them.
    fields
        The values of the constraint's fields for each prompt, if its file has ``fields``: the adapter is then for
        whatever constraint is filled from that file. None for the other fields of a JSON Lines file of prompts.
    held_out
        Share of the prompts that nothing is learned from. The adapter is measured on them as well, and ``replay`` ends
        a round when KL(g‖a') on them no longer falls. The prompt alone decides, by its digest, whether it is held out,
        or its ``fields``, so that what is held out are constraints.
        None for a fifth of 50 different prompts or more, or of 50 constraints, otherwise 0.
    chat
        Whether each prompt becomes a user message.
    generation
        Arguments of ``generate``, e.g. ``max_new_tokens``. They define a(y). Truncations such as top_k must be off.
    method
        ``"replay"``: learning from all accepted samples so far, weighted; ``"dpg"``: Algorithm 2 of the paper;
        ``"sft"``: fine-tuning on filtered samples.
    hints
        Where the first samples come from: constraint-aware prompts, templates with ``{prompt}``; or ``masked`` and
        ``twisted``, the model with a mask or a twist, whose texts ``replay`` weighs. ``sft`` draws all its samples
        from them, or from the model itself if there are none, like the paper's baseline.
    warm_samples
        Attempts of the warm start, over all prompts: from the hints and the model itself for ``replay``, from the hints
        for ``dpg``, which has no warm start without hints. None for a quarter of ``samples``, or 0 with a ``start``.
    start
        An adapter of this model to start from: a folder, Hub id or ``catalogue:NAME``. For example one for a weaker
        constraint, whose texts satisfy this constraint more often than the model's.
    samples, tokens, seconds
        The budget: attempts over all prompts (with those from hints), their tokens, wall-clock seconds. Training ends
        at the first limit, and the result is saved. It resumes if limits are raised; additional samples, and those of
        a round that a limit cut off, are divided into ``rounds`` more rounds.
    base_share
        Share of the warm start of ``replay`` drawn from the model itself; without hints it is 1. If a single word
        decides the constraint, these attempts branch at it (see ``branches``).
    rounds
        Number of rounds of ``replay``, each of which draws from the policy and learns.
    samples_per_step
        Attempts for one update of ``dpg``.
    rank
        Rank of the LoRA adapter, on all linear layers; ignored with a ``start``, which has its own rank.
    full
        Whether to train a full copy of the weights, in float32, instead of an adapter.
    learning_rate
        Learning rate of Adam. None for 3e-4 for an adapter and the paper's 1.41e-5 for all weights.
    batch_size
        Samples in one update of ``replay`` and ``sft``.
    epochs
        Number of epochs of ``sft``.
    patience
        After this number of looks without a lower held-out KL, ``replay`` continues from its best policy with a lower
        learning rate; the second time, the round ends.
    look
        Updates between measurements of the held-out KL, and between checkpoints.
    updates
        Most updates in one round of ``replay``.
    gold_attempts
        Attempts of the model itself over all prompts, drawn before the training and not counted in its budget. Those
        that satisfy the constraint are draws of g, on which KL(g‖a') is measured after each round.
    final_attempts
        Attempts of the trained proposal over all prompts, not counted in the budget, to measure its acceptance rate.
    draw_batch_size
        Largest number of attempts in one batch; None for the pipeline's batch size, or 32.
    trackers
        Experiment trackers by accelerate's names: ``tensorboard``, ``wandb``, …
    seed
        Random seed. The same seed gives the same adapter.
    """

    ours = ("adapter", "batch_size", "budget", "constraints", "count", "num_return_sequences", "progress", "prompts",
            "proposal", "sampler", "seed", "weigh")  # fmt: skip

    name: str | None = None
    fields: list[dict[str, Any]] | None = None
    held_out: float | None = Field(default=None, ge=0, lt=1)
    method: Literal["replay", "dpg", "sft"] = "replay"
    hints: list[str] = Field(default_factory=list)
    warm_samples: int | None = Field(default=None, ge=0)
    start: str | None = None
    samples: int = Field(default=80_000, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)
    base_share: float = Field(default=0.5, ge=0, lt=1)
    rounds: int = Field(default=4, ge=1)
    samples_per_step: int = Field(default=2000, ge=1)
    rank: int = Field(default=16, ge=1)
    full: bool = False
    learning_rate: float | None = Field(default=None, gt=0)
    batch_size: int = Field(default=32, ge=1)
    epochs: int = Field(default=3, ge=1)
    patience: int = Field(default=2, ge=1)
    look: int = Field(default=20, ge=1)
    updates: int = Field(default=600, ge=1)
    gold_attempts: int = Field(default=0, ge=0)
    final_attempts: int = Field(default=2000, ge=1)
    draw_batch_size: int | None = Field(default=None, ge=1)
    trackers: list[str] = Field(default_factory=list)

    @field_validator("hints")
    @classmethod
    def _templates(cls, hints: list[str]) -> list[str]:
        for template in hints:
            if template not in NAMED:
                Prompt(template)
        if twice := [template for template in hints if hints.count(template) > 1]:
            raise ValueError(f"the hint {twice[0]!r} occurs twice; its samples would be the same")
        return hints

    @model_validator(mode="before")
    @classmethod
    def _fields_of_prompts(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, dict) and isinstance(given.get("prompts"), str) and given.get("fields") is None:
            with suppress(ValueError):  # raised again where ``prompts`` is read
                rows = rows_of(given["prompts"], info)
                fields = [{name: row[name] for name in row if name != "prompt"} for row in rows]
                prompts = [row["prompt"] for row in rows]
                return {**given, "prompts": prompts, "fields": fields if any(fields) else None}
        return given

    @model_validator(mode="after")
    def _enough_samples(self) -> TrainingSettings:
        prompts = len(self.prompts)
        if self.fields is not None and len(self.fields) != prompts:
            raise ValueError(f"fields has {len(self.fields)} items for {prompts} prompts; give one for each")
        if self.start and self.full:
            raise ValueError("start: an adapter cannot become a full model; remove start or full")
        if self.fields is None and self.one_side is not None:
            raise ValueError(self.one_side)
        if self.samples < prompts:
            raise ValueError(f"samples={self.samples} is less than one per prompt ({prompts} prompts)")
        if self.method == "sft":
            return self
        if self.warm > self.samples:
            raise ValueError(f"warm_samples={self.warm} is more than the whole budget, samples={self.samples}")
        share = 1 - self.base_share if self.method == "replay" else 1.0
        if self.hints and self.warm * share < prompts * len(self.hints):
            raise ValueError(f"warm_samples={self.warm} is less than one per prompt and hint")
        return self

    @property
    def held_out_share(self) -> float:
        """Share of the prompts to hold out, with the default applied."""
        usual = 0.2 if len({*self.units}) >= _POPULATION else 0.0
        return usual if self.held_out is None else self.held_out

    @property
    def given_prompts(self) -> list[str | list[dict[str, str]]]:
        """The prompts in the form that ``GuardedGenerator`` accepts."""
        return [self.given(prompt) for prompt in self.prompts]

    @property
    def units(self) -> list[str]:
        """Digest of what is held out as a whole, ``[prompts]``: the values of a prompt's fields, or the prompt."""
        keys: Sequence[Any] = self.fields or self.given_prompts
        return [prompt_digest(key) for key in keys]

    @property
    def held_out_prompts(self) -> list[bool]:
        """Whether each prompt is held out, ``[prompts]``: its unit decides, not its position or the other prompts."""
        limit = self.held_out_share * 16**12
        return [int(unit, 16) < limit for unit in self.units]

    @property
    def one_side(self) -> str | None:
        """Say that all prompts are held out, or none, although some should be; None if some are."""
        held = self.held_out_prompts if self.held_out_share else [True, False]
        which = "" if len({*held}) > 1 else "all" if all(held) else "none"
        units = counted(len({*self.units}), "rule" if self.fields else "prompt")
        return f"held_out={self.held_out_share} holds out {which} of {units}; give more, or 0" if which else None

    def of_constraint(self, constraint: Constraint) -> TrainingSettings:
        """Return the settings with those fields that a constraint has: other columns of a file decide nothing."""
        names = names_of_fields(constraint)
        rows = [{name: row[name] for name in names if name in row} for row in self.fields or ()]
        return self.model_copy(update={"fields": rows if names and rows else None})

    @property
    def warm(self) -> int:
        """Attempts of the warm start, with the default applied."""
        usual = 0 if self.start else self.samples // 4
        return usual if self.warm_samples is None else self.warm_samples

    @property
    def rate(self) -> float:
        """The learning rate, with the default applied."""
        return self.learning_rate or (1.41e-5 if self.full else 3e-4)

    def located(self, path: str | Path) -> dict[str, Any]:
        """Return the fields that name folders, resolved relative to the settings' file if they exist there."""
        return {**super().located(path), "start": self.start and beside(path, self.start)}


def read_settings(
    path: str | Path, *, changes: Mapping[str, Any] | None = None, allow_code: bool = False
) -> tuple[TrainingSettings, Constraint]:
    """Read a training's file.

    Parameters
    ----------
    path
        Path of the YAML file. Relative paths in it are resolved against its folder first.
    changes
        Fields to replace, e.g. from the command line; they are validated in the same way.
    allow_code
        Whether the constraint may name Python functions.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed; the message names path and line.
    UsageError
        If a value of ``changes`` is not valid.
    GuardwrapError
        If the constraint cannot be read.
    """
    return read_task_settings(path, TrainingSettings, changes=changes, allow_code=allow_code)
