"""A worker, which turns blocks of rows into records with its own model. It does not depend on Ray."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from guardwrap.errors import AdapterError, GuardwrapError, ModelError, PromptError, UsageError, first_line
from guardwrap.outcomes import Outcome
from guardwrap.prompt_files.records import AGAIN, DIGESTS, model_digest, record_of, to_bytes, why_short
from guardwrap.ray.dataset_rows import PromptRow


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
        from guardwrap.environment.process import keep_freed_memory, quieten_transformers
        from guardwrap.generator import GuardedGenerator

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
