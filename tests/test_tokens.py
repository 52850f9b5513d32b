"""The token sampler: softmax, exactly."""

import math

import pytest
import torch
from scipy.stats import chisquare

from guardwrap.engine.randomness import uniforms
from guardwrap.engine.tokens import argmax, inverse_cdf
from guardwrap.errors import ModelError

TOP = math.nextafter(1.0, 0.0)


def draw(scores: torch.Tensor, *values: float) -> tuple[list[int], list[float]]:
    uniform = torch.tensor(values, dtype=torch.float64)
    tokens, logs = inverse_cdf(scores.expand(len(values), -1), uniform)
    return tokens.tolist(), logs.tolist()


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000])
def test_the_cdf_is_inverted_exactly(size: int) -> None:
    scores = torch.randn(1, size, generator=torch.Generator().manual_seed(size)) * 2
    cumulative = scores.double().softmax(-1)[0].cumsum(-1)
    grid = [(i + 0.5) / 997 for i in range(997)]
    tokens, logs = draw(scores, *grid)
    wanted = torch.searchsorted(cumulative, torch.tensor(grid, dtype=torch.float64), right=True).tolist()
    # Rounding may move a number that lies within 1e-7 of a step.
    assert sum(token != other for token, other in zip(tokens, wanted, strict=True)) <= 1
    exact = scores.double().log_softmax(-1)[0]
    assert logs == pytest.approx([exact[token].item() for token in tokens], abs=1e-6)


def test_excluded_tokens_are_never_drawn_not_even_at_the_ends() -> None:
    scores = torch.full((1, 600), float("-inf"))
    scores[0, [3, 300]] = 0.0
    tokens, logs = draw(scores, 0.0, 0.4999, 0.5001, TOP)
    assert tokens == [3, 3, 300, 300]
    assert logs == pytest.approx([math.log(0.5)] * 4)


def test_huge_and_tiny_scores() -> None:
    tokens, logs = draw(torch.tensor([[1e30, 0.0, -1e30]]), 0.0, TOP)
    assert tokens == [0, 0]
    assert logs == [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_no_token_to_draw_is_an_error(bad: float) -> None:
    with pytest.raises(ModelError, match="NaN or excluded every token"):
        draw(torch.full((1, 5), bad), 0.5)


def test_streams_give_uniforms_that_belong_to_the_attempt() -> None:
    def first(seed: int, prompt: int, attempt: int) -> list[float]:
        stream = uniforms(seed, prompt, attempt)
        return [next(stream) for _ in range(100)]

    assert first(1, 2, 3) == first(1, 2, 3)
    keys = [(s, p, a) for s in (0, 1, 2**40, 2**64 + 1) for p in (0, 1, 2) for a in (0, 1, 2)]
    assert len({tuple(first(*key)) for key in keys}) == len(keys)
    values = [value for attempt in range(200) for value in first(7, 0, attempt)]
    counts = torch.histc(torch.tensor(values), bins=50, min=0, max=1).tolist()
    assert chisquare(counts).pvalue > 1e-3


def test_argmax_is_certain() -> None:
    tokens, logs = argmax(torch.tensor([[0.0, 3.0, 1.0]]), torch.zeros(1, dtype=torch.float64))
    assert (tokens.tolist(), logs.tolist()) == ([1], [0.0])
