"""The settings that evaluation files and training files share: a model, a constraint and prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

from guardwrap.calls.prompts import OPTIONS, PromptSource
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.constraint_data import kinds, read_constraint
from guardwrap.constraints.files.constraint_file import OF_REQUESTS, as_constraint_file
from guardwrap.errors import PromptError, UsageError
from guardwrap.support.files import PREFIX
from guardwrap.support.validation import Invalid, document_of, validated
from guardwrap.support.yaml_nodes import reading

logger = logging.getLogger("guardwrap")


def _prompts_of(given: Any, info: ValidationInfo) -> Any:
    """Read prompts from a file that is named instead: JSON Lines if its name says so, otherwise one per line."""
    if not isinstance(given, str):
        return given
    return [fields["prompt"] for fields in rows_of(given, info)]


def rows_of(name: str, info: ValidationInfo) -> list[dict[str, Any]]:
    """Read the prompts of a file, each with the other fields of its line; ValueError if it cannot be read."""
    path = beside((info.context or {}).get("path", ""), name)
    try:
        rows = [item.fields for item in PromptSource(path=path, jsonl=path.endswith((".jsonl", ".ndjson"))).items()]
    except PromptError as error:
        raise ValueError(str(error)) from None
    for number, fields in enumerate(rows, start=1):
        if unused := next((name for name in ("messages", *OPTIONS) if name in fields), None):
            raise ValueError(f"{path}:{number}: {unused!r} is not supported here; give only a prompt in each line")
    return rows


class TaskSettings(BaseModel):
    """The settings that define a(y) and b(y). Subclasses document the fields."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    ours: ClassVar[tuple[str, ...]] = ()
    """Arguments of a call that ``generation`` may not contain, as they do not change a(y)."""

    model: str = "local"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    constraint: str | dict[str, Any] | list[str | dict[str, Any]]
    prompts: Annotated[list[str], BeforeValidator(_prompts_of, json_schema_input_type=list[str] | str)] = Field(
        min_length=1
    )
    chat: bool = False
    generation: dict[str, Any] = {}
    seed: int = Field(default=0, ge=0)

    @field_validator("generation")
    @classmethod
    def _arguments(cls, generation: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in cls.ours if name in generation]:
            raise ValueError(f"{taken[0]} is not a generation setting; leave it out")
        return generation

    def given(self, prompt: str) -> str | list[dict[str, str]]:
        """Return a prompt in the form that ``GuardedGenerator`` accepts."""
        return [{"role": "user", "content": prompt}] if self.chat else prompt

    def located(self, path: str | Path) -> dict[str, Any]:
        """Return the fields that name files or folders, resolved relative to the settings file."""
        return {"model": beside(path, self.model)}


_Settings = TypeVar("_Settings", bound=TaskSettings)


def read_task_settings(
    path: str | Path, kind: type[_Settings], *, changes: Mapping[str, Any] | None = None, allow_code: bool = False
) -> tuple[_Settings, Constraint]:
    """Read a YAML file and its constraint. Relative paths are tried next to the file first."""
    changes = dict(changes or {})
    kinds()  # imports the kinds of other packages before the time limit starts
    with reading(str(path)):
        source, fields = document_of(path, kind), TypeAdapter(kind)
        settings = source.read(fields, path=path)
        try:
            settings = validated({**source.data, **changes}, fields, path=path) if changes else settings
            constraint = _inline_constraint(settings.constraint, allow_code)
        except Invalid as invalid:
            in_file = invalid.location[:1] == ("constraint",) and "constraint" not in changes
            raise source.error(invalid.location, invalid.problem) if in_file else UsageError(str(invalid)) from None
    located = {name: value for name, value in settings.located(path).items() if name not in changes}
    if constraint is None:
        name = str(settings.constraint)
        location = name if name.startswith(PREFIX) or "constraint" in changes else beside(path, name)
        file = as_constraint_file(location, allow_code=allow_code)
        constraint = file.constraint
        if unused := [each for each in OF_REQUESTS if getattr(file, each) is not None]:
            logger.warning("%s: no effect here: %s; only its constraint is used", location, ", ".join(unused))
    return settings.model_copy(update=located), constraint


def _inline_constraint(
    definition: str | dict[str, Any] | list[str | dict[str, Any]], allow_code: bool
) -> Constraint | None:
    """Read a constraint that the settings define in place; None if they only name one."""
    if isinstance(definition, str):
        return None
    try:
        return read_constraint(definition, allow_code=allow_code)
    except Invalid as invalid:
        raise Invalid(("constraint", *invalid.location), invalid.problem) from None


def beside(path: str | Path, name: str) -> str:
    """Return a name as a path relative to another file, if that path exists; otherwise the name itself."""
    candidate = Path(path).parent / name
    return str(candidate) if candidate.exists() else name


def known_as(model: str) -> str:
    """Return the name of a model for cards and pages: a Hub id, or the last part of a local path."""
    return Path(model).resolve().name if Path(model).exists() else model
