"""Sessions around an endpoint: they make a ``Job`` from the options of a call, as ``local_session`` for a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from guardwrap.backends.endpoint.endpoint_backend import EndpointBackend
from guardwrap.backends.endpoint.endpoint_law import (
    EndpointSettings,
    read_endpoint_settings,
    require_weighable_endpoint,
)
from guardwrap.backends.endpoint.endpoint_scores import EndpointWeigher
from guardwrap.backends.endpoint.server import Endpoint, line_to
from guardwrap.backends.endpoint.structured_outputs import masking
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.kinds.text import Length
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.constraints.views import NO_MESSAGE
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import UsageError, require_whole
from guardwrap.messages.parsed_message import parsed_note
from guardwrap.outcomes import Outcome, Shape, Source
from guardwrap.pipelines.endpoint_calls import EndpointCall, TextWatch
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals
from guardwrap.scheduling.backend import Backend
from guardwrap.scheduling.request import Request
from guardwrap.session.base_session import BATCH_SIZE, BaseSession, SessionConfig, part_asked, unseen_tools
from guardwrap.session.fallback import or_from_file, require_accepted
from guardwrap.session.job import Job, RequestOptions
from guardwrap.session.repair import read_on_exhausted
from guardwrap.session.telemetry import traced_by
from guardwrap.session.twisting import Spent

_SEEDS = (
    "the same seed may give other texts: the server does not promise to repeat them (if it does, pass "
    "Endpoint(repeats_seeds=True))"
)
_DEFAULTS = "top_k, min_p and repetition_penalty are the server's defaults, because of Endpoint(extra=False)"
_WHOLE = "a server draws the texts, and may draw another one after a broken connection"


@dataclass(frozen=True)
class EndpointProposal:
    """What attempts are drawn from, if not the model under the user's prompts."""

    prompt: Prompt | None = None  # another prompt, or None
    adapter: str | None = None  # the name of an adapter on the server, or None
    masked: bool = False  # whether the server masks tokens, so that texts follow one part of the constraint

    def source(self, constraint: Constraint, prompt: Any = None) -> Source:
        """Describe the proposal. The description is the same for every prompt."""
        words = "" if self.prompt is None else str(self.prompt)
        words = words if self.adapter is None else f"the server's adapter {self.adapter!r}"
        if not self.masked:
            return Source(words)
        return Source(words, Shape.MASKED, f"by the server for {masking(constraint)[0].title}")


@dataclass(frozen=True, kw_only=True)
class EndpointJob(Job):
    """One call over an endpoint, ready to run."""

    # Judges growing texts under the call's constraint. A part that was too slow is not asked again.
    reader: PrefixReader
    source: EndpointProposal | None = None  # what attempts are drawn from; None for the model itself

    def request(self, prompt: Any, asked: RequestOptions | None = None) -> Request:
        """Make a request from a prepared prompt."""
        asked = asked or self.asked
        _require_possible(asked, self.source, self.model, self.call.settings)
        prompt = prompt.traced(traced_by(self.span))
        weighed = self.source is not None and asked.sampler.weighs
        if weighed:
            prompt = replace(prompt, law=replace(prompt.law, scored=True))
        elif self.source is not None and self.source.masked:
            prompt = replace(prompt, law=replace(prompt.law, mask=masking(asked.constraint)[1]))
        reader = self.reader
        if asked.constraint is not self.asked.constraint:
            _require_parsed(asked, self.call)
            reader = PrefixReader(asked.constraint).after(self.call.context())
        watch, weigh = TextWatch(reader), self.weigh if weighed else None
        how = {"watch": watch, "locate": watch.place, "weigh": weigh, "whole_because": _WHOLE}
        return self._request(prompt, asked, notes=self.notes, **how)

    def records(self, prompt: Any, outcome: Outcome) -> Any:
        """Render an outcome in the pipeline's format, with None for missing texts."""
        return self.call.records(prompt, outcome)

    def backend(self) -> Backend:
        """Make the backend that draws the attempts of this call."""
        return EndpointBackend(self.model, self.batch_size)


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

    @property
    def pipe(self) -> NoReturn:
        """Raise UsageError: an endpoint has no pipeline."""
        raise UsageError("an endpoint has no local pipeline, model or device; to get texts, call the wrapper")

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from another of the server's adapters from now on; see ``GuardedGenerator.load_adapter``."""
        if self.proposal is not None and self.proposal.prompt is not None:
            raise UsageError("the wrapper has a proposal, so it cannot use an adapter; make another wrapper for it")
        self.adapter = _adapter(given)

    def save_twist(self, path: str | Path) -> NoReturn:
        """Raise UsageError: nothing is twisted over an endpoint."""
        raise UsageError("Twisted() needs a model of your own, so there is no twist to save over an endpoint")

    def weighs(self, prompts: Any, options: Mapping[str, Any]) -> bool:
        """Whether a call's attempts are weighed: only if the sampler uses weights, as they cost further requests."""
        own, _ = self._read({**options, "seed": 0})
        return self._asked(own).sampler.weighs

    def tensor_job(self, ids: Any, options: Mapping[str, Any]) -> NoReturn:
        """Raise UsageError: an endpoint gives no token ids."""
        raise UsageError("generate works on token ids, and an endpoint gives only text; call the wrapper or run()")

    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether a call has a proposal or an adapter."""
        return self._proposal_in(self._read(options)[0]) is not None

    def other_ways(self, options: Mapping[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield alternatives to a call, as ``LocalSession.other_ways`` does: the model itself, without weights."""
        if self.draws_elsewhere(options):
            yield False, {**options, "proposal": False, "adapter": False}

    def twisted_way(self, options: Mapping[str, Any], strength: float | None = None) -> None:
        """Return None: a server does not let its clients weigh next tokens."""

    def learned_from(self, options: Mapping[str, Any]) -> Spent:
        """Return no cost: no twist is learned."""
        return Spent()

    def left_to_learn(self, options: Mapping[str, Any]) -> int:
        """Return 0: no twist is learned."""
        return 0

    def card_figures(self, prompts: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Return None: the cards of adapters are on the server."""

    def job(self, options: Mapping[str, Any]) -> EndpointJob:
        """Read the options of a call; see ``BaseSession.job``."""
        own, rest = self._read(options)
        full_text = rest.pop("return_full_text", None)
        if not (full_text is None or isinstance(full_text, bool)):
            raise UsageError(f"return_full_text={full_text!r}: give True or False")
        settings = read_endpoint_settings(self.model, rest)
        proposal = self._proposal_in(own)
        asked = self._asked(own)
        each = self._each(own, asked)
        parses = bool(own.get("parse_messages") or settings.chat) or part_asked(asked, each) is not None
        _require_possible(asked, proposal, self.model, settings)
        size = self._size(own)
        notes = [f"a is {self.model.described} under {settings.words}"]
        notes += [] if self.model.extra else [_DEFAULTS]
        notes += [] if self.model.repeats_seeds else [_SEEDS]
        drawn = (proposal and proposal.adapter) or self.model.model
        rewrite = None if proposal is None or proposal.prompt is None else proposal.prompt.apply
        call = EndpointCall(settings, self.model.model, drawn, full_text is not False, rewrite, parses)
        notes += unseen_tools(asked.constraint, settings.chat)
        notes += [parsed_note(asked.constraint, "the server")] if parses else []
        return EndpointJob(
            call,
            asked,
            size,
            self.model,
            notes=tuple(notes),
            proposal=None if proposal is None else proposal.source,
            weigh=None if proposal is None else EndpointWeigher(self.model, size),
            causal=True,
            each=each,
            batches=self.batches,
            threads=self.threads,
            **self._on_exhausted(own, asked),
            reader=PrefixReader(asked.constraint).after(call.context()),
            source=proposal,
        )

    def _proposal_in(self, own: Mapping[str, Any]) -> EndpointProposal | None:
        """Return the proposal of a call, with its adapter; None for the model itself."""
        option, adapter_option = own.get("proposal"), own.get("adapter")
        proposal = self.proposal if option is None else _proposal(option)
        return _both(proposal, self.adapter if adapter_option is None else _adapter(adapter_option))


def _require_parsed(asked: RequestOptions, call: EndpointCall) -> None:
    """Raise UsageError if a rule of one prompt judges a part of messages, which the call does not read."""
    part = part_asked(asked)
    if part is not None and not call.parses:
        raise UsageError(NO_MESSAGE.format(part, "pass parse_messages=True to the call"))


def endpoint_proposal_of(proposal: Any, adapter: Any) -> EndpointProposal | None:
    """Return a proposal for an endpoint, from the values of ``proposal=`` and ``adapter=``."""
    return _both(_proposal(proposal), _adapter(adapter))


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


def _require_possible(
    asked: RequestOptions, source: EndpointProposal | None, endpoint: Endpoint, settings: EndpointSettings
) -> None:
    """Raise UsageError for what a server cannot do, before any request is sent."""
    if source is not None and source.masked:
        masking(asked.constraint)
    if source is not None and asked.sampler.weighs:
        if source.masked:
            raise UsageError(
                f"the sampler {asked.sampler.name!r} computes weights, and a server does not report how much "
                "probability its mask removed; pass sampler='rejection', or leave Masked() out"
            )
        require_weighable_endpoint(endpoint, settings)
    for part in walk(asked.constraint):
        if isinstance(part, Length) and part.unit == "tokens":
            raise UsageError(
                f"{part.title} counts tokens, and an endpoint gives only text; use unit='characters' or 'words', or "
                "max_new_tokens="
            )
