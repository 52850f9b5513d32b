"""Positions within a text: of the first match of a keyword, and of sentences by their positivity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex, luhn
from guardwrap.constraints.sentence_ends import sentences
from guardwrap.documents.time_limits import CHECK_SECONDS, TimeLimit, matches
from guardwrap.errors import CheckFailed, UsageError
from guardwrap.metrics.intervals import Floats, clip, mean_interval, numbers
from guardwrap.metrics.rates import acceptance_rate
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
