"""The model of a server, which reads requests and serves them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from guardwrap.calls.sessions import LocalSession
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.models.early_abort import StablePrefix
from guardwrap.models.prepare import require_context, trained_length
from guardwrap.models.prompt_forms import what_is_wrong
from guardwrap.models.task_calls import VisionCall
from guardwrap.models.templates import family_of, writes_parts
from guardwrap.proposals import Masked, Prompt, Twisted
from guardwrap.serve.error_responses import ErrorResponse, bad
from guardwrap.serve.incoming_requests import parsed
from guardwrap.serve.parsed_request import ParsedRequest, has_token_ids, texts_of_ids
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.support.transformers_internals import token_ids, tokenizer_lock

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

REST, MOST_REST = 4, 2.0
"""After parsing a long request, its thread sleeps ``REST`` times the parsing time, at most ``MOST_REST`` seconds."""

LONG = 50_000
"""Requests with more bytes than this are parsed in a separate thread, so that short ones do not wait for them."""

Parse = Callable[[Mapping[str, Any], RequestPolicy], ParsedRequest]
"""Validates the JSON object of a request."""

_OF_THE_PROMPT = ("tools", "tokenizer_encode_kwargs", "add_special_tokens")
"""Options of a request that change the tokens of its prompts."""


def _parses(tokenizer: Any) -> Literal["never", "tools", "always"]:
    """Return when answers to chats are parsed into messages."""
    if writes_parts(tokenizer):
        return "always"
    return "never" if family_of(tokenizer) is None else "tools"


def _patiently(work: Callable[[], Any]) -> Any:
    """Return the result of parsing a long request, after a pause.

    Parsing holds the GIL, so the pause leaves the batch time during a flood of long requests.
    """
    began = time.monotonic()
    try:
        return work()
    finally:
        time.sleep(min(REST * (time.monotonic() - began), MOST_REST))


class ServedModel:
    """A loaded model with the policy for its requests."""

    def __init__(self, guarded: GuardedGenerator, policy: RequestPolicy) -> None:
        if not isinstance(guarded.session, LocalSession):
            raise UsageError("a server needs a local model, not an endpoint; give a Hub id, a folder or a pipeline")
        self.guarded, self.session = guarded, guarded.session
        self.policy = dataclasses.replace(
            policy,
            parses=_parses(self.session.tokenizer),
            images=issubclass(self.session.call_class, VisionCall),
            masks_json=self._masks(),
        )
        self.session.model_name = policy.models[0]  # in telemetry: clients know the model by this name
        self._adapters = self._loaded()
        # Parsing does not use the threads that the wrapper needs. A long prompt takes seconds, so long requests share
        # one thread with its own copy of the tokenizer: they delay only each other.
        self._readers = ThreadPoolExecutor(2, "guardwrap-reading")
        self._patient = ThreadPoolExecutor(1, "guardwrap-reading-long")
        self._own = copy.copy(self.session.pipe)
        self._own.tokenizer = copy.deepcopy(self.session.tokenizer)
        if self.session.call_class.causal:  # built now, so that the first masked request does not delay the others
            self._stable.vocabulary  # noqa: B018

    @property
    def _stable(self) -> StablePrefix:
        """The decoder of unfinished texts."""
        return self.session.stable_prefix(self.session.call_class.read(self.session.pipe, {}))

    def _masks(self) -> bool:
        """Return whether tokens can be masked, and the server itself names no other distribution to draw from."""
        session = self.session
        itself = session.proposal is session.adapter is None and session.spec.sampler.name == "rejection"
        return itself and session.call_class.causal and self._stable.works

    def _loaded(self) -> dict[Any, Any]:
        """Load the adapters that requests may name: requests share a batch only if they share the loaded adapter."""
        return {adapter: self.session.adapter_of(adapter) for adapter in self.policy.all_adapters}

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(token_ids(self.session.tokenizer, text))

    def options(self, parsed_request: ParsedRequest) -> dict[str, Any]:
        """Return the arguments of ``astream`` for a request, with loaded adapters."""
        adapter = parsed_request.options["adapter"]
        return {**parsed_request.options, "adapter": self._adapters.get(adapter, adapter)}

    async def fields(self, raw: bytes) -> dict[str, Any]:
        """Parse the body of a request, a long one in a thread."""
        if len(raw) <= LONG:
            return parsed(raw)
        work = partial(_patiently, partial(parsed, raw))
        fields: dict[str, Any] = await asyncio.get_running_loop().run_in_executor(self._patient, work)
        return fields

    async def read(self, fields: dict[str, Any], parse: Parse, *, long: bool) -> tuple[ParsedRequest, int]:
        """Validate a request and count its prompt tokens in a thread, which blocks neither event loop nor batch."""
        pipe, readers = (self._own, self._patient) if long else (self.session.pipe, self._readers)

        def read() -> tuple[ParsedRequest, int]:
            if by_ids := has_token_ids(fields):
                with tokenizer_lock(pipe.tokenizer):
                    fields["prompt"] = texts_of_ids(fields["prompt"], pipe.tokenizer)
            request = parse(fields, self.policy)
            plain = all(isinstance(prompt, str) for prompt in request.prompts)
            if self.session.call_class.causal and not self.session.takes_chats and not plain:
                where = "messages" if "messages" in fields else "input"
                raise bad(where, "this model has no chat template; send a prompt to /v1/completions")
            if by_ids:
                request.options["add_special_tokens"] = False  # the ids are the whole prompt
            try:
                shown = {name: request.options[name] for name in _OF_THE_PROMPT if name in request.options}
                lengths = self._lengths(request.prompts, pipe, shown)
                return self._fitting(request, lengths, pipe, shown), sum(lengths)
            except (GuardwrapError, ErrorResponse):
                raise
            except Exception as error:  # the code of a chat template may raise anything
                raise bad(request.prompt_field, what_is_wrong(request.prompts, error)) from None

        work = partial(_patiently, read) if long else read
        return await asyncio.get_running_loop().run_in_executor(readers, work)

    def _lengths(self, prompts: Sequence[Any], pipe: Any, shown: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each prompt, as the model reads it; ``shown`` holds tools and the like."""
        session = self.session
        call = session.call_class.read(pipe, shown)
        context = trained_length(session.model)
        lengths = []
        for prompt in session.call_class.read_prompts(prompts).prompts:
            lengths.append(int(call.encoded(prompt)["input_ids"].shape[1]))
            require_context(session.model, lengths[-1], context)
        return lengths

    def _fitting(
        self, request: ParsedRequest, lengths: Sequence[int], pipe: Any, shown: Mapping[str, Any]
    ) -> ParsedRequest:
        """Return the request with a ``max_new_tokens`` that fits into the context, or reject the one that it sets.

        The proposal's prompts must fit as well. Some models fail beyond their context, and with them the whole batch.
        """
        context = trained_length(self.guarded.model)
        if context is None:
            return request
        proposal = request.options["proposal"]
        proposal = proposal.proposal if isinstance(proposal, Masked | Twisted) else proposal
        proposed = [proposal.apply(prompt) for prompt in request.prompts] if isinstance(proposal, Prompt) else []
        longest, wanted = max([*lengths, *self._lengths(proposed, pipe, shown)]), request.options["max_new_tokens"]
        if longest + wanted <= context:
            return request
        if request.length_field is not None and not self.policy.limits.clamp:
            problem = f"{longest} prompt tokens and {wanted} new ones exceed the model's context of {context}; lower it"
            raise bad(request.length_field, f"{problem}, or shorten the prompt", code="context_length_exceeded")
        return dataclasses.replace(request, options={**request.options, "max_new_tokens": max(1, context - longest)})
