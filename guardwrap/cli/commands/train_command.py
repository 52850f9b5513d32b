"""``guardwrap train``: train an adapter that satisfies a constraint more often."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guardwrap.cli.options import AllowCode, OtherModel, Out, Seed, Verbose
from guardwrap.cli.progress import Progress, progress_shown
from guardwrap.cli.shared import fail, interruptible, known, load_generator, require_folder

if TYPE_CHECKING:
    from guardwrap.training import Row, Stage


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", show_default=False, help="What to train: a YAML file.")],
    out: Out,
    model: OtherModel = None,
    method: Annotated[str | None, typer.Option(help="replay, dpg or sft; default: as in the file.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Budget in attempts; default: as in the file.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget in tokens; default: as in the file.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Budget in seconds; default: as in the file.")] = None,
    seed: Seed = None,
    allow_code: AllowCode = False,
    verbose: Verbose = 0,
) -> None:
    """Train an adapter that satisfies a constraint more often, and stays close to the model's own distribution.

    CONFIG must have the fields

        constraint: catalogue:NAME, a constraint file, or a constraint or list as in one

        prompts: [...], or a file with one per line

    Optional fields are held_out, model, name, dtype, chat, generation (arguments of generate), method, hints (templates
    with {prompt}), samples and other budgets, gold_attempts, and settings for learning: see
    guardwrap.training.TrainingSettings.

    Writes adapter/ with its card, curve.jsonl, result.json, curve.png and acceptance.png. After an interruption, the
    same command continues the training. Exit code 0: done; 2: bad input; 3: nothing was learned; 130: interrupted; 143:
    terminated (SIGTERM).
    """
    require_folder(out)
    changes = known(
        {"model": model, "method": method, "samples": samples, "tokens": tokens, "seconds": seconds, "seed": seed}
    )
    from guardwrap.training import read_settings, shards
    from guardwrap.training import train as run

    settings, constraint = read_settings(config, changes=changes, allow_code=allow_code)
    guarded = load_generator(settings.model, constraint, dtype=settings.dtype, batch_size=settings.draw_batch_size)
    if (device := shards.device()) is not None:
        guarded.pipeline.device = device
        guarded.model.to(device)
    with (
        interruptible(lambda: f"the progress is in {out}; continue with the same command"),
        _progress() as (tick, follow),
    ):
        trained = run(guarded, settings, out, tick=tick, follow=follow)
    if not shards.is_main():
        return
    for name, figure in trained.figures.items():
        typer.echo(f"{name.replace('_', ' ')}: {figure}")
    for note in trained.notes:
        typer.echo(note)
    typer.echo(str(trained.folder))
    if not trained.learned:
        way_out = (
            "raise samples (or tokens, seconds), give hints, or start from the adapter of a weaker constraint (start)"
        )
        raise typer.Exit(fail(f"nothing was learned; {way_out}", 3))


_COUNTED = {"gold": "gold attempt", "samples": "sample", "final": "final attempt"}
"""Name of the items that each stage of a training counts."""


@contextmanager
def _progress() -> Iterator[tuple[Callable[[Row], None], Callable[[Stage], None]]]:
    """Print the result of each round, and show the progress of each stage: a bar on a terminal, otherwise lines."""
    from rich.console import Console

    from guardwrap.training.shards import is_main

    if not is_main():
        yield lambda row: None, lambda stage: None
        return
    console = Console(stderr=True, soft_wrap=True)

    def tick(row: Row) -> None:
        console.print(f"round {row.round}: {row}", highlight=False, markup=False)
        for warning in row.warnings:
            console.print(f"  warning: {warning}", style="yellow", highlight=False, markup=False)

    stage_name = ""
    done = Progress()
    with ExitStack() as display:

        def follow(stage: Stage) -> None:
            nonlocal stage_name, done
            is_new = stage.name != stage_name
            if is_new:
                display.close()  # end the display of the previous stage first
            stage_name, done = stage.name, Progress(stage.done, kept=stage.kept)
            if is_new:
                display.enter_context(progress_shown(lambda: done, stage.total, _COUNTED[stage.name], console))

        yield tick, follow
