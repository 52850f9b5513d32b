"""The output embeddings of a model's tokens, as features of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ROWS = 16_384
"""The tokens of one product. Weights in half precision are converted piece by piece."""

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TokenEmbeddings:
    """A vector of each token, with mean 0 and a mean square length of 1 over the vocabulary."""

    weight: torch.Tensor  # the model's output embeddings, ``[tokens, dimensions]``. They are not copied.
    mean: Vector  # the mean vector, ``[dimensions]``, and what to divide by after it is subtracted
    scale: float

    @classmethod
    def of(cls, model: Any) -> TokenEmbeddings | None:
        """Return the embeddings of a model; None if it has none in memory, or in a quantized form only."""
        weight = getattr(model.get_output_embeddings(), "weight", None)
        if weight is None or weight.ndim != 2 or not weight.is_floating_point() or weight.is_meta:
            return None
        weight = weight.detach()
        mean = _total(rows.sum(0) for _, rows in _pieces(weight)) / len(weight)
        squares = float(_total(rows.square().sum() for _, rows in _pieces(weight))) / len(weight)
        variance = squares - float(mean @ mean)
        return cls(weight, mean, float(np.sqrt(variance))) if variance > 0 else None

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return len(self.mean)

    def products(self, direction: Vector) -> Vector:
        """Return the product of each token's vector with another one: ``[dimensions]`` to ``[tokens]``."""
        other = torch.from_numpy(direction).to(self.weight.device, torch.float32)
        products = [(rows @ other).cpu().numpy() for _, rows in _pieces(self.weight)]
        return (np.concatenate(products).astype(np.float64) - self.mean @ direction) / self.scale

    def sums(self, shares: Vector) -> Vector:
        """Return the sum of the tokens' vectors times their shares: ``[tokens]`` to ``[dimensions]``."""
        every = torch.from_numpy(shares).to(self.weight.device, torch.float32)
        sums = _total(every[start : start + len(rows)] @ rows for start, rows in _pieces(self.weight))
        return np.asarray((sums - self.mean * shares.sum()) / self.scale)


def _pieces(weight: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, len(weight), _ROWS):
        yield start, weight[start : start + _ROWS].float()


def _total(parts: Iterable[torch.Tensor]) -> Vector:
    return np.sum([part.cpu().numpy().astype(np.float64) for part in parts], axis=0)  # type: ignore[no-any-return]
