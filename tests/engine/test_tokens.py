"""The token sampler: softmax, exactly."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import LogitsProcessorList
from transformers.generation import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from guardwrap.engine.generation_law import argmax, inverse_cdf, require_drawn, warped
from guardwrap.engine.scheduling.randomness import uniforms
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
    # Rounding may move a number across a step that is within 1e-7.
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
    for size in (5, 600):
        _, logs = draw(torch.full((1, size), bad), 0.5)
        with pytest.raises(ModelError, match="NaN, or every token is excluded"):
            require_drawn(logs)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "settings",
    [
        [("top_k", 50)],
        [("temperature", 0.7), ("top_k", 50)],
        [("temperature", 0.7), ("top_k", 50), ("top_p", 0.8)],
        [("top_k", 5), ("min_p", 0.1)],
        [("temperature", 1.3), ("top_k", 20), ("typical_p", 0.7)],
        [("top_p", 0.9)],
        [("temperature", 0.5)],
    ],
)
def test_candidates_of_top_k_are_drawn_as_from_the_whole_vocabulary(settings: Any, dtype: torch.dtype) -> None:
    kinds = {
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
        "typical_p": TypicalLogitsWarper,
    }
    warpers = LogitsProcessorList(kinds[name](value) for name, value in settings)
    generator = torch.Generator().manual_seed(0)
    # Rounded to bfloat16, many scores are tied, some with the k-th, and all of these are kept.
    scores = (torch.randn(400, 3000, generator=generator) * 3).to(dtype).float()
    uniform = torch.rand(400, generator=generator, dtype=torch.float64)
    whole = warpers(torch.empty(400, 0), scores)
    few, candidates = warped(scores, warpers)
    assert (candidates is not None) == any(name == "top_k" for name, _ in settings)
    tokens, logs = inverse_cdf(few, uniform)
    if candidates is not None:
        assert few.shape[1] < 100
        tokens = candidates.gather(1, tokens[:, None]).squeeze(1)
    same, exact = inverse_cdf(whole, uniform)
    # Rounding at the step between two tokens, and ties at the limit of top-p, whose order is arbitrary.
    assert (tokens != same).sum() <= (1 if dtype is torch.float32 else 8)
    torch.testing.assert_close(logs[tokens == same], exact[tokens == same], atol=1e-5, rtol=0)


def test_more_ties_than_candidates() -> None:
    scores = torch.zeros(3, 500)
    few, candidates = warped(scores, LogitsProcessorList([TopKLogitsWarper(5)]))
    assert candidates is None
    assert few.shape == (3, 500)


def test_argmax_is_certain() -> None:
    tokens, logs = argmax(torch.tensor([[0.0, 3.0, 1.0]]), torch.zeros(1, dtype=torch.float64))
    assert (tokens.tolist(), logs.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("choose", [argmax, inverse_cdf])
def test_no_token_follows_from_nan(choose: Any) -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0], [0.0, math.nan, 2.0]])
    _, logs = choose(scores, torch.zeros(2, dtype=torch.float64))
    require_drawn(logs[:1].tolist())
    with pytest.raises(ModelError, match="logits contain NaN"):
        require_drawn(logs.tolist())
