"""What an evaluation is told: one YAML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex
from guardwrap.proposals import Prompt
from guardwrap.task_settings import TaskSettings, beside, read_task_settings

__all__ = [
    "BASE",
    "KINDS",
    "STEPS",
    "EvaluationSettings",
    "Settings",
    "marks_of",
    "position_to_compare",
    "read_evaluation_settings",
]

BASE = "base"
"""What figures call the model itself."""

STEPS = (1, 2, 5, 10, 20, 50, 100)

KINDS = ("adapter", "model")
"""Of proposals that are no prompts."""


class EvaluationSettings(TaskSettings):
    """What to compare, and how thoroughly.

    Parameters
    ----------
    model
        A Hub id, a folder, or ``"local"``, the embedded model.
    dtype
        What the model computes in; None is what its weights are stored in. float16 on a CPU takes three times as
        long as float32.
    constraint
        ``catalogue:NAME``, the path of a constraint file, or what such a file has there: a constraint, or a list
        of them that must all hold.
    prompts
        One or more. g differs from prompt to prompt, so each has its own figures.
    proposals
        By name: a constraint-aware prompt, which is a template with ``{prompt}``; ``{"adapter": ...}``, the folder or
        Hub id of an adapter for the model; or ``{"model": ...}``, another model with the same tokenizer.
    chat
        Whether each prompt becomes a user message.
    generation
        Arguments of ``generate``, e.g. ``max_new_tokens``. They define a(y).
    attempts
        Of each proposal, for each prompt.
    base_attempts
        Of the model itself, for each prompt, where that is another number: texts of g come from them.
    batch_size
        Attempts side by side, at most.
    betas
        The β of QRS, in units of P/a' as in ``qrs``. None chooses them by what they cost.
    steps
        Moves of IMH.
    sampler
        One more to compare with the curves of QRS and IMH, the one that an app is to use, say: its name, or its name
        with options as in ``{qrs: {target_tvd: 0.05}}``.
    texts
        Of each setting of IMH, where so many can be had: 1000 in the paper (App. G).
    position
        A word or phrase, whose place in a text is compared. None takes the constraint's only keyword or regular
        expression, if it has one.
    replication
        Whether the page shows what the paper's App. G found beside what is found here: for those who repeat it.
    seed
        The same seed gives the same figures.
    """

    ours = ("adapter", "count", "num_return_sequences", "prompts", "proposal", "seed")

    proposals: dict[str, str | dict[str, str]] = Field(min_length=1)
    attempts: int = Field(default=10_000, ge=2)
    base_attempts: int | None = Field(default=None, ge=2)
    batch_size: int | None = Field(default=None, ge=1)
    betas: list[float] | None = Field(default=None, min_length=1)
    steps: list[int] = Field(default=list(STEPS), min_length=1)
    sampler: str | dict[str, Any] | None = None
    texts: int = Field(default=1000, ge=1)
    position: str | None = Field(default=None, min_length=1)
    replication: bool = False

    @field_validator("proposals")
    @classmethod
    def _known_kinds(cls, proposals: dict[str, str | dict[str, str]]) -> dict[str, str | dict[str, str]]:
        for name, proposal in proposals.items():
            if not name.strip() or name == BASE:
                raise ValueError(f"a proposal needs a name, and {BASE!r} is the model itself")
            if isinstance(proposal, str):
                Prompt(proposal)
            elif len(proposal) != 1 or not proposal.keys() <= set(KINDS):
                raise ValueError(f"{name!r} is neither a template nor {{adapter: PATH}} nor {{model: PATH}}")
        return proposals

    @field_validator("betas")
    @classmethod
    def _above_0(cls, betas: list[float] | None) -> list[float] | None:
        if betas is not None and not all(0 < beta < math.inf for beta in betas):
            raise ValueError("each β must be a number above 0; rejection, the limit at 0, is always compared")
        return betas

    @field_validator("steps")
    @classmethod
    def _moves(cls, steps: list[int]) -> list[int]:
        if not all(number >= 1 for number in steps):
            raise ValueError("each number of steps must be at least 1; rejection, no step, is always compared")
        return steps

    @field_validator("sampler")
    @classmethod
    def _readable(cls, sampler: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if sampler is not None:
            from guardwrap.samplers.sampler_registry import (
                read_sampler,  # scipy comes with it, which help need not wait for
            )

            read_sampler(sampler)
        return sampler

    def located(self, path: str | Path) -> dict[str, Any]:
        """Return the fields that name folders, those of them beside the settings' own file found there."""
        proposals = {
            name: given if isinstance(given, str) else {kind: beside(path, source) for kind, source in given.items()}
            for name, given in self.proposals.items()
        }
        return {**super().located(path), "proposals": proposals}


Settings = EvaluationSettings
"""Its name up to version 0.1."""


def read_evaluation_settings(
    path: str | Path, *, changes: Mapping[str, Any] | None = None, allow_code: bool = False
) -> tuple[EvaluationSettings, Constraint]:
    """Read an evaluation's file.

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
    return read_task_settings(path, EvaluationSettings, changes=changes, allow_code=allow_code)


def position_to_compare(settings: EvaluationSettings, constraint: Constraint) -> Keyword | Regex | None:
    """Return what to look for in texts, whose place in them is compared, or None if nothing can be looked for."""
    if settings.position is not None:
        return Keyword(settings.position)
    found = _placed(constraint)
    return found[0] if len(found) == 1 else None


def marks_of(settings: EvaluationSettings, constraint: Constraint) -> tuple[Keyword | Regex, ...]:
    """Return what to highlight in texts: what their place is compared by, and whatever must occur in them."""
    asked = () if settings.position is None else (Keyword(settings.position),)
    return (*asked, *_placed(constraint))


def _placed(constraint: Constraint) -> list[Keyword | Regex]:
    return [part for part in constraint.parts if isinstance(part, Keyword | Regex) and _has_a_place(part)]


def _has_a_place(part: Keyword | Regex) -> bool:
    """Say whether every text that satisfies a part has a match somewhere."""
    if isinstance(part, Keyword):
        return part.on == "completion" and part.match != "none" and part.least > 0
    return part.on == "completion" and part.match == "search"
