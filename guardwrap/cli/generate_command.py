"""``guardwrap generate``: generate texts that satisfy constraints."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guardwrap.budget import Budget
from guardwrap.cli.flags import in_flags
from guardwrap.cli.generate_run import Run, missing_texts, require_another_seed
from guardwrap.cli.out_of_order_cache import read_ahead
from guardwrap.cli.proposal_options import describe_proposal, proposed_by
from guardwrap.cli.results import WrittenLines, check_output, is_of_run, read_finished
from guardwrap.cli.retry import RetryRun
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
    fail,
    generator_of,
    known,
    load_generator,
    read_constraints,
)
from guardwrap.cli.signals import describe_os_error as why
from guardwrap.cli.signals import ends_at_once, exit_of, terminated_in_order
from guardwrap.constraints.combinators import All
from guardwrap.documents.validation import read_option
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.outcomes import plain
from guardwrap.prompt_files.overrides import own_of
from guardwrap.prompt_files.prompts import Item, prompt_source_of

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

__all__ = ["generate"]

_PROMPTS, _SETTINGS, _BUDGET, _OUTPUT, _RAY = "Prompts", "Generation", "Budget for each prompt", "Output", "Ray"


def generate(
    prompts: Prompts = None,
    constraints: Constraints = ...,  # type: ignore[assignment]  # required
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            rich_help_panel=_PROMPTS,
            help="A file with one prompt per line; - is stdin.",
        ),
    ] = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            rich_help_panel=_PROMPTS,
            help='A JSON Lines file; - is stdin. Each line has "prompt" or "messages", and may have "constraint", '
            '"sampler", "budget" and "seed" for this prompt. Other fields are copied to the output.',
        ),
    ] = None,
    parquet: Annotated[
        str | None,
        typer.Option(metavar="PATH", rich_help_panel=_PROMPTS, help="A Parquet file with such rows; requires --ray."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", rich_help_panel=_PROMPTS, help="Send each plain prompt as a user message.")
    ] = False,
    model: Model = "local",
    endpoint: Server = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="rejection, qrs or imh, or one with options: 'qrs: {target_tvd: 0.05}'; default: the one in the "
            "constraint file, or rejection.",
        ),
    ] = None,
    proposal: Proposal = None,
    adapter: Adapter = None,
    masked: Masked = False,
    no_proposal: NoProposal = False,
    count: Annotated[
        int, typer.Option("-n", "--num-return-sequences", min=1, rich_help_panel=_SETTINGS, help="Texts per prompt.")
    ] = 1,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=_SETTINGS, help="Maximum tokens per text; default: the model's, or 256."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(rich_help_panel=_SETTINGS, help="Default: the model's own, or 0.7.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(rich_help_panel=_SETTINGS, help="Sample from the most likely tokens with this total probability."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(rich_help_panel=_SETTINGS, help="Sample from this many of the most likely tokens.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(rich_help_panel=_SETTINGS, help="The same seed gives the same texts; default: a new one."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(rich_help_panel=_SETTINGS, help="Maximum attempts in one batch; default: 32.")
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(rich_help_panel=_BUDGET, help="Attempts; default: the limit in the constraint file, or 1000."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(rich_help_panel=_BUDGET, help="Tokens of all attempts.")] = None,
    max_computed_tokens: Annotated[
        int | None,
        typer.Option(rich_help_panel=_BUDGET, help="Tokens that the model computes; cached ones are free."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(rich_help_panel=_BUDGET, help="Seconds; attempts that have begun are completed.")
    ] = None,
    allow_code: AllowCode = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            rich_help_panel=_OUTPUT,
            help="Write a JSON Lines file instead of stdout; with --ray, a folder.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", rich_help_panel=_OUTPUT, help="Continue an interrupted run from its output file."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=_OUTPUT, help="Replace an existing output file.")
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            rich_help_panel=_OUTPUT,
            help="With --resume: first retry the prompts that did not get all their texts, with another seed. The "
            "budget may differ; limits given here replace those of the input lines.",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            rich_help_panel=_RAY,
            help="Distribute the rows of --jsonl or --parquet over Ray workers: 'auto' starts Ray on this machine, "
            "HOST:PORT joins a cluster. The texts do not depend on the number of workers.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=_RAY, help="Number of workers, each with a model and a CPU; default: 1."),
    ] = None,
    worker_gpus: Annotated[
        float | None, typer.Option(min=0, rich_help_panel=_RAY, help="GPUs per worker; default: none.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Do not show progress on stderr.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Generate texts that satisfy the constraints.

    Writes one JSON object per prompt, in input order: the fields of the input, "texts", "ok" and "report". On a
    terminal, it prints formatted text instead. Exit code 0: done; 2: bad input; 3: some prompts did not get all their
    texts, and the output has those that there are; 130: interrupted; 143: terminated (SIGTERM).
    """
    with ends_at_once():
        from guardwrap.samplers import sampler_named  # scipy comes with it, which help need not wait for

    given = read_constraints(constraints, allow_code=allow_code)
    named = given.sampler if sampler is None else read_option(sampler, "--sampler")
    chosen = sampler_named("rejection" if named is None else named, given.source if sampler is None else None)
    limits = {
        "max_attempts": max_attempts,
        "max_tokens": max_tokens,
        "max_computed_tokens": max_computed_tokens,
        "max_seconds": max_seconds,
    }
    budget = dataclasses.replace(given.budget or Budget(), **known(limits))
    served = endpoint is not None
    proposed, drawing = proposed_by(
        given, proposal=proposal, masked=masked, adapter=adapter, none=no_proposal, served=served
    )
    generator = generator_of(model, endpoint)
    source = prompt_source_of(prompts or [], file, jsonl, parquet)
    if source.path is not None:
        over = known(limits) if retry_failed else None
        source = dataclasses.replace(source, read_own=own_of(source.path, given.constraint, budget, over))
    if retry_failed and not resume:
        raise UsageError(
            "--retry-failed is about the lines of an output file; give --resume, and that file as --output"
        )
    if resume and output is None:
        raise UsageError("--resume needs --output, the file to go on with")
    law = known({"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k})
    with_options = named if isinstance(named, dict) else None  # reports have the names of samplers
    drawn_with = known({"endpoint": endpoint, "adapter": adapter, "sampler": with_options})
    settings = {"model": model, "chat": chat, **law, **drawn_with}
    options = {"num_return_sequences": count, **law}
    wrapper = {
        "sampler": chosen,
        "proposal": proposed,
        "adapter": drawing,
        "budget": budget,
        "batch_size": batch_size,
    }
    if ray is not None:
        from guardwrap.cli.ray_run import on_ray
        from guardwrap.ray.worker import Recipe

        on_ray(
            source,
            output,
            Recipe(generator, given, wrapper, options, chat, settings),
            {
                "constraint": given.constraint.digest,
                "sampler": chosen.name,
                "proposal": describe_proposal(proposed, drawing, given.constraint),
                "number of texts": count,
                "budget": plain(budget),
                "settings": settings,
            },
            address=ray,
            workers=workers or 1,
            gpus=worker_gpus or 0,
            seed=seed,
            resume=resume,
            overwrite=overwrite,
            retry_failed=retry_failed,
            quiet=quiet,
        )
        return
    for option, said in {"--parquet": parquet, "--workers": workers, "--worker-gpus": worker_gpus}.items():
        if said is not None:
            raise UsageError(f"{option} goes with --ray; give --ray auto too, or leave it out")
    if output is not None:
        check_output(output, source, resume=resume, overwrite=overwrite)
    total = source.count()
    items = source.items()
    done = WrittenLines()
    kept, seed_kept = ({}, None) if output is None else read_ahead(output)
    ahead: dict[str, Any] = {}
    if output and resume:
        words = partial(describe_proposal, proposed, drawing, served=served)
        drawn_from = words(given.constraint)

        def report_of(item: Item) -> dict[str, Any]:
            own = item.own
            both = given.constraint if own.constraints is None else All((given.constraint, own.constraints))
            return {
                "constraint": both.digest,
                "sampler": (own.sampler or chosen).name,
                "proposal": drawn_from if own.constraints is None else words(both),
                "requested": count,
                "budget": plain(own.budget or budget),
                "seed": own.seed,
            }

        done = read_finished(output, items, report_of, settings, other_budget=retry_failed)
        done = done if done.seed is not None else dataclasses.replace(done, seed=seed_kept)

        def fits(item: Item, line: bytes) -> bool:
            return is_of_run(line, item, report_of, settings, run_seed, other_budget=retry_failed)

        ahead = {"kept": kept, "fits": fits}
    fresh = secrets.randbits(32) if seed is None else seed
    if output and retry_failed:
        require_another_seed(output, fresh, done.seed)
    if seed is not None and done.seed not in (None, seed) and not retry_failed:
        raise UsageError(f"{str(output)!r} was made with --seed {done.seed}; resume with the same seed or without one")

    @cache
    def guarded() -> GuardedGenerator:
        return load_generator(generator, given, **wrapper)

    again = None
    if output and retry_failed and done.failed:
        again = RetryRun(done, fresh, settings, output=output, quiet=quiet)
        _go(again, guarded, {**options, "seed": fresh})
        done = dataclasses.replace(done, size=again.size, short=again.short)
    run_seed = fresh if done.seed is None else done.seed
    run = Run(items, total, done, settings, output=output, quiet=quiet, **ahead)
    run.advice = again.advice if again is not None and again.short else run.advice
    if total != run.done:
        _go(run, guarded, {**options, "seed": run_seed})
    if run.done == 0:
        raise UsageError(f"no prompts in {source.name}")
    if run.short:
        raise missing_texts(run.short, run.done, "prompts", run.advice, kept=output is not None, seed=seed)


def _go(run: Run, guarded: Callable[[], GuardedGenerator], options: dict[str, Any]) -> None:
    wrapper = guarded()
    try:
        with terminated_in_order():
            run.go(wrapper, options)
    except KeyboardInterrupt as interruption:
        word, code = exit_of(interruption)
        raise typer.Exit(fail(f"{word}: {run.state()}", code)) from None
    except OSError as error:
        raise typer.Exit(fail(f"{why(error)}; {run.state()}", 1)) from None
    except GuardwrapError as error:
        said = in_flags(str(error))
        raise typer.Exit(fail(f"{said}; {run.state()}" if run.done or run.saved else said, 2)) from None
