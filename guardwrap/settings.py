"""What the files of an evaluation and of a training have in common: a model, a constraint and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files import as_constraint_file
from guardwrap.constraints.spec import load_with_constraint
from guardwrap.content import PREFIX

__all__ = ["Law", "beside", "known_as", "read_law"]


class Law(BaseModel):
    """What defines a(y) and b(y). Its fields are explained where they are used."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ours: ClassVar[tuple[str, ...]] = ()
    """Arguments of a call that are no settings of a(y)."""

    model: str = "local"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    constraint: str | dict[str, Any]
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


_Law = TypeVar("_Law", bound=Law)


def read_law(path: str | Path, kind: type[_Law], *, allow_code: bool = False) -> tuple[_Law, Constraint]:
    """Read a YAML file and the constraint that it holds or names. A constraint file is looked for beside it first.

    Parameters
    ----------
    path
        Path of the YAML file.
    kind
        What its fields are.
    allow_code
        Whether the constraint may name Python functions.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed; the message names path and line.
    GuardwrapError
        If the constraint that it names cannot be read.
    """
    settings, constraint = load_with_constraint(path, kind, allow_code=allow_code)
    if constraint is None:
        named = str(settings.constraint)
        given = named if named.startswith(PREFIX) else beside(path, named)
        constraint = as_constraint_file(given, allow_code=allow_code).constraint
    return settings, constraint


def beside(path: str | Path, name: str) -> str:
    """Return a file or folder beside another file, where there is one of that name."""
    found = Path(path).parent / name
    return str(found) if found.exists() else name


def known_as(model: str) -> str:
    """Return what cards and pages call a model: of a path the last name, as the rest says nothing elsewhere."""
    return Path(model).resolve().name if Path(model).exists() else model
