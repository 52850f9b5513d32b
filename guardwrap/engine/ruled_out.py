"""Which settings rule out every text that satisfies a constraint.

If every next token that can be drawn is known to lead to rejection only, no text can satisfy the constraint. Then each
setting that leaves out tokens, such as top-k, is turned off in turn, to see which one leaves out the tokens that are
needed, and how probable they are without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import LogitsProcessorList
from transformers.generation import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from guardwrap.engine.dead_prefixes import Candidates
from guardwrap.engine.generation_law import TRUNCATIONS, GenerationLaw
from guardwrap.engine.scheduling.all_rejected import LONGEST
from guardwrap.engine.scheduling.backend import AttemptState, Diagnosis, Ids, Launch, Lookahead
from guardwrap.engine.token_sampling import candidates_of
from guardwrap.outcomes import Obstacle

SECONDS = 2.0
"""Time for judging tokens after one prefix; as much again if the limit on the number of tokens may be the reason."""

FIRST_JUDGED, JUDGED = 8, 1024
"""Number of tokens that are judged together at first, and later at most. The time is looked at in between."""

NOTABLE = 0.005
"""The part of a probability that tokens which are not judged may have, if the probability is not called a bound."""

_NAMES: dict[type, tuple[str, str | None]] = {
    **TRUNCATIONS,
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
    tokens are possible, nothing is known. If all of these add no visible text, such as white space before JSON, texts
    remain, but the settings that leave out the others are known.

    Of ``launch``, an attempt of the request, ``narrowed``, ``mask`` and ``twist`` are not used. ``logits_after``
    computes the logits of the next token after some new tokens, ``[1, vocabulary]``, float32.
    """
    law: GenerationLaw = launch.law
    if not law.is_stateless:  # a function of the user may count its calls
        return Diagnosis()
    if lookahead.beyond:
        launch = replace(launch, law=replace(law, warpers=law.untruncated))
    diagnosis = _from_the_start(launch, lookahead, logits_after)
    prefix = lookahead.dead_end
    if diagnosis.obstacle is not None or diagnosis.impossible or lookahead.beyond or not prefix:
        return diagnosis
    obstacle = _Place(launch, lookahead, prefix, logits_after(prefix)).obstacle(textless=False)
    obstacle = replace(obstacle, of_attempt=True) if obstacle is not None and obstacle.truncates else None
    return Diagnosis(False, obstacle, diagnosis.computed + len(prefix))


def _from_the_start(launch: Launch, lookahead: Lookahead, logits_after: Callable[[Ids], torch.Tensor]) -> Diagnosis:
    """Follow the only token that is left, from the first one on, until there is none or more than one."""
    law: GenerationLaw = launch.law
    prefix: Ids = ()
    computed = 0
    while True:
        place = _Place(launch, lookahead, prefix, logits_after(prefix))
        possible = place.few_possible()
        if possible is None:
            return Diagnosis(computed=computed)
        if not any(possible.values()):  # none is left, or only tokens without text
            return Diagnosis(not possible, place.obstacle(textless=bool(possible)), computed)
        (token,) = possible
        if law.criteria or token in law.end_ids or len(prefix) + 1 >= min(law.most_new, LONGEST):
            return Diagnosis(computed=computed)
        prefix = (*prefix, token)
        computed += len(prefix)  # the model reads the prefix from its beginning


_UNJUDGED = "not judged"


class _Share(NamedTuple):
    """The probability of tokens that are possible, of those without text, and of those that were not judged."""

    possible: float
    textless: float
    unjudged: float

    @classmethod
    def of(cls, verdicts: npt.NDArray[np.object_], shares: npt.NDArray[np.float64]) -> _Share:
        """Sum the probabilities of tokens by their verdicts, ``[tokens]`` each."""
        kinds = ([verdict is kind for verdict in verdicts] for kind in (True, None, _UNJUDGED))
        return cls(*(float(shares[np.array(kind, dtype=bool)].sum()) for kind in kinds))


class _Place:
    """The next token after a prefix: what the settings leave of it, and what the constraint does."""

    def __init__(self, launch: Launch, lookahead: Lookahead, prefix: Ids, logits: torch.Tensor) -> None:
        self._launch = launch
        self._law: GenerationLaw = launch.law
        self._prefix = prefix
        self._logits = logits
        self._judges = {False: _Judge(lookahead, prefix)}  # by whether the limit on the number of tokens is off
        if len(prefix) + 1 >= self._law.most_new:
            self._judges[True] = _Judge(lookahead.unlimited(), prefix)

    def few_possible(self) -> dict[int, bool | None] | None:
        """Return the verdicts on tokens that can be drawn and are not dead, if they are few; see ``_Judge``."""
        tokens, _ = self._candidates(())
        return self._judges[False].few_possible(tokens.tolist())

    def obstacle(self, *, textless: bool) -> Obstacle | None:
        """Return the settings that leave out all possible tokens with text; None if that is not known.

        ``textless`` says whether they leave some without text.

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
        missing = share.unjudged + (0.0 if textless else share.textless)
        return Obstacle(names, share.possible, len(self._prefix), missing > NOTABLE * share.possible, textless)

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
        judge = self._judges[any(each is _LIMIT for each in off)]
        return judge.share(tokens.tolist(), np.exp(log_probabilities))

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
    """Judges next tokens after one prefix, the most likely first and each once, within ``SECONDS``."""

    def __init__(self, lookahead: Lookahead, prefix: Ids) -> None:
        self._lookahead = lookahead
        self._prefix = prefix
        self._verdicts: dict[int, bool | None] = {}
        self._began: float | None = None
        self._at_once = FIRST_JUDGED

    def few_possible(self, tokens: Sequence[int]) -> dict[int, bool | None] | None:
        """Return the verdicts on tokens that are not dead, if at most one of them adds text or if none does.

        None if there are more, or there is no time to judge all.
        """
        for _ in self._chunks(tokens):
            left = {token: self._verdicts[token] for token in tokens if self._verdicts.get(token, False) is not False}
            if len(left) > 1 and any(left.values()):
                return None
        if not all(token in self._verdicts for token in tokens):
            return None
        return {token: self._verdicts[token] for token in tokens if self._verdicts[token] is not False}

    def share(self, tokens: Sequence[int], shares: npt.NDArray[np.float64]) -> _Share:
        """Return the share of the possible tokens. The least likely ones are not judged if they hardly matter."""
        places = {token: place for place, token in enumerate(tokens)}
        verdicts = np.array([self._verdicts.get(token, _UNJUDGED) for token in tokens], dtype=object)
        for some in self._chunks(tokens):
            verdicts[[places[token] for token in some]] = [self._verdicts[token] for token in some]
            share = _Share.of(verdicts, shares)
            if share.unjudged <= NOTABLE * share.possible:
                break
        return _Share.of(verdicts, shares)

    def _chunks(self, tokens: Sequence[int]) -> Iterator[list[int]]:
        """Judge tokens together, some at a time, and yield them; the first yield is of none."""
        yield []
        rest = [token for token in tokens if token not in self._verdicts]
        self._began = time.monotonic() if self._began is None else self._began
        while rest and time.monotonic() - self._began < SECONDS:
            some, rest = rest[: self._at_once], rest[self._at_once :]
            self._verdicts.update(zip(some, self._lookahead.outlook(self._prefix, some), strict=True))
            self._at_once = min(2 * self._at_once, JUDGED)
            yield some
