"""Settings of an evaluation: one YAML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, field_validator

from guardwrap.calls.task_settings import TaskSettings, beside, read_task_settings
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.file_fields import NAMED, AProposal
from guardwrap.constraints.files.template import names_of_fields
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex
from guardwrap.errors import UsageError
from guardwrap.proposals import Masked, Prompt, Twisted
from guardwrap.support.validation import Invalid, validated

BASE = "base"
"""Name of the model itself in figures."""

STEPS = (1, 2, 5, 10, 20, 50, 100)

KINDS = ("adapter", "model")
"""Kinds of proposals that name a folder or a Hub id."""

AUTO = "auto"
"""The proposal that ``sampler="auto"`` would draw from."""

_SHAPED = (*NAMED, "prompt")
_NO_PROPOSAL = "is not a proposal: give a template, {adapter: PATH} or {model: PATH}, masked, twisted or auto"


class EvaluationSettings(TaskSettings):
    """Proposals and samplers to compare, and the number of attempts."""

    ours = ("adapter", "count", "num_return_sequences", "prompts", "proposal", "seed")

    # proposals by name: a constraint-aware prompt, which is a template with ``{prompt}``; ``{"adapter": ...}``, the
    # folder or Hub id of an adapter for the model; ``{"model": ...}``, another model with the same tokenizer; a mask or
    # a twist, as in a constraint file: ``"masked"``, ``"twisted"``, ``{"masked": {...}}``; or ``"auto"``, what
    # ``sampler="auto"`` would draw from
    proposals: dict[str, str | dict[str, Any]] = Field(min_length=1)
    attempts: int = Field(default=10_000, ge=2)  # attempts of each proposal per prompt
    # attempts of the model itself per prompt, from which texts of g come; None for ``attempts``
    base_attempts: int | None = Field(default=None, ge=2)
    batch_size: int | None = Field(default=None, ge=1)  # largest number of attempts in one batch
    # Values of β for QRS, in units of P/a' as in ``qrs``. None chooses them by cost.
    betas: list[float] | None = Field(default=None, min_length=1)
    steps: list[int] = Field(default=list(STEPS), min_length=1)  # numbers of moves for IMH
    # one more sampler to compare with the curves of QRS and IMH, for example the one that an app will use: its name, or
    # its name with options as in ``{qrs: {target_tvd: 0.05}}``
    sampler: str | dict[str, Any] | None = None
    # Number of texts for each setting of IMH, if the attempts suffice: 1000 in the paper (App. G).
    texts: int = Field(default=1000, ge=1)
    # A word or phrase whose position in the texts is compared. None for the constraint's only keyword or regular
    # expression, if there is exactly one.
    position: str | None = Field(default=None, min_length=1)
    # Whether the page shows the figures of the paper's App. G next to those of this evaluation.
    replication: bool = False

    @field_validator("proposals")
    @classmethod
    def _known_kinds(cls, proposals: dict[str, str | dict[str, Any]]) -> dict[str, str | dict[str, Any]]:
        for name, proposal in proposals.items():
            if not name.strip() or name == BASE:
                raise ValueError(f"a proposal needs a name other than {BASE!r}, which is the model itself")
            if isinstance(proposal, str) and proposal not in (*NAMED, AUTO):
                Prompt(proposal)
            elif isinstance(proposal, dict):
                if len(proposal) != 1 or not proposal.keys() <= {*KINDS, *_SHAPED}:
                    raise ValueError(f"{name!r} {_NO_PROPOSAL}")
                if not all(isinstance(proposal[kind], str) for kind in KINDS if kind in proposal):
                    raise ValueError(f"{name!r} {_NO_PROPOSAL}")
                if set(proposal) & set(_SHAPED):
                    shaped_proposal(proposal)
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
            from guardwrap.samplers.sampler_registry import read_sampler  # imports scipy, which would slow down --help

            read_sampler(sampler)
        return sampler

    def located(self, path: str | Path) -> dict[str, Any]:
        """Return the fields that name folders, resolved relative to the settings' file if they exist there."""
        return {
            **super().located(path),
            "proposals": {name: _located(path, given) for name, given in self.proposals.items()},
        }


def _located(path: str | Path, given: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a proposal with the files that it names, relative to the settings' file if they exist there."""
    if isinstance(given, str):
        return given
    located = {kind: beside(path, source) if kind in KINDS else source for kind, source in given.items()}
    twist = located.get("twisted")
    if isinstance(twist, dict) and isinstance(twist.get("learned"), str):
        located["twisted"] = {**twist, "learned": beside(path, twist["learned"])}
    return located


def shaped_proposal(given: str | Mapping[str, Any]) -> Prompt | Masked | Twisted | None:
    """Return a proposal that is a prompt, a mask or a twist; None for another kind."""
    if isinstance(given, str):
        return None if given == AUTO else NAMED[given]() if given in NAMED else Prompt(given)
    if not set(given) & set(_SHAPED):
        return None
    try:
        proposal: Prompt | Masked | Twisted = validated(given, TypeAdapter(AProposal))
    except Invalid as error:
        raise ValueError(str(error)) from None
    return proposal


def read_evaluation_settings(
    path: str | Path, *, changes: Mapping[str, Any] | None = None, allow_code: bool = False
) -> tuple[EvaluationSettings, Constraint]:
    """Read an evaluation's file; UsageError if its constraint has fields."""
    settings, constraint = read_task_settings(path, EvaluationSettings, changes=changes, allow_code=allow_code)
    if names := names_of_fields(constraint):
        listed = ", ".join(map(repr, names))
        raise UsageError(f"{path}: the constraint requires the fields {listed}; write their values in a copy of it")
    return settings, constraint


def position_to_compare(settings: EvaluationSettings, constraint: Constraint) -> Keyword | Regex | None:
    """Return the keyword or pattern whose position in texts is compared, or None if there is not exactly one."""
    if settings.position is not None:
        return Keyword(settings.position)
    found = _placed(constraint)
    return found[0] if len(found) == 1 else None


def marks_of(settings: EvaluationSettings, constraint: Constraint) -> tuple[Keyword | Regex, ...]:
    """Return what to highlight in texts: ``settings.position``, and the constraint's parts that must occur in them."""
    asked = () if settings.position is None else (Keyword(settings.position),)
    return (*asked, *_placed(constraint))


def _placed(constraint: Constraint) -> list[Keyword | Regex]:
    return [part for part in constraint.parts if isinstance(part, Keyword | Regex) and _has_a_place(part)]


def _has_a_place(part: Keyword | Regex) -> bool:
    """Return whether every text that satisfies a part contains a match of it."""
    if isinstance(part, Keyword):
        return part.on == "completion" and part.match != "none" and part.least > 0
    return part.on == "completion" and part.match == "search"
