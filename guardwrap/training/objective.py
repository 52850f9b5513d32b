"""The objective of training: KL(g‖π), as a sum over the tokens of weighted samples.

The gradient of KL(g‖π) is -E_g ∇ log π(y) (paper App. C). DPG estimates it with draws of π itself, weighted by
P(y) / (π(y) Z); the replay objective with every accepted sample so far, weighted by P(y) over the mixture it came
from. Both are -Σ_i w_i log π(y_i), so they share the code below.

Once a prefix satisfies the constraint for good (verdict SATISFIED), every continuation is allowed, so g continues it
exactly as a does. From there on the replay objective takes the expectation over the next token instead of the drawn
one: the same objective with less variance (Rao and Blackwell).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from guardwrap.backends.sequence_scores import of_tokens


def cross_entropy_by_token(
    policy: torch.Tensor, base: torch.Tensor, tokens: Sequence[int], decided: int
) -> torch.Tensor:
    """Return an unbiased term of -E_g log π for each token of a draw of g: KL(g‖π) up to a constant.

    Parameters
    ----------
    policy, base
        Scores of π and of a, ``[tokens, vocabulary]``: logits after processors and warpers.
    tokens
        The tokens of the draw.
    decided
        Number of tokens after which the constraint is decided.

    Returns
    -------
    torch.Tensor
        ``[tokens]``, nats, float64: -log π of the token before ``decided``; from there on -Σ_v a(v) log π(v).
    """
    law, log_policy = base[decided:].softmax(-1), policy[decided:].log_softmax(-1)
    # A token that a processor forbids has a = π = 0, which would give 0 times -inf.
    expected = (law * torch.where(law > 0, log_policy, 0.0)).sum(-1).double()
    return -torch.cat([of_tokens(policy, tokens)[:decided], expected])
