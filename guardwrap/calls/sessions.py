"""Sessions around a local pipeline and around an endpoint: the wrapper, training and evaluation start here."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel
from transformers.pipelines import Pipeline

from guardwrap.calls.base_session import BATCH_SIZE, BaseSession, unseen_tools
from guardwrap.calls.job import Job
from guardwrap.calls.source import EndpointSource, LocalSource, Proposal, part_judged, require_possible
from guardwrap.calls.twisting import MASKED_INSTEAD, TwistedConstraint, Twists
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.engine.endpoint.endpoint_law import masking, read_endpoint_settings
from guardwrap.engine.endpoint.endpoint_scores import EndpointWeigher
from guardwrap.engine.endpoint.server import Endpoint, line_to
from guardwrap.engine.model_weights import is_quantised
from guardwrap.engine.refill.llama_cpp import LlamaCppModel
from guardwrap.engine.refill.mode_selection import select_rows, slower_because
from guardwrap.engine.refill.row_states import can_rewind
from guardwrap.engine.scheduling.request import Spec
from guardwrap.errors import UsageError
from guardwrap.models.calls import Call, TensorCall
from guardwrap.models.early_abort import UNSTABLE, StablePrefix
from guardwrap.models.endpoint_calls import EndpointCall
from guardwrap.models.loading import has_dropout, pipeline_of
from guardwrap.models.parsed_message import parsed_note
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.models.prompt_forms import prepare_rows
from guardwrap.models.proposal_draws import (
    QUANTISED,
    ProposedCall,
    Weigher,
    differences,
    require_same_tokens,
    with_own_target,
)
from guardwrap.models.task_calls import call_kind, call_of
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted
from guardwrap.support.transformers_internals import batch_size_of, token_ids
from guardwrap.support.yaml_nodes import short
from guardwrap.twists.automata import MOST_STATES

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded

logger = logging.getLogger("guardwrap")

TWISTS = 8
"""The most constraints whose twists are kept, with up to 100 MB each; those used last remain."""


class LocalSession(BaseSession):
    """A pipeline, a constraint, and the defaults of calls."""

    call_class: type[Call]  # the class that reads and renders the pipeline's calls
    provider = "huggingface"

    def __init__(self, generator: Any, constraints: Any, options: Mapping[str, Any] | None = None) -> None:
        options = options or {}
        super().__init__(constraints, options)
        self.pipe: Any = pipeline_of(generator, options.get("tokenizer"))
        # The folder of a local model is nobody's business but its owner's.
        name = str(self.pipe.model.name_or_path) or type(self.pipe.model).__name__
        self.model_name: str = Path(name).name if Path(name).is_absolute() else name
        self.call_class = call_kind(self.pipe)
        self.deterministic = bool(options.get("deterministic"))
        self._warned: set[str] = set()
        self._stable: dict[str, StablePrefix] = {}
        self._learned: OrderedDict[Any, tuple[TwistedConstraint, Any]] = OrderedDict()
        self._learning = Lock()
        self._complete(options, batch_size_of(self.pipe) or BATCH_SIZE)
        # Test the model now, so that the decoding mode is known early. Its errors are raised by the first call.
        itself = self.proposal is None or self.proposal.only_masks
        if self.call_class.causal and itself and not has_dropout(self.model):
            with suppress(Exception):
                select_rows(self.model, separate=self.deterministic)

    @property
    def trains(self) -> bool:  # type: ignore[override]
        """Whether an adapter can be trained for the model."""
        return self.call_class.causal and not isinstance(self.model, LlamaCppModel)

    @property
    def model(self) -> Any:
        """The wrapped model, which defines a(y)."""
        return self.pipe.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer in use."""
        return self.pipe.tokenizer

    @property
    def of_weights(self) -> tuple[str, ...]:
        """Notes for reports about weights computed with this model."""
        return (QUANTISED,) if is_quantised(self.model) else ()

    @property
    def rows(self) -> int:
        """The number of attempts that hold a row of a batch now."""
        return self.batches.rows

    @property
    def _chat_template(self) -> Any:
        """The chat template, or several by name; None without one."""
        return getattr(self.tokenizer, "chat_template", None)

    @property
    def takes_chats(self) -> bool:
        """Whether a prompt may be a list of messages."""
        return self._chat_template is not None

    def stable_prefix(self, call: Call) -> StablePrefix:
        """Return the decoder of unfinished attempts. Made and tested once per set of decoding options."""
        key = repr(sorted(call.reading.items()))
        # Twists are known by it, so callers who are here at once must get the same one.
        return self._stable.get(key) or self._stable.setdefault(key, call.stable_prefix())

    def save_twist(self, path: str | Path) -> None:
        """Write the twist of the wrapper's constraint to a file; see ``GuardedGenerator.save_twist``."""
        from guardwrap.adapters.card import fingerprint  # imports peft

        wanted = self.spec.constraint.digest
        with self._learning:
            entries = [entry for (digest, *_), entry in self._learned.items() if digest == wanted]
        learned = [entry for entry in entries if entry[0].knows_states]
        if not learned:
            raise UsageError("no twist was learned for this constraint; draw texts with proposal=Twisted() first")
        twisted, (model, *_) = learned[-1]
        twisted.write(Path(path), wanted, fingerprint(model))

    def tensor_job(self, ids: Any, options: Mapping[str, Any]) -> tuple[Job, list[PreparedPrompt], Sequence[Any]]:
        """Read a call of ``generate``; return its job, its prompts, and the tokens that each row begins with."""
        if self.call_class.media:
            raise UsageError("generate takes only token ids, and this model takes images or audio; call the wrapper")
        own, rest = self._read(options)
        if own.get("on_exhausted") not in (None, "raise"):
            raise UsageError("generate has no place for a missing text; leave on_exhausted= out, or call the wrapper")
        proposal = self._proposal_in(own)
        adapter = None if proposal is None else proposal.adapter
        if proposal is not None and adapter is None and not proposal.only_masks:
            raise UsageError("generate cannot draw from another prompt or model; call the wrapper or run()")
        prompts, begins = prepare_rows(self.pipe, ids, rest, two_parts=not self.call_class.causal)
        call = TensorCall(
            self.pipe,
            forward=rest,
            reading={"skip_special_tokens": True},
            begins=[row.tolist() for row in begins],
            with_prompt=self.call_class.causal,
        )
        job = self._job(own, proposal, call)
        if adapter is not None:
            prompts = [with_own_target(prompt) for prompt in prompts]
        # a tensor has no place for a missing text, and token ids are no chat that a turn could follow
        return replace(job, on_exhausted="raise", repair=None), prompts, begins

    def _proposal_of(self, given: Any) -> Proposal | None:
        if given is None or given is False:
            return None
        if not self.call_class.causal:
            raise UsageError("proposal= is supported only for causal language models; leave it out")
        if isinstance(given, Masked):
            return replace(self._proposal_of(given.proposal) or Proposal(), masked=given)
        if isinstance(given, Twisted):
            return replace(self._proposal_of(given.proposal) or Proposal(), twisted=given)
        if isinstance(given, Prompt):
            return Proposal(prompt=given)
        if isinstance(given, str) and "{" in given:
            raise UsageError(f"proposal={given!r} is not the name of a model; for a prompt, pass Prompt({given!r})")
        has_tokenizer = isinstance(given, str | Path | Pipeline)
        other = pipeline_of(given, None if has_tokenizer else self.tokenizer)
        if not call_kind(other).causal:
            raise UsageError("the proposal is not a causal language model; give one with the tokenizer of the model")
        require_same_tokens(self.pipe, other)
        return Proposal(other)

    def adapter_of(self, given: Any, allow_mismatch: bool = False) -> Loaded | Checkpoint:
        """Load an adapter from ``adapter=``. One that is already loaded for the model is returned as it is."""
        if not self.call_class.causal:
            raise UsageError("adapter= is supported only for causal language models; leave it out")
        if isinstance(self.model, LlamaCppModel):
            raise UsageError("a model of llama.cpp takes no adapters; merge the adapter into the GGUF file")
        from guardwrap.adapters.loaded import (  # peft takes a second to import
            Checkpoint,
            Loaded,
            in_training,
            load_adapter,
        )

        if isinstance(given, Loaded | Checkpoint):
            return given
        if isinstance(given, PreTrainedModel) or hasattr(given, "get_base_model"):
            return in_training(self.model, given)
        if isinstance(given, str | Path):
            given = Adapter(given)
        if not isinstance(given, Adapter):
            raise UsageError(f"adapter={given!r} is not a folder, a Hub id or an Adapter('...')")
        if allow_mismatch:
            given = replace(given, allow_mismatch=True)
        return load_adapter(self.model, self.tokenizer, given)

    def _pipe_of(self, proposal: Proposal | None) -> Any:
        """Return the pipeline that attempts are drawn from, perhaps with an adapter."""
        return self.pipe if proposal is None or proposal.other is None else proposal.other

    def _call(self, rest: dict[str, Any], proposal: Proposal | None) -> Call:
        call = call_of(self.pipe, rest)
        if proposal is None or proposal.only_masks:
            return call
        source = None if proposal.adapter is not None else call
        source = source if proposal.other is None else call_of(proposal.other, rest)
        rewrite = None if proposal.prompt is None else proposal.prompt.apply
        return ProposedCall(**vars(call), source=source, rewrite=rewrite)

    def _off_the_card(self, proposal: Proposal | None, call: Call) -> str | None:
        """Describe how a call's generation settings differ from those of its adapter's card; None if they do not."""
        card = None if proposal is None or proposal.adapter is None else proposal.adapter.card
        bare = isinstance(call, TensorCall)
        differ = {} if card is None else differences(self.pipe, call.forward, card.settings, bare=bare)
        changed = (f"{name}={short(there)} (here {short(here)})" for name, (here, there) in differ.items())
        return f"the adapter's card is for other generation settings: {', '.join(changed)}" if differ else None

    def _source(
        self, own: Mapping[str, Any], spec: Spec, each: Iterable[Spec] | None, proposal: Proposal | None, call: Call
    ) -> LocalSource:
        constraint, model = spec.constraint, self._pipe_of(proposal).model
        off = self._off_the_card(proposal, call)
        unseen = unseen_tools(constraint, call.preprocess.get("tools"), self._chat_template)
        for note in set(unseen) - self._warned:
            logger.warning("%s", note)  # before attempts are drawn that cannot succeed
        self._warned.update(unseen)
        notes = (() if off is None else (off,)) + unseen
        part = part_judged(spec, each)
        if part is not None or own.get("parse_messages"):
            call = call.with_parts(part or "message")
        if proposal is not None and proposal.adapter is not None:
            proposal.adapter.require_constraint(constraint)
            # Merge unless the sampler computes a(y), which needs the weights without the adapter.
            model, adapter_notes = proposal.adapter.model(merge=not spec.sampler.weighs)
            notes += adapter_notes
        if has_dropout(self.model) or (model is not self.model and has_dropout(model)):
            raise UsageError("the model is in training mode, so dropout changes its distribution; call model.eval()")
        stable = self.stable_prefix(call)
        if not stable.works:
            notes += (f"no early abort: {UNSTABLE}",)
        looks_ahead = None if proposal is None else proposal.masked or proposal.twisted
        if looks_ahead is not None and not stable.works:
            name = type(looks_ahead).__name__
            raise UsageError(f"{name}() has to judge unfinished texts, and there is {notes[-1]}; leave it out")
        twists = None
        if proposal is not None and proposal.twisted is not None:
            twists = self._twists(proposal, constraint, stable)
            if twists is None and proposal.twisted.learned is not None:
                raise UsageError(
                    f"no automaton follows {constraint.title}, so no twist was learned for it; leave learned= out"
                )
            if twists is None:
                proposal = replace(proposal, twisted=None, masked=Masked())
                notes += (MASKED_INSTEAD.format(MOST_STATES, constraint.title),)
        if self.call_class.causal:
            select_rows(model, separate=self.deterministic)  # test the model before prompts are consumed
            slower = slower_because(model, separate=self.deterministic)
            notes += () if slower is None else (slower,)
        by_decoding = proposal is None or proposal.only_masks  # decoding then gives the weights
        return LocalSource(
            call=call,
            model=model,
            stable=stable,
            reader=PrefixReader(constraint),
            causal=self.call_class.causal,
            proposal=proposal,
            other_settings=off is not None,
            twists=twists,
            weigh=None if by_decoding else Weigher(self.model, model, alone=self.deterministic),
            notes=notes,
            separate=self.deterministic,
        )

    def _twists(self, proposal: Proposal, constraint: Constraint, stable: StablePrefix) -> Twists | None:
        """Return the twists of a call, which may be learned already; None if no automaton follows the constraint."""
        assert proposal.twisted is not None
        model = self._pipe_of(proposal).model
        # ψ depends on what attempts are drawn from. Objects are part of the key, so that their ids stay theirs.
        source = model, proposal.adapter, None if proposal.prompt is None else proposal.prompt.template
        path, attempts = proposal.twisted.learned, proposal.twisted.attempts
        # What was learned from other numbers of attempts is kept beside it.
        key = constraint.digest, *map(id, source), stable, attempts if path is None else str(path)
        with self._learning:
            known = self._learned.get(key)
        # Automata are made outside the lock, so that those of hostile constraints delay nobody else.
        twisted = known[0] if known else None
        if twisted is None:
            encode = partial(token_ids, self.tokenizer)
            kind = select_rows(model, separate=self.deterministic)
            writes = encode if path is None and can_rewind(kind, model) else None
            twisted = TwistedConstraint.of(constraint, stable.vocabulary, model, attempts, writes)
        if twisted is None:
            return None
        if known is None and path is not None:
            from guardwrap.adapters.card import fingerprint  # imports peft

            twisted.read(Path(path), constraint.digest, fingerprint(model))
        with self._learning:
            learned, _ = self._learned.setdefault(key, (twisted, source))
            self._learned.move_to_end(key)
            if len(self._learned) > TWISTS:
                self._learned.popitem(last=False)
        return Twists(learned, proposal.twisted.strength)


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
        self._complete(options, generator.parallel or BATCH_SIZE)
        if self.proposal is not None and self.proposal.masked is not None:
            masking(self.spec.constraint)
        line_to(generator)  # fail now if the client library is missing, before prompts are consumed

    def _proposal_of(self, given: Any) -> Proposal | None:
        if given is None or given is False:
            return None
        if isinstance(given, Prompt):
            return Proposal(prompt=given)
        if isinstance(given, Masked):
            if given.unseen != Masked().unseen:
                raise UsageError("unseen= has no effect on a server, which masks every token or none; pass Masked()")
            return replace(self._proposal_of(given.proposal) or Proposal(), masked=given)
        if isinstance(given, Twisted):
            raise UsageError(
                "Twisted() weighs next tokens, which a server does not let its clients do; wrap the model itself, or "
                "leave Twisted() out"
            )
        raise UsageError(
            "with an endpoint, proposal= is a Prompt('...') or Masked(); to draw from another model, wrap its own "
            "Endpoint"
        )

    def adapter_of(self, given: Any, allow_mismatch: bool = False) -> str:
        """Return what requests name ``adapter=`` by; raise UsageError for what the endpoint cannot draw from."""
        return self.model.adapter_name(given)

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
        if parses and not self.model.parses:
            raise UsageError(
                "vLLM in this process returns an answer as one text, and its parts and tool calls are to be read; "
                "start `vllm serve`, and wrap its Endpoint"
            )
        require_possible(spec, proposal, self.model, settings)
        notes = [f"a is {self.model.described} under {settings.words}"]
        notes += self.model.notes
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
