"""The fields ``proposal`` and ``adapter`` of constraint files: reading them, writing them, and checking an adapter."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.documents.validation import read_as
from guardwrap.documents.yaml_nodes import path_beside, short
from guardwrap.environment.files import CARD, CONFIG, PREFIX, adapters
from guardwrap.errors import ConstraintError, UnknownName, nearest, quoted
from guardwrap.proposals import HUB_ID, Adapter, Masked, Prompt, Twisted

MOST_PARTS = 16
"""The most parts of a constraint of which ``demands`` compares every run of neighbors with another constraint."""

LONGEST = 200
"""The most characters of a card's description in a message."""


class _Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


class _Told(_Strict):
    prompt: Annotated[str, AfterValidator(Prompt)] = Field(
        description="Attempts are drawn from this prompt; {prompt} in it is replaced by the user's prompt."
    )


class _Mask(_Strict):
    proposal: Annotated[_Told, AfterValidator(lambda hint: hint.prompt)] | None = Field(
        None, description="A prompt to mask, instead of the model itself."
    )
    unseen: float = Field(
        Masked.unseen, description="Share of the probability whose tokens are not checked: at least 0 and below 1."
    )
    beyond_truncation: bool = Field(
        Masked.beyond_truncation,
        description="Whether tokens beyond top_k and the like are drawn where these leave none that the mask allows.",
    )


class _Twist(_Strict):
    proposal: Annotated[_Told, AfterValidator(lambda hint: hint.prompt)] | None = Field(
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
    examples: tuple[str, ...] | None = Field(
        None, description="Texts of the model that satisfy the constraint, to learn from; then attempts are 128."
    )


class _OneOf(_Strict):
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


class _AdapterOptions(_Strict):
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
    """Return a proposal in the form of a constraint file's field ``proposal``.

    Raises
    ------
    ConstraintError
        If it is a function or another model, which a file cannot hold.
    """
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
    """Return a message if an adapter's card says that it was trained for another constraint.

    Parameters
    ----------
    adapter
        The adapter.
    constraint
        The constraint that texts must satisfy.

    Returns
    -------
    str or None
        None if the adapter was trained for this constraint or a weaker one, if a mismatch is allowed, or if it is not
        known: the adapter has no card, is a whole model, or is on the Hub.

    Raises
    ------
    SpecError
        If the card cannot be read; the message names its path and line.
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
    """Whether a constraint plainly implies the constraint with this digest.

    It does if it is that constraint, or a conjunction (``All``) that contains it as one part or as neighboring parts.

    Parameters
    ----------
    constraint
        The constraint that may be stricter.
    digest
        The digest of the other constraint, 64 hex digits.
    """
    if constraint.digest == digest:
        return True
    if not isinstance(constraint, All):
        return False
    if any(demands(part, digest) for part in constraint.of):
        return True
    count = len(constraint.of)
    runs = combinations(range(count + 1), 2) if count <= MOST_PARTS else ()
    return any(All(constraint.of[begin:end]).digest == digest for begin, end in runs if 1 < end - begin < count)


def trained_for_another(
    adapter: Adapter, name: str, digest: str, description: str, constraint: Constraint
) -> str | None:
    """Return a message if an adapter was trained for another constraint.

    None if it was trained for this constraint or a weaker one, or if a mismatch is allowed.

    Parameters
    ----------
    adapter
        The adapter.
    name
        Its name in the message.
    digest, description
        The digest and the description of the constraint that it was trained for, from its card.
    constraint
        The constraint that texts must satisfy.
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
