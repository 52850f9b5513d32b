"""Similarity of the texts of one sampler: of their n-grams and of their meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.errors import ModelError, UsageError, first_line
from guardwrap.metrics.intervals import Floats, clip, mean_interval
from guardwrap.outcomes import Estimate

Ngram = tuple[str, ...]


def self_bleu(texts: Iterable[str], n: int = 4, *, k: int = 100, seed: int = 0) -> Estimate:
    """Estimate Self-BLEU: how much of a text's n-grams occurs in k - 1 other texts of the sampler.

    Parameters
    ----------
    texts
        iid texts of one sampler, at least k.
    n
        Length of the longest n-grams, 1 or more; the paper reports 2 to 5.
    k
        Number of texts to compare, at least 3. Self-BLEU grows with k, so compare only values with equal k.
    seed
        Seed for choosing the k texts.

    Returns
    -------
    Estimate
        0 to 100: the mean BLEU of each of the k texts against the k - 1 others (Zhu et al. 2018, "Texygen"; paper
        App. D). BLEU is sacrebleu's sentence BLEU with tokenizer 13a, smoothing ``exp``, effective order, case kept.
        The interval is for the sampler's mean Self-BLEU of k texts, jackknifed: each text in turn is left out, as a
        hypothesis and as a reference. It is somewhat too wide (Efron and Stein 1981): in measurements, 97 to 99 % of
        the intervals contained the true value.

    Raises
    ------
    UsageError
        If there are fewer than k texts, n or k is too small, or sacrebleu is not installed.
    """
    texts = list(texts)
    if n < 1 or k < 3:
        raise UsageError(f"self_bleu(n={n}, k={k}): n must be at least 1 and k at least 3")
    if len(texts) < k:
        raise UsageError(f"self_bleu(k={k}) needs {k} texts, but there are {len(texts)}; give more, or a smaller k")
    picked = np.random.default_rng(seed).choice(len(texts), k, replace=False)
    whole, without = _leave_out_bleu([texts[i] for i in picked], n)
    # The value is not corrected for bias: that would extrapolate to the Self-BLEU of more texts.
    centre, low, high = mean_interval(-(k - 1) * without)
    return clip(Estimate(whole, whole + low - centre, whole + high - centre), high=100.0)


def _leave_out_bleu(texts: Sequence[str], n: int) -> tuple[float, Floats]:
    """Return the Self-BLEU of all texts and, for each text, the Self-BLEU of all the others, ``[texts]``.

    Comparing all texts again for each one that is left out would take hours. A text's matches change only for n-grams
    of which the omitted text had the highest count, so the three highest counts of each n-gram are kept.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise UsageError("self_bleu needs sacrebleu: pip install 'guardwrap[metrics]'") from None

    bleu = BLEU(tokenize="13a", smooth_method="exp", effective_order=True, max_ngram_order=n)
    tokens = [bleu.tokenizer(text.rstrip()).split() for text in texts]
    counts = [_ngrams(words, n) for words in tokens]
    highest: dict[Ngram, list[tuple[int, int]]] = {}
    for i, grams in enumerate(counts):
        for gram, count in grams.items():
            highest[gram] = sorted([*highest.get(gram, []), (count, i)], reverse=True)[:3]

    size = len(texts)
    scores = np.zeros((size, size + 1))  # the BLEU of text i without text j; in the last column no text is left out
    lengths = np.array([len(words) for words in tokens])
    for i, grams in enumerate(counts):
        matched = np.zeros(n, dtype=int)
        lost: dict[int, Any] = {}
        for gram, count in grams.items():
            others = [held for held in highest[gram] if held[1] != i]
            most, holder = others[0] if others else (0, -1)
            second = others[1][0] if len(others) > 1 else 0
            order = len(gram) - 1
            matched[order] += min(count, most)
            if min(count, most) > min(count, second):
                lost.setdefault(holder, np.zeros(n, dtype=int))[order] += min(count, most) - min(count, second)
        total = [max(int(lengths[i]) - order, 0) for order in range(n)]
        nearest = sorted((abs(int(lengths[j] - lengths[i])), int(lengths[j]), j) for j in range(size) if j != i)
        for j in range(size + 1):
            reference = nearest[1][1] if nearest[0][2] == j else nearest[0][1]
            correct = [int(x) for x in matched - lost.get(j, 0)]
            scores[i, j] = bleu.compute_bleu(
                correct,
                list(total),
                int(lengths[i]),
                reference,
                smooth_method="exp",
                effective_order=True,
                max_ngram_order=n,
            ).score
    left_out = scores[:, :size].copy()
    np.fill_diagonal(left_out, 0.0)
    return float(scores[:, size].mean()), left_out.sum(axis=0) / (size - 1)


def _ngrams(words: Sequence[str], n: int) -> Counter[Ngram]:
    return Counter(tuple(words[i : i + size]) for size in range(1, n + 1) for i in range(len(words) - size + 1))


def semantic_similarity(
    texts: Iterable[str],
    embed: Callable[[list[str]], ArrayLike] | str,
    *,
    sample: int = 500,
    pairs: int | None = 10_000,
    seed: int = 0,
) -> Estimate:
    """Estimate the mean cosine similarity of two texts of the sampler.

    Parameters
    ----------
    texts
        iid texts of one sampler, at least 2.
    embed
        A function that returns the embeddings of a list of texts, ``[texts, dimensions]``; or the Hub id or path of a
        Hugging Face encoder, whose last hidden states are averaged over the tokens of each text.
    sample
        Maximum number of texts to use, at least 2.
    pairs
        Number of pairs of different texts to draw from these; None uses every pair once, which costs no more and is
        more precise. The defaults are the paper's (App. D).
    seed
        Seed for choosing texts and pairs.

    Returns
    -------
    Estimate
        Between -1 and 1. Pairs share texts, so the interval is that of a U-statistic, jackknifed over the texts
        (Sen 1960; Arvesen 1969), widened by the variance of drawing pairs.

    Raises
    ------
    UsageError
        If there are fewer than 2 texts, or the embeddings have the wrong shape, are not finite, or are 0.
    ModelError
        If the encoder cannot be loaded.
    """
    texts = list(texts)
    if len(texts) < 2 or sample < 2 or (pairs is not None and pairs < 1):
        raise UsageError(
            f"semantic_similarity got {len(texts)} texts, {sample=}, {pairs=}; give at least 2 texts, sample=2, pairs=1"
        )
    rng = np.random.default_rng(seed)
    size = min(sample, len(texts))
    chosen = [texts[i] for i in rng.choice(len(texts), size, replace=False)]
    vectors = np.asarray(encode(chosen, embed) if isinstance(embed, str) else embed(chosen), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != size:
        raise UsageError(f"embed returned an array of shape {list(vectors.shape)}; it must return [{size}, dimensions]")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise UsageError(
            "embed returned an embedding that is 0 or not finite, which has no direction; leave out its text"
        )
    vectors = vectors / norms

    to_others = (vectors @ vectors.sum(axis=0) - 1) / (size - 1)  # each text's mean similarity to the others
    if size == 2:
        return Estimate(float(to_others[0]), -1.0, 1.0)
    mean = float(to_others.mean())
    # Without text i the mean is (size mean - 2 to_others_i) / (size - 2), which gives these pseudo-values:
    pseudo = size * mean - (size - 1) * (size * mean - 2 * to_others) / (size - 2)
    _, low, high = mean_interval(pseudo)
    if pairs is None:
        return clip(Estimate(mean, low, high), -1.0, 1.0)
    first = rng.integers(size, size=pairs)
    second = (first + rng.integers(1, size, size=pairs)) % size
    drawn = np.einsum("ij,ij->i", vectors[first], vectors[second])
    value = float(drawn.mean())
    picking = 1.96 * float(drawn.std()) / np.sqrt(pairs)
    below, above = float(np.hypot(mean - low, picking)), float(np.hypot(high - mean, picking))
    return clip(Estimate(value, value - below, value + above), -1.0, 1.0)


def encode(texts: Sequence[str], name: str, batch_size: int = 32) -> Floats:
    """Embed texts: average an encoder's last hidden states over each text's tokens.

    Parameters
    ----------
    texts
        The texts to embed.
    name
        Hub id or path of a Hugging Face model.
    batch_size
        Texts per forward pass.

    Returns
    -------
    numpy.ndarray
        ``[texts, dimensions]``.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load the encoder {name!r}: {first_line(error)}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    limit = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 10**9))
    rows = []
    with torch.no_grad():
        for start in range(0, len(texts), batch_size):
            batch = tokenizer(
                list(texts[start : start + batch_size]),
                padding=True,
                truncation=True,
                max_length=limit,
                return_tensors="pt",
            )
            mask = batch["attention_mask"].unsqueeze(-1)
            states = model(**batch).last_hidden_state.float()
            rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(rows).astype(np.float64)
