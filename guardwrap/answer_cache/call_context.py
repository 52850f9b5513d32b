"""What the texts of a whole call depend on: model, tokenizer, versions, and how tokens are read."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from guardwrap.answer_cache.answer_file import AnswerFile
from guardwrap.answer_cache.call_cache import CallCache
from guardwrap.answer_cache.digests import NotCached, model_digest, tokenizer_digest
from guardwrap.pipelines.calls import Call

__all__ = ["cache_of"]


def cache_of(
    file: AnswerFile, call: Call, *, models: Sequence[Any], options: Sequence[Any], refused: str | None = None
) -> CallCache:
    """Return the cache of a call.

    Parameters
    ----------
    file
        The answers of earlier calls.
    call
        The call.
    models
        The model that defines a, and the one that attempts are drawn from.
    options
        Further options that its texts depend on, as plain JSON types.
    refused
        Why the call is not answered from the file, as a clause; None if it may be.
    """
    try:
        return CallCache(file, {} if refused else _context(call, models, options), refused)
    except NotCached as reason:
        return CallCache(file, {}, str(reason))


def _context(call: Call, models: Sequence[Any], options: Sequence[Any]) -> dict[str, Any]:
    if not call.causal:
        raise NotCached("only texts of causal language models are")
    digests = {id(model): model_digest(model) for model in models}  # usually one model, twice
    return {
        "versions": {name: version(name) for name in ("guardwrap", "torch", "transformers")},
        "models": [[digests[id(model)], model.device.type] for model in models],
        "tokenizer": tokenizer_digest(call.pipe.tokenizer),
        "reading": sorted(call.reading.items()),
        "parts": [call.parses, call.trims, call.reads_parts, call.family],
        "options": list(options),
    }
