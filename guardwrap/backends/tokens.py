"""Drawing single tokens by inverse CDF, with their log-probabilities."""

from __future__ import annotations

import torch
from transformers import LogitsProcessorList
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper

from guardwrap.errors import ModelError

BLOCK = 256
"""Number of tokens per block, whose weights are summed first."""


def inverse_cdf(scores: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row from softmax(scores).

    Parameters
    ----------
    scores
        Log-probabilities up to a constant, after every processor and warper; ``[rows, vocabulary]``, float32.
        Minus infinity excludes a token.
    uniform
        A uniform random number in [0, 1) per row; ``[rows]``, float64.

    Returns
    -------
    tokens : torch.Tensor
        The tokens drawn; ``[rows]``, int64.
    log_probabilities : torch.Tensor
        Their log-probabilities in nats; ``[rows]``, float64.

    Raises
    ------
    ModelError
        If a row contains NaN, or no token that can be drawn.

    Notes
    -----
    The CDF is computed on two levels: sums over blocks of the vocabulary in float64, then one block of each row. For 64
    rows of 49 k scores this took a tenth of the time of softmax and multinomial.
    """
    rows, size = scores.shape
    top = require_drawable(scores)
    weights = torch.nn.functional.pad((scores - top).exp_(), (0, -size % BLOCK)).view(rows, -1, BLOCK)
    blocks = weights.sum(-1, dtype=torch.float64).cumsum(-1)
    total = blocks[:, -1:]
    target = uniform[:, None] * total
    block = _first_above(blocks, target)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = weights[torch.arange(rows, device=scores.device), block.squeeze(1)].double().cumsum(-1)
    token = (block * BLOCK + _first_above(inside, target - before)).squeeze(1)
    chosen = scores.gather(1, token[:, None]).double()
    return token, (chosen - top.double() - total.log()).squeeze(1)


def require_drawable(scores: torch.Tensor) -> torch.Tensor:
    """Return the largest score of each row, ``[rows, 1]``."""
    top = scores.amax(-1, keepdim=True)
    if not bool(torch.isfinite(top).all()):
        raise ModelError(
            "the model's logits contain NaN, or every token is excluded; try float32, or check the logits processors"
        )
    return top


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the index of the first entry above the target. Rounding never selects an entry with weight zero."""
    below_end = torch.nextafter(cumulative[:, -1:], torch.zeros_like(target))
    return torch.searchsorted(cumulative, torch.minimum(target, below_end), right=True)


_TIES = 32
"""Number of candidates beyond the top k to include, because top-k keeps all scores that are tied with the k-th."""


def warped(scores: torch.Tensor, warpers: LogitsProcessorList) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Apply warpers; if top-k leaves few candidates, apply them to these only.

    Parameters
    ----------
    scores
        Scores of the next token, ``[rows, vocabulary]``.
    warpers
        Logits processors that depend only on the scores of a row.

    Returns
    -------
    scores : torch.Tensor
        ``[rows, candidates]``, or ``[rows, vocabulary]``.
    candidates : torch.Tensor or None
        Token ids of the columns, ascending, so that a uniform random number draws the same token as from the whole
        vocabulary; ``[rows, candidates]``. None if the columns are the whole vocabulary.

    Notes
    -----
    For 64 rows of 49 k random scores, temperature, top-50 and the draw take 5 ms instead of 48 ms.
    """
    ids = torch.empty(len(scores), 0, dtype=torch.long)  # warpers do not read token ids
    first = next((i for i, warper in enumerate(warpers) if not isinstance(warper, TemperatureLogitsWarper)), None)
    if first is not None and isinstance(warpers[first], TopKLogitsWarper):
        size = warpers[first].top_k + _TIES
        if size < scores.shape[1]:
            few, candidates = scores.topk(size)
            few = applied(warpers, ids, few)
            # If the last candidate was kept too, more tokens outside the candidates may be tied with the k-th.
            if not bool(torch.isfinite(few[:, -1]).any()):
                candidates, order = candidates.sort(-1)
                return few.gather(1, order), candidates
    return applied(warpers, ids, scores), None


def applied(warpers: LogitsProcessorList, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply warpers one by one. Calling the list is slower, because it inspects the signature of each every time."""
    for warper in warpers:
        scores = warper(ids, scores)
    return scores


def argmax(scores: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the most likely token of each row: greedy search. As the choice is certain, its log-probability is 0."""
    if bool(scores.isnan().any()):
        raise ModelError("the model's logits contain NaN, so no token is the most likely; try float32")
    return scores.argmax(-1), torch.zeros_like(uniform)
