"""Where attempts come from, if not from the model itself: what users give, as what a call draws from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel
from transformers.pipelines import Pipeline

from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.pipelines.loading import pipeline_of
from guardwrap.pipelines.proposal_draws import require_same_tokens
from guardwrap.pipelines.task_calls import call_kind
from guardwrap.proposals import Adapter, Masked, Prompt

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded

__all__ = ["Proposal", "adapter_of", "proposal_of"]


@dataclass(frozen=True)
class Proposal:
    """What attempts are drawn from, if not the model itself.

    Parameters
    ----------
    pipe
        The wrapped pipeline, for another prompt or an adapter, or another one.
    prompt
        Another prompt, or None.
    described
        It in words.
    adapter
        The adapter, or None.
    masked
        How it is masked, or None.
    """

    pipe: Pipeline
    prompt: Prompt | None
    described: str
    adapter: Loaded | Checkpoint | None = None
    masked: Masked | None = None

    def in_words(self, constraint: Constraint, prompt: Any = None, *, other_settings: bool = False) -> str:
        """Say what it is, and what is known about it for a constraint, a prompt, and settings other than its card's."""
        words = self.described
        if self.adapter is not None:
            words = self.adapter.described(constraint, prompt, other_settings=other_settings)
        return words if self.masked is None else f"{words}, masked"

    def only_masks(self, pipe: Pipeline) -> bool:
        """Whether attempts are drawn from the pipeline's own law, but for a mask."""
        return self.masked is not None and self.prompt is None and self.adapter is None and self.pipe is pipe


def proposal_of(pipe: Pipeline, given: Any) -> Proposal | None:
    """Read what attempts are to be drawn from.

    Parameters
    ----------
    pipe
        The wrapped pipeline.
    given
        As ``GuardedGenerator`` takes it; None for the model itself.

    Raises
    ------
    UsageError
        If texts of one of the two cannot be weighed under the other.
    """
    if given is None:
        return None
    if not call_kind(pipe).causal:
        raise UsageError("a proposal needs a causal language model, whose texts can be weighed; leave proposal= out")
    if isinstance(given, Masked):
        inner = proposal_of(pipe, given.proposal) or Proposal(pipe, None, "the model itself")
        return dataclasses.replace(inner, masked=given)
    if isinstance(given, Prompt):
        return Proposal(pipe, given, str(given))
    if isinstance(given, str) and "{" in given:
        raise UsageError(f"proposal={given!r} is the name of no model; a prompt is Prompt({given!r})")
    own = isinstance(given, str | Path | Pipeline)
    other = pipeline_of(given, None if own else pipe.tokenizer)
    if not call_kind(other).causal:
        raise UsageError("the proposal must be a causal language model like the model itself")
    require_same_tokens(pipe, other)
    return Proposal(other, None, f"the model {other.model.name_or_path!r}")


def adapter_of(pipe: Pipeline, given: Any, allow_mismatch: bool = False) -> Loaded | Checkpoint:
    """Load what was given as an adapter.

    Parameters
    ----------
    pipe
        The wrapped pipeline.
    given
        As ``GuardedGenerator`` takes it; or one that is loaded already, for this model, which is returned.
    allow_mismatch
        As ``Adapter`` has it.

    Raises
    ------
    AdapterError
        If its files cannot be used; ``AdapterMismatch`` if it is for another model.
    UsageError
        If it is no adapter, or the model can take none.
    """
    if not call_kind(pipe).causal:
        raise UsageError("an adapter needs a causal language model, whose texts can be weighed; leave adapter= out")
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
        raise UsageError(f"adapter={given!r} is no folder, no Hub id and no Adapter('...')")
    if allow_mismatch:
        given = dataclasses.replace(given, allow_mismatch=True)
    return load_adapter(pipe.model, pipe.tokenizer, given)
