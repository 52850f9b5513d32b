"""What the files of an evaluation and of a training have in common: a model, a constraint and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.constraints.files.constraint_file import read_constraint
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.documents.validation import Invalid, document_of, validated
from guardwrap.documents.yaml_nodes import reading
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import UsageError

__all__ = ["TaskSettings", "beside", "known_as", "read_task_settings"]


class TaskSettings(BaseModel):
    """What defines a(y) and b(y). Its fields are explained where they are used."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ours: ClassVar[tuple[str, ...]] = ()
    """Arguments of a call that are no settings of a(y)."""

    model: str = "local"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    constraint: str | dict[str, Any] | list[str | dict[str, Any]]
    prompts: list[str] = Field(min_length=1)
    chat: bool = False
    generation: dict[str, Any] = {}
    seed: int = Field(default=0, ge=0)

    @field_validator("generation")
    @classmethod
    def _arguments(cls, generation: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in cls.ours if name in generation]:
            raise ValueError(f"{taken[0]} is no setting of the model's law; leave it out")
        return generation

    def given(self, prompt: str) -> str | list[dict[str, str]]:
        """Return a prompt as a ``GuardedGenerator`` takes it."""
        return [{"role": "user", "content": prompt}] if self.chat else prompt

    def located(self, path: str | Path) -> dict[str, Any]:
        """Return the fields that name files or folders, those of them beside the settings' own file found there."""
        return {"model": beside(path, self.model)}


_Settings = TypeVar("_Settings", bound=TaskSettings)


def read_task_settings(
    path: str | Path, kind: type[_Settings], *, changes: Mapping[str, Any] | None = None, allow_code: bool = False
) -> tuple[_Settings, Constraint]:
    """Read a YAML file and the constraint that it holds or names. What it names is looked for beside it first.

    Parameters
    ----------
    path
        Path of the YAML file.
    kind
        What its fields are.
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
    changes = dict(changes or {})
    kinds()  # other packages' are imported before the clock runs
    with reading(str(path)):
        source, fields = document_of(path, kind), TypeAdapter(kind)
        settings = source.read(fields)
        try:
            settings = validated({**source.data, **changes}, fields) if changes else settings
            constraint = _spelt(settings.constraint, allow_code)
        except Invalid as invalid:
            in_file = invalid.location[:1] == ("constraint",) and "constraint" not in changes
            raise source.error(invalid.location, invalid.problem) if in_file else UsageError(str(invalid)) from None
    found = {name: value for name, value in settings.located(path).items() if name not in changes}
    if constraint is None:
        named = str(settings.constraint)
        given = named if named.startswith(PREFIX) or "constraint" in changes else beside(path, named)
        constraint = as_constraint_file(given, allow_code=allow_code).constraint
    return settings.model_copy(update=found), constraint


def _spelt(given: str | dict[str, Any] | list[str | dict[str, Any]], allow_code: bool) -> Constraint | None:
    """Read a constraint that is spelt out; None where it is only named."""
    if isinstance(given, str):
        return None
    try:
        return read_constraint(given, allow_code=allow_code)
    except Invalid as invalid:
        raise Invalid(("constraint", *invalid.location), invalid.problem) from None


def beside(path: str | Path, name: str) -> str:
    """Return a file or folder beside another file, where there is one of that name."""
    found = Path(path).parent / name
    return str(found) if found.exists() else name


def known_as(model: str) -> str:
    """Return what cards and pages call a model: of a path the last name, as the rest says nothing elsewhere."""
    return Path(model).resolve().name if Path(model).exists() else model
