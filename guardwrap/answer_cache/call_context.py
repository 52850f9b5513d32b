"""What the texts of a whole call depend on: model, tokenizer, versions, and how tokens are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
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
        "versions": _versions(),
        "models": [[digests[id(model)], model.device.type] for model in models],
        "tokenizer": tokenizer_digest(call.pipe.tokenizer),
        "reading": sorted(call.reading.items()),
        "parts": [call.parses, call.trims, call.reads_parts, call.family],
        "options": list(options),
    }


@cache
def _versions() -> dict[str, str]:
    """Return the versions of guardwrap and of what it may use: a judge's library counts as much as the model's."""
    required = (re.split(r"[^\w.-]", requirement)[0] for requirement in requires("guardwrap") or ())
    versions = {}
    for name in sorted({"guardwrap", "tokenizers", *required}):
        with suppress(PackageNotFoundError):  # of an extra that is not installed
            versions[name] = version(name)
    return versions
