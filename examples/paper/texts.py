"""Properties of the texts of several proposals: where a keyword occurs, similarity, positivity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from judge import kl_gold_forcing, log_ratios_to_forcing, usual_tokens

from guardwrap import Keyword
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.sentences import sentences
from guardwrap.metrics import (
    position_histogram,
    positivity_by_sentence,
    relative_position,
    self_bleu,
    semantic_similarity,
)
from guardwrap.metrics import spans as matched
from guardwrap.metrics.intervals import mean_interval
from guardwrap.metrics.texts import encode

Groups = Mapping[str, list[str]]
"""Texts of g and of g' of some proposals."""

EMBEDDED = 500  # texts per group, as in the paper
_BLEU, _LEAST = 100, 50  # texts for Self-BLEU: as in the paper, or at least the second number if a group is small
_PLANE = 200  # texts per group in the plane
_SENTENCES = 5
_SHOWN = 3


def keyword(
    what: Keyword,
    groups: Groups,
    gold: Sequence[tuple[int, ...]],
    attempts: int,
    longest: int,
    decode: Callable[[tuple[int, ...]], str],
    log_base: Callable[[Sequence[tuple[int, ...]]], Sequence[float]],
) -> dict[str, Any]:
    """Return where a keyword occurs in each group's texts, and how far the sampler that forces it is from g.

    ``gold`` are the tokens of the samples of g among ``attempts`` attempts of the model itself. For the other
    parameters see ``judge.log_ratios_to_forcing``.
    """
    places = {name: relative_position(texts, what) for name, texts in groups.items() if texts}
    found: dict[str, Any] = {
        "positions": {name: position_histogram(each) for name, each in places.items()},
        "means": {name: mean_interval(each) for name, each in places.items()},
        "texts": {name: len(each) for name, each in places.items()},
    }
    (word,) = tuple(what.words)
    if forced := usual_tokens(gold, word, decode):
        ratios = log_ratios_to_forcing(gold, word, forced, longest, decode, log_base)
        found["forcing"] = {"tokens": len(forced), **kl_gold_forcing(ratios, (len(gold), attempts))}
    return found


def diversity(groups: Groups, embedder: str, seed: int) -> dict[str, Any]:
    """Compare groups by Self-BLEU, on equal numbers of texts, and by the similarity of their embeddings."""
    enough = [len(texts) for texts in groups.values() if len(texts) >= _LEAST]
    k = min(_BLEU, *enough) if enough and find_spec("sacrebleu") else None
    found: dict[str, Any] = {"k": k, "groups": {}}
    for name, texts in groups.items():
        own = {}
        if k is not None and len(texts) >= k:
            own = {f"self_bleu_{n}": self_bleu(texts, n, k=k, seed=seed) for n in (2, 3, 4, 5)}
        if len(texts) > 1:
            own["semantic_similarity"] = semantic_similarity(texts, embedder, sample=EMBEDDED, seed=seed)
        found["groups"][name] = own
    return found


def sentence_scores(groups: Groups, score: Callable[[list[str]], Sequence[float]]) -> dict[str, Any]:
    """Score the first sentences of each group's texts."""
    return {
        name: positivity_by_sentence(texts[:EMBEDDED], score)[:_SENTENCES] for name, texts in groups.items() if texts
    }


def has_umap() -> bool:
    """Whether umap-learn, which is optional, is installed."""
    return find_spec("umap") is not None


def cloud(groups: Groups, embedder: str, seed: int) -> dict[str, Any] | None:
    """Map texts to a plane by UMAP of their embeddings; None without umap-learn."""
    some = {name: texts[:_PLANE] for name, texts in groups.items()}
    everything = [text for texts in some.values() for text in texts]
    if not has_umap() or len(everything) < _LEAST:
        return None
    from umap import UMAP

    plane = iter(UMAP(random_state=seed, n_jobs=1).fit_transform(encode(everything, embedder)).tolist())
    return {name: [next(plane) for _ in texts] for name, texts in some.items()}


def shown(texts: Sequence[str], constraint: Constraint) -> list[dict[str, Any]]:
    """Return a few texts, with the spans that satisfy the constraint: the keyword, or the last sentence."""

    def spans(text: str) -> list[list[int]]:
        if isinstance(constraint, Keyword):
            return [list(span) for span in matched(text, constraint)]
        last = (sentences(text) or [""])[-1]
        return [[text.rindex(last), text.rindex(last) + len(last)]] if last else []

    return [{"text": text, "spans": spans(text)} for text in texts[:_SHOWN]]
