"""Proposals and adapters: from the forms that users pass to what a call draws from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel
from transformers.pipelines import Pipeline

from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.outcomes import Origin, Shape
from guardwrap.pipelines.loading import pipeline_of
from guardwrap.pipelines.proposal_draws import require_same_tokens
from guardwrap.pipelines.task_calls import call_kind
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded


@dataclass(frozen=True)
class Proposal:
    """What attempts are drawn from, if not the model itself."""

    pipe: Pipeline  # the pipeline of the other model. For another prompt or an adapter, the wrapped pipeline.
    prompt: Prompt | None  # another prompt, or None
    described: str = ""  # another model or prompt in words, for reports
    adapter: Loaded | Checkpoint | None = None  # the adapter, or None
    masked: Masked | None = None  # the settings of the mask, or None
    twisted: Twisted | None = None  # the settings of the twist, or None

    def origin(self, constraint: Constraint, prompt: Any, other_settings: bool) -> Origin:
        """Describe the proposal; for an adapter, also whether its card covers the constraint, prompt and settings."""
        words = self.described
        if self.adapter is not None:
            words = self.adapter.described(constraint, prompt, other_settings=other_settings)
        masked = None if self.masked is None else Shape.MASKED
        return Origin(words, masked if self.twisted is None else Shape.TWISTED)

    def only_masks(self, pipe: Pipeline) -> bool:
        """Whether attempts are drawn from the pipeline's own model and prompt, with a mask or a twist."""
        shaped = self.masked is not None or self.twisted is not None
        return shaped and self.prompt is None and self.adapter is None and self.pipe is pipe


def proposal_of(pipe: Pipeline, given: Any) -> Proposal | None:
    """Resolve the value of ``proposal=``.

    ``given``: a ``Prompt``, a ``Masked``, a ``Twisted``, or a model in any form that ``GuardedGenerator`` accepts;
    None for the model itself.
    """
    if given is None:
        return None
    if not call_kind(pipe).causal:
        raise UsageError("proposal= is supported only for causal language models; leave it out")
    if isinstance(given, Masked | Twisted):
        inner = proposal_of(pipe, given.proposal) or Proposal(pipe, None)
        if isinstance(given, Masked):
            return dataclasses.replace(inner, masked=given)
        return dataclasses.replace(inner, twisted=given)
    if isinstance(given, Prompt):
        return Proposal(pipe, given, str(given))
    if isinstance(given, str) and "{" in given:
        raise UsageError(f"proposal={given!r} is not the name of a model; for a prompt, pass Prompt({given!r})")
    has_tokenizer = isinstance(given, str | Path | Pipeline)
    other = pipeline_of(given, None if has_tokenizer else pipe.tokenizer)
    if not call_kind(other).causal:
        raise UsageError("the proposal is not a causal language model; give one with the tokenizer of the model")
    require_same_tokens(pipe, other)
    return Proposal(other, None, f"the model {other.model.name_or_path!r}")


def adapter_of(pipe: Pipeline, given: Any, allow_mismatch: bool = False) -> Loaded | Checkpoint:
    """Load an adapter from the value of ``adapter=``.

    ``given``: a folder, a Hub id, an ``Adapter``, or a model in training. An adapter that is already loaded for this
    model is returned as it is.
    """
    if not call_kind(pipe).causal:
        raise UsageError("adapter= is supported only for causal language models; leave it out")
    from guardwrap.adapters.loaded import (
        Checkpoint,
        Loaded,
        in_training,
        load_adapter,  # peft takes a second to import
    )

    if isinstance(given, Loaded | Checkpoint):
        return given
    if isinstance(given, PreTrainedModel) or hasattr(given, "get_base_model"):
        return in_training(pipe.model, given)
    if isinstance(given, str | Path):
        given = Adapter(given)
    if not isinstance(given, Adapter):
        raise UsageError(f"adapter={given!r} is not a folder, a Hub id or an Adapter('...')")
    if allow_mismatch:
        given = dataclasses.replace(given, allow_mismatch=True)
    return load_adapter(pipe.model, pipe.tokenizer, given)
