"""``guardwrap generate --ray``: generate for the rows of a file on Ray workers, and write a folder of results."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial

import typer

from guardwrap.cli.generate_request import GenerateRequest, OutputOptions
from guardwrap.cli.generate_run import missing_texts, require_another_seed
from guardwrap.cli.progress_log import Far, telling
from guardwrap.cli.shared import fail
from guardwrap.cli.signals import INTERRUPTED
from guardwrap.cli.signals import describe_os_error as why
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.formatting import counted_of
from guardwrap.prompt_files.prompts import Item, PromptSource
from guardwrap.ray.ray_job import Recipe, connected, library, order_of, require_same, require_written, run_job
from guardwrap.ray.result_folder import Folder
from guardwrap.ray.rows import numbered, parquet_items


def on_ray(
    request: GenerateRequest,
    source: PromptSource,
    results: OutputOptions,
    *,
    address: str,
    workers: int,
    gpus: float,
) -> None:
    """Generate texts for all rows of a file that have no record yet."""
    output, retry_failed = results.path, results.retry_failed
    if output is None:
        raise UsageError("--ray needs --output, a folder for the results")
    if results.show_rejected:
        raise UsageError("--show-rejected does not work with --ray; try a few of the prompts without --ray")
    if source.path in (None, "-") or not (source.jsonl or source.parquet):
        raise UsageError("--ray reads its rows more than once; give a file with --jsonl or --parquet")
    library()  # before the rows are read
    items = _items_of(source)
    with Folder.opened(output, resume=results.resume, overwrite=results.overwrite) as folder:
        order = order_of(numbered(items()))
        if not order:
            raise UsageError(f"no prompts in {source.name}")
        begun = folder.made_with()
        fresh = secrets.randbits(32) if request.seed is None else request.seed
        seed = begun["seed"] if begun and (request.seed is None or retry_failed) else fresh
        if retry_failed:
            require_another_seed(output, fresh, seed)
        made_with = {**request.made_with(), "seed": seed}
        require_same(folder, made_with, other_budget=retry_failed)
        require_written(folder, source.read_own, request.constraints.constraint)
        before = _far(folder, again=retry_failed).done
        far = partial(_far, folder, again=retry_failed, kept=before)
        progress = nullcontext() if results.quiet else telling(far, len(order), "row")
        recipe, retry = _recipe(request, seed), fresh if retry_failed else None
        with (
            _ends_in_order(folder, order),
            progress,
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),  # Ray prints messages about its workers to stdout
            connected(address, workers, gpus) as ray,
        ):
            if begun is None:
                folder.begin(made_with)
            run_job(items, order, folder, recipe, ray, workers=workers, gpus=gpus, retry_seed=retry)
        if short := _short(folder):
            advice = f"{folder.path / 'failed.jsonl'} says why"
            raise missing_texts(short, len(order), "rows", advice, kept=True, seed=request.seed)


def _recipe(request: GenerateRequest, seed: int) -> Recipe:
    options = {**request.options, "seed": seed}
    settings = request.made_with()["settings"]
    made_of = (request.generator, request.constraints, request.wrapper, options, request.chat, settings)
    return Recipe(*made_of, dtype=request.dtype)


@contextmanager
def _ends_in_order(folder: Folder, order: Mapping[int, int]) -> Iterator[None]:
    """Turn an interruption or an error into an exit with a message about the progress."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(fail(f"interrupted: {_state(folder, order)}", INTERRUPTED)) from None
    except OSError as error:
        raise typer.Exit(fail(f"{why(error)}; {_state(folder, order)}", 1)) from None
    except GuardwrapError as error:
        raise typer.Exit(fail(f"{error}; {_state(folder, order)}" if folder.done else str(error), 2)) from None


def _items_of(source: PromptSource) -> Callable[[], Iterator[Item]]:
    if source.parquet:
        return lambda: parquet_items(str(source.path), source.read_own)
    return source.items


def _far(folder: Folder, *, again: bool, kept: int = 0) -> Far:
    """Return the progress. In a retry, rows that did not get all their texts do not count as done."""
    done, short = len(folder.done), _short(folder)
    return Far(done - short, kept) if again else Far(done, kept, short)


def _short(folder: Folder) -> int:
    return sum(not done.ok for done in list(folder.done.values()))  # a copy, because another thread may add rows


def _state(folder: Folder, order: Mapping[int, int]) -> str:
    done = len(folder.done)
    kept = f"{counted_of(done, len(order), 'row')} {'is' if done == 1 else 'are'} in {folder.path}"
    return f"{kept}; continue with the same command and --resume"
