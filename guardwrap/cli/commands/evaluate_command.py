"""``guardwrap evaluate``: compare proposals and samplers, and write JSON, plots and one HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guardwrap.cli.options import AllowCode, OtherModel, Out, Seed, Verbose
from guardwrap.cli.progress import Progress, progress_shown
from guardwrap.cli.shared import interruptible, known, load_generator, printable_text, require_folder
from guardwrap.evaluation.evaluation_settings import EvaluationSettings, read_evaluation_settings
from guardwrap.outcomes.charts import require_matplotlib
from guardwrap.support.validation import read_option

if TYPE_CHECKING:
    from guardwrap.evaluation.evaluation_run import Tick

_SHOWN = ("acceptance_rate", "kl_gold_base", "kl_gold_guarded")


def evaluate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", show_default=False, help="What to compare: a YAML file.")],
    out: Out,
    attempts: Annotated[
        int | None, typer.Option(min=2, help="Attempts per proposal and prompt; default: as in the file.")
    ] = None,
    model: OtherModel = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another sampler to compare: a name, or one with options as in 'qrs: {target_tvd: 0.05}'; default: "
            "as in the file.",
        ),
    ] = None,
    seed: Seed = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Maximum attempts in one batch.")] = None,
    allow_code: AllowCode = False,
    verbose: Verbose = 0,
) -> None:
    """Measure how far proposals and samplers are from the constrained distribution g, and what they cost.

    CONFIG is a YAML file. To begin with the embedded model:

        constraint: {kind: keyword, words: [tea]}

        prompts: ["Each morning I drink a cup of"]

        proposals: {hint: "I love my tea. {prompt}"}

        generation: {max_new_tokens: 10, top_k: 0}

        attempts: 200

    A constraint may also be a file, catalogue:NAME, or a list as in such a file. A proposal may also be
    {adapter: PATH}, {model: PATH}, masked, twisted, or auto: what generate --sampler auto would draw from. Optional
    fields are model, dtype, chat, base_attempts, batch_size, betas, steps, sampler, texts, position and seed.
    generation takes arguments of generate. Use top_k: 0, because a proposal must be able to produce every text that
    the model can produce.

    Writes evaluation.json, report.html and the plots as PNG. Attempts are saved in the folder, a thousand at a time.
    After an interruption, or to add attempts, run the command again: it continues with the saved ones. Exit code 0:
    done; 2: bad input; 130: interrupted; 143: terminated (SIGTERM).
    """
    require_matplotlib()
    require_folder(out)
    named = None if sampler is None else read_option(sampler, "--sampler")
    changes = known({"attempts": attempts, "model": model, "sampler": named, "seed": seed, "batch_size": batch_size})
    settings, constraint = read_evaluation_settings(config, changes=changes, allow_code=allow_code)
    from guardwrap.calls.choice import chosen_source
    from guardwrap.evaluation.evaluation_report import next_step
    from guardwrap.evaluation.evaluation_run import CHUNK
    from guardwrap.evaluation.evaluation_run import evaluate as run
    from guardwrap.evaluation.figures import LABELS, mean_over_prompts

    def load(name: str) -> Any:
        """Load a proposal's model with the settings of the evaluated model."""
        return load_generator(name, constraint, dtype=settings.dtype).pipeline

    def state() -> str:
        kept = f"attempts are in {out}, except the last ones, at most {CHUNK:,} per prompt"
        return f"{kept}; continue with the same command"

    guarded = load_generator(settings.model, constraint, dtype=settings.dtype, batch_size=settings.batch_size)
    with interruptible(state), _progress(settings) as tick:
        evaluation = run(guarded, settings, constraint, out, tick, load, partial(chosen_source, guarded.session))
    for name, figures in mean_over_prompts(evaluation.prompts).items():
        shown = ", ".join(f"{LABELS[key]} {figures[key]}" for key in _SHOWN if key in figures)
        typer.echo(f"{printable_text(name)}: {shown}")
    typer.echo(f"recommended: {printable_text(next_step(evaluation))}")
    typer.echo(str(out / "report.html"))


@contextmanager
def _progress(settings: EvaluationSettings) -> Iterator[Tick]:
    """Show how many attempts are done."""
    of_each = (settings.base_attempts or settings.attempts) + settings.attempts * len(settings.proposals)
    done = Progress()

    def tick(attempts: int, *, kept: bool = False) -> None:
        nonlocal done
        done = Progress(done.done + attempts, kept=done.kept + (attempts if kept else 0))

    with progress_shown(lambda: done, of_each * len(settings.prompts), "attempt"):
        yield tick
