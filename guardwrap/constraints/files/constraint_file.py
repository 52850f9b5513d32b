"""Constraint files: what they hold, how one is read, and how one is written.

A file says ``guardwrap: 1`` (the version of the format), a ``constraint``, and optionally ``name``, ``description``,
``sampler``, ``proposal``, ``adapter``, ``budget`` and ``examples``. It is data: code it names (``kind: python``) is
refused unless the caller allows it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    field_validator,
    model_validator,
)

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint, constraints_in, held, walk
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.constraints.files.proposal_fields import AnAdapter, AProposal, adapter_spelt, proposal_spelt
from guardwrap.documents.editor_schema import add_descriptions, parameters, share, summary
from guardwrap.documents.limits import MAX_BYTES, MAX_DEPTH
from guardwrap.documents.time_limits import check_deadline
from guardwrap.documents.validation import Document, Invalid, read_document, validated
from guardwrap.documents.yaml_nodes import read_text, reading, to_yaml
from guardwrap.errors import ConstraintError, SpecError, UsageError, nearest
from guardwrap.proposals import Adapter, Masked, Prompt, require_one

__all__ = ["ConstraintFile", "dump", "json_schema", "load", "load_part", "parse", "read_constraint"]


@dataclass(frozen=True)
class ConstraintFile:
    """A constraint with what its file says about it.

    Parameters
    ----------
    constraint
        The constraint.
    name, description
        For people.
    sampler
        The sampler to use, its name or its name with options as in ``{"qrs": {"target_tvd": 0.05}}``, or None for the
        caller's.
    budget
        The budget to use, or None for the caller's.
    accepts, rejects
        Texts that show, and test, what the constraint means.
    source
        The file that it was read from, for errors about what is looked at later; None for one made in Python.
    proposal, adapter
        What attempts are drawn from, or None for what the caller says. Of both only a mask and an adapter go together.
    """

    constraint: Constraint
    name: str | None = None
    description: str | None = None
    sampler: str | dict[str, Any] | None = None
    budget: Budget | None = None
    accepts: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    source: Document | None = field(default=None, compare=False, repr=False)
    proposal: Prompt | Masked | None = None
    adapter: Adapter | None = None


TITLE = "A constraint file of guardwrap"
DIALECT = "http://json-schema.org/draft-07/schema#"
"""The draft that editors know best. The schema means the same in the newest."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _Examples(_Strict):
    accepts: list[str] = []
    rejects: list[str] = []


def _all_of(several: list[Constraint]) -> Constraint:
    return several[0] if len(several) == 1 else All(several)


Whole: Any = Annotated[
    Annotated[Constraint, Tag("one constraint")]
    | Annotated[list[Constraint], Field(min_length=1), AfterValidator(_all_of), Tag("several constraints")],
    Discriminator(lambda given: "several constraints" if isinstance(given, list) else "one constraint"),
]
"""The constraint of a file: one, or a list all of which must hold."""


class _File(_Strict):
    """What must hold of every text, and how texts are drawn.

    Parameters
    ----------
    guardwrap
        Version of the format: 1.
    name
        What people call it.
    description
        What it asks for, and what it does not catch.
    constraint
        What must hold: one constraint, or a list of constraints that must all hold.
    sampler
        Which attempts become texts: a name, or a name with its options. Left out: rejection.
    proposal
        What attempts are drawn from, if not the model itself: another prompt, or the model masked. Not beside an
        adapter, unless it only masks.
    adapter
        A trained adapter that attempts are drawn from.
    budget
        What may be spent on one prompt.
    examples
        Texts that show what it means; guardwrap check holds the constraint against them.
    """

    guardwrap: Literal[1]
    name: str | None = None
    description: str | None = None
    constraint: Whole
    sampler: str | dict[str, Any] | None = None
    proposal: AProposal | None = None
    adapter: AnAdapter | None = None
    budget: Budget | None = None
    examples: _Examples = _Examples()

    @field_validator("guardwrap", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        # true and 1.0 are equal to 1, but no version.
        if type(value) is not int:
            raise ValueError("the version of the format is the number 1")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> _File:
        try:
            require_one(self.proposal, self.adapter)
        except UsageError as both:
            raise Invalid(("adapter",), str(both)) from None
        return self


@cache
def _a_file() -> TypeAdapter[_File]:
    """Return what a constraint file is; other packages' kinds are imported here."""
    _File.model_rebuild()
    return TypeAdapter(_File)


@cache
def _a_constraint() -> TypeAdapter[Constraint]:
    return TypeAdapter(Whole)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, for editors: every field has a description."""
    schema = share(_a_file().json_schema(), "AnyKind")
    # pydantic puts whole docstrings there.
    for definition in (schema, *schema["$defs"].values()):
        add_descriptions(definition, definition.get("description", ""))
    for name in ("accepts", "rejects"):
        schema["$defs"]["_Examples"]["properties"][name]["description"] = parameters(ConstraintFile)[name]
    for name, reference in schema["$defs"]["AnyKind"]["discriminator"]["mapping"].items():
        fields = schema["$defs"][reference.rsplit("/", 1)[-1]]["properties"]
        fields["kind"]["description"] = summary(kinds()[name])
    return {"$schema": DIALECT, "title": TITLE, **{key: schema[key] for key in schema if key != "title"}}


def load(path: str | Path, *, allow_code: bool = False) -> ConstraintFile:
    """Read a constraint file.

    Parameters
    ----------
    path
        Path of the YAML file.
    allow_code
        Whether the file may name Python functions (``kind: python``), which are then imported and run.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed.
    """
    return parse(read_text(path), path=str(path), allow_code=allow_code)


def parse(text: str, *, path: str = "<string>", allow_code: bool = False) -> ConstraintFile:
    """Read the text of a constraint file.

    Parameters
    ----------
    text
        YAML.
    path
        What error messages call it.
    allow_code
        As in ``load``.

    Raises
    ------
    SpecError
        If it is not well formed; the message names path and line.
    """
    if len(text) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes")
    _a_file()  # before the clock runs
    with reading(path):
        return _parsed(text, path, allow_code)


def load_part(path: Path, *, allow_code: bool = False) -> Constraint:
    """Read the constraint of a file that another one names, within ``yaml_nodes.reading_too``.

    Parameters
    ----------
    path
        Path of the YAML file.
    allow_code
        As in ``load``.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed.
    """
    return _parsed(read_text(path), str(path), allow_code).constraint


def _parsed(text: str, path: str, allow_code: bool) -> ConstraintFile:
    source = read_document(text, path, "a constraint file is a mapping that begins with 'guardwrap: 1'")
    if "guardwrap" not in source.data and not any(nearest("guardwrap", [key]) for key in source.data):
        under = "" if "constraint" in source.data else ", and write what must hold under 'constraint:'"
        raise SpecError(f"{path}:1: begin the file with the line 'guardwrap: 1', the version of its format{under}")
    file = source.read(_a_file(), allow_code=allow_code)
    if _is_too_deep(file.constraint):  # of files that name others: one alone is nested less
        raise source.error(("constraint",), f"nested deeper than {MAX_DEPTH} levels, with what it names")
    return ConstraintFile(
        file.constraint,
        file.name,
        file.description,
        file.sampler,
        file.budget,
        tuple(file.examples.accepts),
        tuple(file.examples.rejects),
        source,
        file.proposal,
        file.adapter,
    )


def _is_too_deep(constraint: Constraint) -> bool:
    level = [constraint]
    for _ in range(MAX_DEPTH):
        check_deadline()
        level = [inner for part in level for value in held(part).values() for inner in constraints_in(value)]
        if not level:
            return False
    return True


def read_constraint(data: Any, *, allow_code: bool = False) -> Constraint:
    """Read a constraint that is spelt as in a constraint file, of plain JSON types.

    Parameters
    ----------
    data
        Its mapping, the name of a ready-made one, or a list of these, all of which must hold.
    allow_code
        As in ``load``.

    Raises
    ------
    Invalid
        If it is not well formed; says where.
    """
    return validated(data, _a_constraint(), allow_code=allow_code)


def dump(constraint: Constraint | ConstraintFile) -> str:
    """Write a constraint as the text of a constraint file; ``parse`` reads it back with the same digest.

    Raises
    ------
    ConstraintError
        If a part was made of an object in memory, such as a lambda or a loaded pipeline.
    """
    file = constraint if isinstance(constraint, ConstraintFile) else ConstraintFile(constraint)
    for part in walk(file.constraint):
        if part.in_memory:
            raise ConstraintError(
                f"{part.title} was made of an object in memory; a constraint file needs a name for it "
                "('module:function', a Hub id, a path; of a type its schema)"
            )
    data: dict[str, Any] = {"guardwrap": 1}
    for key in ("name", "description"):
        if getattr(file, key) is not None:
            data[key] = getattr(file, key)
    data["constraint"] = file.constraint.spec()
    if file.sampler is not None:
        data["sampler"] = file.sampler
    if file.proposal is not None:
        data["proposal"] = proposal_spelt(file.proposal)
    if file.adapter is not None:
        data["adapter"] = adapter_spelt(file.adapter)
    if file.budget is not None:
        data["budget"] = asdict(file.budget)
    examples = {key: list(getattr(file, key)) for key in ("accepts", "rejects") if getattr(file, key)}
    if examples:
        data["examples"] = examples
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConstraintError("a constraint file cannot hold half of a surrogate pair") from None
    return to_yaml(data)
