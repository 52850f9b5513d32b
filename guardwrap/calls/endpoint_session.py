"""Sessions around an endpoint: what ``local_session`` is for a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from guardwrap.calls.base_session import BATCH_SIZE, BaseSession, unseen_tools
from guardwrap.calls.source import (
    EndpointSource,
    Proposal,
    endpoint_adapter_of,
    endpoint_proposal_of,
    part_judged,
    require_possible,
)
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.engine.endpoint.endpoint_law import masking, read_endpoint_settings
from guardwrap.engine.endpoint.endpoint_scores import EndpointWeigher
from guardwrap.engine.endpoint.server import Endpoint, line_to
from guardwrap.engine.scheduling.request import Spec
from guardwrap.errors import UsageError
from guardwrap.models.endpoint_calls import EndpointCall
from guardwrap.models.parsed_message import parsed_note

_SEEDS = (
    "the same seed may give other texts: the server does not promise to repeat them (if it does, pass "
    "Endpoint(repeats_seeds=True))"
)
_DEFAULTS = "top_k, min_p and repetition_penalty are the server's defaults, because of Endpoint(extra=False)"


class EndpointSession(BaseSession):
    """An endpoint, a constraint, and the defaults of calls."""

    call_class: type[EndpointCall] = EndpointCall
    takes_chats = True
    tokenizer = None
    provider = "openai"

    def __init__(self, generator: Endpoint, constraints: Any, options: Mapping[str, Any] | None = None) -> None:
        options = options or {}
        super().__init__(constraints, options)
        if options.get("tokenizer") is not None:
            raise UsageError("an endpoint uses the server's tokenizer; leave tokenizer= out")
        if options.get("deterministic"):
            raise UsageError("how an endpoint's server rounds is the server's choice; leave deterministic= out")
        self.model = generator
        self.model_name: str = generator.model
        self._complete(options, BATCH_SIZE)
        if self.proposal is not None and self.proposal.masked is not None:
            masking(self.spec.constraint)
        line_to(generator)  # fail now if the client library is missing, before prompts are consumed

    def _proposal_of(self, given: Any) -> Proposal | None:
        return endpoint_proposal_of(given)

    def _adapter_of(self, given: Any, allow_mismatch: bool = False) -> str:
        return endpoint_adapter_of(given)

    def _call(self, rest: dict[str, Any], proposal: Proposal | None) -> EndpointCall:
        full_text = rest.pop("return_full_text", None)
        if not (full_text is None or isinstance(full_text, bool)):
            raise UsageError(f"return_full_text={full_text!r}: give True or False")
        drawn = (proposal and proposal.adapter) or self.model.model
        rewrite = None if proposal is None or proposal.prompt is None else proposal.prompt.apply
        settings = read_endpoint_settings(self.model, rest)
        return EndpointCall(settings, self.model.model, drawn, full_text is not False, rewrite)

    def _source(
        self,
        own: Mapping[str, Any],
        spec: Spec,
        each: Iterable[Spec] | None,
        proposal: Proposal | None,
        call: EndpointCall,
    ) -> EndpointSource:
        settings = call.settings
        parses = bool(own.get("parse_messages") or settings.chat) or part_judged(spec, each) is not None
        call = replace(call, parses=parses)
        require_possible(spec, proposal, self.model, settings)
        notes = [f"a is {self.model.described} under {settings.words}"]
        notes += [] if self.model.extra else [_DEFAULTS]
        notes += [] if self.model.repeats_seeds else [_SEEDS]
        notes += unseen_tools(spec.constraint, settings.chat)
        notes += [parsed_note(spec.constraint, "the server")] if parses else []
        return EndpointSource(
            call=call,
            model=self.model,
            reader=PrefixReader(spec.constraint).after(call.context()),
            proposal=proposal,
            weigh=None if proposal is None else EndpointWeigher(self.model, self._size(own)),
            notes=tuple(notes),
        )
