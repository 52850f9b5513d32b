"""``guardwrap plan``: estimate what a run will cost."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guardwrap.calls.prompts import OPTIONS, Item
from guardwrap.cli.generate_request import DrawRequest
from guardwrap.cli.options import DrawOptions, command_of
from guardwrap.cli.progress import EVERY, called_every, write_to_stderr
from guardwrap.cli.shared import in_flags, known, printable_text
from guardwrap.errors import UsageError
from guardwrap.outcomes import Origin
from guardwrap.support.formatting import counted
from guardwrap.support.validation import read_option

if TYPE_CHECKING:
    from guardwrap.calls.plan import Plan
    from guardwrap.generator import GuardedGenerator

_SHOWN = 8
"""Maximum number of prompts in the pilot: first one of each constraint and budget, then the first ones of the input."""

_KIND = tuple(name for name in OPTIONS if name != "seed")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(DrawOptions):
    """Options of ``guardwrap plan``."""

    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Plan for this sampler: rejection or qrs; default: the one whose texts are close to g.",
        ),
    ] = None
    pilot: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Pilot attempts per prompt and way, for at most {_SHOWN} prompts; default: up to 64, while that "
            "costs at most a tenth of the run. From 64 on, a twist is tried if few attempts pass.",
        ),
    ] = None
    plan_seconds: Annotated[
        float | None, typer.Option(help="Maximum seconds for the plan itself, without loading the model.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Random seed of the pilot.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


@command_of(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Estimate the cost of a run from a small pilot.

    For each prompt, it shows the acceptance rate, the expected attempts, tokens and seconds, the probability that the
    budget suffices, and the part of the constraint that rejects most. It then recommends a sampler and a budget, and
    shows the cost of drawing from the model itself, of masking (generate --masked) and of a twist (--twisted).
    """
    request = DrawRequest.read(options)
    source = request.prompts()
    tried, others = _tried(islice(source.items(), _SHOWN) if source.streams else source.items())
    if not tried:
        raise UsageError("there is no prompt to plan for")
    sampler = None if options.sampler is None else read_option(options.sampler, "--sampler")
    result = _plan(
        request.load(),
        tried,
        chat=options.chat,
        pilot=options.pilot,
        max_seconds=options.plan_seconds,
        num_return_sequences=options.count,
        **options.generation,
        **known({"seed": options.seed, "sampler": sampler}),
    )
    if source.path is not None:  # name them by line, because the tried prompts need not be the first ones
        places = [dataclasses.replace(one, place=item.where) for one, item in zip(result.forecasts, tried, strict=True)]
        result = dataclasses.replace(result, forecasts=tuple(places))
    advice = in_flags(result.advised(partial(switched_to, used_flags=options.used_proposals)))
    text = json.dumps({**result.to_dict(), "advice": advice}, indent=1)
    typer.echo(text if options.as_json else printable_text(in_flags(result.in_words(advice))))
    if others and not options.as_json:
        typer.echo(_of_others(tried, others, [forecast.attempts.value for forecast in result.forecasts]))


def _plan(guarded: GuardedGenerator, items: Sequence[Item], *, chat: bool, **options: Any) -> Plan:
    """Plan for some prompts, and show the progress of the pilot."""
    start = monotonic()
    drawn: list[None] = []

    def write_line() -> None:
        seconds = monotonic() - start
        write_to_stderr(f"guardwrap: {counted(len(drawn), 'attempt')} of the pilot drawn in {seconds:.0f} s")

    prompts = [item.given(chat) for item in items]
    options_of_each = [item.own for item in items]
    with called_every(EVERY, write_line), _errors_in_flags():
        return guarded.plan(prompts, constraint_each=options_of_each, on_attempt=partial(drawn.append, None), **options)


@contextmanager
def _errors_in_flags() -> Iterator[None]:
    """Raise a ``UsageError`` again with options of the command line instead of Python arguments."""
    try:
        yield
    except UsageError as error:
        raise UsageError(in_flags(str(error))) from error.__cause__


def switched_to(source: Origin, used_flags: Sequence[str]) -> str:
    """Say which options to give, and which of the used ones to leave out, to draw from something else."""
    if source.other:
        return " with"
    comma, kept = ("", "") if source.shape is None else (",", f"--{source.shape}")
    left_out = " and ".join(flag for flag in used_flags if flag != kept)
    if left_out:
        return f"{comma} without {left_out}, with{' ' * bool(kept)}{kept}"
    return f"{comma} with {kept or '--no-proposal'}"


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
