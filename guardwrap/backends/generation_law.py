"""One prompt under the user's generation settings: what defines a(y)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import transformers
from transformers import LogitsProcessorList, StoppingCriteriaList

__all__ = ["GenerationLaw", "ended_rows"]


@dataclass(frozen=True, eq=False)
class GenerationLaw:
    """One prompt and everything that defines a(y) for it.

    Parameters
    ----------
    prompt_ids
        The prompt without padding; ``[length]``.
    mode
        How a token follows from scores.
    processors
        Logits processors that read the row's own tokens.
    warpers
        The rest of them, which read scores only and come last.
    criteria
        Stopping criteria other than the end-of-sequence token and the length.
    end_ids
        The end-of-sequence tokens.
    max_length
        Prompt and new tokens together.
    pad_id
        What ``model.generate`` pads with.
    return_dict
        Whether ``model.generate`` would return a ``ModelOutput``.
    count
        Texts asked for: ``num_return_sequences``.
    max_time
        Seconds after which an attempt is cut, or None.
    beam_results
        The new tokens of each text that a beam search has found, best first, and whether it ended by itself; None in
        the other modes.
    generate
        Runs the model's own ``generate`` on the prompt under these settings, with keyword arguments that come on top
        of them.
    outputs
        What ``call`` returned, where a pipeline's ``postprocess`` needs it; see ``calls``.
    """

    prompt_ids: torch.Tensor
    mode: Literal["sample", "greedy", "beam"]
    processors: LogitsProcessorList
    warpers: LogitsProcessorList
    criteria: StoppingCriteriaList
    end_ids: frozenset[int]
    max_length: int
    pad_id: int
    return_dict: bool
    count: int
    max_time: float | None
    beam_results: Sequence[tuple[Sequence[int], bool]] | None
    generate: Callable[..., Any]
    outputs: Any = None

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The prompt as plain numbers."""
        return tuple(self.prompt_ids.tolist())

    @cached_property
    def own_functions(self) -> tuple[str, ...]:
        """The class names of processors and criteria that are not transformers' own, and so may keep a state."""
        functions = (type(each) for each in (*self.processors, *self.criteria))
        return tuple(dict.fromkeys(each.__name__ for each in functions if each not in _FUNCTIONS_OF_THE_TEXT))

    @cached_property
    def is_stateless(self) -> bool:
        """Whether equal prefixes have equal laws, and end alike: functions of the user's own may keep a state."""
        return self.mode == "sample" and self.max_time is None and not self.own_functions

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What reports say of it, one sentence each."""
        return (_STATE.format(", ".join(self.own_functions)),) if self.own_functions else ()

    @cached_property
    def group(self) -> Hashable:
        """Equal for laws whose rows may be warped and drawn together: the same mode, warpers and their settings."""
        settings = (sorted(vars(warper).items()) for warper in self.warpers)
        exact = (tuple((name, _exact(value)) for name, value in each) for each in settings)
        return (self.mode, *zip(map(type, self.warpers), exact, strict=True))


_STATE = (
    "{} is not transformers' own: if its answer depends on more than the token ids and scores that it is given, such "
    "as a counter, texts depend on the batch size and are not drawn from one distribution"
)


def _exact(value: Any) -> Hashable:
    """Return a setting so that only equal ones compare equal: printed, a tensor has four digits."""
    return (value.dtype, str(value.device), tuple(value.flatten().tolist())) if torch.is_tensor(value) else value


_FUNCTIONS_OF_THE_TEXT = frozenset(
    getattr(transformers.generation, name)
    for name in (
        "EncoderNoRepeatNGramLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "StopStringCriteria",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
    )
)
"""Of transformers: what they do to a row depends on its tokens alone. These classes only: one that is derived from them
may do anything."""


def ended_rows(criterion: Callable[..., Any], ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    """Return which rows a stopping criterion ends, ``[rows]``.

    transformers asks for an answer for each row. Many that go around have one for all, which they read off the first
    row; those are asked row by row, or an attempt would end where another one does.
    """
    answer = criterion(ids, scores, **kwargs)
    if isinstance(answer, torch.Tensor) and answer.shape == (len(ids),):
        return answer.bool()
    answers = [answer]
    if len(ids) > 1:
        answers = [criterion(row[None], scores, **kwargs) for row in ids]
    return torch.tensor([bool(each) for each in answers], device=ids.device)
