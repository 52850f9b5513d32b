"""LlamaIndex: an LLM whose every text satisfies the constraints.

Requires ``llama-index-core``: ``pip install 'guardwrap[llamaindex]'``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.generic_utils import completion_response_to_chat_response
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from guardwrap.calls.sessions import LocalSession
from guardwrap.errors import UsageError
from guardwrap.integrations.guarded_call import (
    as_guarded,
    calls_tools,
    content_of,
    one,
    reply_messages,
    schema_constraint,
    token_counts,
)
from guardwrap.models.parsed_message import CalledTool, called_tools, chat_turn
from guardwrap.models.prepare import trained_length
from guardwrap.outcomes import Outcome

__all__ = ["GuardedLLM"]


class GuardedLLM(CustomLLM, FunctionCallingLLM):
    """LlamaIndex LLM that replies to texts and messages with texts that satisfy the constraint, and calls tools.

    Streams yield the whole text in one piece, once it is accepted. If the budget is spent first, calls raise
    ``BudgetExhausted``. The report is in ``raw["guardwrap"]`` of the response, and the tokens of the prompt and of the
    text in ``raw["usage"]`` and in ``additional_kwargs``. Chats use the tokenizer's chat template, if it has one. Every
    call names one of the tools, with arguments that satisfy its schema. Reasoning is a ``ThinkingBlock`` of the
    message, and a call a ``ToolCallBlock``.

    Parameters
    ----------
    guarded
        A GuardedGenerator, a pipeline, a Hub id, a path or ``"local"``.
    constraints
        The constraints. Required unless ``guarded`` is a GuardedGenerator.
    options
        Default options of calls: those of the pipeline and of guardwrap, e.g. ``{"max_new_tokens": 40}``.

    Raises
    ------
    UsageError
        If neither a GuardedGenerator nor constraints are given.
    """

    guarded: Any = Field(exclude=True)
    options: dict[str, Any] = Field(default_factory=dict)

    def __init__(self, guarded: Any, constraints: Any = None, **fields: Any) -> None:
        super().__init__(guarded=as_guarded(guarded, constraints), **fields)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class in LlamaIndex's serialized data."""
        return "guardwrap"

    @property
    def metadata(self) -> LLMMetadata:
        """Context window and other properties of the model, for LlamaIndex."""
        model, session = self.guarded.model, self.guarded.session
        known = {"num_output": self.options.get("max_new_tokens")}
        if isinstance(session, LocalSession):  # a server does not say
            known["num_output"] = known["num_output"] or model.generation_config.max_new_tokens
            known["context_window"] = trained_length(model)
        return LLMMetadata(
            model_name=session.model_name,
            is_chat_model=session.takes_chats,
            is_function_calling_model=calls_tools(self.guarded),
            **{name: value for name, value in known.items() if value is not None},
        )

    def _one(self, prompt: Any, kwargs: Mapping[str, Any], **more: Any) -> Outcome:
        return one(self.guarded, prompt, {**self.options, **kwargs}, **more)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a text."""
        return self._completion(prompt if formatted else self.completion_to_prompt(prompt), kwargs)

    def _completion(self, prompt: str, kwargs: Mapping[str, Any]) -> CompletionResponse:
        outcome = self._one(prompt, _without_tools(kwargs))
        return CompletionResponse(text=outcome.texts[0], **_details(outcome))

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Reply to a chat. ``tools``, ``tool_choice`` and ``parallel_tool_calls`` are as in ``chat_with_tools``."""
        if not self.metadata.is_chat_model:
            completion = self._completion(self.messages_to_prompt(messages), kwargs)
            reply = completion_response_to_chat_response(completion)
            # LlamaIndex puts the usage into the message.
            reply.additional_kwargs.update(reply.message.additional_kwargs)
            return reply
        outcome = self._one(_chat(messages), kwargs)
        return ChatResponse(message=_reply(reply_messages(outcome)[0]), **_details(outcome))

    # The methods below call those above, which report the call and its usage to callbacks, so they do not. LlamaIndex's
    # own asynchronous methods would compute in the event loop, and one call after the other.

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Complete a text, and yield it once it is accepted."""
        response = self.complete(prompt, formatted=formatted, **kwargs)
        yield response.model_copy(update={"delta": response.text})

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Reply to a chat, and yield the reply once it is accepted."""
        response = self.chat(messages, **kwargs)
        yield response.model_copy(update={"delta": response.message.content or ""})

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Call ``complete`` in a thread."""
        return await asyncio.to_thread(self.complete, prompt, formatted, **kwargs)

    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> AsyncIterator[CompletionResponse]:
        """Call ``stream_complete`` in a thread."""
        return _from_thread(lambda: self.stream_complete(prompt, formatted, **kwargs))

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Call ``chat`` in a thread."""
        return await asyncio.to_thread(self.chat, messages, **kwargs)

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> AsyncIterator[ChatResponse]:
        """Call ``stream_chat`` in a thread."""
        return _from_thread(lambda: self.stream_chat(messages, **kwargs))

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[Any],
        user_msg: Any = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of ``chat`` for ``chat_with_tools``."""
        last = [] if user_msg is None else [ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg]
        return {
            "messages": [*(chat_history or ()), *last],
            "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
            "tool_choice": ("required" if tool_required else "auto") if tool_choice is None else tool_choice,
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the calls of a response.

        Parameters
        ----------
        response
            A response of this model.
        error_on_no_tool_call
            Whether to raise an error if there is none.
        **kwargs
            Not used.

        Raises
        ------
        UsageError
            If there is none.
        """
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if error_on_no_tool_call and not blocks:
            raise UsageError("the message calls no tool; pass tool_required=True, or error_on_no_tool_call=False")
        return [
            ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=_arguments(block))
            for block in blocks
        ]

    def structured_predict(
        self, output_cls: Any, prompt: Any, llm_kwargs: Mapping[str, Any] | None = None, **prompt_args: Any
    ) -> Any:
        """Return a value of a type. The text satisfies the type's schema in addition to the constraint.

        Parameters
        ----------
        output_cls
            A pydantic model, or another type that pydantic supports.
        prompt
            A LlamaIndex template. The schema is not added to it: describe the format there, or pass
            ``proposal=Masked()``.
        llm_kwargs
            Options of this call, which override ``options``.
        **prompt_args
            Values for the variables of the template.
        """
        if self.metadata.is_chat_model:
            filled_prompt: Any = _chat(self._get_messages(prompt, **prompt_args))
        else:
            filled_prompt = self._get_prompt(prompt, **prompt_args)
        schema = schema_constraint(output_cls)
        outcome = self._one(filled_prompt, _without_tools(llm_kwargs or {}), schema=schema)
        return schema.parse(str(reply_messages(outcome)[0]["content"]).strip())

    async def astructured_predict(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``structured_predict`` in a thread."""
        return await asyncio.to_thread(self.structured_predict, *args, **kwargs)

    def stream_structured_predict(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield the value of ``structured_predict``, in one piece."""
        yield self.structured_predict(*args, **kwargs)

    async def astream_structured_predict(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Return an async iterator that yields the value of ``structured_predict``."""
        return _from_thread(lambda: self.stream_structured_predict(*args, **kwargs))


async def _from_thread(items: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
    for item in await asyncio.to_thread(lambda: [*items()]):
        yield item


def _details(outcome: Outcome) -> dict[str, Any]:
    """Return the report and the usage of a response, in the fields in which LlamaIndex's OpenAI class has its usage."""
    raw = {"guardwrap": outcome.report.to_dict()}
    usage = token_counts(outcome)[0]
    if usage is None:
        return {"raw": raw}
    return {"raw": {**raw, "usage": usage}, "additional_kwargs": dict(usage)}


def _without_tools(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call without those for tools, which LlamaIndex always passes; reject actual tools."""
    if kwargs.get("tools"):
        raise UsageError("tools require a chat; use chat_with_tools")
    return {name: value for name, value in kwargs.items() if name not in ("tools", "tool_choice")}


def _reply(message: Mapping[str, Any]) -> ChatMessage:
    """Return LlamaIndex's form of a message."""
    thought, content = message.get("reasoning_content"), message["content"]
    calls = [
        ToolCallBlock(tool_call_id=call.ident, tool_name=call.name, tool_kwargs=dict(call.arguments))
        for call in called_tools(message)
    ]
    blocks = [
        *([ThinkingBlock(content=thought)] if thought else []),
        *([] if content is None else [TextBlock(text=content)]),
        *calls,
    ]
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)


def _arguments(block: ToolCallBlock) -> dict[str, Any]:
    arguments: Any = block.tool_kwargs
    return dict(json.loads(arguments) if isinstance(arguments, str) else arguments)


def _chat(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [_turn(message) for message in messages]


def _turn(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates read it."""
    texts, thoughts, calls = [], [], []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            calls.append(CalledTool(block.tool_call_id, block.tool_name, _arguments(block)))
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.content or "")
        else:
            texts.append(content_of(block.text if isinstance(block, TextBlock) else block))
    ident = message.additional_kwargs.get("tool_call_id") if message.role == MessageRole.TOOL else None
    reasoning = "\n".join(thoughts) or None
    return chat_turn(message.role.value, "\n".join(texts), calls=calls, reasoning=reasoning, tool_call_id=ident)
