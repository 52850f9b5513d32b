"""Reproduce one of the paper's two experiments on a model of your choice, with one command.

::

    python examples/paper/run.py examples/paper/lexical.yaml --model MODEL --out FOLDER [--budget 0.04] [--only STEP]
    python examples/paper/run.py examples/paper/sentiment.yaml --model MODEL --classifier MODEL --out FOLDER

``--budget`` scales every number of samples and updates. After an interruption, the same command continues.
``FOLDER/results.json`` has the figures, and ``FOLDER/page.json`` is the input of ``guardwrap report FOLDER``. Steps for
``--only`` are the names of the methods and of ``Run.steps``. A step runs its dependencies first, and writes no page.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from experiment import Paper
from keeping import write
from page import page
from steps import Run

from guardwrap import Classifier, GuardwrapError
from guardwrap.calls.task_settings import known_as, read_task_settings
from guardwrap.cli.shared import fail, known, load_generator
from guardwrap.errors import UsageError
from guardwrap.outcomes.result_files import loads, text_of, write_page


def main(
    config: Annotated[Path, typer.Argument(show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", show_default=False, help="Output folder.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="A Hub id or a folder.")] = None,
    budget: Annotated[float, typer.Option(min=0, help="Scales every number of samples.")] = 1.0,
    classifier: Annotated[str | None, typer.Option(help="Sentiment classifier: a Hub id or a folder.")] = None,
    embedder: Annotated[str | None, typer.Option(help="Measures similarity. Default: the model itself.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Default: the seed in the file.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this step and its dependencies; write no page.")] = None,
) -> None:
    """Reproduce an experiment of the paper."""
    settings, constraint = read_task_settings(config, Paper)
    changes = known({"model": model, "seed": seed}) | {"name": known_as(model or settings.model)}
    if classifier is not None:
        if not isinstance(constraint, Classifier):
            raise UsageError("--classifier requires a constraint of kind classifier; leave it out")
        if not isinstance(settings.constraint, dict):
            raise UsageError("--classifier: write the constraint in this file as a mapping, to replace its model")
        constraint = dataclasses.replace(constraint, model=classifier)
        changes["constraint"] = {**settings.constraint, "model": known_as(classifier)}
    settings = settings.model_copy(update=changes).scaled(budget)
    guarded = load_generator(settings.model, constraint, dtype=settings.dtype, batch_size=settings.draw_batch_size)
    run = Run(settings, guarded, out, embedder or settings.model)
    if unknown := set(only or ()) - run.steps.keys():
        raise UsageError(f"there is no step {min(unknown)!r}; choose from {', '.join(run.steps)}")
    try:
        for name in only or ():
            run.steps[name]()
        if not only:
            results = run.results()
            write(out / "results.json", results)
            write_page(page(loads(text_of(out / "results.json"), "results.json")), out / "page.json")
            for each in results["claims"]:
                print(f"{each['claim']}: {each['verdict']}")
    except KeyboardInterrupt:
        raise typer.Exit(fail("interrupted; continue with the same command", 130)) from None


if __name__ == "__main__":
    try:
        typer.run(main)
    except GuardwrapError as error:
        sys.exit(fail(str(error), 2))
