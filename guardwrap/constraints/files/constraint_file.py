"""Constraint files: their contents, how to read one, and how to write one.

A file has the fields ``guardwrap: 1`` (the version of the format) and ``constraint``, and optionally ``name``,
``description``, ``sampler``, ``proposal``, ``adapter``, ``budget``, ``repair``, ``fallback`` and ``examples``. Files
are data: one that names code (``kind: python``) is rejected unless the caller allows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from guardwrap.budget import Budget
from guardwrap.constraints.base import EXPENSIVE, All, Constraint, instead, walk
from guardwrap.constraints.checking import PromptlessDraw, rule_against
from guardwrap.constraints.explanation import counts_tokens
from guardwrap.constraints.field_checks import shown
from guardwrap.constraints.files.constraint_data import (
    a_file,
    catalogue_path,
    kinds,
    read_constraint,
    read_constraint_document,
    read_contents,
)
from guardwrap.constraints.files.file_fields import adapter_spelt, proposal_spelt, repair_spelt
from guardwrap.constraints.files.template import ConstraintTemplate, fill, names_of_fields
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.errors import ConstraintError, SpecError, UsageError, nearest, quoted
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, require_one
from guardwrap.support.editor_schema import add_descriptions, parameters, share, summary
from guardwrap.support.files import PREFIX
from guardwrap.support.limits import MAX_BYTES
from guardwrap.support.validation import Document, Invalid
from guardwrap.support.yaml_nodes import read_text, reading, to_yaml

OF_REQUESTS = ("sampler", "budget", "proposal", "adapter", "repair", "fallback")
"""The fields about requests, which the caller's own arguments replace."""


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


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, for editors: every field has a description."""
    schema = share(a_file().json_schema(), "AnyKind")
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
    a_file()  # import plug-ins before the time limit begins
    with reading(path):
        return _parsed(text, path, allow_code)


def _parsed(text: str, path: str, allow_code: bool) -> ConstraintFile:
    source = read_constraint_document(text, path)
    template, source_with_values = _template_in(source, allow_code)
    file = read_contents(source_with_values, allow_code=allow_code)
    if file.fallback is not None and template is None and (rule := fallback_fault(file.fallback, file.constraint)):
        raise source.error(("fallback",), rule)
    same = ("name", "description", *OF_REQUESTS)
    return ConstraintFile(
        file.constraint if template is None else template,
        source=source,
        accepts=_texts(file.examples.accepts),
        rejects=_texts(file.examples.rejects),
        sample=file.examples.fields_,
        accepted_messages=_messages(file.examples.accepts),
        rejected_messages=_messages(file.examples.rejects),
        **{name: getattr(file, name) for name in same},
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


def _examples(file: ConstraintFile) -> dict[str, Any]:
    examples = {
        "fields": dict(file.sample),
        "accepts": [*file.accepts, *({"message": dict(message)} for message in file.accepted_messages)],
        "rejects": [*file.rejects, *({"message": dict(message)} for message in file.rejected_messages)],
    }
    return {name: values for name, values in examples.items() if values}


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
    fields = {
        "name": file.name,
        "description": file.description,
        "fields": None if template is None else list(template.names),
        "constraint": file.constraint.spec() if template is None else template.data,
        "sampler": file.sampler,
        "proposal": None if file.proposal is None else proposal_spelt(file.proposal),
        "adapter": None if file.adapter is None else adapter_spelt(file.adapter),
        "budget": None if file.budget is None else asdict(file.budget),
        "repair": None if file.repair is None else repair_spelt(file.repair),
        "fallback": file.fallback,
        "examples": _examples(file) or None,
    }
    data = {"guardwrap": 1, **{name: value for name, value in fields.items() if value is not None}}
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConstraintError("a constraint file cannot hold half of a surrogate pair") from None
    return to_yaml(data)


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
            for name in OF_REQUESTS
        }
        require_one(first["proposal"], first["adapter"])
        every = All([file.constraint for file in files])
        return ConstraintFile(every, source=sampled.source, **first)
    hint = instead(source) or "; pass a Constraint, a list of them, 'catalogue:<name>' or the path of a constraint file"
    raise ConstraintError(f"{shown(source)} is not a constraint{hint}")
