"""LangChain: a language model and a chat model whose every text satisfies the constraints.

Requires ``langchain-core``: ``pip install 'guardwrap[langchain]'``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.config import get_config_list, run_in_executor
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, Field, PrivateAttr

from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.errors import GuardwrapError, UsageError, nearest
from guardwrap.integrations.guarded_call import (
    as_guarded,
    complete_outcome,
    content_of,
    reply_messages,
    run_prompts,
    schema_constraint,
    token_counts,
)
from guardwrap.models.parsed_message import CalledTool, called_tools, chat_turn
from guardwrap.outcomes import Outcome
from guardwrap.support.transformers_internals import token_ids

__all__ = ["GuardedChatModel", "GuardedLLM"]


class _Guarded(BaseModel):
    """Base class of both models."""

    guarded: Any = Field(exclude=True)
    options: dict[str, Any] = Field(default_factory=dict)
    cache: Any = Field(default=False, exclude=True, frozen=True)
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None

    def __init__(self, guarded: Any, constraints: Any = None, **fields: Any) -> None:
        # LangChain's cache key does not include the constraint of a call.
        if fields.get("cache"):
            raise UsageError("a cache could return texts of other constraints; leave cache= out")
        known = type(self).model_fields
        for name in fields:
            if name not in known:  # LangChain would ignore it, and a generation setting would have no effect
                raise UsageError(f"{name} is not a parameter{nearest(name, known)}; options of calls go into options=")
        guarded = as_guarded(guarded, constraints)
        if guarded.tokenizer is not None:  # LangChain would count the tokens of GPT-2
            fields.setdefault("custom_get_token_ids", partial(token_ids, guarded.tokenizer))
        super().__init__(guarded=guarded, **{**fields, "cache": False})

    @property
    def _llm_type(self) -> str:
        return "guardwrap"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        options = {**self._settings(), **self.options}
        return {"model": self._model_name, "constraint": self.guarded.constraint.digest, **options}

    @property
    def _model_name(self) -> str:
        # LangChain's callbacks do not count the usage of a model without a name, and a path says where it is.
        return str(self.guarded.session.model_name)

    def _settings(self) -> dict[str, Any]:
        """Return the options that LangChain's standard parameters stand for."""
        settings: dict[str, Any] = {}
        if self.temperature is not None:
            sampled = {"do_sample": True, "temperature": self.temperature}
            settings |= sampled if self.temperature > 0 else {"do_sample": False}
        if self.max_tokens is not None:
            settings["max_new_tokens"] = self.max_tokens
        return settings

    def _stops(self, stop: Any) -> Any:
        stop = self.stop if stop is None else stop
        return [stop] if isinstance(stop, str) else stop

    def _drawn(self, prompts: Any, stop: Any, options: Mapping[str, Any]) -> list[Outcome]:
        options = {**self._settings(), **self.options, **options}
        for name in ("strict", "ls_structured_output_format"):  # every call is valid; the other is for traces
            options.pop(name, None)
        schema = options.pop("response_schema", None)
        schema = _schema_of(options.pop("response_format", None)) if schema is None else schema
        return run_prompts(self.guarded, prompts, options, stop=self._stops(stop), schema=schema)

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **kwargs: Any) -> Runnable[Any, Any]:
        """Return a runnable whose texts satisfy a schema in addition to the constraint, and which returns their values.

        Parameters
        ----------
        schema
            A pydantic model, another type that pydantic supports, or a JSON Schema. It is not added to the prompt:
            describe the format there, or pass ``proposal=Masked()``.
        include_raw
            Whether to return ``{"raw": message, "parsed": value, "parsing_error": None}``.
        **kwargs
            ``method="json_schema"`` is the default, and ``"json_mode"`` means the same. ``GuardedChatModel`` also
            supports ``"function_calling"``: the value is the arguments of a call, and the chat template shows the
            schema to the model. ``strict`` has no effect: the schema always holds.

        Raises
        ------
        UsageError
            If there are other arguments.
        ConstraintError
            If the schema is invalid.
        """
        method = kwargs.pop("method", None) or "json_schema"
        if kwargs.pop("strict", None) not in (None, True, False) or kwargs:
            named = ", ".join(kwargs) or "strict"
            raise UsageError(f"{named}: with_structured_output supports only method= and strict=True, False or None")
        if method not in _METHODS:
            raise UsageError(f"method={method!r} is not one of {', '.join(_METHODS)}{nearest(method, _METHODS)}")
        called = method == "function_calling"
        model, value_of = self._calling(schema) if called else self._writing(schema, method)
        parse = RunnableLambda(value_of)
        if not include_raw:
            return model | parse
        return {"raw": model} | RunnablePassthrough.assign(
            parsed=lambda reply: parse.invoke(reply["raw"]), parsing_error=lambda _: None
        )

    def _writing(self, schema: Any, method: str) -> tuple[Any, Callable[[Any], Any]]:
        """Return the model whose texts satisfy a schema, and the function from a reply to its value."""
        constraint = schema_constraint(schema)
        traced: dict[str, Any] = {}
        if isinstance(self, BaseChatModel) and isinstance(schema, type | dict):
            traced["ls_structured_output_format"] = {"kwargs": {"method": method}, "schema": schema}
        model: Any = self.bind(response_schema=constraint, **traced)  # type: ignore[attr-defined]
        return model, lambda reply: constraint.parse((reply if isinstance(reply, str) else reply.text).strip())

    def _calling(self, schema: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Return the model that calls a tool with a schema, and the function from a reply to its value."""
        raise UsageError("method='function_calling' requires a GuardedChatModel; leave it out")


_METHODS = ("json_schema", "json_mode", "function_calling")


def _schema_of(response_format: Any) -> JSONSchema | None:
    """Return the constraint for a ``response_format`` of OpenAI's API, which LangChain's agents pass."""
    if response_format is None:
        return None
    described = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
    if not isinstance(described, Mapping) or "schema" not in described:
        raise UsageError("response_format: give {'type': 'json_schema', 'json_schema': {'schema': ...}}")
    return schema_constraint(described["schema"])


class GuardedLLM(_Guarded, BaseLLM):
    """LangChain LLM that returns a text, without the prompt, that satisfies the constraint.

    ``batch`` generates for all prompts in one call of the wrapper. ``stream`` yields a text once it is accepted. If the
    budget is spent first, calls raise ``BudgetExhausted``. The report is in ``llm_output["guardwrap"]`` and in each
    ``generation_info["guardwrap"]``.

    Parameters
    ----------
    guarded
        A GuardedGenerator, a pipeline, a Hub id, a path or ``"local"``.
    constraints
        The constraints. Required unless ``guarded`` is a GuardedGenerator.
    options
        Default options of calls: those of the pipeline and of guardwrap, e.g. ``{"max_new_tokens": 40}``. ``bind`` and
        calls override them. With ``stop=``, a text ends before the first stop
        string, and is checked without it.
    temperature, max_tokens, stop
        LangChain's standard parameters, which ``options`` and calls override. A temperature of 0 turns sampling off.

    Raises
    ------
    UsageError
        If neither a GuardedGenerator nor constraints are given, or a parameter is unknown.
    """

    def _generate(self, prompts: list[str], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> LLMResult:
        outcomes = self._drawn(prompts, stop, kwargs)
        for outcome in outcomes:
            complete_outcome(self.guarded, outcome)
        reports = [outcome.report.to_dict() for outcome in outcomes]
        generations = [
            [Generation(text=text, generation_info={"guardwrap": report}) for text in outcome.texts]
            for outcome, report in zip(outcomes, reports, strict=True)
        ]
        return LLMResult(generations=generations, llm_output={"guardwrap": reports})


class GuardedChatModel(_Guarded, BaseChatModel):
    """LangChain chat model that replies to messages with a message that satisfies the constraint.

    It has the parameters of GuardedLLM. The report is in ``response_metadata["guardwrap"]``, and reasoning in
    ``additional_kwargs["reasoning_content"]``. ``usage_metadata`` counts the tokens of the prompt and of the message;
    those of rejected attempts are in the report. The tokenizer's chat template is applied to the messages.

    Parameters
    ----------
    streaming
        Whether ``invoke`` reports the message to callbacks as a chunk.
    """

    streaming: bool = False
    _ready: Outcome | None = PrivateAttr(default=None)

    # For type checkers, which would take it from the fields of this class.
    def __init__(self, guarded: Any, constraints: Any = None, **fields: Any) -> None:
        super().__init__(guarded, constraints, **fields)

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, AIMessage]:
        """Return a runnable whose messages only have valid calls of these tools.

        Parameters
        ----------
        tools
            LangChain tools, functions, pydantic models, or mappings in OpenAI's format.
        tool_choice
            ``"auto"`` (default), ``"any"`` or ``"required"``, ``"none"``, or the name of one tool.
        parallel_tool_calls
            Whether a message may have several calls; True by default.
        **kwargs
            Options of the calls. ``strict`` has no effect: every call satisfies its tool's schema.
        """
        options = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls, **kwargs}
        options = {name: value for name, value in options.items() if value is not None}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **options)

    def _calling(self, schema: Any) -> tuple[Any, Callable[[Any], Any]]:
        try:
            tool = convert_to_openai_tool(schema)
        except ValueError:
            raise UsageError("method='function_calling' names a tool by the schema's title; add a title") from None
        typed = isinstance(schema, type) and issubclass(schema, BaseModel)
        constraint = schema_constraint(schema if typed else tool["function"]["parameters"])
        traced = {"kwargs": {"method": "function_calling"}, "schema": schema}
        model = self.bind_tools(
            [tool],
            tool_choice=tool["function"]["name"],
            parallel_tool_calls=False,
            ls_structured_output_format=traced,
        )
        return model, lambda reply: constraint.parse(json.dumps(reply.tool_calls[0]["args"]))

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        ready = self._ready or self._drawn([_chat(messages)], stop, kwargs)[0]
        outcome = complete_outcome(self.guarded, ready)
        metadata = {"guardwrap": outcome.report.to_dict(), "model_name": self._model_name}
        messages, counts = reply_messages(outcome, self._stops(stop)), token_counts(outcome)
        replies = [_reply(message, metadata, count) for message, count in zip(messages, counts, strict=True)]
        return ChatResult(generations=[ChatGeneration(message=reply) for reply in replies], llm_output=metadata)

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        reply: Any = self._generate(messages, stop, **kwargs).generations[0].message
        calls = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=place)
            for place, call in enumerate(reply.tool_calls)
        ]
        message = AIMessageChunk(
            content=reply.content,
            additional_kwargs=reply.additional_kwargs,
            response_metadata=reply.response_metadata,
            usage_metadata=reply.usage_metadata,
            tool_call_chunks=calls,
            chunk_position="last",
        )
        chunk = ChatGenerationChunk(message=message)
        if run_manager is not None:
            run_manager.on_llm_new_token(reply.text, chunk=chunk)
        yield chunk

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> LangSmithParams:
        known = super()._get_ls_params(stop=self._stops(stop), **kwargs)
        return LangSmithParams(**{"ls_model_name": self._model_name, **known, "ls_provider": "guardwrap"})

    def batch(
        self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, stop: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Reply to several chats with one call of the wrapper. Callbacks see a separate call for each chat."""
        inputs = list(inputs)
        try:
            chats = [_chat(self._convert_input(each).to_messages()) for each in inputs]
            outcomes = self._drawn(chats, stop, kwargs) if chats else []
        except GuardwrapError as error:
            if return_exceptions:
                return [error for _ in inputs]
            raise
        replies: list[Any] = []
        for each, settings, outcome in zip(inputs, get_config_list(config, len(inputs)), outcomes, strict=True):
            ready = self.model_copy()
            ready._ready = outcome
            try:
                replies.append(ready.invoke(each, settings, stop=stop, **kwargs))
            except GuardwrapError as error:
                if not return_exceptions:
                    raise
                replies.append(error)
        return replies

    async def abatch(self, inputs: Any, config: Any = None, **kwargs: Any) -> list[Any]:
        """Call ``batch`` in a thread."""
        replies: list[Any] = await run_in_executor(None, self.batch, inputs, config, **kwargs)
        return replies


def _reply(message: Mapping[str, Any], metadata: dict[str, Any], counts: Mapping[str, int] | None) -> AIMessage:
    """Return LangChain's form of a message."""
    thought = message.get("reasoning_content")
    usage = None
    if counts is not None:
        usage = UsageMetadata(
            input_tokens=counts["prompt_tokens"],
            output_tokens=counts["completion_tokens"],
            total_tokens=counts["total_tokens"],
        )
    return AIMessage(
        content=message["content"] or "",
        tool_calls=[
            tool_call(name=call.name, args=dict(call.arguments), id=call.ident) for call in called_tools(message)
        ],
        additional_kwargs={"reasoning_content": thought} if thought else {},
        response_metadata=metadata,
        usage_metadata=usage,
    )


def _chat(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    return [_turn(message) for message in messages]


_OF_ASSISTANT = ("text", "tool_call", "tool_call_chunk", "tool_use", "invalid_tool_call", "reasoning", "thinking")
"""Types of blocks that an assistant's message may consist of; calls are in its ``tool_calls`` as well."""


def _turn(message: BaseMessage) -> dict[str, Any]:
    """Return a message as chat templates read it."""
    if isinstance(message, AIMessage):
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, dict) and block.get("type") not in _OF_ASSISTANT:
                content_of(block)
        calls = [CalledTool(call["id"], call["name"], call["args"]) for call in message.tool_calls]
        thought = message.additional_kwargs.get("reasoning_content") or None
        return chat_turn("assistant", message.text, calls=calls, reasoning=thought, name=message.name)
    converted: Any = convert_to_openai_messages(message)
    content = content_of(converted["content"])
    return chat_turn(converted["role"], content, name=converted.get("name"), tool_call_id=converted.get("tool_call_id"))
