"""Conversion of everything that users pass as constraints: objects, files, catalogue names, and lists of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint, instead, shown
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.catalogue_files import catalogue_path
from guardwrap.constraints.files.constraint_data import read_constraint
from guardwrap.constraints.files.constraint_file import ConstraintFile, load
from guardwrap.documents.validation import Invalid
from guardwrap.environment.files import PREFIX
from guardwrap.errors import ConstraintError, SpecError
from guardwrap.proposals import require_one


@dataclass(frozen=True)
class PerPromptOptions:
    """Options for one prompt that replace those of its call. None keeps the call's option."""

    # constraints that must hold in addition to the call's, in any form that ``GuardedGenerator`` accepts
    constraints: Any = None
    sampler: Any = None  # the sampler and the budget, in any form that ``GuardedGenerator`` accepts
    budget: Budget | None = None
    # The prompt's seed. The prompt then gets the same texts as in a call of its own with this seed.
    seed: int | None = None
    # Replaces the prompt's position in its call, from which its random numbers are derived. None means the position
    # itself, or 0 if ``seed`` is set.
    number: int | None = None
    fields: Mapping[str, Any] | None = None  # values for the placeholders of constraint files


def catalogue(name: str) -> ConstraintFile:
    """Return a ready-made constraint file.

    Parameters
    ----------
    name
        Its name, e.g. ``"no-contact-details"``.

    Raises
    ------
    UnknownName
        If the catalogue has no such name; the message suggests the nearest one.
    """
    return load(catalogue_path(name))


def as_constraint_file(source: object, *, allow_code: bool = False) -> ConstraintFile:
    """Convert any form of constraints that users may pass.

    ``source``: a Constraint, a ConstraintFile, ``"catalogue:<name>"``, the path of a constraint file, a mapping in
    the form of its field ``constraint`` (``{"kind": ...}``), or a sequence of these. All constraints of a sequence
    must hold, and the first sampler, proposal, adapter, budget, repair and fallback in it apply.
    """
    if isinstance(source, ConstraintFile):
        return source
    if isinstance(source, Constraint):
        return ConstraintFile(source)
    if isinstance(source, str) and source.startswith(PREFIX):
        return catalogue(source.removeprefix(PREFIX))
    if isinstance(source, str | Path):
        if isinstance(source, str) and not source.endswith((".yaml", ".yml")) and not Path(source).exists():
            hint = f"{instead(source)}, or 'catalogue:<name>' for a ready-made constraint"
            raise SpecError(f"{source!r} is not a file{hint}")
        return load(source, allow_code=allow_code)
    if isinstance(source, Mapping) and "kind" in source:
        try:
            return ConstraintFile(read_constraint(source, allow_code=allow_code))
        except Invalid as invalid:
            raise SpecError(str(invalid)) from None
    if isinstance(source, Sequence) and source:
        files = [as_constraint_file(item, allow_code=allow_code) for item in source]
        if len(files) == 1:
            return files[0]
        sampled = next((file for file in files if file.sampler is not None), files[0])
        first: dict[str, Any] = {
            name: next((getattr(file, name) for file in files if getattr(file, name) is not None), None)
            for name in ("budget", "proposal", "adapter", "repair", "fallback")
        }
        require_one(first["proposal"], first["adapter"])
        every = All([file.constraint for file in files])
        return ConstraintFile(every, sampler=sampled.sampler, source=sampled.source, **first)
    hint = instead(source) or "; pass a Constraint, a list of them, 'catalogue:<name>' or the path of a constraint file"
    raise ConstraintError(f"{shown(source)} is not a constraint{hint}")
