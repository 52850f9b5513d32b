"""``guardwrap report``: write one HTML page about the results in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guardwrap.cli.options import Verbose
from guardwrap.errors import UsageError
from guardwrap.outcomes.blocks import Page
from guardwrap.outcomes.charts import require_matplotlib
from guardwrap.outcomes.html import html_report
from guardwrap.outcomes.result_files import read_page


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
    pages, sources = _pages_in(folder)
    name = folder.resolve().name
    html = html_report(pages, None if len(pages) == 1 else f"Results in {name}", sources)
    try:
        target.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {str(target)!r}: {error.strerror or type(error).__name__}") from None
    typer.echo(str(target))


_PAGE, _EVALUATION, *_TRAINING = _FILES = ("page.json", "evaluation.json", "result.json", "curve.jsonl")


def _pages_in(folder: Path) -> tuple[list[Page], list[str]]:
    """Return the pages (those of page.json, then evaluations, then trainings), and the files that they come from."""
    from guardwrap.evaluation.evaluation_report import page_of, read_evaluation

    paths = (path for name in _FILES for path in folder.rglob(name))
    in_order = sorted(paths, key=lambda path: (path.parent.parts, _FILES.index(path.name)))
    # A folder with a card is an adapter, whose curve is a copy of the one of its training.
    sources = [path for path in in_order if path.name not in _TRAINING or not (path.parent / "card.yaml").exists()]
    if not sources:
        what = "evaluation.json, result.json, curve.jsonl or page.json"
        raise UsageError(f"there is nothing to report in {str(folder)!r} and its subfolders: no {what}")
    pages = [read_page(path) for path in sources if path.name == _PAGE]
    pages += [page_of(read_evaluation(path)) for path in sources if path.name == _EVALUATION]
    if trained := dict.fromkeys(path.parent for path in sources if path.name in _TRAINING):
        from guardwrap.training.training_report import pages_of, read_training  # imports torch

        names = [folder.resolve().name if path == folder else path.relative_to(folder).as_posix() for path in trained]
        pages += pages_of([read_training(path, name) for path, name in zip(trained, names, strict=True)])
    return pages, [path.relative_to(folder).as_posix() for path in sources]
