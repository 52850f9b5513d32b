"""Whether a prompt fits: the longest texts of models, and the fewest tokens that a text can have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
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


@dataclass(frozen=True)
class _Bound:
    """The length of the longest token in bytes, and whether tokens never span a space between words."""

    longest: int
    splits_words: bool


_WORD = re.compile(r"[^ \t\r\n]+")
_known: WeakKeyDictionary[Any, _Bound | None] = WeakKeyDictionary()


def fewest_tokens(tokenizer: Any, text: str, enough: int) -> int:
    """Return a lower bound on the number of tokens of a text; 0 if nothing is known.

    A tokenizer that neither changes nor drops text needs at least the length of the text divided by that of the longest
    token. If it splits words, each word also takes at least one token.
    """
    if tokenizer not in _known:
        _known[tokenizer] = _bound_of(tokenizer)
    bound = _known[tokenizer]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if bound is None or backend is None or backend.truncation is not None:
        return 0
    size = len(text.encode("utf-8", "surrogatepass"))
    words = sum(1 for _ in islice(_WORD.finditer(text), enough + 1)) if bound.splits_words else 0
    return max(-(-size // bound.longest), words)


def _bound_of(tokenizer: Any) -> _Bound | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = json.loads(backend.to_str())
    steps = list(_steps(parts["pre_tokenizer"]))
    bytewise = [step for step in steps if step["type"] == "ByteLevel"]
    whole = (
        parts["normalizer"] is None
        and parts["model"]["type"] == "BPE"
        and len(bytewise) == 1
        and all(step["type"] in ("ByteLevel", "Digits", "Split") for step in steps)
        and all(step.get("behavior") != "Removed" for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"])
    )
    if not whole:
        return None
    # In the vocabulary each character of a token stands for a byte. Added tokens are plain text.
    added = [len(token["content"].encode()) for token in parts["added_tokens"]]
    spaces = any(" " in token["content"].strip() for token in parts["added_tokens"])
    longest = max([len(token) for token in parts["model"]["vocab"]] + added, default=0)
    return _Bound(longest, bool(bytewise[0].get("use_regex", True)) and not spaces) if longest else None


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the pre-tokenization steps in order."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part["pretokenizers"]:
            yield from _steps(step)
    else:
        yield part
