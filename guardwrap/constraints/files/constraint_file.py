"""Constraint files: their contents, how to read one, and how to write one.

A file has the fields ``guardwrap: 1`` (the version of the format) and ``constraint``, and optionally ``name``,
``description``, ``sampler``, ``proposal``, ``adapter``, ``budget`` and ``examples``. Files are data: one that names
code (``kind: python``) is rejected unless the caller allows it.
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
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, require_one

__all__ = ["ConstraintFile", "dump", "json_schema", "load", "load_part", "parse", "read_constraint"]


@dataclass(frozen=True)
class ConstraintFile:
    """A constraint with the other fields of its file.

    Parameters
    ----------
    constraint
        The constraint.
    name, description
        A name and a description for people. They have no effect.
    sampler
        The sampler to use, as a name or a name with options, such as ``{"qrs": {"target_tvd": 0.05}}``; None for the
        caller's sampler.
    budget
        The budget for one prompt; None for the caller's budget.
    accepts, rejects
        Example texts that the constraint must accept or reject. ``guardwrap check`` tests them.
    source
        The file that it was read from, so that later errors can name the line; None if it was created in Python.
    proposal, adapter
        What attempts are drawn from instead of the model itself; None for the caller's choice. An adapter can be
        combined with a mask or a twist, but with no other proposal.
    """

    constraint: Constraint
    name: str | None = None
    description: str | None = None
    sampler: str | dict[str, Any] | None = None
    budget: Budget | None = None
    accepts: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    source: Document | None = field(default=None, compare=False, repr=False)
    proposal: Prompt | Masked | Twisted | None = None
    adapter: Adapter | None = None


TITLE = "A constraint file of guardwrap"
DIALECT = "http://json-schema.org/draft-07/schema#"
"""The draft that editors support best. The schema means the same in draft 2020-12."""


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
    Discriminator(lambda value: "several constraints" if isinstance(value, list) else "one constraint"),
]
"""The pydantic type of the field ``constraint``: one constraint, or a list of constraints that must all hold."""


class _File(_Strict):
    """The rule that every text must satisfy, and how texts are drawn.

    Parameters
    ----------
    guardwrap
        Version of the format: 1.
    name
        A short name for people.
    description
        What the constraint requires, and what it does not catch.
    constraint
        One constraint, or a list of constraints that must all hold.
    sampler
        The sampler, which decides which attempts become texts: a name, or a name with options. Default: rejection.
    proposal
        What attempts are drawn from instead of the model itself: another prompt, or the masked or twisted model. An
        adapter can only be combined with a mask or a twist.
    adapter
        A trained adapter that attempts are drawn from.
    budget
        How much may be spent on one prompt.
    examples
        Texts that the constraint must accept or reject; guardwrap check tests them.
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
        # true and 1.0 equal 1 in Python, but are not valid versions.
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
    """Return pydantic's adapter for constraint files. This imports the kinds of plug-ins."""
    _File.model_rebuild()
    return TypeAdapter(_File)


@cache
def _a_constraint() -> TypeAdapter[Constraint]:
    return TypeAdapter(Whole)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, for editors: every field has a description."""
    schema = share(_a_file().json_schema(), "AnyKind")
    # pydantic's descriptions are whole docstrings; keep the first paragraph, and use the rest for the fields.
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
        If the file cannot be read or is invalid; the message names path and line.
    """
    return parse(read_text(path), path=str(path), allow_code=allow_code)


def parse(text: str, *, path: str = "<string>", allow_code: bool = False) -> ConstraintFile:
    """Read the text of a constraint file.

    Parameters
    ----------
    text
        The YAML text.
    path
        Its name in error messages.
    allow_code
        Whether the text may name Python functions (``kind: python``), which are then imported and run.

    Raises
    ------
    SpecError
        If it is invalid; the message names path and line.
    """
    if len(text) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes")
    _a_file()  # import plug-ins before the time limit begins
    with reading(path):
        return _parsed(text, path, allow_code)


def load_part(path: Path, *, allow_code: bool = False) -> Constraint:
    """Read the constraint of a file that another file names. Call it within ``yaml_nodes.reading_too``.

    Parameters
    ----------
    path
        Path of the YAML file.
    allow_code
        Whether the file may name Python functions (``kind: python``), which are then imported and run.

    Raises
    ------
    SpecError
        If the file cannot be read or is invalid; the message names path and line.
    """
    return _parsed(read_text(path), str(path), allow_code).constraint


def _parsed(text: str, path: str, allow_code: bool) -> ConstraintFile:
    source = read_document(text, path, "a constraint file is a mapping that begins with 'guardwrap: 1'")
    if "guardwrap" not in source.data and not any(nearest("guardwrap", [key]) for key in source.data):
        under = "" if "constraint" in source.data else ", and write the rules under 'constraint:'"
        raise SpecError(f"{path}:1: begin the file with the line 'guardwrap: 1', the version of its format{under}")
    file = source.read(_a_file(), allow_code=allow_code)
    if _is_too_deep(file.constraint):  # only possible through other files: the depth of each file is limited already
        raise source.error(("constraint",), f"nested deeper than {MAX_DEPTH} levels, counting the files that it names")
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
    """Read a constraint from plain JSON types, in the form of a constraint file's field ``constraint``.

    Parameters
    ----------
    data
        A mapping, ``"catalogue:NAME"``, or a list of these, all of which must hold.
    allow_code
        Whether it may name Python functions (``kind: python``), which are then imported and run.

    Raises
    ------
    Invalid
        If it is invalid; the error has the location.
    """
    return validated(data, _a_constraint(), allow_code=allow_code)


def dump(constraint: Constraint | ConstraintFile) -> str:
    """Return a constraint as the text of a constraint file, which ``parse`` reads back with the same digest.

    Raises
    ------
    ConstraintError
        If a part holds an object that a file cannot name, such as a lambda or a loaded pipeline.
    """
    file = constraint if isinstance(constraint, ConstraintFile) else ConstraintFile(constraint)
    for part in walk(file.constraint):
        if part.in_memory:
            raise ConstraintError(
                f"{part.title} was made from an object in memory; a constraint file needs a name for it "
                "('module:function', a Hub id, a path; for a type, its schema)"
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
