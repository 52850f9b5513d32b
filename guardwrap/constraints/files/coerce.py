"""Constraints from whatever a user gives: objects, files, names of ready-made ones, lists of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint, instead, shown
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.catalogue_files import catalogue_path
from guardwrap.constraints.files.constraint_file import ConstraintFile, load
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import ConstraintError, SpecError
from guardwrap.proposals import require_one

__all__ = ["PerPromptOptions", "as_constraint_file", "catalogue"]


@dataclass(frozen=True)
class PerPromptOptions:
    """What one prompt of a call has of its own; None is the call's.

    Parameters
    ----------
    constraints
        What must hold besides: whatever ``GuardedGenerator`` takes.
    sampler, budget
        As ``GuardedGenerator`` takes them.
    seed
        With one of its own a prompt gets the texts that it gets alone with this seed.
    number
        In the place of the prompt's number in its call, for randomness; None for its own, or 0 beside a seed.
    """

    constraints: Any = None
    sampler: Any = None
    budget: Budget | None = None
    seed: int | None = None
    number: int | None = None


def catalogue(name: str) -> ConstraintFile:
    """Return a ready-made constraint file.

    Parameters
    ----------
    name
        Its name, e.g. ``"no-contact-details"``.

    Raises
    ------
    UnknownName
        If there is none; names the nearest one.
    """
    return load(catalogue_path(name))


def as_constraint_file(given: object, *, allow_code: bool = False) -> ConstraintFile:
    """Read whatever a user may give as constraints.

    Parameters
    ----------
    given
        A Constraint, a ConstraintFile, ``"catalogue:<name>"``, the path of a constraint file, or a sequence of these:
        then all must hold, and the first sampler, proposal, adapter and budget among them apply.
    allow_code
        Whether files may name Python functions.

    Raises
    ------
    ConstraintError
        If it is none of these.
    UsageError
        If one of the files has a prompt as its proposal, and another an adapter.
    """
    if isinstance(given, ConstraintFile):
        return given
    if isinstance(given, Constraint):
        return ConstraintFile(given)
    if isinstance(given, str) and given.startswith(PREFIX):
        return catalogue(given.removeprefix(PREFIX))
    if isinstance(given, str | Path):
        if isinstance(given, str) and not given.endswith((".yaml", ".yml")) and not Path(given).exists():
            raise SpecError(f"{given!r} is no file{instead(given)}, or 'catalogue:<name>' for a ready-made constraint")
        return load(given, allow_code=allow_code)
    if isinstance(given, Sequence) and given:
        files = [as_constraint_file(item, allow_code=allow_code) for item in given]
        if len(files) == 1:
            return files[0]
        whose = next((file for file in files if file.sampler is not None), files[0])
        first: dict[str, Any] = {
            name: next((getattr(file, name) for file in files if getattr(file, name) is not None), None)
            for name in ("budget", "proposal", "adapter")
        }
        require_one(first["proposal"], first["adapter"])
        every = All([file.constraint for file in files])
        return ConstraintFile(every, sampler=whose.sampler, source=whose.source, **first)
    hint = instead(given) or "; give a Constraint, a list of them, 'catalogue:<name>' or the path of a constraint file"
    raise ConstraintError(f"{shown(given)} is no constraint{hint}")
