"""Where a pipeline, a constraint and the options of a call meet; ``endpoint_session`` does the same for a server.

The wrapper, training and evaluation begin here. A ``LocalSession`` holds what all calls share and makes a ``Job`` from
the options of one call; the job turns prompts into requests, which a scheduler serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.refill.mode_selection import select_rows, slower_because
from guardwrap.backends.shared_weights import is_quantised
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.documents.yaml_nodes import short
from guardwrap.environment.transformers_internals import batch_size_of
from guardwrap.errors import UsageError, require_whole
from guardwrap.pipelines.calls import Call, TensorCall
from guardwrap.pipelines.early_abort import PrefixWatch, StablePrefix
from guardwrap.pipelines.loading import has_dropout, pipeline_of
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.proposal_draws import QUANTISED, ProposedCall, Weigher, why_unweighable, with_own_target
from guardwrap.pipelines.settings_difference import differences
from guardwrap.pipelines.task_calls import call_kind, call_of
from guardwrap.pipelines.tensor_prompts import prepare_rows
from guardwrap.proposals import Masked, merge_proposals
from guardwrap.session.base_session import BATCH_SIZE, BaseSession, SessionConfig
from guardwrap.session.job import Job
from guardwrap.session.resolve import Proposal, adapter_of, proposal_of

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded

__all__ = ["LocalSession"]


class LocalSession(BaseSession):
    """A pipeline with a constraint and the defaults of calls.

    Parameters
    ----------
    generator
        Pipeline, model, Hub id or path, as ``GuardedGenerator`` takes them.
    constraints
        Constraint, constraints or constraint file, as ``GuardedGenerator`` takes them.
    config
        Defaults of the calls; None for the defaults of ``SessionConfig``.

    Attributes
    ----------
    pipe : Pipeline
        The pipeline in use.
    call_class : type of Call
        Class of its calls.
    batch_size : int
        Attempts side by side, at most.
    proposal : Proposal or None
        What attempts are drawn from, if not the model itself.
    adapter : Loaded or Checkpoint or None
        The adapter in use.
    """

    call_class: type[Call]

    def __init__(
        self,
        generator: Any,
        constraints: Any,
        config: SessionConfig | None = None,
    ) -> None:
        config = config or SessionConfig()
        super().__init__(constraints, config)
        file = self.file
        self.pipe = pipeline_of(generator, config.tokenizer)
        self.call_class = call_kind(self.pipe)
        size = (batch_size_of(self.pipe) or BATCH_SIZE) if config.batch_size is None else config.batch_size
        self.batch_size = require_whole("batch_size", size, 1)
        self._stable: dict[str, StablePrefix] = {}
        proposal, adapter = merge_proposals((config.proposal, config.adapter), (file.proposal, file.adapter))
        self.proposal = proposal_of(self.pipe, None if proposal is False else proposal)
        self.adapter: Loaded | Checkpoint | None = None
        if adapter is not None and adapter is not False:
            self.use_adapter(adapter)
        self._try_model()

    def _try_model(self) -> None:
        """Try the model that calls will draw from, so that a slower mode is known when a model is wrapped.

        What is wrong with a model is raised by the first call, which tries it again.
        """
        elsewhere = self.proposal is not None and not self.proposal.only_masks(self.pipe)
        if self.call_class.causal and not elsewhere and not has_dropout(self.model):
            with suppress(Exception):
                select_rows(self.model)

    @property
    def model(self) -> Any:
        """The model in use: a."""
        return self.pipe.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer in use."""
        return self.pipe.tokenizer

    @property
    def of_weights(self) -> tuple[str, ...]:
        """What there is to know about weights of the model's texts, one sentence each."""
        return (QUANTISED,) if is_quantised(self.model) else ()

    @property
    def rows(self) -> int:
        """Attempts that hold a row of a batch now."""
        return self.batches.rows

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from an adapter from now on; see ``GuardedGenerator.load_adapter``."""
        if self.proposal is not None and not self.proposal.only_masks(self.pipe):
            raise UsageError("the wrapper draws from its proposal; make another one for the adapter")
        loaded = adapter_of(self.pipe, given, allow_mismatch)
        loaded.require_constraint(self.constraint)
        self.adapter = loaded

    @property
    def takes_chats(self) -> bool:
        """Whether a prompt may be a list of messages."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def weighs(self, prompts: Any, options: Mapping[str, Any]) -> bool:
        """Whether attempts of a call's proposal can be weighed under the model: not under a truncation, for one."""
        prompts, options = self.call_class.with_named_inputs(prompts, options)
        job = self.job({**options, "sampler": "rejection", "seed": 0})
        first = islice(self.call_class.read_prompts(prompts).prompts, 1)  # the settings are the same for all
        return all(why_unweighable(prompt) is None for prompt in job.call.prompts(enumerate(first), 1))

    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether attempts of a call come from something else than the model under the user's prompts."""
        own, _ = self._read(options)
        given = own.get("proposal")
        proposal = self.proposal is not None if given is None else given is not False
        return proposal or self._adapter_in(own) not in (None, False)

    def other_ways(self, options: Mapping[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield options of the same call from the model itself, and masked, where they are others and possible.

        Each with whether its attempts have weights.
        """
        itself = {**options, "proposal": False, "adapter": False}
        if self.draws_elsewhere(options):
            yield False, itself
        masked = {**itself, "proposal": Masked()}
        try:
            asked = self._proposal_in(self._read(options)[0])
            self.job({**masked, "seed": 0})
        except UsageError:  # a tokenizer that rewrites text; a model that is fed more than tokens
            return
        if asked is None or not asked.only_masks(self.pipe):
            yield True, masked

    def job(self, options: Mapping[str, Any]) -> Job:
        """Read the options of a call; see ``BaseSession.job``."""
        own, rest = self._read(options)
        call = call_of(self.pipe, rest)
        proposal = self._proposal_in(own)
        if proposal is not None and not proposal.only_masks(self.pipe):
            source = None if proposal.adapter is not None else call
            source = source if proposal.pipe is self.pipe else call_of(proposal.pipe, rest)
            rewrite = None if proposal.prompt is None else proposal.prompt.apply
            call = ProposedCall(**vars(call), source=source, rewrite=rewrite)
        return self._job(own, call, proposal, self._off_the_card(proposal, call.forward))

    def tensor_job(self, ids: Any, options: Mapping[str, Any]) -> tuple[Job, list[PreparedPrompt], Sequence[Any]]:
        """Read the options of a call of ``generate``.

        Returns
        -------
        Job
            The call.
        list of PreparedPrompt
            Its prompts.
        sequence of torch.Tensor
            What each returned row begins with.

        Raises
        ------
        UsageError
            If the model is fed more than tokens, or the options do not go together.
        """
        if self.call_class.media:
            raise UsageError("generate takes tokens only; call the wrapper with what the pipeline takes instead")
        own, rest = self._read(options)
        proposal = self._proposal_in(own)
        if proposal is not None and proposal.adapter is None and not proposal.only_masks(self.pipe):
            raise UsageError("generate takes no other prompt or model; with a proposal, call the wrapper or run()")
        prompts, begins = prepare_rows(self.pipe, ids, rest, two_parts=not self.call_class.causal)
        call = TensorCall(
            self.pipe,
            reading={"skip_special_tokens": True},
            begins=[row.tolist() for row in begins],
            with_prompt=self.call_class.causal,
        )
        job = self._job(own, call, proposal, self._off_the_card(proposal, rest, bare=True))
        if proposal is not None and proposal.adapter is not None:
            prompts = [with_own_target(prompt) for prompt in prompts]
        return job, prompts, begins

    def stable_prefix(self, call: Call) -> StablePrefix:
        """Return the decoder of unfinished attempts; made, and tested, once for each way of reading tokens."""
        key = repr(sorted(call.reading.items()))
        if key not in self._stable:
            self._stable[key] = call.stable_prefix()
        return self._stable[key]

    def _off_the_card(self, proposal: Proposal | None, given: Mapping[str, Any], *, bare: bool = False) -> str | None:
        """Say how a call's generation settings differ from those that its adapter was measured under."""
        card = None if proposal is None or proposal.adapter is None else proposal.adapter.card
        differ = {} if card is None else differences(self.pipe, given, card.settings, bare=bare)
        said = (f"{name}={short(there)} (here {short(here)})" for name, (here, there) in differ.items())
        return f"the adapter's card is for other generation settings: {', '.join(said)}" if differ else None

    def _job(self, own: Mapping[str, Any], call: Call, proposal: Proposal | None, off: str | None = None) -> Job:
        """Check guardwrap's options of a call, and fill them up with the session's.

        ``off`` is how the call's settings differ from those of its adapter's card.
        """
        asked = self._asked(own)
        constraint, sampler = asked.constraint, asked.sampler
        size = self._size(own)
        model = self.model if proposal is None else proposal.pipe.model
        notes: tuple[str, ...] = () if off is None else (off,)
        each = self._each(own, asked)
        if proposal is not None and proposal.adapter is not None:
            proposal.adapter.require_constraint(constraint)
            model, said = proposal.adapter.model(merge=not sampler.weighs)  # where a(y) is hardly ever computed
            notes += said
        masked = None if proposal is None else proposal.masked
        if has_dropout(self.model) or (model is not self.model and has_dropout(model)):
            raise UsageError("the model is in training mode, so dropout makes its texts random; call model.eval()")
        stable = self.stable_prefix(call)
        if not stable.works:
            notes += ("no early abort: this tokenizer rewrites text that it has already decoded",)
        if masked is not None and (call.parses or not stable.works):
            why = "answers are parsed into messages first" if call.parses else f"there is {notes[-1]}"
            raise UsageError(f"Masked() needs to judge unfinished texts, and {why}; leave it out")
        by_mask = proposal is not None and proposal.only_masks(self.pipe)  # whose weights decoding tells
        causal = self.call_class.causal
        if causal:
            select_rows(model)  # the model is tried now, not when prompts have been taken
            slower = slower_because(model)
            notes += () if slower is None else (slower,)
        return Job(
            call,
            asked,
            size,
            model,
            watches=_watches(constraint, call, stable) if stable.works else None,
            notes=notes,
            of_weights=self.of_weights if by_mask else (),
            proposal=None if proposal is None else partial(proposal.in_words, other_settings=off is not None),
            masked=masked,
            vocabulary=None if masked is None else stable.vocabulary,
            weigh=None if proposal is None or by_mask else Weigher(self.model, model),
            causal=causal,
            each=each,
            batches=self.batches,
        )

    def _adapter_in(self, own: Mapping[str, Any]) -> Any:
        """Return what a call has as its adapter, False or None for none. Another thread may load or unload it."""
        given = own.get("adapter")
        return self.adapter if given is None else given

    def _proposal_in(self, own: Mapping[str, Any]) -> Proposal | None:
        """Read what attempts of a call are to be drawn from."""
        given = self._adapter_in(own)
        asked = own.get("proposal")
        proposal = self.proposal if asked is None else proposal_of(self.pipe, None if asked is False else asked)
        if given is None or given is False:
            return proposal
        if proposal is not None and not proposal.only_masks(self.pipe):
            raise UsageError(
                "attempts come from a proposal or from an adapter, not both; pass adapter=False, or no proposal="
            )
        adapter = adapter_of(self.pipe, given)
        return Proposal(self.pipe, None, "an adapter", adapter, None if proposal is None else proposal.masked)


def _watches(own: Constraint, call: Call, stable: StablePrefix) -> Callable[[Constraint, GenerationLaw], PrefixWatch]:
    """Return what makes a prompt's watch. A part whose verdicts took too long is not asked again in this call."""
    reader = PrefixReader(own)

    def watch(constraint: Constraint, law: GenerationLaw) -> PrefixWatch:
        its = reader if constraint is own else PrefixReader(constraint)
        return PrefixWatch(its, partial(stable, decode=partial(call.unparsed, law)))

    return watch
