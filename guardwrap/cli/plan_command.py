"""``guardwrap plan``: estimate what a run will cost."""

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
from typing import Annotated

import typer

from guardwrap.budget import Budget
from guardwrap.cli.flags import as_said, by_places, in_flags, told_in_flags
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

__all__ = ["plan"]

_SHOWN = 8
"""Maximum number of prompts in the pilot: first one of each constraint and budget, then the first ones of the input."""

_KIND = tuple(name for name in OPTIONS if name != "seed")


def plan(
    prompts: Prompts = None,
    constraints: Constraints = ...,  # type: ignore[assignment]  # required
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="A file with one prompt per line; - is stdin.")
    ] = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A JSON Lines file as for generate. The constraints and budgets of its lines apply.",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send each plain prompt as a user message.")] = False,
    model: Model = "local",
    endpoint: Server = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Plan for this sampler: rejection or qrs; default: the one whose texts are close to g.",
        ),
    ] = None,
    proposal: Proposal = None,
    adapter: Adapter = None,
    masked: Masked = False,
    no_proposal: NoProposal = False,
    pilot: Annotated[int, typer.Option(min=2, help=f"Pilot attempts per prompt, for at most {_SHOWN} prompts.")] = 64,
    count: Annotated[int, typer.Option("-n", "--num-return-sequences", min=1, help="Texts per prompt.")] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens per text; default: the model's, or 256.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the model's own, or 0.7.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many of the most likely tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the pilot.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Maximum attempts in one batch; default: 32.")] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(help="Budget to plan for, in attempts; default: the limit in the constraint file, or 1000."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Budget to plan for, in tokens of all attempts.")] = None,
    max_computed_tokens: Annotated[
        int | None, typer.Option(help="Budget to plan for, in tokens that the model computes.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Budget to plan for, in seconds.")] = None,
    allow_code: AllowCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = 0,
) -> None:
    """Estimate the cost of a run from a small pilot.

    For each prompt, it shows the acceptance rate, the expected attempts, tokens and seconds, the probability that the
    budget suffices, and the part of the constraint that rejects most. It then recommends a sampler and a budget, and
    shows the cost of drawing from the model itself, and of masking (generate --masked).
    """
    given = read_constraints(constraints, allow_code=allow_code)
    limits = {
        "max_attempts": max_attempts,
        "max_tokens": max_tokens,
        "max_computed_tokens": max_computed_tokens,
        "max_seconds": max_seconds,
    }
    budget = dataclasses.replace(given.budget or Budget(), **known(limits))
    source = prompt_source_of(prompts or [], file, jsonl)
    if source.path is not None:
        source = dataclasses.replace(source, read_own=own_of(source.path, given.constraint, budget))
    first, others = _tried(islice(source.items(), _SHOWN) if source.streams else source.items())
    texts = [item.given(chat) for item in first]
    if not texts:
        raise UsageError("there is no prompt to plan for")
    named = None if sampler is None else read_option(sampler, "--sampler")
    options = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "sampler": named,
    }
    proposed, drawing = proposed_by(
        given, proposal=proposal, masked=masked, adapter=adapter, none=no_proposal, served=endpoint is not None
    )
    guarded = load_generator(
        generator_of(model, endpoint),
        given,
        budget=budget,
        proposal=proposed,
        adapter=drawing,
        batch_size=batch_size,
    )
    start = monotonic()
    drawn: list[None] = []

    def line() -> str:
        return f"guardwrap: {counted(len(drawn), 'attempt')} of the pilot drawn in {monotonic() - start:.0f} s"

    with now_and_then(line), told_in_flags():
        made = guarded.plan(
            texts,
            pilot=pilot,
            num_return_sequences=count,
            constraint_each=[item.own for item in first],
            on_attempt=partial(drawn.append, None),
            **known(options),
        )
    drawn_by = {"--proposal": proposal is not None, "--adapter": adapter is not None, "--masked": masked}
    advice = as_said(in_flags(made.advice), [flag for flag, is_given in drawn_by.items() if is_given])
    if source.path is not None:  # by their lines, as not only the first are tried
        advice = by_places(advice, [item.where for item in first])
    made = dataclasses.replace(made, advice=advice)
    typer.echo(json.dumps(made.to_dict(), indent=1) if as_json else printable_text(in_flags(str(made))))
    if others and not as_json:
        typer.echo(_of_others(first, others, [each.attempts.value for each in made.forecasts]))


def _kind(item: Item) -> str:
    """Return a key for prompts that cost alike: their own constraint, sampler and budget."""
    return json.dumps({name: item.fields.get(name) for name in _KIND}, sort_keys=True)


def _tried(items: Iterable[Item]) -> tuple[list[Item], Counter[str]]:
    """Return the prompts to try, in input order, and how many of each kind are left out."""
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
    """Estimate the attempts for the prompts that were not tried, from those of the same kind."""
    seen: dict[str, list[float]] = {}
    for item, count in zip(tried, attempts, strict=True):
        seen.setdefault(_kind(item), []).append(count)
    message = f"{counted(others.total(), 'other prompt')} {'was' if others.total() == 1 else 'were'} not tried"
    if unlike := sum(count for kind, count in others.items() if kind not in seen):
        message += f", {unlike} of them with a constraint, sampler or budget that no tried prompt has"
    means = {kind: sum(counts) / len(counts) for kind, counts in seen.items()}
    alike = sum(attempts) + sum(means[kind] * count for kind, count in others.items() if kind in means)
    if math.isfinite(alike):
        which = "all prompts" if not unlike else f"all prompts except those {unlike}"
        condition = "they are like these" if len(seen) == 1 else "prompts with the same constraint and budget are alike"
        message += f"; if {condition}, {which} take {alike:,.0f} attempts"
    return message
