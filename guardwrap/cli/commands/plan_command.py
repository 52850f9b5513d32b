"""``guardwrap plan``: what a run will cost, before it is paid for."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guardwrap.budget import Budget
from guardwrap.cli.flags import as_said, by_places, in_flags, told_in_flags
from guardwrap.cli.generation_options import (
    AttemptLimit,
    BatchSize,
    Chat,
    ComputedTokensLimit,
    Count,
    JSONLines,
    MaxNewTokens,
    PromptFile,
    SecondsLimit,
    Temperature,
    TokenLimit,
    TopK,
    TopP,
)
from guardwrap.cli.progress_log import now_and_then
from guardwrap.cli.proposal_options import proposed_by
from guardwrap.cli.shared import (
    Adapter,
    AllowCode,
    Constraints,
    Masked,
    Model,
    NoProposal,
    Prompts,
    Proposal,
    Server,
    Verbose,
    generator_of,
    known,
    load_generator,
    printable_text,
    read_constraints,
)
from guardwrap.documents.validation import read_option
from guardwrap.errors import UsageError
from guardwrap.formatting import counted
from guardwrap.prompt_files.overrides import OPTIONS, own_of
from guardwrap.prompt_files.prompts import Item, prompt_source_of

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator
    from guardwrap.planning.plan import Plan

__all__ = ["plan"]

_SHOWN = 8
"""Prompts that a pilot is drawn for, at most: the first of each rule and budget, and then the first of all."""

_KIND = tuple(name for name in OPTIONS if name != "seed")


_Sampler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Plan for this one: rejection or qrs; if left out the one that brings the texts near g.",
    ),
]
_Pilot = Annotated[int, typer.Option(min=2, help=f"Attempts of the pilot for a prompt; of many, {_SHOWN} are tried.")]
_PilotSeed = Annotated[int | None, typer.Option(help="Of the pilot.")]
_AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def plan(
    prompts: Prompts = None,
    constraints: Constraints = ...,  # type: ignore[assignment]  # required
    file: PromptFile = None,
    jsonl: JSONLines = None,
    chat: Chat = False,
    model: Model = "local",
    endpoint: Server = None,
    sampler: _Sampler = None,
    proposal: Proposal = None,
    adapter: Adapter = None,
    masked: Masked = False,
    no_proposal: NoProposal = False,
    pilot: _Pilot = 64,
    count: Count = 1,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: _PilotSeed = None,
    batch_size: BatchSize = None,
    max_attempts: AttemptLimit = None,
    max_tokens: TokenLimit = None,
    max_computed_tokens: ComputedTokensLimit = None,
    max_seconds: SecondsLimit = None,
    allow_code: AllowCode = False,
    as_json: _AsJSON = False,
    verbose: Verbose = 0,
) -> None:
    """Say what generating will cost: a small pilot, and what follows from it.

    For each prompt the acceptance rate, the attempts, tokens and seconds expected, how probably the budget suffices,
    and which part of the constraint rejects most; then the sampler and the budget that it would choose, and what
    drawing from the model itself, and masked (generate --masked), would cost.
    """
    given = read_constraints(constraints, allow_code=allow_code)
    limits = {"max_attempts": max_attempts, "max_tokens": max_tokens, "max_computed_tokens": max_computed_tokens}
    budget = dataclasses.replace(given.budget or Budget(), **known({**limits, "max_seconds": max_seconds}))
    source = prompt_source_of(prompts or [], file, jsonl)
    if source.path is not None:
        source = dataclasses.replace(source, read_own=own_of(source.path, given.constraint, budget))
    tried, others = _tried(islice(source.items(), _SHOWN) if source.streams else source.items())
    if not tried:
        raise UsageError("there is no prompt to plan for")
    generation = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    named = None if sampler is None else read_option(sampler, "--sampler")
    served = endpoint is not None
    proposed, drawing = proposed_by(
        given, proposal=proposal, masked=masked, adapter=adapter, none=no_proposal, served=served
    )
    generator = generator_of(model, endpoint)
    wrapper = {"budget": budget, "proposal": proposed, "adapter": drawing, "batch_size": batch_size}
    options = known({**generation, "seed": seed, "sampler": named})
    guarded = load_generator(generator, given, **wrapper)
    made = _plan(guarded, tried, chat=chat, pilot=pilot, num_return_sequences=count, **options)
    drawn_by = {"--proposal": proposal is not None, "--adapter": adapter is not None, "--masked": masked}
    advice = as_said(in_flags(made.advice), [flag for flag, is_given in drawn_by.items() if is_given])
    if source.path is not None:  # by their lines, as not only the first are tried
        advice = by_places(advice, [item.where for item in tried])
    made = dataclasses.replace(made, advice=advice)
    typer.echo(json.dumps(made.to_dict(), indent=1) if as_json else printable_text(in_flags(str(made))))
    if others and not as_json:
        typer.echo(_of_others(tried, others, [each.attempts.value for each in made.forecasts]))


def _plan(guarded: GuardedGenerator, items: Sequence[Item], *, chat: bool, **options: Any) -> Plan:
    """Plan for some prompts, and show how far the pilot is."""
    start = monotonic()
    drawn: list[None] = []

    def line() -> str:
        return f"guardwrap: {counted(len(drawn), 'attempt')} of the pilot drawn in {monotonic() - start:.0f} s"

    prompts = [item.given(chat) for item in items]
    own = [item.own for item in items]
    with now_and_then(line), told_in_flags():
        return guarded.plan(prompts, constraint_each=own, on_attempt=partial(drawn.append, None), **options)


def _kind(item: Item) -> str:
    """Return what prompts have alike that take as many attempts: their own rule, sampler and budget."""
    return json.dumps({name: item.fields.get(name) for name in _KIND}, sort_keys=True)


def _tried(items: Iterable[Item]) -> tuple[list[Item], Counter[str]]:
    """Return the prompts that are tried, in their order, and how many of each kind are not."""
    firsts: dict[str, tuple[int, Item]] = {}
    early: list[tuple[int, Item]] = []
    kinds: Counter[str] = Counter()
    for number, item in enumerate(items):
        kind = _kind(item)
        kinds[kind] += 1
        if kind not in firsts and len(firsts) < _SHOWN:
            firsts[kind] = number, item
        elif len(early) < _SHOWN:
            early.append((number, item))
    tried = sorted([*firsts.values(), *early[: _SHOWN - len(firsts)]], key=itemgetter(0))
    for _, item in tried:
        kinds[_kind(item)] -= 1
    return [item for _, item in tried], +kinds


def _of_others(tried: Sequence[Item], others: Counter[str], attempts: Sequence[float]) -> str:
    """Say what the prompts that were not tried will take, by those of their kind."""
    seen: dict[str, list[float]] = {}
    for item, count in zip(tried, attempts, strict=True):
        seen.setdefault(_kind(item), []).append(count)
    said = f"{counted(others.total(), 'other prompt')} {'was' if others.total() == 1 else 'were'} not tried"
    if unlike := sum(count for kind, count in others.items() if kind not in seen):
        said += f", {unlike} of them with a rule, sampler or budget that none of these has"
    means = {kind: sum(counts) / len(counts) for kind, counts in seen.items()}
    alike = sum(attempts) + sum(means[kind] * count for kind, count in others.items() if kind in means)
    if math.isfinite(alike):
        who = "all" if not unlike else "the rest of them and these"
        like = "they are like these" if len(seen) == 1 else "prompts of one rule and budget are alike"
        said += f"; if {like}, {who} take {alike:,.0f} attempts"
    return said
