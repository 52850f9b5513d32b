"""The pilot of a call, and the plan made from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from guardwrap.errors import UsageError, require_whole
from guardwrap.planning.alternatives import alternative_of, cheapest, sampler_for
from guardwrap.planning.plan import Plan, planned, spent
from guardwrap.samplers import sampler_named
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.local_session import LocalSession

__all__ = ["plan_of"]

_PLANNED = ("rejection", "qrs")
"""Samplers whose cost can be estimated from a pilot."""


def plan_of(session: LocalSession | EndpointSession, prompts: Any, pilot: int, options: Mapping[str, Any]) -> Plan:
    """Estimate the cost of a call; see ``GuardedGenerator.plan``.

    Parameters
    ----------
    session
        The session that would run the call.
    prompts, options
        Prompts and options of the planned call.
    pilot
        The number of attempts per prompt, for each way to draw texts.
    """
    options = dict(options)
    on_attempt = options.pop("on_attempt", None)
    prompts = list(prompts) if isinstance(prompts, Iterator) else prompts  # used by several pilots
    texts = require_whole("num_return_sequences", options.pop("num_return_sequences", None) or 1, 1)
    elsewhere = session.draws_elsewhere(options)
    named = None if options.get("sampler") is None else sampler_named(options["sampler"])
    if named is None and session.sampler.name == "qrs":
        named = session.sampler
    if named is not None and named.name not in _PLANNED:
        raise UsageError(f"a plan can estimate only {' and '.join(_PLANNED)}, not {named.name}; leave sampler out")
    weighed = elsewhere and (session.weighs(prompts, options) if named is None else named.weighs)
    if isinstance(options.get("constraint_each"), Iterator):
        options["constraint_each"] = list(options["constraint_each"])
    outcomes, attempts = session.pilot(prompts, pilot, weigh=weighed, on_attempt=on_attempt, **options)
    budgets = session.budgets(len(outcomes), options)
    kind = "rejection" if not weighed else sampler_for(attempts) if named is None else named.name
    plan = planned(
        outcomes,
        attempts,
        texts=texts,
        budgets=budgets,
        rows=options.get("batch_size") or session.batch_size,
        kind=kind,
        itself=not elsewhere,
        weighed=weighed,
    )
    plan = dataclasses.replace(plan, chosen=named is None and kind != "rejection")
    if not attempts or outcomes[0].report.acceptance is None:  # greedy search has only one text
        return plan
    ways = [alternative_of(outcomes, attempts, kind=kind, texts=texts)]
    drawn, seconds = plan.spent
    for weigh, rest in session.other_ways(options):
        outcomes, attempts = session.pilot(prompts, pilot, weigh=weigh, on_attempt=on_attempt, **rest)
        ways.append(
            alternative_of(outcomes, attempts, kind=sampler_for(attempts) if weigh else "rejection", texts=texts)
        )
        of_way = spent(outcomes)
        drawn, seconds = drawn + of_way[0], seconds + of_way[1]
    hint = cheapest(ways, budgets)
    return dataclasses.replace(plan, ways=tuple(ways), advice=hint or plan.advice, spent=(drawn, seconds))
