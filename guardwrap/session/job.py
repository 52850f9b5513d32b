"""One call, ready to run: makes requests from prompts and has a scheduler serve them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Sequence, Sized
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.environment.progress import Teller
from guardwrap.errors import ContextExceeded, UsageError
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.samplers import collecting
from guardwrap.scheduling.backend import Backend, TokenTwist
from guardwrap.scheduling.batch import Batches, OnBusy
from guardwrap.scheduling.randomness import seed_for
from guardwrap.scheduling.request import Hooks, RejectedAttempt, Request, Spec
from guardwrap.scheduling.request_state import RequestState
from guardwrap.scheduling.scheduler import WINDOW, Scheduler
from guardwrap.session.call_threads import CallThreads
from guardwrap.session.fallback import OnExhausted
from guardwrap.session.repair import Repair
from guardwrap.session.source import Source
from guardwrap.session.telemetry import CallSpan, traced_by, work_span
from guardwrap.session.twisting import PROMPTS, Learned, Spent


@dataclass(frozen=True)
class Job:
    """One call, ready to run."""

    spec: Spec  # what is asked for every prompt, unless ``each`` asks something else of one
    source: Source  # where attempts come from
    batch_size: int  # the most attempts drawn in parallel
    batches: Batches  # those that concurrent calls share
    threads: CallThreads  # where calls in event loops learn
    each: Iterable[Spec] | None = None  # what is asked for each prompt, in order; None if it is the same for all
    on_exhausted: OnExhausted = "raise"  # what to do about texts that are missing in the end
    repair: Repair | None = None  # repair turns for prompts whose budget ended; None for none
    hooks: Hooks = field(default_factory=Hooks)  # whom the call tells what happens
    span: CallSpan | None = None  # the span of the call, which gets every outcome; None if nobody traces it
    called: float = field(default_factory=time.monotonic)  # when the call was made, by ``time.monotonic()``
    tells: Teller | None = None  # says how the call is getting on if it takes long; None for a silent call
    # called with True when the call joins the batch, and with False once nothing more is computed for it
    on_busy: OnBusy | None = None

    @property
    def call(self) -> Any:
        """What reads prompts and renders texts: a ``Call`` or an ``EndpointCall``."""
        return self.source.call

    def requests(self, prompts: Iterable[Any], *, first: int = 0) -> Iterator[Request]:
        """Prepare prompts and make requests from them, lazily."""
        numbered = enumerate(prompts, start=first)
        most = PROMPTS if isinstance(prompts, Sized) else 1  # further prompts may not have come yet
        if self.each is None:
            return map(self.request, self._learned(self.call.prompts(numbered, self.batch_size), most))
        if isinstance(prompts, Sized) and isinstance(self.each, Sized) and len(prompts) != len(self.each):
            raise UsageError(f"{_ONE_EACH}; its length is {len(self.each)}, the number of prompts {len(prompts)}")
        asked: deque[Spec] = deque()
        prepared = self._learned(self.call.prompts(_side_by_side(numbered, self.each, asked), self.batch_size), most)
        return (self.request(prompt, asked.popleft()) for prompt in prepared)

    async def arequests(self, prompts: Iterable[Any]) -> Iterator[Request]:
        """Make requests like ``requests``, without blocking the event loop while a twist is learned."""
        if not self.learns:
            return self.requests(prompts)
        again = isinstance(prompts, Sized) and (self.each is None or isinstance(self.each, Sized))
        try:
            return await self.threads.learn(
                lambda: self.requests(prompts), self.on_busy, self.seconds_left if again else None
            )
        except TimeoutError:  # other calls learned, and the requests now end at once
            return await self.threads.run(lambda: self.requests(prompts))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the timeout of the call, negative after it; None without a timeout."""
        timeout = self.spec.budget.timeout
        return None if timeout is None else self.called + timeout - time.monotonic()

    def requests_of(self, prompts: Iterable[PreparedPrompt]) -> Iterator[Request]:
        """Make requests from prompts that are already prepared."""
        if self.each is None:
            return map(self.request, self._learned(prompts))
        asked: deque[Spec] = deque()
        prepared = self._learned(_side_by_side(prompts, self.each, asked))
        return (self.request(prompt, asked.popleft()) for prompt in prepared)

    @property
    def learns(self) -> bool:
        """Whether ``requests`` draws attempts, to learn the values of a twist."""
        twists = self.source.twists
        return twists is not None and not twists.constraint.learned

    def _learned(self, prompts: Iterable[PreparedPrompt], most: int = PROMPTS) -> Iterable[PreparedPrompt]:
        """Learn the values of a twist from the first prompts, unless they are known."""
        twists = self.source.twists
        if twists is None or twists.constraint.learned:
            return prompts
        prompts = iter(prompts)
        first = list(islice(prompts, most))
        if first:
            with work_span("guardwrap.learn_twist", traced_by(self.span), {"guardwrap.prompts": len(first)}) as results:
                costs = twists.constraint.learn(first, self._attempts, lambda: self.seconds_left)
                attempts, computed, _ = Spent.total(costs)
                results |= {"guardwrap.attempts": attempts, "guardwrap.computed_tokens": computed}
            first = [replace(prompt, learning=cost.usage) for prompt, cost in zip(first, costs, strict=True)]
        return chain(first, prompts)

    def _attempts(
        self, prompts: Sequence[PreparedPrompt], twists: Sequence[TokenTwist], count: int, seed: int
    ) -> Learned:
        """Draw attempts that are not returned, ``count`` for each prompt."""
        sampler, attempts = collecting(weigh=False)
        seconds, twisted = self.spec.budget.max_seconds, self.source.twists
        if seconds is not None and twisted is not None:  # learning takes at most as long as the call itself may
            seconds *= count * len(prompts) / sum(twisted.constraint.sizes)
        budget = Budget(count, max_seconds=seconds, timeout=self.spec.budget.timeout)
        spec = replace(self.spec, sampler=sampler, budget=budget, seed=seed)
        # weighed by what the twist notes, also where a cannot be computed afterwards
        weighing = replace(spec, sampler=sampler._replace(weighs=True))
        hooks = Hooks(on_progress=self._lessons(len(prompts)))
        plain = replace(self, source=replace(self.source, twists=None))
        requests = []
        for prompt, twist in zip(prompts, twists, strict=True):
            request = plain.request(replace(prompt, law=replace(prompt.law, count=count)), spec)
            drawing = replace(request.drawing, twist=twist, lookahead=None)
            requests.append(replace(request, spec=weighing, drawing=drawing, hooks=hooks))
        served = Scheduler(self._backend()).serve(iter(requests), window=len(requests))
        computed = [outcome.report.usage.computed_tokens for _, outcome in served]
        return Learned([Spent(*each) for each in zip(map(len, attempts), computed, strict=True)], attempts)

    def _progress(self, state: RequestState) -> None:
        """Say how a request is getting on."""
        if self.tells is not None:
            self.tells(state.outlook)

    def _lessons(self, prompts: int) -> Callable[[RequestState], None] | None:
        """Return what says how learning from attempts for some prompts is getting on."""
        tells, twists = self.tells, self.source.twists
        if tells is None or twists is None:
            return None
        before, most = twists.constraint.spent.attempts, sum(twists.constraint.sizes)
        return lambda state: tells(
            lambda: f"learning a twist, {before + prompts * state.attempts:,} of up to {most:,} attempts"
        )

    def request(self, prompt: PreparedPrompt, spec: Spec | None = None) -> Request:
        """Make a request from a prepared prompt."""
        spec = spec or self.spec
        if self.source.twists is not None and spec.constraint.digest != self.spec.constraint.digest:
            raise UsageError(_ONE_TWIST)
        repairs = self.repair is not None and not spec.sampler.records
        if self.repair is not None and repairs:
            self.repair.require_prompt(prompt.given)
        prompt, drawing = self.source.drawing(prompt, spec, self.span)
        silent = self.tells is None or spec.sampler.records
        hooks = self.hooks if silent else replace(self.hooks, on_progress=self._progress)
        follow_up = partial(self._repair_turn, spec, 1) if repairs else None
        return Request(prompt, spec, drawing, hooks, self.called, follow_up)

    def _repair_turn(
        self, spec: Spec, turn: int, request: Request, outcome: Outcome, rejected: RejectedAttempt
    ) -> Request | None:
        """Make the request of a repair turn for the texts that an outcome lacks; None if there is no further turn.

        There is none either if the longer chat does not fit into the model's context. Its seed is another one: the
        first turn's random numbers are known to give rejected attempts.
        """
        if self.repair is None or turn > self.repair.max_turns or outcome.report.ended in _FINAL:
            return None
        number = request.prompt.number
        given = self.call.one_prompt(self.repair.next_prompt(request.prompt.given, rejected), number)
        try:
            (prompt,) = self.call.prompts([(number, given)], 1)
        except ContextExceeded:
            return None
        if self.call.fits(request.prompt) and not self.call.fits(prompt):
            return None
        spec = replace(spec, seed=seed_for(spec.seed, "repair"))
        following = self.request(prompt, spec)
        follow_up = partial(self._repair_turn, spec, turn + 1)
        return replace(following, follow_up=follow_up, earlier=(request.first, outcome))

    def served(
        self, requests: Iterator[Request], *, alone: bool = False
    ) -> Iterator[tuple[PreparedPrompt, Constraint, Outcome]]:
        """Serve requests. Yields each prompt with its constraint and outcome, in the order of the requests.

        ``alone``: whether to use a batch of its own. In a shared batch another thread may consume ``requests``, and
        an iterator that blocks would block other calls.
        """
        window = WINDOW * self.batch_size
        if alone or not self.source.shares:
            served = Scheduler(self._backend()).serve(requests, window=window)
        else:
            served = self.batches.serve(self._key, self._backend, requests, window=window)
        for request, outcome in served:
            prompt: Any = request.prompt
            yield prompt, request.spec.constraint, outcome

    async def aserved(
        self, requests: Iterator[Request]
    ) -> AsyncGenerator[tuple[PreparedPrompt, Constraint, Outcome], None]:
        """Serve requests like ``served``, without blocking the event loop."""
        window = WINDOW * self.batch_size
        batch = self.batches.aserve(self._key, self._backend, requests, window=window, on_busy=self.on_busy)
        async with aclosing(batch) as served:
            async for request, outcome in served:
                prompt: Any = request.prompt
                yield prompt, request.spec.constraint, outcome

    @property
    def _key(self) -> Hashable:
        return id(self.source.model), self.batch_size

    def _backend(self) -> Backend:
        return self.source.backend(self.batch_size)


_FINAL = ("deadline", "error", "impossible", "timeout")
"""Ends of a request that no repair turn follows."""

_ONE_TWIST = "Twisted() is learned for one constraint; leave out the constraints of single prompts, or Twisted()"
_ONE_EACH = "constraint_each and fields take one item per prompt"
_Item = TypeVar("_Item")


def _side_by_side(prompts: Iterable[_Item], each: Iterable[Spec], asked: deque[Spec]) -> Iterator[_Item]:
    """Yield prompts, and append the options of each to ``asked``."""
    remaining = iter(each)
    for prompt in prompts:
        prompt_options = next(remaining, None)
        if prompt_options is None:
            raise UsageError(f"{_ONE_EACH}; there are more prompts than items")
        asked.append(prompt_options)
        yield prompt
    if next(remaining, None) is not None:
        raise UsageError(f"{_ONE_EACH}; there are fewer prompts than items")
