"""The ``guardwrap`` field of a request: constraints, sampler, proposal, adapter, budget and repair turns.

Any client can send it, so it cannot read files, run code, or name models that the settings do not list. It can name the
server's constraint files, adapters and proposals, and the catalogue.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from guardwrap.budget import Budget
from guardwrap.constraints.base import All, Constraint, Wrapper, walk
from guardwrap.constraints.files.constraint_data import (
    catalogue_names,
    client_kinds,
    constraint_fields,
    kinds,
    read_constraint,
)
from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file, catalogue, fallback_fault
from guardwrap.constraints.files.file_fields import NAMED, REASONS, AProposal, ARepair
from guardwrap.constraints.kinds.classifier import ScoringConstraint
from guardwrap.constraints.kinds.function import Python, runs_code
from guardwrap.constraints.verdicts import Verdict
from guardwrap.errors import CheckFailed, GuardwrapError, SpecError, nearest
from guardwrap.outcomes import Draw
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted
from guardwrap.samplers.sampler_registry import read_sampler
from guardwrap.serve.error_responses import bad, in_field
from guardwrap.serve.request_models import GuardwrapFields, RuleFields, read_field, require_size
from guardwrap.serve.server_settings import ServerLimits, ServerSettings, read_named
from guardwrap.support.files import PREFIX
from guardwrap.support.limits import MAX_DEPTH
from guardwrap.support.threads import cached_property, in_thread
from guardwrap.support.validation import Invalid
from guardwrap.support.yaml_nodes import short

_MOST_OF_A_SAMPLER = 10_000  # more chains or steps would take too much memory
_MOST_LEARNED = 768  # attempts that a twist is learned from before the first text


@dataclass(frozen=True)
class RequestPolicy:
    """Names and limits that apply to requests."""

    # names of the model; the first one is its name in replies, logs and metrics, and on the page
    models: tuple[str, ...]
    # the server's constraint files, by name
    named: Mapping[str, ConstraintFile] = dataclasses.field(default_factory=dict)
    always: tuple[ConstraintFile, ...] = ()  # files whose constraints every text must satisfy
    # adapters and proposals that requests may name
    adapters: Mapping[str, Adapter] = dataclasses.field(default_factory=dict)
    proposals: Mapping[str, Prompt | Masked | Twisted] = dataclasses.field(default_factory=dict)
    # repair turns of chats whose request and constraint files name none; None for none
    repair: Mapping[str, Any] | None = None
    classifiers: tuple[str, ...] = ()  # classifier models that requests may use
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)  # limits for one request
    # when answers to chats are parsed into messages: never, because the model's markers are not known; for requests
    # with tools; or always, because the chat template has markers of reasoning or calls
    parses: Literal["never", "tools", "always"] = "never"
    images: bool = False  # whether the model takes images in chats
    # Whether tokens are masked for requests for JSON that do not say how to draw. Not if the server itself does, by an
    # adapter, for example, nor if the model's unfinished texts cannot be judged.
    masks_json: bool = True

    @property
    def files(self) -> tuple[ConstraintFile, ...]:
        """All constraint files: those that requests may name, and those that always apply."""
        return (*self.named.values(), *self.always)

    @property
    def all_adapters(self) -> list[Adapter]:
        """The adapters that requests may use, each once."""
        adapters = [*self.adapters.values(), *(file.adapter for file in self.files if file.adapter is not None)]
        return list(dict.fromkeys(adapters))


def policy_of(settings: ServerSettings) -> RequestPolicy:
    """Read the files that the settings name, and return the policy for requests."""
    named = read_named(settings)
    always = []
    for name in settings.always:
        if name not in named and not name.startswith(PREFIX):
            raise SpecError(f"always: there is no constraint file {name!r}{nearest(name, named)} in the folder")
        always.append(named[name] if name in named else catalogue(name.removeprefix(PREFIX)))
    return RequestPolicy(
        models=(settings.served_name, *settings.aliases),
        named=named,
        always=tuple(always),
        adapters=settings.adapters,
        proposals=settings.proposals,
        repair=settings.repair,
        classifiers=settings.classifiers,
        limits=settings.limits,
    )


def constraints_of(fields: RuleFields, policy: RequestPolicy, prefix: str = "guardwrap.") -> list[ConstraintFile]:
    """Return the constraints of a request. A text must satisfy all of them.

    ``prefix``: what the names of these fields begin with in errors.
    """
    value, where = fields.constraint, f"{prefix}constraint"
    if fields.constraints is not None:
        value, where = fields.constraints, f"{prefix}constraints"
    if value is None:
        return []
    require_size(where, len(json.dumps(value)), policy.limits.constraint_characters)
    if not isinstance(value, list):
        return [_file_of(value, where, policy)]
    if not value:
        raise bad(where, "give at least one constraint")
    return [_file_of(rule, f"{where}.{i}", policy) for i, rule in enumerate(value)]


def field_values(
    fields: RuleFields, file: ConstraintFile, policy: RequestPolicy, prefix: str = "guardwrap."
) -> Mapping[str, Any]:
    """Return the values for the placeholders of the server's constraint files; ``prefix`` as for ``constraints_of``."""
    where = f"{prefix}fields"
    require_size(where, len(json.dumps(fields.fields)), policy.limits.constraint_characters)
    for name in fields.fields:
        if name not in file.fields:
            known = (
                f"; known: {', '.join(file.fields)}" if file.fields else "; the constraints of this request have none"
            )
            raise bad(where, f"unknown field {short(name)}{nearest(name, file.fields)}{known}")
    return fields.fields


def _file_of(value: Any, where: str, policy: RequestPolicy) -> ConstraintFile:
    if isinstance(value, str) and value in policy.named:
        return policy.named[value]
    _require_own(value, where, policy)
    try:
        named = isinstance(value, str)
        file = as_constraint_file(value) if named else ConstraintFile(read_constraint(value))
    except (Invalid, GuardwrapError) as error:
        raise in_field(where, error) from None
    for part in walk(file.constraint):  # a file of the catalogue may contain classifiers as well
        if isinstance(part, ScoringConstraint):
            _require_listed(part.model, where, policy)
    return file


def _require_own(value: Any, where: str, policy: RequestPolicy, depth: int = 0) -> None:
    """Raise ErrorResponse for files, code, and names that requests may not use."""
    if depth > MAX_DEPTH:
        raise bad(where, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        ready_made = [PREFIX + name for name in catalogue_names()]
        if depth and value in policy.named:
            raise bad(
                where, "a constraint file of the server can only be named in guardwrap.constraints, not inside others"
            )
        known = ready_made if depth else [*policy.named, *ready_made]
        if value not in known:
            close = nearest(value, known) or f"; known: {', '.join(known)}"
            raise bad(where, f"this server has no constraint {short(value)}{close}")
        return
    if not isinstance(value, dict):
        raise bad(where, "give an object with a kind, or the name of a constraint")
    if "file" in value:
        raise bad(f"{where}.file", "a request cannot name files; write the constraint out, or name one of the server's")
    kind = value.get("kind")
    if kind == "python":
        raise bad(where, "a request cannot contain code; put it into a constraint file of the server")
    if kind not in (known_kinds := client_kinds()):
        problem = f"unknown kind {short(kind)}{nearest(kind, known_kinds)}; known: {', '.join(known_kinds)}"
        raise bad(
            f"{where}.kind" if "kind" in value else where, problem if "kind" in value else "the field kind is missing"
        )
    if issubclass(kinds()[kind], ScoringConstraint):
        _require_listed(value.get("model"), where, policy)
    for name in constraint_fields(kinds()[kind]):
        inner = value.get(name)
        if isinstance(inner, list):
            for i, rule in enumerate(inner):
                _require_own(rule, f"{where}.{name}.{i}", policy, depth + 1)
        elif inner is not None:
            _require_own(inner, f"{where}.{name}", policy, depth + 1)


def _require_listed(model: Any, where: str, policy: RequestPolicy) -> None:
    if not isinstance(model, str) or model not in policy.classifiers:
        listed = f"; known: {', '.join(policy.classifiers)}" if policy.classifiers else ""
        problem = f"this server has no classifier or judge {short(model)}{nearest(model, policy.classifiers)}{listed}"
        raise bad(f"{where}.model", problem)


def sampler_of(fields: GuardwrapFields) -> Any:
    """Return the requested sampler, or None."""
    if fields.sampler is None:
        return None
    options = fields.sampler.values() if isinstance(fields.sampler, dict) else ()
    numbers = [number for each in options if isinstance(each, dict) for number in each.values()]
    if any(isinstance(number, int | float) and number > _MOST_OF_A_SAMPLER for number in numbers):
        problem = f"this server accepts numbers up to {_MOST_OF_A_SAMPLER}"
        raise bad("guardwrap.sampler", problem, code="above_the_limit")
    try:
        return read_sampler(fields.sampler)
    except (Invalid, GuardwrapError) as error:
        raise in_field("guardwrap.sampler", error) from None


def proposal_of(value: Any, policy: RequestPolicy) -> Any:
    """Return the requested proposal: None if the request does not say, False if it asks for none."""
    where = "guardwrap.proposal"
    if value is None or value is False:
        return value
    if isinstance(value, str) and value in policy.proposals:
        return policy.proposals[value]
    if isinstance(value, str) and value not in NAMED:
        raise bad(where, _no_name(value, "proposal", (*NAMED, *policy.proposals)))
    try:
        proposal = read_field(AProposal, value, where)
    except GuardwrapError as error:
        raise in_field(where, error) from None
    if isinstance(proposal, Twisted):
        if proposal.learned is not None:
            raise bad(f"{where}.twisted.learned", "a request cannot name a file of the server; leave it out")
        if (proposal.attempts or 0) > _MOST_LEARNED:
            most = f"a request learns from at most {_MOST_LEARNED} attempts; use a proposal of the server for more"
            raise bad(f"{where}.twisted.attempts", most)
    return proposal


def adapter_of(value: Any, policy: RequestPolicy) -> Any:
    """Return the requested adapter: None if the request does not say, False if it asks for none."""
    if value is None or value is False:
        return value
    if not isinstance(value, str) or value not in policy.adapters:
        raise bad("guardwrap.adapter", _no_name(value, "adapter", policy.adapters))
    return policy.adapters[value]


def _no_name(value: Any, what: str, known: Iterable[str]) -> str:
    names = sorted(known)
    listed = f"known: {', '.join(names)}" if names else "none are configured"
    return f"this server has no {what} {short(value)}{nearest(value, names)}; {listed}"


def repair_of(
    value: Any, file_repair: Mapping[str, Any] | None, policy: RequestPolicy, *, chat: bool
) -> Mapping[str, Any] | None:
    """Return the repair turns of a request: its own, or those of its files, or the server's; None for none.

    Those of files and of the server apply to chats only. There are never more than the server allows attempts for.
    """
    where, limits = "guardwrap.repair", policy.limits
    if value is None:
        repair = (file_repair or policy.repair) if chat else None
        turns = 0 if repair is None else min(repair["max_turns"], limits.attempts - 1)
        return {**repair, "max_turns": turns} if repair is not None and turns else None
    if value == 0 and not isinstance(value, bool):
        return None
    if not chat:
        raise bad(where, "continues a chat, and this request has none; send messages to /v1/chat/completions")
    require_size(where, len(json.dumps(value)), limits.constraint_characters)
    repair = read_field(ARepair, value, where)
    most = min(limits.repair_turns, limits.attempts - 1)
    if repair["max_turns"] > most:
        raise bad(where, f"this server accepts at most {most} turns", code="above_the_limit")
    if repair["message"].count(REASONS) > 1:  # reasons may be long, and would be inserted each time
        raise bad(f"{where}.message", f"has {REASONS} more than once; leave the others out")
    return dict(repair)


def fallback_of(text: str | None, file: ConstraintFile, limits: ServerLimits) -> str | None:
    """Return the text for missing ones: the request's, or that of its files. It is checked before anything is drawn."""
    where, text = "guardwrap.fallback", file.fallback if text is None else text
    if text is None:
        return None
    require_size(where, len(text), limits.constraint_characters)
    if (fault := fallback_fault(text, file.constraint)) is not None:
        raise bad(where, fault)
    return text


def budget_of(fields: Mapping[str, Any], file_budget: Budget | None, limits: ServerLimits, *, turns: int = 0) -> Budget:
    """Return the budget of a request: its own limits replace those of its files, up to the server's limits.

    With repair turns it is the budget of each turn, and all of them together stay within the server's limits.
    """
    try:
        read = read_field(Budget, fields, "guardwrap.budget")
    except GuardwrapError as error:
        raise in_field("guardwrap.budget", error) from None
    budget = dataclasses.replace(file_budget or Budget(), **{name: getattr(read, name) for name in fields})
    attempts, seconds = limits.attempts // (turns + 1), limits.seconds / (turns + 1)
    attempts, seconds = min(attempts, budget.max_attempts or attempts), min(seconds, budget.max_seconds or seconds)
    return dataclasses.replace(budget, max_attempts=attempts, max_seconds=seconds)


_Answer = TypeVar("_Answer")

LEFT_BEHIND = 8
"""Threads of one function that may still run after their time limit. With more than these, calls fail at once."""

# By the digest of the rule that runs code: a constraint with fields is another object in each request.
_left_behind: dict[str, list[threading.Thread]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class TimeLimited(Wrapper):
    """A constraint that runs another one with a time limit for each call."""

    of: Constraint  # the constraint to run
    # Limit for one call, in seconds. A longer call raises ``CheckFailed``, but its thread cannot be stopped.
    seconds: float
    kind: Literal["timed"] = dataclasses.field(default="timed", kw_only=True)

    @cached_property
    def digest(self) -> str:
        """The digest of the inner constraint, because the limit changes no result."""
        return self.of.digest

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Check texts within the time limit."""
        return self._within(lambda: self.of.check(draws))

    def verdict(self, prefix: str, /) -> Verdict:
        """Return the verdict on a prefix within the time limit; undecided if the function only checks whole texts."""
        return self._within(lambda: self.of.verdict(prefix)) if self._judges_prefixes else Verdict.UNDECIDED

    @cached_property
    def _judges_prefixes(self) -> bool:
        functions = [part for part in walk(self.of) if isinstance(part, Python)]
        return len(functions) < 1 or self.of is not functions[0] or functions[0].prefix is not None

    @cached_property
    def _innermost(self) -> str:
        """The digest of the rule that runs code."""
        return [part.digest for part in walk(self.of) if runs_code(part)][-1]

    def _within(self, call: Callable[[], _Answer]) -> _Answer:
        left = [thread for thread in _left_behind.pop(self._innermost, []) if thread.is_alive()]
        if left:
            _left_behind[self._innermost] = left
        if len(left) >= LEFT_BEHIND:
            reason = f"is still running {len(left)} calls that took more than {self.seconds:g} s; make it faster"
            raise CheckFailed(self.title, reason)
        answer, thread = in_thread(call, self.seconds, name="guardwrap-checker")
        if not answer:
            _left_behind.setdefault(self._innermost, []).append(thread)
            raise CheckFailed(self.title, f"took more than {self.seconds:g} s; make it faster, or raise the limit")
        return answer[0]


def time_limited(constraint: Constraint, policy: RequestPolicy) -> Constraint:
    """Return the constraint with a time limit for functions of the server."""
    if not runs_code(constraint):
        return constraint
    seconds = policy.limits.checker_seconds
    parts = [
        part.wrapped(lambda inner: TimeLimited(inner, seconds)) if runs_code(part) else part
        for part in constraint.parts
    ]
    return parts[0] if len(parts) == 1 else All(parts)
