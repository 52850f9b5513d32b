"""Haystack: components whose every reply satisfies the constraints.

Requires ``haystack-ai``: ``pip install 'guardwrap[haystack]'``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall, ToolCallDelta
from haystack.tools import deserialize_tools_or_toolset_inplace, flatten_tools_or_toolsets, serialize_tools_or_toolset

from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.constraint_file import as_constraint_file
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.integrations.guarded_call import as_guarded, content_of, one, reply_messages
from guardwrap.models.parsed_message import CalledTool, called_tools, chat_turn
from guardwrap.outcomes import Outcome

__all__ = ["GuardedChatGenerator", "GuardedTextGenerator"]


class _Guarded:
    """Base class of both components."""

    def __init__(
        self, generator: Any, constraints: Any = None, *, generation_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._generator = generator
        self._constraints = constraints if constraints is None else as_constraint_file(constraints)
        self._guarded: GuardedGenerator | None = None
        self._options = dict(generation_kwargs or {})
        if not isinstance(generator, str) or constraints is None:
            self.warm_up()  # nothing to load later; this also reports missing constraints

    def warm_up(self) -> None:
        """Load the model if a Hub id or path was given. Haystack calls this before the first run of a pipeline."""
        if self._guarded is None:
            self._guarded = as_guarded(self._generator, self._constraints)

    def to_dict(self) -> dict[str, Any]:
        """Return the component as plain data, for Haystack's pipeline files.

        Raises
        ------
        UsageError
            If the component was not created from a Hub id or path with constraints.
        ConstraintError
            If a part of the constraint exists in memory only.
        """
        if not isinstance(self._generator, str) or self._constraints is None:
            raise UsageError(
                f"{type(self).__name__} was created from an object in memory, which cannot be saved; create it from a "
                "Hub id or a path, with constraints="
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
        """Create a component from the result of ``to_dict``. Constraints that name Python code are rejected."""
        settings = dict(data["init_parameters"])
        settings["constraints"] = parse(settings["constraints"], path="constraints")
        return default_from_dict(cls, {**data, "init_parameters": settings})

    def _one(self, prompt: Any, generation_kwargs: Mapping[str, Any] | None) -> tuple[Outcome, dict[str, Any]]:
        self.warm_up()
        assert self._guarded is not None
        outcome = one(self._guarded, prompt, {**self._options, **(generation_kwargs or {})})
        return outcome, {"model": self._guarded.session.model_name, "guardwrap": outcome.report.to_dict()}


@component
class GuardedTextGenerator(_Guarded):
    """Haystack generator that returns ``replies`` to a prompt, which satisfy the constraint, with ``meta`` for each.

    If the budget is spent before a reply is accepted, it raises ``BudgetExhausted``.

    Parameters
    ----------
    generator
        A GuardedGenerator, a pipeline, a Hub id, a path or ``"local"``. The latter three are loaded by ``warm_up``, and
        can be saved in a pipeline file.
    constraints
        The constraints. Required unless ``generator`` is a GuardedGenerator.
    generation_kwargs
        Default options of ``run``: those of the pipeline and of guardwrap, e.g. ``{"max_new_tokens": 40}``.

    Raises
    ------
    UsageError
        If neither a GuardedGenerator nor constraints are given.
    """

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])
    def run(self, prompt: str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Generate ``num_return_sequences`` replies."""
        outcome, meta = self._one(prompt, generation_kwargs)
        return {"replies": list(outcome.texts), "meta": [dict(meta) for _ in outcome.texts]}

    @component.output_types(replies=list[str], meta=list[dict[str, Any]])
    async def run_async(self, prompt: str, generation_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call ``run`` in a thread."""
        return await asyncio.to_thread(self.run, prompt, generation_kwargs)


class _GuardedChat(_Guarded):
    """Base class of the chat generator: ``component`` copies a class, and a copy cannot call ``super()``."""

    def __init__(
        self,
        generator: Any,
        constraints: Any = None,
        *,
        generation_kwargs: Mapping[str, Any] | None = None,
        tools: Any = None,
    ) -> None:
        super().__init__(generator, constraints, generation_kwargs=generation_kwargs)
        self._tools = tools

    def to_dict(self) -> dict[str, Any]:
        """Return the component as plain data, with its tools."""
        data = super().to_dict()
        data["init_parameters"]["tools"] = serialize_tools_or_toolset(self._tools)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Create a component from the result of ``to_dict``. Constraints that name Python code are rejected."""
        settings = dict(data["init_parameters"])
        deserialize_tools_or_toolset_inplace(settings, key="tools")
        return super().from_dict({**data, "init_parameters": settings})

    def _replies(
        self, messages: list[ChatMessage] | str, generation_kwargs: Mapping[str, Any] | None, tools: Any
    ) -> list[ChatMessage]:
        chat = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
        offered = flatten_tools_or_toolsets(self._tools if tools is None else tools)
        options = {**(generation_kwargs or {}), **({"tools": [tool.tool_spec for tool in offered]} if offered else {})}
        outcome, meta = self._one([turn for message in chat for turn in _turns(message)], options)
        return [_reply(message, dict(meta)) for message in reply_messages(outcome)]


@component
class GuardedChatGenerator(_GuardedChat):
    """Haystack chat generator that returns ``replies`` to messages, whose texts satisfy the constraint.

    It has the parameters of GuardedTextGenerator, and ``tools``. The tokenizer's chat template is applied to the
    messages.

    Parameters
    ----------
    generator, constraints, generation_kwargs
        The same as for GuardedTextGenerator. ``generation_kwargs`` may also contain ``tool_choice`` (``"auto"``,
        ``"required"``, ``"none"`` or the name of a tool) and ``parallel_tool_calls``.
    tools
        Tools or toolsets. Every call in a reply names one of them, with arguments that satisfy its schema.
    """

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        generation_kwargs: dict[str, Any] | None = None,
        tools: Any = None,
        streaming_callback: Any = None,
    ) -> dict[str, Any]:
        """Generate ``num_return_sequences`` replies; the report is in their ``meta["guardwrap"]``.

        Parameters
        ----------
        messages
            The chat.
        generation_kwargs
            Options of this call, which override those of the component.
        tools
            Tools of this call, which replace those of the component.
        streaming_callback
            Called with the reasoning, the text and the calls of each reply, once it is accepted.
        """
        replies = self._replies(messages, generation_kwargs, tools)
        for chunk in _chunks(replies) if streaming_callback is not None else ():
            streaming_callback(chunk)
        return {"replies": replies}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        generation_kwargs: dict[str, Any] | None = None,
        tools: Any = None,
        streaming_callback: Any = None,
    ) -> dict[str, Any]:
        """Generate in a thread; ``streaming_callback`` may be asynchronous."""
        replies = await asyncio.to_thread(self._replies, messages, generation_kwargs, tools)
        for chunk in _chunks(replies) if streaming_callback is not None else ():
            called = streaming_callback(chunk)
            if inspect.isawaitable(called):
                await called
        return {"replies": replies}


def _chunks(replies: Sequence[ChatMessage]) -> Iterator[StreamingChunk]:
    """Yield the parts of replies; Haystack allows one part per chunk."""
    for reply in replies:
        calls = [
            ToolCallDelta(place, call.tool_name, json.dumps(call.arguments), call.id)
            for place, call in enumerate(reply.tool_calls)
        ]
        parts = {"reasoning": reply.reasoning, "content": reply.text, "tool_calls": calls}
        filled = [{"content": "", name: part} for name, part in parts.items() if part]
        ends = [None] * (len(filled) - 1) + ["tool_calls" if calls else "stop"]
        for index, (part, end) in enumerate(zip(filled or [{"content": ""}], ends, strict=True)):
            yield StreamingChunk(**part, meta=reply.meta, index=index, start=True, finish_reason=end)


def _reply(message: Mapping[str, Any], meta: dict[str, Any]) -> ChatMessage:
    """Return Haystack's form of a message."""
    calls = [ToolCall(call.name, dict(call.arguments), call.ident) for call in called_tools(message)]
    return ChatMessage.from_assistant(
        message["content"], meta=meta, tool_calls=calls or None, reasoning=message.get("reasoning_content")
    )


def _turns(message: ChatMessage) -> Iterator[dict[str, Any]]:
    """Yield a message as chat templates read it; one for each result of a tool."""
    for result in message.tool_call_results:
        text = result.result if isinstance(result.result, str) else "\n".join(map(_text_of, result.result))
        yield chat_turn("tool", text, name=result.origin.tool_name, tool_call_id=result.origin.id)
    if not message.tool_call_results:
        calls = [CalledTool(call.id, call.tool_name, call.arguments) for call in message.tool_calls]
        if message.images or message.files:
            content_of(message.images or message.files)
        text = "\n".join(message.texts) if message.texts or calls else content_of(message.text)
        reasoning = message.reasoning.reasoning_text if message.reasoning else None
        yield chat_turn(message.role.value, text, calls=calls, reasoning=reasoning, name=message.name)


def _text_of(part: Any) -> str:
    return content_of(getattr(part, "text", None))
