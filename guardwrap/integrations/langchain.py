"""LangChain: a language model and a chat model whose every text satisfies the constraints.

Requires ``langchain-core``: ``pip install 'guardwrap[langchain]'``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult, Generation, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.config import get_config_list, run_in_executor
from pydantic import BaseModel, Field, PrivateAttr

from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.integrations.guarded_call import as_guarded, complete_outcome, content_of, run_prompts, schema_constraint
from guardwrap.outcomes import Outcome

__all__ = ["GuardedChatModel", "GuardedLLM"]


class _Guarded(BaseModel):
    """Base class of both models."""

    guarded: Any = Field(exclude=True)
    options: dict[str, Any] = Field(default_factory=dict)
    cache: Any = Field(default=False, exclude=True, frozen=True)

    def __init__(self, guarded: Any, constraints: Any = None, **fields: Any) -> None:
        # LangChain's cache key does not include the constraint of a call.
        if fields.get("cache"):
            raise UsageError("a cache could return texts of other constraints; leave cache= out")
        super().__init__(guarded=as_guarded(guarded, constraints), **{**fields, "cache": False})

    @property
    def _llm_type(self) -> str:
        return "guardwrap"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model": self.guarded.model.name_or_path, "constraint": self.guarded.constraint.digest, **self.options}

    def _drawn(self, prompts: Any, stop: Any, options: Mapping[str, Any]) -> list[Outcome]:
        options = {**self.options, **options}
        return run_prompts(self.guarded, prompts, options, stop=stop, schema=options.pop("response_schema", None))

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
            Only ``method="json_schema"`` and ``strict=True`` are supported, which are the default behavior.

        Raises
        ------
        UsageError
            If there are other arguments.
        ConstraintError
            If the schema is invalid.
        """
        if any((name, value) not in (("method", "json_schema"), ("strict", True)) for name, value in kwargs.items()):
            raise UsageError(
                f"{', '.join(kwargs)}: with_structured_output supports only method='json_schema' and strict=True"
            )
        constraint = schema_constraint(schema)
        model: Any = self.bind(response_schema=constraint)  # type: ignore[attr-defined]
        parse = RunnableLambda(lambda reply: constraint.parse(reply if isinstance(reply, str) else reply.text))
        if not include_raw:
            return model | parse
        return {"raw": model} | RunnablePassthrough.assign(
            parsed=lambda reply: parse.invoke(reply["raw"]), parsing_error=lambda _: None
        )


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

    Raises
    ------
    UsageError
        If neither a GuardedGenerator nor constraints are given.
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
    """LangChain chat model that replies to messages with a text that satisfies the constraint.

    It has the parameters of GuardedLLM. The report is in ``response_metadata["guardwrap"]``. The tokenizer's chat
    template is applied to the messages.
    """

    _ready: Outcome | None = PrivateAttr(default=None)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        ready = self._ready or self._drawn([_chat(messages)], stop, kwargs)[0]
        outcome = complete_outcome(self.guarded, ready)
        report = outcome.report.to_dict()
        metadata = {"guardwrap": report, "model_name": self.guarded.model.name_or_path}
        replies = [AIMessage(content=text, response_metadata=metadata) for text in outcome.texts]
        return ChatResult(generations=[ChatGeneration(message=reply) for reply in replies], llm_output=metadata)

    def batch(
        self, inputs: Any, config: Any = None, *, return_exceptions: bool = False, stop: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Reply to several chats with one call of the wrapper. Callbacks see a separate call for each chat."""
        inputs = list(inputs)
        chats = [_chat(self._convert_input(each).to_messages()) for each in inputs]
        try:
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


def _chat(messages: list[BaseMessage]) -> list[dict[str, str]]:
    converted: Any = convert_to_openai_messages(messages)
    return [{**message, "content": content_of(message["content"])} for message in converted]
