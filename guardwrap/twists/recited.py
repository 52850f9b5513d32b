"""Drawing a given text, so that a twist sees the distributions that its tokens would be drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from guardwrap.twists.state_values import Values
from guardwrap.twists.twist import Twist

_NEVER = -1e3
"""The factor of other tokens than the text's, in nats."""


@dataclass(frozen=True)
class Recited:
    """Draws one text, if the model can, and has a twist keep the steps."""

    twist: Twist  # sees each distribution. Its factors are not used.
    token_ids: Sequence[int]  # the text. After it an end is drawn.

    most_weight: ClassVar[float] = math.inf

    @property
    def learns(self) -> bool:
        """True: the twist must see each distribution."""
        return True

    def log_factors(
        self,
        token_ids: Sequence[int],
        tokens: npt.NDArray[np.int64] | None,
        log_probabilities: Values,
        log_weight: float = 0.0,
    ) -> Values:
        """Return 0 for the next token of the text, and next to nothing for the others; see ``TokenTwist``."""
        self.twist.log_factors(token_ids, tokens, log_probabilities)
        columns = np.arange(len(log_probabilities)) if tokens is None else tokens
        left = self.token_ids[len(token_ids) :]
        wanted = columns == left[0] if left else np.isin(columns, list(self.twist.end_ids))
        return np.where(wanted, 0.0, _NEVER)
