"""What a training is told: one YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from guardwrap.constraints.base import Constraint
from guardwrap.proposals import Prompt
from guardwrap.task_settings import TaskSettings, beside, read_task_settings

__all__ = ["Settings", "TrainingSettings", "read_settings"]


class TrainingSettings(TaskSettings):
    """What to train, how, and on what budget.

    Parameters
    ----------
    model
        A Hub id, a folder, or ``"local"``, the embedded model.
    name
        Hub id, or what people call the model, for the adapter's card; None is ``model``.
    dtype
        What the model computes in; None is what its weights are stored in. The adapter is float32 whatever it is.
    constraint
        ``catalogue:NAME``, the path of a constraint file, or what such a file has there: a constraint, or a list
        of them that must all hold.
    prompts
        One or more. Each has a g and a Z of its own; KL(g‖a') is their mean.
    chat
        Whether each prompt becomes a user message.
    generation
        Arguments of ``generate``, e.g. ``max_new_tokens``. They define a(y). A truncation such as top_k must be off.
    method
        ``"replay"``: all satisfying samples so far, weighted; ``"dpg"``: Algorithm 2 of the paper; ``"sft"``:
        fine-tuning on filtered samples.
    hints
        Constraint-aware prompts, templates with ``{prompt}``, that first samples come from. ``sft`` draws all its
        samples from them, or without a hint from the model itself, as the paper's baseline does.
    warm_samples
        Attempts of the warm start, over all prompts: from the hints and the model itself for ``replay``, from the hints
        for ``dpg``, which without a hint has none. None is a quarter of ``samples``, or 0 after a ``start``.
    start
        An adapter of this model to begin as, a folder, Hub id or ``catalogue:NAME``: of a weaker constraint, say, whose
        texts meet this one more often than the model's do.
    samples, tokens, seconds
        The budget: attempts over all prompts, those from hints included, their tokens, wall-clock seconds. The one that
        ends first ends the training, and what is trained by then is saved. A training goes on when they are raised;
        more samples are divided among ``rounds`` more rounds.
    base_share
        Of the warm start of ``replay``, the share of attempts drawn from the model itself: all of them without a hint.
        Where a word decides they branch at it (see ``branches``).
    rounds
        Of ``replay``: how often it draws from the policy and learns.
    samples_per_step
        Attempts for one update of ``dpg``.
    rank
        Of the LoRA adapter, on all linear layers; a ``start`` brings its own.
    full
        Whether to train a full copy of the weights, in float32, instead of an adapter.
    learning_rate
        Of Adam. None is 3e-4 for an adapter and 1.41e-5, the paper's, for all weights.
    batch_size
        Samples in one update of ``replay`` and ``sft``.
    epochs
        Of ``sft``.
    patience
        When the held-out KL has not fallen for so many looks at it, one every ``look`` updates, ``replay`` goes on from
        the best with smaller steps; when that happens again, it ends the round.
    look
        Updates between looks at the held-out KL, and between checkpoints.
    updates
        Of one round of ``replay``, at most.
    gold_attempts
        Attempts of the model itself over all prompts, drawn before the training and apart from its budget. Those that
        satisfy the constraint are draws of g: KL(g‖a') is measured on them all along.
    final_attempts
        Attempts of the trained proposal over all prompts, apart from the budget too, for its acceptance rate.
    draw_batch_size
        Attempts side by side, at most; None is the pipeline's own, or 32.
    trackers
        What else follows the training, by accelerate's names: ``tensorboard``, ``wandb``, …
    seed
        The same seed gives the same adapter.
    """

    ours = ("adapter", "batch_size", "budget", "constraints", "count", "num_return_sequences", "progress", "prompts",
            "proposal", "sampler", "seed", "weigh")  # fmt: skip

    name: str | None = None
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
            Prompt(template)
        if twice := [template for template in hints if hints.count(template) > 1]:
            raise ValueError(f"{twice[0]!r} is there twice; its samples would be the same again")
        return hints

    @model_validator(mode="after")
    def _enough_samples(self) -> TrainingSettings:
        prompts = len(self.prompts)
        if self.start and self.full:
            raise ValueError("start: an adapter cannot become a full model; leave out start or full")
        if self.samples < prompts:
            raise ValueError(f"samples={self.samples} is less than one for each of {prompts} prompts")
        if self.method == "sft":
            return self
        if self.warm > self.samples:
            raise ValueError(f"warm_samples={self.warm} is more than the whole budget, samples={self.samples}")
        share = 1 - self.base_share if self.method == "replay" else 1.0
        if self.hints and self.warm * share < prompts * len(self.hints):
            raise ValueError(f"warm_samples={self.warm} is less than one for each prompt and hint")
        return self

    @property
    def warm(self) -> int:
        """Attempts of the warm start in use."""
        usual = 0 if self.start else self.samples // 4
        return usual if self.warm_samples is None else self.warm_samples

    @property
    def rate(self) -> float:
        """The learning rate in use."""
        return self.learning_rate or (1.41e-5 if self.full else 3e-4)

    def located(self, path: str | Path) -> dict[str, Any]:
        """Return the fields that name folders, those of them beside the settings' own file found there."""
        return {**super().located(path), "start": self.start and beside(path, self.start)}


Settings = TrainingSettings
"""Its name up to version 0.1."""


def read_settings(
    path: str | Path, *, changes: Mapping[str, Any] | None = None, allow_code: bool = False
) -> tuple[TrainingSettings, Constraint]:
    """Read a training's file.

    Parameters
    ----------
    path
        Path of the YAML file. A folder or constraint file that it names is looked for beside it first.
    changes
        Fields to replace, e.g. from the command line; they are held to the same rules.
    allow_code
        Whether the constraint may name Python functions.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed; the message names path and line.
    UsageError
        If a field cannot be replaced by what was given.
    GuardwrapError
        If the constraint that it names cannot be read.
    """
    return read_task_settings(path, TrainingSettings, changes=changes, allow_code=allow_code)
