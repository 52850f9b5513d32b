"""Whether a prompt fits into a model's context."""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

import torch

from guardwrap.errors import ContextExceeded

_POSITIONS = re.compile(r"(wpe|pos(ition)?s?_?emb\w*|embed_pos\w*)$")
"""Names of position tables in models."""

_SPARE = 8
"""The most extra rows of a position table: OPT has two."""


def trained_length(model: Any) -> int | None:
    """Return the number of tokens that a model was trained for; None if its configuration does not name it."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def position_limit(model: Any) -> int | None:
    """Return how many positions a model looks up in a table; None if it computes positions, of any number."""
    if model not in _limits:
        trained = trained_length(model)
        _limits[model] = trained if trained is not None and _has_table(model, trained) else None
    return _limits[model]


_limits: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()


def require_context(model: Any, length: int, context: int | None) -> None:
    """Reject a prompt that fills the context, which must also hold a new token unless the model has an encoder."""
    if context is not None and length + (not model.config.is_encoder_decoder) > context:
        raise ContextExceeded(f"the prompt has {length} tokens and the model's context {context}; shorten the prompt")


def require_positions(model: Any, length: int, max_length: int) -> None:
    """Reject settings under which texts may outgrow a position table. Models that compute positions are not limited.

    ``generate`` would fail with an IndexError at the first such text, and with it the whole batch.
    """
    most = position_limit(model)
    if most is None or max_length - 1 <= most:  # the last token is drawn, but never an input
        return
    shorter = "" if model.config.is_encoder_decoder else ", or shorten the prompt"
    raise ContextExceeded(
        f"the model has a table of {most} positions, and {length} tokens with max_new_tokens={max_length - length} "
        f"need more; pass max_new_tokens={most + 1 - length} or less{shorter}"
    )


def _has_table(model: Any, positions: int) -> bool:
    """Whether a model looks positions up in a table, instead of computing them."""
    sizes = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and _POSITIONS.search(name)
    ]
    sizes += [len(table) for name, table in model.named_buffers() if _POSITIONS.search(name) and table.dim() > 1]
    kept = (getattr(module, "pos_encoding", None) for module in model.modules())  # CTRL's is no buffer
    sizes += [len(table) for table in kept if isinstance(table, torch.Tensor)]
    # Some models reserve rows for padding. A table of another size has another purpose, such as image patches.
    return any(positions <= size <= positions + _SPARE for size in sizes)
