"""Where in a text something happens: a keyword's place, the mood of each sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex, luhn
from guardwrap.constraints.views import sentences
from guardwrap.documents.time_limits import CHECK_SECONDS, TimeLimit, matches
from guardwrap.errors import CheckFailed, UsageError
from guardwrap.metrics.intervals import Floats, clip, mean_interval, numbers
from guardwrap.metrics.rates import acceptance_rate
from guardwrap.outcomes import Estimate

__all__ = ["position_bins", "position_histogram", "positivity_by_sentence", "relative_position", "spans"]


def relative_position(texts: Iterable[str], what: str | Keyword | Regex) -> Floats:
    """Say where in each text the first match begins.

    Parameters
    ----------
    texts
        The texts.
    what
        A word or phrase, found as ``Keyword(what)`` finds it (whole words, any case); or a ``Keyword`` or ``Regex``.

    Returns
    -------
    ndarray
        ``[texts]``: characters before the first match over the text's characters, in [0, 1); NaN where there is no
        match. (The paper's App. G takes such a position without saying in which unit.)

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
    """Say where in a text the matches are.

    Parameters
    ----------
    text
        The text.
    what
        What to look for.

    Returns
    -------
    list of tuple
        Begin and end of each match, in characters; of each word of a ``Keyword``.

    Raises
    ------
    CheckFailed
        If a match takes longer than a Regex allows.
    """
    return list(_matches(text, what))


def _matches(text: str, what: Keyword | Regex, *, first: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the extents of the matches; of a Keyword's words, on request, only the first of each."""
    try:
        if isinstance(what, Keyword):
            for pattern in what.compiled:
                found = matches(pattern, text, most=CHECK_SECONDS)
                yield from (match.span() for match in (islice(found, 1) if first else found))
            return
        for match in matches(what.compiled, text, most=what.timeout, overlapped=bool(what.checksum)):
            if not what.checksum or luhn(match.group()):
                yield match.span()
    except TimeLimit as limit:
        raise CheckFailed(what.title, f"took more than {limit.seconds:g} s on one text") from None


def _first(text: str, what: Keyword | Regex) -> float:
    spans = _matches(text, what, first=True)
    found = [begin for begin, _ in (spans if isinstance(what, Keyword) else islice(spans, 1))]
    # Only an empty match can begin where the text ends.
    return min(min(found) / len(text), 1 - 1e-12) if found and text else float("nan")


def position_bins(positions: ArrayLike, bins: int = 10) -> NDArray[np.int64]:
    """Sort positions into bins of equal width, for ``projected_kl``.

    Parameters
    ----------
    positions
        ``[draws]``, in [0, 1].
    bins
        How many; App. G has 10.

    Returns
    -------
    ndarray
        ``[draws]``, whole numbers from 0 to bins - 1.

    Raises
    ------
    UsageError
        If there is no position, or one is NaN (a text without a match) or outside [0, 1].
    """
    values = numbers(positions, "positions")
    if bins < 1:
        raise UsageError(f"bins={bins}: give at least 1")
    if values.min() < 0 or values.max() > 1:
        raise UsageError("positions must lie in [0, 1]")
    return np.minimum((values * bins).astype(np.int64), bins - 1)


def position_histogram(positions: ArrayLike, bins: int = 10) -> list[Estimate]:
    """Estimate how positions are distributed.

    Parameters
    ----------
    positions
        ``[draws]``, in [0, 1]; NaN, a text without a match, is left out.
    bins
        How many bins of equal width; App. G has 10.

    Returns
    -------
    list of Estimate
        For each bin its share of the positions, with the exact interval of ``acceptance_rate``.

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
        iid texts of one sampler. They are split as the view ``"sentences"`` of constraints splits them.
    score
        From a list of sentences to a probability each, e.g. ``Classifier(…).probabilities``. Called once.

    Returns
    -------
    list of Estimate
        For each sentence position the mean over the texts that have such a sentence, with a t interval; where one
        text alone has it, the interval is [0, 1]. Later positions speak of long texts only.

    Raises
    ------
    UsageError
        If no text has a sentence, or the scores are not probabilities, one a sentence.
    """
    split = [sentences(text) for text in texts]
    flat = [sentence for parts in split for sentence in parts]
    if not flat:
        raise UsageError("no text has a sentence")
    scores = numbers(score(flat), "score(sentences)")
    if len(scores) != len(flat) or scores.min() < 0 or scores.max() > 1:
        raise UsageError(f"score must return {len(flat)} probabilities, one for each sentence")
    places = np.concatenate([np.arange(len(parts)) for parts in split])
    return [clip(mean_interval(scores[places == place]), high=1.0) for place in range(int(places.max()) + 1)]
