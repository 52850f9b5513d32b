"""One call, ready to be served: it makes requests of prompts and has a scheduler serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from guardwrap.backends.generate import GenerateBackend
from guardwrap.backends.law import GenerationLaw
from guardwrap.backends.refill.decode import RefillBackend
from guardwrap.backends.refill.selftest import select_rows
from guardwrap.constraints.base import Constraint
from guardwrap.draws import Budget, Outcome
from guardwrap.pipelines.calls import Call
from guardwrap.pipelines.masking import Mask
from guardwrap.pipelines.prefix import PrefixWatch
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.proposed import require_weighable
from guardwrap.proposals import Masked
from guardwrap.samplers import Sampler
from guardwrap.scheduling.backend import Backend
from guardwrap.scheduling.request import Request, Weigh
from guardwrap.scheduling.scheduler import WINDOW, Scheduler, in_order

__all__ = ["Job", "backend_for"]


@dataclass(frozen=True)
class Job:
    """One call, ready to be served.

    Parameters
    ----------
    call
        Reads its prompts and renders its texts.
    constraint, sampler, budget, seed
        As a Request has them, for all of its prompts.
    batch_size
        Attempts side by side, at most.
    model
        What draws tokens: the model itself, or that of the proposal.
    watches
        Makes the watch of a prompt, which judges its running attempts; None where there is no early abort.
    masked
        The proposal, where it is a masked one.
    notes
        For the reports.
    proposal
        In words, what attempts are drawn from; None for the model itself.
    weigh
        Computes log-weights, for samplers that ask for them.
    causal
        Whether the model continues its prompts, so that our own loop draws from it.
    """

    call: Call
    constraint: Constraint
    sampler: Sampler
    budget: Budget
    seed: int
    batch_size: int
    model: Any
    watches: Callable[[GenerationLaw], PrefixWatch] | None = None
    masked: Masked | None = None
    notes: tuple[str, ...] = ()
    proposal: str | None = None
    weigh: Weigh | None = None
    causal: bool = False

    def requests(self, prompts: Iterable[Any], *, first: int = 0) -> Iterator[Request]:
        """Prepare prompts, one by one as they are taken, and make requests of them.

        Parameters
        ----------
        prompts
            As ``Call.read_prompts`` returns them.
        first
            Number of the first one.
        """
        return map(self.request, self.call.prompts(enumerate(prompts, start=first), self.batch_size))

    def request(self, prompt: PreparedPrompt) -> Request:
        """Make a request of a prompt.

        Raises
        ------
        UsageError
            If its attempts cannot be weighed, and the sampler asks for that.
        """
        if self.sampler.weighs:
            prompt = require_weighable(prompt)
        watch = None if self.watches is None else self.watches(prompt.law)
        mask = lookahead = None
        if watch is not None:
            unseen = 0.0 if self.masked is None else self.masked.unseen
            lookahead = Mask(watch, prompt.law, self.constraint, partial(self.call.draw, prompt), unseen)
            mask = None if self.masked is None else lookahead
        return Request(
            prompt=prompt,
            constraint=self.constraint,
            sampler=self.sampler,
            budget=self.budget,
            seed=self.seed,
            draw_of=self.call.draw,
            watch=watch,
            mask=mask,
            lookahead=lookahead,
            notes=self.notes,
            proposal=self.proposal,
            weigh=self.weigh,
        )

    def records(self, prompt: PreparedPrompt, outcome: Outcome) -> Any:
        """Render an outcome as the pipeline would, with None for texts that are missing."""
        others = outcome.texts[len(outcome.draws) :]
        missing = outcome.report.requested - len(outcome.texts)
        return self.call.records(prompt, [draw.token_ids for draw in outcome.draws], [*others, *[None] * missing])

    def backend(self) -> Backend:
        """Make the backend that draws its attempts."""
        return backend_for(self.model, self.batch_size) if self.causal else GenerateBackend(self.batch_size)

    def served(self, requests: Iterator[Request]) -> Iterator[tuple[PreparedPrompt, Outcome]]:
        """Serve requests, and yield each prompt with its outcome, in their order."""
        scheduler = Scheduler(self.backend(), requests, window=WINDOW * self.batch_size)
        for request, outcome in in_order(scheduler):
            prompt: Any = request.prompt
            yield prompt, outcome


def backend_for(model: Any, size: int) -> Backend:
    """Make the backend that draws from a causal model.

    Parameters
    ----------
    model
        The model.
    size
        Attempts side by side, at most.
    """
    return RefillBackend(partial(select_rows(model), model), size)
