"""Log-probabilities of finished texts, computed in forward passes over whole texts, for log-weights.

In half precision, the log-probability recorded while decoding and that of one pass over the text differ by tenths of a
nat to nats, and so would log a(y) - log a'(y). So such passes compute in float32, whatever the weights' dtype, and in
half precision both terms come from them: with a' = a they cancel. The remaining error is that the decoding loop did not
draw from exactly the distribution that is computed; ``Weigher.note`` reports its size.

With quantized weights, layers may round their input depending on all rows of a batch. Then both terms come from such
passes too, and each text is computed alone, so that its weight is a function of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from guardwrap.engine.forward_passes import in_one_pass, one_pass_length, scores_of_text
from guardwrap.engine.generation_law import GenerationLaw, applied, with_processors
from guardwrap.engine.model_weights import in_float32, is_quantised

_AT_ONCE = 2**25
"""Maximum number of logits in one pass: 128 MiB in float32."""


def is_exact(model: Any) -> bool:
    """Return whether log-probabilities from decoding and from one pass over the text agree to about 1e-3 nats.

    They do in float32 and float64, unless the weights are quantized.
    """
    return _is_wide(model) and not is_quantised(model)


def _is_wide(model: Any) -> bool:
    return model.dtype in (torch.float32, torch.float64)


Continuation = tuple[GenerationLaw, Sequence[int]]
"""The law of a prompt, and new tokens, including an end-of-sequence token if there is one."""


@torch.no_grad()
def log_probabilities(model: Any, texts: Sequence[Continuation], *, alone: bool = False) -> list[float]:
    """Compute log a(y) of each text in nats, with the processors, warpers and temperature of its prompt's law.

    The end-of-sequence token counts once; -inf if a processor or warper excludes a token of the text. ``alone``
    computes each text alone, as is always done with quantized weights.
    """
    results = [0.0] * len(texts)
    groups = [[i] for i in range(len(texts))] if alone or is_quantised(model) else [list(range(len(texts)))]
    with nullcontext() if _is_wide(model) else in_float32():
        for group in groups:
            for batch in scored(model, [texts[i] for i in group]):
                for place, scores in batch:
                    results[group[place]] = float(of_tokens(scores, texts[group[place]][1]).sum())
    return results


def of_tokens(scores: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of each token in nats, ``[tokens]``, float64, from scores ``[tokens, vocabulary]``."""
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None]).squeeze(1)
    return chosen.double() - scores.logsumexp(-1).double()


def scored(model: Any, texts: Sequence[Continuation]) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Compute the scores that each token of the texts is drawn from, in as few forward passes as memory allows.

    Yields for each pass the indices of its texts in ``texts`` and their scores, ``[tokens, vocabulary]``: logits in
    float32 after processors and warpers. Gradients flow through them, except under ``torch.no_grad``.
    """
    order = sorted(range(len(texts)), key=lambda i: _length(texts[i]))
    threshold = one_pass_length(model)
    while order:
        if threshold is not None and _length(texts[order[0]]) > threshold + 1:  # the last token is predicted, not read
            first, *order = order
            yield [(first, _scores_alone(model, texts[first]))]
            continue
        fitting = [texts[i] for i in order if threshold is None or _length(texts[i]) <= threshold + 1]
        chosen = _next_rows(fitting, model.config.get_text_config().vocab_size)
        rows, order = order[:chosen], order[chosen:]
        yield list(zip(rows, _scores(model, [texts[i] for i in rows]), strict=True))


def _length(text: Continuation) -> int:
    law, new = text
    return len(law.ids) + len(new)


def _scores_alone(model: Any, text: Continuation) -> torch.Tensor:
    """Compute a text as it is drawn, step by step."""
    law, new = text
    logits = scores_of_text(model, (*law.ids, *new[:-1]), len(law.ids))
    return _processed(logits, law, new)


def _next_rows(texts: Sequence[Continuation], vocabulary: int) -> int:
    """Return how many of the texts, ordered by length, fit into one pass."""
    count, first = 1, len(texts[0][0].ids)
    while count < len(texts):
        law, new = texts[count]
        first = min(first, len(law.ids))
        if (count + 1) * (len(law.ids) + len(new) - first) * vocabulary > _AT_ONCE:
            break
        count += 1
    return count


def _scores(model: Any, texts: Sequence[Continuation]) -> list[torch.Tensor]:
    # Padding is on the right, where a causal model cannot see it, so it requires no mask. Positions are those that
    # ``generate`` passes: RoBERTa would count its own, from another number and without padding tokens.
    sequences = [(*law.ids, *new) for law, new in texts]
    longest = max(len(ids) for ids in sequences) - 1  # the last token is predicted, not read
    device = model.device
    ids = torch.zeros(len(texts), longest, dtype=torch.long, device=device)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence) - 1] = torch.tensor(sequence[:-1], device=device)
    first = min(len(law.ids) for law, _ in texts) - 1
    logits = in_one_pass(model, ids, longest - first)
    # ``unbind`` instead of an index per row, whose gradient would be a tensor of the size of all rows.
    return [
        _processed(row[len(law.ids) - 1 - first :][: len(new)], law, new)
        for row, (law, new) in zip(logits.unbind(), texts, strict=True)
    ]


def _processed(scores: torch.Tensor, law: GenerationLaw, new: Sequence[int]) -> torch.Tensor:
    """Apply the processors and warpers to the logits of one text, ``[tokens, vocabulary]``, as ``generate`` does."""
    tokens = torch.tensor(new, device=scores.device)
    if law.processors:
        ids = torch.cat([law.prompt_ids.to(tokens), tokens])[None]
        before = len(law.ids)
        rows = scores.unsqueeze(1).clone()
        steps = [with_processors(law.processors, ids[:, : before + t], rows[t]) for t in range(len(new))]
        scores = torch.cat(steps)
    return applied(law.warpers, scores)
