"""The field ``guardwrap`` of a request: constraints in full, sampler, proposal, adapter and budget.

It comes from whoever reaches the server. So nothing in it reads a file, names a model that the settings do not list, or
runs code; what it may name is the server's own: its constraint files, the catalogue, its adapters and its proposals.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from guardwrap.budget import Budget
from guardwrap.constraints.base import walk
from guardwrap.constraints.files.catalogue_files import catalogue_names
from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.constraints.files.constraint_file import ConstraintFile, read_constraint
from guardwrap.constraints.files.proposal_fields import AProposal
from guardwrap.constraints.kinds.classifier import Classifier
from guardwrap.documents.limits import MAX_DEPTH
from guardwrap.documents.validation import Invalid, validated
from guardwrap.documents.yaml_nodes import short
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import GuardwrapError, nearest
from guardwrap.proposals import Adapter, Masked, Prompt
from guardwrap.samplers.sampler_registry import read_sampler
from guardwrap.serve.error_responses import bad, in_field
from guardwrap.serve.server_settings import ServerLimits

__all__ = ["RequestPolicy", "budget_of", "constraints_of", "drawn_from", "require_mapping", "sampler_of"]

_FIELDS = ("constraint", "constraints", "sampler", "proposal", "adapter", "budget")
_MOST_OF_A_SAMPLER = 10_000  # chains take memory, and so do steps
_KINDS = (
    "all", "any", "not", "classifier", "finished", "grammar", "json_schema", "keyword", "length", "regex",
)  # fmt: skip
"""Those of guardwrap that run nobody's code. Another package's may read files: they are for the server's own files."""


@dataclass(frozen=True)
class RequestPolicy:
    """What requests may ask for.

    Parameters
    ----------
    models
        Names of the model, the served one first.
    named
        The server's own constraint files, by name.
    always
        Files whose constraints every text must satisfy.
    adapters, proposals
        Those that requests may name.
    classifiers
        Models of classifiers that requests may name.
    limits
        What one request may ask for.
    """

    models: tuple[str, ...]
    named: Mapping[str, ConstraintFile] = dataclasses.field(default_factory=dict)
    always: tuple[ConstraintFile, ...] = ()
    adapters: Mapping[str, Adapter] = dataclasses.field(default_factory=dict)
    proposals: Mapping[str, Prompt | Masked] = dataclasses.field(default_factory=dict)
    classifiers: tuple[str, ...] = ()
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)


def require_mapping(given: Any) -> dict[str, Any]:
    """Return the field's own fields, those that are None left out.

    Raises
    ------
    Refused
        If it is no mapping, or has a field that nobody knows.
    """
    if not isinstance(given, dict):
        raise bad("guardwrap", f"give an object with any of {', '.join(_FIELDS)}")
    for name in given:
        if name not in _FIELDS:
            raise bad("guardwrap", f"unknown field {short(name)}{nearest(name, _FIELDS)}; known: {', '.join(_FIELDS)}")
    if given.get("constraint") is not None and given.get("constraints") is not None:
        raise bad("guardwrap.constraints", "give a constraint, or several constraints, not both")
    return {name: value for name, value in given.items() if value is not None}


def constraints_of(given: Mapping[str, Any], menu: RequestPolicy) -> list[ConstraintFile]:
    """Return the constraints that are asked for; all of them must hold.

    Raises
    ------
    Refused
        If one is not well formed, or is not for requests.
    """
    where = next((f"guardwrap.{name}" for name in ("constraint", "constraints") if name in given), "")
    if not where:
        return []
    asked = given[where.removeprefix("guardwrap.")]
    size = len(json.dumps(asked))
    if size > menu.limits.constraint_characters:
        most = menu.limits.constraint_characters
        raise bad(where, f"has {size} characters, and this server takes at most {most}", code="above_the_limit")
    several = asked if isinstance(asked, list) else [asked]
    if not several:
        raise bad(where, "give at least one constraint")
    places = [f"{where}.{i}" for i in range(len(several))] if isinstance(asked, list) else [where]
    return [_file_of(each, place, menu) for each, place in zip(several, places, strict=True)]


def _file_of(given: Any, where: str, menu: RequestPolicy) -> ConstraintFile:
    if isinstance(given, str) and given in menu.named:
        return menu.named[given]
    _require_own(given, where, menu)
    try:
        named = isinstance(given, str)
        file = as_constraint_file(given) if named else ConstraintFile(read_constraint(given))
    except (Invalid, GuardwrapError) as error:
        raise in_field(where, error) from None
    for part in walk(file.constraint):  # of the catalogue, too
        if isinstance(part, Classifier):
            _require_listed(part.model, where, menu)
    return file


def _require_own(given: Any, where: str, menu: RequestPolicy, depth: int = 0) -> None:
    """Raise Refused for what names something outside of the request, other than by names that are for requests."""
    if depth > MAX_DEPTH:
        raise bad(where, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(given, str):
        ready_made = [PREFIX + name for name in catalogue_names()]
        if depth and given in menu.named:
            raise bad(where, "a file of the server is named in guardwrap.constraints, not within others")
        known = ready_made if depth else [*menu.named, *ready_made]
        if given not in known:
            close = nearest(given, known) or f"; known: {', '.join(known)}"
            raise bad(where, f"{short(given)} is no constraint here{close}")
        return
    if not isinstance(given, dict):
        raise bad(where, "give a mapping with a kind, or the name of a constraint")
    if "file" in given:
        raise bad(f"{where}.file", "a request names no files; write it out, or give the name of one of the server's")
    kind = given.get("kind")
    if kind == "python":
        raise bad(where, "a request brings no code; put it into a constraint file of the server")
    if kind not in _KINDS:
        problem = f"unknown kind {short(kind)}{nearest(kind, _KINDS)}; known: {', '.join(sorted(_KINDS))}"
        raise bad(f"{where}.kind" if "kind" in given else where, problem if "kind" in given else "needs a field kind")
    if kind == "classifier":
        _require_listed(given.get("model"), where, menu)
    inner = given.get("of")
    if kind == "not" and inner is not None:
        _require_own(inner, f"{where}.of", menu, depth + 1)
    elif kind in ("all", "any") and isinstance(inner, list):
        for i, each in enumerate(inner):
            _require_own(each, f"{where}.of.{i}", menu, depth + 1)


def _require_listed(model: Any, where: str, menu: RequestPolicy) -> None:
    if not isinstance(model, str) or model not in menu.classifiers:
        listed = f"; known: {', '.join(menu.classifiers)}" if menu.classifiers else ""
        problem = f"{short(model)} is no classifier of this server{nearest(model, menu.classifiers)}{listed}"
        raise bad(f"{where}.model", problem)


def sampler_of(given: Mapping[str, Any]) -> Any:
    """Return the sampler that is asked for, or None."""
    if "sampler" not in given:
        return None
    options = given["sampler"].values() if isinstance(given["sampler"], dict) else ()
    numbers = [number for each in options if isinstance(each, dict) for number in each.values()]
    if any(isinstance(number, int | float) and number > _MOST_OF_A_SAMPLER for number in numbers):
        raise bad("guardwrap.sampler", f"this server takes numbers up to {_MOST_OF_A_SAMPLER}", code="above_the_limit")
    try:
        return read_sampler(given["sampler"])
    except (Invalid, GuardwrapError) as error:
        raise in_field("guardwrap.sampler", error) from None


@cache
def _a_proposal() -> TypeAdapter[Any]:
    return TypeAdapter(AProposal)


def drawn_from(given: Mapping[str, Any], menu: RequestPolicy) -> tuple[Any, Any]:
    """Return the proposal and the adapter that are asked for: None says nothing, and False says none."""
    proposal, adapter = given.get("proposal"), given.get("adapter")
    if isinstance(proposal, str) and proposal in menu.proposals:
        proposal = menu.proposals[proposal]
    elif proposal is not None and proposal is not False:
        if isinstance(proposal, str) and proposal != "masked":
            raise bad("guardwrap.proposal", _no_name(proposal, "proposal", ("masked", *menu.proposals)))
        try:
            proposal = validated(proposal, _a_proposal())
        except (Invalid, GuardwrapError) as error:
            raise in_field("guardwrap.proposal", error) from None
    if adapter is not None and adapter is not False:
        if not isinstance(adapter, str) or adapter not in menu.adapters:
            raise bad("guardwrap.adapter", _no_name(adapter, "adapter", menu.adapters))
        adapter = menu.adapters[adapter]
    return proposal, adapter


def _no_name(given: Any, what: str, known: Iterable[str]) -> str:
    names = sorted(known)
    listed = f"known: {', '.join(names)}" if names else "it has none"
    return f"{short(given)} is no {what} of this server{nearest(given, names)}; {listed}"


def budget_of(given: Mapping[str, Any], own: Budget | None, limits: ServerLimits) -> Budget:
    """Return the budget of a request: what it asks for on top of its files', and no more than the server allows."""
    budget = own or Budget()
    if "budget" in given:
        try:
            read = validated(given["budget"], TypeAdapter(Budget))
        except (Invalid, GuardwrapError) as error:
            raise in_field("guardwrap.budget", error) from None
        budget = dataclasses.replace(budget, **{name: getattr(read, name) for name in given["budget"]})
    attempts = min(limits.attempts, budget.max_attempts or limits.attempts)
    seconds = min(limits.seconds, budget.max_seconds or limits.seconds)
    return dataclasses.replace(budget, max_attempts=attempts, max_seconds=seconds)
