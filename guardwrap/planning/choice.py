"""The choice of ``sampler="auto"``: what to draw from and how, decided by a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from guardwrap.budget import Budget
from guardwrap.errors import UsageError
from guardwrap.formatting import counted, digits, one_of
from guardwrap.outcomes import ITSELF
from guardwrap.planning.alternatives import tells_cost
from guardwrap.planning.drawing import MOST
from guardwrap.planning.pilot import Study, Way, studied
from guardwrap.samplers import qrs
from guardwrap.samplers.protocol import rejection
from guardwrap.scheduling.randomness import seed_for
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.job import Job
from guardwrap.session.local_session import LocalSession

PROMPTS = 8
"""The most prompts of a call that are planned for. Of prompts that come one by one, it is the first."""

LONGER = 8 * MOST
"""The attempts of the last plan, if there is a way within the budget whose distance the plans before could not tell."""

_NO_PLAN = "the timeout was over before sampler='auto' had chosen what to draw from"


def is_unchosen(job: Job) -> bool:
    """Return whether a plan has to choose the sampler of a job."""
    return job.spec.sampler.name == "auto"


def without_choice(session: LocalSession | EndpointSession, options: Mapping[str, Any], job: Job) -> Job:
    """Return the job of a call whose timeout was over before its plan: nothing is drawn for it any more."""
    plain = session.job({**options, "seed": job.spec.seed, "sampler": rejection})
    return _instead_of(job, plain, _NO_PLAN)


def with_choice(
    session: LocalSession | EndpointSession, prompts: Iterable[Any], options: Mapping[str, Any], job: Job
) -> tuple[Iterable[Any], Job]:
    """Replace ``sampler="auto"`` by the sampler and the proposal that a plan shows to be the best.

    Parameters
    ----------
    session
        The session that runs the call.
    prompts, options
        Prompts, in the form in which ``read_prompts`` returns them, and the options passed with them.
    job
        The job of these options, whose sampler is not chosen yet.

    Returns
    -------
    iterable
        The same prompts.
    Job
        The job to run, with a note for its reports.

    Raises
    ------
    UsageError
        If no way is within the budget at the wanted distance.
    """
    seed = job.spec.seed
    options = {**options, "seed": seed}
    some: dict[str, Any] = {**options, "sampler": job.spec.sampler}
    some.pop("streamer", None)
    several = PROMPTS
    if isinstance(prompts, Iterator):
        first = list(islice(prompts, 1))
        prompts, several = chain(first, prompts), 1
    else:
        prompts = list(prompts)
        first = prompts[:several]
    for name in ("constraint_each", "fields"):
        if isinstance(each := options.get(name), Iterator):
            begin = list(islice(each, several))
            options = {**options, name: chain(begin, each)}
            some[name] = begin
        elif isinstance(each, list | tuple):
            some[name] = each[:several]
    if not first:
        return prompts, _instead_of(job, session.job({**options, "sampler": rejection}))
    budgets = session.budgets(len(first), {**some, "seed": 0})
    # All plans together take at most as long as the call itself may, whose timeout counts from the call.
    seconds, began = min(map(_seconds, budgets)), time.monotonic()
    if job.spec.budget.timeout is not None:
        seconds = min(seconds, job.spec.budget.timeout - (began - job.called))
    if seconds <= 0:
        return prompts, without_choice(session, options, job)
    way, note, study = _planned(session, first, some, seed, budgets, seconds)
    if way is None:
        if job.seconds_left is not None and job.seconds_left <= 0:
            return prompts, without_choice(session, options, job)
        raise _no_way(session, first, some, study)
    sampler = rejection if way.cost.sampler == "rejection" else qrs(target_tvd=study.goal.tvd)
    chosen = session.job({**options, **_source(way, options), "sampler": sampler})
    return prompts, _instead_of(job, chosen, note)


def _instead_of(job: Job, other: Job, *notes: str) -> Job:
    """Return a job that replaces another one of the same call, with further notes."""
    source = replace(other.source, notes=(*other.source.notes, *notes))
    return replace(other, source=source, called=job.called, span=job.span, tells=job.tells)


def chosen_source(
    session: LocalSession | EndpointSession, prompts: Any, options: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the ``proposal=`` and ``adapter=`` that ``sampler="auto"`` would draw from, and their description."""
    first = list(islice(session.call_class.read_prompts(prompts).prompts, PROMPTS))
    budgets = session.budgets(len(first), options)
    way, _, study = _planned(session, first, options, options["seed"], budgets, min(map(_seconds, budgets)))
    if way is None:
        raise _no_way(session, first, options, study)
    return _source(way, options), way.cost.source


def _source(way: Way, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say what a way draws from."""
    return {name: way.options.get(name, options.get(name)) for name in ("proposal", "adapter")}


def _planned(
    session: LocalSession | EndpointSession,
    prompts: list[Any],
    options: Mapping[str, Any],
    seed: int,
    budgets: list[Budget],
    seconds: float,
) -> tuple[Way | None, str, Study]:
    """Plan until a way is found, for at most ``seconds``; return it and a note, or None, and the last plan."""
    drawn, study, began = 0, None, time.monotonic()
    for pilot in (None, MOST, LONGER):  # the cheap plan first, which is enough if most texts pass
        left = seconds if study is None else seconds - (time.monotonic() - began)
        if study is not None and (left <= 0 or (pilot == LONGER and not _affordable(study, budgets))):
            break
        most = left if math.isfinite(left) else None
        study = studied(session, prompts, pilot, {**options, "seed": seed_for(seed, f"auto {pilot}")}, most)
        drawn += study.plan.spent[0]
        way, why = _best(study, budgets, drawn)
        if way is not None:
            note = (
                f"sampler='auto' chose {way.cost.sampler} from {way.cost.source}: {why}; its plan took "
                f"{counted(drawn, 'attempt')}, which are not part of this report's cost"
            )
            return way, note, study
    assert study is not None
    return None, "", study


def _no_way(
    session: LocalSession | EndpointSession, prompts: list[Any], options: Mapping[str, Any], study: Study
) -> UsageError:
    """Return the error of a call for which no plan found a way."""
    if not study.plan.forecasts:
        return UsageError(
            "sampler='auto' plans a call within its time, which was over before the first attempt was complete; raise "
            "max_seconds"
        )
    figures = "; ".join(str(way.cost) for way in study.ways) or "there is only one text"
    hint = ["pass a hint as proposal="] if session.takes_hint(prompts, options) else []
    return UsageError(
        f"sampler='auto' has no way within the budget at a TVD of {study.goal.tvd:g} ({figures}); "
        f"{one_of(['raise the budget or target_tvd', *hint, 'weaken the constraint'])}"
    )


def _affordable(study: Study, budgets: list[Budget]) -> list[Way]:
    """Return the ways whose expected cost is within the budgets, whether or not their texts can be told to be near."""
    attempts, seconds = study.plan.spent
    pace = seconds / max(attempts, 1)
    return [way for way in study.ways if all(_within(way, budget, pace) for budget in budgets)]


def _best(study: Study, budgets: list[Budget], drawn: int) -> tuple[Way | None, str]:
    """Return the way to draw, and why; None if there is none."""
    affordable = _affordable(study, budgets)
    for way in affordable:
        if way.cost.drawn_from == ITSELF and way.cost.sampler == "rejection":
            expected = f"{digits(way.cost.attempts)} attempts are expected"
            return way, f"it is exact, and twice its cost is within the budget ({expected})"
    near = [way for way in affordable if way.cost.drawn_from != ITSELF and _confirms(way)]
    if not near:
        return None, ""
    best = min(near, key=lambda way: way.cost.tokens.value)
    exact = next((way for way in study.ways if way.cost.drawn_from == ITSELF), None)
    cost = f"{digits(best.cost.tokens.value)} computed tokens per text"
    if exact is None:
        return best, f"{cost} at a TVD of {study.goal.tvd:g}"
    least = digits(exact.cost.tokens.value if math.isfinite(exact.cost.tokens.value) else exact.cost.tokens.low)
    return best, f"{cost} at a TVD of {study.goal.tvd:g}, where exact rejection takes about {least} or more"


def _confirms(way: Way) -> bool:
    """Return whether a way's attempts have weights that can tell the distance to g."""
    return all(each and each[0].log_weight is not None for each in way.pilot.attempts) and tells_cost(
        way.pilot.attempts
    )


def _seconds(budget: Budget) -> float:
    """Return the most seconds of a budget; infinite if it has no such limit."""
    return min(budget.max_seconds or math.inf, budget.deadline or math.inf, budget.timeout or math.inf)


def _within(way: Way, budget: Budget, pace: float) -> bool:
    """Return whether twice the expected cost of the most expensive prompt is within its budget."""
    cost = way.cost
    return (
        math.isfinite(cost.attempts)
        and 2 * cost.attempts <= (budget.max_attempts or math.inf)
        and 2 * cost.computed <= min(budget.max_computed_tokens or math.inf, budget.max_tokens or math.inf)
        and 2 * cost.attempts * pace <= _seconds(budget)
    )
