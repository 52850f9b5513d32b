"""LlamaIndex: an LLM whose every text satisfies the constraints.

Requires ``llama-index-core``: ``pip install 'guardwrap[llamaindex]'``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback

from guardwrap.errors import UsageError
from guardwrap.integrations.guarded_call import as_guarded, content_of, one, schema_constraint
from guardwrap.outcomes import Outcome

__all__ = ["GuardedLLM"]


class GuardedLLM(CustomLLM):
    """LlamaIndex LLM that replies to texts and messages with texts that satisfy the constraint.

    Streams yield the whole text in one piece, once it is accepted. If the budget is spent first, calls raise
    ``BudgetExhausted``. The report is in ``raw["guardwrap"]`` of the response. Chats use the tokenizer's chat template,
    if it has one.

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
        model, tokenizer = self.guarded.model, self.guarded.tokenizer
        known = {"context_window": getattr(model.config.get_text_config(), "max_position_embeddings", None)}
        known["num_output"] = self.options.get("max_new_tokens") or model.generation_config.max_new_tokens
        return LLMMetadata(
            model_name=str(model.name_or_path),
            is_chat_model=getattr(tokenizer, "chat_template", None) is not None,
            **{name: value for name, value in known.items() if value is not None},
        )

    def _one(self, prompt: Any, kwargs: Mapping[str, Any], **more: Any) -> Outcome:
        return one(self.guarded, prompt, {**self.options, **_options(kwargs)}, **more)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a text."""
        prompt = prompt if formatted else self.completion_to_prompt(prompt)
        outcome = self._one(prompt, kwargs)
        return CompletionResponse(text=outcome.texts[0], raw={"guardwrap": outcome.report.to_dict()})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Complete a text, and yield it once it is accepted."""

        def pieces() -> Iterator[CompletionResponse]:
            response = self.complete(prompt, formatted=formatted, **kwargs)
            yield response.model_copy(update={"delta": response.text})

        return pieces()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Reply to a chat."""
        if not self.metadata.is_chat_model:
            reply: ChatResponse = super().chat(messages, **kwargs)
            return reply
        outcome = self._one(_chat(messages), kwargs)
        message = ChatMessage(role=MessageRole.ASSISTANT, content=outcome.texts[0])
        return ChatResponse(message=message, raw={"guardwrap": outcome.report.to_dict()})

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Reply to a chat, and yield the reply once it is accepted."""

        def pieces() -> Iterator[ChatResponse]:
            response = self.chat(messages, **kwargs)
            yield response.model_copy(update={"delta": response.message.content})

        return pieces()

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
        return schema.parse(self._one(filled_prompt, llm_kwargs or {}, schema=schema).texts[0])

    async def astructured_predict(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``structured_predict`` in a thread."""
        return await asyncio.to_thread(self.structured_predict, *args, **kwargs)

    def stream_structured_predict(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield the value of ``structured_predict``, in one piece."""
        yield self.structured_predict(*args, **kwargs)

    async def astream_structured_predict(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Return an async iterator that yields the value of ``structured_predict``."""

        async def values() -> AsyncIterator[Any]:
            yield await self.astructured_predict(*args, **kwargs)

        return values()


def _options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call without those for tools, which LlamaIndex always passes; reject actual tools."""
    if kwargs.get("tools"):
        raise UsageError("tools are not supported; use structured_predict")
    return {name: value for name, value in kwargs.items() if name not in ("tools", "tool_choice")}


def _chat(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    return [{"role": message.role.value, "content": content_of(message.content or "")} for message in messages]
