"""Haystack: components whose every reply satisfies the constraints.

``pip install 'guardwrap[haystack]'`` brings ``haystack-ai``, which is all that is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage

from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.integrations.guarded_call import as_guarded, content_of, one
from guardwrap.outcomes import Outcome

__all__ = ["GuardedChatGenerator", "GuardedTextGenerator"]


class _Guarded:
    """What both components have in common."""

    def __init__(
        self, generator: Any, constraints: Any = None, *, generation_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._generator = generator
        self._constraints = constraints if constraints is None else as_constraint_file(constraints)
        self._guarded: GuardedGenerator | None = None
        self._options = dict(generation_kwargs or {})
        if not isinstance(generator, str) or constraints is None:
            self.warm_up()  # there is nothing to load, or nothing to load it for

    def warm_up(self) -> None:
        """Load the model, where a Hub id or a path was given; Haystack calls this before a pipeline's first run."""
        if self._guarded is None:
            self._guarded = as_guarded(self._generator, self._constraints)

    def to_dict(self) -> dict[str, Any]:
        """Return the component as plain data, for Haystack's pipeline files.

        Raises
        ------
        UsageError
            If it was made of an object in memory instead of a Hub id or a path, and constraints.
        ConstraintError
            If that is so of a part of the constraint.
        """
        if not isinstance(self._generator, str) or self._constraints is None:
            raise UsageError(
                f"{type(self).__name__} was made of an object in memory, which no file can hold; make it of a Hub id "
                "or a path, and constraints="
            )
        data: dict[str, Any] = default_to_dict(
            self,
            generator=self._generator,
            constraints=dump(self._constraints),
            generation_kwargs=self._options,
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Make a component of what ``to_dict`` returned. A constraint that names Python code is refused."""
        settings = dict(data["init_parameters"])
        settings["constraints"] = parse(settings["constraints"], path="constraints")
        return default_from_dict(cls, {**data, "init_parameters": settings})

    def _one(self, prompt: Any, generation_kwargs: Mapping[str, Any] | None) -> tuple[Outcome, dict[str, Any]]:
        self.warm_up()
        assert self._guarded is not None
        outcome = one(self._guarded, prompt, {**self._options, **(generation_kwargs or {})})
        return outcome, {"model": str(self._guarded.model.name_or_path), "guardwrap": outcome.report.to_dict()}


@component
class GuardedTextGenerator(_Guarded):
    """A Haystack generator: a prompt in, ``replies`` that satisfy the constraint out, with ``meta`` for each.

    ``BudgetExhausted`` is raised as it is.

    Parameters
    ----------
    generator
        A GuardedGenerator, or what one is made of: a pipeline, a Hub id, a path or ``"local"``. The latter are loaded
        by ``warm_up``, and can be written to a pipeline's file.
    constraints
        Where it is made here.
    generation_kwargs
        Options of each run: the pipeline's and guardwrap's own, e.g. ``{"max_new_tokens": 40}``. A run's replace them.

    Raises
    ------
    UsageError
        If neither a wrapper nor constraints are given.
    """

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])
    def run(self, prompt: str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Generate ``num_return_sequences`` replies."""
        outcome, meta = self._one(prompt, generation_kwargs)
        return {"replies": list(outcome.texts), "meta": [dict(meta) for _ in outcome.texts]}

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])
    async def run_async(self, prompt: str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """As ``run``, in a thread."""
        return await asyncio.to_thread(self.run, prompt, generation_kwargs)


@component
class GuardedChatGenerator(_Guarded):
    """A Haystack chat generator: messages in, ``replies`` out whose texts satisfy the constraint.

    Parameters are those of GuardedTextGenerator. The tokenizer's chat template makes prompts.
    """

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage] | str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Generate ``num_return_sequences`` replies; the report is in their ``meta["guardwrap"]``."""
        chat = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
        turns = [{"role": message.role.value, "content": content_of(message.text)} for message in chat]
        outcome, meta = self._one(turns, generation_kwargs)
        return {"replies": [ChatMessage.from_assistant(text, meta=dict(meta)) for text in outcome.texts]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage] | str, generation_kwargs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``run``, in a thread."""
        return await asyncio.to_thread(self.run, messages, generation_kwargs)
