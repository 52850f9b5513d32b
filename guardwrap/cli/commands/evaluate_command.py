"""``guardwrap evaluate``: proposals and samplers compared, as JSON and as one page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guardwrap.cli.progress_log import Far, telling
from guardwrap.cli.shared import (
    AllowCode,
    OtherModel,
    Out,
    Seed,
    Verbose,
    fail,
    known,
    load_session,
    printable_text,
    progress_bar,
    require_folder,
)
from guardwrap.cli.signals import ends_at_once, exit_of, terminated_in_order
from guardwrap.documents.validation import read_option
from guardwrap.evaluation.evaluation_settings import EvaluationSettings, read_evaluation_settings
from guardwrap.report.figure_export import require_matplotlib

if TYPE_CHECKING:
    from guardwrap.evaluation.recording import Tick

__all__ = ["run_evaluation"]

_SHOWN = ("acceptance_rate", "kl_gold_base", "kl_gold_guarded")


def run_evaluation(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", show_default=False, help="What to compare: a YAML file.")],
    out: Out,
    attempts: Annotated[
        int | None, typer.Option(min=2, help="Attempts of each proposal for each prompt; if left out as in the file.")
    ] = None,
    model: OtherModel = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One more to compare: a name, or one with options as in 'qrs: {target_tvd: 0.05}'; if left out as in "
            "the file.",
        ),
    ] = None,
    seed: Seed = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Attempts side by side, at most.")] = None,
    allow_code: AllowCode = False,
    verbose: Verbose = 0,
) -> None:
    """Measure how far proposals and samplers stay from g, and what they cost.

    CONFIG is a YAML file; for a first look at the embedded model:

        constraint: {kind: keyword, words: [tea]}

        prompts: ["Each morning I drink a cup of"]

        proposals: {hint: "I love my tea. {prompt}"}

        generation: {max_new_tokens: 10, top_k: 0}

        attempts: 200

    A constraint may also be a file, catalogue:NAME, or a list as in such a file; a proposal also {adapter: PATH} or
    {model: PATH}. There may be model, dtype, chat, base_attempts, batch_size, betas, steps, sampler, texts, position
    and seed too. generation takes arguments of generate; top_k: 0, because a proposal must be able to give whatever the
    model gives.

    Writes evaluation.json, report.html and the plots as PNG. Attempts are kept in the folder, a thousand at a time:
    after an interruption the same command goes on with them, and so does one for more attempts. Exit code 0: done; 2:
    bad input; 130: interrupted; 143: terminated (SIGTERM).
    """
    require_matplotlib()
    require_folder(out)
    named = None if sampler is None else read_option(sampler, "--sampler")
    given = {"attempts": attempts, "model": model, "sampler": named, "seed": seed, "batch_size": batch_size}
    changes = known(given)
    settings, constraint = read_evaluation_settings(config, changes=changes, allow_code=allow_code)
    with ends_at_once():
        from guardwrap.evaluation.evaluation_claims import next_step
        from guardwrap.evaluation.evaluation_run import evaluate as run
        from guardwrap.evaluation.recording import CHUNK
        from guardwrap.evaluation.summary import LABELS, mean_over_prompts

    def load(name: str) -> Any:
        """Load a proposal's model in the way that the model itself is loaded."""
        return load_session(name, constraint, dtype=settings.dtype).pipe

    try:
        source = load_session(settings.model, constraint, dtype=settings.dtype, batch_size=settings.batch_size)
        with terminated_in_order(), _progress(settings) as tick:
            found = run(source, settings, constraint, out, tick, load)
    except KeyboardInterrupt as interruption:
        word, code = exit_of(interruption)
        kept = f"attempts are in {out}, but for the last ones, at most {CHUNK:,} a prompt"
        raise typer.Exit(fail(f"{word}: {kept}; continue with the same command", code)) from None
    for name, figures in mean_over_prompts(found.prompts).items():
        shown = ", ".join(f"{LABELS[key]} {figures[key]}" for key in _SHOWN if key in figures)
        typer.echo(f"{printable_text(name)}: {shown}")
    typer.echo(f"recommended: {printable_text(next_step(found))}")
    typer.echo(str(out / "report.html"))


@contextmanager
def _progress(settings: EvaluationSettings) -> Iterator[Tick]:
    """Show how many attempts are there."""
    of_each = (settings.base_attempts or settings.attempts) + settings.attempts * len(settings.proposals)
    total = of_each * len(settings.prompts)
    if not sys.stderr.isatty():
        far = Far(0)

        def tick(attempts: int, *, kept: bool = False) -> None:
            nonlocal far
            far = Far(far.done + attempts, kept=far.kept + (attempts if kept else 0))

        with telling(lambda: far, total, "attempt"):
            yield tick
        return
    from rich.console import Console

    with progress_bar("attempts", total, Console(stderr=True)) as (bar, task):
        yield lambda attempts, kept=False: bar.advance(task, attempts)
