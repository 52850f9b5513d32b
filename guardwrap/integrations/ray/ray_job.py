"""A job on Ray: workers generate for the rows of a file, and the records are written to a folder.

A worker turns blocks of rows into records with its own model, and does not depend on Ray. Ray is imported, and started
or connected to, without its log output.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from guardwrap.calls.prompts import Item, ReadOwn, constraint_of
from guardwrap.calls.records import (
    AGAIN,
    DIGESTS,
    MADE,
    difference,
    is_written,
    model_digest,
    record_of,
    require_unchanged,
    to_bytes,
    why_short,
)
from guardwrap.constraints.base import Constraint
from guardwrap.errors import AdapterError, GuardwrapError, ModelError, PromptError, UsageError, first_line
from guardwrap.integrations.ray.result_folder import Folder
from guardwrap.integrations.ray.rows import PromptRow, block_size, key_of, numbered, row_digest
from guardwrap.outcomes import Outcome


@dataclass(frozen=True)
class Recipe:
    """Arguments from which a worker builds its ``GuardedGenerator``, and options of its calls."""

    generator: Any  # a Hub id, a folder, ``"local"``, or an ``Endpoint``. Loaded models cannot be sent to workers.
    constraints: Any  # constraints for ``GuardedGenerator``
    wrapper: Mapping[str, Any] = field(default_factory=dict)  # other arguments of ``GuardedGenerator``
    # options of each call: ``seed``, ``num_return_sequences``, and arguments of the pipeline
    options: Mapping[str, Any] = field(default_factory=dict)
    chat: bool = False  # whether plain prompts become user messages
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of the run to write to the records
    dtype: str | None = None  # data type in which the model computes; None for that of its stored weights

    def made(self) -> Any:
        """Create the ``GuardedGenerator``, and test the options, so that their errors are not attributed to a row."""
        from guardwrap.generator import GuardedGenerator
        from guardwrap.support.process import keep_freed_memory, quieten_transformers

        keep_freed_memory()
        quieten_transformers()
        _require_same_files(self.generator, self.settings)
        guarded = GuardedGenerator(self.generator, self.constraints, **self.wrapper)
        if self.dtype is not None:
            import torch

            guarded.model.to(getattr(torch, self.dtype))
        if guarded.session.file.fields:  # each row has other values
            guarded.session.job({**self.options, "constraint_each": ()})
        else:
            job = guarded.session.job(self.options)
            with suppress(PromptError):
                next(iter(job.requests(["a"])))
        if self.chat and not guarded.session.takes_chats:
            raise UsageError(_NO_CHATS)
        return guarded


def _require_same_files(generator: Any, settings: Mapping[str, Any]) -> None:
    """Raise ModelError if the model on this machine is not the one whose digest the records get."""
    recorded = settings.get(DIGESTS, {}).get("model")
    if recorded is not None and model_digest(generator) != recorded:
        raise ModelError(f"{generator!r} has other files on a worker than where the run was started; copy them there")


_NO_CHATS = 'this model has no chat template; leave out --chat, and give "prompt" instead of "messages"'


class Worker:
    """Generates the texts of blocks of rows.

    ``broken``: why the ``GuardedGenerator`` could not be created. It is reported with each block instead of raised,
    because Ray retries a worker whose constructor raises.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.broken: GuardwrapError | None = None
        try:
            self._guarded = recipe.made()
        except Exception as error:
            self.broken = _known(error)

    def outcomes(self, rows: Sequence[PromptRow]) -> list[tuple[Outcome | None, str]]:
        """Generate for rows. Return an outcome and "" or a reason for each row, or None and the reason for an error."""
        if self.broken is not None:
            raise self.broken
        try:
            return [(outcome, _reason(outcome)) for outcome in self._drawn(rows)]
        except (ModelError, AdapterError):
            raise
        except GuardwrapError as error:
            if len(rows) == 1:
                return [(None, first_line(error))]
            # An error of one row ends the call for all. The halves get the same texts as the whole block.
            half = len(rows) // 2
            return [*self.outcomes(rows[:half]), *self.outcomes(rows[half:])]
        except Exception as error:
            raise _known(error) from None

    def _drawn(self, rows: Sequence[PromptRow]) -> list[Outcome]:
        prompts = [row.item.given(self.recipe.chat) for row in rows]
        if not self._guarded.session.takes_chats and not all(isinstance(prompt, str) for prompt in prompts):
            raise PromptError(_NO_CHATS)
        each = [row.item.own for row in rows]
        return list(self._guarded.stream(prompts, constraint_each=each, **self.recipe.options))

    def records(self, rows: Sequence[PromptRow]) -> Iterator[tuple[dict[str, Any], bool]]:
        """Generate for rows. Yield the record of each, and whether it has all its texts."""
        for row, (outcome, reason) in zip(rows, self.outcomes(rows), strict=True):
            fields = {"id": row.id, **row.item.fields} | {"id": row.id}
            if outcome is None:
                yield {**fields, "texts": [], "ok": False, "reason": reason}, False
                continue
            settings = {**self.recipe.settings, **({AGAIN: row.again} if row.again else {})}
            record = record_of(fields, outcome, settings)
            yield record if outcome.ok else {**record, "reason": reason}, outcome.ok


class LineWorker(Worker):
    """Actor of Ray Data that takes tables of pickled rows and returns tables of lines."""

    def __call__(self, table: Any) -> dict[str, list[Any]]:
        """Generate for a block. The column ``error`` has the pickled exception that ends the run, if there is one."""
        rows = [pickle.loads(each) for each in table["row"].to_pylist()]
        try:
            lines = [(to_bytes(record), ok) for record, ok in self.records(rows)]
        except GuardwrapError as error:
            return {"line": [b""], "error": [pickle.dumps(error)]}
        return {"line": [line for line, _ in lines], "error": [b""] * len(lines)}


def _reason(outcome: Outcome) -> str:
    return "" if outcome.ok else why_short(outcome)


def _known(error: Exception) -> GuardwrapError:
    """Return an error whose message may be shown. Messages of other exceptions may quote unchecked text."""
    if isinstance(error, GuardwrapError):
        return error
    logging.getLogger("guardwrap").debug("unexpected error in a worker", exc_info=error)
    return GuardwrapError(f"unexpected {type(error).__name__} in a worker; run without --ray and with -vv to see where")


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
    name = next((name for name in sorted({*before, *now}) if before.get(name) != now.get(name)), None)
    if name is not None:
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


STORE = 256 * 2**20
"""Size of the object store of a Ray that guardwrap starts, in bytes. Ray spills further objects to disk."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


def library() -> Any:
    """Import Ray."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise UsageError("guardwrap.integrations.ray needs Ray: pip install 'guardwrap[ray]'") from None
    return ray


@contextmanager
def connected(address: str, workers: int, gpus: float = 0) -> Iterator[Any]:
    """Start Ray on this machine, or connect to a cluster, and disconnect at the end."""
    ray = library()
    if ray.is_initialized():  # the caller has connected, and will disconnect
        _require_room(ray, workers, gpus)
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if address == "auto":
        cpus = max(workers + 1, os.cpu_count() or 1)  # one more to read the rows
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE}
        with _nothing_said():
            ray.init(address="local", **own, **quiet)
    else:
        _require_there(address)
        try:
            with _nothing_said():
                ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError):
            raise UsageError(f"no Ray answers at {address!r}; check `ray status` and the version there") from None
    try:
        _require_room(ray, workers, gpus)
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _nothing_said() -> Iterator[None]:
    """Discard what Ray's C++ part prints to stderr at start about its own log level."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def _require_there(address: str) -> None:
    """Raise UsageError if nothing listens at the address: Ray itself would wait for a minute, then end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    way_out = "give --ray auto to start Ray here, or the HOST:PORT that `ray start --head` printed"
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not an address of Ray; {way_out}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, UnicodeError):
        raise UsageError(f"no Ray answers at {address!r}; {way_out}") from None


def _require_room(ray: Any, workers: int, gpus: float) -> None:
    """Raise UsageError if workers would wait forever for CPUs or GPUs."""
    resources = ray.cluster_resources()
    for name, each in (("CPU", 1), ("GPU", gpus)):
        if workers * each > resources.get(name, 0):
            needed, has = f"{workers * each:g}", f"{resources.get(name, 0):g}"
            raise UsageError(f"{workers} workers need {needed} {name}s, but Ray has {has}; give fewer --workers")
