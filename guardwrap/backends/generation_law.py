"""The distribution a(y): one prompt with the user's generation settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import transformers
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)


@dataclass(frozen=True, eq=False)
class GenerationLaw:
    """One prompt and everything that defines a(y) for it."""

    prompt_ids: torch.Tensor  # the tokens of the prompt, without padding; ``[length]``
    mode: Literal["sample", "greedy", "beam"]  # how tokens are chosen from scores
    processors: LogitsProcessorList  # logits processors that depend on the tokens of their row
    warpers: LogitsProcessorList  # the remaining logits processors, which depend only on scores and are applied last
    criteria: StoppingCriteriaList  # stopping criteria other than the end-of-sequence token and the length
    end_ids: frozenset[int]  # the end-of-sequence tokens
    max_length: int  # maximum number of tokens of prompt and new text together
    pad_id: int  # the token that ``model.generate`` pads with
    return_dict: bool  # whether ``model.generate`` would return a ``ModelOutput``
    count: int  # number of texts requested: ``num_return_sequences``
    max_time: float | None  # seconds after which an attempt is cut, or None for no limit
    # the new tokens of each text from a beam search, best first, and whether it ended by itself; None in the other
    # modes
    beam_results: Sequence[tuple[Sequence[int], bool]] | None
    # runs the model's own ``generate`` on the prompt with these settings, which keyword arguments override
    generate: Callable[..., Any]
    # the model outputs that the pipeline's ``postprocess`` requires, or None; see ``pipelines.calls``
    outputs: Any = None

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the prompt as a tuple."""
        return tuple(self.prompt_ids.tolist())

    @property
    def most_new(self) -> int:
        """Maximum number of new tokens."""
        return self.max_length - len(self.ids)

    @cached_property
    def own_functions(self) -> tuple[str, ...]:
        """The class names of processors and criteria that are not from transformers, and so may keep a state."""
        functions = (type(each) for each in (*self.processors, *self.criteria))
        return tuple(dict.fromkeys(each.__name__ for each in functions if each not in _FUNCTIONS_OF_THE_TEXT))

    @cached_property
    def is_stateless(self) -> bool:
        """Whether the distribution of the next token, and whether a text ends, depend only on the tokens before."""
        return self.mode == "sample" and self.max_time is None and not self.own_functions

    @cached_property
    def untruncated(self) -> LogitsProcessorList:
        """The warpers without those that leave out tokens, such as top-k."""
        return LogitsProcessorList(warper for warper in self.warpers if type(warper) not in TRUNCATIONS)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes for reports, one sentence each."""
        return (_STATE.format(", ".join(self.own_functions)),) if self.own_functions else ()

    @cached_property
    def group(self) -> Hashable:
        """A key that is equal for laws whose rows can be processed together: mode, warpers and their settings."""
        settings = (sorted(vars(warper).items()) for warper in self.warpers)
        exact = (tuple((name, _exact(value)) for name, value in each) for each in settings)
        return (self.mode, *zip(map(type, self.warpers), exact, strict=True))


TRUNCATIONS: dict[type, tuple[str, str]] = {
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TypicalLogitsWarper: ("typical_p", "mass"),
    EpsilonLogitsWarper: ("epsilon_cutoff", "epsilon"),
    EtaLogitsWarper: ("eta_cutoff", "epsilon"),
}
"""The warpers that leave out tokens: name of the setting, and the attribute with its value."""

_STATE = (
    "{} is not from transformers; if its result depends on more than the token ids and scores that it receives, such "
    "as a counter, texts depend on the batch size and are not drawn from one distribution"
)


def _exact(value: Any) -> Hashable:
    """Return a hashable form of a setting that compares all digits of tensors."""
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
"""Classes of transformers whose effect on a row depends only on its tokens. Their subclasses do not count, because they
may do anything."""


def ended_rows(criterion: Callable[..., Any], ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    """Return which rows a stopping criterion ends, ``[rows]``.

    transformers expects one answer per row. Many published criteria return a single answer, read from the first row.
    These are called for each row separately, because otherwise an attempt would end where another one does.
    """
    answer = criterion(ids, scores, **kwargs)
    if isinstance(answer, torch.Tensor) and answer.shape == (len(ids),):
        return answer.bool()
    answers = [answer]
    if len(ids) > 1:
        answers = [criterion(row[None], scores, **kwargs) for row in ids]
    return torch.tensor([bool(each) for each in answers], device=ids.device)
