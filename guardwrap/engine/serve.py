"""Launching attempts and deciding about them: launch order, budgets, reports."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.constraints.base import Constraint, Judgement, judge
from guardwrap.draws import Budget, Draw, Outcome, Report, Usage
from guardwrap.engine.decode import Decoded, Launch
from guardwrap.engine.prepare import Settings
from guardwrap.errors import GuardwrapError
from guardwrap.metrics import acceptance_rate
from guardwrap.samplers import Attempt, Sampler

__all__ = ["Order", "Prompt", "serve"]

logger = logging.getLogger("guardwrap")

WINDOW = 4
"""Prompts under way at once, in batches: those behind a hard one are finished meanwhile, in bounded memory."""


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
        What transformers made of it.
    """

    number: int
    given: Any
    text: str
    settings: Settings


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
    early_abort
        Whether prefix verdicts may be used with the tokenizer at hand.
    notes
        For the reports.
    """

    constraint: Constraint
    sampler: Sampler
    budget: Budget
    seed: int
    batch_size: int
    early_abort: bool = True
    notes: tuple[str, ...] = ()


@dataclass
class _Account:
    """What one prompt has got and spent so far."""

    prompt: Prompt
    order: Order
    state: Any
    accepted: list[Draw] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)
    launched: int = 0
    attempts: int = 0
    tokens: int = 0
    surplus: list[int] = field(default_factory=list)
    began: float | None = None
    seconds: float = 0.0
    ended: str | None = None

    @property
    def wanted(self) -> int:
        return self.prompt.settings.count

    def launches(self, room: int) -> list[Launch]:
        """Return the next attempts: as many as are expected to be needed, at most ``room``.

        The estimate of the acceptance rate is (accepted + 1) / (attempts + 1): what is needed at first, then 2, 4,
        8 … times as many while all are rejected.
        """
        budget, now = self.order.budget, time.monotonic()
        self.began = now if self.began is None else self.began
        if self.launched and budget.max_seconds is not None and now - self.began >= budget.max_seconds:
            self.ended = "max_seconds"
            return []
        missing = self.wanted - len(self.accepted)
        count = min(room, math.ceil(missing * (self.attempts + 1) / (len(self.accepted) + 1)))
        if budget.max_attempts is not None:
            count = min(count, budget.max_attempts - self.launched)
        if self.prompt.settings.mode == "greedy":
            count = min(count, 1 - self.launched)
        deadline = None if budget.deadline is None else self.began + budget.deadline
        numbers = range(self.launched, self.launched + count)
        self.launched += count
        return [Launch(self.prompt.settings, self.order.seed, self.prompt.number, i, deadline) for i in numbers]

    def commit(self, results: Sequence[tuple[Decoded, Draw, Judgement]]) -> None:
        """Decide about attempts one after the other, in launch order."""
        budget = self.order.budget
        for decoded, draw, judgement in results:
            if self.ended is None and budget.max_tokens is not None and self.tokens >= budget.max_tokens:
                self.ended = "max_tokens"
            if self.ended is None and decoded.status == "abandoned":
                self.ended = "deadline"
            if self.ended is not None:
                self.surplus.append(len(draw.token_ids))
                continue
            self.attempts += 1
            self.tokens += len(draw.token_ids)
            self.state, text = self.order.sampler.step(self.state, Attempt(draw, judgement.satisfied))
            if text is not None:
                self.accepted.append(text)
            else:
                self.rejections[judgement.blame or "the sampler"] += 1
            if len(self.accepted) == self.wanted:
                self.ended = "complete"
        if self.ended is None:
            self.ended = self._limit()
        self.seconds = time.monotonic() - (self.began or time.monotonic())

    def _limit(self) -> str | None:
        budget = self.order.budget
        if self.prompt.settings.mode != "sample":
            return "deterministic"
        if budget.max_attempts is not None and self.attempts >= budget.max_attempts:
            return "max_attempts"
        if budget.max_tokens is not None and self.tokens >= budget.max_tokens:
            return "max_tokens"
        return None

    def outcome(self) -> Outcome:
        """Return what the prompt got."""
        sampling = self.prompt.settings.mode == "sample"
        usage = Usage(self.attempts, self.tokens, self.seconds, len(self.surplus), sum(self.surplus))
        rate = None
        if sampling and self.attempts:
            complete = self.ended == "complete"
            rate = acceptance_rate(len(self.accepted), self.attempts, stopped_on_acceptance=complete)
        report = Report(
            drawn_from=self._law(),
            sampler=self.order.sampler.name,
            seed=self.order.seed,
            requested=self.wanted,
            accepted=len(self.accepted),
            ended=self.ended or "complete",
            usage=usage,
            budget=self.order.budget,
            acceptance=rate,
            rejections=dict(self.rejections.most_common()),
            constraint=self.order.constraint.digest,
            notes=self.order.notes,
        )
        draws = tuple(self.accepted)
        return Outcome(self.prompt.given, tuple(draw.text for draw in draws), draws, report)

    def _law(self) -> str:
        if self.prompt.settings.mode != "sample":
            return f"{self.prompt.settings.mode} search, checked: not a draw from g"
        return self.order.sampler.law if self.order.budget.deadline is None else "biased by a deadline"


def in_launch_order(results: Sequence[Any]) -> Sequence[Any]:
    """Sort what a wave returned for one prompt: attempt i is decided after all attempts before it.

    Deciding in the order of finishing would favour short texts.
    """
    return sorted(results, key=lambda result: result[0].launch.attempt)


def serve(
    prompts: Iterator[Prompt],
    order: Order,
    *,
    decode: Callable[[list[Launch]], list[Decoded]],
    text_of: Callable[[Sequence[int]], str],
) -> Iterator[Outcome]:
    """Draw until every prompt has its texts or has spent its budget.

    Parameters
    ----------
    prompts
        Taken as there is room for them.
    order
        What is asked.
    decode
        Draws a wave of attempts.
    text_of
        Decodes new tokens as the user gets them.

    Yields
    ------
    Outcome
        One for each prompt, in their order.

    Raises
    ------
    GuardwrapError
        What taking a prompt raised, once the prompts before it are done.
    """
    active: deque[_Account] = deque()
    exhausted = False
    failure: GuardwrapError | None = None
    while True:
        wave: list[Launch] = []
        for account in active:
            if account.ended is None and len(wave) < order.batch_size:
                wave += account.launches(order.batch_size - len(wave))
        while not exhausted and len(wave) < order.batch_size and len(active) < WINDOW * order.batch_size:
            try:
                prompt = next(prompts, None)
            except GuardwrapError as error:
                prompt, failure = None, error
            if prompt is None:
                exhausted = True
                break
            account = _Account(prompt, order, order.sampler.init())
            active.append(account)
            if prompt.settings.beams is not None:
                _commit([account], _beams(prompt), order, text_of)
            else:
                wave += account.launches(order.batch_size - len(wave))
        if wave:
            _commit(active, decode(wave), order, text_of)
            logger.debug("wave of %d attempts for %d prompts", len(wave), len(active))
        while active and active[0].ended is not None:
            yield active.popleft().outcome()
        if exhausted and not active:
            break
    if failure is not None:
        raise failure


def _commit(
    accounts: Sequence[_Account] | deque[_Account],
    decoded: Sequence[Decoded],
    order: Order,
    text_of: Callable[[Sequence[int]], str],
) -> None:
    """Judge what a wave returned, all prompts together, and book it prompt by prompt."""
    texts = {account.prompt.number: account.prompt.text for account in accounts}
    draws = [
        Draw(
            texts[item.launch.prompt],
            tuple(item.token_ids),
            text_of(item.token_ids),
            item.status == "finished",
            item.log_probability,
        )
        for item in decoded
    ]
    whole = [i for i, item in enumerate(decoded) if item.status in ("finished", "cut")]
    judgements = [Judgement(False, item.blame) for item in decoded]
    for i, judgement in zip(whole, judge(order.constraint, [draws[i] for i in whole]), strict=True):
        judgements[i] = judgement
    by_prompt: dict[int, list[tuple[Decoded, Draw, Judgement]]] = {}
    for item in zip(decoded, draws, judgements, strict=True):
        by_prompt.setdefault(item[0].launch.prompt, []).append(item)
    for account in accounts:
        if results := by_prompt.get(account.prompt.number):
            account.commit(in_launch_order(results))


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
