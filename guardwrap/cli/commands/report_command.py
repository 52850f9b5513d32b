"""``guardwrap report``: write one HTML page about the results in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guardwrap.cli.options import Verbose
from guardwrap.errors import UsageError
from guardwrap.report.blocks import Page
from guardwrap.report.charts import require_matplotlib
from guardwrap.report.html import html_report
from guardwrap.report.result_files import read_page

if TYPE_CHECKING:
    from guardwrap.training.training_report import Training


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", show_default=False, help="A folder of results.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", show_default=False, help="Default: RUN_DIR/report.html."),
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Write one HTML file that shows the results in a folder and its subfolders.

    It shows evaluation.json of guardwrap evaluate, result.json and curve.jsonl of guardwrap train, and page.json.
    Trainings for the same constraint, model and prompts share their charts.

    The file works offline and has no scripts. Exit code 0: done; 2: bad input.
    """
    require_matplotlib()
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder")
    target = folder / "report.html" if out is None else out
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UsageError(f"cannot write to {str(target)!r}: " + ("a folder" if target.is_dir() else "no such folder"))
    pages, sources = _found_in(folder)
    name = folder.resolve().name
    html = html_report(pages, None if len(pages) == 1 else f"Results in {name}", sources)
    try:
        target.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {str(target)!r}: {error.strerror or type(error).__name__}") from None
    typer.echo(str(target))


def _found_in(folder: Path) -> tuple[list[Page], list[str]]:
    """Return the pages (those of page.json, then evaluations, then trainings), and the files that they come from."""
    from guardwrap.evaluation.evaluation_report import page_of, read_evaluation

    pages: list[Page] = []
    evaluations: list[Page] = []
    trainings: list[Training] = []
    sources = []
    for place, subfolders, files in os.walk(folder):
        subfolders.sort()
        here = Path(place)
        name = here.relative_to(folder).as_posix()
        read = []
        if "page.json" in files:
            pages.append(read_page(here / "page.json"))
            read.append("page.json")
        if "evaluation.json" in files:
            evaluations.append(page_of(read_evaluation(here / "evaluation.json")))
            read.append("evaluation.json")
        # A folder with a card is an adapter, whose curve is a copy of the one of its training.
        trained = [file for file in ("result.json", "curve.jsonl") if file in files and "card.yaml" not in files]
        if trained:
            from guardwrap.training.training_report import read_training  # imports torch

            trainings.append(read_training(here, folder.resolve().name if name == "." else name))
            read += trained
        sources += [file if name == "." else f"{name}/{file}" for file in read]
    if not sources:
        what = "evaluation.json, result.json, curve.jsonl or page.json"
        raise UsageError(f"there is nothing to report in {str(folder)!r} and its subfolders: no {what}")
    pages += evaluations
    if trainings:
        from guardwrap.training.training_report import pages_of

        pages += pages_of(trainings)
    return pages, sources
