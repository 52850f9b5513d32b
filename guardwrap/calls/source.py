"""Where the attempts of a call come from: a local model, or a server, perhaps with a hint, mask, twist or adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from transformers.pipelines import Pipeline

from guardwrap.calls.telemetry import CallSpan, traced_by
from guardwrap.calls.twisting import Twists
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.kinds.text import Length
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.constraints.stop_strings import stops_of
from guardwrap.constraints.views import NO_MESSAGE, judged_part
from guardwrap.engine.endpoint.endpoint_backend import EndpointBackend
from guardwrap.engine.endpoint.endpoint_law import EndpointSettings, masking, require_weighable_endpoint
from guardwrap.engine.endpoint.endpoint_scores import EndpointWeigher
from guardwrap.engine.endpoint.server import Endpoint
from guardwrap.engine.model_weights import is_quantised
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.engine.refill.llama_cpp import LlamaCppModel
from guardwrap.engine.refill.mode_selection import select_rows
from guardwrap.engine.refill.row_states import rows_of
from guardwrap.engine.scheduling.backend import AttemptState, Backend
from guardwrap.engine.scheduling.request import Drawing, DrawOf, Spec, Weigh
from guardwrap.engine.transformers_loop import GenerateBackend
from guardwrap.errors import UsageError
from guardwrap.models.call_syntax import with_json, with_syntax
from guardwrap.models.calls import Call
from guardwrap.models.early_abort import UNSTABLE, PrefixWatch, StablePrefix
from guardwrap.models.endpoint_calls import EndpointCall, TextWatch
from guardwrap.models.masking import ConstraintMask
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.models.proposal_draws import QUANTISED, require_weighable, why_unweighable
from guardwrap.outcomes import ITSELF, Draw, Origin, Outcome, Remedy, Shape
from guardwrap.proposals import Masked, Prompt, Twisted
from guardwrap.twists.hits import Hits

if TYPE_CHECKING:
    from guardwrap.adapters.card import Card

_TAKEN_BACK = "tokens may be taken back until a word is written"
_SURE = 1e-6
"""The share of the remaining probability that masks beyond truncation leave unseen."""


@dataclass(frozen=True)
class Proposal:
    """What attempts are drawn from, if not the model itself under the user's prompts."""

    other: Pipeline | None = None  # the pipeline of another model, or None
    prompt: Prompt | None = None  # another prompt, or None
    adapter: Any = None  # a ``Loaded`` adapter or ``Checkpoint``, the name of an adapter on a server, or None
    masked: Masked | None = None  # the settings of the mask, or None
    twisted: Twisted | None = None  # the settings of the twist, or None

    @property
    def only_masks(self) -> bool:
        """Whether attempts are drawn from the model itself, with a mask or a twist."""
        # A field that is added later counts as another law, whose attempts are weighed.
        return replace(self, masked=None, twisted=None) == Proposal()

    @property
    def words(self) -> str:
        """Another model or prompt, in words for reports."""
        if self.other is not None:
            return f"the model {self.other.model.name_or_path!r}"
        return "" if self.prompt is None else str(self.prompt)


@dataclass(frozen=True, kw_only=True)
class LocalSource:
    """A model in this process."""

    call: Call
    model: Any  # the model that tokens are drawn from: the wrapped model or the proposal's
    stable: StablePrefix  # decodes unfinished attempts; without early abort if it does not work
    reader: PrefixReader  # judges them by the constraint of the call. A part that was too slow is not asked again.
    causal: bool  # whether it is a causal language model, whose calls share batches of guardwrap's own decoding loop
    proposal: Proposal | None = None  # what attempts are drawn from; None for the model itself
    other_settings: bool = False  # whether the settings are others than those of the card of the proposal's adapter
    twists: Twists | None = None
    weigh: Weigh | None = None  # computes log-weights that decoding does not give
    notes: tuple[str, ...] = ()
    separate: bool = False  # whether each attempt is computed alone, so that no other changes it

    weighs_masks: ClassVar[bool] = True

    @property
    def card(self) -> Card | None:
        """The card of the adapter, if no mask or twist, other model or other settings make its figures invalid."""
        proposal = self.proposal
        if proposal is None or proposal.adapter is None or proposal.masked is not None or proposal.twisted is not None:
            return None
        card: Card | None = proposal.adapter.card
        return None if proposal.adapter.other_base or self.other_settings else card

    def weighs(self, prompts: Iterable[Any], spec: Spec) -> bool:
        """Whether attempts can be weighed. Truncation such as top_k, for one, prevents it."""
        return all(why_unweighable(prompt) is None for prompt in self.call.prompts(enumerate(prompts), 1))

    @property
    def masked(self) -> Masked | None:
        """The settings of the mask; None without one."""
        return None if self.proposal is None else self.proposal.masked

    def backend(self, size: int) -> Backend:
        """Make the backend of the model."""
        if not self.causal:
            return GenerateBackend(1 if self.separate else size)
        return backend_for(self.model, size, separate=self.separate)

    def records(self, prompt: PreparedPrompt, outcome: Outcome) -> Any:
        """Render an outcome; fallbacks come after the texts, and None after them."""
        others = outcome.texts[len(outcome.draws) :]
        missing = outcome.report.requested - len(outcome.texts)
        return self.call.records(prompt, outcome.draws, [*others, *[None] * missing])

    def drawing(self, prompt: PreparedPrompt, spec: Spec, span: CallSpan | None) -> tuple[PreparedPrompt, Drawing]:
        """Return the prompt, with what is needed to weigh attempts at it, and how they are drawn."""
        if spec.sampler.weighs:
            prompt = require_weighable(prompt)
        watch = self._watch(spec.constraint, prompt) if self.stable.works else None
        draw_of = _draw_of(self.call.draw, spec.constraint)
        mask = lookahead = None
        if watch is not None:
            vocabulary = None if self.masked is None else self.stable.vocabulary
            draw = partial(draw_of, prompt)
            lookahead = ConstraintMask(watch, prompt.law, spec.constraint, draw, 0.0, vocabulary)
            if self.masked is not None:
                mask = lookahead = self._mask(self.masked, lookahead, prompt, spec)
        twists = self.twists
        twist = None if twists is None else twists.twist(prompt, partial(_drawn, draw_of, prompt))
        why = _TAKEN_BACK if isinstance(twist, Hits) else self._whole_because(prompt)
        notes = (*self.notes, *(self._notes_on_weights() if spec.sampler.weighs else ()), *prompt.law.notes)
        notes += (*self.call.notes(prompt, spec.constraint), *(() if twists is None else twists.notes(prompt)))
        return prompt, Drawing(
            draw_of,
            watch,
            mask,
            lookahead,
            twist,
            self.weigh if spec.sampler.weighs else None,
            self._origin(spec.constraint, prompt.given),
            notes,
            settled=watch if why is None else None,
            whole_because=why or "",
            prompt_tokens=len((prompt.target or prompt.law).ids) if self.causal else None,
            ways=self._ways(prompt),
            learning=prompt.learning,
        )

    def _origin(self, constraint: Constraint, prompt: Any) -> Origin:
        """Describe what attempts are drawn from; of an adapter, also whether its card covers this call."""
        proposal = self.proposal
        if proposal is None:
            return ITSELF
        shape = None if proposal.masked is None else Shape.MASKED
        shape = shape if proposal.twisted is None else Shape.TWISTED
        words = proposal.words
        if proposal.adapter is not None:
            differs = ["under other generation settings"] if self.other_settings else []
            differs += [] if shape is None else [f"where nothing was {shape.value}"]
            words = proposal.adapter.described(constraint, prompt, differs)
        return Origin(words, shape)

    def _notes_on_weights(self) -> tuple[str, ...]:
        """Return notes for reports of samplers that use the weights of a mask or a twist, which decoding gives."""
        by_mask = self.proposal is not None and self.proposal.only_masks
        return (QUANTISED,) if by_mask and is_quantised(self.model) else ()

    def _watch(self, constraint: Constraint, prompt: PreparedPrompt) -> PrefixWatch:
        reader = self.reader if constraint is self.reader.constraint else PrefixReader(constraint)
        text = self.call.text_alone if self.call.parsed(prompt) else partial(self.call.unparsed, prompt.law)
        return PrefixWatch(reader.after(self.call.context(prompt)), partial(self.stable, decode=text))

    def _mask(self, masked: Masked, lookahead: ConstraintMask, prompt: PreparedPrompt, spec: Spec) -> ConstraintMask:
        """Return the mask of a masked proposal."""
        mask = replace(lookahead, unseen=masked.unseen)
        if spec.sampler.weighs:  # weights are of g, so whatever g has must stay possible
            return mask
        casts = bool(self.call.preprocess.get("tools"))
        regions = None if prompt.regions is None else prompt.regions[0]
        written = with_syntax(spec.constraint, regions, self.call.pipe.tokenizer, casts=casts)
        if masked.beyond_truncation:
            written = self._as_json if written is self.reader.constraint else with_json(written)
        if written is not spec.constraint:
            mask = replace(mask, watch=self._watch(written, prompt), narrower=True)
        if masked.beyond_truncation:  # a token that is not looked at would waste an attempt in a thousand tokens
            mask = replace(mask, beyond=True, unseen=min(masked.unseen, _SURE))
        return mask

    @cached_property
    def _as_json(self) -> Constraint:
        """The call's constraint as masks beyond truncation write JSON, made once for all of its prompts."""
        return with_json(self.reader.constraint)

    def _ways(self, prompt: PreparedPrompt) -> frozenset[Remedy]:
        """Return what the call can change for a prompt that lacks texts."""
        possible = {
            Remedy.TEXTS: bool(prompt.law.warpers),
            Remedy.LENGTH: self.call.fits(prompt, more=1),
            Remedy.MASK: self.causal and self.stable.works and self.proposal is None,
            Remedy.PROMPT: self.call.reads_text,
        }
        return frozenset(remedy for remedy, can in possible.items() if can)

    def _whole_because(self, prompt: PreparedPrompt) -> str | None:
        """Return why no text of a prompt is certain to be accepted before it is complete; None if one may be."""
        if not self.causal:
            return "transformers' own loop draws the texts"
        if not self.stable.works:
            return UNSTABLE
        if prompt.regions is not None:
            return "whether an answer can be parsed into a message is known at its end"
        return None


def backend_for(model: Any, size: int, *, separate: bool = False) -> Backend:
    """Make the backend that draws from a causal model."""
    if isinstance(model, LlamaCppModel):
        model.reserve(size)
    return RefillBackend(partial(rows_of, select_rows(model, separate=separate), model), size)


def _drawn(draw_of: DrawOf, prompt: PreparedPrompt, attempt: AttemptState) -> Draw:
    """Decode an attempt that has ended."""
    return draw_of(prompt, attempt.token_ids, attempt.status == "finished", None)


def _draw_of(draw: DrawOf, constraint: Constraint) -> DrawOf:
    """Return the function that decodes attempts, whose messages end before the constraint's stop strings."""
    stops = stops_of(constraint)
    decode: Callable[..., Any] = draw
    return partial(decode, stops=stops) if stops else draw


@dataclass(frozen=True, kw_only=True)
class EndpointSource:
    """A model on a server."""

    call: EndpointCall
    model: Endpoint
    reader: PrefixReader  # judges growing texts by it. A part that was too slow is not asked again.
    proposal: Proposal | None = None  # what attempts are drawn from; None for the model itself
    weigh: EndpointWeigher | None = None
    notes: tuple[str, ...] = ()

    twists: ClassVar[None] = None
    card: ClassVar[None] = None
    causal: ClassVar[bool] = True
    weighs_masks: ClassVar[bool] = False

    def weighs(self, prompts: Iterable[Any], spec: Spec) -> bool:
        """Whether the sampler uses weights: they cost further requests."""
        return spec.sampler.weighs

    def backend(self, size: int) -> Backend:
        """Make the backend of the server."""
        return EndpointBackend(self.model, size)

    def records(self, prompt: Any, outcome: Outcome) -> Any:
        """Render an outcome."""
        return self.call.records(prompt, outcome)

    def drawing(self, prompt: Any, spec: Spec, span: CallSpan | None) -> tuple[Any, Drawing]:
        """Return the prompt, with what the server needs to know, and how attempts at it are drawn."""
        require_possible(spec, self.proposal, self.model, self.call.settings)
        prompt, proposal = prompt.traced(traced_by(span)), self.proposal
        weighed = proposal is not None and spec.sampler.weighs
        if weighed:
            prompt = replace(prompt, law=replace(prompt.law, scored=True))
        elif proposal is not None and proposal.masked is not None:
            prompt = replace(prompt, law=replace(prompt.law, mask=masking(spec.constraint)[1]))
        reader = self.reader
        if spec.constraint is not self.reader.constraint:
            part = part_judged(spec)
            if part is not None and not self.call.parses:
                raise UsageError(NO_MESSAGE.format(part, "pass parse_messages=True to the call"))
            reader = PrefixReader(spec.constraint).after(self.call.context())
        return prompt, Drawing(
            _draw_of(self.call.draw, spec.constraint),
            TextWatch(reader),
            weigh=self.weigh if weighed else None,
            origin=self._origin(spec.constraint),
            notes=self.notes,
            whole_because="a server draws the texts, and may draw another one after a broken connection",
        )

    def _origin(self, constraint: Constraint) -> Origin:
        """Describe what attempts are drawn from."""
        proposal = self.proposal
        if proposal is None:
            return ITSELF
        words = proposal.words if proposal.adapter is None else f"the server's adapter {proposal.adapter!r}"
        if proposal.masked is None:
            return Origin(words)
        return Origin(words, Shape.MASKED, f"by the server for {masking(constraint)[0].title}")


Source: TypeAlias = LocalSource | EndpointSource
"""What a job needs to know of where attempts come from. ``Drawing`` is what the scheduler needs."""


def part_judged(spec: Spec, each: Iterable[Spec] | None = None) -> str | None:
    """Return the first part of messages that a rule of a call judges; None if no rule judges one.

    ``each``: what is asked for each prompt. It is looked at only if it is a tuple: others are read one by one later.
    """
    every = [spec, *(each if isinstance(each, tuple) else ())]
    parts = (judged_part(part) for one in every for part in walk(one.constraint))
    return next((part for part in parts if part is not None), None)


def require_possible(spec: Spec, proposal: Proposal | None, endpoint: Endpoint, settings: EndpointSettings) -> None:
    """Raise UsageError for what a server cannot do, before any request is sent."""
    masked = proposal is not None and proposal.masked is not None
    if masked:
        masking(spec.constraint)
    if proposal is not None and spec.sampler.weighs:
        if masked:
            raise UsageError(
                f"the sampler {spec.sampler.name!r} computes weights, and a server does not report how much "
                "probability its mask removed; pass sampler='rejection', or leave Masked() out"
            )
        require_weighable_endpoint(endpoint, settings)
    for part in walk(spec.constraint):
        if isinstance(part, Length) and part.unit == "tokens":
            raise UsageError(
                f"{part.title} counts tokens, and an endpoint gives only text; use unit='characters' or 'words', or "
                "max_new_tokens="
            )
