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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guardwrap.budget import Budget
from guardwrap.cli.flags import in_flags, switched_to, told_in_flags
from guardwrap.cli.generate_request import proposed_by
from guardwrap.cli.options import (
    Adapter,
    AllowCode,
    AttemptLimit,
    BatchSize,
    Chat,
    ComputedTokensLimit,
    Constraints,
    Count,
    Dtype,
    JSONLines,
    Masked,
    MaxNewTokens,
    Model,
    NoProposal,
    PromptFile,
    Prompts,
    Proposal,
    SecondsLimit,
    Server,
    Temperature,
    TokenLimit,
    TopK,
    TopP,
    Twisted,
    Verbose,
)
from guardwrap.cli.progress_log import now_and_then
from guardwrap.cli.shared import generator_of, known, load_generator, printable_text, read_constraints
from guardwrap.constraints.files.template import require_filled
from guardwrap.documents.validation import read_option
from guardwrap.errors import UsageError
from guardwrap.formatting import counted
from guardwrap.prompt_files.overrides import OPTIONS, own_of
from guardwrap.prompt_files.prompts import Item, prompt_source_of

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator
    from guardwrap.planning.plan import Plan

_SHOWN = 8
"""Maximum number of prompts in the pilot: first one of each constraint and budget, then the first ones of the input."""

_KIND = tuple(name for name in OPTIONS if name != "seed")


_Sampler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Plan for this sampler: rejection or qrs; default: the one whose texts are close to g.",
    ),
]
_Pilot = Annotated[
    int | None,
    typer.Option(
        min=2,
        help=f"Pilot attempts per prompt and way, for at most {_SHOWN} prompts; default: up to 64, while that costs at "
        "most a tenth of the run. From 64 on, a twist is tried if few attempts pass.",
    ),
]
_PlanSeconds = Annotated[
    float | None, typer.Option(help="Maximum seconds for the plan itself, without loading the model.")
]
_PilotSeed = Annotated[int | None, typer.Option(help="Random seed of the pilot.")]
_AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def plan(
    prompts: Prompts = None,
    constraints: Constraints = ...,  # type: ignore[assignment]  # required
    file: PromptFile = None,
    jsonl: JSONLines = None,
    chat: Chat = False,
    model: Model = "local",
    dtype: Dtype = None,
    endpoint: Server = None,
    sampler: _Sampler = None,
    proposal: Proposal = None,
    adapter: Adapter = None,
    masked: Masked = False,
    twisted: Twisted = False,
    no_proposal: NoProposal = False,
    pilot: _Pilot = None,
    plan_seconds: _PlanSeconds = None,
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
    """Estimate the cost of a run from a small pilot.

    For each prompt, it shows the acceptance rate, the expected attempts, tokens and seconds, the probability that the
    budget suffices, and the part of the constraint that rejects most. It then recommends a sampler and a budget, and
    shows the cost of drawing from the model itself, of masking (generate --masked) and of a twist (--twisted).
    """
    constraint_file = read_constraints(constraints, allow_code=allow_code)
    budget_limits = {"max_attempts": max_attempts, "max_tokens": max_tokens, "max_computed_tokens": max_computed_tokens}
    budget = dataclasses.replace(
        constraint_file.budget or Budget(), **known({**budget_limits, "max_seconds": max_seconds})
    )
    source = prompt_source_of(prompts or [], file, jsonl)
    if not source.jsonl:
        require_filled(constraint_file.constraint)
    if source.path is not None:
        source = dataclasses.replace(source, read_own=own_of(source.path, constraint_file.constraint, budget))
    tried, others = _tried(islice(source.items(), _SHOWN) if source.streams else source.items())
    if not tried:
        raise UsageError("there is no prompt to plan for")
    generation = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    named = None if sampler is None else read_option(sampler, "--sampler")
    served = endpoint is not None
    proposed, drawing = proposed_by(
        constraint_file,
        proposal=proposal,
        masked=masked,
        twisted=twisted,
        adapter=adapter,
        none=no_proposal,
        served=served,
    )
    generator = generator_of(model, endpoint, dtype)
    wrapper = {"budget": budget, "proposal": proposed, "adapter": drawing, "batch_size": batch_size}
    options = known({**generation, "seed": seed, "sampler": named})
    guarded = load_generator(generator, constraint_file, dtype=dtype, **wrapper)
    limits = {"pilot": pilot, "max_seconds": plan_seconds}
    result = _plan(guarded, tried, chat=chat, **limits, num_return_sequences=count, **options)
    drawn_by = {"--proposal": proposal, "--adapter": adapter, "--masked": masked or None, "--twisted": twisted or None}
    if source.path is not None:  # name them by line, because the tried prompts need not be the first ones
        places = [dataclasses.replace(one, place=item.where) for one, item in zip(result.forecasts, tried, strict=True)]
        result = dataclasses.replace(result, forecasts=tuple(places))
    advice = in_flags(result.advised(partial(switched_to, used_flags=list(known(drawn_by)))))
    text = json.dumps({**result.to_dict(), "advice": advice}, indent=1)
    typer.echo(text if as_json else printable_text(in_flags(result.in_words(advice))))
    if others and not as_json:
        typer.echo(_of_others(tried, others, [each.attempts.value for each in result.forecasts]))


def _plan(guarded: GuardedGenerator, items: Sequence[Item], *, chat: bool, **options: Any) -> Plan:
    """Plan for some prompts, and show the progress of the pilot."""
    start = monotonic()
    drawn: list[None] = []

    def line() -> str:
        return f"guardwrap: {counted(len(drawn), 'attempt')} of the pilot drawn in {monotonic() - start:.0f} s"

    prompts = [item.given(chat) for item in items]
    options_of_each = [item.own for item in items]
    with now_and_then(line), told_in_flags():
        return guarded.plan(prompts, constraint_each=options_of_each, on_attempt=partial(drawn.append, None), **options)


def _kind(item: Item) -> str:
    """Return a key for prompts that cost alike: their own constraint, sampler and budget."""
    names = (*_KIND, *(item.own.fields or ()))
    return json.dumps({name: item.fields.get(name) for name in names})  # a schema may depend on the order of its keys


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
