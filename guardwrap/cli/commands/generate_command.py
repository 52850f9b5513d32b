"""``guardwrap generate``: generate texts that satisfy constraints."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

import typer

from guardwrap.cli.flags import in_flags
from guardwrap.cli.generate_request import GenerateRequest, OutputOptions, read_request
from guardwrap.cli.generate_run import Run, missing_texts, require_another_seed
from guardwrap.cli.options import (
    Adapter,
    AllowCode,
    AttemptLimit,
    BatchSize,
    Chat,
    ComputedTokensLimit,
    Constraints,
    Count,
    Deterministic,
    Dtype,
    JSONLines,
    Masked,
    MaxNewTokens,
    Model,
    NoProposal,
    Output,
    Overwrite,
    Parquet,
    PromptFile,
    Prompts,
    Proposal,
    Quiet,
    RandomSeed,
    RayAddress,
    RepairTurns,
    Resume,
    RetryFailed,
    SamplerName,
    SecondsLimit,
    Server,
    ShowRejected,
    Temperature,
    TimeoutLimit,
    TokenLimit,
    TopK,
    TopP,
    Twisted,
    Verbose,
    WorkerGPUs,
    Workers,
)
from guardwrap.cli.results import WrittenLines, check_output, read_finished
from guardwrap.cli.shared import fail, known, load_generator, read_constraints
from guardwrap.cli.signals import describe_os_error as why
from guardwrap.cli.signals import exit_of, terminated_in_order
from guardwrap.constraints.files.template import require_filled
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.prompt_files.overrides import own_of
from guardwrap.prompt_files.prompts import PromptSource, prompt_source_of


def generate(
    prompts: Prompts = None,
    constraints: Constraints = ...,  # type: ignore[assignment]  # required
    file: PromptFile = None,
    jsonl: JSONLines = None,
    parquet: Parquet = None,
    chat: Chat = False,
    model: Model = "local",
    dtype: Dtype = None,
    endpoint: Server = None,
    sampler: SamplerName = None,
    proposal: Proposal = None,
    adapter: Adapter = None,
    masked: Masked = False,
    twisted: Twisted = False,
    no_proposal: NoProposal = False,
    count: Count = 1,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: RandomSeed = None,
    batch_size: BatchSize = None,
    deterministic: Deterministic = False,
    max_attempts: AttemptLimit = None,
    max_tokens: TokenLimit = None,
    max_computed_tokens: ComputedTokensLimit = None,
    max_seconds: SecondsLimit = None,
    timeout: TimeoutLimit = None,
    repair: RepairTurns = None,
    allow_code: AllowCode = False,
    output: Output = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    retry_failed: RetryFailed = False,
    ray: RayAddress = None,
    workers: Workers = None,
    worker_gpus: WorkerGPUs = None,
    quiet: Quiet = False,
    show_rejected: ShowRejected = 0,
    verbose: Verbose = 0,
) -> None:
    """Generate texts that satisfy the constraints.

    Writes one JSON object per prompt, in input order: the fields of the input, "texts", "ok" and "report". On a
    terminal, it prints formatted text instead. Exit code 0: done; 2: bad input; 3: some prompts did not get all their
    texts, and the output has those that there are; 130: interrupted; 143: terminated (SIGTERM).
    """
    limits = {"max_attempts": max_attempts, "max_tokens": max_tokens, "max_computed_tokens": max_computed_tokens}
    limits = known({**limits, "max_seconds": max_seconds, "timeout": timeout})
    generation = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    computing = {"batch_size": batch_size, "deterministic": deterministic}
    request = read_request(
        read_constraints(constraints, allow_code=allow_code),
        model=model,
        dtype=dtype,
        endpoint=endpoint,
        sampler=sampler,
        limits=limits,
        proposal=proposal,
        masked=masked,
        twisted=twisted,
        adapter=adapter,
        no_proposal=no_proposal,
        repair=repair,
        generation=known(generation),
        **computing,
        count=count,
        chat=chat,
        seed=seed,
    )
    prompt_source = prompt_source_of(prompts or [], file, jsonl, parquet)
    source = _of_request(prompt_source, request, limits if retry_failed else None)
    results = OutputOptions(output, resume, overwrite, retry_failed, quiet, show_rejected)
    if ray is not None:
        _write_with_workers(request, source, results, timeout, address=ray, workers=workers, gpus=worker_gpus)
        return
    _require_none({"--parquet": parquet, "--workers": workers, "--worker-gpus": worker_gpus})
    _write_texts(request, source, results)


def _of_request(source: PromptSource, request: GenerateRequest, over: Mapping[str, Any] | None) -> PromptSource:
    """Return the source whose prompts have options of their own beside those of the request.

    ``over`` has limits that replace those of prompts.
    """
    constraint = request.constraints.constraint
    if not (source.jsonl or source.parquet):
        require_filled(constraint)
    if source.path is None:
        return source
    return dataclasses.replace(source, read_own=own_of(source.path, constraint, request.budget, over))


def _write_with_workers(
    request: GenerateRequest,
    source: PromptSource,
    results: OutputOptions,
    timeout: float | None,
    *,
    address: str,
    workers: int | None,
    gpus: float | None,
) -> None:
    from guardwrap.cli.ray_run import on_ray

    if timeout is not None:
        raise UsageError("--timeout does not work with --ray, whose workers have clocks of their own; leave it out")
    on_ray(request, source, results, address=address, workers=workers or 1, gpus=gpus or 0)


def _require_none(ray_options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option is given that requires ``--ray``."""
    for option, value in ray_options.items():
        if value is not None:
            raise UsageError(f"{option} requires --ray; add --ray auto, or leave it out")


def _write_texts(request: GenerateRequest, source: PromptSource, results: OutputOptions) -> None:
    """Generate for the prompts that have no line yet, and write their lines."""
    output = results.path
    if output is not None:
        check_output(output, source, resume=results.resume, overwrite=results.overwrite)
    total, items, written = source.count(), source.items(), WrittenLines()
    if output is not None and results.resume:
        written = read_finished(output, items, request, other_budget=results.retry_failed)
    fresh = secrets.randbits(32) if request.seed is None else request.seed
    _require_seed(request.seed, fresh, written, results)

    tasks = written.tasks(items, fresh if results.retry_failed else None)
    run = Run(tasks, total, written, request, results)
    if total == run.done:
        run.sort()
    else:
        _go(run, request, fresh if written.seed is None else written.seed)
    if run.done == 0:
        raise UsageError(f"no prompts in {source.name}")
    if run.short:
        is_file = output is not None
        end = missing_texts(run.short, run.done, "prompts", run.advice, kept=is_file, seed=request.seed)
        for line in run.failed.lines():
            typer.echo(line, err=True)
        if run.plain_for_chat:
            typer.echo("this model has a chat template, and the prompts are plain text; try --chat", err=True)
        raise end


def _require_seed(requested: int | None, fresh: int, written: WrittenLines, results: OutputOptions) -> None:
    """Raise UsageError if a seed would repeat failed attempts, or would mix two seeds in one file."""
    if results.path and results.retry_failed:
        require_another_seed(results.path, fresh, written.seed)
    elif requested is not None and written.seed not in (None, requested):
        resume = f"was made with --seed {written.seed}; resume with the same seed or without one"
        raise UsageError(f"{str(results.path)!r} {resume}")


def _go(run: Run, request: GenerateRequest, seed: int) -> None:
    request.digests  # noqa: B018  # of the files that are loaded now, as they may change while texts are drawn
    guarded = load_generator(request.generator, request.constraints, dtype=request.dtype, **request.wrapper)
    try:
        with terminated_in_order():
            run.go(guarded, {**request.options, "seed": seed})
    except KeyboardInterrupt as interruption:
        word, code = exit_of(interruption)
        raise typer.Exit(fail(f"{word}: {run.state()}", code)) from None
    except OSError as error:
        raise typer.Exit(fail(f"{why(error)}; {run.state()}", 1)) from None
    except GuardwrapError as error:
        message = in_flags(str(error))
        raise typer.Exit(fail(f"{message}; {run.state()}" if run.done else message, 2)) from None
