"""The pilots of a plan: a few attempts for each way to draw the texts of a call, and the plan made from them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from guardwrap.budget import Budget
from guardwrap.calls.base_session import BaseSession
from guardwrap.calls.estimates import (
    Alternative,
    PromptPilot,
    alternative_of,
    can_tell,
    forecast_of,
    model_rate,
    sampler_for,
    weights_of,
)
from guardwrap.calls.job import Job
from guardwrap.calls.plan import Means, Plan, Unplanned
from guardwrap.calls.telemetry import model_attributes, pilot_attributes, traced_by, work_span
from guardwrap.calls.twisting import Spent, TwistedConstraint
from guardwrap.engine.scheduling.randomness import seed_for
from guardwrap.errors import UsageError, require_whole
from guardwrap.outcomes import Estimate, Outcome, Usage
from guardwrap.proposals import Masked, Prompt, Twisted
from guardwrap.samplers import Attempt, sampler_named
from guardwrap.samplers.protocol import Goal
from guardwrap.support.formatting import counted
from guardwrap.support.process import Teller

if TYPE_CHECKING:
    from guardwrap.adapters.card import Figures

_PLANNED = ("rejection", "qrs")
"""Samplers whose cost can be estimated from a pilot."""

FIRST, MOST = 8, 64
"""Attempts per prompt of the first stage of a pilot, and of all stages, unless few attempts pass."""

SHARE = 0.05
"""The largest share of the expected cost of a run that its plan may take without being asked to.

The expected cost is uncertain by a factor of two or so, and a plan should take a tenth of the true one at most.
"""

FEW = 10
"""If fewer attempts of a prompt pass, its rate is estimated from weighed attempts as well."""

LEARNS = 64
"""The smallest ``pilot=`` that also allows the attempts that a twist learns from."""

WEIGHED, TWISTED = 256, 128
"""Attempts per prompt for the acceptance rate of the model, and to try ``Twisted()``, unless more are asked for."""

LONGEST = 1024
"""The most attempts per prompt of the model itself before a twist is tried, and of the twist, if they are cheap."""

RATE_STRENGTH, RATE_SHARE = 1.0, 0.3
"""The twist whose weights estimate the model's acceptance rate.

Its weights vary less than those of ``Twisted()``, which is made for texts that ψ knows little of: in 61 worlds with
256 attempts the logarithm of the estimate had a root mean square error of .15 instead of .51.
"""


Rate = tuple[Estimate | None, str]
"""A better estimate of an acceptance rate than a pilot's, if there is one, and what it is from, in words."""


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
        return [sum(attempt.satisfied for attempt in attempts) for attempts in self.attempts]

    @property
    def repeats(self) -> bool:
        """Whether further attempts would give the same text, as greedy search does, or there is no prompt."""
        return not self.outcomes or self.outcomes[0].report.acceptance is None

    @property
    def tells_cost(self) -> bool:
        """Whether the weights of each prompt's attempts can tell what QRS costs."""
        return all(can_tell(weights_of(attempts)) for attempts in self.attempts)

    def of_prompts(self, sampler: str, goal: Goal, rates: Iterable[Rate]) -> list[PromptPilot]:
        """Return the attempts of each prompt, for a sampler and better estimates of their acceptance rates."""
        rows = zip(self.outcomes, self.attempts, rates, strict=True)
        return [PromptPilot(outcome, attempts, sampler, goal, *rate) for outcome, attempts, rate in rows]

    def joined(self, later: PilotAttempts) -> PilotAttempts:
        """Return this pilot with further attempts of the same prompts."""
        attempts = [[*one, *other] for one, other in zip(self.attempts, later.attempts, strict=True)]
        return PilotAttempts([_joined(*both) for both in zip(self.outcomes, later.outcomes, strict=True)], attempts)


def _joined(first: Outcome, later: Outcome) -> Outcome:
    usages = astuple(first.report.usage), astuple(later.report.usage)
    usage = Usage(*map(sum, zip(*usages, strict=True)))
    rejected = Counter(first.report.rejected) + Counter(later.report.rejected)
    passed_over = first.report.passed_over + later.report.passed_over
    return replace(first, report=replace(first.report, usage=usage, rejected=rejected, passed_over=passed_over))


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


@dataclass(frozen=True)
class Way:
    """A way to draw the texts of a call: a row of the table that a plan compares."""

    name: str  # what is drawn from, for a way that is not tried
    options: Mapping[str, Any]  # those of a call that draws in this way
    weighs: bool  # whether its attempts have weights
    twisted: TwistedConstraint | None = None  # what a twist has to learn before its first text
    model_share: float | None = None  # the share of the model itself in each step of a twist; None for its own
    pilot: PilotAttempts = PilotAttempts((), ())

    @property
    def spent(self) -> Spent:
        """The cost of learning so far."""
        return Spent() if self.twisted is None else self.twisted.spent


@dataclass(frozen=True)
class Study:
    """A plan, and the ways that it compared, each with its cost. The first is that of the call itself."""

    plan: Plan
    ways: Sequence[tuple[Alternative, Way]] = ()
    goal: Goal = field(default_factory=Goal)


@dataclass
class Planner:
    """Draws the pilots of one plan."""

    session: BaseSession  # the session of the call, and its prompts
    prompts: Any
    seed: int  # the seed of the first attempts of each way
    asked: int | None  # the number of attempts per prompt that the user asked for; None if the plan has to be cheap
    texts: int = 1  # the texts per prompt of the planned call
    on_attempt: Callable[[], None] | None = None  # called for each attempt
    max_seconds: float | None = None  # the most seconds that the plan may take; None for no limit
    drawn: int = 0  # attempts drawn so far, with those that a twist learned from
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

    def is_cheap(self, attempts: int, run: float) -> bool:
        """Return whether some more attempts are cheap beside a run of ``run`` attempts."""
        return self.drawn + attempts <= SHARE * run

    def affords(self, attempts: int, run: float) -> bool:
        """Return whether the plan may draw some more attempts, for a run of ``run`` attempts."""
        return not self.is_over() and (self.asked is not None or self.is_cheap(attempts, run))

    def tried(self, way: Way, count: int) -> Way:
        """Draw attempts in one way for each prompt, after those of its pilot."""
        before = way.pilot.least
        seed = seed_for(self.seed, f"attempts from {before}") if before else self.seed
        learned = way.spent.attempts
        with work_span("guardwrap.pilot", traced_by(None), model_attributes(self.session)) as results:
            outcomes, attempts = self.session.pilot(
                self.prompts,
                count,
                weigh=way.weighs,
                on_attempt=self._tell if self.on_attempt is None else self.on_attempt,
                tells=self.tells if self.on_attempt is None else None,
                max_seconds=None if self.max_seconds is None else max(self.max_seconds - self.seconds, 1e-3),
                model_share=way.model_share,
                **{**way.options, "seed": seed},
            )
            results.update(pilot_attributes(outcomes))
        self.stopped = self.stopped or any(outcome.report.ended == "timeout" for outcome in outcomes)
        self.drawn += spent(outcomes)[0] + way.spent.attempts - learned
        pilot = PilotAttempts(outcomes, attempts)
        return replace(way, pilot=way.pilot.joined(pilot) if before else pilot)

    def longer(
        self,
        way: Way,
        most: int,
        run_of: Callable[[PilotAttempts], float],
        *,
        batch: int = 1,
        enough: Callable[[PilotAttempts], bool] = lambda pilot: False,
    ) -> Way:
        """Double a pilot, up to ``most`` attempts per prompt, until it is enough or not cheap beside the run."""
        while self.asked is None and 0 < (before := way.pilot.least) < most and not enough(way.pilot):
            if not self.affords(batch * before, run_of(way.pilot)):
                break
            way = self.tried(way, before)
            if way.pilot.least == before:  # no further attempt was drawn, as none can pass
                break
        return way


def spent(outcomes: Sequence[Outcome]) -> tuple[int, float]:
    """Return the attempts and the seconds that outcomes took, in total."""
    usages = [outcome.report.usage for outcome in outcomes]
    return sum(of.attempts + of.surplus_attempts for of in usages), sum(of.seconds for of in usages)


def studied(
    session: BaseSession,
    prompts: Any,
    pilot: int | None,
    options: Mapping[str, Any],
    max_seconds: float | None = None,
) -> Study:
    """Draw the pilots of a plan, and return it with the ways that it compared; see ``GuardedGenerator.plan``."""
    options = dict(options)
    on_attempt = options.pop("on_attempt", None)
    asked = None if pilot is None else require_whole("pilot", pilot, 1)
    if max_seconds is not None and not (isinstance(max_seconds, int | float) and max_seconds > 0):
        raise UsageError(f"max_seconds={max_seconds!r}: give seconds above 0, or None for no limit")
    prompts = list(prompts) if isinstance(prompts, Iterator) else prompts  # used by several pilots
    if isinstance(each := options.get("constraint_each"), Iterable) and not isinstance(each, Sequence | Mapping):
        options["constraint_each"] = list(each)
    texts = require_whole("num_return_sequences", options.pop("num_return_sequences", None) or 1, 1)
    seed = options.get("seed")
    seed = session.plan_seed() if seed is None else require_whole("seed", seed, 0)
    planner = Planner(session, prompts, seed, asked, texts, on_attempt, max_seconds)
    comparison = _Comparison.of(planner, options)
    with work_span("guardwrap.plan", traced_by(None), model_attributes(session)) as results:
        study = comparison.study()
        results.update(
            {
                "guardwrap.prompts": len(study.plan.forecasts),
                "guardwrap.attempts": study.plan.spent[0],
                "guardwrap.sampler": study.plan.sampler,
            }
        )
    return study


def _can_weigh(job: Job, prompts: Any, options: Mapping[str, Any]) -> bool:
    prompts, _ = job.call.with_named_inputs(prompts, options)
    first = islice(job.call.read_prompts(prompts).prompts, 1)  # settings are the same for all prompts
    return job.source.weighs(first, job.spec)


def _possible(session: BaseSession, options: Mapping[str, Any]) -> Job | None:
    """Return the job of a call with these options; None if there is no such call."""
    try:
        return session.job({**options, "seed": 0})
    except UsageError:
        return None


def takes_hint(session: BaseSession, prompts: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a call that draws from the model itself can draw from prompts with a hint instead."""
    hinted = {**options, "proposal": Prompt("A hint. {prompt}"), "adapter": False}
    job = _possible(session, options)
    if not session.call_class.reads_text or job is None or job.source.proposal is not None:
        return False
    job = _possible(session, hinted)
    return job is not None and (not job.spec.sampler.weighs or _can_weigh(job, prompts, hinted))


def card_figures(job: Job, prompts: Sequence[Any]) -> Figures | None:
    """Return the figures of the card of a call's adapter, if they hold for each of its prompts; None otherwise.

    They do if the card is for one prompt, which is that of the call, and the constraint, the model and the generation
    settings are the card's.
    """
    card = job.source.card
    if card is None or card.prompts.count != 1 or not all(map(card.prompts.has, prompts)):
        return None
    same = (spec.constraint.digest == card.constraint_digest for spec in job.each or (job.spec,))
    return card.figures if all(same) else None


@dataclass
class _Comparison:
    """The planned call, and the ways to draw its texts that have a pilot."""

    planner: Planner
    job: Job  # says what the call is asked for, and where its attempts come from
    options: Mapping[str, Any]
    goal: Goal
    sampler: str | None  # None if the plan chooses it
    weighs: bool  # whether the call's attempts are weighed
    first: Way  # that of the call itself
    others: list[Way] = field(default_factory=list)
    rate: Way | None = None  # a twist whose weights estimate the acceptance rate of the model; no way to draw texts
    left_out: list[str] = field(default_factory=list)  # the names of ways that were not tried

    @classmethod
    def of(cls, planner: Planner, options: dict[str, Any]) -> _Comparison:
        """Read the planned call."""
        session = planner.session
        named = None if options.get("sampler") is None else sampler_named(options["sampler"])
        if named is None and session.spec.sampler.name in ("qrs", "auto"):
            named = session.spec.sampler
        goal = Goal() if named is None else named.goal
        if named is not None and named.name == "auto":  # the plan chooses
            named, options["sampler"] = None, "rejection"
        if named is not None and named.name not in _PLANNED:
            raise UsageError(f"a plan can estimate only {' and '.join(_PLANNED)}, not {named.name}; leave sampler out")
        job = session.job({**options, "seed": 0})
        weighs = False
        if job.source.proposal is not None:
            weighs = _can_weigh(job, planner.prompts, options) if named is None else named.weighs
        twists = job.source.twists
        own = Way("", options, weighs, None if twists is None else twists.constraint)
        return cls(planner, job, options, goal, named and named.name, weighs, own)

    @property
    def draws_itself(self) -> bool:
        """Whether the call draws from the model itself."""
        return self.job.source.proposal is None

    @property
    def itself(self) -> PilotAttempts | None:
        """The attempts of the model itself; None if the plan has none."""
        ways = [self.first] if self.draws_itself else [way for way in self.others if not way.weighs]
        return ways[0].pilot if ways else None

    @property
    def is_rare(self) -> bool:
        """Whether few attempts of the model itself pass for some prompt."""
        return self.itself is not None and min(self.itself.passing) < FEW

    def study(self) -> Study:
        """Draw the pilots, and make the plan."""
        planner = self.planner
        self.first = planner.tried(self.first, planner.asked or FIRST)
        self.first = planner.longer(self.first, MOST, lambda pilot: expected_attempts(pilot, planner.texts))
        pilot = self.first.pilot
        if planner.stopped and not pilot.least:
            counts = [len(attempts) for attempts in pilot.attempts]
            unplanned = Unplanned(planner.max_seconds or 0, counts.count(0), len(counts))
            return Study(Plan((), "rejection", None, spent=(planner.drawn, planner.seconds), unplanned=unplanned))
        if not pilot.repeats:
            needed, run = pilot.least * len(pilot.attempts), expected_attempts(pilot, planner.texts)
            for way in self._other_ways():
                if needed and planner.affords(needed, run):
                    way = planner.tried(way, pilot.least)
                self._add(way)
            self._try_twist()
        return self._compared()

    def _add(self, way: Way) -> None:
        if way.pilot.least:
            self.others.append(way)
        else:
            self.left_out.append(way.name)

    def _other_ways(self) -> Iterator[Way]:
        """Yield the alternatives to the call that nothing has to be learned for."""
        source, itself = self.job.source, {**self.options, "proposal": False, "adapter": False}
        if source.proposal is not None:
            yield Way("the model itself", itself, False)
        masked = {**itself, "proposal": Masked()}
        is_masked = source.proposal is not None and source.proposal.only_masks and source.proposal.masked is not None
        if source.weighs_masks and not is_masked and _possible(self.planner.session, masked) is not None:
            yield Way("a mask", masked, True)

    def _twisted_way(self) -> Way | None:
        """Return the way to draw from a twist of the model itself; None if it is the call's own, or there is none."""
        source, options = self.job.source, {**self.options, "proposal": Twisted(), "adapter": False}
        if source.twists is not None and source.proposal is not None and source.proposal.only_masks:
            return None
        job = _possible(self.planner.session, options)
        if job is None or job.source.twists is None:  # no automaton follows the constraint
            return None
        if any(spec.constraint.digest != job.spec.constraint.digest for spec in job.each or ()):
            return None
        return Way("a twist", options, True, job.source.twists.constraint)

    def _try_twist(self) -> None:
        """Draw pilots of a twist, if an automaton follows the constraint and the plan may cost that much.

        Where few attempts of the model pass, its own pilot becomes longer first, as it shows what is affordable, and
        another twist estimates its acceptance rate.
        """
        planner = self.planner
        way = None if planner.is_over() else self._twisted_way()  # the automaton alone may take seconds
        if way is None or way.twisted is None:
            return
        prompts, asked = len(self.first.pilot.attempts), planner.asked or 0

        def run_of(pilot: PilotAttempts) -> float:
            return fewest_attempts(pilot, planner.texts)

        needed = way.twisted.left + prompts * (TWISTED + (WEIGHED if self.is_rare else 0))
        if self.draws_itself:
            self.first = planner.longer(
                self.first,
                LONGEST,
                run_of,
                batch=prompts,
                enough=lambda pilot: min(pilot.passing) >= FEW or planner.affords(needed, run_of(pilot)),
            )
        rare, run = self.is_rare, run_of(self.first.pilot)
        if planner.is_over() or not (planner.is_cheap(needed, run) or (rare and asked >= LEARNS)):
            self.left_out += [way.name] if rare else []
            return
        if rare:
            options = {**way.options, "proposal": Twisted(strength=RATE_STRENGTH)}
            rate = planner.tried(replace(way, options=options, model_share=RATE_SHARE), max(WEIGHED, asked))
            self.rate = rate if rate.pilot.least else None
        if not planner.is_over():
            way = planner.tried(way, max(TWISTED, asked))
        self._add(planner.longer(way, LONGEST, lambda pilot: run, batch=prompts, enough=lambda pilot: pilot.tells_cost))

    def _compared(self) -> Study:
        """Make the plan, and estimate the cost of each way."""
        planner, session, pilot = self.planner, self.planner.session, self.first.pilot
        prompts = len(pilot.outcomes)
        kind = "rejection" if not self.weighs else self.sampler or sampler_for(pilot.attempts, self.goal)
        unknown: list[Rate] = [(None, "")] * prompts
        of_model = self._rates()
        rates = of_model if self.draws_itself else unknown
        figures = None
        if not self.draws_itself:
            figures = card_figures(self.job, [outcome.prompt for outcome in pilot.outcomes])
        if figures is not None and figures.acceptance_after is not None and kind == "rejection":
            rates = [(figures.acceptance_after.estimate, "the adapter's card")] * prompts
        if figures is not None and figures.acceptance_before is not None:
            of_model = [(figures.acceptance_before.estimate, "the adapter's card")] * prompts

        shares, texts = [spec.shares for spec in self.job.specs(prompts)], planner.texts

        def pilots(way: Way, sampler: str, rates: Iterable[Rate]) -> list[PromptPilot]:
            plain = way.pilot.of_prompts(sampler, self.goal, rates)
            return [of_prompt.sharing(of_set, texts) for of_prompt, of_set in zip(plain, shares, strict=True)]

        first = pilots(self.first, kind, rates)
        rows = [] if pilot.repeats else [(self.first, first)]
        for way in self.others:
            sampler = sampler_for(way.pilot.attempts, self.goal) if way.weighs else "rejection"
            rows.append((way, pilots(way, sampler, unknown if way.weighs else of_model)))
        ways = [(alternative_of(of_way, texts, way.spent), way) for way, of_way in rows]
        attempts, seconds = spent(pilot.outcomes)
        # Attempts run in rounds, and a round takes as long as a whole attempt, even if the batch is not full.
        side_by_side = min(self.options.get("batch_size") or session.batch_size, attempts) / max(1, prompts)
        forecasts = [
            forecast_of(
                of_prompt,
                texts=texts,
                budget=budget,
                seconds=seconds / attempts if attempts else 0.0,
                side_by_side=side_by_side,
            )
            for of_prompt, budget in zip(first, self.job.budgets(prompts), strict=True)
        ]
        most = [forecast.budget for forecast in forecasts if forecast.budget is not None]
        plan = Plan(
            forecasts=tuple(forecasts),
            sampler=kind,
            budget=Budget(max_attempts=max(most)) if most and len(most) == prompts else None,
            ways=tuple(cost for cost, _ in ways),
            spent=(planner.drawn, planner.seconds),
            chosen=self.sampler is None and kind != "rejection",
            left_out=_why_not(planner, self.left_out),
            means=Means(
                prompt=session.call_class.reads_text,
                hint=self.draws_itself and takes_hint(session, planner.prompts, self.options),
                adapter=session.trains,
                itself=self.draws_itself,
                weighed=self.weighs,
            ),
        )
        return Study(plan, ways, self.goal)

    def _rates(self) -> list[Rate]:
        """Estimate the acceptance rate of the model for prompts with few passing attempts, and say from what."""
        sources = [("proposal", self.first.pilot)] if self.weighs else []
        sources += [("mask or a twist", way.pilot) for way in self.others if way.weighs]
        if self.rate is not None:  # made for this, so others, whose weights vary more, are not asked if it cannot tell
            sources = [("twist", self.rate.pilot)]
        rates: list[Rate] = []
        for number in range(len(self.first.pilot.attempts)):
            rate: Estimate | None = None
            words = ""
            plain = [] if self.itself is None else self.itself.attempts[number]
            of_model = f"{counted(len(plain), 'attempt')} of the model"
            passing = sum(attempt.satisfied for attempt in plain)
            for name, source in sources if passing < FEW else ():
                estimate, known = model_rate(plain, source.attempts[number])
                weighed = f"{counted(len(source.attempts[number]), 'weighed attempt')} of a {name}"
                if known:
                    rate, words = estimate, f"{weighed} and {of_model}" if plain else weighed
                    break
                if rate is None and self.rate is not None and estimate.low > 0 and not passing:
                    rate, words = estimate, f"{weighed}, whose weights tell it only roughly, and {of_model}"
            rates.append((rate, words))
        return rates


def _why_not(planner: Planner, left_out: Sequence[str]) -> str:
    """Say which ways were not tried, and why, and what the plan's time limit did to its figures."""
    words = []
    if left_out:
        several = len(left_out) > 1
        if planner.is_over():
            why = "as the plan's time was over"
        elif planner.asked is not None:
            why = f"as it takes hundreds of attempts to learn; pass pilot={LEARNS} or more"
        else:
            them = "them" if several else "it"
            why = (
                f"to keep the plan below a tenth of the run; pass pilot={LEARNS} to try {them} whatever the plan costs"
            )
        words.append(f"{' and '.join(left_out)} {'were' if several else 'was'} not tried, {why}")
    if planner.stopped:
        words.append("attempts were dropped when the plan's time was over, which favors short texts in its figures")
    return "; ".join(words)
