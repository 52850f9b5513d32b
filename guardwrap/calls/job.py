"""One call, ready to run: makes requests from prompts, has a scheduler serve them, and delivers the outcomes."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from guardwrap.budget import Budget
from guardwrap.calls.missing_texts import OnExhausted, Repair, completed, raise_if_short
from guardwrap.calls.source import LocalSource, Source
from guardwrap.calls.telemetry import CallSpan, traced_by, work_span
from guardwrap.calls.twisting import PROMPTS, Learned, Spent
from guardwrap.engine.scheduling.backend import Backend, TokenTwist
from guardwrap.engine.scheduling.randomness import seed_for
from guardwrap.engine.scheduling.request import Hooks, OnBusy, OnOutcome, RejectedAttempt, Request, Spec
from guardwrap.engine.scheduling.scheduler import WINDOW, Scheduler
from guardwrap.errors import ContextExceeded, GuardwrapError, UsageError
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.outcomes import Outcome
from guardwrap.samplers import Sampler, collecting
from guardwrap.samplers.shares import with_shares
from guardwrap.support.process import tracked

if TYPE_CHECKING:
    from guardwrap.calls.base_session import BaseSession

PLANS = 4
"""Plans at a time. Most take 8 to 64 attempts, and would wait for one of a rare rule that takes 1 000."""

_FINAL = ("deadline", "error", "impossible", "timeout")
"""Ends of a request that no repair turn follows."""

_ONE_TWIST = "Twisted() is learned for one constraint; leave out the constraints of single prompts, or Twisted()"
_ONE_EACH = "constraint_each and fields take one item per prompt"

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Job:
    """One call, ready to run."""

    session: BaseSession
    spec: Spec  # what is asked for every prompt, unless ``each`` asks something else of one
    source: Source  # where attempts come from
    batch_size: int  # the most attempts drawn in parallel
    each: Iterable[Spec] | None = None  # what is asked for each prompt, in order; None if it is the same for all
    on_exhausted: OnExhausted = "raise"  # what to do about texts that are missing in the end
    repair: Repair | None = None  # repair turns for prompts whose budget ended; None for none
    hooks: Hooks = field(default_factory=Hooks)  # whom the call tells what happens
    span: CallSpan | None = None  # the span of the call, which gets every outcome; None if nobody traces it
    called: float = field(default_factory=time.monotonic)  # when the call was made, by ``time.monotonic()``

    @property
    def call(self) -> Any:
        """What reads prompts and renders texts: a ``Call`` or an ``EndpointCall``."""
        return self.source.call

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the timeout of the call, negative after it; None without a timeout."""
        timeout = self.spec.budget.timeout
        return None if timeout is None else self.called + timeout - time.monotonic()

    def budgets(self, count: int) -> list[Budget]:
        """Return the budgets of the first ``count`` prompts."""
        return [spec.budget for spec in self.specs(count)]

    def specs(self, count: int) -> list[Spec]:
        """Return what is asked for each of the first ``count`` prompts."""
        return [self.spec] * count if self.each is None else list(self.each)

    def requests(self, prompts: Iterable[Any], *, first: int = 0) -> Iterator[Request]:
        """Prepare prompts and make requests from them, lazily."""
        numbered = enumerate(prompts, start=first)
        most = PROMPTS if isinstance(prompts, Sized) else 1  # further prompts may not have come yet
        if self.each is None:
            return map(self.request, self._learned(self.call.prompts(numbered, self.batch_size), most))
        if isinstance(prompts, Sized) and isinstance(self.each, Sized) and len(prompts) != len(self.each):
            raise UsageError(f"{_ONE_EACH}; its length is {len(self.each)}, the number of prompts {len(prompts)}")
        each: Iterator[Spec] = map(self._twistable, self.each)
        if isinstance(self.each, Sized):  # all are looked at before a twist is learned
            each = iter([*each])
        asked: deque[Spec] = deque()
        prepared = self._learned(self.call.prompts(_side_by_side(numbered, each, asked), self.batch_size), most)
        return (self.request(prompt, asked.popleft()) for prompt in prepared)

    async def arequests(self, prompts: Iterable[Any]) -> Iterator[Request]:
        """Make requests like ``requests``, without blocking the event loop while a twist is learned."""
        if self.source.twists is None or self.source.twists.constraint.learned:
            return self.requests(prompts)
        again = isinstance(prompts, Sized) and (self.each is None or isinstance(self.each, Sized))
        threads, seconds = self.session.threads, self.seconds_left if again else None
        try:
            return await threads.learn(lambda: self.requests(prompts), self.hooks.on_busy, seconds)
        except TimeoutError:  # other calls learned, and the requests now end at once
            return await threads.run(lambda: self.requests(prompts))

    def _learned(self, prompts: Iterable[PreparedPrompt], most: int) -> Iterable[PreparedPrompt]:
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
        """Draw attempts that are not returned, ``count`` for each prompt, to learn the values of a twist."""
        assert isinstance(self.source, LocalSource)
        assert self.source.twists is not None
        twisted, tells = self.source.twists.constraint, self.hooks.tells
        before, most = twisted.spent.attempts, sum(twisted.sizes)

        def tell() -> None:
            if tells is not None:
                done = before + sum(map(len, attempts))
                tells(lambda: f"learning a twist, {done:,} of up to {most:,} attempts")

        sampler, attempts = collecting(False, tell)
        seconds = self.spec.budget.max_seconds
        if seconds is not None:  # learning takes at most as long as the call itself may
            seconds *= count * len(prompts) / most
        budget = Budget(count, max_seconds=seconds, timeout=self.spec.budget.timeout)
        spec = replace(self.spec, sampler=sampler, budget=budget, seed=seed)
        # weighed by what the twist notes, also where a cannot be computed afterwards
        weighing = replace(spec, sampler=sampler._replace(weighs=True))
        plain = replace(self, source=replace(self.source, twists=None), hooks=Hooks())
        requests = []
        for prompt, twist in zip(prompts, twists, strict=True):
            request = plain.request(replace(prompt, law=replace(prompt.law, count=count)), spec)
            drawing = replace(request.drawing, twist=twist, lookahead=None)
            requests.append(replace(request, spec=weighing, drawing=drawing))
        served = Scheduler(self._backend()).serve(iter(requests), window=len(requests))
        computed = [outcome.report.usage.computed_tokens for _, outcome in served]
        return Learned([Spent(*cost) for cost in zip(map(len, attempts), computed, strict=True)], attempts)

    def _twistable(self, spec: Spec) -> Spec:
        """Return what is asked for a prompt, or raise UsageError if a twist is learned for another constraint."""
        if self.source.twists is not None and spec.constraint.digest != self.spec.constraint.digest:
            raise UsageError(_ONE_TWIST)
        return spec

    def request(self, prompt: PreparedPrompt, spec: Spec | None = None) -> Request:
        """Make a request from a prepared prompt."""
        spec = spec or self.spec
        if spec.shares:
            spec = replace(spec, sampler=self._sampler_of(spec, prompt))
        hooks = replace(self.hooks, tells=None) if spec.sampler.records else self.hooks
        follow_up = None
        if self.repair is not None and not spec.sampler.records:
            self.repair.require_prompt(prompt.given)
            follow_up = partial(self._repair_turn, spec, 1)
        prompt, drawing = self.source.drawing(prompt, spec, self.span)
        if hooks.whole_rejected and drawing.mask is None:
            drawing = replace(drawing, watch=None, lookahead=None, settled=None)
        return Request(prompt, spec, drawing, hooks, self.called, follow_up)

    def _sampler_of(self, spec: Spec, prompt: PreparedPrompt) -> Sampler:
        """Return the sampler of a prompt's texts with shares; one that only records attempts gets their features."""
        if spec.sampler.records:
            return spec.sampler._replace(features=tuple(share.of for share in spec.shares))
        if prompt.law.mode != "sample":
            raise UsageError("greedy and beam search draw no texts, so they have no shares; pass do_sample=True")
        if self.repair is not None:
            raise UsageError("a repair turn draws texts one by one, so it cannot keep shares; leave out one of them")
        return with_shares(spec.sampler, spec.shares, prompt.law.count)

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

    def served(self, requests: Iterator[Request], *, alone: bool = False) -> Iterator[tuple[Request, Outcome]]:
        """Serve requests. Yields each with its outcome, in the order of the requests.

        ``alone``: whether to use a batch of its own. In a shared batch another thread may consume ``requests``, and
        an iterator that blocks would block other calls.
        """
        window = WINDOW * self.batch_size
        if alone or not self.source.causal:
            return Scheduler(self._backend()).serve(requests, window=window)
        return self.session.batches.serve(self._key, self._backend, requests, window=window)

    def aserved(self, requests: Iterator[Request]) -> AsyncGenerator[tuple[Request, Outcome], None]:
        """Serve requests like ``served``, without blocking the event loop."""
        return self.session.batches.aserve(
            self._key, self._backend, requests, window=WINDOW * self.batch_size, on_busy=self.hooks.on_busy
        )

    @property
    def _key(self) -> Hashable:
        return id(self.source.model), self.batch_size

    def _backend(self) -> Backend:
        return self.source.backend(self.batch_size)

    def completed(self, request: Request, outcome: Outcome) -> Outcome:
        """Fill missing texts with the fallback, if there is one, and add the outcome to the call's span."""
        prompt: Any = request.prompt
        constraint, begun = request.spec.constraint, self.call.begun(prompt)
        outcome = completed(self.on_exhausted, outcome, prompt.text, constraint, self.session.tokenizer, begun=begun)
        return outcome if self.span is None else self.span.note(prompt, constraint, outcome)

    def require_all(self, outcomes: Sequence[Outcome]) -> None:
        """Raise if texts are missing and ``on_exhausted`` does not allow that."""
        raise_if_short(self.on_exhausted, outcomes, self.call.sampling)

    def outcomes(
        self, prompts: Iterable[Any], *, first: int = 0, alone: bool = False, on_outcome: OnOutcome | None = None
    ) -> Iterator[tuple[Any, Outcome]]:
        """Yield each prepared prompt with its completed outcome."""
        ended: dict[int, Outcome] = {}

        def on_end(request: Request, outcome: Outcome) -> None:
            assert on_outcome is not None
            number = request.prompt.number
            ended[number] = self.completed(request, outcome)
            on_outcome(number, ended[number])

        job = self if on_outcome is None else replace(self, hooks=replace(self.hooks, on_end=on_end))
        for request, outcome in job.served(job.requests(prompts, first=first), alone=alone):
            early = ended.pop(request.prompt.number, None)  # completed in on_end; a fallback function is called once
            yield request.prompt, self.completed(request, outcome) if early is None else early

    def collected(
        self, prompts: Any, *, progress: bool | None = None, render: bool = False
    ) -> tuple[list[Outcome], list[Any]]:
        """Return all outcomes and, with ``render``, records. Rendered one by one, so that images can be freed early."""
        outcomes: list[Outcome] = []
        records: list[Any] = []
        try:
            for prompt, outcome in tracked(self.outcomes(prompts), prompts, progress):
                outcomes.append(outcome)  # outcomes before an error are attached to it
                if render:
                    records.append(self.source.records(prompt, outcome))
        except GuardwrapError as error:
            error.outcomes = (*outcomes, *error.outcomes)
            raise
        return outcomes, records

    def records(self, prompts: Iterable[Any]) -> Iterator[Any]:
        """Yield records one by one. Prompts are consumed as needed."""
        for prompt, outcome in self.outcomes(prompts, alone=True):
            self.require_all([outcome])
            yield self.source.records(prompt, outcome)


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


class CallThreads:
    """Threads in which a wrapper works for calls in event loops. Each wrapper has its own, so that no other one waits.

    They are started when they are first used, and end when the wrapper is no longer used.
    """

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(thread_name_prefix="guardwrap-call")
        self._learner = ThreadPoolExecutor(1, "guardwrap-learner")
        self._planner = ThreadPoolExecutor(PLANS, "guardwrap-planner")

    def __reduce__(self) -> tuple[type[CallThreads], tuple[()]]:
        """Copy or pickle without the threads: a copy of a wrapper starts its own."""
        return CallThreads, ()

    async def run(self, work: Callable[[], _Item]) -> _Item:
        """Return the result of work without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._short, _in_context(work))

    async def learn(self, work: Callable[[], _Item], on_busy: OnBusy | None, seconds: float | None = None) -> _Item:
        """Return the result of work that learns a twist, one call of the wrapper at a time.

        ``seconds``: the most seconds to wait for it and for calls before it; None for no limit. Work that has begun
        then continues without anyone waiting for it.
        """
        return await _result(self._learner, work, on_busy, seconds)

    async def plan(self, work: Callable[[], _Item], on_busy: OnBusy | None, seconds: float | None = None) -> _Item:
        """Return the result of work that makes a plan, ``PLANS`` calls of the wrapper at a time; see ``learn``."""
        return await _result(self._planner, work, on_busy, seconds)


async def _result(
    pool: ThreadPoolExecutor, work: Callable[[], _Item], on_busy: OnBusy | None, seconds: float | None
) -> _Item:
    def done() -> _Item:
        if on_busy is None:
            return work()
        on_busy(True)
        try:
            return work()
        finally:
            on_busy(False)

    async with asyncio.timeout(seconds):
        return await asyncio.get_running_loop().run_in_executor(pool, _in_context(done))


def _in_context(work: Callable[[], _Item]) -> Callable[[], _Item]:
    """Return work that runs in the caller's context, with its current span."""
    return partial(contextvars.copy_context().run, work)
