"""The pilots of a plan: attempts drawn in stages, what they cost, and when a plan has to stop."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.environment.process import Teller
from guardwrap.formatting import counted
from guardwrap.outcomes import Outcome, Usage
from guardwrap.planning.plan import spent
from guardwrap.samplers import Attempt
from guardwrap.scheduling.randomness import seed_for
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.local_session import LocalSession
from guardwrap.session.telemetry import model_attributes, pilot_attributes, traced_by, work_span

FIRST, MOST = 8, 64
"""Attempts per prompt of the first stage of a pilot, and of all stages, unless few attempts pass."""

SHARE = 0.05
"""The largest share of the expected cost of a run that its plan may take without being asked to.

The expected cost is uncertain by a factor of two or so, and a plan should take a tenth of the true one at most.
"""


@dataclass(frozen=True)
class PilotAttempts:
    """Outcomes and attempts of a pilot, per prompt."""

    outcomes: Sequence[Outcome]
    attempts: Sequence[Sequence[Attempt]]

    @property
    def least(self) -> int:
        """The smallest number of attempts of a prompt."""
        return min(map(len, self.attempts), default=0)

    @property
    def passing(self) -> list[int]:
        """How many attempts of each prompt satisfy the constraint."""
        return [sum(attempt.satisfied for attempt in drawn) for drawn in self.attempts]

    def joined(self, later: PilotAttempts) -> PilotAttempts:
        """Return this pilot with further attempts of the same prompts."""
        outcomes = [_joined(*both) for both in zip(self.outcomes, later.outcomes, strict=True)]
        return PilotAttempts(
            outcomes, [[*one, *other] for one, other in zip(self.attempts, later.attempts, strict=True)]
        )


def _joined(first: Outcome, later: Outcome) -> Outcome:
    usages = dataclasses.astuple(first.report.usage), dataclasses.astuple(later.report.usage)
    usage = Usage(*map(sum, zip(*usages, strict=True)))
    rejected = Counter(first.report.rejected) + Counter(later.report.rejected)
    passed_over = first.report.passed_over + later.report.passed_over
    report = dataclasses.replace(first.report, usage=usage, rejected=rejected, passed_over=passed_over)
    return dataclasses.replace(first, report=report)


def expected_attempts(drawn: PilotAttempts, texts: int) -> float:
    """Return the attempts that a run is expected to take: the posterior mean of texts / rate under Jeffreys' prior.

    It is infinite if no attempt for a prompt satisfies the constraint.
    """
    pairs = zip(map(len, drawn.attempts), drawn.passing, strict=True)
    return sum(texts * count / (passing - 0.5) if passing else math.inf for count, passing in pairs)


def fewest_attempts(drawn: PilotAttempts, texts: int) -> float:
    """Return a cautious estimate of the attempts that a run takes: as if one more attempt satisfied the constraint."""
    pairs = zip(map(len, drawn.attempts), drawn.passing, strict=True)
    return sum(texts * count / (passing + 1) for count, passing in pairs)


@dataclass
class Drawing:
    """Draws the pilots of one plan."""

    session: LocalSession | EndpointSession  # the session of the call, and its prompts
    prompts: Any
    seed: int  # the seed of the first attempts of each way
    asked: int | None  # the number of attempts per prompt that the user asked for; None if the plan has to be cheap
    on_attempt: Callable[[], None] | None = None  # called for each attempt
    max_seconds: float | None = None  # the most seconds that the plan may take; None for no limit
    drawn: int = 0  # attempts drawn so far, with those that a twist learned from
    expected: float = math.inf  # the attempts that the run is expected to take
    stopped: bool = False  # whether attempts were dropped, or not drawn, because the plan's time was over
    tells: Teller = field(default_factory=Teller)  # says how the plan is getting on, unless ``on_attempt`` does
    judged: int = 0  # attempts judged so far, without those of learning
    began: float = field(default_factory=lambda: time.monotonic())

    @property
    def seconds(self) -> float:
        """Seconds since the plan began."""
        return time.monotonic() - self.began

    def _tell(self) -> None:
        self.judged += 1
        self.tells(lambda: f"planning, {counted(self.judged, 'attempt')} so far")

    def is_over(self) -> bool:
        """Return whether the plan's own time limit is reached."""
        return self.max_seconds is not None and self.seconds >= self.max_seconds

    def affords(self, attempts: int, run: float) -> bool:
        """Return whether the plan may draw some more attempts, for a run of ``run`` attempts."""
        return not self.is_over() and (self.asked is not None or self.drawn + attempts <= SHARE * run)

    def draw(
        self,
        count: int,
        options: Mapping[str, Any],
        *,
        weigh: bool,
        before: int = 0,
        model_share: float | None = None,
    ) -> PilotAttempts:
        """Draw attempts for each prompt."""
        seed = seed_for(self.seed, f"attempts from {before}") if before else self.seed
        learned = self.session.learned_from(options)
        seconds = None if self.max_seconds is None else max(self.max_seconds - self.seconds, 1e-3)
        with work_span("guardwrap.pilot", traced_by(None), model_attributes(self.session)) as results:
            outcomes, attempts = self.session.pilot(
                self.prompts,
                count,
                weigh=weigh,
                on_attempt=self._tell if self.on_attempt is None else self.on_attempt,
                tells=self.tells if self.on_attempt is None else None,
                max_seconds=seconds,
                model_share=model_share,
                **{**options, "seed": seed},
            )
            results.update(pilot_attributes(outcomes))
        self.stopped = self.stopped or any(outcome.report.ended == "timeout" for outcome in outcomes)
        self.drawn += spent(outcomes)[0] + self.session.learned_from(options).attempts - learned.attempts
        return PilotAttempts(outcomes, attempts)

    def first(self, options: Mapping[str, Any], *, weigh: bool, texts: int) -> PilotAttempts:
        """Draw the pilot of the call itself: what was asked for, or in stages, while it is cheap beside the run."""
        drawn = self.draw(self.asked or FIRST, options, weigh=weigh)
        self.expected = expected_attempts(drawn, texts)
        while self.asked is None and 0 < drawn.least < MOST and self.affords(drawn.least, self.expected):
            before = drawn.least
            drawn = self.further(drawn, options, weigh=weigh, texts=texts)
            if drawn.least == before:  # no further attempt was drawn, as none can pass
                break
        return drawn

    def further(self, drawn: PilotAttempts, options: Mapping[str, Any], *, weigh: bool, texts: int) -> PilotAttempts:
        """Draw as many attempts again."""
        drawn = drawn.joined(self.draw(drawn.least, options, weigh=weigh, before=drawn.least))
        self.expected = expected_attempts(drawn, texts)
        return drawn
