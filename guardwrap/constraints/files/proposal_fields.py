"""What a constraint file says that attempts are drawn from: ``proposal`` and ``adapter``, there and back."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations, islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.documents.validation import read_as
from guardwrap.documents.yaml_nodes import path_beside, short
from guardwrap.environment.package_data import CARD, CONFIG, PREFIX, adapters
from guardwrap.errors import ConstraintError, UnknownName, nearest, quoted
from guardwrap.proposals import HUB_ID, Adapter, Masked, Prompt

__all__ = [
    "AProposal",
    "AnAdapter",
    "adapter_misfit",
    "adapter_spelt",
    "demands",
    "proposal_spelt",
    "trained_for_another",
]

MOST_PARTS = 16
"""Of a constraint whose parts are tried together, as what another one is made of."""

LONGEST = 200
"""Characters of a card's description in messages."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Told(_Strict):
    prompt: Annotated[str, AfterValidator(Prompt)] = Field(
        description="Attempts are drawn from this prompt; {prompt} in it stands for the user's own."
    )


class _Mask(_Strict):
    proposal: Annotated[_Told, AfterValidator(lambda told: told.prompt)] | None = Field(
        None, description="What is masked, if not the model itself: a prompt."
    )
    unseen: float = Field(
        Masked.unseen, description="Share of the probability whose tokens are not looked at: at least 0 and below 1."
    )


class _OneOf(_Strict):
    """One of the two."""

    prompt: Annotated[str, AfterValidator(Prompt)] | None = Field(
        None, description="Attempts are drawn from this prompt; {prompt} in it stands for the user's own."
    )
    masked: Annotated[_Mask, AfterValidator(lambda mask: Masked(**vars(mask)))] | None = Field(
        None, description="Tokens after which the constraint cannot be satisfied are left out; {} for the defaults."
    )


def _one(given: _OneOf) -> Prompt | Masked:
    if (given.prompt is None) == (given.masked is None):
        raise ValueError("give one of prompt and masked; a masked prompt is {masked: {proposal: {prompt: '...'}}}")
    return given.prompt or given.masked  # type: ignore[return-value]  # as the validators made them


class _AdapterOptions(_Strict):
    source: str = Field(description="Its folder, by its way from this file, its Hub id, or catalogue:NAME.")
    allow_mismatch: bool = Field(False, description="Whether one of another model or another constraint is taken.")
    revision: str | None = Field(None, description="Of a Hub id: a branch, tag or commit.")


def _located(source: str) -> str:
    """Return an adapter's folder, where there is one of that name, or its name elsewhere."""
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


def _adapter(given: _AdapterOptions) -> Adapter:
    return Adapter(_located(given.source), given.allow_mismatch, given.revision)


def _form(given: Any) -> str:
    return "a name" if isinstance(given, str) else "options"


AProposal: Any = Annotated[
    Annotated[Literal["masked"], AfterValidator(lambda _: Masked()), Tag("a name")]
    | Annotated[_OneOf, AfterValidator(_one), Tag("options")],
    Discriminator(_form),
]
"""What pydantic reads a proposal by, as a value of ``guardwrap.proposals`` …"""

AnAdapter: Any = Annotated[
    Annotated[str, AfterValidator(lambda source: Adapter(_located(source))), Tag("a name")]
    | Annotated[_AdapterOptions, AfterValidator(_adapter), Tag("options")],
    Discriminator(_form),
]
"""… and an adapter."""


def proposal_spelt(proposal: Prompt | Masked) -> str | dict[str, Any]:
    """Spell a proposal as a constraint file does.

    Raises
    ------
    ConstraintError
        If it is a function, or another model.
    """
    if isinstance(proposal, Masked):
        options = _without_defaults(proposal)
        if "proposal" in options:
            options["proposal"] = proposal_spelt(options["proposal"])
        return {"masked": options} if options else "masked"
    if isinstance(proposal, Prompt) and isinstance(proposal.template, str):
        return {"prompt": proposal.template}
    raise ConstraintError("a constraint file has a prompt or a mask as its proposal; leave what is made in Python out")


def adapter_spelt(adapter: Adapter) -> str | dict[str, Any]:
    """Spell an adapter as a constraint file does."""
    options = {**_without_defaults(adapter), "source": str(adapter.source)}
    return options if len(options) > 1 else str(options["source"])


class _Trained(BaseModel):
    """Of an adapter's card what it was trained for; the rest is read where torch is at hand."""

    model_config = ConfigDict(extra="ignore", strict=True)

    constraint_digest: str
    constraint_description: str = ""


def adapter_misfit(adapter: Adapter, constraint: Constraint) -> str | None:
    """Say in words that an adapter was trained for another constraint, by its card alone.

    Parameters
    ----------
    adapter
        Which.
    constraint
        What texts have to satisfy.

    Returns
    -------
    str or None
        None where it was trained for this one or a weaker one, where another is allowed, and where that is not known:
        it has no card, is a whole model, or is on the Hub.

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
    """Whether a constraint visibly demands all that the one of this digest does, and perhaps more.

    It does where that one, or the parts of that one side by side, are parts of it: every text that satisfies the
    constraint then satisfies that one too.
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
    """Say in words that an adapter's card has another constraint.

    None where it has this one or a weaker one, or another is allowed.

    Parameters
    ----------
    adapter
        Which.
    name
        What to call it.
    digest, description
        Of the constraint that it was trained for, as its card has them.
    constraint
        What texts have to satisfy.
    """
    if adapter.allow_mismatch or demands(constraint, digest):
        return None
    alike = description in ("", constraint.title)  # and so tells nobody what the difference is
    trained, wanted = (f" (digest {each[:12]})" if alike else "" for each in (digest, constraint.digest))
    if description:
        shown = description if len(description) <= LONGEST else f"{description[:LONGEST]}..."
        trained = f", {quoted(shown)}{trained},"
    return f"the adapter {name!r} was trained for another constraint{trained} than {constraint.title}{wanted}"


def _without_defaults(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
