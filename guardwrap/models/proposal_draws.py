"""Attempts drawn from a proposal a' instead of the model itself, and their weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig
from transformers.pipelines import Pipeline

from guardwrap.engine.generation_law import TRUNCATIONS, GenerationLaw
from guardwrap.engine.model_weights import is_quantised
from guardwrap.engine.sequence_scores import is_exact, log_probabilities
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.models.calls import Call
from guardwrap.models.prepare import PreparedPrompt, require_positions
from guardwrap.models.task_calls import call_of
from guardwrap.outcomes import Draw
from guardwrap.proposals import Unweighable
from guardwrap.samplers.protocol import finite_weight
from guardwrap.support.transformers_internals import Chat, default_settings, is_valid_message


@dataclass(frozen=True)
class ProposedCall(Call):
    """A call whose attempts are not drawn from the model under the user's prompts."""

    # The call of the proposal: the same call for another prompt, or one with the same arguments for another model. None
    # if a' is another model under this call's prompts and settings, as with an adapter.
    source: Call | None = None
    # turns a prompt (a string or a list of messages) into that of the proposal; None keeps the prompt
    rewrite: Callable[[Any], Any] | None = None

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[PreparedPrompt]:
        """Preprocess numbered prompts and resolve both laws of each: the proposal's, and the one that defines a(y)."""
        if self.source is None:
            yield from map(with_own_target, super().prompts(given, capacity))
            return
        given, again = itertools.tee(given)
        others = self.source.prompts(((number, self._rewritten(prompt)) for number, prompt in again), capacity)
        for prompt, other in zip(super().prompts(given, capacity), others, strict=True):
            target, drawn = prompt.law, other.law
            longest = len(drawn.ids) + target.most_new
            require_positions(self.source.pipe.model, len(drawn.ids), longest)
            drawn = dataclasses.replace(drawn, max_length=longest, count=target.count)
            yield dataclasses.replace(prompt, law=drawn, target=target)

    def _rewritten(self, prompt: Any) -> Any:
        if self.rewrite is None:
            return prompt
        rewritten = self.rewrite(getattr(prompt, "messages", prompt))
        if isinstance(rewritten, str):
            return rewritten
        if not rewritten or not all(map(is_valid_message, rewritten)):
            raise UsageError("the proposal's function must return a string or a chat, which is a list of messages")
        return Chat(rewritten)


QUANTISED = "weights come from a quantized model, whose probabilities may depend on the batch"
"""The note in reports about such weights."""


class Weigher:
    """Computes log a(y) - log a'(y) for finished attempts, in nats.

    In float32, log a'(y) is the value seen in decoding. In half precision, and with quantized weights, both terms are
    computed in one pass each; see ``engine.sequence_scores``.
    """

    def __init__(self, model: Any, proposal: Any, *, alone: bool = False) -> None:
        self._model, self._proposal, self._alone = model, proposal, alone
        self._texts, self._squares = 0, 0.0  # texts weighed in float32, and the sum of squared errors of decoding

    def __call__(self, attempts: Sequence[tuple[PreparedPrompt, Draw, float]]) -> list[float]:
        """Return a log-weight for each attempt, in nats. Raises ModelError if one is NaN or infinite.

        ``attempts``: prompt, draw, and the log-weight in nats that a mask or a twist on a' has given in decoding.
        """
        targets = [(prompt.target or prompt.law, draw.token_ids) for prompt, draw, _ in attempts]
        base = log_probabilities(self._model, targets, alone=self._alone)
        seen = [math.nan if draw.log_proposal is None else draw.log_proposal for _, draw, _ in attempts]
        drawn = seen
        if not is_exact(self._proposal):
            texts = [(prompt.law, draw.token_ids) for prompt, draw, _ in attempts]
            whole = log_probabilities(self._proposal, texts, alone=self._alone)
            drawn = [value - log_left for value, (*_, log_left) in zip(whole, attempts, strict=True)]
            self._texts += len(seen)
            self._squares += sum((a - b) ** 2 for a, b in zip(seen, drawn, strict=True))
        return [finite_weight(a - b) for a, b in zip(base, drawn, strict=True)]

    @property
    def note(self) -> str | None:
        """A sentence about the effect of rounding on the weights; None if there is none."""
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
    """Require that two pipelines have the same tokens."""
    sizes = [each.model.config.get_text_config().vocab_size for each in (pipe, other)]
    if sizes[0] != sizes[1] or pipe.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise UsageError(
            "the proposal has another tokenizer than the model, so its texts cannot be weighed; pass a model of the "
            "same family"
        )


def with_own_target(prompt: PreparedPrompt) -> PreparedPrompt:
    """Return the prompt with its law as the target too, for a proposal with the same settings."""
    if prompt.law.beam_results is not None:
        raise UsageError(
            "beam search looks for the model's own texts, not an adapter's; pass do_sample=True, num_beams=1, or "
            "adapter=False"
        )
    return dataclasses.replace(prompt, target=prompt.law)


def require_weighable(prompt: PreparedPrompt) -> PreparedPrompt:
    """Require that attempts of a prompt can be weighed."""
    unweighable = why_unweighable(prompt)
    if unweighable is not None:
        raise unweighable
    return prompt


def why_unweighable(prompt: PreparedPrompt) -> Unweighable | None:
    """Return why attempts cannot be weighed, and what to pass so that they can; None if they can."""
    if prompt.law.mode != "sample":
        why = f"{prompt.law.mode} search draws nothing that could be weighed"
        return Unweighable(why, do_sample=True, num_beams=1)
    law: GenerationLaw | None = None if prompt.target is None else prompt.law
    for warper in (*law.processors, *law.warpers) if law is not None else ():
        name = next((name for kind, (name, _) in TRUNCATIONS.items() if isinstance(warper, kind)), None)
        if name is not None:
            off = 0 if name in ("top_k", "epsilon_cutoff", "eta_cutoff") else None
            now = getattr(warper, name, None)
            which = name if now is None else f"{name}, here {now},"
            why = f"{which} keeps the proposal from texts that the model can give, so they would never be returned"
            return Unweighable(why, **{name: off})
    return None


_ABSENT: Mapping[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}
"""The values that ``generate`` uses for settings that are not set."""

_OTHER_MATTERS = {
    "attention_mask",
    "bos_token_id",
    "num_return_sequences",
    "pad_token_id",
    "return_dict_in_generate",
    "tokenizer",
    "transformers_version",
    "use_cache",
}
"""Arguments of ``generate`` that do not change the distribution of tokens."""


def differences(
    pipe: Pipeline, given: Mapping[str, Any], wanted: Mapping[str, Any], *, bare: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ: for each name, the call's value and the other one.

    ``wanted``: the other settings, in the form of options of the pipeline. They are compared, and never used to run
    anything.
    """
    try:
        others: Mapping[str, Any] = call_of(pipe, wanted).forward
    except GuardwrapError:  # a card may contain anything
        others = wanted
    model = pipe.model.generation_config.to_diff_dict()
    defaults = default_settings(pipe)
    here = _plain({**({} if bare else defaults), **model, **_spread(given)})
    there = _plain({**defaults, **model, **_spread(others)})
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return {name: (here.get(name, _ABSENT.get(name)), there.get(name, _ABSENT.get(name))) for name in names}


def _spread(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a ``generation_config`` into the other settings, which take precedence."""
    config = settings.get("generation_config")
    inside = config.to_diff_dict() if isinstance(config, GenerationConfig) else {}
    return {**inside, **{name: value for name, value in settings.items() if name != "generation_config"}}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop settings at their defaults. Objects, such as logits processors, are represented by their type."""
    relevant = {}
    for name, value in settings.items():
        if name in _OTHER_MATTERS or name.startswith(("_", "output_")) or value is None or value == []:
            continue
        plain = isinstance(value, bool | int | float | str | list | tuple | dict)
        if not plain or value != _ABSENT.get(name):
            relevant[name] = value if plain else type(value).__name__
    return relevant
