"""Positions within a text: of the first match of a keyword, and of sentences by their positivity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex, luhn
from guardwrap.constraints.sentences import sentences
from guardwrap.documents.time_limits import CHECK_SECONDS, TimeLimit, matches
from guardwrap.errors import CheckFailed, UsageError
from guardwrap.metrics.intervals import Floats, acceptance_rate, clip, mean_interval, numbers
from guardwrap.outcomes import Estimate


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
