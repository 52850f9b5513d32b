"""Where a pipeline, a constraint and the options of a call are put together, and nowhere else.

The wrapper, training and evaluation begin here: a ``Session`` holds what is the same for all calls, and makes a ``Job``
of the options of one; a job makes requests of prompts and has a scheduler serve them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from guardwrap.backends.law import GenerationLaw
from guardwrap.backends.refill.selftest import select_rows, slower_because
from guardwrap.constraints.algebra import All
from guardwrap.constraints.base import Constraint, is_count
from guardwrap.constraints.files import Own, as_constraint_file
from guardwrap.constraints.reading import Reader
from guardwrap.constraints.spec import ConstraintFile
from guardwrap.draws import Budget, Outcome, budget_or_none
from guardwrap.errors import ConstraintError, UsageError
from guardwrap.job import Asked, Job
from guardwrap.pipelines.calls import CALL_OPTIONS, Call, TensorCall
from guardwrap.pipelines.loading import as_pipeline, has_dropout
from guardwrap.pipelines.prefix import PrefixWatch, StablePrefix
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.proposed import ProposedCall, Weigher, with_own_target
from guardwrap.pipelines.tasks import call_kind, call_of
from guardwrap.pipelines.tensors import prepare_rows
from guardwrap.private import batch_size_of, library_lock
from guardwrap.proposals import Masked, merged
from guardwrap.samplers import Attempt, Sampler, collecting, sampler_named
from guardwrap.scheduling.batch import Batches
from guardwrap.sources import Proposal, adapter_of, proposal_of

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded

__all__ = ["Session", "require_whole"]

BATCH_SIZE = 32


class Session:
    """A pipeline with a constraint and the defaults of calls.

    Parameters
    ----------
    generator, tokenizer, constraints, sampler, proposal, adapter, budget, batch_size, seed, allow_code
        As ``GuardedGenerator`` takes them.

    Attributes
    ----------
    pipe : Pipeline
        The pipeline in use.
    kind : type of Call
        What its calls are.
    constraint, sampler, budget, batch_size
        The defaults of a call.
    proposal : Proposal or None
        What attempts are drawn from, if not the model itself.
    adapter : Loaded or Checkpoint or None
        The adapter in use.
    batches : Batches
        Where calls that run side by side share a batch.
    """

    def __init__(
        self,
        generator: Any,
        constraints: Any,
        *,
        tokenizer: Any = None,
        sampler: str | Sampler | None = None,
        proposal: Any = None,
        adapter: Any = None,
        budget: Budget | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        allow_code: bool = False,
    ) -> None:
        file = as_constraint_file(constraints, allow_code=allow_code)
        self._allow_code = allow_code
        self.constraint = file.constraint
        in_file = "rejection" if file.sampler is None else sampler_named(file.sampler, file.source)
        self.sampler = sampler_named(in_file if sampler is None else sampler)
        self.budget = budget_or_none(budget) or file.budget or Budget()
        self._seed = None if seed is None else require_whole("seed", seed, 0)
        self._calls = itertools.count()
        self.batches = Batches()
        self.pipe = as_pipeline(generator, tokenizer)
        self.kind = call_kind(self.pipe)
        batch_size = (batch_size_of(self.pipe) or BATCH_SIZE) if batch_size is None else batch_size
        self.batch_size = require_whole("batch_size", batch_size, 1)
        self._stable: dict[str, StablePrefix] = {}
        proposal, adapter = merged((proposal, adapter), (file.proposal, file.adapter))
        self.proposal = proposal_of(self.pipe, None if proposal is False else proposal)
        self.adapter: Loaded | Checkpoint | None = None
        if adapter is not None and adapter is not False:
            self.use_adapter(adapter)

    @property
    def model(self) -> Any:
        """The model in use: a."""
        return self.pipe.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer in use."""
        return self.pipe.tokenizer

    @property
    def rows(self) -> int:
        """Attempts that hold a row of a batch now."""
        return self.batches.rows

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from an adapter from now on; see ``GuardedGenerator.load_adapter``."""
        if self.proposal is not None and not self.proposal.only_masks(self.pipe):
            raise UsageError("the wrapper draws from its proposal; make another one for the adapter")
        loaded = adapter_of(self.pipe, given, allow_mismatch)
        loaded.require_constraint(self.constraint)
        self.adapter = loaded

    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether attempts of a call come from something else than the model under the user's prompts."""
        own, _ = self._read(options)
        given = own.get("proposal")
        proposal = self.proposal is not None if given is None else given is not False
        return proposal or self._takes_adapter(own)

    def other_ways(self, options: Mapping[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield options of the same call from the model itself, and masked, where they are others and possible.

        Each with whether its attempts have weights.
        """
        itself = {**options, "proposal": False, "adapter": False}
        if self.draws_elsewhere(options):
            yield False, itself
        masked = {**itself, "proposal": Masked()}
        try:
            asked = self._proposal_in(self._read(options)[0])
            self.job({**masked, "seed": 0})
        except UsageError:  # a tokenizer that rewrites text; a model that is fed more than tokens
            return
        if asked is None or not asked.only_masks(self.pipe):
            yield True, masked

    def job(self, options: Mapping[str, Any]) -> Job:
        """Read the options of a call.

        Raises
        ------
        UsageError
            If one is unknown, or they do not go together.
        """
        own, rest = self._read(options)
        call = call_of(self.pipe, rest)
        proposal = self._proposal_in(own)
        if proposal is not None and not proposal.only_masks(self.pipe):
            source = None if proposal.adapter is not None else call
            source = source if proposal.pipe is self.pipe else call_of(proposal.pipe, rest)
            rewrite = None if proposal.prompt is None else proposal.prompt.apply
            call = ProposedCall(**vars(call), source=source, rewrite=rewrite)
        return self._job(own, call, proposal)

    def attempts(self, prompts: Any, count: int, *, weigh: bool = True, **options: Any) -> list[list[Attempt]]:
        """Draw a fixed number of attempts for each prompt; see ``GuardedGenerator.attempts``."""
        return self.pilot(prompts, count, weigh=weigh, **options)[1]

    def pilot(
        self, prompts: Any, count: int, *, weigh: bool, **options: Any
    ) -> tuple[list[Outcome], list[list[Attempt]]]:
        """Draw a fixed number of attempts for each prompt.

        Returns
        -------
        list of Outcome
            What they cost. They have no texts: nothing is accepted.
        list of list of Attempt
            As ``attempts`` returns them.
        """
        collector, found = collecting(weigh)
        budget = Budget(max_attempts=require_whole("count", count, 1))
        prompts, options = self.kind.with_named_inputs(prompts, options)
        given = list(self.kind.read_prompts(prompts).prompts)
        job = self.job({**options, "sampler": collector, "budget": budget, "num_return_sequences": count})
        return [outcome for _, _, outcome in job.served(job.requests(given))], found

    def tensor_job(self, ids: Any, options: Mapping[str, Any]) -> tuple[Job, list[PreparedPrompt], Sequence[Any]]:
        """Read the options of a call of ``generate``.

        Returns
        -------
        Job
            The call.
        list of PreparedPrompt
            Its prompts.
        sequence of torch.Tensor
            What each returned row begins with.

        Raises
        ------
        UsageError
            If the model is fed more than tokens, or the options do not go together.
        """
        if self.kind.media:
            raise UsageError("generate takes tokens only; call the wrapper with what the pipeline takes instead")
        own, rest = self._read(options)
        proposal = self._proposal_in(own)
        if proposal is not None and proposal.adapter is None and not proposal.only_masks(self.pipe):
            raise UsageError("generate takes no other prompt or model; with a proposal, call the wrapper or run()")
        prompts, begins = prepare_rows(self.pipe, ids, rest, two_parts=not self.kind.causal)
        call = TensorCall(
            self.pipe,
            reading={"skip_special_tokens": True},
            begins=[row.tolist() for row in begins],
            with_prompt=self.kind.causal,
        )
        job = self._job(own, call, proposal)
        if proposal is not None and proposal.adapter is not None:
            prompts = [with_own_target(prompt) for prompt in prompts]
        return job, prompts, begins

    def stable_prefix(self, call: Call) -> StablePrefix:
        """Return the decoder of unfinished attempts; made, and tested, once for each way of reading tokens."""
        key = repr(sorted(call.reading.items()))
        if key not in self._stable:
            self._stable[key] = call.stable_prefix()
        return self._stable[key]

    def _read(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tell guardwrap's options of a call from those of the pipeline, and read the constraints among them."""
        own = {name: value for name, value in options.items() if name in CALL_OPTIONS}
        # Prompts are tokenized one by one, without the pipeline's data loader.
        rest = {name: value for name, value in options.items() if name not in (*CALL_OPTIONS, "num_workers")}
        if own.get("constraints") is not None:
            file = own["constraints"] = as_constraint_file(own["constraints"], allow_code=self._allow_code)
            said = own.get("proposal"), own.get("adapter")
            own["proposal"], own["adapter"] = merged(said, (file.proposal, file.adapter))
        return own, rest

    def _job(self, own: Mapping[str, Any], call: Call, proposal: Proposal | None) -> Job:
        """Check guardwrap's options of a call, and fill them up with the session's."""
        constraint, sampler, budget = self.constraint, self.sampler, self.budget
        if own.get("constraints") is not None:
            given: ConstraintFile = own["constraints"]
            constraint, budget = given.constraint, given.budget or budget
            sampler = sampler if given.sampler is None else sampler_named(given.sampler, given.source)
        if own.get("sampler") is not None:
            sampler = sampler_named(own["sampler"])
        budget = budget_or_none(own.get("budget")) or budget
        seed = self._next_seed() if own.get("seed") is None else require_whole("seed", own["seed"], 0)
        size = self.batch_size if own.get("batch_size") is None else require_whole("batch_size", own["batch_size"], 1)
        model = self.model if proposal is None else proposal.pipe.model
        notes: tuple[str, ...] = ()
        asked = Asked(constraint, sampler, budget, seed)
        each = self._each(own, asked)
        if proposal is not None and proposal.adapter is not None:
            proposal.adapter.require_constraint(constraint)
            model, notes = proposal.adapter.model(merge=not sampler.weighs)  # where a(y) is hardly ever computed
        masked = None if proposal is None else proposal.masked
        if has_dropout(self.model) or (model is not self.model and has_dropout(model)):
            raise UsageError("the model is in training mode, so dropout makes its texts random; call model.eval()")
        stable = self.stable_prefix(call)
        early = stable.works and not call.parses
        if call.parses:
            notes += ("the content of the message was judged, as it is parsed from the answer",)
        elif not early:
            notes += ("no early abort: this tokenizer rewrites text that it has already decoded",)
        if masked is not None and not early:
            raise UsageError(f"Masked() needs to judge unfinished texts, and there is {notes[-1]}; leave it out")
        causal = self.kind.causal
        if causal:
            select_rows(model)  # the model is tried now, not when prompts have been taken
            slower = slower_because(model)
            notes += () if slower is None else (slower,)
        return Job(
            call,
            asked,
            size,
            model,
            watches=_watches(constraint, call, stable) if early else None,
            notes=notes,
            proposal=None if proposal is None else proposal.in_words,
            masked=masked,
            weigh=None if proposal is None or proposal.only_masks(self.pipe) else Weigher(self.model, model),
            causal=causal,
            each=each,
            batches=self.batches,
        )

    def _each(self, own: Mapping[str, Any], asked: Asked) -> Iterable[Asked] | None:
        """Read what each prompt asks for on its own; of a list at once, so that what is wrong is found before drawing.

        Parameters
        ----------
        own
            guardwrap's options of the call.
        asked
            What the call asks for.
        """
        given = own.get("constraint_each")
        if given is None:
            return None
        if isinstance(given, str | Constraint | Mapping) or not isinstance(given, Iterable):
            raise UsageError("constraint_each takes a list, one constraint for each prompt; constraints= holds for all")

        def asked_by(number: int, item: Any) -> Asked:
            try:
                return self._asked_by(item if isinstance(item, Own) else Own(item), own, asked)
            except (ConstraintError, UsageError) as error:
                raise UsageError(f"constraint_each[{number}]: {error}") from None

        every = itertools.starmap(asked_by, enumerate(given))
        return tuple(every) if isinstance(given, Sequence) else every

    def _asked_by(self, item: Own, own: Mapping[str, Any], asked: Asked) -> Asked:
        """Put what a prompt asks for together with what its call does: of constraints, both must hold."""
        if item.constraints is not None:
            file = as_constraint_file(item.constraints, allow_code=self._allow_code)
            if file.proposal is not None or file.adapter is not None:
                raise UsageError("prompts of one call are drawn from one proposal; give it as proposal= or adapter=")
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

    def _takes_adapter(self, own: Mapping[str, Any]) -> bool:
        given = own.get("adapter")
        return self.adapter is not None if given is None else given is not False

    def _proposal_in(self, own: Mapping[str, Any]) -> Proposal | None:
        """Read what attempts of a call are to be drawn from."""
        given = own.get("adapter")
        asked = own.get("proposal")
        proposal = self.proposal if asked is None else proposal_of(self.pipe, None if asked is False else asked)
        if not self._takes_adapter(own):
            return proposal
        if proposal is not None and not proposal.only_masks(self.pipe):
            raise UsageError(
                "attempts come from a proposal or from an adapter, not both; pass adapter=False, or no proposal="
            )
        adapter = self.adapter if given is None else adapter_of(self.pipe, given)
        return Proposal(self.pipe, None, "an adapter", adapter, None if proposal is None else proposal.masked)

    def _next_seed(self) -> int:
        call = next(self._calls)
        if self._seed is None:
            with library_lock:
                return int(torch.randint(2**63 - 1, ()).item())
        if call == 0:
            return self._seed
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{call}".encode(), digest_size=7).digest(), "big")


def _watches(own: Constraint, call: Call, stable: StablePrefix) -> Callable[[Constraint, GenerationLaw], PrefixWatch]:
    """Return what makes a prompt's watch. A part whose verdicts took too long is not asked again in this call."""
    reader = Reader(own)

    def watch(constraint: Constraint, law: GenerationLaw) -> PrefixWatch:
        its = reader if constraint is own else Reader(constraint)
        return PrefixWatch(its, partial(stable, decode=partial(call.unparsed, law)))

    return watch


def require_whole(name: str, value: int, least: int) -> int:
    """Return a whole number that is large enough, or raise UsageError."""
    if not is_count(value) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")
    return value
