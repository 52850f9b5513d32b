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

from guardwrap.backends.refill.decode import RefillBackend
from guardwrap.backends.refill.mode_selection import select_rows
from guardwrap.backends.refill.threshold_rows import rows_of
from guardwrap.backends.transformers_loop import GenerateBackend
from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.stop_strings import stops_of
from guardwrap.environment.progress import Teller
from guardwrap.errors import ContextExceeded, UsageError
from guardwrap.messages.call_syntax import with_syntax
from guardwrap.outcomes import ITSELF, Outcome, Remedy, Source
from guardwrap.pipelines.early_abort import PrefixWatch
from guardwrap.pipelines.masking import ConstraintMask
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.proposal_draws import require_weighable
from guardwrap.pipelines.vocabulary import Vocabulary
from guardwrap.proposals import Masked
from guardwrap.samplers import Sampler, collecting
from guardwrap.scheduling.backend import Backend, TokenTwist
from guardwrap.scheduling.batch import Batches, OnBusy
from guardwrap.scheduling.randomness import seed_for
from guardwrap.scheduling.rejected_attempt import OnRejected, RejectedAttempt
from guardwrap.scheduling.request import DrawOf, OnEnd, OnText, PassOn, Request, Weigh
from guardwrap.scheduling.request_state import RequestState
from guardwrap.scheduling.scheduler import WINDOW, Scheduler
from guardwrap.session.call_threads import CallThreads
from guardwrap.session.fallback import OnExhausted
from guardwrap.session.repair import Repair
from guardwrap.session.telemetry import CallSpan, traced_by, work_span
from guardwrap.session.twisting import PROMPTS, Learned, Spent, Twists


@dataclass(frozen=True)
class RequestOptions:
    """The options of one prompt."""

    constraint: Constraint  # the constraint that the prompt's texts satisfy
    sampler: Sampler  # decides which attempts become texts
    budget: Budget  # the most that may be spent on the prompt
    seed: int  # the seed. Together with ``place`` it determines the prompt's random numbers.
    place: int | None = None  # the number that the prompt's random numbers depend on; None for its number in the call


@dataclass(frozen=True)
class Job:
    """One call, ready to run."""

    call: Any  # reads prompts and renders texts: a ``Call`` or an ``EndpointCall``
    asked: RequestOptions  # the options of every prompt, unless ``each`` gives a prompt its own
    batch_size: int  # the most attempts drawn in parallel
    model: Any  # the model that tokens are drawn from: the wrapped model or the proposal's
    # makes the watch that judges the running attempts of a prompt, given a constraint; None without early abort
    watches: Callable[[Constraint, PreparedPrompt], PrefixWatch] | None = None
    masked: Masked | None = None  # the masked proposal; None without a mask
    twists: Twists | None = None  # the twisted proposal; None without a twist
    # the text that each token adds, for a masked proposal; None if that is not known
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()  # notes for every report
    of_weights: tuple[str, ...] = ()  # notes for reports of samplers that use weights
    # describes what attempts are drawn from, given a constraint and a prompt; None for the model itself
    proposal: Callable[[Constraint, Any], Source] | None = None
    weigh: Weigh | None = None  # computes log-weights, for samplers that use them
    causal: bool = False  # whether the model is a causal language model, which guardwrap's own decoding loop draws from
    separate: bool = False  # whether each attempt is computed alone, so that no other changes it
    # the options of each prompt, in order; None if they are the same for all
    each: Iterable[RequestOptions] | None = None
    batches: Batches | None = None  # the batches that concurrent calls share; None for a batch of its own
    threads: CallThreads | None = None  # where calls in event loops learn; None for a thread of its own
    on_exhausted: OnExhausted = "raise"  # what to do about texts that are missing in the end
    repair: Repair | None = None  # repair turns for prompts whose budget ended; None for none
    span: CallSpan | None = None  # the span of the call, which gets every outcome; None if nobody traces it
    called: float = field(default_factory=time.monotonic)  # when the call was made, by ``time.monotonic()``
    tells: Teller | None = None  # says how the call is getting on if it takes long; None for a silent call
    on_text: OnText | None = None  # called with a prompt's number and the draw when a text is accepted
    on_end: OnEnd | None = None  # called with a request and its outcome when it ends without an error
    on_rejected: OnRejected | None = None  # called with each attempt that violates its constraint
    pass_on: PassOn | None = None  # called with the pieces of each text; None if the call does not stream
    # called with True when the call joins the batch, and with False once nothing more is computed for it
    on_busy: OnBusy | None = None

    def requests(self, prompts: Iterable[Any], *, first: int = 0) -> Iterator[Request]:
        """Prepare prompts and make requests from them, lazily."""
        numbered = enumerate(prompts, start=first)
        most = PROMPTS if isinstance(prompts, Sized) else 1  # further prompts may not have come yet
        if self.each is None:
            return map(self.request, self._learned(self.call.prompts(numbered, self.batch_size), most))
        if isinstance(prompts, Sized) and isinstance(self.each, Sized) and len(prompts) != len(self.each):
            raise UsageError(f"{_ONE_EACH}; its length is {len(self.each)}, the number of prompts {len(prompts)}")
        asked: deque[RequestOptions] = deque()
        prepared = self._learned(self.call.prompts(_side_by_side(numbered, self.each, asked), self.batch_size), most)
        return (self.request(prompt, asked.popleft()) for prompt in prepared)

    async def arequests(self, prompts: Iterable[Any]) -> Iterator[Request]:
        """Make requests like ``requests``, without blocking the event loop while a twist is learned."""
        if not self.learns:
            return self.requests(prompts)
        threads = self.threads or CallThreads()
        again = isinstance(prompts, Sized) and (self.each is None or isinstance(self.each, Sized))
        try:
            return await threads.learn(
                lambda: self.requests(prompts), self.on_busy, self.seconds_left if again else None
            )
        except TimeoutError:  # other calls learned, and the requests now end at once
            return await threads.run(lambda: self.requests(prompts))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the timeout of the call, negative after it; None without a timeout."""
        timeout = self.asked.budget.timeout
        return None if timeout is None else self.called + timeout - time.monotonic()

    def requests_of(self, prompts: Iterable[PreparedPrompt]) -> Iterator[Request]:
        """Make requests from prompts that are already prepared."""
        if self.each is None:
            return map(self.request, self._learned(prompts))
        asked: deque[RequestOptions] = deque()
        prepared = self._learned(_side_by_side(prompts, self.each, asked))
        return (self.request(prompt, asked.popleft()) for prompt in prepared)

    @property
    def learns(self) -> bool:
        """Whether ``requests`` draws attempts, to learn the values of a twist."""
        return self.twists is not None and not self.twists.constraint.learned

    def _learned(self, prompts: Iterable[PreparedPrompt], most: int = PROMPTS) -> Iterable[PreparedPrompt]:
        """Learn the values of a twist from the first prompts, unless they are known."""
        if self.twists is None or not self.learns:
            return prompts
        prompts = iter(prompts)
        first = list(islice(prompts, most))
        if first:
            with work_span("guardwrap.learn_twist", traced_by(self.span), {"guardwrap.prompts": len(first)}) as results:
                costs = self.twists.constraint.learn(first, self._attempts, lambda: self.seconds_left)
                attempts, computed, _ = Spent.total(costs)
                results |= {"guardwrap.attempts": attempts, "guardwrap.computed_tokens": computed}
            first = [replace(prompt, learning=cost.usage) for prompt, cost in zip(first, costs, strict=True)]
        return chain(first, prompts)

    def _attempts(
        self, prompts: Sequence[PreparedPrompt], twists: Sequence[TokenTwist], count: int, seed: int
    ) -> Learned:
        """Draw attempts that are not returned, ``count`` for each prompt."""
        sampler, attempts = collecting(weigh=False)
        weighing = sampler._replace(weighs=True)  # by what the twist notes, also where a cannot be computed afterwards
        seconds, timeout = self.asked.budget.max_seconds, self.asked.budget.timeout
        if seconds is not None and self.twists is not None:  # learning takes at most as long as the call itself may
            seconds *= count * len(prompts) / sum(self.twists.constraint.sizes)
        budget = Budget(count, max_seconds=seconds, timeout=timeout)
        asked = RequestOptions(self.asked.constraint, sampler, budget, seed)
        requests = []
        for prompt, twist in zip(prompts, twists, strict=True):
            many = replace(prompt, law=replace(prompt.law, count=count))
            nobody: dict[str, Any] = {"on_text": None, "on_end": None, "on_rejected": None, "pass_on": None}
            plain = replace(self, twists=None, weigh=None, **nobody)
            how: dict[str, Any] = {"on_progress": self._lessons(len(prompts))}
            requests.append(replace(plain.request(many, asked), sampler=weighing, twist=twist, lookahead=None, **how))
        outcomes = [outcome for _, outcome in Scheduler(self.backend()).serve(iter(requests), window=len(requests))]
        computed = [outcome.report.usage.computed_tokens for outcome in outcomes]
        return Learned([Spent(*each) for each in zip(map(len, attempts), computed, strict=True)], attempts)

    def _progress(self) -> Callable[[RequestState], None] | None:
        """Return what says how a request is getting on."""
        tells = self.tells
        return None if tells is None else lambda state: tells(state.outlook)

    def _lessons(self, prompts: int) -> Callable[[RequestState], None] | None:
        """Return what says how learning from attempts for some prompts is getting on."""
        tells, twists = self.tells, self.twists
        if tells is None or twists is None:
            return None
        before, most = twists.constraint.spent.attempts, sum(twists.constraint.sizes)
        return lambda state: tells(
            lambda: f"learning a twist, {before + prompts * state.attempts:,} of up to {most:,} attempts"
        )

    def request(self, prompt: PreparedPrompt, asked: RequestOptions | None = None) -> Request:
        """Make a request from a prepared prompt."""
        asked = asked or self.asked
        if self.twists is not None and asked.constraint.digest != self.asked.constraint.digest:
            raise UsageError(_ONE_TWIST)
        if asked.sampler.weighs:
            prompt = require_weighable(prompt)
        watch = None if self.watches is None else self.watches(asked.constraint, prompt)
        mask = lookahead = None
        if watch is not None:
            draw = partial(self._draw_of(asked.constraint), prompt)
            lookahead = ConstraintMask(watch, prompt.law, asked.constraint, draw, 0.0, self.vocabulary)
            if self.masked is not None:
                mask = lookahead = self._mask(self.masked, lookahead, prompt, asked)
        weigh = self.weigh if asked.sampler.weighs else None
        notes = (*prompt.law.notes, *self.call.notes(prompt, asked.constraint))
        locate = None if watch is None else watch.place
        twist = None if self.twists is None else self.twists.twist(prompt)
        notes += () if self.twists is None else self.twists.notes
        how = {"watch": watch, "locate": locate, "mask": mask, "lookahead": lookahead, "weigh": weigh, "twist": twist}
        why = self._whole_because(prompt)
        live: dict[str, Any] = {"settled": watch} if why is None else {"whole_because": why}
        live["prompt_tokens"] = len((prompt.target or prompt.law).ids) if self.causal else None
        live["ways"] = self._ways(prompt)
        return self._request(prompt, asked, notes, learning=prompt.learning, **how, **live)

    def _mask(
        self, masked: Masked, lookahead: ConstraintMask, prompt: PreparedPrompt, asked: RequestOptions
    ) -> ConstraintMask:
        """Return the mask of a masked proposal."""
        mask = replace(lookahead, unseen=masked.unseen)
        if asked.sampler.weighs or self.watches is None:  # weights are of g, so whatever g has must stay possible
            return mask
        casts = bool(self.call.postprocess.get("tools"))
        regions = None if prompt.regions is None else prompt.regions[0]
        written = with_syntax(asked.constraint, regions, self.call.pipe.tokenizer, casts=casts)
        if written is not asked.constraint:
            mask = replace(mask, watch=self.watches(written, prompt))
        return replace(mask, beyond=masked.beyond_truncation)

    def _ways(self, prompt: PreparedPrompt) -> frozenset[Remedy]:
        """Return what the call can change for a prompt that lacks texts."""
        possible = {
            Remedy.TEXTS: bool(prompt.law.warpers),
            Remedy.LENGTH: self.call.fits(prompt, more=1),
            Remedy.MASK: self.causal and self.watches is not None and self.proposal is None,
            Remedy.PROMPT: self.call.reads_text,
        }
        return frozenset(remedy for remedy, can in possible.items() if can)

    def _whole_because(self, prompt: PreparedPrompt) -> str | None:
        """Return why no text of a prompt is certain to be accepted before it is complete; None if one may be."""
        if not self.causal:
            return "transformers' own loop draws the texts"
        if self.watches is None:
            return str(self.call.rewrites)
        if prompt.regions is not None:
            return "whether an answer can be parsed into a message is known at its end"
        return None

    def _request(self, prompt: Any, asked: RequestOptions, notes: tuple[str, ...] = (), **how: Any) -> Request:
        """Make a request. ``how`` holds the fields that depend on where attempts come from."""
        repairs = self.repair is not None and not asked.sampler.records
        if self.repair is not None and repairs:
            self.repair.require_prompt(prompt.given)
        return Request(
            prompt=prompt,
            constraint=asked.constraint,
            sampler=asked.sampler,
            budget=asked.budget,
            seed=asked.seed,
            place=asked.place,
            called=self.called,
            draw_of=self._draw_of(asked.constraint),
            notes=(*self.notes, *(self.of_weights if asked.sampler.weighs else ()), *notes),
            source=ITSELF if self.proposal is None else self.proposal(asked.constraint, prompt.given),
            on_text=self.on_text,
            on_end=self.on_end,
            on_progress=None if asked.sampler.records else self._progress(),
            on_rejected=self.on_rejected,
            follow_up=partial(self._repair_turn, asked, 1) if repairs else None,
            pass_on=self.pass_on,
            **how,
        )

    def _draw_of(self, constraint: Constraint) -> DrawOf:
        """Return the function that decodes attempts, whose messages end before the constraint's stop strings."""
        stops = stops_of(constraint)
        return partial(self.call.draw, stops=stops) if stops else self.call.draw

    def _repair_turn(
        self, asked: RequestOptions, turn: int, request: Request, outcome: Outcome, rejected: RejectedAttempt
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
        asked = replace(asked, seed=seed_for(asked.seed, "repair"))
        following = self.request(prompt, asked)
        follow_up = partial(self._repair_turn, asked, turn + 1)
        return replace(following, follow_up=follow_up, earlier=(request.first, outcome))

    def records(self, prompt: PreparedPrompt, outcome: Outcome) -> Any:
        """Render an outcome in the pipeline's format, with None for missing texts."""
        others = outcome.texts[len(outcome.draws) :]
        missing = outcome.report.requested - len(outcome.texts)
        return self.call.records(prompt, outcome.draws, [*others, *[None] * missing])

    def backend(self) -> Backend:
        """Make the backend that draws the attempts of this call."""
        if not self.causal:
            return GenerateBackend(1 if self.separate else self.batch_size)
        return backend_for(self.model, self.batch_size, separate=self.separate)

    def served(
        self, requests: Iterator[Request], *, alone: bool = False
    ) -> Iterator[tuple[PreparedPrompt, Constraint, Outcome]]:
        """Serve requests. Yields each prompt with its constraint and outcome, in the order of the requests.

        ``alone``: whether to use a batch of its own. In a shared batch another thread may consume ``requests``, and
        an iterator that blocks would block other calls.
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
        """Serve requests like ``served``, without blocking the event loop."""
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


_FINAL = ("deadline", "error", "impossible", "timeout")
"""Ends of a request that no repair turn follows."""

_ONE_TWIST = "Twisted() is learned for one constraint; leave out the constraints of single prompts, or Twisted()"
_ONE_EACH = "constraint_each and fields take one item per prompt"
_Item = TypeVar("_Item")


def _side_by_side(
    prompts: Iterable[_Item], each: Iterable[RequestOptions], asked: deque[RequestOptions]
) -> Iterator[_Item]:
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


def backend_for(model: Any, size: int, *, separate: bool = False) -> Backend:
    """Make the backend that draws from a causal model."""
    return RefillBackend(partial(rows_of, select_rows(model, separate=separate), model), size)
