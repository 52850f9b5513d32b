"""Which way of keeping rows gives a model's own logits: tried on the model at hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig

from guardwrap.backends.float32 import HALF, in_float32
from guardwrap.backends.refill.row_states import Ids, Plain, Rows, Wave, anew, fresh_cache, run_model, taken_by
from guardwrap.backends.refill.slots import Slots
from guardwrap.backends.shared_weights import is_quantised
from guardwrap.constraints.kinds.regex_analysis import filtered_warnings
from guardwrap.environment.transformers_internals import CACHE_NAMES, without_stop_strings
from guardwrap.errors import ModelError

__all__ = ["SLOWER", "as_tried", "select_rows", "slower_because"]

logger = logging.getLogger("guardwrap")

SLOWER = {"evict-only": 1.5, "plain": 10.0}
"""How many times the CPU seconds of ``"refill"`` each mode takes, at least.

With the constraint "no comma" on the embedded model, in times of the speed of a retry loop over ``generate``: 3.9 in
``"evict-only"`` against 6.0, both without early ends; 0.3 in ``"plain"`` against 3 to 22. ``"plain"`` takes more the
longer prompts and texts are. ``python benchmarks/comma.py --modes`` measures all three.
"""


@torch.no_grad()
def select_rows(model: Any) -> type[Rows]:
    """Find the fastest way to keep rows that gives this model's own logits.

    Each is tried with prompts of different lengths, rows that leave, and rows that come later, against computing every
    text from its beginning; a model of half precision is tried in float32, see ``float32``.

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
        found[key] = kind, reason = _tested(model)
        if reason is not None:
            words = (
                "%s is drawn in the slower mode %r, which takes %g times as long or more: %s (see `guardwrap doctor`)"
            )
            logger.warning(words, type(model).__name__, kind.name, SLOWER[kind.name], reason)
    return found[key][0]


def as_tried(model: Any, like: Any) -> Any:
    """Return a model that has the modules of another one, with other numbers: what is found of one holds for both."""
    _chosen[model] = _chosen.setdefault(like, {})
    return model


def slower_because(model: Any) -> str | None:
    """Why ``select_rows`` did not take the fastest way, for reports; None where it did."""
    found = _chosen.get(model, {}).get((model.dtype, str(model.device)))
    if found is None or found[1] is None:
        return None
    return f"drawn in the slower mode {found[0].name!r}: {found[1]}"


_chosen: WeakKeyDictionary[Any, dict[Any, tuple[type[Rows], str | None]]] = WeakKeyDictionary()


def _tested(model: Any) -> tuple[type[Rows], str | None]:
    """Return the fastest way that is right, and why no faster one is."""
    _require_generate(model)
    if frequencies := _rope_types(model.config.get_text_config()) & {"dynamic", "longrope"}:
        return Plain, f"with {frequencies.pop()} rotary embeddings, the longest row of a batch changes all others"
    if not taken_by(model) & set(CACHE_NAMES):
        return Plain, f"its forward takes no cache that is known here ({', '.join(CACHE_NAMES)})"
    reasons = []
    kinds: tuple[type[Slots] | type[Wave], ...] = (Slots, Wave)
    for kind in kinds:
        try:
            error, tolerance = _measured(model, partial(_difference, kind, model))
        except torch.OutOfMemoryError as reason:  # which says nothing about the model, so nothing is remembered
            way_out = "free some, or load it in half precision"
            raise ModelError(f"out of memory when the model was first tried; {way_out}") from reason
        except Exception as reason:  # whatever an architecture does with a cache it does not know
            logger.debug("%s does not work with %s", kind.name, type(model).__name__, exc_info=reason)
            reasons.append(f"{kind.name!r} raised {type(reason).__name__}")
            continue
        if error < tolerance:
            return kind, "; ".join(reasons) or None
        reasons.append(
            f"with {kind.name!r} its logits differ by {error:.2g} of their spread, more than {tolerance:.2g}"
        )
    return Plain, "; ".join(reasons)


def _measured(model: Any, difference: Callable[[], float]) -> tuple[float, float]:
    """Return a difference of logits, as ``_apart`` gives it, and how much of it may be rounding.

    Misplaced states, a mask that hides too little or too much make a difference of 0.2 or more on SmolLM2. Rounding
    makes one of 1e-5 in float32 and of up to 0.13 in bfloat16, depending on the processor: so half precision is
    computed in float32. Where that is not possible (kernels that take nothing else; quantised weights, which round as
    much in float32), what may be rounding is judged by the model's own cache on one text.
    """
    half = any(tensor.dtype in HALF for tensor in (*model.parameters(), *model.buffers()))
    if not is_quantised(model):
        try:
            with in_float32() if half else nullcontext():
                error = difference()
                return error, 1e-3 if error < 1e-3 else _tolerance(model, 1e-3, 0.1)
        except torch.OutOfMemoryError:
            raise
        except Exception as reason:
            if not half:
                raise
            logger.debug("%s does not run in float32", type(model).__name__, exc_info=reason)
    return difference(), _tolerance(model, 0.1, 0.15)


def _tolerance(model: Any, least: float, most: float) -> float:
    """Twice the rounding, within bounds: a cache of the model's own that is wrong must not excuse one of ours."""
    return min(max(2 * _rounding(model), least), most)


def _rounding(model: Any) -> float:
    """How far the model's logits of one text, token by token from its own cache, are from those of the whole text."""
    ids = torch.randint(
        model.config.get_text_config().vocab_size, (1, 8), generator=torch.Generator().manual_seed(1)
    ).to(model.device)
    past = fresh_cache(model)
    worst = 0.0
    try:
        for start, end in [(0, 5), (5, 6), (6, 7), (7, 8)]:
            mask = torch.ones(1, end, dtype=torch.long, device=ids.device)
            positions = torch.arange(start, end, device=ids.device)[None]
            logits = run_model(model, ids[:, start:end], mask, positions, past)
            whole = run_model(model, ids[:, :end], mask, torch.arange(end, device=ids.device)[None], None)
            worst = max(worst, _apart(logits, whole))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # no cache that the library can fill: then there is none of ours either
        return 0.0
    return worst


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
    difference, tolerance = _measured(model, partial(_generate_apart, model, ids))
    if difference > tolerance:
        raise ModelError(
            f"{type(model).__name__} is not supported: its generate feeds it other inputs than the text's tokens"
        )


def _generate_apart(model: Any, ids: torch.Tensor) -> float:
    """How far the logits of ``model.generate`` are from those of the model called on the same tokens."""
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
    before = ids.shape[1] - 1
    reference = anew(model, made.sequences[:, :-1])[:, before:]
    steps = zip(made.logits, reference.unbind(1), strict=True)
    return max(_apart(logits.float(), whole) for logits, whole in steps)


def _apart(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square difference of the logits of a row, in units of their spread; of the row where it is largest."""
    spread = reference.std(-1).mean().clamp(min=1e-6)
    return float(((logits - reference).square().mean(-1).sqrt().amax() / spread).item())


def _difference(kind: type[Rows], model: Any) -> float:
    """Run rows of this kind through changes; how far their logits ever are from those of the same texts anew."""
    rows = kind(model)
    chance = torch.Generator().manual_seed(0)
    size = model.config.get_text_config().vocab_size

    def tokens(count: int) -> Ids:
        return tuple(torch.randint(size, (count,), generator=chance).tolist())

    seen: list[tuple[list[Ids], torch.Tensor]] = []
    texts: list[Ids] = []
    prompts: list[int] = []  # how many ids of each text are its prompt
    script: list[Any] = ["add", 1, 1, [0, 2], 1, "join", "add", 1, [1, 3], 1, 1]
    if not rows.refills:
        script = ["add", 1, 1, [0, 2], 1, 1]
    for action in script:
        if isinstance(action, list):
            order = rows.keep(action)
            texts, prompts = [texts[row] for row in order], [prompts[row] for row in order]
        elif action == "join" and rows.shares:
            # Where another row has been, and further on than any has been.
            for new in (texts[-1], (*texts[-1], *tokens(2))):
                rows.join(new, prompts[-1])
                texts, prompts = [*texts, new], [*prompts, prompts[-1]]
        elif action == "add":
            # Prompts of different lengths, one of them twice.
            these = [tokens(5), tokens(3)]
            these += these[:1]
            seen.append((these, rows.add(these)))
            texts, prompts = texts + these, prompts + [len(each) for each in these]
        elif action == 1:
            next_tokens = tokens(len(texts))
            texts = [(*text, token) for text, token in zip(texts, next_tokens, strict=True)]
            step = torch.tensor(next_tokens, device=model.device)
            seen.append((texts, rows.forward(step, dict(enumerate(texts)) if rows.shares else None)))
    right = _logits_after(model, {text for each, _ in seen for text in each})
    apart = [_apart(logits, torch.stack([right[text] for text in each])) for each, logits in seen]
    return torch.tensor(apart).amax().item()  # NaN if one is, which max() may overlook


def _logits_after(model: Any, texts: set[Ids]) -> dict[Ids, torch.Tensor]:
    """Compute the logits after each text. A text that another one begins with needs no run of its own."""
    longest = [text for text in texts if not any(text == other[: len(text)] for other in texts - {text})]
    found: dict[Ids, torch.Tensor] = {}
    for length in {len(text) for text in longest}:
        these = [text for text in longest if len(text) == length]
        for text, logits in zip(these, anew(model, torch.tensor(these, device=model.device)), strict=True):
            found |= {text[: place + 1]: logits[place] for place in range(length)}
    return found
