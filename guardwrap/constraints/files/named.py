"""References in constraint files: to the catalogue (``catalogue:NAME``) and to other files (``file: NAME``)."""

from __future__ import annotations

from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, core_schema

from guardwrap.constraints.base import PYDANTIC_SCHEMA, Constraint
from guardwrap.constraints.files.catalogue_files import catalogue_names, catalogue_path
from guardwrap.constraints.files.constraint_file import load_part
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.documents.time_limits import check_deadline
from guardwrap.documents.validation import Elsewhere
from guardwrap.documents.yaml_nodes import one_line, path_beside, reading_too, short
from guardwrap.environment.files import PREFIX
from guardwrap.errors import ConstraintError, SpecError, nearest


class _InAFile(BaseModel):
    """The constraint of another file."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    file: str = Field(description="Another constraint file, relative to this one; only its constraint is used.")


def _ready_made(name: str) -> Constraint:
    if not name.startswith(PREFIX):
        if name in catalogue_names():
            raise ValueError(f"{short(name)} is not a constraint; did you mean {PREFIX}{name}?")
        if name.endswith((".yaml", ".yml")):
            raise ValueError(f"to use the constraint of another file, write {{file: {name}}}")
        close = nearest(name, catalogue_names())
        raise ValueError(f"{short(name)} is not a constraint{close}; give a kind, {PREFIX}NAME, or file: NAME")
    return _read(catalogue_path(name.removeprefix(PREFIX)))


def _of_the_file(reference: _InAFile, info: ValidationInfo) -> Constraint:
    if PurePosixPath(reference.file).is_absolute() or PureWindowsPath(reference.file).anchor:
        raise ValueError(f"{short(reference.file)} is an absolute path; give a path relative to this file")
    path = path_beside(reference.file)
    if not path.exists():
        others = islice((other.name for other in path.parent.glob("*.y*ml")), 1000)
        raise ValueError(f"there is no file {short(str(path))}{nearest(path.name, others)}")
    return _read(path, allow_code=bool((info.context or {}).get("allow_code")))


def _read(path: Path, *, allow_code: bool = False) -> Constraint:
    with reading_too(path):
        try:
            return load_part(path, allow_code=allow_code)
        except SpecError as error:
            raise Elsewhere(error) from None


# pydantic adds the names of these choices to the locations of errors. No field has such a name, so they can be removed.
_INLINE, _NAMED, _FILED = "a constraint", "a ready-made constraint", "a constraint file"


def _which(value: Any) -> str:
    check_deadline()  # pydantic creates the value again for each level of nesting
    if isinstance(value, str):
        return _NAMED
    return _FILED if isinstance(value, dict) and "file" in value and "kind" not in value else _INLINE


def _or_named(inline: CoreSchema, handler: Any) -> CoreSchema:
    """Return pydantic's schema for a constraint that is written out, named from the catalogue, or in another file."""
    catalogue_name = {
        "type": "string",
        "enum": [PREFIX + name for name in catalogue_names()],
        "description": "A ready-made constraint; guardwrap catalogue lists them.",
    }
    named = Annotated[str, AfterValidator(_ready_made), WithJsonSchema(catalogue_name)]
    in_a_file = Annotated[_InAFile, AfterValidator(_of_the_file)]
    # The written-out form comes first, because the fields of a mapping are looked up in this order.
    choices = {
        _INLINE: inline,
        _FILED: handler.generate_schema(in_a_file),
        _NAMED: handler.generate_schema(named),
    }
    return core_schema.tagged_union_schema(choices, _which)


def any_constraint(handler: Any) -> Any:
    """Return pydantic's schema for a constraint of any kind, written out or named."""
    schemas = {}
    for name, kind in kinds().items():
        try:
            schemas[name] = handler.generate_schema(kind)
        except (NameError, PydanticUserError) as error:  # a type that is undefined, or not supported by pydantic
            raise ConstraintError(
                f"the kind {name!r} of {kind.__module__!r} has a field that cannot be read from YAML: {one_line(error)}"
            ) from None
    return _or_named(core_schema.tagged_union_schema(schemas, "kind"), handler)


PYDANTIC_SCHEMA.append(any_constraint)
