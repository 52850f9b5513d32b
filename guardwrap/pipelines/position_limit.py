"""Models with a table of positions: how long their texts can be."""

from __future__ import annotations

import re
from typing import Any

import torch

from guardwrap.errors import UsageError

__all__ = ["require_positions"]

_POSITIONS = re.compile(r"(wpe|pos(ition)?s?_?emb\w*|embed_pos\w*)$")
"""What models call their tables of positions."""

_SPARE = 8
"""Rows of such a table beside those of positions, at most: OPT has two."""


def require_positions(model: Any, length: int, max_length: int) -> None:
    """Refuse texts that may outgrow a table of positions; models that compute positions may go beyond their context.

    ``generate`` fails with an IndexError at the first text that does, and with it would everybody in the batch.

    Parameters
    ----------
    model
        The model.
    length
        Tokens that a text begins with.
    max_length
        Tokens that it may have with them.

    Raises
    ------
    UsageError
        If that is more than the table has room for.
    """
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(most, int) or max_length - 1 <= most:  # the last token is drawn, and never fed
        return
    if not _has_table(model, most):
        return
    shorter = "" if model.config.is_encoder_decoder else ", or shorten the prompt"
    raise UsageError(
        f"the model has a table of {most} positions, and {length} tokens with max_new_tokens={max_length - length} "
        f"need more; pass max_new_tokens={most + 1 - length} or less{shorter}"
    )


def _has_table(model: Any, positions: int) -> bool:
    """Whether a model looks its positions up; others compute them."""
    sizes = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and _POSITIONS.search(name)
    ]
    sizes += [len(table) for name, table in model.named_buffers() if _POSITIONS.search(name) and table.dim() > 1]
    # Some leave the first rows to padding. A table of another size is of something else, such as an image's patches.
    return any(positions <= size <= positions + _SPARE for size in sizes)
