"""One call, ready to be served: it makes requests of prompts and has a scheduler serve them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Sized
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.refill.decode import RefillBackend
from guardwrap.backends.refill.mode_selection import select_rows
from guardwrap.backends.transformers_loop import GenerateBackend
from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.early_abort import PrefixWatch
from guardwrap.pipelines.masking import ConstraintMask
from guardwrap.pipelines.messages import WHOLE_MESSAGE
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.proposal_draws import require_weighable
from guardwrap.pipelines.vocabulary import Vocabulary
from guardwrap.proposals import Masked
from guardwrap.samplers import Sampler
from guardwrap.scheduling.backend import Backend
from guardwrap.scheduling.batch import Batches, OnBusy
from guardwrap.scheduling.request import OnEnd, OnText, Request, Weigh
from guardwrap.scheduling.scheduler import WINDOW, Scheduler

__all__ = ["Job", "RequestOptions", "backend_for"]


@dataclass(frozen=True)
class RequestOptions:
    """What a prompt asks for, as a Request has it.

    Parameters
    ----------
    constraint, sampler, budget, seed
        As a Request has them.
    place
        The prompt's number in its call, for randomness; None for the one that it has.
    """

    constraint: Constraint
    sampler: Sampler
    budget: Budget
    seed: int
    place: int | None = None


@dataclass(frozen=True)
class Job:
    """One call, ready to be served.

    Parameters
    ----------
    call
        Reads its prompts and renders its texts: a ``Call``, or one of an endpoint.
    asked
        What each prompt asks for, unless ``each`` says so.
    batch_size
        Attempts side by side, at most.
    model
        What draws tokens: the model itself, or that of the proposal.
    watches
        Makes the watch of a constraint and a prompt, which judges running attempts; None without early abort.
    masked
        The proposal, where it is a masked one.
    vocabulary
        What each token adds to a text, where the proposal is masked and that is known.
    notes, of_weights
        For the reports; the latter for those of samplers that weigh.
    proposal
        From a constraint and a prompt to words for what attempts are drawn from; None for the model itself.
    weigh
        Computes log-weights, for samplers that ask for them.
    causal
        Whether the model continues its prompts, so that our own loop draws from it.
    each
        What the prompts ask for, one for each.
    batches
        Where it joins the calls that are under way; None for a batch of its own.
    on_text, on_end
        As a Request has them.
    on_busy
        As ``Batches.aserve`` takes it.
    """

    call: Any
    asked: RequestOptions
    batch_size: int
    model: Any
    watches: Callable[[Constraint, GenerationLaw], PrefixWatch] | None = None
    masked: Masked | None = None
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()
    of_weights: tuple[str, ...] = ()
    proposal: Callable[[Constraint, Any], str] | None = None
    weigh: Weigh | None = None
    causal: bool = False
    each: Iterable[RequestOptions] | None = None
    batches: Batches | None = None
    on_text: OnText | None = None
    on_end: OnEnd | None = None
    on_busy: OnBusy | None = None

    def requests(self, prompts: Iterable[Any], *, first: int = 0) -> Iterator[Request]:
        """Prepare prompts, one by one as they are taken, and make requests of them.

        Parameters
        ----------
        prompts
            As ``Call.read_prompts`` returns them.
        first
            Number of the first one.

        Raises
        ------
        UsageError
            If there are more or fewer prompts than entries of ``each``: at once, where both numbers are known.
        """
        numbered = enumerate(prompts, start=first)
        if self.each is None:
            return map(self.request, self.call.prompts(numbered, self.batch_size))
        if isinstance(prompts, Sized) and isinstance(self.each, Sized) and len(prompts) != len(self.each):
            raise UsageError(f"{_ONE_EACH}; there are {len(self.each)} of them, and {len(prompts)} prompts")
        asked: deque[RequestOptions] = deque()
        prepared = self.call.prompts(_side_by_side(numbered, self.each, asked), self.batch_size)
        return (self.request(prompt, asked.popleft()) for prompt in prepared)

    def requests_of(self, prompts: Iterable[PreparedPrompt]) -> Iterator[Request]:
        """Make requests of prompts that are prepared, as ``requests`` does."""
        if self.each is None:
            return map(self.request, prompts)
        asked: deque[RequestOptions] = deque()
        return (self.request(prompt, asked.popleft()) for prompt in _side_by_side(prompts, self.each, asked))

    def request(self, prompt: PreparedPrompt, asked: RequestOptions | None = None) -> Request:
        """Make a request of a prompt.

        Parameters
        ----------
        prompt
            The prompt.
        asked
            What it asks for; None for what the call does.

        Raises
        ------
        UsageError
            If its attempts cannot be weighed, and the sampler asks for that.
        """
        asked = asked or self.asked
        if asked.sampler.weighs:
            prompt = require_weighable(prompt)
        parsed = self.call.parsed(prompt)  # nothing is known of a message before it is whole
        watch = None if parsed or self.watches is None else self.watches(asked.constraint, prompt.law)
        mask = lookahead = None
        if watch is not None:
            unseen = 0.0 if self.masked is None else self.masked.unseen
            draw = partial(self.call.draw, prompt)
            lookahead = ConstraintMask(watch, prompt.law, asked.constraint, draw, unseen, self.vocabulary)
            mask = None if self.masked is None else lookahead
        weigh = self.weigh if asked.sampler.weighs else None
        notes = (*prompt.law.notes, *((WHOLE_MESSAGE,) if parsed else ()))
        return self._request(prompt, asked, notes, watch=watch, mask=mask, lookahead=lookahead, weigh=weigh)

    def _request(self, prompt: Any, asked: RequestOptions, notes: tuple[str, ...] = (), **how: Any) -> Request:
        """Make a request of a prompt that asks for this; ``how`` is what depends on where its attempts come from."""
        return Request(
            prompt=prompt,
            constraint=asked.constraint,
            sampler=asked.sampler,
            budget=asked.budget,
            seed=asked.seed,
            place=asked.place,
            draw_of=self.call.draw,
            notes=(*self.notes, *(self.of_weights if asked.sampler.weighs else ()), *notes),
            proposal=None if self.proposal is None else self.proposal(asked.constraint, prompt.given),
            on_text=self.on_text,
            on_end=self.on_end,
            **how,
        )

    def records(self, prompt: PreparedPrompt, outcome: Outcome) -> Any:
        """Render an outcome as the pipeline would, with None for texts that are missing."""
        others = outcome.texts[len(outcome.draws) :]
        missing = outcome.report.requested - len(outcome.texts)
        return self.call.records(prompt, [draw.token_ids for draw in outcome.draws], [*others, *[None] * missing])

    def backend(self) -> Backend:
        """Make the backend that draws its attempts."""
        return backend_for(self.model, self.batch_size) if self.causal else GenerateBackend(self.batch_size)

    def served(
        self, requests: Iterator[Request], *, alone: bool = False
    ) -> Iterator[tuple[PreparedPrompt, Constraint, Outcome]]:
        """Serve requests, and yield each prompt with its constraint and its outcome, in their order.

        Parameters
        ----------
        requests
            As ``requests`` returns them.
        alone
            Whether they are served in a batch of their own. In one with others they may be taken in another thread, and
            where taking one waits for something, others would wait too.
        """
        window = WINDOW * self.batch_size
        if alone or self.batches is None or not self.causal:
            served = Scheduler(self.backend()).serve(requests, window=window)
        else:
            served = self.batches.serve(self._key, self.backend, requests, window=window)
        for request, outcome in served:
            prompt: Any = request.prompt
            yield prompt, request.constraint, outcome

    async def aserved(
        self, requests: Iterator[Request]
    ) -> AsyncGenerator[tuple[PreparedPrompt, Constraint, Outcome], None]:
        """Serve requests as ``served`` does, without blocking the event loop."""
        batches = self.batches or Batches()
        async with aclosing(
            batches.aserve(self._key, self.backend, requests, window=WINDOW * self.batch_size, on_busy=self.on_busy)
        ) as served:
            async for request, outcome in served:
                prompt: Any = request.prompt
                yield prompt, request.constraint, outcome

    @property
    def _key(self) -> Hashable:
        return id(self.model), self.batch_size, self.causal


_ONE_EACH = "constraint_each takes one constraint for each prompt"
_Item = TypeVar("_Item")


def _side_by_side(
    prompts: Iterable[_Item], each: Iterable[RequestOptions], asked: deque[RequestOptions]
) -> Iterator[_Item]:
    """Yield prompts, and put down what each asks for."""
    others = iter(each)
    for prompt in prompts:
        own = next(others, None)
        if own is None:
            raise UsageError(f"{_ONE_EACH}; there are more prompts")
        asked.append(own)
        yield prompt
    if next(others, None) is not None:
        raise UsageError(f"{_ONE_EACH}; there are fewer prompts")


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
