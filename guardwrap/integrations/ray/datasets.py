"""Generation for datasets of Ray Data: adds columns with texts to their rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guardwrap.budget import Budget, budget_or_none
from guardwrap.calls.prompts import Item, own_of
from guardwrap.calls.records import DIGESTS, VERSIONS, run_digests, versions
from guardwrap.constraints.files.constraint_file import as_constraint_file
from guardwrap.engine.endpoint.server import Endpoint
from guardwrap.errors import GuardwrapError, PromptError, UsageError, require_whole, strict_arguments
from guardwrap.integrations.ray.ray_job import Recipe, Worker, library
from guardwrap.integrations.ray.rows import PromptRow, fields_of, id_in, key_of, randomness_place
from guardwrap.outcomes import plain
from guardwrap.samplers.protocol import Sampler
from guardwrap.support.network import source_digest

ROWS = 64
"""Number of rows that a worker processes together."""


class TableWorker(Worker):
    """Actor of Ray Data that adds columns with texts to tables of prompts."""

    def __call__(self, table: Any) -> Any:
        """Generate texts for the rows of a table."""
        import pyarrow

        text = pyarrow.string()
        kinds = {"texts": pyarrow.list_(text), "ok": pyarrow.bool_(), "report": text, "reason": text}
        records = self.records_with_reasons(table.to_pylist())
        for name, kind in kinds.items():
            table = table.drop_columns([name]) if name in table.column_names else table
            table = table.append_column(name, pyarrow.array([record.get(name) for record in records], kind))
        return table

    def records_with_reasons(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the record of each row, with its report as JSON; for an invalid row, with the reason."""
        if self.broken is not None:
            raise self.broken
        file = as_constraint_file(self.recipe.constraints, allow_code=bool(self.recipe.wrapper.get("allow_code")))
        budget = self.recipe.wrapper.get("budget") or file.budget or Budget()
        read_own = own_of("a row of the dataset", file.constraint, budget)
        prompt_rows: list[PromptRow | str] = [_row(values, read_own) for values in rows]
        records = iter(list(self.records([row for row in prompt_rows if isinstance(row, PromptRow)])))
        completed = []
        for row in prompt_rows:
            record = next(records)[0] if isinstance(row, PromptRow) else {"texts": [], "ok": False, "reason": row}
            completed.append({**record, "report": json.dumps(record["report"]) if "report" in record else None})
        return completed


def _row(values: Mapping[str, Any], read_own: Any) -> PromptRow | str:
    """Return the row of a table, or the reason why it is invalid."""
    where = f"the row {json.dumps(values.get('id'), default=str)}"
    try:
        fields = fields_of(where, values)
        name = id_in(where, fields)
        if name is None:
            raise PromptError(f'{where}: has no "id"; each row must have one, which determines its randomness')
        own = read_own(where, fields)
        row = PromptRow(name, Item(where, fields, own))
        place = None if own.seed is not None else randomness_place(row, named=True)
        return PromptRow(name, Item(where, fields, dataclasses.replace(own, number=place)))
    except GuardwrapError as error:
        return str(error)


def _require_loadable(generator: Any) -> None:
    """Raise UsageError if workers could not load the model, or would lack the API key of a server."""
    if not isinstance(generator, str | Path | Endpoint):
        raise UsageError("map_prompts loads the model in each worker: give a Hub id, a folder, 'local' or an Endpoint")
    if isinstance(generator, Endpoint) and generator.has_key:
        raise UsageError("api_key= of an Endpoint is not sent to workers: set OPENAI_API_KEY in their environment")


def _require_usable(dataset: Any, ray: Any) -> None:
    """Raise UsageError if rows have no unique ids, or if Ray has no CPU left to read them."""
    _require_ids(dataset)
    if ray.cluster_resources().get("CPU", 0) < 2:
        raise UsageError(
            "map_prompts needs at least two CPUs in Ray, one for a worker and one to read rows: ray.init(num_cpus=2)"
        )


def _settings(call: Mapping[str, Any], wrapper: Mapping[str, Any]) -> Any:
    """Return the settings to write to the records, as plain JSON types."""
    sampler, proposal, adapter = wrapper["sampler"], wrapper["proposal"], wrapper["adapter"]
    if isinstance(sampler, Sampler):
        sampler = {sampler.name: dict(sampler.options)} if sampler.options else sampler.name
    settings = {**call, "sampler": sampler, "proposal": proposal and str(proposal)}
    settings |= {"adapter": adapter and str(adapter), "budget": plain(wrapper["budget"])}
    return json.loads(json.dumps(settings, default=lambda value: type(value).__name__))


@strict_arguments
def map_prompts(
    dataset: Any,
    generator: Any,
    constraints: Any,
    *,
    seed: int,
    workers: int = 1,
    gpus: float = 0,
    chat: bool = False,
    sampler: Any = None,
    proposal: Any = None,
    adapter: Any = None,
    budget: Budget | None = None,
    batch_size: int | None = None,
    allow_code: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Generate texts for the rows of a dataset of Ray Data.

    The texts of a row depend on the seed, its id and its fields. They do not depend on the number of workers, on the
    division of the rows into blocks, or on restarts of workers.

    Parameters
    ----------
    dataset
        A dataset with the columns ``id`` (unique integers or strings), and ``prompt`` (strings) or ``messages``
        (chats). The optional columns ``constraint``, ``constraints``, ``sampler``, ``budget`` and ``seed`` apply to
        single rows, as structs or as JSON.
    generator
        A Hub id, a folder, ``"local"``, or an ``Endpoint``. Each worker loads it. The key of an ``Endpoint`` is read
        from the environment variable ``OPENAI_API_KEY`` of the workers.
    constraints, sampler, proposal, adapter, budget, batch_size, allow_code
        Arguments of ``GuardedGenerator``.
    seed
        Random seed of the job.
    workers, gpus
        Maximum number of workers, each with one CPU, and GPUs per worker. Reading the rows takes one more CPU.
    chat
        Whether plain prompts become user messages.
    options
        Options of each call: ``num_return_sequences`` and arguments of the pipeline, such as ``max_new_tokens``.

    Returns
    -------
    ray.data.Dataset
        The rows with the additional columns ``texts`` (list of strings), ``ok`` (whether a row got all its texts),
        ``report`` (JSON) and ``reason`` (why there are fewer texts, or null). It is evaluated lazily.

    Raises
    ------
    UsageError
        If Ray is not installed or has only one CPU, an id occurs twice, or an argument is invalid.
    """
    ray = library()
    require_whole("seed", seed, 0)
    require_whole("workers", workers, 1)
    budget_or_none(budget)
    _require_loadable(generator)
    _require_usable(dataset, ray)
    file = as_constraint_file(constraints, allow_code=allow_code)
    known = {"sampler": sampler, "proposal": proposal, "adapter": adapter, "budget": budget, "batch_size": batch_size}
    wrapper = {name: value for name, value in known.items() if value is not None} | {"allow_code": allow_code}
    call = {"model": str(generator), "constraint": file.constraint.digest, "seed": seed, "chat": chat}
    settings = _settings({**call, "options": dict(options or {})}, known)
    name = None if isinstance(generator, Endpoint) else str(generator)
    digests = run_digests(name, proposal, adapter, file.constraint, source_digest)
    settings |= {VERSIONS: versions(), DIGESTS: digests}
    model = str(generator) if isinstance(generator, Path) else generator
    recipe = Recipe(model, file, wrapper, {**(options or {}), "seed": seed}, chat, settings)
    return dataset.map_batches(
        TableWorker,
        fn_constructor_args=(recipe,),
        batch_size=ROWS,
        batch_format="pyarrow",
        # Start with one worker: reading the rows needs a CPU too, and must not wait for one that a worker holds.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=1,
        num_gpus=gpus,
    )


def _require_ids(dataset: Any) -> None:
    """Raise UsageError unless each row has a unique id. Reads the column once."""
    if "id" not in (dataset.columns() or ()):
        raise UsageError('map_prompts needs a column "id", which determines the randomness of each row')
    seen: set[int] = set()
    for name in (values["id"] for table in _tables(dataset.select_columns(["id"])) for values in table):
        if type(name) not in (int, str):
            raise UsageError('the column "id" must have a whole number or a string in each row')
        key = key_of(name)
        if key in seen:
            raise UsageError(f"the id {json.dumps(name)} occurs twice; ids must be unique")
        seen.add(key)


def _tables(dataset: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each block, as soon as it is there."""
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield table.to_pylist()
