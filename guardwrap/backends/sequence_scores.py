"""log-probabilities of finished texts, in one forward pass each: the other half of a weight.

In half precision the log-probability seen while decoding and that of one pass differ by tenths of a nat to nats, and
so would log a(y) - log a'(y). One pass computes in float32 therefore, whatever the weights are stored in, and in half
precision both terms come from it: with a' = a they cancel. What is left is that the decoding loop did not draw from
quite the law that is computed; ``Weigher.note`` says how far off it was.

With quantised weights, layers may round what they are given by all rows of a batch. There too both terms come from a
pass, and each text is computed alone, so that its weight is a function of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from guardwrap.backends.float32 import in_float32
from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.refill.row_states import taken_by
from guardwrap.backends.shared_weights import is_quantised
from guardwrap.backends.tokens import applied

__all__ = ["Continuation", "is_exact", "log_probabilities", "of_tokens", "scored"]

_AT_ONCE = 2**25
"""Numbers in the logits of one pass, at most: 128 MiB in float32."""


def is_exact(model: Any) -> bool:
    """Whether what decoding saw and what one pass computes agree to about 1e-3 nats.

    float32 and wider do, unless the weights are quantised.
    """
    return _is_wide(model) and not is_quantised(model)


def _is_wide(model: Any) -> bool:
    return model.dtype in (torch.float32, torch.float64)


Continuation = tuple[GenerationLaw, Sequence[int]]
"""A prompt's law and new tokens, the end-of-sequence token included where there is one."""


@torch.no_grad()
def log_probabilities(model: Any, texts: Sequence[Continuation]) -> list[float]:
    """Compute log a(y), under the law of each text's prompt: processors, warpers and temperature included.

    Parameters
    ----------
    model
        A causal language model.
    texts
        What to score. The log-probability of an end-of-sequence token counts once.

    Returns
    -------
    list of float
        In nats; minus infinity where a warper excludes a token. Each is summed in float64.
    """
    found = [0.0] * len(texts)
    groups = [[i] for i in range(len(texts))] if is_quantised(model) else [list(range(len(texts)))]
    with nullcontext() if _is_wide(model) else in_float32():
        for group in groups:
            for batch in scored(model, [texts[i] for i in group]):
                for place, scores in batch:
                    found[group[place]] = float(of_tokens(scores, texts[group[place]][1]).sum())
    return found


def of_tokens(scores: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of each token in nats, ``[tokens]`` in float64, of scores ``[tokens, vocabulary]``."""
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None]).squeeze(1)
    return chosen.double() - scores.logsumexp(-1).double()


def scored(model: Any, texts: Sequence[Continuation]) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Compute what each token of the texts is drawn from, in as few forward passes as memory allows.

    Yields
    ------
    list of (int, torch.Tensor)
        For each pass the places of its texts in ``texts``, and their scores ``[tokens, vocabulary]``: logits in float32
        after processors and warpers. Gradients flow through them unless torch is told otherwise.
    """
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0].ids) + len(texts[i][1]))
    while order:
        chosen = _next_rows([texts[i] for i in order], model.config.get_text_config().vocab_size)
        rows, order = order[:chosen], order[chosen:]
        yield list(zip(rows, _scores(model, [texts[i] for i in rows]), strict=True))


def _next_rows(texts: Sequence[Continuation], vocabulary: int) -> int:
    """How many of the texts, ordered by length, fit into one pass."""
    count, first = 1, len(texts[0][0].ids)
    while count < len(texts):
        law, new = texts[count]
        first = min(first, len(law.ids))
        if (count + 1) * (len(law.ids) + len(new) - first) * vocabulary > _AT_ONCE:
            break
        count += 1
    return count


def _scores(model: Any, texts: Sequence[Continuation]) -> list[torch.Tensor]:
    # Padding stands on the right, where no causal model can see it: nothing has to be masked or numbered for it.
    sequences = [(*law.ids, *new) for law, new in texts]
    longest = max(len(ids) for ids in sequences) - 1  # the last token is predicted, not read
    device = model.device
    ids = torch.zeros(len(texts), longest, dtype=torch.long, device=device)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence) - 1] = torch.tensor(sequence[:-1], device=device)
    first = min(len(law.ids) for law, _ in texts) - 1
    extra = {"logits_to_keep": longest - first} if "logits_to_keep" in taken_by(model) else {}
    logits = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, return_dict=True, **extra
    ).logits
    logits = logits[:, logits.shape[1] - (longest - first) :]
    # Row by row by an index, each row's gradient would be a tensor of all rows.
    return [
        _processed(row[len(law.ids) - 1 - first :][: len(new)].float(), law, new)
        for row, (law, new) in zip(logits.unbind(), texts, strict=True)
    ]


def _processed(scores: torch.Tensor, law: GenerationLaw, new: Sequence[int]) -> torch.Tensor:
    """Apply what ``generate`` does to the logits of one text, ``[tokens, vocabulary]``."""
    tokens = torch.tensor(new, device=scores.device)
    if law.processors:
        ids = torch.cat([law.prompt_ids.to(tokens), tokens])[None]
        before = len(law.ids)
        steps = [law.processors(ids[:, : before + t], scores[t : t + 1]) for t in range(len(new))]
        scores = torch.cat(steps)
    return applied(law.warpers, tokens.new_empty(len(new), 0), scores)
