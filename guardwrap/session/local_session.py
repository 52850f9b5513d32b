"""Sessions around a local pipeline: they make a ``Job`` from the options of a call.

The wrapper, training and evaluation start here. A ``LocalSession`` holds what all calls share. The job turns prompts
into requests, which a scheduler serves. ``endpoint_session`` does the same for a server.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from guardwrap.backends.model_weights import is_quantised
from guardwrap.backends.refill.mode_selection import select_rows, slower_because
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.documents.yaml_nodes import short
from guardwrap.environment.transformers_internals import batch_size_of
from guardwrap.errors import UsageError, require_whole
from guardwrap.pipelines.calls import Call, TensorCall
from guardwrap.pipelines.early_abort import StablePrefix
from guardwrap.pipelines.loading import has_dropout, pipeline_of
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.pipelines.proposal_draws import QUANTISED, ProposedCall, Weigher, why_unweighable, with_own_target
from guardwrap.pipelines.settings_difference import differences
from guardwrap.pipelines.task_calls import call_kind, call_of
from guardwrap.pipelines.tensor_prompts import prepare_rows
from guardwrap.proposals import Masked, merge_proposals
from guardwrap.session.base_session import BATCH_SIZE, BaseSession, SessionConfig, unseen_tools
from guardwrap.session.fallback import or_from_file, require_accepted
from guardwrap.session.job import Job
from guardwrap.session.repair import read_on_exhausted
from guardwrap.session.resolve import Proposal, adapter_of, proposal_of
from guardwrap.session.source import LocalSource, part_judged
from guardwrap.session.twisting import MASKED_INSTEAD, TwistedConstraint, Twists
from guardwrap.twists.automata import MOST_STATES

if TYPE_CHECKING:
    from guardwrap.adapters.card import Figures
    from guardwrap.adapters.loaded import Checkpoint, Loaded

logger = logging.getLogger("guardwrap")

TWISTS = 8
"""The most constraints whose twists are kept, with up to 100 MB each; those used last remain."""


class LocalSession(BaseSession):
    """A pipeline, a constraint, and the defaults of calls."""

    call_class: type[Call]  # the class that reads and renders the pipeline's calls
    provider = "huggingface"

    def __init__(
        self,
        generator: Any,
        constraints: Any,
        config: SessionConfig | None = None,
    ) -> None:
        config = config or SessionConfig()
        super().__init__(constraints, config)
        file = self.file
        self.pipe: Any = pipeline_of(generator, config.tokenizer)
        # The folder of a local model is nobody's business but its owner's.
        name = str(self.pipe.model.name_or_path) or type(self.pipe.model).__name__
        self.model_name: str = Path(name).name if Path(name).is_absolute() else name
        self.call_class = call_kind(self.pipe)
        on_exhausted = or_from_file(read_on_exhausted(self.on_exhausted)[0], self.file.fallback)
        require_accepted(on_exhausted, self.constraint, self.tokenizer)
        size = (batch_size_of(self.pipe) or BATCH_SIZE) if config.batch_size is None else config.batch_size
        self.batch_size: int = require_whole("batch_size", size, 1)
        self.deterministic = config.deterministic
        self._warned: set[str] = set()
        self._stable: dict[str, StablePrefix] = {}
        self._learned: OrderedDict[Any, tuple[TwistedConstraint, Any]] = OrderedDict()
        self._learning = Lock()
        proposal, adapter = merge_proposals((config.proposal, config.adapter), (file.proposal, file.adapter))
        self.proposal: Proposal | None = proposal_of(self.pipe, None if proposal is False else proposal)
        self.adapter: Loaded | Checkpoint | None = None
        if adapter is not None and adapter is not False:
            self.use_adapter(adapter)
        self._try_model()

    def _try_model(self) -> None:
        """Test the model when it is wrapped, so that the decoding mode is known before the first call.

        Errors are ignored here: the first call tests the model again and raises them.
        """
        elsewhere = self.proposal is not None and not self.proposal.only_masks(self.pipe)
        if self.call_class.causal and not elsewhere and not has_dropout(self.model):
            with suppress(Exception):
                select_rows(self.model, separate=self.deterministic)

    @property
    def trains(self) -> bool:  # type: ignore[override]
        """Whether an adapter can be trained for the model."""
        return self.call_class.causal

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

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from an adapter from now on; see ``GuardedGenerator.load_adapter``."""
        if self.proposal is not None and not self.proposal.only_masks(self.pipe):
            raise UsageError("the wrapper has a proposal, so it cannot use an adapter; make another wrapper for it")
        loaded = adapter_of(self.pipe, given, allow_mismatch)
        loaded.require_constraint(self.constraint)
        self.adapter = loaded

    def save_twist(self, path: str | Path) -> None:
        """Write the twist of the wrapper's constraint to a file; see ``GuardedGenerator.save_twist``."""
        from guardwrap.adapters.fingerprints import fingerprint  # imports peft

        wanted = self.constraint.digest
        with self._learning:
            learned = [each for (digest, *_), each in self._learned.items() if digest == wanted and each[0].learned]
        if not learned:
            raise UsageError("no twist was learned for this constraint; draw texts with proposal=Twisted() first")
        twisted, (model, *_) = learned[-1]
        twisted.write(Path(path), wanted, fingerprint(model))

    @property
    def _chat_template(self) -> Any:
        """The chat template, or several by name; None without one."""
        return getattr(self.tokenizer, "chat_template", None)

    @property
    def takes_chats(self) -> bool:
        """Whether a prompt may be a list of messages."""
        return self._chat_template is not None

    def weighs(self, prompts: Any, options: Mapping[str, Any]) -> bool:
        """Whether a call's attempts can be weighed under the model. Truncation such as top_k, for one, prevents it."""
        prompts, options = self.call_class.with_named_inputs(prompts, options)
        job = self.job({**options, "sampler": "rejection", "seed": 0})
        first = islice(self.call_class.read_prompts(prompts).prompts, 1)  # settings are the same for all prompts
        return all(why_unweighable(prompt) is None for prompt in job.call.prompts(enumerate(first), 1))

    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether a call has a proposal or an adapter."""
        own, _ = self._read(options)
        option = own.get("proposal")
        has_proposal = self.proposal is not None if option is None else option is not False
        return has_proposal or self._adapter_in(own) not in (None, False)

    def may_mask(self, options: Mapping[str, Any]) -> bool:
        """Whether a mask would be another way to draw from the model itself."""
        proposal = self._proposal_in(self._read(options)[0])
        return proposal is None or not proposal.only_masks(self.pipe) or proposal.masked is None

    def card_figures(self, prompts: Sequence[Any], options: Mapping[str, Any]) -> Figures | None:
        """Return the figures of the card of a call's adapter, if they hold for each of its prompts; None otherwise.

        They do if the card is for one prompt, which is that of the call, and the constraint, the model and the
        generation settings are the card's.
        """
        own, rest = self._read(options)
        proposal = self._proposal_in(own)
        if proposal is None or proposal.adapter is None or proposal.adapter.card is None:
            return None
        card, spec = proposal.adapter.card, self._spec({**own, "seed": 0})
        its_own = (each.constraint.digest for each in self._each(own, spec) or (spec,))
        fits = (
            proposal.masked is None
            and proposal.twisted is None
            and not proposal.adapter.other_base
            and self._off_the_card(proposal, call_of(self.pipe, rest).forward) is None
            and all(digest == card.constraint_digest for digest in its_own)
            and card.prompts.count == 1
            and all(card.prompts.has(prompt) for prompt in prompts)
        )
        return card.figures if fits else None

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
            The tokens that each returned row begins with.

        Raises
        ------
        UsageError
            If the model takes images or audio, or options cannot be combined.
        """
        if self.call_class.media:
            raise UsageError("generate takes only token ids, and this model takes images or audio; call the wrapper")
        own, rest = self._read(options)
        if own.get("on_exhausted") not in (None, "raise"):
            raise UsageError("generate has no place for a missing text; leave on_exhausted= out, or call the wrapper")
        proposal = self._proposal_in(own)
        if proposal is not None and proposal.adapter is None and not proposal.only_masks(self.pipe):
            raise UsageError("generate cannot draw from another prompt or model; call the wrapper or run()")
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
        return replace(job, repair=None), prompts, begins  # token ids are no chat that a turn could follow

    def stable_prefix(self, call: Call) -> StablePrefix:
        """Return the decoder of unfinished attempts. Made and tested once per set of decoding options."""
        key = repr((sorted(call.reading.items()), call.renders))
        if key not in self._stable:
            self._stable[key] = call.stable_prefix()
        return self._stable[key]

    def _off_the_card(self, proposal: Proposal | None, given: Mapping[str, Any], *, bare: bool = False) -> str | None:
        """Describe how a call's generation settings differ from those of its adapter's card; None if they do not."""
        card = None if proposal is None or proposal.adapter is None else proposal.adapter.card
        differ = {} if card is None else differences(self.pipe, given, card.settings, bare=bare)
        changed = (f"{name}={short(there)} (here {short(here)})" for name, (here, there) in differ.items())
        return f"the adapter's card is for other generation settings: {', '.join(changed)}" if differ else None

    def _job(self, own: Mapping[str, Any], call: Call, proposal: Proposal | None, off: str | None = None) -> Job:
        """Check guardwrap's options of a call, and complete them with the session's.

        ``off`` describes how the call's settings differ from those of its adapter's card.
        """
        spec = self._spec(own)
        constraint = spec.constraint
        model = self.model if proposal is None else proposal.pipe.model
        unseen = unseen_tools(constraint, call.preprocess.get("tools"), self._chat_template)
        for note in set(unseen) - self._warned:
            logger.warning("%s", note)  # before attempts are drawn that cannot succeed
        self._warned.update(unseen)
        notes = (() if off is None else (off,)) + unseen
        each = self._each(own, spec)
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
            notes += (f"no early abort: {call.rewrites}",)
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
        by_mask = proposal is not None and proposal.only_masks(self.pipe)  # decoding then gives the weights
        causal = self.call_class.causal
        if causal:
            select_rows(model, separate=self.deterministic)  # test the model before prompts are consumed
            slower = slower_because(model, separate=self.deterministic)
            notes += () if slower is None else (slower,)
        source = LocalSource(
            call=call,
            model=model,
            rule=constraint,
            stable=stable,
            reader=PrefixReader(constraint),
            causal=causal,
            proposal=proposal,
            other_settings=off is not None,
            twists=twists,
            weigh=None if proposal is None or by_mask else Weigher(self.model, model, alone=self.deterministic),
            notes=notes,
            of_weights=self.of_weights if by_mask else (),
            separate=self.deterministic,
        )
        return self._complete(own, spec, each, source)

    def _twists(self, proposal: Proposal, constraint: Constraint, stable: StablePrefix) -> Twists | None:
        """Return the twists of a call, which may be learned already; None if no automaton follows the constraint."""
        assert proposal.twisted is not None
        # ψ depends on what attempts are drawn from. Objects are part of the key, so that their ids stay theirs.
        source = proposal.pipe.model, proposal.adapter, None if proposal.prompt is None else proposal.prompt.template
        path, attempts, examples = proposal.twisted.learned, proposal.twisted.attempts, proposal.twisted.examples
        # What was learned from other numbers of attempts is kept beside it.
        key = constraint.digest, *map(id, source), stable, (attempts, examples) if path is None else str(path)
        with self._learning:
            known = self._learned.get(key)
        # Automata are made outside the lock, so that those of hostile constraints delay nobody else.
        model = proposal.pipe.model
        twisted = known[0] if known else None
        if twisted is None:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in examples or ()]
            twisted = TwistedConstraint.of(constraint, stable.vocabulary, model, attempts, ids)
        if twisted is None:
            return None
        if known is None and path is not None:
            from guardwrap.adapters.fingerprints import fingerprint  # imports peft

            twisted.read(Path(path), constraint.digest, fingerprint(model))
        with self._learning:
            learned, _ = self._learned.setdefault(key, (twisted, source))
            self._learned.move_to_end(key)
            if len(self._learned) > TWISTS:
                self._learned.popitem(last=False)
        return Twists(learned, proposal.twisted.strength)

    def _adapter_in(self, own: Mapping[str, Any]) -> Any:
        """Return the adapter of a call; False or None for none. Read once, as another thread may load or unload it."""
        option = own.get("adapter")
        return self.adapter if option is None else option

    def _proposal_in(self, own: Mapping[str, Any]) -> Proposal | None:
        """Return the proposal of a call, with its adapter; None for the model itself."""
        adapter_option = self._adapter_in(own)
        option = own.get("proposal")
        proposal = self.proposal if option is None else proposal_of(self.pipe, None if option is False else option)
        if adapter_option is None or adapter_option is False:
            return proposal
        if proposal is not None and not proposal.only_masks(self.pipe):
            raise UsageError(
                "attempts come from a proposal or from an adapter, not both; pass adapter=False, or leave proposal= out"
            )
        adapter = adapter_of(self.pipe, adapter_option)
        if proposal is None:
            return Proposal(self.pipe, None, adapter=adapter)
        return replace(proposal, adapter=adapter)
