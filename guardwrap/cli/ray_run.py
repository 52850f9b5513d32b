"""``guardwrap generate --ray``: generate for the rows of a file on Ray workers, and write a folder of results."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import typer

from guardwrap.cli.generate_run import missing_texts, require_another_seed
from guardwrap.cli.progress_log import Far, telling
from guardwrap.cli.shared import fail
from guardwrap.cli.signals import INTERRUPTED
from guardwrap.cli.signals import describe_os_error as why
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.prompt_files.prompts import Item, PromptSource
from guardwrap.ray.dataset_rows import numbered
from guardwrap.ray.parquet import parquet_items
from guardwrap.ray.ray_job import order_of, require_same, run_job
from guardwrap.ray.ray_library import connected, library
from guardwrap.ray.result_folder import Folder
from guardwrap.ray.worker import Recipe

__all__ = ["on_ray"]


def on_ray(
    source: PromptSource,
    output: Path | None,
    recipe: Recipe,
    made_with: Mapping[str, Any],
    *,
    address: str,
    workers: int,
    gpus: float,
    seed: int | None,
    resume: bool,
    overwrite: bool,
    retry_failed: bool,
    quiet: bool,
) -> None:
    """Generate texts for all rows of a file that have no record yet.

    Parameters
    ----------
    source
        The rows: a JSON Lines file or a Parquet file.
    output
        The folder for the records.
    recipe
        The arguments from which workers build their wrappers; the seed is added here.
    made_with
        Settings that a resumed run must share with the first one, by name.
    address, workers, gpus
        Address of Ray, number of workers, and GPUs per worker.
    seed
        Seed of the run; None for the seed of the folder, or a new one.
    resume, overwrite, retry_failed, quiet
        The options of the command with these names.

    Raises
    ------
    UsageError
        If an option is missing, or options contradict each other.
    """
    if output is None:
        raise UsageError("--ray needs --output, a folder for the results")
    if source.path in (None, "-") or not (source.jsonl or source.parquet):
        raise UsageError("--ray reads its rows more than once; give a file with --jsonl or --parquet")
    library()  # before the rows are read
    items = _items_of(source)
    with Folder.opened(output, resume=resume, overwrite=overwrite) as folder:
        order = order_of(numbered(items()))
        if not order:
            raise UsageError(f"no prompts in {source.name}")
        begun = folder.made_with()
        fresh = secrets.randbits(32) if seed is None else seed
        of_run = begun["seed"] if begun and (seed is None or retry_failed) else fresh
        if retry_failed:
            require_another_seed(output, fresh, of_run)
        require_same(folder, {**made_with, "seed": of_run}, other_budget=retry_failed)
        recipe = Recipe(**{**vars(recipe), "options": {**recipe.options, "seed": of_run}})
        before = _far(folder, again=retry_failed).done
        far = partial(_far, folder, again=retry_failed, kept=before)
        told = nullcontext() if quiet else telling(far, len(order), "row")
        retry = fresh if retry_failed else None
        try:
            # Ray remarks on stdout what becomes of its workers; nothing of ours goes there.
            with (
                told,
                open(os.devnull, "w") as nowhere,
                redirect_stdout(nowhere),
                connected(address, workers, gpus) as ray,
            ):
                if begun is None:
                    folder.begin({**made_with, "seed": of_run})
                run_job(items, order, folder, recipe, ray, workers=workers, gpus=gpus, retry_seed=retry)
        except KeyboardInterrupt:
            raise typer.Exit(fail(f"interrupted: {_state(folder, order)}", INTERRUPTED)) from None
        except OSError as error:
            raise typer.Exit(fail(f"{why(error)}; {_state(folder, order)}", 1)) from None
        except GuardwrapError as error:
            raise typer.Exit(fail(f"{error}; {_state(folder, order)}" if folder.done else str(error), 2)) from None
        short = _short(folder)
        if short:
            advice = f"{folder.path / 'failed.jsonl'} says why"
            raise missing_texts(short, len(order), "rows", advice, kept=True, seed=seed)


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
    done = f"{len(folder.done)} of {len(order)} rows are in {folder.path}"
    return f"{done}; continue with the same command and --resume"
