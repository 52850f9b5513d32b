"""The choice of ``sampler="auto"``: what to draw from and how, decided by a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from guardwrap.budget import Budget
from guardwrap.errors import UsageError, require_whole
from guardwrap.formatting import counted, digits
from guardwrap.planning.alternatives import tells_cost
from guardwrap.planning.drawing import MOST, later_seed
from guardwrap.planning.pilot import Study, Way, studied
from guardwrap.samplers import qrs
from guardwrap.samplers.rejection import rejection
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.local_session import LocalSession

__all__ = ["with_choice"]

PROMPTS = 8
"""The most prompts of a call that are planned for. Of prompts that come one by one, it is the first."""

ITSELF = "the model itself"


def with_choice(
    session: LocalSession | EndpointSession, prompts: Iterable[Any], options: Mapping[str, Any]
) -> tuple[Iterable[Any], Mapping[str, Any], tuple[str, ...]]:
    """Replace ``sampler="auto"`` by the sampler and the proposal that a plan shows to be the best.

    Parameters
    ----------
    session
        The session that runs the call.
    prompts, options
        Prompts, in the form in which ``read_prompts`` returns them, and the options passed with them.

    Returns
    -------
    iterable, mapping
        The same prompts, and the options of the call to run.
    tuple of str
        A note for its reports; none if the sampler is another one.

    Raises
    ------
    UsageError
        If no way is within the budget at the wanted distance.
    """
    sampler = session.sampler_of(options)
    if sampler.name != "auto":
        return prompts, options, ()
    seed = options.get("seed")
    seed = session.next_seed() if seed is None else require_whole("seed", seed, 0)
    options = {**options, "seed": seed}
    some: dict[str, Any] = {**options, "sampler": sampler}
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
        return prompts, {**options, "sampler": rejection}, ()
    budgets = session.budgets(len(first), {**some, "seed": 0})
    # A plan takes at most as long as the call itself may.
    most = min((of for budget in budgets for of in (budget.max_seconds, budget.deadline) if of), default=None)
    drawn = 0
    for pilot in (None, MOST):  # the cheap plan first, which is enough if most texts pass
        study = studied(session, first, pilot, {**some, "seed": later_seed(seed, f"auto {pilot}")}, most)
        drawn += study.plan.spent[0]
        way, why = _best(study, budgets, drawn)
        if way is not None:
            sampler = rejection if way.cost.sampler == "rejection" else qrs(target_tvd=study.goal.tvd)
            source = {name: way.options.get(name, options.get(name)) for name in ("proposal", "adapter")}
            note = (
                f"sampler='auto' chose {way.cost.sampler} from {way.cost.source}: {why}; its plan took "
                f"{counted(drawn, 'attempt')}, which are not part of this report's cost"
            )
            return prompts, {**options, **source, "sampler": sampler}, (note,)
    figures = "; ".join(str(way.cost) for way in study.ways) or "there is only one text"
    raise UsageError(
        f"sampler='auto' has no way within the budget at a TVD of {study.goal.tvd:g} ({figures}); raise the budget or "
        "target_tvd, pass a hint as proposal=, or weaken the constraint"
    )


def _best(study: Study, budgets: list[Budget], drawn: int) -> tuple[Way | None, str]:
    """Return the way to draw, and why; None if there is none."""
    attempts, seconds = study.plan.spent
    pace = seconds / max(attempts, 1)
    affordable = [way for way in study.ways if all(_within(way, budget, pace) for budget in budgets)]
    for way in affordable:
        if way.cost.source == ITSELF and way.cost.sampler == "rejection":
            expected = f"{digits(way.cost.attempts)} attempts are expected"
            return way, f"it is exact, and twice its cost is within the budget ({expected})"
    near = [way for way in affordable if way.cost.source != ITSELF and _confirms(way)]
    if not near:
        return None, ""
    best = min(near, key=lambda way: way.cost.tokens.value)
    exact = next((way for way in study.ways if way.cost.source == ITSELF), None)
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


def _within(way: Way, budget: Budget, pace: float) -> bool:
    """Return whether twice the expected cost of the most expensive prompt is within its budget.

    Parameters
    ----------
    way, budget
        The way and the budget.
    pace
        Seconds per attempt.
    """
    cost = way.cost
    seconds = min(budget.max_seconds or math.inf, budget.deadline or math.inf)
    return (
        math.isfinite(cost.attempts)
        and 2 * cost.attempts <= (budget.max_attempts or math.inf)
        and 2 * cost.computed <= min(budget.max_computed_tokens or math.inf, budget.max_tokens or math.inf)
        and 2 * cost.attempts * pace <= seconds
    )
