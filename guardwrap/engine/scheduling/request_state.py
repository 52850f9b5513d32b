"""The progress of one request: launch order, budget, accepted texts."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from guardwrap.constraints.checking import Judgement
from guardwrap.engine.scheduling.all_rejected import Inquiry, Rounds, safely
from guardwrap.engine.scheduling.backend import AttemptState, Backend, Diagnosis, Launch, ReducedDistribution
from guardwrap.engine.scheduling.live_text import LiveText
from guardwrap.engine.scheduling.randomness import decision, skipped
from guardwrap.engine.scheduling.request import RejectedAttempt, Request
from guardwrap.engine.scheduling.step_allowance import AllowedMask, StepAllowance, allowed_watch
from guardwrap.outcomes import SAMPLER, Draw, Outcome
from guardwrap.samplers import Attempt
from guardwrap.support.formatting import counted, counted_of, lasting

logger = logging.getLogger("guardwrap")

SKIPPED = "known before it was drawn"
"""The name that reports give to the cause of rejection of skipped attempts."""


class ModelChecks(NamedTuple):
    """How many texts expensive parts of a constraint have judged, and for how long in seconds."""

    texts: int = 0
    seconds: float = 0.0


NO_CHECKS = ModelChecks()


@dataclass(frozen=True, slots=True)
class JudgedAttempt:
    """An attempt that ended: its text, its judgement, and its log-weight in nats."""

    attempt: AttemptState
    draw: Draw
    judgement: Judgement
    log_weight: float = 0.0  # 0 if a' = a
    checks: ModelChecks = NO_CHECKS


def next_in_turn(waiting: dict[int, JudgedAttempt], attempt: int) -> JudgedAttempt | None:
    """Take the attempt to be decided next: attempt i is decided after all attempts before it.

    Deciding in the order in which attempts finish would favor short texts.
    """
    return waiting.pop(attempt, None)


@dataclass(eq=False)
class LaunchOrder:
    """The counters of a request's attempts, which are numbered as they are launched and decided in that order.

    Directly before an attempt, others may be skipped. They count as attempts although they are never launched. Until
    the request ends, ``decided <= launched``, ``judged`` has numbers from ``decided`` to ``launched - 1`` only, and
    ``attempts <= reserved``, with equality when nothing is under way.
    """

    launched: int = 0  # also the number of the next launch
    decided: int = 0  # also the number of the attempt whose turn is next
    skipped: int = 0  # before the decided attempts
    # what ``attempts`` will be when all launched attempts are decided, which ``max_attempts`` limits
    reserved: int = 0
    judged: dict[int, JudgedAttempt] = field(default_factory=dict)  # attempts judged before their turn, by number

    @property
    def attempts(self) -> int:
        """Number of attempts that count: decided and skipped."""
        return self.decided + self.skipped

    @property
    def under_way(self) -> int:
        """Number of attempts launched and not yet decided."""
        return self.launched - self.decided


@dataclass(eq=False)
class Tally:
    """What the attempts that count were, for the report."""

    satisfied: int = 0
    passed_over: int = 0  # attempts that satisfy the constraint and are not returned
    stopped: int = 0  # attempts ended by a verdict before their end
    cut_off: int = 0  # attempts cut by a limit that do not satisfy the constraint
    tokens: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    places: dict[str, Counter[str]] = field(default_factory=dict)  # where parts were violated, by their titles
    remarks: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class RequestState:
    """What a request has received and used so far, and the mode of its backend."""

    request: Request
    mode: str
    order: LaunchOrder = field(default_factory=LaunchOrder)
    tally: Tally = field(default_factory=Tally)
    sampler_state: Any = None
    accepted: list[Draw] = field(default_factory=list)
    rejected: RejectedAttempt | None = None  # the last one, for requests with a follow-up
    rejected_lengths: list[int] = field(default_factory=list)  # of rejected attempts in tokens, ascending
    rounds: Rounds | None = None  # None if attempts are never skipped
    satisfied_at_round_start: int = 0  # attempts that satisfied it when the current reduced distribution took effect
    surplus: list[int] = field(default_factory=list)  # lengths of attempts that were not needed
    computed: int = 0  # tokens for which the model was run
    model_checks: int = 0
    model_seconds: float = 0.0
    began: float | None = None
    seconds: float = 0.0
    ended: str | None = None
    has_enough_in_flight: bool = False  # no more attempts are launched until one has ended
    allowance: StepAllowance = field(default_factory=StepAllowance)
    inquiry: Inquiry = field(default_factory=Inquiry)
    outcome: Outcome | None = None  # while the request that follows it up is made
    slow: bool = False  # a judgement exceeded the allowance of a step, so the next ones are made in threads
    live: LiveText | None = None  # None if the request does not stream

    def __post_init__(self) -> None:
        self.live = None if self.request.hooks.pass_on is None else LiveText(self.request, self.request.hooks.pass_on)
        itself = self.request.drawing.mask is None and self.request.drawing.twist is None
        if self.request.drawing.lookahead is not None and self.request.spec.sampler.skips and itself:
            self.rounds = Rounds()

    @cached_property
    def _watches_clock(self) -> bool:
        budget = self.request.spec.budget
        limits = budget.deadline, budget.timeout, budget.max_seconds, budget.max_computed_tokens
        return any(limit is not None for limit in limits)

    @property
    def deadline(self) -> float | None:
        """When running attempts are dropped, by ``time.monotonic()``; None for never."""
        budget, began = self.request.spec.budget, self.began
        moments = [] if budget.deadline is None or began is None else [began + budget.deadline]
        moments += [] if budget.timeout is None else [self.timeout]
        return min(moments, default=None)

    @property
    def timeout(self) -> float:
        """When the budget's timeout is over, by ``time.monotonic()``; infinite without one."""
        timeout = self.request.spec.budget.timeout
        return math.inf if timeout is None else self.request.called + timeout

    @property
    def _deadline_name(self) -> str:
        """The limit of the budget that ``deadline`` is."""
        return "timeout" if self.deadline == self.timeout else "deadline"

    def time_out(self, now: float) -> None:
        """End a request whose timeout is over, with what it has: even if no attempt has begun or a check still runs."""
        if self.ended is None and self.is_timed_out(now):
            if self.inquiry.running:
                self.conclude(Diagnosis())
            self.ended = self.ended or "timeout"

    def is_timed_out(self, now: float) -> bool:
        """Whether the request's timeout is over."""
        return now >= self.timeout

    @property
    def waits_for_thread(self) -> bool:
        """Whether its end waits for the reason why nothing satisfies the constraint, or for its follow-up."""
        return self.inquiry.running or self.outcome is not None

    @property
    def wanted(self) -> int:
        """Number of texts requested; for a request that follows up another one, those that the other one lacks."""
        earlier = self.request.earlier
        return self.request.prompt.law.count if earlier is None else earlier[1].report.missing

    @property
    def texts(self) -> int:
        """Number of texts accepted so far, those of the request that this one follows up among them."""
        earlier = self.request.earlier
        return len(self.accepted) + (0 if earlier is None else earlier[1].report.accepted)

    @property
    def attempts(self) -> int:
        """Number of attempts that count so far."""
        return self.order.attempts

    @property
    def tokens(self) -> int:
        """Number of tokens of these attempts."""
        return self.tally.tokens

    def launches(self, room: int, running: Sequence[int], *, surplus: bool) -> list[Launch]:
        """Return the next attempts: enough that, with those in flight, the missing texts are expected.

        ``surplus``: whether to launch attempts that are not needed if enough of those in flight satisfy the constraint.
        """
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        spent = self._spent_limit(now)
        if self.inquiry.running:
            if spent in (None, "max_computed_tokens"):
                return []
            self.conclude(Diagnosis())  # it takes too long, so the budget decides
        law = self.request.prompt.law
        if self.ended is not None or law.beam_results is not None:
            return []
        if spent is not None and (self.order.launched or self._deadline_name == "timeout"):
            # Attempts in flight still count; with a deadline, only those that end in time.
            self.ended = None if self.order.under_way else spent
            return []
        # Seconds that pass are spent: fewer attempts at once would find fewer texts in them.
        surplus = surplus or self.request.spec.budget.max_seconds is not None
        count = min(room, self._needed(running, surplus=surplus))
        if law.mode == "greedy":
            count = min(count, 1 - self.order.launched)
        if self.rounds is not None:
            count = min(count, self.rounds.room(self.order.launched))
        launches = self._numbered(count)
        self.has_enough_in_flight = surplus and len(launches) < room and not self._watches_clock
        return launches

    def _spent_limit(self, now: float) -> str | None:
        """Return the limit on seconds or computed tokens that has been reached, or None."""
        budget, passed = self.request.spec.budget, 0.0 if self.began is None else now - self.began
        if self.deadline is not None and now >= self.deadline:
            return self._deadline_name
        if budget.max_seconds is not None and passed >= budget.max_seconds:
            return "max_seconds"
        much = budget.max_computed_tokens is not None and self.computed >= budget.max_computed_tokens
        return "max_computed_tokens" if much else None

    def _needed(self, running: Sequence[int], *, surplus: bool) -> int:
        """Return how many attempts to add to those in flight, given the lengths of these.

        A new attempt is expected to satisfy the constraint with probability (satisfied + 1) / (attempts + 1). So at
        first as many are launched as texts are missing, then 2, 4, 8 … times as many while all are rejected. A running
        attempt with t tokens is expected to satisfy it with probability (satisfied + 1) / (satisfied + 1 + number of
        attempts rejected with more than t tokens): where most attempts fail early, a long one will probably succeed.
        """
        # A sampler may accept only some of the attempts that satisfy the constraint. This estimates the share.
        share = (len(self.accepted) + 1) / (self.tally.satisfied + 1)
        waiting = sum(judged.judgement.satisfied for judged in self.order.judged.values())
        missing, needs = self.wanted - len(self.accepted), self.request.spec.sampler.needs
        if needs is not None and missing:
            share = missing / max(needs(self.sampler_state, missing), 1.0)
        if not surplus:
            return math.ceil(missing / share - waiting - 1e-9) - len(running)
        satisfied = self.tally.satisfied - self.satisfied_at_round_start + waiting
        rejected = len(self.rejected_lengths)
        longer = (rejected - bisect_right(self.rejected_lengths, length) for length in running)
        expected = waiting + sum((satisfied + 1) / (satisfied + 1 + count) for count in longer)
        still = missing - share * expected
        return math.ceil(still * (satisfied + rejected + 1) / (share * (satisfied + 1)) - 1e-9)

    def _numbered(self, count: int) -> list[Launch]:
        """Return the next attempts that the budget allows; end the request if it allows none and none is in flight."""
        most, order = self.request.spec.budget.max_attempts, self.order
        launches: list[Launch] = []
        while len(launches) < count:
            launch = self.launch(order.launched)
            reserved = order.reserved + launch.skipped + 1
            if most is not None and reserved > most:
                if not order.under_way:
                    self._skip(most - order.attempts)
                    self.ended = "max_attempts"
                break
            order.launched, order.reserved = order.launched + 1, reserved
            launches.append(launch)
        return launches

    def launch(self, attempt: int) -> Launch:
        """Return the launch of this request's attempt with the given number."""
        request = self.request
        narrowed = None if self.rounds is None else self.rounds.narrowed
        watch = None if request.drawing.watch is None else allowed_watch(request.drawing.watch, self.allowance)
        if watch is not None and self.live is not None:
            watch = self.live.watch(watch, partial(self._next_text, attempt))
        seed, number = request.spec.seed, request.number
        return Launch(
            law=request.prompt.law,
            seed=seed,
            prompt=number,
            attempt=attempt,
            deadline=self.deadline,
            watch=watch,
            request=request,
            mask=None if request.drawing.mask is None else AllowedMask(request.drawing.mask, self.allowance),
            narrowed=narrowed,
            skipped=0 if narrowed is None else skipped(seed, number, attempt, narrowed.log_live),
            twist=request.drawing.twist,
        )

    def _next_text(self, attempt: int) -> int | None:
        """Return the index of the text that a running attempt becomes if it satisfies the constraint.

        None unless all attempts launched before it are decided: one of them could still become that text, or end the
        request.
        """
        is_next = attempt == self.order.decided < self.order.launched
        return self.texts if self.ended is None and is_next else None

    @property
    def round_is_over(self) -> bool:
        """Whether a round is over, so that more may be excluded before the next one."""
        return self.ended is None and self.rounds is not None and self.rounds.over(self.order.decided)

    def known(self, backend: Backend) -> ReducedDistribution | None:
        """Return the distribution of attempts without those that this round has shown to be rejected.

        None if the backend cannot compute it, or attempts of this request are never skipped.
        """
        rounds, lookahead = self.rounds, self.request.drawing.lookahead
        if rounds is None or lookahead is None:
            return None
        return backend.narrow(self.launch(self.order.launched), lookahead, rounds.ended())

    def narrow(self, reduced: ReducedDistribution | None) -> None:
        """Draw from this distribution from now on; None means that attempts of this request are never skipped again."""
        self.has_enough_in_flight = False
        rounds = self.rounds
        if reduced is None or rounds is None:
            self.rounds = None
            return
        self.computed += reduced.computed
        rounds.take(reduced)
        if rounds.narrowed is not None:
            self.rejected_lengths, self.satisfied_at_round_start = [], self.tally.satisfied
        if reduced.log_live == -math.inf:
            self.ended = "impossible"

    def inquires(self) -> bool:
        """Whether the backend is to be asked why nothing satisfies the constraint, now or as soon as it may be."""
        request = self.request
        if request.drawing.lookahead is None or request.spec.sampler.records or request.prompt.law.mode != "sample":
            return False
        longest = self.rejected_lengths[-1] if self.rejected_lengths else 0
        return self.inquiry.begin(self.ended, self.order.decided, self.tally.satisfied, longest)

    @property
    def may_be_diagnosed(self) -> bool:
        """Whether the backend is to be asked now: no attempt is in flight, as both would use the request's watch."""
        return self.inquiry.running and (self.ended is not None or self.order.under_way == len(self.order.judged))

    def diagnosed(self, backend: Backend) -> Diagnosis:
        """Ask the backend why nothing satisfies the constraint. Never raises an error of the request."""
        return safely(lambda: self._diagnosed(backend))

    def _diagnosed(self, backend: Backend) -> Diagnosis:
        lookahead = self.request.drawing.lookahead
        # If the prompt alone violates the constraint, no setting is the reason.
        if lookahead is None or self.is_ruled_out:
            return Diagnosis()
        return backend.diagnose(self.launch(self.order.launched), lookahead)

    def conclude(self, diagnosis: Diagnosis) -> None:
        """Take the backend's answer: end the request if nothing can satisfy the constraint, otherwise continue."""
        self.inquiry.end(diagnosis)
        self.computed += diagnosis.computed
        if diagnosis.impossible:
            self.ended = "impossible"
        self.commit(())

    def _is_impossible(self, judged: JudgedAttempt) -> bool:
        """Whether no text can satisfy the constraint: the mask has shown it, or the prompt alone violates it."""
        if self.request.drawing.mask is not None and self.request.drawing.mask.impossible:
            return True
        return self.attempts == 1 and not judged.judgement.satisfied and self.is_ruled_out

    def _never_returns(self) -> bool:
        """Whether the sampler knows that it will return no further text."""
        needs = self.request.spec.sampler.needs
        return needs is not None and needs(self.sampler_state, self.wanted - len(self.accepted)) == math.inf

    @property
    def is_ruled_out(self) -> bool:
        """Whether the constraint is violated by the prompt alone, so that no text can satisfy it."""
        watch = self.request.drawing.watch
        # Watches without a look-ahead judge the texts of servers, not tokens.
        return watch is not None and self.request.drawing.lookahead is not None and watch(()) is not None

    def _skip(self, count: int) -> None:
        """Count attempts that are known to be rejected and were not drawn."""
        if count:
            self.order.skipped += count
            self.tally.rejections[SKIPPED] += count

    def beam_attempts(self) -> list[AttemptState]:
        """Return the results of a beam search as attempts."""
        results = self.request.prompt.law.beam_results or ()
        self.order.launched = self.order.reserved = len(results)
        return [
            AttemptState(self.launch(number), list(ids), status="finished" if finished else "cut")
            for number, (ids, finished) in enumerate(results)
        ]

    def outlook(self) -> str:
        """Say in words what a request that takes long has, and how long the rest may take."""
        number, texts, most = self.request.prompt.number, len(self.accepted), self.request.spec.budget.max_attempts
        whose = f"prompt {number + 1}: " if number else ""
        passed = 0.0 if self.began is None else time.monotonic() - self.began
        got = counted_of(texts, self.wanted, "text") if texts else "no text yet"
        so_far = f"{whose}{got} in {counted(self.attempts, 'attempt')}"
        if texts:
            return f"{so_far}, {lasting((self.wanted - texts) * passed / texts)} left"
        if most is None or not self.attempts:
            return f"{so_far}, and no max_attempts in the budget"
        left = (most - self.attempts) * passed / self.attempts
        return f"{so_far}; at this pace the budget of {most:,} is spent in {lasting(left)}"

    def discard(self, attempt: AttemptState) -> None:
        """Count an attempt that was stopped because it is no longer needed."""
        self.surplus.append(attempt.length)
        self.computed += attempt.computed

    def commit(self, judged: Sequence[JudgedAttempt]) -> None:
        """Add judged attempts, and decide about all whose turn has come, one after the other in launch order."""
        self.has_enough_in_flight = False
        for item in judged:
            number, satisfied = item.attempt.launch.attempt, item.judgement.satisfied
            self.order.judged[number] = item
            self.computed += item.attempt.computed
            self.model_checks += item.checks.texts
            self.model_seconds += item.checks.seconds
            if not satisfied:
                insort(self.rejected_lengths, item.attempt.length)
            if self.rounds is not None:
                self.rounds.note(number, item.draw.token_ids, satisfied)
        while self.ended is None and not self.inquires():
            next_ = next_in_turn(self.order.judged, self.order.decided)
            if next_ is None:
                break
            self._book(next_)
        if judged and self.ended is None and self.request.hooks.tells is not None:
            self.request.hooks.tells(self.outlook)
        if self.ended is not None:
            self.surplus += [item.attempt.length for item in self.order.judged.values()]
            self.order.judged.clear()

    def _book(self, judged: JudgedAttempt) -> None:
        """Decide about the attempt whose turn it is, and end the request if it is complete or its budget is spent."""
        budget, law, attempt = self.request.spec.budget, self.request.prompt.law, judged.attempt
        if attempt.status == "abandoned":
            self.surplus.append(attempt.length)
            self.ended = self._deadline_name
            return
        self._skip(attempt.launch.skipped)
        self.order.decided += 1
        self.tally.satisfied += judged.judgement.satisfied
        self.tally.cut_off += attempt.status == "cut" and not judged.judgement.satisfied
        self.tally.stopped += attempt.status == "aborted"
        self.tally.tokens += attempt.length
        self.tally.remarks.update(attempt.remarks)
        sampler = self.request.spec.sampler
        self.sampler_state, texts = sampler.returned(self.sampler_state, self._attempt(judged))
        texts = texts[: self.wanted - len(self.accepted)]
        for text in texts:
            self._accept(text)
        if not texts:
            self._reject(judged)
        self.tally.passed_over -= max(len(texts) - 1, 0)  # these were held until now
        if len(self.accepted) == self.wanted:
            self.ended = "complete"
        elif law.mode == "greedy" or (law.beam_results is not None and self.attempts == len(law.beam_results)):
            self.ended = "deterministic"
        elif self._is_impossible(judged) or self._never_returns():
            self.ended = "impossible"
        # The limit is checked for the attempt after this one, so whether an attempt counts never depends on itself.
        elif budget.max_attempts is not None and self.attempts >= budget.max_attempts:
            self.ended = "max_attempts"
        elif budget.max_tokens is not None and self.tokens >= budget.max_tokens:
            self.ended = "max_tokens"

    def _accept(self, text: Draw) -> None:
        """Return a text to the user, and pass on what was not passed on yet."""
        if self.live is not None:
            self.live.accept(self.texts, text)
        self.accepted.append(text)
        if self.request.hooks.on_text is not None:
            self.request.hooks.on_text(self.request.prompt.number, text)

    def _reject(self, judged: JudgedAttempt) -> None:
        """Count an attempt that is not returned, and pass its text to those who asked for rejected texts."""
        by, place = judged.judgement.blame, judged.judgement.place
        blame = by or SAMPLER
        if self.live is not None:
            self.live.require_nothing_sent(blame)
        if by is None:
            self.tally.passed_over += 1
        else:
            self.tally.rejections[by] += 1
        if place is not None:
            self.tally.places.setdefault(blame, Counter())[place] += 1
        if judged.judgement.satisfied:
            return
        request, number, text = self.request, judged.attempt.launch.attempt, judged.draw.text
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("prompt %d: attempt %d rejected by %r: %r", request.prompt.number + 1, number + 1, blame, text)
        if request.hooks.on_rejected is None and request.follow_up is None:
            return
        whole, constraint = judged.attempt.whole, request.spec.constraint
        rejected = RejectedAttempt(request.prompt.number, number, judged.draw, blame, place, whole, constraint)
        if request.hooks.on_rejected is not None:
            request.hooks.on_rejected(rejected)
        if whole or self.rejected is None or not self.rejected.whole:
            self.rejected = rejected

    def _attempt(self, judged: JudgedAttempt) -> Attempt:
        """Return the attempt in the form that samplers take."""
        satisfied, sampler = judged.judgement.satisfied, self.request.spec.sampler
        if not sampler.weighs and not sampler.features:
            return Attempt(judged.draw, satisfied)
        launch = judged.attempt.launch
        uniform = decision(launch.seed, launch.prompt, launch.attempt)
        most = math.inf if self.request.drawing.twist is None else self.request.drawing.twist.most_weight
        weight = None if not sampler.weighs else judged.log_weight if satisfied else -math.inf
        return Attempt(judged.draw, satisfied, weight, uniform, most, judged.judgement.features)
