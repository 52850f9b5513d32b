"""The longest texts of models that look positions up in a table."""

from __future__ import annotations

import re
from typing import Any

import torch

from guardwrap.errors import ContextExceeded

__all__ = ["require_positions"]

_POSITIONS = re.compile(r"(wpe|pos(ition)?s?_?emb\w*|embed_pos\w*)$")
"""Names of position tables in models."""

_SPARE = 8
"""The most extra rows of a position table: OPT has two."""


def require_positions(model: Any, length: int, max_length: int) -> None:
    """Reject settings under which texts may outgrow a position table. Models that compute positions are not limited.

    ``generate`` would fail with an IndexError at the first such text, and with it the whole batch.

    Parameters
    ----------
    model
        The model.
    length
        The number of tokens that a text begins with.
    max_length
        The largest total number of tokens, those included.

    Raises
    ------
    ContextExceeded
        If the table has fewer positions.
    """
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(most, int) or max_length - 1 <= most:  # the last token is drawn, but never an input
        return
    if not _has_table(model, most):
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
    # Some models reserve rows for padding. A table of another size has another purpose, such as image patches.
    return any(positions <= size <= positions + _SPARE for size in sizes)
