"""What a wrapper asks for, whatever it draws from: constraint, sampler, budget, seed; its own and those of a call."""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from guardwrap.budget import Budget, budget_or_none
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.coerce import PerPromptOptions, as_constraint_file
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.environment.transformers_internals import library_lock
from guardwrap.errors import ConstraintError, UsageError, require_whole
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.calls import CALL_OPTIONS
from guardwrap.pipelines.prompt_forms import PromptReader
from guardwrap.proposals import merge_proposals
from guardwrap.samplers import Attempt, Sampler, collecting, sampler_named
from guardwrap.scheduling.batch import Batches
from guardwrap.session.job import Job, RequestOptions

__all__ = ["BATCH_SIZE", "BaseSession", "SessionConfig"]

BATCH_SIZE = 32
"""Attempts side by side, at most, where nothing says how many."""


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Defaults of a session's calls. ``GuardedGenerator`` documents its parameters of the same names.

    Parameters
    ----------
    tokenizer
        Tokenizer of a model that is given as an object.
    sampler, proposal, adapter, budget
        What replaces the constraint file's sampler, proposal, adapter and budget; None for those.
    batch_size
        Most attempts in flight; None for the pipeline's own, or 32.
    seed
        Seed of the first call; None for one from torch's global generator per call.
    allow_code
        Whether constraint files may name Python functions.
    """

    tokenizer: Any = None
    sampler: str | Sampler | None = None
    proposal: Any = None
    adapter: Any = None
    budget: Budget | None = None
    batch_size: int | None = None
    seed: int | None = None
    allow_code: bool = False


class BaseSession(ABC):
    """The defaults of calls, and how the options of a call replace them.

    Parameters
    ----------
    constraints
        Constraint, constraints or constraint file, as ``GuardedGenerator`` takes them.
    config
        Defaults of the calls.

    Attributes
    ----------
    file : ConstraintFile
        What was given as constraints.
    constraint, sampler, budget
        The defaults of a call.
    batches : Batches
        Where calls that run side by side share a batch.
    """

    batch_size: int
    """Attempts side by side, at most."""

    call_class: type[PromptReader]
    """Class of its calls: it reads prompts, and renders what is returned."""

    def __init__(
        self,
        constraints: Any,
        config: SessionConfig,
    ) -> None:
        self.file = file = as_constraint_file(constraints, allow_code=config.allow_code)
        self._allow_code = config.allow_code
        self.constraint = file.constraint
        in_file = "rejection" if file.sampler is None else sampler_named(file.sampler, file.source)
        self.sampler = sampler_named(in_file if config.sampler is None else config.sampler)
        self.budget = budget_or_none(config.budget) or file.budget or Budget()
        self._seed = None if config.seed is None else require_whole("seed", config.seed, 0)
        self._calls = itertools.count()
        self.batches = Batches()

    @abstractmethod
    def job(self, options: Mapping[str, Any]) -> Job:
        """Read the options of a call.

        Raises
        ------
        UsageError
            If one is unknown, or they do not go together.
        """

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
        **options: Any,
    ) -> tuple[list[Outcome], list[list[Attempt]]]:
        """Draw a fixed number of attempts for each prompt.

        Returns
        -------
        list of Outcome
            What they cost. They have no texts: nothing is accepted.
        list of list of Attempt
            As ``attempts`` returns them.
        """
        collector, found = collecting(weigh, on_attempt)
        budget = Budget(max_attempts=require_whole("count", count, 1))
        if isinstance(each := options.get("constraint_each"), list | tuple):
            own = [
                replace(one, sampler=None, budget=None) if isinstance(one, PerPromptOptions) else one for one in each
            ]
            options["constraint_each"] = own
        prompts, options = self.call_class.with_named_inputs(prompts, options)
        given = list(self.call_class.read_prompts(prompts).prompts)
        job = self.job({**options, "sampler": collector, "budget": budget, "num_return_sequences": count})
        return [outcome for _, _, outcome in job.served(job.requests(given))], found

    def budgets(self, count: int, options: Mapping[str, Any]) -> list[Budget]:
        """Return the budgets of so many prompts of a call."""
        own, _ = self._read(options)
        asked = self._asked({**own, "seed": 0})
        each = self._each(own, asked)
        return [asked.budget] * count if each is None else [one.budget for one in each]

    def _read(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tell guardwrap's options of a call from those of the pipeline, and read the constraints among them."""
        own = {name: value for name, value in options.items() if name in CALL_OPTIONS}
        # Prompts are tokenized one by one, without the pipeline's data loader.
        rest = {name: value for name, value in options.items() if name not in (*CALL_OPTIONS, "num_workers")}
        if own.get("constraints") is not None:
            file = own["constraints"] = as_constraint_file(own["constraints"], allow_code=self._allow_code)
            said = own.get("proposal"), own.get("adapter")
            own["proposal"], own["adapter"] = merge_proposals(said, (file.proposal, file.adapter))
        return own, rest

    def _asked(self, own: Mapping[str, Any]) -> RequestOptions:
        """Fill guardwrap's options of a call up with the defaults."""
        constraint, sampler, budget = self.constraint, self.sampler, self.budget
        if own.get("constraints") is not None:
            given: ConstraintFile = own["constraints"]
            constraint, budget = given.constraint, given.budget or budget
            sampler = sampler if given.sampler is None else sampler_named(given.sampler, given.source)
        if own.get("sampler") is not None:
            sampler = sampler_named(own["sampler"])
        budget = budget_or_none(own.get("budget")) or budget
        seed = self._next_seed() if own.get("seed") is None else require_whole("seed", own["seed"], 0)
        return RequestOptions(constraint, sampler, budget, seed)

    def _each(self, own: Mapping[str, Any], asked: RequestOptions) -> Iterable[RequestOptions] | None:
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

        def asked_by(number: int, item: Any) -> RequestOptions:
            try:
                return self._asked_by(
                    item if isinstance(item, PerPromptOptions) else PerPromptOptions(item), own, asked
                )
            except (ConstraintError, UsageError) as error:
                raise UsageError(f"constraint_each[{number}]: {error}") from None

        every = itertools.starmap(asked_by, enumerate(given))
        return tuple(every) if isinstance(given, Sequence) else every

    def _asked_by(self, item: PerPromptOptions, own: Mapping[str, Any], asked: RequestOptions) -> RequestOptions:
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

    def _size(self, own: Mapping[str, Any]) -> int:
        """Read how many attempts of a call are drawn side by side."""
        return self.batch_size if own.get("batch_size") is None else require_whole("batch_size", own["batch_size"], 1)

    def _next_seed(self) -> int:
        call = next(self._calls)
        if self._seed is None:
            with library_lock:
                return int(torch.randint(2**63 - 1, ()).item())
        if call == 0:
            return self._seed
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{call}".encode(), digest_size=7).digest(), "big")
