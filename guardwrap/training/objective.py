"""What training minimises: KL(g‖π), as a sum over the tokens of weighted samples.

The gradient of KL(g‖π) is -E_g ∇ log π(y) (paper App. C). DPG estimates it with draws of π itself, weighted by
P(y) / (π(y) Z); the replay objective with every satisfying sample so far, weighted by P(y) over the mixture that drew
it. Both are Σ_i w_i log π(y_i) up to its sign, so they share what follows.

Once a prefix decides the constraint (verdict SATISFIED) every continuation is allowed, so g continues it exactly as a
does. There the replay objective takes the expectation over the next token instead of the one that was drawn: the same
objective, without that part of the noise (Rao and Blackwell).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from guardwrap.backends.sequence_scores import of_tokens

__all__ = ["cross_entropy_by_token"]


def cross_entropy_by_token(
    policy: torch.Tensor, base: torch.Tensor, tokens: Sequence[int], decided: int
) -> torch.Tensor:
    """Return an unbiased term of -E_g log π for each token of a draw of g: KL(g‖π) but for what no π changes.

    Parameters
    ----------
    policy, base
        Scores of π and of a, ``[tokens, vocabulary]``: logits after processors and warpers.
    tokens
        The draw.
    decided
        From which token on the constraint is decided.

    Returns
    -------
    torch.Tensor
        ``[tokens]``, nats, float64: -log π of the token before ``decided``; from there on -Σ_v a(v) log π(v).
    """
    law, log_policy = base[decided:].softmax(-1), policy[decided:].log_softmax(-1)
    # A token that a processor forbids has a = π = 0 and adds nothing.
    expected = (law * torch.where(law > 0, log_policy, 0.0)).sum(-1).double()
    return -torch.cat([of_tokens(policy, tokens)[:decided], expected])
