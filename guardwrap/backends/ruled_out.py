"""Which settings rule out every text that satisfies a constraint.

If every next token that can be drawn is known to lead to rejection only, no text can satisfy the constraint. Then each
setting that leaves out tokens, such as top-k, is turned off in turn, to see which one leaves out the tokens that are
needed, and how probable they are without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from guardwrap.backends.dead_prefixes import Candidates
from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.token_sampling import candidates_of
from guardwrap.outcomes import Obstacle
from guardwrap.scheduling.backend import AttemptState, Diagnosis, Ids, Launch, Lookahead
from guardwrap.scheduling.inquiry import LONGEST

__all__ = ["diagnosed"]

SECONDS = 1.0
"""Time for judging tokens after one prefix; as much again if the limit on the number of tokens may be the reason."""

FIRST_JUDGED, JUDGED = 8, 1024
"""Number of tokens that are judged together at first, and later at most. The time is looked at in between."""

NOTABLE = 0.005
"""The part of a probability that tokens which are not judged may have, if the probability is not called a bound."""

_NAMES: dict[type, tuple[str, str | None]] = {
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TypicalLogitsWarper: ("typical_p", "mass"),
    EpsilonLogitsWarper: ("epsilon_cutoff", "epsilon"),
    EtaLogitsWarper: ("eta_cutoff", "epsilon"),
    MinLengthLogitsProcessor: ("min_length", "min_length"),
    MinNewTokensLengthLogitsProcessor: ("min_new_tokens", "min_new_tokens"),
    NoRepeatNGramLogitsProcessor: ("no_repeat_ngram_size", "ngram_size"),
    NoBadWordsLogitsProcessor: ("bad_words_ids", None),
    SequenceBiasLogitsProcessor: ("sequence_bias", None),
    SuppressTokensLogitsProcessor: ("suppress_tokens", None),
    SuppressTokensAtBeginLogitsProcessor: ("begin_suppress_tokens", None),
    ForcedBOSTokenLogitsProcessor: ("forced_bos_token_id", None),
    ForcedEOSTokenLogitsProcessor: ("forced_eos_token_id", None),
}
"""The processors that can leave out tokens: name of the setting, and the attribute with its value if it is short."""

_LIMIT = "the limit on the number of tokens"


def diagnosed(launch: Launch, lookahead: Lookahead, logits_after: Callable[[Ids], torch.Tensor]) -> Diagnosis:
    """Find out whether a request's settings leave any text that satisfies the constraint.

    As long as exactly one next token is possible, its successors are looked at, up to ``LONGEST`` tokens. Where more
    tokens are possible, nothing is known.

    Parameters
    ----------
    launch
        An attempt of the request. Its ``narrowed``, ``mask`` and ``twist`` are not used.
    lookahead
        Determines which tokens lead to rejection only.
    logits_after
        Computes the logits of the next token after the given new tokens, ``[1, vocabulary]``, float32.

    Raises
    ------
    CheckFailed
        If the constraint cannot judge a text.
    """
    law: GenerationLaw = launch.law
    prefix: Ids = ()
    computed = 0
    if not law.is_stateless:  # a function of the user may count its calls
        return Diagnosis()
    while True:
        place = _Place(launch, lookahead, prefix, logits_after(prefix))
        possible = place.possible()
        if possible is not None and not possible:
            return Diagnosis(True, place.obstacle(), computed)
        ends = law.criteria or len(prefix) + 1 >= min(law.most_new, LONGEST)
        if possible is None or len(possible) > 1 or ends or possible[0] in law.end_ids:
            return Diagnosis(computed=computed)
        prefix = (*prefix, *possible)
        computed += len(prefix)  # the model reads the prefix from its beginning


class _Share(NamedTuple):
    """The probability of the tokens that are possible, and of those that could not be judged."""

    possible: float
    unknown: float


class _Place:
    """The next token after a prefix: what the settings leave of it, and what the constraint does.

    Parameters
    ----------
    launch
        An attempt of the request.
    lookahead
        Judges tokens.
    prefix
        The new tokens so far.
    logits
        The logits of the next token, ``[1, vocabulary]``.
    """

    def __init__(self, launch: Launch, lookahead: Lookahead, prefix: Ids, logits: torch.Tensor) -> None:
        self._launch = launch
        self._law: GenerationLaw = launch.law
        self._prefix = prefix
        self._logits = logits
        self._judges = {False: _Judge(lookahead, prefix)}  # by whether the limit on the number of tokens is off
        if len(prefix) + 1 >= self._law.most_new:
            self._judges[True] = _Judge(lookahead.unlimited(), prefix)

    def possible(self) -> list[int] | None:
        """Return the tokens that can be drawn and are not known to lead to rejection only; None if there is no time."""
        tokens, _ = self._candidates(())
        return self._judges[False].not_dead(tokens.tolist())

    def obstacle(self) -> Obstacle | None:
        """Return the settings that leave out all possible tokens; None if that is not known.

        A setting that does so alone is preferred, of several the one that leaves out most. Otherwise the settings are a
        smallest set: each of them leaves out all possible tokens if only the others are turned off.
        """
        settings = self._settings()
        off = max(([each] for each in settings), key=lambda one: self._share(one).possible, default=[])
        if self._share(off).possible == 0:
            off = settings
            for each in settings:
                fewer = [other for other in off if other is not each]
                if self._share(fewer).possible > 0:
                    off = fewer
        share = self._share(off)
        if share.possible == 0:
            return None
        names = tuple(self._name(each) for each in off)
        return Obstacle(names, share.possible, len(self._prefix), share.unknown > NOTABLE * share.possible)

    def _settings(self) -> list[Any]:
        """Return the processors that can leave out tokens, and ``_LIMIT`` if texts end with the next token."""
        processors = [each for each in (*self._law.processors, *self._law.warpers) if type(each) in _NAMES]
        return [*processors, _LIMIT] if True in self._judges else processors

    def _name(self, setting: Any) -> str:
        if setting is _LIMIT:
            return f"max_new_tokens={self._law.most_new}"
        name, attribute = _NAMES[type(setting)]
        return name if attribute is None else f"{name}={float(getattr(setting, attribute)):g}"

    def _share(self, off: Collection[Any]) -> _Share:
        """Return the share of possible tokens with some settings turned off."""
        tokens, log_probabilities = self._candidates(off)
        verdicts = self._judges[any(each is _LIMIT for each in off)].verdicts(tokens.tolist())
        shares = np.exp(log_probabilities)
        possible = np.array([verdict is True for verdict in verdicts], dtype=bool)
        unknown = np.array([verdict is None for verdict in verdicts], dtype=bool)
        return _Share(float(shares[possible].sum()), float(shares[unknown].sum()))

    def _candidates(self, off: Collection[Any]) -> Candidates:
        """Return the distribution of the next token with some settings turned off."""
        kept = (
            LogitsProcessorList(each for each in part if not any(each is other for other in off))
            for part in (self._law.processors, self._law.warpers)
        )
        processors, warpers = kept
        law = replace(self._law, processors=processors, warpers=warpers)
        attempt = AttemptState(replace(self._launch, law=law), list(self._prefix))
        return candidates_of(self._logits.clone(), attempt)


class _Judge:
    """Judges next tokens after one prefix, each once, within ``SECONDS``."""

    def __init__(self, lookahead: Lookahead, prefix: Ids) -> None:
        self._lookahead = lookahead
        self._prefix = prefix
        self._known: dict[int, bool | None] = {}
        self._began: float | None = None
        self._at_once = FIRST_JUDGED

    def verdicts(self, tokens: Sequence[int]) -> list[bool | None]:
        """Return for each token whether it is possible; None if that is not known."""
        self._look_at(tokens)
        return [self._known.get(token) for token in tokens]

    def not_dead(self, tokens: Sequence[int]) -> list[int] | None:
        """Return the tokens that are not known to lead to rejection only; None if there is no time to judge all."""
        self._look_at(tokens)
        return [t for t in tokens if self._known[t] is not False] if all(t in self._known for t in tokens) else None

    def _look_at(self, tokens: Sequence[int]) -> None:
        rest = [token for token in tokens if token not in self._known]
        self._began = time.monotonic() if self._began is None else self._began
        while rest and time.monotonic() - self._began < SECONDS:
            some, rest = rest[: self._at_once], rest[self._at_once :]
            self._known.update(zip(some, self._lookahead.outlook(self._prefix, some), strict=True))
            self._at_once = min(2 * self._at_once, JUDGED)
