"""Sessions around an endpoint: they make a ``Job`` from the options of a call, as ``local_session`` for a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from guardwrap.backends.endpoint.endpoint_law import masking, read_endpoint_settings
from guardwrap.backends.endpoint.endpoint_scores import EndpointWeigher
from guardwrap.backends.endpoint.server import Endpoint, line_to
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import UsageError, require_whole
from guardwrap.messages.parsed_message import parsed_note
from guardwrap.pipelines.endpoint_calls import EndpointCall
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals
from guardwrap.session.base_session import BATCH_SIZE, BaseSession, SessionConfig, unseen_tools
from guardwrap.session.fallback import or_from_file, require_accepted
from guardwrap.session.job import Job
from guardwrap.session.repair import read_on_exhausted
from guardwrap.session.source import EndpointProposal, EndpointSource, part_judged, require_possible

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

    def __init__(
        self,
        generator: Endpoint,
        constraints: Any,
        config: SessionConfig | None = None,
    ) -> None:
        config = config or SessionConfig()
        super().__init__(constraints, config)
        if config.tokenizer is not None:
            raise UsageError("an endpoint uses the server's tokenizer; leave tokenizer= out")
        if config.deterministic:
            raise UsageError("how an endpoint's server rounds is the server's choice; leave deterministic= out")
        self.model = generator
        self.model_name: str = generator.model
        on_exhausted = or_from_file(read_on_exhausted(self.on_exhausted)[0], self.file.fallback)
        require_accepted(on_exhausted, self.constraint, None)
        size = BATCH_SIZE if config.batch_size is None else config.batch_size
        self.batch_size: int = require_whole("batch_size", size, 1)
        from_config = (config.proposal, config.adapter)
        proposal, adapter = merge_proposals(from_config, (self.file.proposal, self.file.adapter))
        self.proposal: EndpointProposal | None = _proposal(proposal)
        self.adapter: Any = _adapter(adapter)
        if self.proposal is not None and self.proposal.masked:
            masking(self.constraint)
        line_to(generator)  # fail now if the client library is missing, before prompts are consumed

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from another of the server's adapters from now on; see ``GuardedGenerator.load_adapter``."""
        if self.proposal is not None and self.proposal.prompt is not None:
            raise UsageError("the wrapper has a proposal, so it cannot use an adapter; make another wrapper for it")
        self.adapter = _adapter(given)

    def weighs(self, prompts: Any, options: Mapping[str, Any]) -> bool:
        """Whether a call's attempts are weighed: only if the sampler uses weights, as they cost further requests."""
        own, _ = self._read({**options, "seed": 0})
        return self._spec(own).sampler.weighs

    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether a call has a proposal or an adapter."""
        return self._proposal_in(self._read(options)[0]) is not None

    def job(self, options: Mapping[str, Any]) -> Job:
        """Read the options of a call; see ``BaseSession.job``."""
        own, rest = self._read(options)
        full_text = rest.pop("return_full_text", None)
        if not (full_text is None or isinstance(full_text, bool)):
            raise UsageError(f"return_full_text={full_text!r}: give True or False")
        settings = read_endpoint_settings(self.model, rest)
        proposal = self._proposal_in(own)
        spec = self._spec(own)
        each = self._each(own, spec)
        parses = bool(own.get("parse_messages") or settings.chat) or part_judged(spec, each) is not None
        require_possible(spec, proposal, self.model, settings)
        notes = [f"a is {self.model.described} under {settings.words}"]
        notes += [] if self.model.extra else [_DEFAULTS]
        notes += [] if self.model.repeats_seeds else [_SEEDS]
        drawn = (proposal and proposal.adapter) or self.model.model
        rewrite = None if proposal is None or proposal.prompt is None else proposal.prompt.apply
        call = EndpointCall(settings, self.model.model, drawn, full_text is not False, rewrite, parses)
        notes += unseen_tools(spec.constraint, settings.chat)
        notes += [parsed_note(spec.constraint, "the server")] if parses else []
        source = EndpointSource(
            call=call,
            model=self.model,
            rule=spec.constraint,
            reader=PrefixReader(spec.constraint).after(call.context()),
            proposal=proposal,
            weigh=None if proposal is None else EndpointWeigher(self.model, self._size(own)),
            notes=tuple(notes),
        )
        return self._complete(own, spec, each, source)

    def _proposal_in(self, own: Mapping[str, Any]) -> EndpointProposal | None:
        """Return the proposal of a call, with its adapter; None for the model itself."""
        option, adapter_option = own.get("proposal"), own.get("adapter")
        proposal = self.proposal if option is None else _proposal(option)
        return _both(proposal, self.adapter if adapter_option is None else _adapter(adapter_option))


def _both(proposal: EndpointProposal | None, adapter: str | None) -> EndpointProposal | None:
    if adapter is None:
        return proposal
    if proposal is not None and proposal.prompt is not None:
        raise UsageError(
            "attempts come from a proposal or from an adapter, not both; pass adapter=False, or proposal=False"
        )
    return replace(proposal or EndpointProposal(), adapter=adapter)


def _adapter(given: Any) -> str | None:
    """Return ``adapter=`` if it names an adapter of the server; raise UsageError for a folder or another object."""
    if given is None or given is False:
        return None
    if isinstance(given, Adapter | Path) or not isinstance(given, str) or not given or given.startswith(PREFIX):
        raise UsageError(
            "with an endpoint, adapter= is the name of an adapter on the server; load the folder there (vLLM: "
            "--enable-lora --lora-modules NAME=FOLDER), and pass adapter='NAME'"
        )
    return given


def _proposal(given: Any) -> EndpointProposal | None:
    """Return the proposal; raise UsageError if a server cannot draw from it."""
    if given is None or given is False:
        return None
    if isinstance(given, Prompt):
        return EndpointProposal(given)
    if isinstance(given, Masked):
        if given.unseen != Masked().unseen:
            raise UsageError("unseen= has no effect on a server, which masks every token or none; pass Masked()")
        return replace(_proposal(given.proposal) or EndpointProposal(), masked=True)
    if isinstance(given, Twisted):
        raise UsageError(
            "Twisted() weighs next tokens, which a server does not let its clients do; wrap the model itself, or leave "
            "Twisted() out"
        )
    raise UsageError(
        "with an endpoint, proposal= is a Prompt('...') or Masked(); to draw from another model, wrap its own Endpoint"
    )
