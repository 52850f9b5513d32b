"""A job on Ray: workers generate for the rows of a file, and the records are written to a folder."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.prompt_files.prompts import Item, ReadOwn, constraint_of
from guardwrap.prompt_files.records import MADE, difference, is_written, require_unchanged
from guardwrap.ray.dataset_rows import PromptRow, block_size, key_of, numbered, row_digest
from guardwrap.ray.result_folder import Folder, first_other
from guardwrap.ray.worker import LineWorker, Recipe


def order_of(rows: Iterable[PromptRow]) -> dict[int, int]:
    """Return the number of each row, by the key of its id. Reads all rows, so that an invalid one is reported first."""
    return {key_of(row.id): number for number, row in enumerate(rows)}


def require_same(folder: Folder, run: Mapping[str, Any], *, other_budget: bool = False) -> None:
    """Raise UsageError if the folder was begun by a run with other settings."""
    before = folder.made_with()
    if before is None:
        if folder.done:
            raise UsageError(f"{str(folder.path)!r} has records but no run.json with their settings; give another -o")
        return
    now = {**run, "budget": before.get("budget")} if other_budget else run
    settings = before.get("settings")
    if other := difference(settings if isinstance(settings, dict) else {}, run["settings"]):
        raise UsageError(f"{str(folder.path)!r} {other}; resume with the same settings, or give another -o")
    if (name := first_other(before, now)) is not None:
        raise UsageError(f"{str(folder.path)!r} was made with another {name}; resume with the same")


def require_written(folder: Folder, read_own: ReadOwn, constraint: Constraint) -> None:
    """Raise UsageError if a record of the folder was changed, or a text in it breaks a rule."""
    for record in folder.records():
        where = f"{folder.path}, the row {record['id']!r}"
        if is_written(record):
            own = read_own(where, {name: value for name, value in record.items() if name not in MADE})
            require_unchanged(where, record, constraint_of(constraint, own))
        elif record.get("texts"):
            raise UsageError(f"{where}: was not written by guardwrap; give another -o")


def left(rows: Iterable[PromptRow], folder: Folder, *, retry_seed: int | None = None) -> Iterator[PromptRow | None]:
    """Yield each row that is left to do, and None for each row that is done."""
    for row in rows:
        done = folder.done.get(key_of(row.id))
        if done is None:
            yield row
            continue
        if done.row != row_digest(row.item.fields):
            raise UsageError(
                f"{row.item.where}: {str(folder.path)!r} has the id {row.id!r} with another prompt or other fields; "
                "resume with the same rows"
            )
        if done.ok or retry_seed is None:
            yield None
            continue
        place = row.item.own.number
        own = dataclasses.replace(row.item.own, seed=retry_seed, number=key_of(row.id) if place is None else place)
        yield PromptRow(row.id, dataclasses.replace(row.item, own=own), done.again + 1)


def blocks(rows: Iterable[PromptRow | None], size: int) -> Iterator[list[PromptRow]]:
    """Divide rows into blocks. Rows that are done are left out of their block, so the division is always the same."""
    block: list[PromptRow] = []
    for number, row in enumerate(rows, start=1):
        block += [] if row is None else [row]
        if number % size == 0 and block:
            yield block
            block = []
    if block:
        yield block


def run_job(
    items: Callable[[], Iterator[Item]],
    order: Mapping[int, int],
    folder: Folder,
    recipe: Recipe,
    ray: Any,
    *,
    workers: int,
    gpus: float = 0,
    retry_seed: int | None = None,
) -> None:
    """Generate for all rows that have no record, and write the final files of the folder."""
    rows = left(numbered(items()), folder, retry_seed=retry_seed)
    refs = [_put(ray, block) for block in blocks(rows, block_size(len(order)))]
    if refs:
        for lines in _drawn(ray, refs, recipe, min(workers, len(refs)), gpus):
            folder.add(lines)
    folder.merge(order)


def _put(ray: Any, block: list[PromptRow]) -> Any:
    """Put a block into Ray's object store, so that the memory of this process does not grow with the rows."""
    import pyarrow

    return ray.put(pyarrow.table({"row": [ray.cloudpickle.dumps(row) for row in block]}))


def _drawn(ray: Any, refs: list[Any], recipe: Recipe, workers: int, gpus: float) -> Iterator[list[bytes]]:
    """Process blocks on workers, and yield the lines of each block when it is done, in any order."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    drawn = ray.data.from_arrow_refs(refs).map_batches(
        LineWorker,
        fn_constructor_args=(recipe,),
        batch_size=None,  # one block at a time
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=gpus,
    )  # Ray Data restarts killed actors without a limit, and gives them their block again
    for table in drawn.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for error in filter(None, table["error"].to_pylist()):
            raise pickle.loads(error)
        yield table["line"].to_pylist()
