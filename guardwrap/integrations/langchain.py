"""LangChain: a language model and a chat model whose every text satisfies the constraints.

``pip install 'guardwrap[langchain]'`` brings ``langchain-core``, which is all that is needed.
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
    """What both have in common."""

    guarded: Any = Field(exclude=True)
    options: dict[str, Any] = Field(default_factory=dict)
    cache: Any = Field(default=False, exclude=True, frozen=True)

    def __init__(self, guarded: Any, constraints: Any = None, **fields: Any) -> None:
        # Its key knows nothing of a call's constraint, so a text of another one would come back.
        if fields.get("cache"):
            raise UsageError("a cache would return texts that were drawn under other constraints; leave cache= out")
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
        """Return a runnable whose texts satisfy a schema besides the constraint, and which gives what they say.

        Parameters
        ----------
        schema
            A pydantic model, another type that pydantic knows, or a JSON Schema. The prompt is not told of it: say
            there what is asked for, or pass ``proposal=Masked()``.
        include_raw
            Whether to return ``{"raw": message, "parsed": value, "parsing_error": None}``.
        **kwargs
            ``method="json_schema"`` and ``strict=True`` are what happens anyway; others are refused.

        Raises
        ------
        UsageError
            If an argument is none of these.
        ConstraintError
            If the schema is not well formed.
        """
        if any((name, value) not in (("method", "json_schema"), ("strict", True)) for name, value in kwargs.items()):
            raise UsageError(
                f"{', '.join(kwargs)}: with_structured_output takes method='json_schema' and strict=True only"
            )
        constraint = schema_constraint(schema)
        model: Any = self.bind(response_schema=constraint)  # type: ignore[attr-defined]
        parse = RunnableLambda(lambda reply: constraint.parse(reply if isinstance(reply, str) else reply.text))
        if not include_raw:
            return model | parse
        return {"raw": model} | RunnablePassthrough.assign(
            parsed=lambda found: parse.invoke(found["raw"]), parsing_error=lambda _: None
        )


class GuardedLLM(_Guarded, BaseLLM):
    """A LangChain LLM: a text in, a text out that satisfies the constraint, without the prompt.

    ``batch`` draws for all prompts in one call of the wrapper. ``stream`` yields a text when it has been accepted.
    ``BudgetExhausted`` is raised as it is. The report is in ``llm_output["guardwrap"]`` and in each
    ``generation_info["guardwrap"]``.

    Parameters
    ----------
    guarded
        A GuardedGenerator, or what one is made of: a pipeline, a Hub id, a path or ``"local"``.
    constraints
        Where it is made here.
    options
        Options of each call: the pipeline's and guardwrap's own, e.g. ``{"max_new_tokens": 40}``. ``bind`` and calls
        replace them. ``stop=`` becomes ``stop_strings``: a text ends with the stop string, and was judged with it.

    Raises
    ------
    UsageError
        If neither a wrapper nor constraints are given.
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
    """A LangChain chat model: messages in, a message out whose text satisfies the constraint.

    As GuardedLLM, with the report in ``response_metadata["guardwrap"]``. The tokenizer's chat template makes prompts.
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
        """Reply to several chats with one call of the wrapper; each is told to callbacks as a call of its own."""
        inputs = list(inputs)
        chats = [_chat(self._convert_input(each).to_messages()) for each in inputs]
        try:
            outcomes = self._drawn(chats, stop, kwargs) if chats else []
        except GuardwrapError as error:
            if return_exceptions:
                return [error for _ in inputs]
            raise
        replies: list[Any] = []
        for given, settings, outcome in zip(inputs, get_config_list(config, len(inputs)), outcomes, strict=True):
            ready = self.model_copy()
            ready._ready = outcome
            try:
                replies.append(ready.invoke(given, settings, stop=stop, **kwargs))
            except GuardwrapError as error:
                if not return_exceptions:
                    raise
                replies.append(error)
        return replies

    async def abatch(self, inputs: Any, config: Any = None, **kwargs: Any) -> list[Any]:
        """As ``batch``, in a thread."""
        replies: list[Any] = await run_in_executor(None, self.batch, inputs, config, **kwargs)
        return replies


def _chat(messages: list[BaseMessage]) -> list[dict[str, str]]:
    found: Any = convert_to_openai_messages(messages)
    return [{**message, "content": content_of(message["content"])} for message in found]
