"""Which way of keeping rows gives a model's own logits: tried on the model at hand."""

from __future__ import annotations

import logging
import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig

from guardwrap.engine.prepare import without_stop_strings
from guardwrap.engine.rows import Plain, Rows, Wave
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
        except Exception as reason:  # whatever an architecture does with a cache it does not know
            logger.debug("%s does not work with %s", kind.name, type(model).__name__, exc_info=reason)
            continue
        if error < _tolerance(model):
            return kind
        logger.debug("%s differs by %.2g with %s", kind.name, error, type(model).__name__)
    return Plain


def _tolerance(model: Any) -> float:
    """Largest difference of logits, in units of their spread, that is rounding.

    Float32 agrees to about 1e-5; half precision rounds at 1e-2, and a misplaced state is off by 1.
    """
    return 2e-3 if model.dtype in (torch.float32, torch.float64) else 0.1


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
    with warnings.catch_warnings(), without_stop_strings(model.generation_config):
        warnings.simplefilter("ignore")  # about settings of the model's own that a greedy trial does not use
        made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    plain = Plain(model)
    reference = plain.add([ids[0]])
    for step, logits in enumerate(made.logits):
        if step:
            reference = plain.forward(made.sequences[:, ids.shape[1] + step - 1])
        if _apart(logits.float(), reference) > _tolerance(model):
            raise ModelError(
                f"{type(model).__name__} is not supported: its generate feeds it other inputs than the text's tokens"
            )


def _apart(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference of logits, in units of their spread."""
    spread = reference.std(-1).mean().clamp(min=1e-6)
    return float(((logits - reference).abs().amax() / spread).item())


def _difference(kind: type[Rows], model: Any) -> float:
    """Run rows of this kind and plain ones through the same changes; how far apart their logits ever are."""
    rows, plain = kind(model), Plain(model)
    chance = torch.Generator().manual_seed(0)
    size = model.config.get_text_config().vocab_size

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(size, (count,), generator=chance)

    worst, count = 0.0, 0
    script: list[Any] = ["add", 1, 1, [0, 2], 1, "more", 1, [1, 2], 1, 1]
    if not rows.refills:
        script = ["add", 1, 1, [0, 2], 1, 1]
    prompts = {"add": [tokens(5), tokens(3), tokens(5)], "more": [tokens(9)]}
    prompts["add"][2] = prompts["add"][0]
    for action in script:
        if isinstance(action, list):
            plain.keep(rows.keep(action))
            count = len(action)
            continue
        if isinstance(action, str):
            mine, reference = rows.add(prompts[action]), plain.add(prompts[action])
            count += len(prompts[action])
        else:
            next_tokens = tokens(count).to(model.device)
            mine, reference = rows.forward(next_tokens), plain.forward(next_tokens)
        worst = max(worst, _apart(mine, reference))
    return worst
