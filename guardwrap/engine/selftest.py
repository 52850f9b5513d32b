"""Which way of keeping rows gives a model's own logits: tried on the model at hand."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig

from guardwrap.constraints.patterns import filtered_warnings
from guardwrap.engine.prepare import without_stop_strings
from guardwrap.engine.rows import Ids, Plain, Rows, Wave
from guardwrap.engine.slots import Slots
from guardwrap.errors import ModelError

__all__ = ["choose"]

logger = logging.getLogger("guardwrap")


@torch.no_grad()
def choose(model: Any) -> type[Rows]:
    """Find the fastest way to keep rows that gives this model's own logits.

    Each is tried with prompts of different lengths, rows that leave, and rows that come later, against computing every
    text from its beginning.

    Parameters
    ----------
    model
        A causal language model.

    Returns
    -------
    type
        Slots, Wave or Plain; called with the model it makes empty rows. What was found is remembered as long as the
        model lives.
    """
    found = _chosen.setdefault(model, {})
    key = (model.dtype, str(model.device))
    if key not in found:
        found[key] = _tested(model)
    return found[key]


_chosen: WeakKeyDictionary[Any, dict[Any, type[Rows]]] = WeakKeyDictionary()


def _tested(model: Any) -> type[Rows]:
    _require_generate(model)
    if _rope_types(model.config.get_text_config()) & {"dynamic", "longrope"}:
        return Plain  # the longest row of a batch sets the frequencies of all
    kinds: tuple[type[Slots] | type[Wave], ...] = (Slots, Wave)
    for kind in kinds:
        try:
            error = _difference(kind, model)
        except torch.OutOfMemoryError as reason:  # which says nothing about the model, so nothing is remembered
            way_out = "free some, or load it in half precision"
            raise ModelError(f"out of memory when the model was first tried; {way_out}") from reason
        except Exception as reason:  # whatever an architecture does with a cache it does not know
            logger.debug("%s does not work with %s", kind.name, type(model).__name__, exc_info=reason)
            continue
        if error < _tolerance(model):
            return kind
        logger.debug("%s differs by %.2g with %s", kind.name, error, type(model).__name__)
    return Plain


def _tolerance(model: Any) -> float:
    """Difference of logits, as ``_apart`` gives it, that is rounding.

    SmolLM2 and a story model: float32 5e-6, float16 4e-3, bfloat16 0.03. A masked column too many gives 0.2, one too
    few 0.7, misplaced states 1. (The largest difference instead of the root mean square does not tell bfloat16,
    0.26 on SmolLM2's own cache, from a mistake.)
    """
    return 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1


def _rope_types(config: Any) -> set[str]:
    """Kinds of rotary embedding, of the model or of its layer types."""
    found: set[str] = set()
    stack = [getattr(config, "rope_parameters", None) or {}]
    while stack:
        parameters = stack.pop()
        found.add(str(parameters.get("rope_type")))
        stack += [value for value in parameters.values() if isinstance(value, dict)]
    return found


def _require_generate(model: Any) -> None:
    """Refuse models whose generate does more than feed them tokens, such as appending a mask.

    Raises
    ------
    ModelError
        If the logits of ``model.generate`` are not those of the model called on the same tokens.
    """
    size = model.config.get_text_config().vocab_size
    ids = torch.randint(size, (1, 4), generator=torch.Generator().manual_seed(0)).to(model.device)
    config = GenerationConfig(
        max_new_tokens=3,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with without_stop_strings(model.generation_config), filtered_warnings("ignore"):
        # about settings of the model's own that a greedy trial does not use
        made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    plain = Plain(model)
    reference = plain.add([tuple(ids[0].tolist())])
    for step, logits in enumerate(made.logits):
        if step:
            reference = plain.forward(made.sequences[:, ids.shape[1] + step - 1])
        if _apart(logits.float(), reference) > _tolerance(model):
            raise ModelError(
                f"{type(model).__name__} is not supported: its generate feeds it other inputs than the text's tokens"
            )


def _apart(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square difference of the logits of a row, in units of their spread; of the row where it is largest."""
    spread = reference.std(-1).mean().clamp(min=1e-6)
    return float(((logits - reference).square().mean(-1).sqrt().amax() / spread).item())


def _difference(kind: type[Rows], model: Any) -> float:
    """Run rows of this kind and plain ones through the same changes; how far apart their logits ever are."""
    rows, plain = kind(model), Plain(model)
    chance = torch.Generator().manual_seed(0)
    size = model.config.get_text_config().vocab_size

    def tokens(count: int) -> Ids:
        return tuple(torch.randint(size, (count,), generator=chance).tolist())

    worst = 0.0
    texts: list[Ids] = []
    script: list[Any] = ["add", 1, 1, [0, 2], 1, "more", 1, [1, 3], 1, 1]
    if not rows.refills:
        script = ["add", 1, 1, [0, 2], 1, 1]
    for action in script:
        if isinstance(action, list):
            order = plain.keep(rows.keep(action))
            texts = [texts[row] for row in order]
            continue
        if isinstance(action, str):
            # Prompts of different lengths, one of them twice; later one of them where another row has been.
            new = [tokens(5), tokens(3)] if action == "add" else [tokens(9), texts[-1]]
            new += new[:1]
            mine, reference = rows.add(new), plain.add(new)
            texts += new
        else:
            next_tokens = tokens(len(texts))
            texts = [(*text, token) for text, token in zip(texts, next_tokens, strict=True)]
            step = torch.tensor(next_tokens, device=model.device)
            mine = rows.forward(step, dict(enumerate(texts)) if rows.shares else None)
            reference = plain.forward(step)
        worst = max(worst, _apart(mine, reference))
    return worst
