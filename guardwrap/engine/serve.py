"""Launching attempts and deciding about them: launch order, budgets, reports."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from guardwrap.constraints.base import Constraint, Judgement, judge
from guardwrap.draws import Budget, Draw, Estimate, Outcome, Report, Usage
from guardwrap.engine.decode import Decoded, Decoder, Launch
from guardwrap.engine.prepare import Settings
from guardwrap.engine.randomness import decision
from guardwrap.engine.whole import Whole
from guardwrap.errors import GuardwrapError
from guardwrap.metrics import acceptance_rate
from guardwrap.samplers import Attempt, Sampler

__all__ = ["Order", "Prompt", "serve"]

logger = logging.getLogger("guardwrap")

WINDOW = 4
"""Prompts under way at once, in batches: those behind a hard one are finished meanwhile, in bounded memory."""


COSTLY = 2
"""``Constraint.cost`` from which attempts that ended are judged in batches …"""

LAUNCH_ROUNDS = 4
"""Rounds of launches in a row before the attempts that run are advanced by a token."""

JUDGED_TOGETHER = 16
"""… of this many, or as many as there are when nothing else is left to do."""

_CLOCK = "max_time cuts texts by the clock, so the same seed need not give the same texts again"


@dataclass(frozen=True)
class Prompt:
    """A prompt on its way through the engine.

    Parameters
    ----------
    number
        Its place in the call, from 0; its randomness belongs to it.
    given
        As the user gave it.
    text
        As text.
    settings
        What transformers made of it: attempts are drawn under these.
    target
        What defines a(y), where attempts are drawn from something else; None where they are drawn from a itself.
    """

    number: int
    given: Any
    text: str
    settings: Settings
    target: Settings | None = None


class Weigh(Protocol):
    """Computes log-weights; see ``proposed.Weigher``."""

    @property
    def note(self) -> str | None:
        """What rounding does to them."""

    def __call__(self, attempts: Sequence[tuple[Prompt, Draw]]) -> list[float]:
        """Return log a(y) - log a'(y) in nats for each attempt."""


@dataclass(frozen=True)
class Order:
    """What is asked of the engine, the same for all prompts of a call.

    Parameters
    ----------
    constraint
        b.
    sampler
        Which attempts become texts.
    budget
        Per prompt.
    seed
        Of the call.
    batch_size
        Attempts side by side, at most.
    mode
        How rows keep their states, see ``rows``; or ``"generate"``, see ``whole``.
    early_abort
        Whether prefix verdicts may be used with the tokenizer at hand.
    notes
        For the reports.
    model
        What draws tokens: the model itself, or that of the proposal.
    proposal
        In words, what attempts are drawn from; None for the model itself.
    weigh
        Computes log a(y) - log a'(y) in nats for attempts that satisfy the constraint. Asked for by some samplers, with
        a proposal.
    """

    constraint: Constraint
    sampler: Sampler
    budget: Budget
    seed: int
    batch_size: int
    mode: str
    early_abort: bool = True
    notes: tuple[str, ...] = ()
    model: Any = None
    proposal: str | None = None
    weigh: Weigh | None = None


@dataclass
class _Account:
    """What one prompt has got and spent so far."""

    prompt: Prompt
    order: Order
    state: Any
    accepted: list[Draw] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)
    rejected_at: list[int] = field(default_factory=list)  # their tokens, ascending, decided out of turn or not
    launched: int = 0
    waiting: dict[int, _Judged] = field(default_factory=dict)  # decided out of turn, by attempt
    attempts: int = 0
    satisfied: int = 0
    tokens: int = 0
    surplus: list[int] = field(default_factory=list)
    began: float | None = None
    seconds: float = 0.0
    ended: str | None = None

    @property
    def wanted(self) -> int:
        return self.prompt.settings.count

    def launches(self, room: int, running: Sequence[int]) -> list[Launch]:
        """Return the next attempts: so many that the texts still missing are expected of what is on its way.

        Of new attempts a share of (satisfied + 1) / (attempts + 1) is expected to satisfy the constraint: what is
        needed at first, then 2, 4, 8 … times as many while all are rejected. Of one with t tokens, (satisfied + 1) /
        (satisfied + 1 + those rejected with more than t tokens): what has got far where most fail early will mostly
        succeed.

        Parameters
        ----------
        room
            Attempts, at most.
        running
            Tokens of each attempt on its way.
        """
        budget, now = self.order.budget, time.monotonic()
        self.began = now if self.began is None else self.began
        late = budget.deadline is not None and now - self.began >= budget.deadline
        slow = budget.max_seconds is not None and now - self.began >= budget.max_seconds
        if self.launched and (late or slow):
            # What is on its way still counts, if it is in time.
            self.ended = None if self.under_way else "deadline" if late else "max_seconds"
            return []
        # A sampler may take only some of the attempts that satisfy the constraint: so far this share of them.
        share = (len(self.accepted) + 1) / (self.satisfied + 1)
        waiting = sum(judged.judgement.satisfied for judged in self.waiting.values())
        satisfied, rejected = self.satisfied + waiting, len(self.rejected_at)
        later = (rejected - bisect_right(self.rejected_at, length) for length in running)
        expected = waiting + sum((satisfied + 1) / (satisfied + 1 + count) for count in later)
        missing = self.wanted - len(self.accepted) - share * expected
        count = min(room, math.ceil(missing * (satisfied + rejected + 1) / (share * (satisfied + 1)) - 1e-9))
        if budget.max_attempts is not None:
            count = min(count, budget.max_attempts - self.launched)
        if self.prompt.settings.mode == "greedy":
            count = min(count, 1 - self.launched)
        deadline = None if budget.deadline is None else self.began + budget.deadline
        numbers = range(self.launched, self.launched + max(count, 0))
        self.launched += len(numbers)
        return [Launch(self.prompt.settings, self.order.seed, self.prompt.number, i, deadline) for i in numbers]

    @property
    def under_way(self) -> int:
        """Attempts launched and not yet booked."""
        return self.launched - self.attempts

    def commit(self, judged: Sequence[_Judged]) -> None:
        """Take what was judged, and decide about attempts one after the other, in launch order."""
        for item in judged:
            self.waiting[item.decoded.launch.attempt] = item
            if not item.judgement.satisfied:
                insort(self.rejected_at, len(item.draw.token_ids))
        while self.ended is None and (item_ := next_in_turn(self.waiting, self.attempts)) is not None:
            self._book(item_)
        if self.ended is not None:
            self.surplus += [len(item.draw.token_ids) for item in self.waiting.values()]
            self.waiting.clear()
        self.seconds = time.monotonic() - (self.began or time.monotonic())

    def _book(self, judged: _Judged) -> None:
        budget = self.order.budget
        if judged.decoded.status == "abandoned":
            self.surplus.append(len(judged.draw.token_ids))
            self.ended = "deadline"
            return
        self.attempts += 1
        self.satisfied += judged.judgement.satisfied
        self.tokens += len(judged.draw.token_ids)
        self.state, text = self.order.sampler.step(self.state, self._attempt(judged))
        if text is not None:
            self.accepted.append(text)
        else:
            self.rejections[judged.judgement.blame or "the sampler"] += 1
        if len(self.accepted) == self.wanted:
            self.ended = "complete"
        elif self.prompt.settings.mode == "greedy" or (
            self.prompt.settings.beams is not None and self.attempts == len(self.prompt.settings.beams)
        ):
            self.ended = "deterministic"
        elif budget.max_attempts is not None and self.attempts >= budget.max_attempts:
            self.ended = "max_attempts"
        elif budget.max_tokens is not None and self.tokens >= budget.max_tokens:
            self.ended = "max_tokens"

    def _attempt(self, judged: _Judged) -> Attempt:
        """Return what the sampler sees."""
        satisfied = judged.judgement.satisfied
        if not self.order.sampler.weighs:
            return Attempt(judged.draw, satisfied)
        launch = judged.decoded.launch
        uniform = decision(launch.seed, launch.prompt, launch.attempt)
        return Attempt(judged.draw, satisfied, judged.log_weight if satisfied else -math.inf, uniform)

    def outcome(self) -> Outcome:
        """Return what the prompt got."""
        sampling = self.prompt.settings.mode == "sample"
        usage = Usage(self.attempts, self.tokens, self.seconds, len(self.surplus), sum(self.surplus))
        rate = None
        if sampling and self.attempts:
            complete = self.ended == "complete"
            rate = acceptance_rate(self.satisfied, self.attempts, stopped_on_acceptance=complete)
        law, evidence = self._law()
        report = Report(
            drawn_from=law,
            evidence=evidence,
            sampler=self.order.sampler.name,
            seed=self.order.seed,
            requested=self.wanted,
            accepted=len(self.accepted),
            ended=self.ended or "error",
            usage=usage,
            budget=self.order.budget,
            acceptance=rate,
            rejections=dict(self.rejections.most_common()),
            constraint=self.order.constraint.digest,
            mode=self.order.mode if self.prompt.settings.beams is None else "generate",
            notes=self._notes(),
            proposal=self.order.proposal,
        )
        draws = tuple(self.accepted)
        return Outcome(self.prompt.given, tuple(draw.text for draw in draws), draws, report)

    def _notes(self) -> tuple[str, ...]:
        clock = None if self.prompt.settings.max_time is None else _CLOCK
        rounding = None if self.order.weigh is None else self.order.weigh.note
        return (*self.order.notes, *(note for note in (clock, rounding) if note is not None))

    def _law(self) -> tuple[str, Mapping[str, Estimate | float]]:
        """In words, what the texts were drawn from, and figures that say how well."""
        if self.prompt.settings.mode != "sample":
            return f"{self.prompt.settings.mode} search, checked: not a draw from g", {}
        law, evidence = self.order.sampler.report(self.state)
        if self.order.budget.deadline is not None:
            law = "biased by a deadline"
        elif self.order.proposal is not None and not self.order.sampler.weighs:
            law = f"g' of {self.order.proposal}, not g"
        return law, evidence


@dataclass(frozen=True, slots=True)
class _Judged:
    """An attempt that ended, as text, with what became of it."""

    decoded: Decoded
    draw: Draw
    judgement: Judgement
    log_weight: float = 0.0  # where a' = a


def next_in_turn(waiting: dict[int, _Judged], attempt: int) -> _Judged | None:
    """Take the attempt whose turn it is: attempt i is decided after all attempts before it.

    Deciding in the order of finishing would favour short texts.
    """
    return waiting.pop(attempt, None)


DrawOf = Callable[[Prompt, Sequence[int], bool, float | None], Draw]
"""From a prompt, new tokens, whether they ended by themselves and log a' in nats to the draw as the user gets it."""


def serve(
    prompts: Iterator[Prompt], order: Order, decoder: Decoder | Whole, draw_of: DrawOf
) -> Iterator[tuple[Prompt, Outcome]]:
    """Draw until every prompt has its texts or has spent its budget.

    Parameters
    ----------
    prompts
        Taken as there is room for them.
    order
        What is asked.
    decoder
        Draws attempts.
    draw_of
        Decodes new tokens as the user gets them.

    Yields
    ------
    Prompt, Outcome
        Each prompt with what it got, in their order.

    Raises
    ------
    GuardwrapError
        What taking a prompt raised, once the prompts before it are done.
    """
    active: deque[_Account] = deque()
    try:
        yield from _served(active, _Source(prompts, order), order, decoder, draw_of)
    except GuardwrapError as error:
        # What prompts further on have got already is not lost.
        error.outcomes = tuple(account.outcome() for account in active if account.ended or account.accepted)
        raise


def _served(
    active: deque[_Account], source: _Source, order: Order, decoder: Decoder | Whole, draw_of: DrawOf
) -> Iterator[tuple[Prompt, Outcome]]:
    ended: list[Decoded] = []
    rounds = 0  # of launches in a row
    # A classifier wants company, and so do texts to be weighed; anything else is judged at once.
    enough = JUDGED_TOGETHER if order.constraint.cost >= COSTLY or order.weigh is not None else 1
    while True:
        launches: list[Launch] = []
        # An attempt may end with its first token and make room again before the model is run; those that run must
        # get on all the same.
        if rounds < LAUNCH_ROUNDS or not decoder.running:
            launches, beams = _next_launches(active, source, order, decoder, ended)
            ended += beams
        if launches:
            rounds += 1
            ended += decoder.launch(launches)
        elif decoder.running:
            rounds = 0
            ended += decoder.advance()
        if len(ended) >= enough or not decoder.running:
            _book(active, ended, order, decoder, draw_of)
            ended = []
        while active and active[0].ended is not None:
            done = active.popleft()
            yield done.prompt, done.outcome()
        if source.exhausted and not active:
            break
    if source.failure is not None:
        raise source.failure


def _next_launches(
    active: deque[_Account], source: _Source, order: Order, decoder: Decoder | Whole, unjudged: Sequence[Decoded]
) -> tuple[list[Launch], list[Decoded]]:
    """Fill the room: a fair share for each prompt under way, then new prompts, then whoever still needs more."""
    launches: list[Launch] = []
    beams: list[Decoded] = []
    room = decoder.room
    if not room:
        return launches, beams
    lengths = decoder.lengths()
    for attempt in unjudged:
        if attempt.status in ("finished", "cut"):
            lengths.setdefault(attempt.launch.prompt, []).append(len(attempt.token_ids))

    def running(account: _Account) -> list[int]:
        number = account.prompt.number
        return lengths.get(number, []) + [0] * sum(launch.prompt == number for launch in launches)

    under_way = [account for account in active if account.ended is None]
    share = max(1, room // max(1, len(under_way)))
    for account in under_way:
        if len(launches) < room:
            launches += account.launches(min(share, room - len(launches)), running(account))
    while len(launches) < room and len(active) < WINDOW * order.batch_size and (new := source.take()):
        active.append(new)
        if new.prompt.settings.beams is None:
            launches += new.launches(room - len(launches), ())
        else:
            beams += _beams(new.prompt)
    for account in under_way:
        if len(launches) < room and account.ended is None:
            launches += account.launches(room - len(launches), running(account))
    return launches, beams


class _Source:
    """The prompts to come."""

    def __init__(self, prompts: Iterator[Prompt], order: Order) -> None:
        self._prompts = prompts
        self._order = order
        self.exhausted = False
        self.failure: Exception | None = None

    def take(self) -> _Account | None:
        """Open an account for the next prompt, if there is one."""
        if self.exhausted:
            return None
        try:
            prompt = next(self._prompts, None)
        except Exception as error:  # the user's generator too; raised once the prompts before it are done
            prompt, self.failure = None, error
        self.exhausted = prompt is None
        return None if prompt is None else _Account(prompt, self._order, self._order.sampler.init())


def _book(
    active: Sequence[_Account] | deque[_Account],
    ended: Sequence[Decoded],
    order: Order,
    decoder: Decoder | Whole,
    draw_of: DrawOf,
) -> None:
    """Judge attempts that ended, of all prompts together, and stop those that are not needed any more."""
    accounts = {account.prompt.number: account for account in active}
    by_prompt: dict[int, list[_Judged]] = {}
    for item in _judge(ended, accounts, order, draw_of):
        by_prompt.setdefault(item.decoded.launch.prompt, []).append(item)
    done = set()
    for number, judged in by_prompt.items():
        accounts[number].commit(judged)
        if accounts[number].ended is not None:
            done.add(number)
    if done:
        for decoded in decoder.cancel(lambda launch: launch.prompt in done):
            accounts[decoded.launch.prompt].surplus.append(len(decoded.token_ids))


def _judge(decoded: Sequence[Decoded], accounts: dict[int, _Account], order: Order, draw_of: DrawOf) -> list[_Judged]:
    """Decode attempts that ended and judge those that are whole."""
    draws = [
        draw_of(accounts[item.launch.prompt].prompt, item.token_ids, item.status == "finished", item.log_probability)
        for item in decoded
    ]
    whole = [i for i, item in enumerate(decoded) if item.status in ("finished", "cut")]
    judgements = [Judgement(False, item.blame) for item in decoded]
    for i, judgement in zip(whole, judge(order.constraint, [draws[i] for i in whole]), strict=True):
        judgements[i] = judgement
    weights = [0.0] * len(decoded)
    if order.weigh is not None:
        inside = [i for i, judgement in enumerate(judgements) if judgement.satisfied]
        chosen = [(accounts[decoded[i].launch.prompt].prompt, draws[i]) for i in inside]
        for i, weight in zip(inside, order.weigh(chosen) if chosen else [], strict=True):
            weights[i] = weight
    return [_Judged(*item) for item in zip(decoded, draws, judgements, weights, strict=True)]


def _beams(prompt: Prompt) -> list[Decoded]:
    """Return the sequences of a beam search as attempts."""
    settings = prompt.settings
    results = []
    for number, row in enumerate(settings.beams.tolist() if settings.beams is not None else []):
        new = row[len(settings.prompt_ids) :]
        end = next((i + 1 for i, token in enumerate(new) if token in settings.end_ids), None)
        launch = Launch(settings, seed=0, prompt=prompt.number, attempt=number)
        results.append(Decoded(launch, new[:end], status="cut" if end is None else "finished"))
    return results
