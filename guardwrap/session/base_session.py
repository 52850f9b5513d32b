"""The part of a session that does not depend on the model: constraint, sampler, budget and seed of calls."""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from guardwrap.budget import Budget, budget_or_none
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.coerce import PerPromptOptions, as_constraint_file
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.files.template import fill, require_filled
from guardwrap.constraints.json.schema_notes import bans_as_written
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.environment.process import Teller
from guardwrap.environment.transformers_internals import library_lock
from guardwrap.errors import ConstraintError, UsageError, require_whole
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.calls import CALL_OPTIONS
from guardwrap.pipelines.prompt_forms import PromptReader
from guardwrap.proposals import Masked, Prompt, Twisted, merge_proposals
from guardwrap.samplers import Attempt, Sampler, collecting, sampler_named
from guardwrap.scheduling.batch import Batches
from guardwrap.scheduling.randomness import seed_for
from guardwrap.scheduling.request import Spec
from guardwrap.session.call_threads import CallThreads
from guardwrap.session.fallback import Fallback, or_from_file, require_accepted
from guardwrap.session.job import Job
from guardwrap.session.repair import Missing, Repair, read_on_exhausted
from guardwrap.session.source import Source
from guardwrap.session.twisting import Spent

if TYPE_CHECKING:
    from guardwrap.adapters.card import Figures

logger = logging.getLogger("guardwrap")

_UNSEEN = "the prompts do not show the model the tools of ToolCalls; pass tools=RULE.definitions to the call as well"

_IGNORED = "the model's chat template does not show tools: {}; describe them in the chat, and how to call them"

_KEPT = 256  # fallbacks that are remembered as accepted

BATCH_SIZE = 32
"""The most attempts drawn in parallel, unless the user or the pipeline sets a limit."""


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """The defaults of a session's calls. ``GuardedGenerator`` has parameters of the same names and explains them."""

    tokenizer: Any = None  # the tokenizer of a model given as an object
    sampler: str | Sampler | None = None  # replacements for those of the constraint file; None keeps the file's
    proposal: Any = None
    adapter: Any = None
    budget: Budget | None = None
    batch_size: int | None = None  # the most attempts in flight. None uses the pipeline's batch size, or 32.
    # The seed of the first call; later calls derive theirs from it. None takes a new seed per call from torch's global
    # generator.
    seed: int | None = None
    allow_code: bool = False  # whether constraint files may name Python functions
    on_exhausted: Missing = "raise"  # what to do about texts that are missing because the budget ended
    deterministic: bool = False  # whether nothing that is computed at the same time may change a text


class BaseSession(ABC):
    """The defaults of calls, and the rules by which the options of a call override them."""

    tokenizer: Any
    """The tokenizer; None for an endpoint."""

    batch_size: int
    """The most attempts drawn in parallel."""

    provider: ClassVar[str]
    """The name in telemetry of what runs the model."""

    model_name: str
    """The model's name in telemetry."""

    call_class: type[PromptReader]
    """The class that reads the prompts of a call and renders its results."""

    def __init__(
        self,
        constraints: Any,
        config: SessionConfig,
    ) -> None:
        file = as_constraint_file(constraints, allow_code=config.allow_code)
        self.file: ConstraintFile = file
        self._allow_code = config.allow_code
        self.constraint: Constraint = file.constraint
        for note in bans_as_written(file.constraint):
            logger.warning("%s", note)
        in_file = "rejection" if file.sampler is None else sampler_named(file.sampler, file.source)
        self.sampler: Sampler = sampler_named(in_file if config.sampler is None else config.sampler)
        self.budget: Budget = budget_or_none(config.budget) or file.budget or Budget()
        self._seed = None if config.seed is None else require_whole("seed", config.seed, 0)
        read_on_exhausted(config.on_exhausted)
        self.on_exhausted = config.on_exhausted
        self._accepted: set[tuple[str, str]] = set()
        self._calls = itertools.count()
        self.batches: Batches = Batches()
        self.threads: CallThreads = CallThreads()

    trains: ClassVar[bool] = False
    """Whether an adapter can be trained for the model."""

    def accepts(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these options can be made."""
        try:
            self.job({**options, "seed": 0})
        except UsageError:
            return False
        return True

    def takes_hint(self, prompts: Any, options: Mapping[str, Any]) -> bool:
        """Whether a call can draw from prompts with a hint instead of the model itself."""
        hinted = {**options, "proposal": Prompt("A hint. {prompt}"), "adapter": False}
        if not self.call_class.reads_text or self.draws_elsewhere(options) or not self.accepts(hinted):
            return False
        return not self._spec({**self._read(hinted)[0], "seed": 0}).sampler.weighs or self.weighs(prompts, hinted)

    @abstractmethod
    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether a call has a proposal or an adapter."""

    @abstractmethod
    def weighs(self, prompts: Any, options: Mapping[str, Any]) -> bool:
        """Whether a call's attempts can be weighed under the model."""

    def other_ways(self, options: Mapping[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield alternatives to a call: drawing from the model itself, and masked, if possible and not the call's own.

        Each is a pair: whether attempts have weights, and the options.
        """
        itself = {**options, "proposal": False, "adapter": False}
        if self.draws_elsewhere(options):
            yield False, itself
        masked = {**itself, "proposal": Masked()}
        if self.may_mask(options) and self.accepts(masked):
            yield True, masked

    def twisted_way(self, options: Mapping[str, Any], strength: float | None = None) -> dict[str, Any] | None:
        """Return the options of a call that draws from a twist of the model itself; None if no automaton follows it."""
        twisted = {**options, "proposal": Twisted(strength=strength), "adapter": False}
        try:
            job = self.job({**twisted, "seed": 0})
        except UsageError:
            return None
        digest = job.spec.constraint.digest
        alike = job.each is None or all(each.constraint.digest == digest for each in job.each)
        return twisted if alike and job.source.twists is not None else None

    def learned_from(self, options: Mapping[str, Any]) -> Spent:
        """Return the cost of the attempts that the twist of a call was learned from so far; 0 without a twist."""
        twists = self.job({**options, "seed": 0}).source.twists
        return Spent() if twists is None else twists.constraint.spent

    def left_to_learn(self, options: Mapping[str, Any]) -> int:
        """Return the most attempts that the twist of a call has still to be learned from; 0 without a twist."""
        twists = self.job({**options, "seed": 0}).source.twists
        if twists is None or twists.constraint.learned:
            return 0
        return sum(twists.constraint.sizes[twists.constraint.rounds :]) + len(twists.constraint.examples)

    def may_mask(self, options: Mapping[str, Any]) -> bool:
        """Whether a mask would be another way to draw from the model itself. A server's masks give no weights."""
        return False

    def card_figures(self, prompts: Sequence[Any], options: Mapping[str, Any]) -> Figures | None:
        """Return the figures of the card of a call's adapter, if they hold for each of its prompts; None otherwise."""
        return None

    @abstractmethod
    def job(self, options: Mapping[str, Any]) -> Job:
        """Read the options of a call."""

    def attempts(
        self,
        prompts: Any,
        count: int,
        *,
        weigh: bool = True,
        on_attempt: Callable[[], None] | None = None,
        **options: Any,
    ) -> list[list[Attempt]]:
        """Draw a fixed number of attempts for each prompt; see ``GuardedGenerator.attempts``."""
        return self.pilot(prompts, count, weigh=weigh, on_attempt=on_attempt, **options)[1]

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
        """Draw a fixed number of attempts for each prompt.

        Parameters
        ----------
        prompts, count, weigh, on_attempt, **options
            As for ``GuardedGenerator.attempts``.
        max_seconds
            Seconds after which running attempts are dropped, learning a twist included; None for no limit. After half
            of them no attempt starts, and no round of learning, so that attempts are seldom dropped.
        model_share
            The share of the model itself in each step of a twist; None for that of ``Twisted()``.
        tells
            Says how learning a twist is getting on; None for silence.

        Returns
        -------
        list of Outcome
            The cost of each prompt's attempts. Outcomes have no texts, as no attempt is accepted.
        list of list of Attempt
            Per prompt, the judged attempts in launch order.
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
        job = replace(job, called=called, tells=tells)
        if job.source.twists is not None and model_share is not None:
            twists = replace(job.source.twists, model_share=model_share)
            job = replace(job, source=replace(job.source, twists=twists))
        return [outcome for _, _, outcome in job.served(job.requests(inputs))], attempts

    def budgets(self, count: int, options: Mapping[str, Any]) -> list[Budget]:
        """Return the budgets of a call's prompts, ``count`` of them."""
        own, _ = self._read(options)
        asked = self._spec({**own, "seed": 0})
        each = self._each(own, asked)
        return [asked.budget] * count if each is None else [one.budget for one in each]

    def constraint_of(self, options: Mapping[str, Any]) -> Constraint:
        """Return the constraint of a call with these options, ``constraints`` and ``fields`` among them."""
        own, _ = self._read(options)
        return self._spec({**own, "seed": 0}).constraint

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
        constraint, sampler, budget = self.constraint, self.sampler, self.budget
        if own.get("constraints") is not None:
            file: ConstraintFile = own["constraints"]
            constraint, budget = file.constraint, file.budget or budget
            sampler = sampler if file.sampler is None else sampler_named(file.sampler, file.source)
        if own.get("sampler") is not None:
            sampler = sampler_named(own["sampler"])
        budget = budget_or_none(own.get("budget")) or budget
        if isinstance(own.get("fields"), Mapping):
            constraint = fill(constraint, own["fields"])
        elif own.get("fields") is None and own.get("constraint_each") is None:
            require_filled(constraint)
        seed = self.next_seed() if own.get("seed") is None else require_whole("seed", own["seed"], 0)
        return Spec(constraint, sampler, budget, seed)

    def _complete(self, own: Mapping[str, Any], spec: Spec, each: Iterable[Spec] | None, source: Source) -> Job:
        """Return the job of a call. A fallback is judged by the rules that run no model."""
        option, file = own.get("on_exhausted"), own.get("constraints")
        in_call = None if file is None else file.repair
        if option is None:
            option = self.on_exhausted
            if in_call is not None and isinstance(option, Repair):
                option = option.otherwise  # the file of the call replaces the turns of the wrapper
        on_exhausted, repair = read_on_exhausted(option, self.file.repair if in_call is None else in_call)
        if own.get("on_exhausted") is None:
            on_exhausted = or_from_file(on_exhausted, (self.file if file is None else file).fallback)
        require_accepted(on_exhausted, spec.constraint, self.tokenizer)
        return Job(spec, source, self._size(own), self.batches, self.threads, each, on_exhausted, repair)

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
            asked = replace(asked, constraint=All((asked.constraint, file.constraint)))
            if own.get("sampler") is None and file.sampler is not None:
                asked = replace(asked, sampler=sampler_named(file.sampler, file.source))
            if own.get("budget") is None and file.budget is not None:
                asked = replace(asked, budget=file.budget)
        sampler = asked.sampler if item.sampler is None else sampler_named(item.sampler)
        asked = replace(asked, sampler=sampler, budget=item.budget or asked.budget)
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
