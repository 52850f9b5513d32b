"""The pilot of a call, and the plan that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from guardwrap.asking import require_whole
from guardwrap.planning import Plan, planned
from guardwrap.remote import EndpointSession
from guardwrap.samplers import sampler_named
from guardwrap.session import Session
from guardwrap.ways import cheapest, way_of

__all__ = ["plan_of"]


def plan_of(session: Session | EndpointSession, prompts: Any, pilot: int, options: Mapping[str, Any]) -> Plan:
    """Say what a call will cost; see ``GuardedGenerator.plan``.

    Parameters
    ----------
    session
        What would serve the call.
    prompts, options
        Of the call.
    pilot
        Attempts for each prompt, from each source of texts.
    """
    options = dict(options)
    prompts = list(prompts) if isinstance(prompts, Iterator) else prompts  # they are drawn for more than once
    texts = require_whole("num_return_sequences", options.pop("num_return_sequences", None) or 1, 1)
    elsewhere = session.draws_elsewhere(options)
    named = options.get("sampler")
    weighed = elsewhere and (session.weighs(prompts, options) if named is None else sampler_named(named).weighs)
    outcomes, attempts = session.pilot(prompts, pilot, weigh=weighed, **options)
    budget = options.get("budget") or session.budget
    rows = options.get("batch_size") or session.batch_size
    made = planned(outcomes, attempts, texts=texts, budget=budget, rows=rows, elsewhere=elsewhere, weighed=weighed)
    if not attempts or outcomes[0].report.acceptance is None:  # greedy search has but one text
        return made
    ways = [way_of(outcomes, attempts, weighed=weighed, texts=texts)]
    for weigh, rest in session.other_ways(options):
        seen = session.pilot(prompts, pilot, weigh=weigh, **rest)
        ways.append(way_of(*seen, weighed=weigh, texts=texts))
    hint = cheapest(ways, budget)
    return dataclasses.replace(made, ways=tuple(ways), advice=hint or made.advice)
