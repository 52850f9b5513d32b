"""The distribution a(y): one prompt with the user's generation settings, and how a token is drawn from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
import transformers
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from guardwrap.errors import ModelError


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
    # the model outputs that the pipeline's ``postprocess`` requires, or None; see ``models.calls``
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


BLOCK = 256
"""Number of tokens per block, whose weights are summed first."""


def inverse_cdf(scores: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row from softmax(scores), with uniform random numbers in [0, 1), ``[rows]``, float64.

    Scores are log-probabilities up to a constant, after every processor and warper; ``[rows, vocabulary]``, float32.
    Minus infinity excludes a token. Returns the tokens, ``[rows]``, int64, and their log-probabilities in nats,
    ``[rows]``, float64: NaN if a row contains NaN, or no token that can be drawn (``require_drawn``).

    The CDF is computed on two levels: sums over blocks of the vocabulary in float64, then one block of each row. For 64
    rows of 49 k scores this took a tenth of the time of softmax and multinomial.
    """
    rows, size = scores.shape
    top = scores.amax(-1, keepdim=True)
    weights = torch.nn.functional.pad((scores - top).exp_(), (0, -size % BLOCK)).view(rows, -1, BLOCK)
    blocks = weights.sum(-1, dtype=torch.float64).cumsum(-1)
    total = blocks[:, -1:]
    target = uniform[:, None] * total
    block = _first_above(blocks, target).clamp_(max=blocks.shape[1] - 1)  # of NaN, the index is beyond the end
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = weights[torch.arange(rows, device=scores.device), block.squeeze(1)].double().cumsum(-1)
    token = (block * BLOCK + _first_above(inside, target - before)).squeeze(1).clamp_(max=size - 1)
    chosen = scores.gather(1, token[:, None]).double()
    return token, (chosen - top.double() - total.log()).squeeze(1)


def require_drawn(values: Iterable[float]) -> None:
    """Raise ModelError if there is NaN among figures of rows, as of a row from which no token can be drawn."""
    if any(map(math.isnan, values)):
        raise ModelError(
            "the model's logits contain NaN, or every token is excluded; try float32, or check the logits processors"
        )


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the index of the first entry above the target. Rounding never selects an entry with weight zero."""
    below_end = torch.nextafter(cumulative[:, -1:], torch.zeros_like(target))
    return torch.searchsorted(cumulative, torch.minimum(target, below_end), right=True)


_TIES = 32
"""Number of candidates beyond the top k to include, because top-k keeps all scores that are tied with the k-th."""


def warped(scores: torch.Tensor, warpers: LogitsProcessorList) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Apply warpers, which depend only on a row's scores; if top-k leaves few candidates, apply them to these only.

    Takes scores of the next token, ``[rows, vocabulary]``. Returns scores, ``[rows, columns]``, and the token of each
    column, ascending, so that a uniform random number draws the same token as from the whole vocabulary; None if the
    columns are the whole vocabulary. For 64 rows of 49 k random scores, temperature, top-50 and the draw take 5 ms
    instead of 48 ms.
    """
    few, candidates, tied = top_candidates(scores, warpers)
    if tied is None or not bool(tied.any()):
        return few, candidates
    return applied(warpers, scores), None


def top_candidates(
    scores: torch.Tensor, warpers: LogitsProcessorList
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Do the same as ``warped`` without a look at the result, for which a GPU would have to be waited for.

    Also returns in which rows more tokens may be tied with the k-th than there are candidates, ``[rows]``; None where
    the columns are the whole vocabulary.
    """
    first = next((i for i, warper in enumerate(warpers) if not isinstance(warper, TemperatureLogitsWarper)), None)
    if first is not None and isinstance(warpers[first], TopKLogitsWarper):
        size = warpers[first].top_k + _TIES
        if size < scores.shape[1]:
            few, candidates = scores.topk(size)
            few = applied(warpers, few)
            tied = torch.isfinite(few[:, -1])  # the last candidate was kept too, so others may be tied with the k-th
            candidates, order = candidates.sort(-1)
            return few.gather(1, order), candidates, tied
    return applied(warpers, scores), None, None


def with_processors(processors: LogitsProcessorList, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Apply processors to rows of one length, maybe in place; ``ids`` begin with the prompt, ``[rows, length]``.

    Minimum lengths give the same scores here in a hundredth of the time: transformers compares the whole vocabulary
    with the end-of-sequence tokens for each prompt and token, also where the text is long enough.
    """
    for processor in processors:
        if type(processor) is MinLengthLogitsProcessor:
            least = processor.min_length
        elif type(processor) is MinNewTokensLengthLogitsProcessor:
            least = processor.prompt_length_to_skip + processor.min_new_tokens
        else:
            scores = LogitsProcessorList([processor])(ids, scores)
            continue
        if ids.shape[1] < least:
            scores.index_fill_(-1, _end_tokens(processor, scores.shape[-1]), -math.inf)
    return scores


@lru_cache(maxsize=256)
def _end_tokens(processor: Any, size: int) -> torch.Tensor:
    """Return the end-of-sequence tokens of a minimum length that a model's vocabulary has."""
    ends: torch.Tensor = processor.eos_token_id.flatten()
    return ends[ends < size]


def applied(warpers: LogitsProcessorList, scores: torch.Tensor) -> torch.Tensor:
    """Apply warpers one by one. Calling the list is slower, because it inspects the signature of each every time."""
    ids = torch.empty(len(scores), 0, dtype=torch.long)  # warpers do not read token ids
    for warper in warpers:
        scores = warper(ids, scores)
    return scores


def argmax(scores: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the most likely token of each row: greedy search. As the choice is certain, its log-probability is 0.

    It is NaN in a row that contains NaN.
    """
    return scores.argmax(-1), torch.zeros_like(uniform).masked_fill(scores.isnan().any(-1), math.nan)
