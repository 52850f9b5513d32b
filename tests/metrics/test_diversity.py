"""Self-BLEU and semantic similarity."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from transformers import BertConfig, BertModel

from guardwrap.errors import ModelError, UsageError
from guardwrap.metrics import self_bleu, semantic_similarity
from guardwrap.metrics import texts as module
from guardwrap.outcomes import Estimate
from guardwrap.testing import character_tokenizer
from tests.metrics.fixtures_enumerated import covered, repeat

WORDS = ["the", "dragon", "saw", "a", "mug,", "and", "It's", "sang.", "loud", "-"]


def phrase(rng: np.random.Generator, longest: int = 9) -> str:
    return " ".join(rng.choice(WORDS, size=rng.integers(0, longest)))


def by_sacrebleu(texts: list[str], n: int) -> float:
    bleu = BLEU(tokenize="13a", smooth_method="exp", effective_order=True, max_ngram_order=n)
    others = [texts[:i] + texts[i + 1 :] for i in range(len(texts))]
    return float(np.mean([bleu.sentence_score(text, rest).score for text, rest in zip(texts, others, strict=True)]))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_self_bleu_is_sacrebleus(n: int) -> None:
    for rng in np.random.default_rng(n).spawn(5):
        texts = [phrase(rng) for _ in range(12)]
        whole, without = module._leave_out_bleu(texts, n)
        assert whole == pytest.approx(by_sacrebleu(texts, n), abs=1e-9)
        assert without == pytest.approx([by_sacrebleu(texts[:i] + texts[i + 1 :], n) for i in range(12)], abs=1e-9)


def test_self_bleu_by_hand() -> None:
    # Half of the words of the first two occur in another text, none of the third's.
    assert self_bleu(["a b", "a c", "d e"], 1, k=3).value == pytest.approx(100 / 3)
    # 3 of 3 and 2 of 3 words, 2 of 2 and 1 of 2 pairs; "a b" is shorter than "a b c" and pays exp(1 - 3/2).
    texts = ["a b c", "a b d", "a b"]
    by_hand = [100 * math.sqrt(2 / 3 * 1 / 2)] * 2 + [100.0]
    assert by_sacrebleu(texts, 2) == pytest.approx((by_hand[0] + by_hand[1] + 100 * math.exp(1 - 3 / 2)) / 3)
    assert self_bleu(texts, 2, k=3).value == pytest.approx(by_sacrebleu(texts, 2))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_identical_and_different_texts(n: int) -> None:
    assert self_bleu(["the dragon saw a mug, and sang."] * 100, n) == pytest.approx((100, 100, 100))
    assert self_bleu([f"a{i} b{i} c{i} d{i} e{i}" for i in range(100)], n) == (0, 0, 0)


def test_self_bleu_picks_by_seed() -> None:
    texts = [phrase(np.random.default_rng(i)) for i in range(40)]
    first, again, other = (self_bleu(texts, 2, k=20, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.slow
def test_self_bleu_covers() -> None:
    """The jackknife is known to be too wide here, never too narrow."""
    estimates = repeat(lambda rng: self_bleu([phrase(rng, 30) for _ in range(15)], 2, k=15))
    truth = float(np.mean([estimate.value for estimate in estimates]))
    assert covered(estimates, truth) >= 0.92
    half = [Estimate(e.value, (e.value + e.low) / 2, (e.value + e.high) / 2) for e in estimates]
    assert covered(half, truth) < 0.92


def test_self_bleu_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs 100 texts, but there are 3"):
        self_bleu(["a"] * 3)
    with pytest.raises(UsageError, match="n must be at least 1"):
        self_bleu(["a"] * 3, 0, k=3)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(UsageError, match=r"guardwrap\[metrics\]"):
        self_bleu(["a"] * 3, k=3)


# Semantic similarity.

SPREAD = 1.2


def directions(rng: np.random.Generator) -> Callable[[list[str]], np.ndarray]:
    """Embed texts in random directions of the plane, whose angles are normal: E cos(α - β) = exp(-SPREAD²)."""

    def embed(texts: list[str]) -> np.ndarray:
        angles = rng.normal(scale=SPREAD, size=len(texts))
        return np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.uniform(0.1, 10, size=(len(texts), 1))

    return embed


@pytest.mark.parametrize("pairs", [None, 2_000, 200])
def test_similarity_covers(pairs: int | None) -> None:
    texts = [""] * 150
    estimates = repeat(lambda rng: semantic_similarity(texts, directions(rng), pairs=pairs))
    assert 0.92 <= covered(estimates, math.exp(-(SPREAD**2))) <= 0.98


def test_negative_control_pairs_are_not_independent() -> None:
    """Negative control: an interval over pairs, as if they were independent, is far too short."""

    def naive(rng: np.random.Generator) -> Estimate:
        vectors = directions(rng)([""] * 150)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = (vectors @ vectors.T)[np.triu_indices(150, 1)]
        reach = 1.96 * cosines.std() / math.sqrt(len(cosines))
        return Estimate(cosines.mean(), cosines.mean() - reach, cosines.mean() + reach)

    assert covered(repeat(naive), math.exp(-(SPREAD**2))) < 0.5


def test_similarity_by_hand() -> None:
    vectors = {"a": [1.0, 0.0], "b": [0.0, 2.0], "c": [3.0, 3.0]}
    estimate = semantic_similarity("abc", lambda texts: [vectors[text] for text in texts], pairs=None)
    assert estimate.value == pytest.approx((0 + 2 * math.sqrt(0.5)) / 3)
    assert semantic_similarity(["a", "a"], lambda texts: [vectors[text] for text in texts], pairs=None) == (1, -1, 1)
    assert semantic_similarity(["a"] * 9, lambda texts: [vectors[text] for text in texts]) == pytest.approx((1, 1, 1))


def test_at_most_500_texts_are_embedded() -> None:
    seen: list[int] = []

    def embed(texts: list[str]) -> np.ndarray:
        seen.append(len(set(texts)))
        return np.ones((len(texts), 2))

    semantic_similarity([str(i) for i in range(900)], embed)
    assert seen == [500]


@pytest.mark.parametrize(
    ("embedding", "says"),
    [
        (np.ones((2, 3)), "of shape [2, 3]; it must return [3, dimensions]"),
        (np.ones(3), "of shape [3]; it"),
        (np.zeros((3, 2)), "0 or not finite"),
        (np.full((3, 2), np.nan), "0 or not finite"),
    ],
)
def test_similarity_errors(embedding: np.ndarray, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        semantic_similarity("abc", lambda texts: embedding)
    assert says in str(caught.value)


def test_too_few_texts() -> None:
    with pytest.raises(UsageError, match="got 1 texts"):
        semantic_similarity(["a"], lambda texts: np.ones((1, 1)))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("encoder")
    tokenizer = character_tokenizer("abc")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["model_type"] == "bert"
    return str(path)


def test_an_encoder_by_its_path(encoder: str) -> None:
    """An embedding is the mean over the text's tokens, whatever its padding and batch."""
    texts = ["a", "ab", "abcabc", "c" * 20]
    model, tokenizer = BertModel.from_pretrained(encoder).eval(), character_tokenizer("abc")
    with torch.no_grad():
        alone = [model(torch.tensor([tokenizer(text)["input_ids"][:8]])).last_hidden_state[0].mean(0) for text in texts]
    together = module.encode(texts, encoder)
    assert together == pytest.approx(np.stack([states.numpy() for states in alone]), abs=1e-5)
    assert module.encode(texts, encoder, batch_size=3) == pytest.approx(together, abs=1e-5)
    assert -1 <= semantic_similarity(texts, encoder, pairs=None).value <= 1


def test_an_encoder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load the encoder"):
        semantic_similarity(["a", "b"], str(tmp_path / "nowhere"))
