"""Constraint files: their contents, how to read one, and how to write one.

A file has the fields ``guardwrap: 1`` (the version of the format) and ``constraint``, and optionally ``name``,
``description``, ``sampler``, ``proposal``, ``adapter``, ``budget``, ``repair``, ``fallback`` and ``examples``. Files
are data: one that names code (``kind: python``) is rejected unless the caller allows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from guardwrap.budget import Budget
from guardwrap.constraints.base import EXPENSIVE, Constraint, constraints_in, held, walk
from guardwrap.constraints.checking import PromptlessDraw, rule_against
from guardwrap.constraints.explanation import counts_tokens
from guardwrap.constraints.files.constraint_data import Whole
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.constraints.files.message_example import AnExample
from guardwrap.constraints.files.proposal_fields import AnAdapter, AProposal, adapter_spelt, proposal_spelt
from guardwrap.constraints.files.repair_field import ARepair, repair_spelt
from guardwrap.constraints.files.template import ConstraintTemplate, fill, names_of_fields
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.documents.editor_schema import add_descriptions, parameters, share, summary
from guardwrap.documents.limits import MAX_BYTES, MAX_DEPTH
from guardwrap.documents.time_limits import check_deadline
from guardwrap.documents.validation import Document, Invalid, read_document
from guardwrap.documents.yaml_nodes import read_text, reading, to_yaml
from guardwrap.errors import ConstraintError, ForeignFile, SpecError, UsageError, nearest, quoted
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, require_one


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
    sample
        Values with which ``accepts`` and ``rejects`` are tested, if the constraint has placeholders.
    repair
        Repair turns for missing texts, as arguments of ``Repair``: ``max_turns`` and ``message``; None for the caller's
        choice.
    accepted_messages, rejected_messages
        Example messages that the constraint must accept or reject, for rules on parts of messages: their ``content``,
        ``reasoning`` and ``tool_calls``.
    fallback
        The text for each one that is missing because the budget ended; None for the caller's choice.
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
    sample: Mapping[str, Any] = field(default_factory=dict)
    repair: Mapping[str, Any] | None = None
    accepted_messages: tuple[Mapping[str, Any], ...] = ()
    rejected_messages: tuple[Mapping[str, Any], ...] = ()
    fallback: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that each prompt must give a value for; empty if the constraint has no placeholders."""
        return names_of_fields(self.constraint)

    def filled(self, values: Mapping[str, Any]) -> ConstraintFile:
        """Return the file with values in place of the placeholders of its constraint.

        Parameters
        ----------
        values
            A value for each field: a string, a number, true, false or a list of these. Other names are ignored.

        Raises
        ------
        UsageError
            If a field is missing, or its value has another type or is too long.
        SpecError
            If the constraint is invalid with these values.
        """
        return replace(self, constraint=fill(self.constraint, values))


TITLE = "A constraint file of guardwrap"
DIALECT = "http://json-schema.org/draft-07/schema#"
"""The draft that editors support best. The schema means the same in draft 2020-12."""


class _Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _Examples(_Strict):
    accepts: list[AnExample] = []
    rejects: list[AnExample] = []
    fields_: dict[str, Any] = Field(
        default={},
        alias="fields",
        description="Values for the placeholders of the constraint, with which these are tested.",
    )


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
    file = _parsed(read_text(path), str(path), allow_code)
    if file.fields:
        raise SpecError(
            f"{path}: a file with fields cannot be part of another; pass each with its own -c, or in a list"
        )
    return file.constraint


def _parsed(text: str, path: str, allow_code: bool) -> ConstraintFile:
    source = read_document(text, path, "a constraint file is a mapping that begins with 'guardwrap: 1'")
    if "guardwrap" not in source.data and not any(nearest("guardwrap", [key]) for key in source.data):
        under = "" if "constraint" in source.data else ", and write the rules under 'constraint:'"
        raise ForeignFile(f"{path}:1: begin the file with the line 'guardwrap: 1', the version of its format{under}")
    template, source_with_values = _template_in(source, allow_code)
    file = source_with_values.read(_a_file(), allow_code=allow_code)
    if _is_too_deep(file.constraint):  # only possible through other files: the depth of each file is limited already
        raise source.error(("constraint",), f"nested deeper than {MAX_DEPTH} levels, counting the files that it names")
    if file.fallback is not None and template is None and (rule := fallback_fault(file.fallback, file.constraint)):
        raise source.error(("fallback",), rule)
    return ConstraintFile(
        file.constraint if template is None else template,
        file.name,
        file.description,
        file.sampler,
        file.budget,
        _texts(file.examples.accepts),
        _texts(file.examples.rejects),
        source,
        file.proposal,
        file.adapter,
        file.examples.fields_,
        file.repair,
        _messages(file.examples.accepts),
        _messages(file.examples.rejects),
        file.fallback,
    )


def fallback_fault(text: str, constraint: Constraint) -> str | None:
    """Return why a text cannot be the fallback, by the rules that need no model, prompt, tokens or user code."""
    parts = [
        part for part in constraint.parts if part.cost < EXPENSIVE and not runs_code(part) and not counts_tokens(part)
    ]
    rule = rule_against(parts, PromptlessDraw("", (), text, parts=(("answer", (text,)),)))
    return None if rule is None else f"{quoted(rule)} rejects it; give a text that every rule accepts"


def _texts(examples: list[Any]) -> tuple[str, ...]:
    return tuple(each for each in examples if isinstance(each, str))


def _messages(examples: list[Any]) -> tuple[Mapping[str, Any], ...]:
    return tuple(each["message"] for each in examples if not isinstance(each, str))


def _template_in(source: Document, allow_code: bool) -> tuple[ConstraintTemplate | None, Document]:
    """Return the template of a file with fields, and the file with sample values, so that it can be validated."""
    names, examples = source.data.get("fields"), source.data.get("examples")
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or "constraint" not in source.data
    ):
        return None, source
    template = ConstraintTemplate(source, tuple(names), allow_code=allow_code)
    sample = examples.get("fields") if isinstance(examples, dict) else None
    if not isinstance(sample, dict):
        if isinstance(examples, dict) and (examples.get("accepts") or examples.get("rejects")):
            raise source.error(("examples",), "needs a field 'fields' with the values that its texts are checked with")
        return template, replace(source, data={**source.data, "constraint": {"kind": "length", "min": 0}})
    for name in sample:
        if name not in names:
            raise source.error(("examples", "fields", name), f"is not one of the file's fields{nearest(name, names)}")
    try:
        return template, replace(source, data={**source.data, "constraint": template.inserted(sample)})
    except UsageError as error:
        raise source.error(("examples", "fields"), str(error)) from None


def _is_too_deep(constraint: Constraint) -> bool:
    level = [constraint]
    for _ in range(MAX_DEPTH):
        check_deadline()
        level = [inner for part in level for value in held(part).values() for inner in constraints_in(value)]
        if not level:
            return False
    return True


def dump(constraint: Constraint | ConstraintFile) -> str:
    """Return a constraint as the text of a constraint file, which ``parse`` reads back with the same digest.

    Raises
    ------
    ConstraintError
        If a part holds an object that a file cannot name, such as a lambda or a loaded pipeline.
    """
    file = constraint if isinstance(constraint, ConstraintFile) else ConstraintFile(constraint)
    template = file.constraint if isinstance(file.constraint, ConstraintTemplate) else None
    for part in walk(file.constraint):
        if part.in_memory and part is not template:
            raise ConstraintError(
                f"{part.title} was made from an object in memory; a constraint file needs a name for it "
                "('module:function', a Hub id, a path; for a type, its schema)"
            )
    data: dict[str, Any] = {"guardwrap": 1}
    for key in ("name", "description"):
        if getattr(file, key) is not None:
            data[key] = getattr(file, key)
    if template is not None:
        data["fields"] = list(template.names)
    data["constraint"] = file.constraint.spec() if template is None else template.data
    if file.sampler is not None:
        data["sampler"] = file.sampler
    if file.proposal is not None:
        data["proposal"] = proposal_spelt(file.proposal)
    if file.adapter is not None:
        data["adapter"] = adapter_spelt(file.adapter)
    if file.budget is not None:
        data["budget"] = asdict(file.budget)
    if file.repair is not None:
        data["repair"] = repair_spelt(file.repair)
    if file.fallback is not None:
        data["fallback"] = file.fallback
    examples: dict[str, Any] = {"fields": dict(file.sample)} if file.sample else {}
    for key, texts, messages in (
        ("accepts", file.accepts, file.accepted_messages),
        ("rejects", file.rejects, file.rejected_messages),
    ):
        if listed := [*texts, *({"message": dict(message)} for message in messages)]:
            examples[key] = listed
    if examples:
        data["examples"] = examples
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConstraintError("a constraint file cannot hold half of a surrogate pair") from None
    return to_yaml(data)
