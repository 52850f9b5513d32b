"""Texts of one sampler: where a keyword is, how positive their sentences are, and how alike they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex, luhn
from guardwrap.constraints.sentences import sentences
from guardwrap.errors import CheckFailed, ModelError, UsageError, first_line
from guardwrap.metrics.intervals import Floats, acceptance_rate, clip, mean_interval, numbers
from guardwrap.outcomes import Estimate
from guardwrap.support.time_limits import CHECK_SECONDS, TimeLimit, matches

Ngram = tuple[str, ...]


def relative_position(texts: Iterable[str], what: str | Keyword | Regex) -> Floats:
    """Return where in each text the first match begins.

    Parameters
    ----------
    texts
        The texts to search.
    what
        A word or phrase, which matches like ``Keyword(what)`` (whole words, case-insensitive); or a ``Keyword`` or
        ``Regex``.

    Returns
    -------
    ndarray
        The number of characters before the first match divided by the length of the text, in [0, 1); NaN if there is no
        match; ``[texts]``. (The paper's App. G uses such a position without naming its unit.)

    Raises
    ------
    ConstraintError
        If ``what`` is an empty string.
    CheckFailed
        If a match takes longer than a Regex allows.
    """
    return np.array(
        [_first(text, Keyword(what) if isinstance(what, str) else what) for text in texts], dtype=np.float64
    )


def spans(text: str, what: Keyword | Regex) -> list[tuple[int, int]]:
    """Return where in a text the matches are.

    Parameters
    ----------
    text
        The text to search.
    what
        The keyword, each of whose words is searched for, or the regular expression.

    Returns
    -------
    list of tuple
        Start and end of each match, in characters.

    Raises
    ------
    CheckFailed
        If a match takes longer than a Regex allows.
    """
    return list(_matches(text, what))


def _matches(text: str, what: Keyword | Regex, *, first: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each match; with ``first``, only the first match of each word of a Keyword."""
    try:
        if isinstance(what, Keyword):
            folded, origins = what.folding.located(text)
            for pattern in what.compiled:
                word_matches = matches(pattern, folded, most=CHECK_SECONDS)
                for match in islice(word_matches, 1) if first else word_matches:
                    yield origins[match.start()][0], origins[match.end() - 1][1]
            return
        for match in matches(what.compiled, text, most=what.timeout, overlapped=bool(what.checksum)):
            if not what.checksum or luhn(match.group()):
                yield match.span()
    except TimeLimit as limit:
        raise CheckFailed(what.title, f"took more than {limit.seconds:g} s on one text") from None


def _first(text: str, what: Keyword | Regex) -> float:
    spans = _matches(text, what, first=True)
    starts = [start for start, _ in (spans if isinstance(what, Keyword) else islice(spans, 1))]
    # An empty match can begin at the end of the text, where the quotient is 1.
    return min(min(starts) / len(text), 1 - 1e-12) if starts and text else float("nan")


def position_bins(positions: ArrayLike, bins: int = 10) -> NDArray[np.int64]:
    """Sort positions into bins of equal width, for ``projected_kl``.

    Parameters
    ----------
    positions
        A position in [0, 1] for each draw, ``[draws]``.
    bins
        Number of bins; the paper's App. G uses 10.

    Returns
    -------
    ndarray
        The bin of each draw, from 0 to bins - 1; ``[draws]``, int64.

    Raises
    ------
    UsageError
        If there is no position, or one is NaN (a text without a match) or outside [0, 1].
    """
    values = numbers(positions, "positions")
    if bins < 1:
        raise UsageError(f"bins={bins}: give at least 1")
    if values.min() < 0 or values.max() > 1:
        raise UsageError("a position is outside [0, 1]; give relative positions")
    return np.minimum((values * bins).astype(np.int64), bins - 1)


def position_histogram(positions: ArrayLike, bins: int = 10) -> list[Estimate]:
    """Estimate the distribution of positions over bins of equal width.

    Parameters
    ----------
    positions
        A position in [0, 1] for each draw, ``[draws]``. NaN, for a text without a match, is left out.
    bins
        Number of bins; the paper's App. G uses 10.

    Returns
    -------
    list of Estimate
        For each bin, its share of the positions, with the exact interval of ``acceptance_rate``.

    Raises
    ------
    UsageError
        If no position is left, or one is outside [0, 1].
    """
    values = np.asarray(positions, dtype=np.float64)
    counts = np.bincount(position_bins(values[~np.isnan(values)], bins), minlength=bins)
    return [acceptance_rate(int(c), int(counts.sum()), stopped_on_acceptance=False) for c in counts]


def positivity_by_sentence(
    texts: Iterable[str], score: Callable[[list[str]], ArrayLike | Sequence[float]]
) -> list[Estimate]:
    """Estimate the mean score of the first, second, … sentence (paper, experiment on positive endings).

    Parameters
    ----------
    texts
        iid texts of one sampler. They are split into sentences like the view ``"sentences"`` of constraints.
    score
        A function that returns a probability for each sentence of a list, e.g. ``Classifier(…).probabilities``. Called
        once.

    Returns
    -------
    list of Estimate
        For each sentence position, the mean over the texts that are at least that long, with a t interval; if only one
        text is, the interval is [0, 1]. So the later positions describe long texts only.

    Raises
    ------
    UsageError
        If no text has a sentence, or ``score`` does not return one probability per sentence.
    """
    split = [sentences(text) for text in texts]
    flat = [sentence for parts in split for sentence in parts]
    if not flat:
        raise UsageError("no text has a sentence; give at least one text that is not empty")
    scores = numbers(score(flat), "score(sentences)")
    if len(scores) != len(flat) or scores.min() < 0 or scores.max() > 1:
        raise UsageError(f"score must return {len(flat)} probabilities in [0, 1], one per sentence")
    places = np.concatenate([np.arange(len(parts)) for parts in split])
    return [clip(mean_interval(scores[places == place]), high=1.0) for place in range(int(places.max()) + 1)]


_SMOOTHING = 0.5
_Z = 1.959964


def projected_kl(p_bins: ArrayLike, q_bins: ArrayLike, *, bins: int = 10) -> Estimate:
    """Estimate KL(p̄‖q̄), where p̄ and q̄ are the distributions over bins of draws from p and q.

    Sorting texts into bins can only lose differences (data processing inequality), so this bounds KL(p‖q) from below.
    It can be measured even for samplers whose probabilities are not known (IMH).

    Parameters
    ----------
    p_bins, q_bins
        The bin, from 0 to bins - 1, of each of iid draws from p ``[draws of p]`` and from q ``[draws of q]``; e.g. from
        ``position_bins``.
    bins
        Number of bins.

    Returns
    -------
    Estimate
        Nats. Half a draw is added to each bin of both samples, so that an empty bin does not make the KL infinite
        (Krichevsky and Trofimov 1981). The bias of order 1/draws, including that of the half draws, is subtracted from
        the KL of the shares (Paninski 2003). The delta method gives the interval, with a normal quantile. Its upper end
        is at least the standard deviation that the estimate has if p = q, so that a few draws do not suggest a KL of
        exactly 0. If p = q, the interval contains 0 nearly always. It ends too low if the draws of q are expected to
        have less than one in a bin that is frequent under p: then use more draws, or fewer bins.

    Raises
    ------
    UsageError
        If a sample is empty, or contains something other than bin numbers.
    """
    counts_p, counts_q = _counts(p_bins, bins, "p_bins"), _counts(q_bins, bins, "q_bins")
    size_p, size_q = counts_p.sum(), counts_q.sum()
    p = (counts_p + _SMOOTHING) / (size_p + bins * _SMOOTHING)
    q = (counts_q + _SMOOTHING) / (size_q + bins * _SMOOTHING)
    log_ratio, ratio = np.log(p / q), p / q
    kl = float((p * log_ratio).sum())
    sampling = (bins - 1) / (2 * size_p) + float((ratio * (1 - q)).sum()) / (2 * size_q)
    # The half draws shift p by (1 - bins p) / (2 draws), and q likewise; multiplied by the derivatives of the KL.
    moved_p = _SMOOTHING * float(((1 - bins * p) * (log_ratio + 1)).sum()) / size_p
    moved_q = -_SMOOTHING * float(((1 - bins * q) * ratio).sum()) / size_q
    variance_p = float((p * log_ratio**2).sum()) - kl**2
    variance_q = float((q * ratio**2).sum()) - 1
    value = kl - sampling - moved_p - moved_q
    reach = _Z * math.sqrt(max(variance_p / size_p + variance_q / size_q, 0.0))
    # The standard deviation if p = q: then 2 n KL has a chi-squared distribution (Wilks 1938).
    chance = math.sqrt((bins - 1) / 2) * (1 / size_p + 1 / size_q)
    return clip(Estimate(value, value - reach, max(value + reach, float(chance))))


def _counts(sample: ArrayLike, bins: int, name: str) -> NDArray[np.int64]:
    array = np.asarray(sample)
    if array.ndim != 1 or not array.size:
        raise UsageError(f"{name} must be an array of one dimension with the bin of at least one draw")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= bins:
        raise UsageError(f"{name} must contain whole numbers from 0 to {bins - 1}, the bin of each draw")
    return np.bincount(array, minlength=bins)


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
    """Embed texts, ``[texts, dimensions]``: average the last hidden states of an encoder on the Hub or in a folder."""
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
