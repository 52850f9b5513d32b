"""Attempts drawn from a proposal a' that is not the model itself, and what they weigh."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.generation import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.pipelines import Pipeline

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.sequence_scores import is_exact, log_probabilities
from guardwrap.backends.shared_weights import is_quantised
from guardwrap.environment.transformers_internals import Chat, is_valid_message
from guardwrap.errors import UsageError
from guardwrap.outcomes import Draw
from guardwrap.pipelines.calls import Call
from guardwrap.pipelines.position_limit import require_positions
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.proposals import OR_REJECTION
from guardwrap.samplers.protocol import finite_weight

__all__ = [
    "QUANTISED",
    "ProposedCall",
    "Weigher",
    "require_same_tokens",
    "require_weighable",
    "why_unweighable",
    "with_own_target",
]

_TRUNCATING = {
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
    TypicalLogitsWarper: "typical_p",
    EpsilonLogitsWarper: "epsilon_cutoff",
    EtaLogitsWarper: "eta_cutoff",
}


@dataclass(frozen=True)
class ProposedCall(Call):
    """A call whose attempts are drawn from something else than the model under the user's prompts.

    Parameters
    ----------
    source
        The call of the proposal: the same one for another prompt, or the same arguments for another model. None where
        a' is another model under this call's own prompts and settings, as with an adapter.
    rewrite
        From a prompt, a string or a list of messages, to the one that the proposal is given; None is the same one.
    """

    source: Call | None = None
    rewrite: Callable[[Any], Any] | None = None

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[PreparedPrompt]:
        """Preprocess numbered prompts and resolve both laws: those of the proposal and those that define a(y)."""
        if self.source is None:
            yield from map(with_own_target, super().prompts(given, capacity))
            return
        given, again = itertools.tee(given)
        others = self.source.prompts(((number, self._rewritten(prompt)) for number, prompt in again), capacity)
        for prompt, other in zip(super().prompts(given, capacity), others, strict=True):
            target, drawn = prompt.law, other.law
            longest = len(drawn.ids) + target.max_length - len(target.ids)
            require_positions(self.source.pipe.model, len(drawn.ids), longest)
            drawn = dataclasses.replace(drawn, max_length=longest, count=target.count)
            yield dataclasses.replace(prompt, law=drawn, target=target)

    def _rewritten(self, prompt: Any) -> Any:
        if self.rewrite is None:
            return prompt
        made = self.rewrite(getattr(prompt, "messages", prompt))
        if isinstance(made, str):
            return made
        if not made or not all(map(is_valid_message, made)):
            raise UsageError("the proposal's function returned no chat, which is a list of messages, and no string")
        return Chat(made)


QUANTISED = "weights come from a quantized model, whose probabilities may depend on the batch"
"""What reports say where they do."""


class Weigher:
    """Computes log a(y) - log a'(y) for finished attempts, in nats.

    In float32 log a'(y) is what decoding saw. In half precision, and with quantised weights, both terms come from one
    pass each; see ``score``.

    Parameters
    ----------
    model
        Of a.
    proposal
        Of a'; the same one where the proposal is another prompt.
    """

    def __init__(self, model: Any, proposal: Any) -> None:
        self._model, self._proposal = model, proposal
        self._texts, self._squares = 0, 0.0  # weighed in float32, and by how much squared decoding was off

    def __call__(self, attempts: Sequence[tuple[PreparedPrompt, Draw, float]]) -> list[float]:
        """Return a log-weight for each attempt, in nats.

        Parameters
        ----------
        attempts
            Prompt, draw, and the sum of log Z_t in nats, Z_t being the share of a' that a mask has left.

        Raises
        ------
        ModelError
            If one is NaN or infinite.
        """
        base = log_probabilities(
            self._model, [(prompt.target or prompt.law, draw.token_ids) for prompt, draw, _ in attempts]
        )
        seen = [math.nan if draw.log_proposal is None else draw.log_proposal for _, draw, _ in attempts]
        drawn = seen
        if not is_exact(self._proposal):
            whole = log_probabilities(self._proposal, [(prompt.law, draw.token_ids) for prompt, draw, _ in attempts])
            drawn = [value - log_left for value, (*_, log_left) in zip(whole, attempts, strict=True)]
            self._texts += len(seen)
            self._squares += sum((a - b) ** 2 for a, b in zip(seen, drawn, strict=True))
        return [finite_weight(a - b) for a, b in zip(base, drawn, strict=True)]

    @property
    def note(self) -> str | None:
        """What rounding does, in one sentence, where it does something."""
        quantised = is_quantised(self._proposal) or is_quantised(self._model)
        alone = f"{QUANTISED}; each weight is computed from its text alone"
        if not self._texts:
            return alone if quantised else None
        error = math.sqrt(self._squares / self._texts)
        off = f"off by {error:.2g} nats (root mean square over {self._texts} texts)"
        if quantised:
            return f"{alone}, and decoding drew from a law that is {off}"
        dtype = str(self._proposal.dtype).removeprefix("torch.")
        return f"weights are computed in float32; decoding in {dtype} drew from a law that is {off}"


def require_same_tokens(pipe: Pipeline, other: Pipeline) -> None:
    """Require that tokens mean the same to both.

    Raises
    ------
    UsageError
        If the proposal has another vocabulary.
    """
    sizes = [each.model.config.get_text_config().vocab_size for each in (pipe, other)]
    if sizes[0] != sizes[1] or pipe.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise UsageError(
            "the proposal has another tokenizer than the model, so the model cannot say what its texts weigh; "
            "give a model of the same family"
        )


def with_own_target(prompt: PreparedPrompt) -> PreparedPrompt:
    """Say that attempts are drawn from another model under the prompt's own settings.

    Raises
    ------
    UsageError
        With beam search, which has found the model's own texts when the settings are known.
    """
    if prompt.law.beam_results is not None:
        raise UsageError(
            "beam search looks for the model's own texts, not an adapter's; pass do_sample=True, num_beams=1, or "
            "adapter=False"
        )
    return dataclasses.replace(prompt, target=prompt.law)


def require_weighable(prompt: PreparedPrompt) -> PreparedPrompt:
    """Require that attempts can be weighed.

    Raises
    ------
    UsageError
        If they are not sampled, or a truncation keeps a' from texts that a gives.
    """
    reason = why_unweighable(prompt)
    if reason is not None:
        raise UsageError(f"{reason}{OR_REJECTION}")
    return prompt


def why_unweighable(prompt: PreparedPrompt) -> str | None:
    """Say why attempts have no weights, and what to pass so that they do; None where they have."""
    if prompt.law.mode != "sample":
        return f"{prompt.law.mode} search draws nothing that could be weighed; pass do_sample=True, num_beams=1"
    law: GenerationLaw | None = None if prompt.target is None else prompt.law
    for warper in (*law.processors, *law.warpers) if law is not None else ():
        name = next((name for kind, name in _TRUNCATING.items() if isinstance(warper, kind)), None)
        if name is not None:
            off = "0" if name in ("top_k", "epsilon_cutoff", "eta_cutoff") else "None"
            now = getattr(warper, name, None)
            which = name if now is None else f"{name}, here {now},"
            return (
                f"{which} keeps the proposal from texts that the model gives, so they could never be returned; pass "
                f"{name}={off}"
            )
    return None
