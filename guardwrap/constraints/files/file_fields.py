"""The fields of constraint files beside the constraint: proposal, adapter, repair turns and example messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import combinations, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    model_validator,
)

from guardwrap.constraints.base import All, Constraint
from guardwrap.errors import ConstraintError, UnknownName, nearest, quoted
from guardwrap.proposals import HUB_ID, Adapter, Masked, Prompt, Twisted
from guardwrap.support.files import CARD, CONFIG, PREFIX, adapters
from guardwrap.support.lexical import load_json
from guardwrap.support.validation import read_as, validated
from guardwrap.support.yaml_nodes import path_beside, short

MOST_PARTS = 16
"""The most parts of a constraint of which ``demands`` compares every run of neighbors with another constraint."""

LONGEST = 200
"""The most characters of a card's description in a message."""


class Strict(BaseModel):
    """A mapping of known fields, whose values are not converted."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _Hint(Strict):
    prompt: Annotated[str, AfterValidator(Prompt)] = Field(
        description="Attempts are drawn from this prompt; {prompt} in it is replaced by the user's prompt."
    )


class _Mask(Strict):
    proposal: Annotated[_Hint, AfterValidator(lambda hint: hint.prompt)] | None = Field(
        None, description="A prompt to mask, instead of the model itself."
    )
    unseen: float = Field(
        Masked.unseen, description="Share of the probability whose tokens are not checked: at least 0 and below 1."
    )
    beyond_truncation: bool = Field(
        Masked.beyond_truncation,
        description="Whether tokens beyond top_k and the like are drawn where these leave none that the mask allows.",
    )


class _Twist(Strict):
    proposal: Annotated[_Hint, AfterValidator(lambda hint: hint.prompt)] | None = Field(
        None, description="A prompt to twist, instead of the model itself."
    )
    strength: float | None = Field(
        None,
        description="Power of the values that next tokens are weighed by: above 0 and up to 1. Null for 0.65, or "
        "0.8 if a text must be complete to pass.",
    )
    learned: Annotated[str, AfterValidator(lambda name: str(path_beside(name)))] | None = Field(
        None, description="A file of GuardedGenerator.save_twist(), relative to this file; without it, it is learned."
    )
    attempts: int | None = Field(
        None,
        description="Attempts to learn from, at least 64. Null for 768, or 384 if a text must be complete to pass.",
    )


class _OneOf(Strict):
    """A prompt, a mask or a twist."""

    prompt: Annotated[str, AfterValidator(Prompt)] | None = Field(
        None, description="Attempts are drawn from this prompt; {prompt} in it is replaced by the user's prompt."
    )
    masked: Annotated[_Mask, AfterValidator(lambda mask: Masked(**vars(mask)))] | None = Field(
        None, description="Tokens after which the constraint cannot be satisfied are masked; {} for the defaults."
    )
    twisted: Annotated[_Twist, AfterValidator(lambda twist: Twisted(**vars(twist)))] | None = Field(
        None, description="Next tokens are weighed by how likely they lead to a satisfying text; {} for the defaults."
    )


def _one(options: _OneOf) -> Prompt | Masked | Twisted:
    chosen = [each for each in (options.prompt, options.masked, options.twisted) if each is not None]
    if len(chosen) != 1:
        raise ValueError("give prompt, masked or twisted; a masked prompt is {masked: {proposal: {prompt: '...'}}}")
    return chosen[0]  # type: ignore[return-value]  # the validators have converted them


class _AdapterOptions(Strict):
    source: str = Field(description="Its folder, relative to this file, its Hub id, or catalogue:NAME.")
    allow_mismatch: bool = Field(
        False, description="Whether an adapter trained for another model or another constraint is allowed."
    )
    revision: str | None = Field(None, description="With a Hub id: a branch, tag or commit.")


def _located(source: str) -> str:
    """Return the path of an adapter's folder if there is such a folder; otherwise the name as it is."""
    if source.startswith(PREFIX):
        if (name := source.removeprefix(PREFIX)) not in adapters():
            raise UnknownName("adapter", name, adapters())
        return source
    path = path_beside(source)
    if path.is_dir() or Path(source).expanduser().is_dir():
        return str(path) if path.is_dir() else source
    if path.exists():
        raise ValueError(f"{short(str(path))} is a file; give an adapter's folder")
    if source.startswith(".") or not HUB_ID.fullmatch(source):
        others = islice((other.name for other in path.parent.glob("*") if other.is_dir()), 1000)
        raise ValueError(f"there is no folder {short(str(path))}{nearest(path.name, others)}")
    return source


def _adapter(options: _AdapterOptions) -> Adapter:
    return Adapter(_located(options.source), options.allow_mismatch, options.revision)


def _form(value: Any) -> str:
    return "a name" if isinstance(value, str) else "options"


NAMED: dict[str, type[Masked | Twisted]] = {"masked": Masked, "twisted": Twisted}
"""Proposals that a name stands for."""

AProposal: Any = Annotated[
    Annotated[Literal["masked", "twisted"], AfterValidator(lambda name: NAMED[name]()), Tag("a name")]
    | Annotated[_OneOf, AfterValidator(_one), Tag("options")],
    Discriminator(_form),
]
"""The pydantic type of the field ``proposal``. The value is a ``Prompt``, a ``Masked`` or a ``Twisted``."""

AnAdapter: Any = Annotated[
    Annotated[str, AfterValidator(lambda source: Adapter(_located(source))), Tag("a name")]
    | Annotated[_AdapterOptions, AfterValidator(_adapter), Tag("options")],
    Discriminator(_form),
]
"""The pydantic type of the field ``adapter``. The value is an ``Adapter``."""


def proposal_spelt(proposal: Prompt | Masked | Twisted) -> str | dict[str, Any]:
    """Return a proposal in the form of a constraint file's field ``proposal``."""
    for name, kind in NAMED.items():
        if not isinstance(proposal, kind):
            continue
        options = _without_defaults(proposal)
        if "proposal" in options:
            options["proposal"] = proposal_spelt(options["proposal"])
        if "learned" in options:
            options["learned"] = str(options["learned"])
        return {name: options} if options else name
    if isinstance(proposal, Prompt) and isinstance(proposal.template, str):
        return {"prompt": proposal.template}
    raise ConstraintError("a constraint file can only hold a prompt, a mask or a twist as its proposal; leave it out")


def adapter_spelt(adapter: Adapter) -> str | dict[str, Any]:
    """Return an adapter in the form of a constraint file's field ``adapter``."""
    options = {**_without_defaults(adapter), "source": str(adapter.source)}
    return options if len(options) > 1 else str(options["source"])


class _Trained(BaseModel):
    """The fields of an adapter's card that name its constraint. The rest of the card is read where torch is loaded."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    constraint_digest: str
    constraint_description: str = ""


def adapter_misfit(adapter: Adapter, constraint: Constraint) -> str | None:
    """Return a message if an adapter's card says that it was trained for another constraint, and that is not allowed.

    None if it is not known: the adapter has no card, is a whole model, or is on the Hub.
    """
    source = str(adapter.source)
    ready_made = adapters().get(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else None
    folder = ready_made or Path(source).expanduser()
    if not all((folder / name).exists() for name in (CARD, CONFIG)):
        return None
    card = read_as(folder / CARD, _Trained)
    name = folder.resolve().name
    return trained_for_another(adapter, name, card.constraint_digest, card.constraint_description, constraint)


def demands(constraint: Constraint, digest: str) -> bool:
    """Whether a constraint plainly implies the constraint with this digest, or one filled from the template with it.

    It does if it is that constraint, or a conjunction (``All``) that contains it as one part or as neighboring parts.
    """
    if digest in (constraint.digest, constraint.family):
        return True
    if not isinstance(constraint, All):
        return False
    if any(demands(part, digest) for part in (*constraint.of, *constraint.merged)):
        return True
    count = len(constraint.of)
    runs = combinations(range(count + 1), 2) if count <= MOST_PARTS else ()
    return any(All(constraint.of[begin:end]).digest == digest for begin, end in runs if 1 < end - begin < count)


def trained_for_another(
    adapter: Adapter, name: str, digest: str, description: str, constraint: Constraint
) -> str | None:
    """Return a message if an adapter was trained for another constraint than this one or a weaker one.

    ``digest``, ``description``: those of the constraint that it was trained for, from its card. None also if a
    mismatch is allowed.
    """
    if adapter.allow_mismatch or demands(constraint, digest):
        return None
    alike = description in ("", constraint.title)  # then only the digests show the difference
    trained, wanted = (f" (digest {each[:12]})" if alike else "" for each in (digest, constraint.digest))
    if description:
        shown = description if len(description) <= LONGEST else f"{description[:LONGEST]}..."
        trained = f", {quoted(shown)}{trained},"
    return f"the adapter {name!r} was trained for another constraint{trained} than {constraint.title}{wanted}"


def _without_defaults(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


REASONS = "{reasons}"
"""Where a message has the reasons for the rejection."""

MESSAGE = f"Your answer was rejected for this reason: {REASONS}. Answer again, without that fault."
"""The default message."""


def _with_reasons(message: str) -> str:
    if REASONS not in message:
        raise ValueError(f"needs {REASONS} where the reasons belong")
    return message


class _Turns(Strict):
    """Turns in which the model repairs a rejected answer."""

    max_turns: int = Field(default=1, ge=1, description="The most repair turns for a prompt.")
    message: Annotated[str, AfterValidator(_with_reasons)] = Field(
        default=MESSAGE, description="The user's message after a rejected answer; {reasons} in it is replaced."
    )


ARepair: Any = Annotated[
    Annotated[int, Field(ge=1, strict=True), AfterValidator(lambda turns: _Turns(max_turns=turns)), Tag("a number")]
    | Annotated[_Turns, Tag("options")],
    Discriminator(lambda value: "options" if isinstance(value, dict) else "a number"),
    AfterValidator(vars),
]
"""The pydantic type of the field ``repair``. The value is a mapping of arguments of ``guardwrap.Repair``."""


_REPAIR: TypeAdapter[Any] = TypeAdapter(ARepair, config=ConfigDict(defer_build=True))


def read_repair(value: Any) -> Mapping[str, Any]:
    """Read repair turns from plain data: a number, or a mapping. Return arguments of ``guardwrap.Repair``."""
    options: Mapping[str, Any] = validated(value, _REPAIR)
    return options


def repair_spelt(repair: Mapping[str, Any]) -> int | dict[str, Any]:
    """Return repair turns in the form of a constraint file's field ``repair``."""
    return dict(repair) if repair["message"] != MESSAGE else int(repair["max_turns"])


def _from_json(arguments: Any) -> Any:
    """Return the arguments of a call that are written as JSON, as in OpenAI's API."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return load_json(arguments) if arguments.strip() else {}  # some servers send nothing for no arguments
    except (ValueError, OverflowError, RecursionError):
        raise ValueError("must be a mapping, or a string with a JSON object") from None


class _Call(Strict):
    name: str = Field(description="Name of the tool.")
    arguments: Annotated[dict[str, Any], BeforeValidator(_from_json, json_schema_input_type=dict[str, Any] | str)] = (
        Field(default={}, description="Its arguments, by name, or as JSON.")
    )


class _SentCall(Strict):
    id: str | None = Field(default=None, description="Ignored.")
    type: Literal["function"] = Field(default="function", description="Ignored.")
    function: _Call = Field(description="The tool and its arguments.")


_AnyCall = Annotated[
    Annotated[_Call, Tag("a call")] | Annotated[_SentCall, Tag("a sent call")],
    Discriminator(lambda value: "a sent call" if isinstance(value, dict) and "function" in value else "a call"),
]


class _Message(Strict):
    role: Literal["assistant"] = Field(default="assistant", description="Ignored.")
    content: str | None = Field(default="", description="The answer.")
    reasoning: str = Field(default="", description="What the model thinks before it answers.")
    reasoning_content: str = Field(default="", description="Another name of 'reasoning'.")
    tool_calls: list[_AnyCall] = Field(
        default=[], description="The calls of tools: 'name' and 'arguments', or as in OpenAI's API."
    )

    @model_validator(mode="after")
    def _has_one_reasoning(self) -> _Message:
        if self.reasoning and self.reasoning_content and self.reasoning != self.reasoning_content:
            raise ValueError("has both 'reasoning' and 'reasoning_content', which differ; leave one out")
        return self


class _MessageExample(Strict):
    """A message, for rules that judge a part of it."""

    message: _Message = Field(description="The parts of the message.")


def _plain_message(message: _Message) -> dict[str, Any]:
    calls = [call.function if isinstance(call, _SentCall) else call for call in message.tool_calls]
    fields = {
        "content": message.content,
        "reasoning": message.reasoning or message.reasoning_content,
        "tool_calls": [call.model_dump(exclude_defaults=True) for call in calls],
    }
    return {name: value for name, value in fields.items() if value}


def _plain_example(example: _MessageExample) -> dict[str, Any]:
    return {"message": _plain_message(example.message)}


AnExample: Any = Annotated[
    Annotated[str, Tag("a text")] | Annotated[_MessageExample, AfterValidator(_plain_example), Tag("a message")],
    Discriminator(lambda value: "a message" if isinstance(value, dict) and "message" in value else "a text"),
]
"""The pydantic type of an example: a text, or a mapping with a message."""


def read_message(data: Any) -> Mapping[str, Any]:
    """Read a message from plain JSON types: a mapping with ``content``, ``reasoning`` and ``tool_calls``.

    Those of ``Outcome.messages`` are read as well: with ``reasoning_content``, ``role`` and calls of OpenAI's API.
    """
    return _plain_message(validated(data, TypeAdapter(_Message)))
