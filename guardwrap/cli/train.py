"""``guardwrap train``: a proposal that makes a rare constraint cheap, as an adapter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guardwrap.cli.common import (
    AllowCode,
    OtherModel,
    Out,
    Seed,
    Verbose,
    fail,
    known,
    load_generator,
    progress_bar,
    require_folder,
)
from guardwrap.cli.streams import INTERRUPTED, ends_at_once

if TYPE_CHECKING:
    from guardwrap.training import Row, TrainingSettings

__all__ = ["train"]


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", show_default=False, help="What to train: a YAML file.")],
    out: Out,
    model: OtherModel = None,
    method: Annotated[str | None, typer.Option(help="replay, dpg or sft; if left out as in the file.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Budget: attempts. If left out as in the file.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget: tokens. If left out as in the file.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Budget: seconds. If left out as in the file.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    verbose: Verbose = 0,
) -> None:
    """Train an adapter that satisfies a constraint more often, and stays close to the model's own law under it.

    CONFIG says at least

        constraint: catalogue:NAME, a constraint file, or a constraint or list as in one

        prompts: [...]

    and may say model, name, dtype, chat, generation (arguments of generate), method, hints (templates with {prompt}),
    samples and other budgets, gold_attempts, and how to learn: see guardwrap.training.TrainingSettings.

    Writes adapter/ with its card, curve.jsonl, result.json, curve.png and acceptance.png. After an interruption the
    same command goes on where it was. Exit code 0: done; 2: bad input; 3: nothing was learned; 130: interrupted;
    143: terminated (SIGTERM).
    """
    require_folder(out)
    given = {"model": model, "method": method, "samples": samples, "tokens": tokens, "seconds": seconds, "seed": seed}
    changes = known(given)
    with ends_at_once():
        from guardwrap.training import read_settings, shards
        from guardwrap.training import train as run

    settings, constraint = read_settings(config, changes=changes, allow_code=allow_code)
    guarded = load_generator(settings.model, constraint, dtype=settings.dtype, batch_size=settings.draw_batch_size)
    if (device := shards.device()) is not None:
        guarded.pipeline.device = device
        guarded.model.to(device)
    try:
        with _progress(settings) as (tick, made):
            trained = run(guarded, settings, out, tick=tick, made=made)
    except KeyboardInterrupt:
        raise typer.Exit(fail(f"interrupted; continue with the same command, {out} has it all", INTERRUPTED)) from None
    if not shards.is_main():
        return
    for name, figure in trained.figures.items():
        typer.echo(f"{name.replace('_', ' ')}: {figure}")
    for note in trained.notes:
        typer.echo(note)
    typer.echo(str(trained.folder))
    if not trained.learned:
        way_out = (
            "raise samples (or tokens, seconds), give hints, or begin as the adapter of a weaker constraint (start)"
        )
        raise typer.Exit(fail(f"nothing was learned; {way_out}", 3))


@contextmanager
def _progress(settings: TrainingSettings) -> Iterator[tuple[Callable[[Row], None], Callable[[int], None]]]:
    """Say what each round saw; on a terminal show how many attempts are there, and when all will be."""
    from rich.console import Console

    from guardwrap.training.shards import is_main

    console = Console(stderr=True, soft_wrap=True)

    def tick(row: Row) -> None:
        if is_main():
            console.print(f"round {row.round}: {row}", highlight=False, markup=False)
            for warning in row.warnings:
                console.print(f"  warning: {warning}", style="yellow", highlight=False, markup=False)

    if not sys.stderr.isatty() or not is_main():
        yield tick, lambda attempts: None
        return
    with progress_bar("samples", settings.samples, console) as (bar, task):

        def counted(row: Row) -> None:
            tick(row)
            bar.update(task, completed=row.samples)  # with what interrupted runs have drawn

        yield counted, lambda attempts: bar.advance(task, attempts)
