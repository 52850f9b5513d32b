"""What samplers should return, computed exactly: laws over enumerated texts, as arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Text = tuple[int, ...]
Law = Mapping[Text, float]


def normal(law: np.ndarray) -> np.ndarray:
    """Divide by the sum."""
    return law / law.sum()


def qrs_law(proposal: np.ndarray, weights: np.ndarray, beta: float) -> np.ndarray:
    """From a' on the texts that satisfy the constraint, 0 on others, and P / a'."""
    return normal(proposal * np.minimum(1.0, weights / beta))


def imh_law(proposal: np.ndarray, weights: np.ndarray, steps: int, move: str = "accepted") -> np.ndarray:
    """Push the law of the start, g', through the chain's transition matrix. Arguments as in qrs_law."""
    start = normal(proposal)
    moves = start if move == "accepted" else proposal
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(weights[:, None] > 0, weights[None, :] / weights[:, None], 1.0 * (weights[None, :] > 0))
    matrix = moves[None, :] * np.minimum(1.0, ratio)
    np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(1))
    return start @ np.linalg.matrix_power(matrix, steps)


def by_text(law: Callable[..., np.ndarray], *arrays: Law, **settings: Any) -> dict[Text, float]:
    """Call a function of arrays with laws by text, all of them over the same texts in the same order."""
    texts = list(arrays[0])
    assert all(list(array) == texts for array in arrays)
    found = law(*(np.array(list(array.values())) for array in arrays), **settings)
    return dict(zip(texts, found.tolist(), strict=True))
