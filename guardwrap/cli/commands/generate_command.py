"""``guardwrap generate``: generate texts that satisfy constraints."""

from __future__ import annotations

import secrets

import typer

from guardwrap.calls.prompts import PromptSource
from guardwrap.cli.generate_request import GenerateRequest
from guardwrap.cli.generate_run import Run, missing_texts, require_another_seed, state_in_errors
from guardwrap.cli.options import GenerateOptions, command_of
from guardwrap.cli.results import WrittenLines, check_output, read_finished, sort_lines
from guardwrap.errors import UsageError


@command_of(GenerateOptions)
def generate(options: GenerateOptions) -> None:
    """Generate texts that satisfy the constraints.

    Writes one JSON object per prompt, in input order: the fields of the input, "texts", "ok" and "report". On a
    terminal, it prints formatted text instead. Exit code 0: done; 2: bad input; 3: some prompts did not get all their
    texts, and the output has those that there are; 130: interrupted; 143: terminated (SIGTERM).
    """
    request = GenerateRequest.read(options)
    source = request.prompts(parquet=options.parquet, limits=options.limits if options.retry_failed else None)
    if options.ray is not None:
        from guardwrap.cli.ray_run import write_with_workers

        write_with_workers(request, source, options.ray)
        return
    ray_options = {"--parquet": options.parquet, "--workers": options.workers, "--worker-gpus": options.worker_gpus}
    for option, value in ray_options.items():
        if value is not None:
            raise UsageError(f"{option} requires --ray; add --ray auto, or leave it out")
    _write_texts(request, source)


def _write_texts(request: GenerateRequest, source: PromptSource) -> None:
    """Generate for the prompts that have no line yet, and write their lines."""
    options = request.options
    if options.output is not None:
        check_output(options.output, source, resume=options.resume, overwrite=options.overwrite)
    total, items, written = source.count(), source.items(), WrittenLines()
    if options.output is not None and options.resume:
        written = read_finished(options.output, items, request, other_budget=options.retry_failed)
    fresh = secrets.randbits(32) if options.seed is None else options.seed
    _require_seed(options, fresh, written)

    run = Run(request, written.tasks(items, fresh if options.retry_failed else None), total, written)
    guarded = None
    if total != run.done:
        request.digests  # noqa: B018  # of the files that are loaded now, as they may change while texts are drawn
        guarded = request.load()
    with state_in_errors(run.state, lambda: run.done):
        if guarded is not None:
            run.go(guarded, fresh if written.seed is None else written.seed)
        elif options.output is not None and written.count:
            sort_lines(options.output)
    if run.done == 0:
        raise UsageError(f"no prompts in {source.name}")
    if run.short:
        is_file = options.output is not None
        end = missing_texts(run.short, run.done, "prompts", run.advice, kept=is_file, seed=options.seed)
        for line in run.failed.lines():
            typer.echo(line, err=True)
        if run.plain_for_chat:
            typer.echo("this model has a chat template, and the prompts are plain text; try --chat", err=True)
        raise end


def _require_seed(options: GenerateOptions, fresh: int, written: WrittenLines) -> None:
    """Raise UsageError if a seed would repeat failed attempts, or would mix two seeds in one file."""
    if options.output and options.retry_failed:
        require_another_seed(options.output, fresh, written.seed)
    elif options.seed is not None and written.seed not in (None, options.seed):
        way_out = "resume with the same seed or without one"
        raise UsageError(f"{str(options.output)!r} was made with --seed {written.seed}; {way_out}")
