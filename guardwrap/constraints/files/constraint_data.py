"""Constraints and the files that hold them, from plain data to validated classes, and the registry of kinds.

A constraint is written out, named (``catalogue:NAME``), or in another file (``file: NAME``).
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, core_schema

from guardwrap.budget import Budget
from guardwrap.constraints.base import All, Constraint, constraints_in, held
from guardwrap.constraints.files.file_fields import AnAdapter, AnExample, AProposal, ARepair, Strict
from guardwrap.errors import ConstraintError, ForeignFile, SpecError, UnknownName, UsageError, nearest
from guardwrap.proposals import require_one
from guardwrap.support.files import PREFIX, content
from guardwrap.support.limits import MAX_DEPTH
from guardwrap.support.time_limits import check_deadline
from guardwrap.support.validation import Document, Elsewhere, Invalid, read_document, validated
from guardwrap.support.yaml_nodes import one_line, path_beside, read_text, reading_too, short

_OURS = {
    "all": "constraints.base.All",
    "any": "constraints.base.AnyOf",
    "arithmetic": "rules.arithmetic.Arithmetic",
    "case": "constraints.kinds.text.Case",
    "classifier": "constraints.kinds.classifier.Classifier",
    "code": "rules.code.Code",
    "copy": "rules.copies.Copy",
    "count": "constraints.kinds.count.Count",
    "depth": "rules.layout.Depth",
    "edges": "rules.layout.Edges",
    "entails": "rules.meaning.Entails",
    "finished": "constraints.kinds.text.Finished",
    "grammar": "constraints.grammar.grammar.Grammar",
    "json_schema": "constraints.json.json_schema.JSONSchema",
    "judge": "rules.judge.Judge",
    "keyword": "constraints.kinds.keyword.Keyword",
    "language": "rules.language.Language",
    "length": "constraints.kinds.text.Length",
    "no_copy": "rules.copies.NoCopy",
    "not": "constraints.base.Not",
    "numbers_from": "rules.numbers.NumbersFrom",
    "one_of": "constraints.kinds.text.OneOf",
    "only_from": "rules.only_from.OnlyFrom",
    "order": "rules.order.Order",
    "parses": "rules.parses.Parses",
    "personal_data": "rules.personal_data.PersonalData",
    "python": "constraints.kinds.function.Python",
    "quotes": "rules.copies.Quotes",
    "readability": "rules.readability.Readability",
    "regex": "constraints.kinds.text.Regex",
    "secrets": "rules.secrets.Secrets",
    "share": "constraints.kinds.share.Share",
    "similar": "rules.meaning.Similar",
    "split": "rules.layout.Split",
    "tool_calls": "constraints.json.tool_calls.ToolCalls",
    "values": "rules.values.Values",
}
"""The class of each kind. No layer up to ``constraints`` imports ``guardwrap.rules`` otherwise."""

RULES = {path.rpartition(".")[2]: kind for kind, path in _OURS.items() if path.startswith("rules.")}
"""The kinds in ``guardwrap.rules``, by the names of their classes."""


def built_in(kind: str) -> type[Constraint]:
    """Import the class of a built-in kind."""
    module, _, name = _OURS[kind].rpartition(".")
    built: type[Constraint] = getattr(import_module(f"guardwrap.{module}"), name)
    return built


@cache
def kinds() -> dict[str, type[Constraint]]:
    """Return all kinds of constraints, as a mapping of names to classes.

    A package adds a kind through the entry point group ``guardwrap.constraints``. The entry's name is the kind, and its
    value is a frozen dataclass that derives from ``Constraint`` and has a field ``kind`` of type ``Literal["<name>"]``.
    A field of type ``Constraint`` accepts a constraint of any kind.
    """
    classes = {name: built_in(name) for name in _OURS}
    for entry in entry_points(group="guardwrap.constraints"):
        if entry.name in classes:
            raise ConstraintError(f"plug-in {entry.value!r} uses the name of another constraint kind, {entry.name!r}")
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Constraint) and hasattr(kind, "__dataclass_fields__")):
            raise ConstraintError(f"plug-in {entry.value!r} is not a frozen dataclass that derives from Constraint")
        classes[entry.name] = kind
    return classes


def client_kinds() -> list[str]:
    """Return the kinds that the clients of a server may send."""
    return [name for name, kind in kinds().items() if kind.open_to_clients()]


def constraint_fields(kind: type[Constraint]) -> list[str]:
    """Return the fields of a kind that take constraints, or lists or mappings with constraints in them."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return [name for name, field in fields.items() if re.search(r"\bConstraint\b", str(field.type))]


def catalogue_names() -> list[str]:
    """Return the names of the ready-made constraint files."""
    return sorted(path.stem for path in content("constraints").glob("*.yaml"))


def catalogue_path(name: str) -> Path:
    """Return the path of a ready-made constraint file; raise UnknownName if there is none with this name."""
    if name not in catalogue_names():
        raise UnknownName("catalogue entry", name, catalogue_names())
    return content("constraints") / f"{name}.yaml"


def catalogue_descriptions() -> dict[str, str]:
    """Return the description of each ready-made file, by name, without its constraint, which may require an extra."""
    files = {name: catalogue_path(name).read_text(encoding="utf-8") for name in catalogue_names()}
    return {name: yaml.safe_load(text).get("description", "") for name, text in files.items()}


class _InAFile(Strict):
    """The constraint of another file."""

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
            document = read_constraint_document(read_text(path), str(path))
            if isinstance(document.data.get("fields"), list):
                problem = "a file with fields cannot be part of another; pass each with its own -c, or in a list"
                raise SpecError(f"{path}: {problem}")
            constraint: Constraint = read_contents(document, allow_code=allow_code).constraint
            return constraint
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


def _any_constraint(handler: Any) -> Any:
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


Constraint.any_kind = _any_constraint


def _all_of(several: list[Constraint]) -> Constraint:
    return several[0] if len(several) == 1 else All(several)


Whole: Any = Annotated[
    Annotated[Constraint, Tag("one constraint")]
    | Annotated[list[Constraint], Field(min_length=1), AfterValidator(_all_of), Tag("several constraints")],
    Discriminator(lambda value: "several constraints" if isinstance(value, list) else "one constraint"),
]
"""The pydantic type of the field ``constraint``: one constraint, or a list of constraints that must all hold."""


_CONSTRAINT: TypeAdapter[Constraint] = TypeAdapter(Whole, config=ConfigDict(defer_build=True))


def read_constraint(data: Any, *, allow_code: bool = False) -> Constraint:
    """Read a constraint from plain data: a mapping, ``"catalogue:NAME"``, or a list of these, all of which must hold.

    ``allow_code``: whether it may name Python functions (``kind: python``), which are then imported and run. Raises
    ``Invalid`` with the location.
    """
    return validated(data, _CONSTRAINT, allow_code=allow_code)


class _Examples(Strict):
    accepts: list[AnExample] = Field(default=[])
    rejects: list[AnExample] = Field(default=[])
    fields_: dict[str, Any] = Field(
        default={},
        alias="fields",
        description="Values for the placeholders of the constraint, with which these are tested.",
    )


class FileContents(Strict):
    """The rule that every text must satisfy, and how texts are drawn.

    Parameters
    ----------
    guardwrap
        Version of the format: 1.
    name
        A short name for people.
    description
        What the constraint requires, and what it does not catch.
    fields
        Names of placeholders in the constraint, such as "{n}". Each prompt gives a value for each of them.
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
    repair
        Turns of a chat in which the model repairs a rejected answer after the budget is spent: a number, or options.
    fallback
        The text to return for each one that is missing because the budget ended. It must satisfy the constraint.
    examples
        Texts or messages that the constraint must accept or reject; guardwrap check tests them.
    """

    guardwrap: Literal[1]
    name: str | None = None
    description: str | None = None
    fields_: list[str] | None = Field(default=None, alias="fields", min_length=1)
    constraint: Whole
    sampler: str | dict[str, Any] | None = None
    proposal: AProposal | None = None
    adapter: AnAdapter | None = None
    budget: Budget | None = None
    repair: ARepair | None = None
    fallback: str | None = None
    examples: _Examples = _Examples()

    @field_validator("guardwrap", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        # true and 1.0 equal 1 in Python, but are not valid versions.
        if type(value) is not int:
            raise ValueError("the version of the format is the number 1")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> FileContents:
        try:
            require_one(self.proposal, self.adapter)
        except UsageError as both:
            raise Invalid(("adapter",), str(both)) from None
        return self


@cache
def a_file() -> TypeAdapter[FileContents]:
    """Return pydantic's adapter for constraint files. This imports the kinds of plug-ins."""
    FileContents.model_rebuild()
    return TypeAdapter(FileContents)


def read_constraint_document(text: str, path: str) -> Document:
    """Parse the text of a constraint file without validating it."""
    source = read_document(text, path, "a constraint file is a mapping that begins with 'guardwrap: 1'")
    if "guardwrap" not in source.data and not any(nearest("guardwrap", [key]) for key in source.data):
        under = "" if "constraint" in source.data else ", and write the rules under 'constraint:'"
        raise ForeignFile(f"{path}:1: begin the file with the line 'guardwrap: 1', the version of its format{under}")
    return source


def read_contents(source: Document, *, allow_code: bool) -> FileContents:
    """Validate a constraint file."""
    file = source.read(a_file(), allow_code=allow_code)
    if _is_too_deep(file.constraint):  # only possible through other files: the depth of each file is limited already
        raise source.error(("constraint",), f"nested deeper than {MAX_DEPTH} levels, counting the files that it names")
    return file


def _is_too_deep(constraint: Constraint) -> bool:
    level = [constraint]
    for _ in range(MAX_DEPTH):
        check_deadline()
        level = [inner for part in level for value in held(part).values() for inner in constraints_in(value)]
        if not level:
            return False
    return True
