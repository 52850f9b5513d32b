"""A tilt of next tokens towards those of satisfying texts, learned from attempts.

States know how far a text has come, but not what it is about: a text leads up to "castle" with a king and a forest. So
tokens are also weighed by exp(e_x · v), where e_x is the output embedding of token x and v one vector for all steps, a
direction in which the texts of g differ from those of the model. As embeddings relate tokens to each other, a few
effective draws of g suffice, where a weight for each token would fit only the tokens of these draws.

v is fitted by maximum likelihood to weighted texts (the cross-entropy method: Rubinstein and Kroese 2004), and these
need not have succeeded: a text up to step t stands for one of g with the weight a/a' of its tokens times h_t, the
probability under a that its next token makes success likely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from guardwrap.twists.state_values import Values

LIKELY = 0.1
"""The value of a state from which success is likely: tokens are tilted in states with less."""

PRIOR_VARIANCE = 8.0
"""The variance of each coordinate of v, a priori. It is large, as v is shortened afterwards (``TiltData.fitted``)."""

MOST_TILT = 20.0
"""The most nats by which a token is tilted, up or down: more than texts with much in common ever teach."""

_MOST_KEPT = 500_000
"""The most tokens that the records of one round keep: 4 MB."""

_LEAST, _MOST = 16, 128
"""The fewest and the most tokens that are kept of one step: the most likely ones, and an equal number of the others."""

_STEPS = 200
"""The most steps of the optimizer."""

_TOLERANCES = 1e-4, 1e-4, 1e-5
"""Where the optimizer ends, for the two halves and for all attempts: no coordinate of the gradient is larger."""

_TAUGHT_BY = 0.99
"""The share of the weight of all steps that a tilt is fitted to."""

_LENGTHS = np.linspace(0, 1, 11)
"""The lengths of v that are tried, relative to that of the best fit."""

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Step:
    """What is kept of a step: some next tokens, and where they lead."""

    # Next tokens, and the logarithms of their shares a φ in the sum over all tokens, where φ is the factor by states. A
    # token that stands for others has the logarithm of their shares together, as far as the tilt is like its own.
    tokens: Ids
    logs: npt.NDArray[np.float32]
    leaps: Ids  # the next tokens that lead to a state from which success is likely, and a(x) ψ(state after x) of each
    worths: Values
    log_weight: Callable[[int], float]  # returns log a(x)/a'(x) in nats of a next token x

    def __post_init__(self) -> None:
        # In Python's memory for small objects: between arrays of a whole vocabulary, what is kept leaves gaps that are
        # too small for the next ones, and 768 attempts by a story model took 3.7 GB.
        for name in ("tokens", "logs", "leaps", "worths"):
            values = getattr(self, name)
            object.__setattr__(self, name, np.frombuffer(values.tobytes(), values.dtype))


@dataclass(eq=False)
class StepRecords:
    """The steps of one round's attempts for a prompt, by the tokens before."""

    attempts: int  # the number of attempts, and the most tokens of each
    most: int
    steps: dict[tuple[int, ...], Step] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """How many of the most likely tokens of a step are kept."""
        return min(max(_MOST_KEPT // (self.attempts * self.most * 2), _LEAST), _MOST)


def step_of(
    kept: int,
    tokens: npt.NDArray[np.int64] | None,
    log_shares: Values,
    log_tilts: Values,
    worths: Values,
    log_weight: Callable[[int], float],
) -> Step:
    """Return what is kept of a step: ``kept`` of the most likely tokens, and as many of the others.

    The others are those at equal steps of their cumulative sum. (Not random ones: what is learned depends on attempts
    alone.) Column i is the token ``tokens[i]``, or i. Of each column, ``log_shares`` has log a φ in nats up to a
    constant, -inf if it cannot be drawn; ``log_tilts`` e_x · v with the present v, under which tokens are chosen; and
    ``worths`` a(x) ψ(state after x) where success is likely from there, and 0 elsewhere.
    """
    logs, tilts = log_shares.astype(np.float32), log_tilts.astype(np.float32)
    columns = np.arange(len(logs))
    if logs.min() == -np.inf:
        columns = np.flatnonzero(logs > -np.inf)
        logs, tilts = logs[columns], tilts[columns]
    if len(columns) > 2 * kept:
        tilted = logs + tilts
        best = np.argpartition(tilted, len(tilted) - kept)[-kept:]
        rest = tilted.copy()
        rest[best] = -np.inf
        top = rest.max()
        sums = np.cumsum(np.exp(rest - top))
        others = np.searchsorted(sums, (np.arange(kept) + 0.5) / kept * sums[-1])
        stand_ins = top + np.log(sums[-1] / kept) - tilts[others]
        logs = np.append(logs[best], stand_ins)
        columns = columns[np.append(best, others)]
    leaps = np.flatnonzero(worths)
    worths = worths[leaps]
    if tokens is not None:
        columns, leaps = tokens[columns], tokens[leaps]
    return Step(columns.astype(np.int32), logs, leaps.astype(np.int32), worths, log_weight)


@dataclass(frozen=True)
class _Attempt:
    """An attempt up to the first state from which success is likely, or to its end."""

    steps: list[Step]
    tokens: list[int]  # the token that was drawn in each, ``[steps]``
    worths: Values  # the weight with which the text before each step leaps there, ``[steps]``


@dataclass(eq=False)
class TiltData:
    """The attempts that v is learned from."""

    attempts: list[_Attempt] = field(default_factory=list)
    _directions: list[Values] = field(default_factory=list, repr=False)

    def add(self, texts: Sequence[Sequence[int]], records: StepRecords, starts: Sequence[int] = ()) -> None:
        """Add the attempts of one prompt and one round, each with its new tokens; ``starts``: where the paths begin."""
        for token_ids, start in zip(texts, starts or [0] * len(texts), strict=True):
            ids, steps, tokens, worths = tuple(token_ids), [], [], []
            log_weight = 0.0
            for place, token in enumerate(ids[start:], start):
                step = records.steps.get(ids[:place])
                if step is None:
                    break
                steps.append(step)
                tokens.append(token)
                worths.append(np.exp(log_weight) * step.worths.sum())
                log_weight += step.log_weight(token)
            if sum(worths) > 0:
                self.attempts.append(_Attempt(steps, tokens, np.array(worths)))

    def topics(self, embeddings: TokenEmbeddings, count: int) -> list[tuple[float, TiltData]]:
        """Return clusters of the attempts, with their shares of the weights.

        Clusters are those of k-means, by the mean embedding of the tokens that lead up to the leaps.
        """
        if len(self.attempts) < 4 * count:
            return []
        shares = capped_shares(np.array([attempt.worths.sum() for attempt in self.attempts]))
        features = np.stack([_mean_embedding(attempt, embeddings) for attempt in self.attempts])
        chance = np.random.default_rng(0)
        centers = features[chance.choice(len(features), 1, p=shares)]
        while len(centers) < count:  # k-means++ (Arthur and Vassilvitskii 2007)
            distances = cdist(features, centers, "sqeuclidean").min(axis=1) * shares
            if not distances.any():
                return []
            centers = np.append(
                centers, features[[chance.choice(len(features), p=distances / distances.sum())]], axis=0
            )
        for _ in range(20):
            nearest = cdist(features, centers, "sqeuclidean").argmin(axis=1)
            for topic in range(count):
                if (own := nearest == topic).any():
                    centers[topic] = shares[own] @ features[own] / shares[own].sum()
        parts = [np.flatnonzero(nearest == topic).tolist() for topic in range(count)]
        return [(float(shares[part].sum()), TiltData([self.attempts[i] for i in part])) for part in parts if part]

    def fitted(self, embeddings: TokenEmbeddings) -> Values:
        """Return e_x · v of each token in nats, ``[tokens]``, for the v that explains the attempts best.

        v maximizes the likelihood, less a penalty. Then it is shortened to the length at which directions that are
        fitted to half of the attempts explain the other half best (and somewhat less, as they have half of the data):
        where texts of g have little in common, that is nearly 0.
        """
        if len(self.attempts) < 2:
            return np.zeros(len(embeddings.weight))
        parts = self.attempts[::2], self.attempts[1::2], self.attempts
        first, second, _ = likelihoods = [_Likelihood.of(part, embeddings) for part in parts]
        # Those of the round before are near the new ones.
        starts = self._directions or [np.zeros(embeddings.dimensions)] * len(parts)
        self._directions = [
            each.fitted(start, tolerance)
            for each, start, tolerance in zip(likelihoods, starts, _TOLERANCES, strict=True)
        ]
        of_first, of_second, of_every = (embeddings.products(direction) for direction in self._directions)
        losses = [first.loss(length * of_second) + second.loss(length * of_first) for length in _LENGTHS]
        best = float(_LENGTHS[int(np.argmin(losses))])
        # 1 / (1 + r) is the best length where the noise has r times the size of the signal, and halves have 2 r.
        length = 2 * best / (1 + best)
        tilt: Values = np.clip(length * of_every, -MOST_TILT, MOST_TILT)
        return tilt


def _mean_embedding(attempt: _Attempt, embeddings: TokenEmbeddings) -> Values:
    """Return the mean vector of the tokens that lead up to an attempt's leaps, ``[dimensions]``."""
    later = np.cumsum(attempt.worths[::-1])[::-1] - attempt.worths
    return embeddings.of_tokens(attempt.tokens).T @ later / max(float(later.sum()), 1e-300)


@dataclass(eq=False)
class _Likelihood:
    """The likelihood of a direction v, from attempts that are weighted by their shares."""

    embeddings: TokenEmbeddings  # the embeddings e
    tokens: Ids  # what is kept of all steps, one after the other
    logs: npt.NDArray[np.float32]
    begins: npt.NDArray[np.int64]  # where each step begins there, and how many tokens it has, ``[steps]``
    lengths: npt.NDArray[np.int64]
    shares: Values  # the share of each step, ``[steps]``
    drawn: Values  # the sum of the shares with which each token was drawn, ``[vocabulary]``
    ridge: float  # the penalty is ridge |v|²/2

    @classmethod
    def of(cls, attempts: Sequence[_Attempt], embeddings: TokenEmbeddings) -> _Likelihood:
        """Return the likelihood of some attempts."""
        worths = np.array([attempt.worths.sum() for attempt in attempts])
        capped = capped_shares(worths)
        drawn = np.zeros(len(embeddings.weight))
        weighed: list[tuple[float, Step]] = []
        # A text that leaps at step t has drawn the tokens before, and one of the leaps there.
        leaping = [scale * attempt.worths for scale, attempt in zip((capped / worths).tolist(), attempts, strict=True)]
        later = [np.cumsum(shares[::-1])[::-1] for shares in leaping]
        least = _least_of(np.concatenate(later))
        for attempt, leaps, shares in zip(attempts, leaping, later, strict=True):
            count = int((shares >= least).sum())  # they fall from step to step
            steps = attempt.steps[:count]
            np.add.at(drawn, attempt.tokens[:count], (shares - leaps)[:count])
            for step, share in zip(steps, leaps[:count].tolist(), strict=True):
                if share:
                    np.add.at(drawn, step.leaps, share * step.worths / step.worths.sum())
            weighed += zip(shares[:count].tolist(), steps, strict=True)
        lengths = np.array([len(step.tokens) for _, step in weighed])
        return cls(
            embeddings,
            np.concatenate([step.tokens for _, step in weighed]),
            np.concatenate([step.logs for _, step in weighed]),
            np.cumsum(lengths) - lengths,
            lengths,
            np.array([share for share, _ in weighed]),
            drawn,
            float(np.square(capped).sum()) / PRIOR_VARIANCE,
        )

    def loss(self, tilts: Values) -> float:
        """Return -log likelihood of tilts in nats, ``[vocabulary]``, up to a constant."""
        most, _, sums = self._masses(tilts)
        return float(self.shares @ (most + np.log(sums)) - self.drawn @ tilts)

    def fitted(self, start: Values, tolerance: float) -> Values:
        """Return the v, ``[dimensions]``, that minimizes loss + ridge |v|²/2, which is convex.

        The optimizer goes from ``start`` until no coordinate of the gradient is above ``tolerance``.
        """
        size, drawn = len(self.drawn), self.embeddings.sums(self.drawn)

        def penalized(direction: Values) -> tuple[float, Values]:
            most, masses, sums = self._masses(self.embeddings.products(direction))
            expected = np.bincount(self.tokens, masses * np.repeat(self.shares / sums, self.lengths), minlength=size)
            loss = float(self.shares @ (most + np.log(sums)) - drawn @ direction)
            slope = self.embeddings.sums(expected.astype(np.float64)) - drawn
            return loss + self.ridge * float(direction @ direction) / 2, slope + self.ridge * direction

        options = {"maxiter": _STEPS, "gtol": tolerance, "ftol": 1e-5 * tolerance}
        result: Values = minimize(penalized, start, jac=True, method="L-BFGS-B", options=options).x
        return result

    def _masses(self, tilts: Values) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], Values]:
        """Return the largest exponent of each step, the masses of tokens relative to it, and their sums by step."""
        exponents = self.logs + tilts.astype(np.float32)[self.tokens]
        most = np.maximum.reduceat(exponents, self.begins)
        masses = np.exp(exponents - np.repeat(most, self.lengths))
        return most, masses, np.add.reduceat(masses, self.begins, dtype=np.float64)


def _least_of(shares: Values) -> float:
    """Return the least share of the steps that a tilt is fitted to. Most texts leap early; their ends teach nothing."""
    falling = np.sort(shares)[::-1]
    sums = np.cumsum(falling)
    return float(falling[np.searchsorted(sums, _TAUGHT_BY * sums[-1])])


def capped_shares(weights: Values) -> Values:
    """Return shares of draws in proportion to their positive weights, but none above one over the root of their number.

    One draw of huge weight would otherwise decide alone (truncated importance weights: Ionides 2008).
    """
    low, high = float(weights.min()), float(weights.max())
    for _ in range(60):
        middle = (low + high) / 2
        if middle > np.minimum(weights, middle).sum() / np.sqrt(len(weights)):
            high = middle
        else:
            low = middle
    capped = np.minimum(weights, high)
    shares: Values = capped / capped.sum()
    return shares


_ROWS = 16_384
"""The tokens of one product. Weights in half precision are converted piece by piece."""


@dataclass(frozen=True, eq=False)
class TokenEmbeddings:
    """A vector of each token, with mean 0 and a mean square length of 1 over the vocabulary."""

    weight: torch.Tensor  # the model's output embeddings, ``[tokens, dimensions]``. They are not copied.
    mean: Values  # the mean vector, ``[dimensions]``, and what to divide by after it is subtracted
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

    def products(self, direction: Values) -> Values:
        """Return the product of each token's vector with another one: ``[dimensions]`` to ``[tokens]``."""
        other = torch.from_numpy(direction).to(self.weight.device, torch.float32)
        products = [(rows @ other).cpu().numpy() for _, rows in _pieces(self.weight)]
        return (np.concatenate(products).astype(np.float64) - self.mean @ direction) / self.scale

    def of_tokens(self, tokens: Sequence[int]) -> Values:
        """Return the vectors of some tokens, ``[tokens, dimensions]``."""
        rows = self.weight[torch.tensor(tokens, device=self.weight.device)].float().cpu().numpy()
        return np.asarray((rows - self.mean) / self.scale)

    def sums(self, shares: Values) -> Values:
        """Return the sum of the tokens' vectors times their shares: ``[tokens]`` to ``[dimensions]``."""
        every = torch.from_numpy(shares).to(self.weight.device, torch.float32)
        sums = _total(every[start : start + len(rows)] @ rows for start, rows in _pieces(self.weight))
        return np.asarray((sums - self.mean * shares.sum()) / self.scale)


def _pieces(weight: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, len(weight), _ROWS):
        yield start, weight[start : start + _ROWS].float()


def _total(parts: Iterable[torch.Tensor]) -> Values:
    return np.sum([part.cpu().numpy().astype(np.float64) for part in parts], axis=0)  # type: ignore[no-any-return]
