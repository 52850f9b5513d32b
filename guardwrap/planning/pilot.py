"""The pilot of a call, and the plan made from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.errors import UsageError, require_whole
from guardwrap.formatting import counted
from guardwrap.outcomes import Estimate, Origin, Shape
from guardwrap.planning.alternatives import Alternative, alternative_of, model_rate, sampler_for, tells_cost
from guardwrap.planning.drawing import SHARE, Drawing, PilotAttempts, fewest_attempts
from guardwrap.planning.plan import Means, Plan, Unplanned, planned
from guardwrap.samplers import sampler_named
from guardwrap.samplers.protocol import Goal
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.local_session import LocalSession
from guardwrap.session.telemetry import model_attributes, traced_by, work_span

_PLANNED = ("rejection", "qrs")
"""Samplers whose cost can be estimated from a pilot."""

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


@dataclass(frozen=True)
class Way:
    """A way to draw the texts of a call: its cost, the options of a call that draws in this way, and its pilot."""

    cost: Alternative
    options: Mapping[str, Any]
    pilot: PilotAttempts


@dataclass(frozen=True)
class Study:
    """A plan, and the ways that it compared. The first is that of the call itself."""

    plan: Plan
    ways: Sequence[Way] = ()
    goal: Goal = field(default_factory=Goal)


@dataclass(frozen=True)
class _Call:
    """The planned call, and how its attempts are drawn and weighed.

    ``itself`` is whether they are from the model itself, ``weighed`` whether they have weights. ``sampler`` is None if
    the plan chooses it.
    """

    options: Mapping[str, Any]
    texts: int
    goal: Goal
    sampler: str | None
    itself: bool
    weighed: bool


def plan_of(
    session: LocalSession | EndpointSession,
    prompts: Any,
    pilot: int | None,
    options: Mapping[str, Any],
    max_seconds: float | None = None,
) -> Plan:
    """Estimate the cost of a call; see ``GuardedGenerator.plan``.

    ``pilot``: the number of attempts per prompt, for each way to draw texts; None to stop once it is not cheap any
    more.
    """
    return studied(session, prompts, pilot, options, max_seconds).plan


def studied(
    session: LocalSession | EndpointSession,
    prompts: Any,
    pilot: int | None,
    options: Mapping[str, Any],
    max_seconds: float | None = None,
) -> Study:
    """Draw the pilots of a plan, and return it with the ways that it compared; see ``plan_of``."""
    options = dict(options)
    on_attempt = options.pop("on_attempt", None)
    asked = None if pilot is None else require_whole("pilot", pilot, 1)
    if max_seconds is not None and not (isinstance(max_seconds, int | float) and max_seconds > 0):
        raise UsageError(f"max_seconds={max_seconds!r}: give seconds above 0, or None for no limit")
    prompts = list(prompts) if isinstance(prompts, Iterator) else prompts  # used by several pilots
    if isinstance(options.get("constraint_each"), Iterator):
        options["constraint_each"] = list(options["constraint_each"])
    call = _read(session, prompts, options)
    seed = options.get("seed")
    seed = session.plan_seed() if seed is None else require_whole("seed", seed, 0)
    drawing = Drawing(session, prompts, seed, asked, on_attempt, max_seconds)
    with work_span("guardwrap.plan", traced_by(None), model_attributes(session)) as results:
        study = _drawn(drawing, call)
        results.update(
            {
                "guardwrap.prompts": len(study.plan.forecasts),
                "guardwrap.attempts": study.plan.spent[0],
                "guardwrap.sampler": study.plan.sampler,
            }
        )
    return study


def _drawn(drawing: Drawing, call: _Call) -> Study:
    """Draw the pilots, and make the plan."""
    first = drawing.first(call.options, weigh=call.weighed, texts=call.texts)
    if drawing.stopped and not first.least:
        return Study(_without_pilot(drawing, first))
    greedy = not first.attempts or first.outcomes[0].report.acceptance is None  # greedy search has only one text
    others: list[_Pilot] = []
    left_out: list[str] = []
    weighed = None
    if not greedy:
        others, left_out = _others(drawing, call, first)
        first, twisted, weighed, refused = _twisted(drawing, call, first, others)
        others += twisted
        left_out += refused
    return _study(drawing, call, first, others, weighed, left_out)


def _without_pilot(drawing: Drawing, first: PilotAttempts) -> Plan:
    """Return the plan of a pilot whose time was over before each prompt had an attempt."""
    none = sum(not attempts for attempts in first.attempts)
    unplanned = Unplanned(drawing.max_seconds or 0, none, len(first.attempts))
    return Plan((), "rejection", None, spent=(drawing.drawn, drawing.seconds), unplanned=unplanned)


def _read(session: LocalSession | EndpointSession, prompts: Any, options: dict[str, Any]) -> _Call:
    texts = require_whole("num_return_sequences", options.pop("num_return_sequences", None) or 1, 1)
    elsewhere = session.draws_elsewhere(options)
    named = None if options.get("sampler") is None else sampler_named(options["sampler"])
    if named is None and session.sampler.name in ("qrs", "auto"):
        named = session.sampler
    goal = Goal() if named is None else named.goal
    if named is not None and named.name == "auto":  # the plan chooses
        named, options["sampler"] = None, "rejection"
    if named is not None and named.name not in _PLANNED:
        raise UsageError(f"a plan can estimate only {' and '.join(_PLANNED)}, not {named.name}; leave sampler out")
    weighed = elsewhere and (session.weighs(prompts, options) if named is None else named.weighs)
    return _Call(options, texts, goal, named and named.name, not elsewhere, weighed)


_Pilot = tuple[bool, Mapping[str, Any], PilotAttempts]
"""Whether attempts have weights, the options of a call that draws like this, and the attempts."""


def _others(drawing: Drawing, call: _Call, first: PilotAttempts) -> tuple[list[_Pilot], list[str]]:
    """Draw pilots of the model itself and of a mask; return them, and the names of those left out."""
    pilots: list[_Pilot] = []
    left_out: list[str] = []
    for weigh, options in drawing.session.other_ways(call.options):
        count = first.least
        if count and drawing.affords(count * len(first.attempts), drawing.expected):
            pilot = drawing.draw(count, options, weigh=weigh)
            if pilot.least:
                pilots.append((weigh, options, pilot))
                continue
        left_out.append("a mask" if weigh else "the model itself")
    return pilots, left_out


def _of_model(call: _Call, first: PilotAttempts, others: Sequence[_Pilot]) -> PilotAttempts | None:
    """Return the attempts of the model itself; None if the plan has none."""
    return first if call.itself else next((pilot for weigh, _, pilot in others if not weigh), None)


def _twisted(
    drawing: Drawing, call: _Call, first: PilotAttempts, others: Sequence[_Pilot]
) -> tuple[PilotAttempts, list[_Pilot], PilotAttempts | None, list[str]]:
    """Draw pilots of a twist, if an automaton follows the constraint and the plan may cost that much.

    Returns
    -------
    PilotAttempts
        The pilot of the call itself, which may be longer now: where few attempts pass, it shows what is affordable.
    list
        The pilot of ``Twisted()``.
    PilotAttempts or None
        Weighed attempts that estimate the acceptance rate of the model, if few of its own attempts pass.
    list of str
        The name of the twist if it was left out.
    """
    if drawing.is_over():  # the automaton alone may take seconds
        return first, [], None, []
    options = drawing.session.twisted_way(call.options)
    if options is None or first.outcomes[0].report.origin == Origin(shape=Shape.TWISTED):
        return first, [], None, []
    prompts = len(first.attempts)
    itself = _of_model(call, first, others)
    few = itself is not None and min(itself.passing) < FEW
    needed = drawing.session.left_to_learn(options) + prompts * (TWISTED + (WEIGHED if few else 0))
    run = fewest_attempts(first, call.texts)
    while few and call.itself and drawing.asked is None and not drawing.affords(needed, run):
        before = first.least
        if before >= LONGEST or not drawing.affords(prompts * before, run):
            break
        first = itself = drawing.further(first, call.options, weigh=call.weighed, texts=call.texts)
        few, run = min(first.passing) < FEW, fewest_attempts(first, call.texts)
        if first.least == before:
            break
    asked = drawing.asked is not None and drawing.asked >= LEARNS and few
    cheap = needed + drawing.drawn <= SHARE * run
    if drawing.is_over() or not (asked or cheap):
        return first, [], None, ["a twist"] if few else []
    weighed = None
    if few:
        best = drawing.session.twisted_way(call.options, RATE_STRENGTH)
        assert best is not None
        weighed = drawing.draw(max(WEIGHED, drawing.asked or 0), best, weigh=True, model_share=RATE_SHARE)
        weighed = weighed if weighed.least else None
    if drawing.is_over():
        return first, [], weighed, ["a twist"]
    pilot = drawing.draw(max(TWISTED, drawing.asked or 0), options, weigh=True)
    if not pilot.least:
        return first, [], weighed, ["a twist"]
    while drawing.asked is None and pilot.least < LONGEST and not tells_cost(pilot.attempts):
        before = pilot.least
        if not drawing.affords(prompts * before, run):
            break
        pilot = pilot.joined(drawing.draw(before, options, weigh=True, before=before))
        if pilot.least == before:
            break
    return first, [(True, options, pilot)], weighed, []


def _study(
    drawing: Drawing,
    call: _Call,
    first: PilotAttempts,
    others: Sequence[_Pilot],
    weighed: PilotAttempts | None,
    left_out: Sequence[str],
) -> Study:
    """Make the plan, and estimate the cost of each way."""
    session, goal = drawing.session, call.goal
    kind = "rejection" if not call.weighed else call.sampler or sampler_for(first.attempts, goal)
    figures = session.card_figures([outcome.prompt for outcome in first.outcomes], call.options)
    rates, basis = _rates(call, first, others, weighed)
    estimates: Sequence[Estimate | None] = [None] * len(first.attempts)
    if call.itself:
        estimates = rates
    elif figures is not None:
        after, before = figures.acceptance_after, figures.acceptance_before
        if kind == "rejection" and after is not None:
            estimates, basis = [after.estimate] * len(first.attempts), ["the adapter's card"] * len(first.attempts)
        if before is not None:
            rates = [before.estimate] * len(first.attempts)
    budgets = session.budgets(len(first.outcomes), call.options)
    plan = planned(
        first.outcomes,
        first.attempts,
        texts=call.texts,
        budgets=budgets,
        rows=call.options.get("batch_size") or session.batch_size,
        kind=kind,
        goal=goal,
        rates=estimates,
        means=Means(
            prompt=session.call_class.reads_text,
            hint=call.itself and session.takes_hint(drawing.prompts, call.options),
            adapter=session.trains,
            itself=call.itself,
            weighed=call.weighed,
        ),
    )
    words = [said if rate is not None else "" for said, rate in zip(basis, estimates, strict=True)]
    forecasts = tuple(dataclasses.replace(one, basis=said) for one, said in zip(plan.forecasts, words, strict=True))
    chosen = call.sampler is None and kind != "rejection"
    spent = (drawing.drawn, drawing.seconds)
    plan = dataclasses.replace(
        plan, forecasts=forecasts, chosen=chosen, spent=spent, left_out=_why_not(drawing, left_out)
    )
    if not first.attempts or first.outcomes[0].report.acceptance is None:
        return Study(plan, goal=goal)
    ways = [_way(session, call, kind, call.options, first, estimates)]
    for weigh, options, pilot in others:
        of_way = sampler_for(pilot.attempts, goal) if weigh else "rejection"
        ways.append(_way(session, call, of_way, options, pilot, None if weigh else rates))
    return Study(dataclasses.replace(plan, ways=tuple(way.cost for way in ways)), ways, goal)


def _way(
    session: LocalSession | EndpointSession,
    call: _Call,
    kind: str,
    options: Mapping[str, Any],
    pilot: PilotAttempts,
    rates: Sequence[Estimate | None] | None,
) -> Way:
    learned = session.learned_from(options)
    cost = alternative_of(
        pilot.outcomes,
        pilot.attempts,
        kind=kind,
        texts=call.texts,
        goal=call.goal,
        rates=rates,
        learning=(learned.attempts, learned.computed_tokens),
    )
    return Way(cost, options, pilot)


def _rates(
    call: _Call, first: PilotAttempts, others: Sequence[_Pilot], weighed: PilotAttempts | None
) -> tuple[list[Estimate | None], list[str]]:
    """Estimate the acceptance rate of the model for prompts with few passing attempts, and say from what."""
    itself = _of_model(call, first, others)
    sources = [("proposal", first)] if call.weighed else []
    sources += [("mask or a twist", pilot) for weigh, _, pilot in others if weigh]
    made = weighed is not None  # for this, so others, whose weights vary more, are not asked if it cannot tell
    if weighed is not None:
        sources = [("twist", weighed)]
    rates: list[Estimate | None] = []
    basis = []
    for number in range(len(first.attempts)):
        rate, words = None, ""
        plain = [] if itself is None else itself.attempts[number]
        if sum(attempt.satisfied for attempt in plain) < FEW:
            for name, source in sources:
                estimate, known = model_rate(plain, source.attempts[number])
                drawn = counted(len(source.attempts[number]), "weighed attempt")
                of_model = f"{counted(len(plain), 'attempt')} of the model" if plain else ""
                if known:
                    rate, words = estimate, f"{drawn} of a {name}{' and ' if of_model else ''}{of_model}"
                    break
                if rate is None and made and estimate.low > 0 and not any(a.satisfied for a in plain):
                    rate, words = estimate, f"{drawn} of a {name}, whose weights tell it only roughly, and {of_model}"
        rates.append(rate)
        basis.append(words)
    return rates, basis


def _why_not(drawing: Drawing, left_out: Sequence[str]) -> str:
    """Say which ways were not tried, and why, and what the plan's time limit did to its figures."""
    dropped = "attempts were dropped when the plan's time was over, which favors short texts in its figures"
    untried = _untried(drawing, left_out)
    return "; ".join(words for words in (untried, dropped if drawing.stopped else "") if words)


def _untried(drawing: Drawing, left_out: Sequence[str]) -> str:
    if not left_out:
        return ""
    several = len(left_out) > 1
    untried = f"{' and '.join(left_out)} {'were' if several else 'was'} not tried"
    if drawing.is_over():
        return f"{untried}, as the plan's time was over"
    if drawing.asked is not None:
        return f"{untried}, as it takes hundreds of attempts to learn; pass pilot={LEARNS} or more"
    return (
        f"{untried}, to keep the plan below a tenth of the run; pass pilot={LEARNS} to try "
        f"{'them' if several else 'it'} whatever the plan costs"
    )
