"""An ``LLM`` of vLLM in this process, which answers the requests that a server of it would."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakValueDictionary
from zlib import crc32

from guardwrap.engine.endpoint.request_faults import printable_line
from guardwrap.engine.endpoint.server import Endpoint, Line, with_arguments
from guardwrap.errors import ContextExceeded, EndpointError, GuardwrapError, UsageError

_SEEDS = "the same seed may give other texts in other batches (if not, set VLLM_BATCH_INVARIANT=1 before vLLM starts)"
_NAMED = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "stop", "seed")
_EXTRA = ("top_k", "min_p", "repetition_penalty", "prompt_logprobs")


class EngineEndpoint(Endpoint):
    """An ``LLM`` of vLLM in this process. Only guardwrap may use it while a call runs.

    Parameters
    ----------
    llm
        The ``LLM``.
    """

    parses: ClassVar[bool] = False

    def __init__(self, llm: Any) -> None:
        model = str(llm.llm_engine.model_config.model)
        # Texts wait for a place in the engine as long as others need, so there is no timeout; and nothing to retry.
        super().__init__("http://vllm", model=model, max_retries=0, timeout=_LONG)
        self.base_url = "vLLM"
        self.llm = llm
        self.parallel: int = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs  # type: ignore[misc]
        self.repeats_seeds = os.environ.get("VLLM_BATCH_INVARIANT") == "1"

    @property
    def described(self) -> str:
        """A description of the model, for messages."""
        return f"the model {self.model!r} of vLLM in this process"

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether seeds repeat texts, for reports."""
        return () if self.repeats_seeds else (_SEEDS,)

    def connected(self) -> Line:
        """Return what steps the engine."""
        return EngineLine(self.llm, self.model)

    def adapter_name(self, given: Any) -> str:
        """Return the folder of an adapter."""
        if not isinstance(given, str | Path) or not Path(given, "adapter_config.json").is_file():
            raise UsageError(f"adapter={given!r}: give the folder of a LoRA adapter, with an adapter_config.json")
        if self.llm.llm_engine.vllm_config.lora_config is None:
            raise UsageError("vLLM loads no adapters; make it with LLM(..., enable_lora=True)")
        return str(Path(given).resolve())


_LONG = 1e9
"""Seconds that are never over."""

_ENGINES: WeakValueDictionary[int, EngineEndpoint] = WeakValueDictionary()
"""Endpoints by the ``id`` of their ``LLM``, which they keep alive: an engine has one thread that steps it."""

_ENGINES_LOCK = threading.Lock()


def endpoint_of(generator: Any) -> Endpoint | None:
    """Return an endpoint, or an ``LLM`` of vLLM as one; None for anything else."""
    if isinstance(generator, Endpoint):
        return generator
    if ("vllm", "LLM") not in {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(generator).__mro__}:
        return None
    with _ENGINES_LOCK:  # threads that wrap one LLM must not get an endpoint each
        endpoint = _ENGINES[id(generator)] = _ENGINES.get(id(generator)) or EngineEndpoint(generator)
    return endpoint


class EngineLine(Line):
    """Steps an engine as long as it has requests, in the thread in which these are added and aborted."""

    def __init__(self, llm: Any, model: str) -> None:
        self._engine = llm.llm_engine
        self._context: int = llm.llm_engine.model_config.max_model_len
        self._model = model
        self._tokenizer = llm.get_tokenizer()
        self._outputs: dict[str, asyncio.Queue[Any]] = {}  # of each running request
        self._numbers = itertools.count(1)
        self._steps: asyncio.Task[None] | None = None
        super().__init__()

    async def send(self, route: str, fields: Mapping[str, Any], extra: Mapping[str, Any], traced: Any) -> Any:
        """Pass a request to the engine."""
        chunks = self._chunks(fields, extra)
        if fields.get("stream"):
            return aclosing(chunks)
        return [chunk async for chunk in chunks][-1]

    async def models(self) -> list[Any]:
        """Return the name of the model."""
        return [self._model]

    def require_context(self, prompt: int, max_tokens: int, *, scored: bool) -> None:
        """See ``Line``. The engine itself would end the text early without an error."""
        room = self._context - prompt - scored  # a text is scored as a prompt, after which the engine draws a token
        if room < 1:
            raise ContextExceeded(
                f"the prompt has {prompt} tokens and the model's context {self._context}; shorten the prompt"
            )
        if max_tokens > room:
            weights = " and a token for weights" if scored else ""
            raise ContextExceeded(
                f"the model has a context of {self._context} positions, and {prompt} tokens with "
                f"max_new_tokens={max_tokens}{weights} need more; pass max_new_tokens={room} or less, "
                "shorten the prompt, or make the LLM with a larger max_model_len"
            )

    async def _chunks(self, fields: Mapping[str, Any], extra: Mapping[str, Any]) -> AsyncGenerator[Any]:
        """Draw a text, and yield its pieces; abort it if nobody wants more of them."""
        name, tokens = f"guardwrap-{next(self._numbers)}", 0
        outputs = self._outputs[name] = asyncio.Queue()
        try:
            try:
                self._add(name, fields, extra)
            except GuardwrapError:
                raise
            except Exception as error:  # before a text is drawn, so that the message cannot quote one
                raise EndpointError(f"vLLM rejects the request: {printable_line(str(error), 300)}") from None
            if self._steps is None or self._steps.done():
                self._steps = asyncio.ensure_future(self._step())
            while True:
                output = await outputs.get()
                if isinstance(output, Exception):
                    raise EndpointError(f"vLLM failed ({type(output).__name__}); see its log") from None
                (drawn,) = output.outputs
                tokens += len(drawn.token_ids)
                yield _chunk(output, drawn, tokens)
                if output.finished:
                    return
        finally:
            if self._outputs.pop(name, None) is not None:
                with suppress(Exception):  # an engine that has failed may be dead
                    self._engine.abort_request([name])

    def _add(self, name: str, fields: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        values = {key: fields[key] for key in _NAMED if key in fields}
        values |= {key: extra[key] for key in _EXTRA if key in extra}
        values["logprobs"] = 0 if "logprobs" in fields else None
        if "structured_outputs" in extra:
            values["structured_outputs"] = StructuredOutputsParams(**extra["structured_outputs"])
        settings = SamplingParams(**values, output_kind=RequestOutputKind.DELTA)
        adapter = None
        if fields["model"] != self._model:
            changed = max(file.stat().st_mtime_ns for file in Path(fields["model"]).iterdir())
            label = f"{fields['model']} {changed}"  # vLLM caches adapters by their number
            adapter = LoRARequest(label, crc32(label.encode()) or 1, fields["model"])
        ids = self._prompt_ids(fields, extra)
        self.require_context(len(ids), fields["max_tokens"], scored="return_token_ids" in extra)
        self._engine.add_request(name, {"prompt_token_ids": ids}, settings, lora_request=adapter)

    def _prompt_ids(self, fields: Mapping[str, Any], extra: Mapping[str, Any]) -> list[int]:
        """Return the tokens of a request's prompt, as vLLM's server has them."""
        prompt: Any = fields.get("prompt")
        if prompt is None:
            text = self._tokenizer.apply_chat_template(
                [_template_turn(turn) for turn in fields["messages"]],
                add_generation_prompt=True,
                tokenize=False,
                **extra.get("chat_template_kwargs", {}),
            )
            return list(self._tokenizer.encode(text, add_special_tokens=False))  # the template has written them
        return list(self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)

    async def _step(self) -> None:
        while self._engine.has_unfinished_requests():
            try:
                outputs = self._engine.step()
            except Exception as error:
                for waiting in self._outputs.values():
                    waiting.put_nowait(error)
                return
            for output in outputs:
                if (wanted := self._outputs.get(output.request_id)) is not None:
                    wanted.put_nowait(output)
                    if output.finished:
                        del self._outputs[output.request_id]
            await asyncio.sleep(0)  # requests are added and aborted now


def _template_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates read it: with arguments of calls as objects, and one text for all parts."""

    def read(arguments: Any) -> Any:
        with suppress(ValueError):
            return json.loads(arguments) if isinstance(arguments, str) else arguments
        return arguments

    content = turn.get("content")
    if isinstance(content, list):
        texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError("vLLM in this process takes only text; start `vllm serve` and wrap an Endpoint for images")
        turn = {**turn, "content": "\n".join(texts)}
    return with_arguments(turn, read)


def _chunk(output: Any, drawn: Any, tokens: int) -> Any:
    """Return an output of the engine with the attributes of OpenAI's chunks and of vLLM's additions to them."""
    logprobs = None
    if drawn.logprobs is not None:
        steps = zip(drawn.token_ids, drawn.logprobs, strict=True)
        logprobs = SimpleNamespace(token_logprobs=[step[token].logprob for token, step in steps])
    prompt_logprobs = None
    if output.prompt_logprobs is not None:
        prompt_logprobs = [
            step and {str(token): {"logprob": its.logprob} for token, its in step.items()}
            for step in output.prompt_logprobs
        ]
    choice = SimpleNamespace(
        text=drawn.text,
        delta=SimpleNamespace(content=drawn.text),
        token_ids=list(drawn.token_ids),
        logprobs=logprobs,
        finish_reason=drawn.finish_reason,
        prompt_token_ids=output.prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
    )
    return SimpleNamespace(choices=[choice], usage=SimpleNamespace(completion_tokens=tokens))
