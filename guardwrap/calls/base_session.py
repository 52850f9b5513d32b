"""The part of a session that does not depend on the model: constraint, sampler, budget and seed of calls."""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from guardwrap.budget import Budget, budget_or_none
from guardwrap.calls.job import CallThreads, Job
from guardwrap.calls.missing_texts import (
    Fallback,
    Missing,
    OnExhausted,
    Repair,
    read_on_exhausted,
    require_accepted,
)
from guardwrap.calls.source import LocalSource, Proposal, Source
from guardwrap.constraints.base import All, Constraint, walk
from guardwrap.constraints.files.constraint_file import ConstraintFile, PerPromptOptions, as_constraint_file
from guardwrap.constraints.files.template import fill, require_filled
from guardwrap.constraints.json.schema_notes import bans_as_written
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.engine.scheduling.batch import Batches
from guardwrap.engine.scheduling.randomness import seed_for
from guardwrap.engine.scheduling.request import Hooks, Spec
from guardwrap.errors import ConstraintError, UsageError, require_whole
from guardwrap.models.prompt_forms import CALL_OPTIONS, PromptReader
from guardwrap.outcomes import Outcome
from guardwrap.proposals import merge_proposals
from guardwrap.samplers import Attempt, collecting, sampler_named
from guardwrap.support.process import Teller
from guardwrap.support.transformers_internals import library_lock

logger = logging.getLogger("guardwrap")

_UNSEEN = "the prompts do not show the model the tools of ToolCalls; pass tools=RULE.definitions to the call as well"

_IGNORED = "the model's chat template does not show tools: {}; describe them in the chat, and how to call them"

_KEPT = 256  # fallbacks that are remembered as accepted

BATCH_SIZE = 32
"""The most attempts drawn in parallel, unless the user or the pipeline sets a limit."""


class BaseSession(ABC):
    """The defaults of calls, and the rules by which the options of a call override them.

    ``options``: those of ``GuardedGenerator`` by name. A subclass calls ``_complete`` once it has its model.
    """

    provider: ClassVar[str]
    """The name in telemetry of what runs the model."""

    model_name: str
    """The model's name in telemetry."""

    tokenizer: Any
    """The tokenizer; None for an endpoint."""

    call_class: type[PromptReader]
    """The class that reads the prompts of a call and renders its results."""

    trains: ClassVar[bool] = False
    """Whether an adapter can be trained for the model."""

    def __init__(self, constraints: Any, options: Mapping[str, Any]) -> None:
        self._allow_code = bool(options.get("allow_code"))
        self.file: ConstraintFile = as_constraint_file(constraints, allow_code=self._allow_code)
        for note in bans_as_written(self.file.constraint):
            logger.warning("%s", note)
        default = Spec(self.file.constraint, sampler_named("rejection"), Budget(), seed=0)
        self.spec: Spec = _specified(default, self.file, options)  # each call has a seed of its own
        seed = options.get("seed")
        self._seed = None if seed is None else require_whole("seed", seed, 0)
        self._on_exhausted: Missing = options.get("on_exhausted", "raise")
        read_on_exhausted(self._on_exhausted)
        self._accepted: set[tuple[str, str]] = set()
        self._calls = itertools.count()
        self.batches: Batches = Batches()
        self.threads: CallThreads = CallThreads()

    def _complete(self, options: Mapping[str, Any], batch_size: int) -> None:
        """Read the defaults that depend on the model; ``batch_size`` is its own."""
        require_accepted(self._missing({})[0], self.spec.constraint, self.tokenizer)
        size = options.get("batch_size")
        self.batch_size: int = require_whole("batch_size", batch_size if size is None else size, 1)
        from_options = options.get("proposal"), options.get("adapter")
        proposal, adapter = merge_proposals(from_options, (self.file.proposal, self.file.adapter))
        self.proposal: Proposal | None = self._proposal_of(proposal)
        self.adapter: Any = None
        if adapter is not None and adapter is not False:
            self.use_adapter(adapter)

    @abstractmethod
    def _proposal_of(self, given: Any) -> Proposal | None:
        """Resolve ``proposal=``; None and False are the model itself."""

    @abstractmethod
    def adapter_of(self, given: Any, allow_mismatch: bool = False) -> Any:
        """Resolve ``adapter=``."""

    @abstractmethod
    def _call(self, rest: dict[str, Any], proposal: Proposal | None) -> Any:
        """Read the options of a call that are not guardwrap's."""

    @abstractmethod
    def _source(
        self, own: Mapping[str, Any], spec: Spec, each: Iterable[Spec] | None, proposal: Proposal | None, call: Any
    ) -> Source:
        """Make the source of a call's attempts, and check what it is asked for."""

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from an adapter from now on; see ``GuardedGenerator.load_adapter``."""
        if self.proposal is not None and not self.proposal.only_masks:
            raise UsageError("the wrapper has a proposal, so it cannot use an adapter; make another wrapper for it")
        adapter = self.adapter_of(given, allow_mismatch)
        if not isinstance(adapter, str):  # the name of a server's adapter, which has no card here
            adapter.require_constraint(self.spec.constraint)
        self.adapter = adapter

    def job(self, options: Mapping[str, Any]) -> Job:
        """Read the options of a call."""
        own, rest = self._read(options)
        proposal = self._proposal_in(own)
        return self._job(own, proposal, self._call(rest, proposal))

    def _job(self, own: Mapping[str, Any], proposal: Proposal | None, call: Any) -> Job:
        """Complete a call with the session's defaults. A fallback is judged by the rules that run no model."""
        spec = self._spec(own)
        each = self._each(own, spec)
        source = self._source(own, spec, each, proposal, call)
        on_exhausted, repair = self._missing(own)
        require_accepted(on_exhausted, spec.constraint, self.tokenizer)
        return Job(self, spec, source, self._size(own), each, on_exhausted, repair)

    def pilot(
        self,
        prompts: Any,
        count: int,
        *,
        weigh: bool,
        on_attempt: Callable[[], None] | None = None,
        max_seconds: float | None = None,
        model_share: float | None = None,
        tells: Teller | None = None,
        **options: Any,
    ) -> tuple[list[Outcome], list[list[Attempt]]]:
        """Draw attempts as ``GuardedGenerator.attempts`` does; return outcomes with their cost, and the attempts.

        After ``max_seconds``, learning a twist included, running attempts are dropped. After half of them no attempt
        starts, and no round of learning, so that attempts are seldom dropped. ``model_share`` replaces that of
        ``Twisted()``; ``tells`` says how learning is getting on.
        """
        called = time.monotonic()
        collector, attempts = collecting(weigh, on_attempt)
        starting = None if max_seconds is None else max_seconds / 2
        budget = Budget(require_whole("count", count, 1), max_seconds=starting, timeout=max_seconds)
        if isinstance(each := options.get("constraint_each"), list | tuple):
            options["constraint_each"] = [
                replace(one, sampler=None, budget=None) if isinstance(one, PerPromptOptions) else one for one in each
            ]
        prompts, options = self.call_class.with_named_inputs(prompts, options)
        inputs = list(self.call_class.read_prompts(prompts).prompts)
        job = self.job({**options, "sampler": collector, "budget": budget, "num_return_sequences": count})
        job = replace(job, called=called, hooks=Hooks(tells=tells))
        source = job.source
        if model_share is not None and isinstance(source, LocalSource) and source.twists is not None:
            job = replace(job, source=replace(source, twists=replace(source.twists, model_share=model_share)))
        return [outcome for _, outcome in job.served(job.requests(inputs))], attempts

    def constraint_of(self, options: Mapping[str, Any]) -> Constraint:
        """Return the constraint of a call with these options, ``constraints`` and ``fields`` among them."""
        return self._spec({**self._read(options)[0], "seed": 0}).constraint

    def _read(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the options of a call into guardwrap's and the pipeline's, and read ``constraints``."""
        own = {name: value for name, value in options.items() if name in CALL_OPTIONS}
        # Prompts are tokenized one by one, without the pipeline's data loader.
        rest = {name: value for name, value in options.items() if name not in (*CALL_OPTIONS, "num_workers")}
        if own.get("constraints") is not None:
            file = own["constraints"] = as_constraint_file(own["constraints"], allow_code=self._allow_code)
            from_call = own.get("proposal"), own.get("adapter")
            own["proposal"], own["adapter"] = merge_proposals(from_call, (file.proposal, file.adapter))
        return own, rest

    def _spec(self, own: Mapping[str, Any]) -> Spec:
        """Complete guardwrap's options of a call with the defaults."""
        spec = _specified(self.spec, own.get("constraints"), own)
        if isinstance(own.get("fields"), Mapping):
            spec = replace(spec, constraint=fill(spec.constraint, own["fields"]))
        elif own.get("fields") is None and own.get("constraint_each") is None:
            require_filled(spec.constraint)
        seed = self.next_seed() if own.get("seed") is None else require_whole("seed", own["seed"], 0)
        return replace(spec, seed=seed)

    def _proposal_in(self, own: Mapping[str, Any]) -> Proposal | None:
        """Return the proposal of a call, with its adapter; None for the model itself."""
        proposal = self.proposal if own.get("proposal") is None else self._proposal_of(own["proposal"])
        adapter = own.get("adapter")
        adapter = self.adapter if adapter is None else adapter  # read once, as another thread may load another one
        if adapter is None or adapter is False:
            return proposal
        if proposal is not None and not proposal.only_masks:
            raise UsageError(
                "attempts come from a proposal or from an adapter, not both; pass adapter=False, or proposal=False"
            )
        return replace(proposal or Proposal(), adapter=self.adapter_of(adapter))

    def _missing(self, own: Mapping[str, Any]) -> tuple[OnExhausted, Repair | None]:
        """Return what a call does about missing texts in the end, and its repair turns, if any."""
        option, file = own.get("on_exhausted"), own.get("constraints")
        from_call = None if file is None else file.repair
        default = self._on_exhausted
        if from_call is not None and isinstance(default, Repair):
            default = default.otherwise  # the file of the call replaces the turns of the wrapper
        turns = self.file.repair if from_call is None else from_call
        on_exhausted, repair = read_on_exhausted(default if option is None else option, turns)
        text = (self.file if file is None else file).fallback
        if option is None and on_exhausted == "raise" and text is not None:
            on_exhausted = Fallback(text)
        return on_exhausted, repair

    def _size(self, own: Mapping[str, Any]) -> int:
        """Return the most attempts that a call draws in parallel."""
        return self.batch_size if own.get("batch_size") is None else require_whole("batch_size", own["batch_size"], 1)

    def require_fallback(self, job: Job) -> None:
        """Raise UsageError if a rule that runs a model rejects a call's constant fallback. Each rule is asked once."""
        if not isinstance(job.on_exhausted, Fallback) or not isinstance(job.on_exhausted.text, str):
            return
        key = job.spec.constraint.digest, job.on_exhausted.text
        if key not in self._accepted:
            require_accepted(job.on_exhausted, job.spec.constraint, self.tokenizer, expensive=True)
            if len(self._accepted) >= _KEPT:
                self._accepted.clear()
            self._accepted.add(key)

    def _each(self, own: Mapping[str, Any], asked: Spec) -> Iterable[Spec] | None:
        """Read the options of each prompt. A list is read at once, so that errors are raised before drawing starts."""
        each, fields = own.get("constraint_each"), own.get("fields")
        if fields is not None and not isinstance(fields, Mapping):
            each = _with_fields(each, fields)
        if each is None:
            return None
        if isinstance(each, str | Constraint | Mapping) or not isinstance(each, Iterable):
            raise UsageError(
                "constraint_each takes a list with one constraint per prompt; for one that holds for all prompts, use "
                "constraints="
            )

        def asked_by(number: int, item: Any) -> Spec:
            try:
                return self._spec_by(item if isinstance(item, PerPromptOptions) else PerPromptOptions(item), own, asked)
            except (ConstraintError, UsageError) as error:
                raise UsageError(f"constraint_each[{number}]: {error}") from None

        every = itertools.starmap(asked_by, enumerate(each))
        return tuple(every) if isinstance(each, Sequence) else every

    def _spec_by(self, item: PerPromptOptions, own: Mapping[str, Any], asked: Spec) -> Spec:
        """Merge a prompt's options into those of its call. Both constraints must hold."""
        values = {**(own["fields"] if isinstance(own.get("fields"), Mapping) else {}), **(item.fields or {})}
        asked = replace(asked, constraint=fill(asked.constraint, values))
        if item.constraints is not None:
            file = as_constraint_file(item.constraints, allow_code=self._allow_code).filled(values)
            if file.proposal is not None or file.adapter is not None:
                raise UsageError("all prompts of a call share one proposal; pass proposal= or adapter= to the call")
            if file.repair is not None:
                raise UsageError("all prompts of a call share their repair turns; pass on_exhausted=Repair(...) to it")
            if file.fallback is not None:
                raise UsageError("all prompts of a call share their fallback; pass on_exhausted=Fallback(...) to it")
            of_call = (("sampler", asked.sampler), ("budget", asked.budget))  # before those of the prompt's file
            options = {name: value for name, value in of_call if own.get(name) is not None}
            both = All((asked.constraint, file.constraint))
            asked = replace(_specified(asked, file, options), constraint=both)
        asked = _specified(asked, None, {"sampler": item.sampler, "budget": item.budget})
        if item.seed is not None:
            asked = replace(asked, seed=require_whole("seed", item.seed, 0), place=0)
        return asked if item.number is None else replace(asked, place=item.number)

    def next_seed(self) -> int:
        """Return the seed of a call that gives none: the next one of this session."""
        call = next(self._calls)
        if self._seed is None:
            return _random_seed()
        if call == 0:
            return self._seed
        return seed_for(self._seed, call)

    def plan_seed(self) -> int:
        """Return the seed of a plan that gives none. It is not one of the seeds of calls, and uses none of them up."""
        return _random_seed() if self._seed is None else seed_for(self._seed, "plan")


def _specified(default: Spec, file: ConstraintFile | None, options: Mapping[str, Any]) -> Spec:
    """Complete a spec: options come before those of their constraint file, and these before the default's."""
    constraint, sampler, budget = default.constraint, default.sampler, default.budget
    if file is not None:
        constraint, budget = file.constraint, file.budget or budget
        sampler = sampler if file.sampler is None else sampler_named(file.sampler, file.source)
    if options.get("sampler") is not None:
        sampler = sampler_named(options["sampler"])
    return replace(
        default, constraint=constraint, sampler=sampler, budget=budget_or_none(options.get("budget")) or budget
    )


def _random_seed() -> int:
    """Return a seed from torch's global generator."""
    with library_lock:
        return int(torch.randint(2**63 - 1, ()).item())


def _with_fields(each: Any, fields: Any) -> Any:
    """Return the options of each prompt, with the values for its placeholders."""
    several = isinstance(fields, list | tuple) and all(isinstance(values, Mapping) for values in fields)
    if not several or not (each is None or isinstance(each, list | tuple)):
        raise UsageError("fields takes a mapping of names to values, or a list with one mapping per prompt")
    if each is None:
        return [PerPromptOptions(fields=values) for values in fields]
    if len(each) != len(fields):
        raise UsageError("fields and constraint_each take one item per prompt; they have different lengths")
    return [
        replace(item, fields=values) if isinstance(item, PerPromptOptions) else PerPromptOptions(item, fields=values)
        for item, values in zip(each, fields, strict=True)
    ]


def unseen_tools(constraint: Constraint, tools: Any, template: Any = None) -> tuple[str, ...]:
    """Return a note for reports if the constraint lets the model call tools that its prompt does not show."""
    asked = any(isinstance(part, ToolCalls) and part.allowed for part in walk(constraint))
    if not asked:
        return ()
    if template is not None and "tools" not in str(template):
        return (_IGNORED.format("tools= has no effect" if tools else "it knows those of ToolCalls only from the chat"),)
    return () if tools else (_UNSEEN,)
