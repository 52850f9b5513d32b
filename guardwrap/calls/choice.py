"""The choice of ``sampler="auto"``: what to draw from and how, decided by a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from guardwrap.budget import Budget
from guardwrap.calls.base_session import BaseSession
from guardwrap.calls.estimates import Alternative
from guardwrap.calls.job import Job
from guardwrap.calls.pilot import MOST, Study, Way, studied, takes_hint
from guardwrap.engine.scheduling.randomness import seed_for
from guardwrap.errors import UsageError
from guardwrap.outcomes import ITSELF
from guardwrap.samplers import qrs
from guardwrap.samplers.protocol import rejection
from guardwrap.support.formatting import counted, digits, one_of

PROMPTS = 8
"""The most prompts of a call that are planned for. Of prompts that come one by one, it is the first."""

LONGER = 8 * MOST
"""The attempts of the last plan, if there is a way within the budget whose distance the plans before could not tell."""

_NO_PLAN = "the timeout was over before sampler='auto' had chosen what to draw from"


def is_unchosen(job: Job) -> bool:
    """Return whether a plan has to choose the sampler of a job."""
    return job.spec.sampler.name == "auto"


def without_choice(session: BaseSession, options: Mapping[str, Any], job: Job) -> Job:
    """Return the job of a call whose timeout was over before its plan: nothing is drawn for it any more."""
    plain = session.job({**options, "seed": job.spec.seed, "sampler": rejection})
    return _instead_of(job, plain, _NO_PLAN)


def with_choice(
    session: BaseSession, prompts: Iterable[Any], options: Mapping[str, Any], job: Job
) -> tuple[Iterable[Any], Job]:
    """Replace ``sampler="auto"`` by what a plan shows to be the best; return the same prompts, and the job to run.

    Prompts are in the form in which ``read_prompts`` returns them. UsageError if no way is within the budget at the
    wanted distance.
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
    budgets = session.job({**some, "seed": 0}).budgets(len(first))
    # All plans together take at most as long as the call itself may, whose timeout counts from the call.
    seconds, began = min(map(_seconds, budgets)), time.monotonic()
    if job.spec.budget.timeout is not None:
        seconds = min(seconds, job.spec.budget.timeout - (began - job.called))
    if seconds <= 0:
        return prompts, without_choice(session, options, job)
    best, note, study = _planned(session, first, some, seed, budgets, seconds)
    if best is None:
        if job.seconds_left is not None and job.seconds_left <= 0:
            return prompts, without_choice(session, options, job)
        raise _no_way(session, first, some, study)
    cost, way = best
    sampler = rejection if cost.sampler == "rejection" else qrs(target_tvd=study.goal.tvd)
    chosen = session.job({**options, **_source(way, options), "sampler": sampler})
    return prompts, _instead_of(job, chosen, note)


def _instead_of(job: Job, other: Job, *notes: str) -> Job:
    """Return a job that replaces another one of the same call, with further notes."""
    source = replace(other.source, notes=(*other.source.notes, *notes))
    return replace(other, source=source, hooks=job.hooks, called=job.called, span=job.span)


def chosen_source(session: BaseSession, prompts: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the ``proposal=`` and ``adapter=`` that ``sampler="auto"`` would draw from, and their description."""
    first = list(islice(session.call_class.read_prompts(prompts).prompts, PROMPTS))
    budgets = session.job(options).budgets(len(first))
    best, _, study = _planned(session, first, options, options["seed"], budgets, min(map(_seconds, budgets)))
    if best is None:
        raise _no_way(session, first, options, study)
    cost, way = best
    return _source(way, options), cost.source


def _source(way: Way, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say what a way draws from."""
    return {name: way.options.get(name, options.get(name)) for name in ("proposal", "adapter")}


_Row = tuple[Alternative, Way]


def _planned(
    session: BaseSession,
    prompts: list[Any],
    options: Mapping[str, Any],
    seed: int,
    budgets: list[Budget],
    seconds: float,
) -> tuple[_Row | None, str, Study]:
    """Plan until a way is found, for at most ``seconds``; return it and a note, or None, and the last plan."""
    drawn, study, began = 0, None, time.monotonic()
    for pilot in (None, MOST, LONGER):  # the cheap plan first, which is enough if most texts pass
        left = seconds if study is None else seconds - (time.monotonic() - began)
        if study is not None and (left <= 0 or (pilot == LONGER and not _affordable(study, budgets))):
            break
        most = left if math.isfinite(left) else None
        study = studied(session, prompts, pilot, {**options, "seed": seed_for(seed, f"auto {pilot}")}, most)
        drawn += study.plan.spent[0]
        best, why = _best(study, budgets)
        if best is not None:
            cost, _ = best
            note = (
                f"sampler='auto' chose {cost.sampler} from {cost.source}: {why}; its plan took "
                f"{counted(drawn, 'attempt')}, which are not part of this report's cost"
            )
            return best, note, study
    assert study is not None
    return None, "", study


def _no_way(session: BaseSession, prompts: list[Any], options: Mapping[str, Any], study: Study) -> UsageError:
    """Return the error of a call for which no plan found a way."""
    if not study.plan.forecasts:
        return UsageError(
            "sampler='auto' plans a call within its time, which was over before the first attempt was complete; raise "
            "max_seconds"
        )
    figures = "; ".join(map(str, study.plan.ways)) or "there is only one text"
    hint = ["pass a hint as proposal="] if takes_hint(session, prompts, options) else []
    return UsageError(
        f"sampler='auto' has no way within the budget at a TVD of {study.goal.tvd:g} ({figures}); "
        f"{one_of(['raise the budget or target_tvd', *hint, 'weaken the constraint'])}"
    )


def _affordable(study: Study, budgets: list[Budget]) -> list[_Row]:
    """Return the ways whose expected cost is within the budgets, whether or not their texts can be told to be near."""
    attempts, seconds = study.plan.spent
    pace = seconds / max(attempts, 1)
    return [row for row in study.ways if all(_within(row[0], budget, pace) for budget in budgets)]


def _best(study: Study, budgets: list[Budget]) -> tuple[_Row | None, str]:
    """Return the way to draw, and why; None if there is none."""
    affordable = _affordable(study, budgets)
    for cost, way in affordable:
        if cost.drawn_from == ITSELF and cost.sampler == "rejection":
            expected = f"{digits(cost.attempts)} attempts are expected"
            return (cost, way), f"it is exact, and twice its cost is within the budget ({expected})"
    near = [(cost, way) for cost, way in affordable if cost.drawn_from != ITSELF and _confirms(way)]
    if not near:
        return None, ""
    best = min(near, key=lambda row: row[0].tokens.value)
    why = f"{digits(best[0].tokens.value)} computed tokens per text at a TVD of {study.goal.tvd:g}"
    exact = next((cost.tokens for cost in study.plan.ways if cost.drawn_from == ITSELF), None)
    if exact is None:
        return best, why
    least = digits(exact.value if math.isfinite(exact.value) else exact.low)
    return best, f"{why}, where exact rejection takes about {least} or more"


def _confirms(way: Way) -> bool:
    """Return whether a way's attempts have weights that can tell the distance to g."""
    attempts = way.pilot.attempts
    return all(of_prompt and of_prompt[0].log_weight is not None for of_prompt in attempts) and way.pilot.tells_cost


def _seconds(budget: Budget) -> float:
    """Return the most seconds of a budget; infinite if it has no such limit."""
    return min(budget.max_seconds or math.inf, budget.deadline or math.inf, budget.timeout or math.inf)


def _within(cost: Alternative, budget: Budget, pace: float) -> bool:
    """Return whether twice the expected cost of the most expensive prompt is within its budget."""
    return (
        math.isfinite(cost.attempts)
        and 2 * cost.attempts <= (budget.max_attempts or math.inf)
        and 2 * cost.computed <= min(budget.max_computed_tokens or math.inf, budget.max_tokens or math.inf)
        and 2 * cost.attempts * pace <= _seconds(budget)
    )
