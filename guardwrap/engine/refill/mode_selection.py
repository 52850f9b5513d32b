"""Selection of the fastest way to keep rows that reproduces a model's logits, by testing the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig

from guardwrap.constraints.regex_analysis import filtered_warnings
from guardwrap.engine.forward_passes import (
    fresh_cache,
    in_one_pass,
    length_threshold,
    look_for_compiled,
    note_cache,
    one_pass_length,
    run_model,
    scores_of_text,
    taken_by,
)
from guardwrap.engine.model_weights import HALF, in_float32, is_quantised
from guardwrap.engine.refill.llama_cpp import LlamaCppModel, LlamaRows
from guardwrap.engine.refill.row_states import Plain, Rows, Separate, SeparatePlain, Wave, rows_of
from guardwrap.engine.refill.slots import Slots
from guardwrap.engine.scheduling.backend import Ids
from guardwrap.errors import ModelError
from guardwrap.support.transformers_internals import CACHE_NAMES, without_stop_strings

logger = logging.getLogger("guardwrap")

SLOWER = {"evict-only": 1.4, "plain": 9.5}
"""CPU seconds of each mode, relative to ``"refill"``.

Measured by ``python benchmarks/comma.py --modes``, the constraint "no comma" on the embedded model: 1.82 seconds per
text in ``"refill"``, 2.56 in ``"evict-only"``, 17.4 in ``"plain"``, which gets slower with longer prompts and texts.
"""


@torch.no_grad()
def select_rows(model: Any, *, separate: bool = False) -> type[Rows]:
    """Return the fastest class of rows that reproduces this model's logits.

    Each class is tested with prompts of different lengths, rows that end, and rows that join later. Its logits are
    compared with those of every text computed from its start. Half-precision models are tested in float32; see
    ``in_float32``.
    """
    look_for_compiled(model)
    results = _chosen.setdefault(model, {})
    key = (model.dtype, str(model.device), separate)
    if key not in results:
        kinds: tuple[type[Rows], ...] = (Separate, SeparatePlain) if separate else (Slots, Wave, Plain)
        if isinstance(model, LlamaCppModel):
            kinds = (SeparatePlain,) if separate else (LlamaRows, Plain)
        with model.tested() if isinstance(model, LlamaCppModel) else nullcontext():
            results[key] = kind, reason = _tested(model, *kinds)
        if reason is not None and not separate:
            words = "%s is drawn in the slower mode %r, which takes about %g times as long: %s (see `guardwrap doctor`)"
            logger.warning(words, type(model).__name__, kind.name, SLOWER[kind.name], reason)
    return results[key][0]


def as_tried(model: Any, like: Any) -> Any:
    """Return ``model``, after noting that test results hold for it and ``like``, which differ only in weights."""
    _chosen[model] = _chosen.setdefault(like, {})
    note_cache(model, differs=one_pass_length(like) == 0)
    return model


def slower_because(model: Any, *, separate: bool = False) -> str | None:
    """Return a sentence for reports on why ``select_rows`` did not choose the fastest mode; None if it did."""
    result = _chosen.get(model, {}).get((model.dtype, str(model.device), separate))
    if result is None or result[1] is None:
        return None
    return f"drawn in the slower mode {result[0].name!r}: {result[1]}"


_SAME = 1e-4
"""The largest difference between logits with and without a cache, in standard deviations, that rounding causes."""

_chosen: WeakKeyDictionary[Any, dict[Any, tuple[type[Rows], str | None]]] = WeakKeyDictionary()


def _tested(model: Any, *kinds: type[Rows]) -> tuple[type[Rows], str | None]:
    """Return the first class that reproduces the model's logits, and why no earlier class does, or None.

    The last class keeps no states, so it is not tested.
    """
    *cached, plain = kinds
    note_cache(model, differs=False)
    _require_generate(model)
    if not taken_by(model) & set(CACHE_NAMES) and not isinstance(model, LlamaCppModel):
        return plain, f"its forward does not accept a supported cache ({', '.join(CACHE_NAMES)})"
    # Rounding causes 1e-5 in float32. Nemotron-H clamps its steps in another way with a cache, which causes 1e-3.
    note_cache(model, differs=not is_quantised(model) and _measured(model, partial(_rounding, model))[0] > _SAME)
    reasons = []
    for kind in cached:
        try:
            error, tolerance = _measured(model, partial(_difference, kind, model))
        except torch.OutOfMemoryError as reason:  # not a property of the model, so the result must not be cached
            way_out = "free some memory, or load the model in half precision"
            raise ModelError(f"out of memory while testing the model; {way_out}") from reason
        except Exception as reason:  # an architecture may raise anything for a cache that it does not support
            logger.debug("%s does not work with %s", kind.name, type(model).__name__, exc_info=reason)
            reasons.append(f"{kind.name!r} raised {type(reason).__name__}")
            continue
        if isinstance(model, LlamaCppModel):
            model.rounds_with_batch = error > 1e-3
        if error < tolerance:
            return kind, "; ".join(reasons) or None
        reasons.append(
            f"with {kind.name!r} its logits differ by {error:.2g} standard deviations, more than {tolerance:.2g}"
        )
    note_cache(model, differs=False)  # nothing is drawn with it
    if (threshold := length_threshold(model)) is not None:
        raise ModelError(
            f"{type(model).__name__} is not supported with this configuration: past {threshold} tokens its texts "
            f"depend on its cache, and {'; '.join(reasons)}; use another model"
        )
    return plain, "; ".join(reasons)


def _measured(model: Any, difference: Callable[[], float]) -> tuple[float, float]:
    """Return a difference of logits (see ``_apart``), and the largest difference that may be due to rounding.

    Misplaced states, or a mask that hides too little or too much, cause a difference of 0.2 or more on SmolLM2.
    Rounding causes 1e-5 in float32 and up to 0.13 in bfloat16, depending on the processor, so half-precision models are
    computed in float32. If that is not possible (kernels for half precision only; quantized weights, which round as
    much in float32), the rounding is estimated with the model's own cache on one text.
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
    """Return twice the rounding, within bounds, so that errors of the model's own cache do not hide errors of ours."""
    return min(max(2 * _rounding(model), least), most)


def _rounding(model: Any) -> float:
    """Return the difference between logits of one text token by token, with the model's own cache, and all at once."""
    ids = torch.randint(
        model.config.get_text_config().vocab_size, (1, 8), generator=torch.Generator().manual_seed(1)
    ).to(model.device)
    past = fresh_cache(model)
    worst = 0.0
    try:
        whole = in_one_pass(model, ids)
        for start, end in [(0, 5), (5, 6), (6, 7), (7, 8)]:
            mask = torch.ones(1, end, dtype=torch.long, device=ids.device)
            positions = torch.arange(start, end, device=ids.device)[None]
            logits = run_model(model, ids[:, start:end], mask, positions, past)
            worst = max(worst, _apart(logits, whole[:, end - 1]))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the library's cache does not work with the model, so ours will not either
        return 0.0
    return worst


def _require_generate(model: Any) -> None:
    """Reject models whose ``generate`` passes them other inputs than the tokens, such as an appended mask token."""
    size = model.config.get_text_config().vocab_size
    ids = torch.randint(size, (1, 4), generator=torch.Generator().manual_seed(0)).to(model.device)
    difference, tolerance = _measured(model, partial(_generate_apart, model, ids))
    if difference > tolerance:
        raise ModelError(
            f"{type(model).__name__} is not supported, because its generate passes it other inputs than the text's "
            "tokens; use another model"
        )


def _generate_apart(model: Any, ids: torch.Tensor) -> float:
    """Return the difference between the logits of ``model.generate`` and of the model called on the same tokens."""
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
        # the warnings are about the model's generation settings that greedy search does not use
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    if generated.sequences.shape[1] != ids.shape[1] + len(generated.logits):
        raise ModelError(
            f"{type(model).__name__} is not supported, because its generate changes drawn tokens; use another model "
            "or change texts in a pipeline's postprocess"
        )
    reference = scores_of_text(model, tuple(generated.sequences[0, :-1].tolist()), ids.shape[1])
    steps = zip(generated.logits, reference.unbind(), strict=True)
    return max(_apart(logits.float(), whole[None]) for logits, whole in steps)


def _apart(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest root mean square difference of a row's logits, in standard deviations of the logits."""
    spread = reference.std(-1).mean().clamp(min=1e-6)
    return float(((logits - reference).square().mean(-1).sqrt().amax() / spread).item())


def _difference(kind: type[Rows], model: Any) -> float:
    """Return the largest difference between logits of rows that join and leave, and in one pass."""
    rows = rows_of(kind, model)
    chance = torch.Generator().manual_seed(0)
    size = model.config.get_text_config().vocab_size

    def tokens(count: int) -> Ids:
        return tuple(torch.randint(size, (count,), generator=chance).tolist())

    seen: list[tuple[list[tuple[Ids, int]], torch.Tensor]] = []
    texts: list[Ids] = []
    prompts: list[int] = []  # length of the prompt of each text
    script: list[Any] = ["add", 1, 1, [0, 2], 1, "join", "add", 1, [1, 3], 1, 1]
    if not rows.refills:
        script = ["add", 1, 1, [0, 2], 1, 1]
    for action in script:
        if isinstance(action, list):
            order = rows.keep(action)
            texts, prompts = [texts[row] for row in order], [prompts[row] for row in order]
        elif action == "join" and rows.shares:
            # Start a row at a prefix that another row has reached, and at a longer one that none has reached.
            for new in (texts[-1], (*texts[-1], *tokens(2))):
                rows.join(new, prompts[-1])
                texts, prompts = [*texts, new], [*prompts, prompts[-1]]
        elif action == "add":
            # Add prompts of different lengths, and one of them twice.
            these = [tokens(5), tokens(3)]
            these += these[:1]
            lengths = [len(each) for each in these]
            seen.append((list(zip(these, lengths, strict=True)), rows.add(these)))
            texts, prompts = texts + these, prompts + lengths
        elif action == 1:
            next_tokens = tokens(len(texts))
            texts = [(*text, token) for text, token in zip(texts, next_tokens, strict=True)]
            step = torch.tensor(next_tokens, device=model.device)
            logits = rows.forward(step, dict(enumerate(texts)) if rows.shares else None)
            seen.append((list(zip(texts, prompts, strict=True)), logits))
    right = _logits_after(model, {text for each, _ in seen for text in each})
    apart = [_apart(logits, torch.stack([right[text] for text in each])) for each, logits in seen]
    return torch.tensor(apart).amax().item()  # NaN if one is NaN, unlike max()


def _logits_after(model: Any, begun: set[tuple[Ids, int]]) -> dict[tuple[Ids, int], torch.Tensor]:
    """Compute the logits after each text, given with its prompt's length.

    Texts that are prefixes of others are computed together with these, unless their lengths make a difference.
    """
    if one_pass_length(model) is not None:
        return {(text, prompt): scores_of_text(model, text, prompt)[-1] for text, prompt in begun}
    texts = {text for text, _ in begun}
    longest = [text for text in texts if not any(text == other[: len(text)] for other in texts - {text})]
    results: dict[Ids, torch.Tensor] = {}
    for length in {len(text) for text in longest}:
        these = [text for text in longest if len(text) == length]
        for text, logits in zip(these, in_one_pass(model, torch.tensor(these, device=model.device)), strict=True):
            results |= {text[: place + 1]: logits[place] for place in range(length)}
    return {(text, prompt): results[text] for text, prompt in begun}
