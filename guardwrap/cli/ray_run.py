"""``guardwrap generate --ray``: generate for the rows of a file on Ray workers, and write a folder of results."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout

from guardwrap.calls.prompts import Item, PromptSource
from guardwrap.cli.generate_request import GenerateRequest
from guardwrap.cli.generate_run import missing_texts, require_another_seed, state_in_errors
from guardwrap.cli.progress import Progress, progress_shown
from guardwrap.errors import UsageError
from guardwrap.integrations.ray.ray_job import (
    Recipe,
    connected,
    library,
    order_of,
    require_same,
    require_written,
    run_job,
)
from guardwrap.integrations.ray.result_folder import Folder
from guardwrap.integrations.ray.rows import numbered, parquet_items
from guardwrap.support.formatting import counted_of


def write_with_workers(request: GenerateRequest, source: PromptSource, address: str) -> None:
    """Generate texts for all rows of a file that have no record yet."""
    options = request.options
    if options.timeout is not None:
        raise UsageError("--timeout does not work with --ray, whose workers have clocks of their own; leave it out")
    if options.output is None:
        raise UsageError("--ray needs --output, a folder for the results")
    for option, value in {"--show-rejected": options.show_rejected, "--keep-rejected": options.keep_rejected}.items():
        if value:
            raise UsageError(f"{option} does not work with --ray; try a few of the prompts without --ray")
    if source.path in (None, "-") or not (source.jsonl or source.parquet):
        raise UsageError("--ray reads its rows more than once; give a file with --jsonl or --parquet")
    library()  # before the rows are read
    items = _items_of(source)
    with Folder.opened(options.output, resume=options.resume, overwrite=options.overwrite) as folder:
        order = order_of(numbered(items()))
        if not order:
            raise UsageError(f"no prompts in {source.name}")
        before = folder.made_with()
        fresh = secrets.randbits(32) if options.seed is None else options.seed
        seed = before["seed"] if before and (options.seed is None or options.retry_failed) else fresh
        if options.retry_failed:
            require_another_seed(options.output, fresh, seed)
        made_with = {**request.made_with(), "seed": seed}
        require_same(folder, made_with, other_budget=options.retry_failed)
        require_written(folder, source.read_own, request.constraints.constraint)
        workers, gpus = options.workers or 1, options.worker_gpus or 0
        with (
            state_in_errors(lambda: _state(folder, len(order)), lambda: len(folder.done)),
            nullcontext() if options.quiet else progress_shown(_progress_of(folder, request), len(order), "row"),
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),  # Ray prints messages about its workers to stdout
            connected(address, workers, gpus) as ray,
        ):
            if before is None:
                folder.begin(made_with)
            retry_seed = fresh if options.retry_failed else None
            run_job(
                items, order, folder, _recipe(request, seed), ray, workers=workers, gpus=gpus, retry_seed=retry_seed
            )
        if short := _short(folder):
            advice = f"{folder.path / 'failed.jsonl'} says why"
            raise missing_texts(short, len(order), "rows", advice, kept=True, seed=options.seed)


def _recipe(request: GenerateRequest, seed: int) -> Recipe:
    return Recipe(
        request.generator,
        request.constraints,
        request.wrapper,
        {**request.call_options, "seed": seed},
        request.options.chat,
        request.made_with()["settings"],
        dtype=request.options.dtype,
    )


def _items_of(source: PromptSource) -> Callable[[], Iterator[Item]]:
    if source.parquet:
        return lambda: parquet_items(str(source.path), source.read_own)
    return source.items


def _progress_of(folder: Folder, request: GenerateRequest) -> Callable[[], Progress]:
    """Return a function for the progress. In a retry, rows that did not get all their texts do not count as done."""
    again = request.options.retry_failed

    def progress(kept: int = 0) -> Progress:
        done, short = len(folder.done), _short(folder)
        return Progress(done - short, kept) if again else Progress(done, kept, short)

    kept = progress().done
    return lambda: progress(kept)


def _short(folder: Folder) -> int:
    return sum(not done.ok for done in list(folder.done.values()))  # a copy, because another thread may add rows


def _state(folder: Folder, total: int) -> str:
    done = len(folder.done)
    kept = f"{counted_of(done, total, 'row')} {'is' if done == 1 else 'are'} in {folder.path}"
    return f"{kept}; continue with the same command and --resume"
