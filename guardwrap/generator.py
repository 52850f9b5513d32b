"""The wrapper: a pipeline or model whose every text satisfies the constraints."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput
from transformers.pipelines import Pipeline

from guardwrap.constraints.base import Constraint, is_count, run_check
from guardwrap.constraints.files import as_constraint_file
from guardwrap.draws import Budget, Draw, Outcome
from guardwrap.engine.calls import OWN, Call, call_of
from guardwrap.engine.decode import Decoder
from guardwrap.engine.formats import as_pipeline, gathered, padding_mask, read_prompts, unpadded
from guardwrap.engine.prefix import StablePrefix, first_violated
from guardwrap.engine.prepare import Settings, one_at_a_time, prepare, require_context
from guardwrap.engine.proposed import ProposedCall, Weigher, require_same_tokens, require_weighable, with_own_target
from guardwrap.engine.selftest import choose
from guardwrap.engine.serve import Order, Prompt, serve
from guardwrap.engine.tasks import draws_whole, is_media, is_whisper
from guardwrap.engine.whole import Whole
from guardwrap.errors import BudgetExhausted, Deterministic, GuardwrapError, UsageError, nearest
from guardwrap.planning import Plan, planned
from guardwrap.proposals import Adapter
from guardwrap.proposals import Prompt as ProposalPrompt
from guardwrap.samplers import Attempt, Sampler, sampler_named

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded

__all__ = ["Fallback", "GuardedGenerator"]

BATCH_SIZE = 32
_ON_EXHAUSTED = ("raise", "none")


@dataclass(frozen=True)
class _Proposal:
    """What attempts are drawn from: a pipeline, the wrapped one for another prompt or an adapter; and in words."""

    pipe: Pipeline
    prompt: ProposalPrompt | None
    described: str
    adapter: Loaded | Checkpoint | None = None


@dataclass(frozen=True)
class Fallback:
    """What to return for a text that the budget did not suffice for. It is checked like any other text.

    Parameters
    ----------
    text
        The text, or a function from the prompt to it.
    """

    text: str | Callable[[Any], str]


class GuardedGenerator:
    r"""Wrap a pipeline or a model so that every text that comes out satisfies the constraints.

    Texts are drawn from the model's own distribution, as the generation settings define it, conditioned on the
    constraints: g(y) = a(y) b(y) / Z of the paper. With rejection sampling from the model itself this is exact.

    Parameters
    ----------
    generator
        A ``text-generation``, ``image-text-to-text`` or ``automatic-speech-recognition`` pipeline (the latter of a
        model with a decoder, such as Whisper), a causal or encoder-decoder language model, a Hub id, a path, or
        ``"local"``, the embedded default model. A causal model gets the pipeline's defaults in calls (sampling at
        temperature 0.7, 256 new tokens) and its own in ``generate``. The others keep their own, which often are
        greedy or beam search: say how to sample (``do_sample=True, num_beams=1``; for Whisper, ``temperature=1.0``).
    constraints
        A Constraint, a sequence of them (all must hold), ``"catalogue:<name>"``, or the path of a constraint file.
    tokenizer
        For a model given as an object.
    sampler
        ``"rejection"``, ``"qrs"``, ``"imh"``, another sampler's name, or what ``qrs(...)`` and ``imh(...)`` return;
        None for the constraint file's, or ``"rejection"``.
    proposal
        What attempts are drawn from, if not the model itself: a ``Prompt``, or another model with the same tokenizer (a
        pipeline, a Hub id, a path, or a model object). Rejection then samples g' ∝ a' b; QRS and IMH go from there
        towards g.
    adapter
        A trained adapter that attempts are drawn from: its folder or Hub id, or an ``Adapter``; a full checkpoint with
        the same tokenizer; or one in training: what ``adapters.attach`` returned, or a model, drawn from as it stands.
        The model is not touched and its weights are not copied, but for those of the adapted layers with rejection,
        which are merged for speed. Texts are from g' as with ``proposal``; not both.
    budget
        What may be spent on one prompt; None for the constraint file's, or ``Budget()``.
    on_exhausted
        What happens when the budget ends first: ``"raise"`` BudgetExhausted, return None in the place of the missing
        texts (``"none"``), or return a ``Fallback``.
    batch_size
        Attempts side by side, at most; None for the pipeline's own, or 32. Of encoder-decoder models, images and
        speech, only attempts of one prompt are drawn side by side.
    seed
        Makes calls reproducible: the n-th call draws the same texts again. None takes a fresh one from torch's
        global generator, as ``generate`` does. Each report has the seed of its call.
    allow_code
        Whether constraint files may name Python functions.

    Raises
    ------
    UsageError
        If the generator cannot be wrapped or a parameter is invalid.
    ConstraintError
        If the constraints are not well formed.
    AdapterError
        If the adapter's files cannot be used; ``AdapterMismatch`` if it is for another model or constraint.

    Examples
    --------
    ::

        guarded = GuardedGenerator(pipe, ~Regex(r"\d"))
        guarded("Write me a haiku.")  # the pipeline's own format
    """

    def __init__(
        self,
        generator: Any,
        constraints: Any,
        *,
        tokenizer: Any = None,
        sampler: str | Sampler | None = None,
        proposal: Any = None,
        adapter: Any = None,
        budget: Budget | None = None,
        on_exhausted: str | Fallback = "raise",
        batch_size: int | None = None,
        seed: int | None = None,
        allow_code: bool = False,
    ) -> None:
        if not isinstance(on_exhausted, Fallback) and on_exhausted not in _ON_EXHAUSTED:
            raise UsageError(
                f"on_exhausted={on_exhausted!r} is not 'raise', 'none' or Fallback('a text or a function')"
                f"{nearest(on_exhausted, _ON_EXHAUSTED)}"
            )
        self._allow_code = allow_code
        file = as_constraint_file(constraints, allow_code=allow_code)
        self._constraint = file.constraint
        self._sampler = sampler_named(sampler or file.sampler or "rejection")
        self._budget = budget or file.budget or Budget()
        self._on_exhausted = on_exhausted
        self._seed = None if seed is None else _require_whole("seed", seed, 0)
        self._calls = itertools.count()
        self._pipe = as_pipeline(generator, tokenizer)
        batch_size = (self._pipe._batch_size or BATCH_SIZE) if batch_size is None else batch_size
        self._batch_size = _require_whole("batch_size", batch_size, 1)
        self._stable: dict[str, StablePrefix] = {}
        self._proposal = self._proposal_of(proposal)
        self._adapter: Loaded | Checkpoint | None = None
        if adapter is not None:
            self.load_adapter(adapter)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline in use: the one that was given, or one made of the model."""
        return self._pipe

    @property
    def batch_size(self) -> int:
        """Attempts side by side, at most."""
        return self._batch_size

    @property
    def model(self) -> Any:
        """The model in use."""
        return self._pipe.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer in use."""
        return self._pipe.tokenizer

    @property
    def constraint(self) -> Constraint:
        """What every text satisfies."""
        return self._constraint

    @property
    def adapter(self) -> Loaded | Checkpoint | None:
        """The adapter in use, with its ``name`` and ``card``; None without one."""
        return self._adapter

    def load_adapter(self, adapter: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from an adapter from now on, in the place of the one before. Calls that are running keep theirs.

        Parameters
        ----------
        adapter
            The folder or Hub id of an adapter or a full checkpoint, or an ``Adapter``.
        allow_mismatch
            Whether to take one whose card is of another model or another constraint.

        Raises
        ------
        AdapterError
            If its files cannot be used; ``AdapterMismatch`` if it is for another model or constraint. The adapter in
            use stays then.
        UsageError
            If the model cannot take an adapter, or the wrapper has a proposal.
        """
        if self._proposal is not None:
            raise UsageError("the wrapper draws from its proposal; make another one for the adapter")
        loaded = self._adapter_of(adapter, allow_mismatch)
        loaded.require_constraint(self._constraint)
        self._adapter = loaded

    def unload_adapter(self) -> None:
        """Draw from the model itself from now on, exactly g again. Calls that are running keep their adapter."""
        self._adapter = None

    def _adapter_of(self, given: Any, allow_mismatch: bool = False) -> Loaded | Checkpoint:
        """Load what was given as an adapter."""
        if draws_whole(self._pipe):
            raise UsageError("an adapter needs a causal language model, whose texts can be weighed; leave adapter= out")
        from guardwrap.adapters.loaded import in_training, load  # peft takes a second to import

        if isinstance(given, PreTrainedModel) or hasattr(given, "get_base_model"):
            return in_training(self.model, given)
        if isinstance(given, str | Path):
            given = Adapter(given)
        if not isinstance(given, Adapter):
            raise UsageError(f"adapter={given!r} is no folder, no Hub id and no Adapter('...')")
        if allow_mismatch:
            given = dataclasses.replace(given, allow_mismatch=True)
        return load(self.model, self.tokenizer, given)

    def __call__(self, prompts: Any = None, **options: Any) -> Any:
        """Generate, in the pipeline's own format.

        Parameters
        ----------
        prompts
            What the pipeline takes: a string, a chat (list of messages), audio, ``{"images": ..., "text": ...}``, a
            list of such, a generator or a dataset. An image and a text may also be given as ``images=`` and ``text=``.
        **options
            ``constraints``, ``sampler``, ``proposal``, ``adapter``, ``budget``, ``seed`` and ``batch_size`` replace the
            wrapper's own for this call (``adapter=False``: none, draw from the model itself); the rest goes to the
            pipeline.

        Returns
        -------
        list of dict, list of list of dict, or iterator
            As the pipeline returns it: a list for one prompt, a list of lists for several, an iterator for a
            generator or dataset. Speech recognition has a dict in the place of a list of one. An encoder-decoder
            model's ``generated_text`` is the new text alone.

        Raises
        ------
        BudgetExhausted
            If the budget ended first and ``on_exhausted`` is ``"raise"``.
        UsageError
            If an option is unknown.
        """
        prompts, options = gathered(self._pipe, prompts, options)
        prompts, single, lazy = read_prompts(self._pipe, prompts)
        call, order = self._order(options)
        if lazy:
            return self._records_lazily(prompts, call, order)
        outcomes, records = self._collect(prompts, call, order, render=True)
        self._raise_if_short(outcomes)
        return records[0] if single else records

    def run(self, prompts: Any = None, *, progress: bool | None = None, **options: Any) -> list[Outcome]:
        """Generate and return outcomes with reports; never raises because a budget ended.

        Parameters
        ----------
        prompts, **options
            As in a call.
        progress
            Whether to show a progress bar; None shows it for several prompts on a terminal.
        """
        prompts, options = gathered(self._pipe, prompts, options)
        prompts, _, _ = read_prompts(self._pipe, prompts)
        if not isinstance(prompts, list):
            prompts = list(prompts)
        return self._collect(prompts, *self._order(options), progress=progress)[0]

    def stream(self, prompts: Iterable[Any], *, first: int = 0, **options: Any) -> Iterator[Outcome]:
        """Generate lazily: outcomes in the order of the prompts, which are taken as they are needed.

        Parameters
        ----------
        prompts, **options
            As in a call.
        first
            Number of the first prompt. Randomness belongs to a prompt's number, so a run that stopped after k
            prompts goes on with the same texts from ``first=k`` and the seed in its reports.
        """
        prompts, _, _ = read_prompts(self._pipe, prompts)
        _require_whole("first", first, 0)
        return (outcome for _, outcome in self._outcomes(prompts, *self._order(options), first=first))

    def attempts(self, prompts: Any, count: int, *, weigh: bool = True, **options: Any) -> list[list[Attempt]]:
        """Draw a fixed number of attempts for each prompt and return them all, judged: for estimates and training.

        Parameters
        ----------
        prompts, **options
            As in a call.
        count
            Attempts for each prompt.
        weigh
            Whether those that satisfy the constraint get their log-weight log a(y) - log a'(y) in nats; the others
            have minus infinity.

        Returns
        -------
        list of list of Attempt
            For each prompt its attempts, in launch order. Texts of those that are not satisfied have not passed the
            constraint, and may end where it was violated.
        """
        return self._pilot(prompts, count, weigh, options)[1]

    def plan(self, prompts: Any, *, pilot: int = 100, **options: Any) -> Plan:
        """Say what a call will cost, from a small pilot.

        Parameters
        ----------
        prompts, **options
            As in the call that is planned; ``num_return_sequences`` is how many texts it will ask for.
        pilot
            Attempts for each prompt.

        Returns
        -------
        Plan
            For each prompt the acceptance rate, the attempts, tokens and seconds expected, and how probably the budget
            suffices; and which sampler and budget it would choose.
        """
        wanted = _require_whole("num_return_sequences", options.pop("num_return_sequences", None) or 1, 1)
        other = options.get("proposal") is not None or self._proposal is not None or self._takes_adapter(options)
        outcomes, attempts = self._pilot(prompts, pilot, other, options)
        budget = options.get("budget") or self._budget
        return planned(outcomes, attempts, texts=wanted, budget=budget, proposal=other)

    def _pilot(
        self, prompts: Any, count: int, weigh: bool, options: Mapping[str, Any]
    ) -> tuple[list[Outcome], list[list[Attempt]]]:
        found: list[list[Attempt]] = []

        def init() -> list[Attempt]:
            found.append([])  # prompts are taken in turn, so the lists are theirs in order
            return found[-1]

        def step(state: list[Attempt], attempt: Attempt) -> tuple[list[Attempt], None]:
            state.append(attempt)
            return state, None

        collector = Sampler("attempts", init, step, lambda state: ("all attempts, judged", {}), weigh)
        budget = Budget(max_attempts=_require_whole("count", count, 1))
        own = {"sampler": collector, "budget": budget, "num_return_sequences": count}
        return self.run(prompts, progress=False, **{**options, **own}), found

    def generate(self, inputs: torch.Tensor | None = None, **options: Any) -> Any:
        """Generate, in the format of ``model.generate``.

        Parameters
        ----------
        inputs
            Token ids, ``[prompts, length]``; or ``input_ids=``.
        **options
            As in a call; ``attention_mask`` marks padding, on either side; the rest goes to ``model.generate``.

        Returns
        -------
        torch.Tensor or ModelOutput
            ``[prompts × num_return_sequences, length]``: the inputs as given, or of an encoder-decoder model what its
            decoder begins with, then the new tokens, padded on the right.

        Raises
        ------
        BudgetExhausted
            If the budget ended first, whatever ``on_exhausted`` says: a tensor has no place for a missing text.
        UsageError
            If the model is fed more than tokens.
        """
        if is_media(self._pipe):
            raise UsageError("generate takes tokens only; call the wrapper with what the pipeline takes instead")
        own, rest = _split(options)
        if self._proposal is not None or own.get("proposal") is not None:
            raise UsageError("generate takes no other prompt or model; with a proposal, call the wrapper or run()")
        ids = inputs if inputs is not None else rest.pop("input_ids", None)
        if not isinstance(ids, torch.Tensor):
            raise UsageError("generate takes a tensor of token ids: generate(**tokenizer(text, return_tensors='pt'))")
        ids = ids[None] if ids.dim() == 1 else ids
        mask = rest.pop("attention_mask", None)
        if mask is None:
            mask = padding_mask(ids, rest, self.model.generation_config)
        mask = mask.reshape(ids.shape)
        prompts = []
        for number, row in enumerate(unpadded(ids, mask)):

            def call(row: torch.Tensor = row, **kwargs: Any) -> Any:
                row = row[None].to(self.model.device)
                return self.model.generate(input_ids=row, attention_mask=torch.ones_like(row), **kwargs)

            require_context(self.model, len(row))
            settings = prepare(self.model, call, rest, tokenizer=self.tokenizer, known=OWN)
            text = self.tokenizer.decode(row, skip_special_tokens=True)
            prompts.append(Prompt(number, row.tolist(), text, settings))
        tokens = Call(self._pipe, reading={"skip_special_tokens": True})
        order = self._order_of(own, tokens, self._proposal_in(own))
        if order.proposal is not None:
            prompts = [with_own_target(prompt) for prompt in prompts]
        if order.sampler.weighs:
            prompts = [require_weighable(prompt) for prompt in prompts]
        served = list(self._served(iter(prompts), tokens, order))
        self._raise_if_short([outcome for _, outcome in served], strict=True)
        two_parts = draws_whole(self._pipe)
        begin = [prompt.settings.prompt_ids.to(ids) if two_parts else ids[prompt.number] for prompt in prompts]
        rows = [
            torch.cat([begin[prompt.number], ids.new_tensor(draw.token_ids)])
            for prompt, outcome in served
            for draw in outcome.draws
        ]
        pad = prompts[0].settings.pad_id
        sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        if not prompts[0].settings.return_dict:
            return sequences
        return (GenerateEncoderDecoderOutput if two_parts else GenerateDecoderOnlyOutput)(sequences=sequences)

    def _outcomes(
        self, prompts: Iterable[Any], call: Call, order: Order, *, first: int = 0
    ) -> Iterator[tuple[Prompt, Outcome]]:
        prepared = call.prompts(enumerate(prompts, start=first), self._batch_size)
        if order.sampler.weighs:
            prepared = map(require_weighable, prepared)
        served = self._served(prepared, call, order)
        return ((prompt, self._completed(prompt, outcome, order.constraint)) for prompt, outcome in served)

    def _collect(
        self, prompts: Any, call: Call, order: Order, *, progress: bool | None = None, render: bool = False
    ) -> tuple[list[Outcome], list[Any]]:
        """Return all outcomes and, where wanted, records: rendered one by one, so that no image is kept for long."""
        served = self._outcomes(prompts, call, order)
        if progress or (progress is None and len(prompts) > 1):
            from rich.console import Console
            from rich.progress import track

            console = Console(stderr=True)
            if progress or console.is_terminal:
                served = iter(track(served, "generating", total=len(prompts), console=console, transient=True))
        outcomes: list[Outcome] = []
        records: list[Any] = []
        try:
            for prompt, outcome in served:
                outcomes.append(outcome)  # kept when an error ends the loop
                if render:
                    records.append(_records(prompt, outcome, call))
        except GuardwrapError as error:
            error.outcomes = (*outcomes, *error.outcomes)
            raise
        return outcomes, records

    def _order(self, options: Mapping[str, Any]) -> tuple[Call, Order]:
        """Read the options of a call."""
        own, rest = _split(options)
        call = call_of(self._pipe, rest)
        proposal = self._proposal_in(own)
        if proposal is not None:
            source = None if proposal.adapter is not None else call
            source = source if proposal.pipe is self._pipe else call_of(proposal.pipe, rest)
            told = None if proposal.prompt is None else proposal.prompt.apply
            call = ProposedCall(**vars(call), source=source, told=told)
        return call, self._order_of(own, call, proposal)

    def _takes_adapter(self, own: Mapping[str, Any]) -> bool:
        given = own.get("adapter")
        return self._adapter is not None if given is None else given is not False

    def _proposal_in(self, own: Mapping[str, Any]) -> _Proposal | None:
        """Read what attempts of a call are to be drawn from."""
        given, proposal = own.get("adapter"), own.get("proposal")
        if not self._takes_adapter(own):
            return self._proposal if proposal is None else self._proposal_of(proposal)
        if proposal is not None or self._proposal is not None:
            raise UsageError(
                "attempts come from a proposal or from an adapter, not both; pass adapter=False, or no proposal="
            )
        adapter = self._adapter if given is None else self._adapter_of(given)
        return _Proposal(self._pipe, None, "an adapter", adapter)

    def _proposal_of(self, given: Any) -> _Proposal | None:
        """Read what attempts are to be drawn from."""
        if given is None:
            return None
        if draws_whole(self._pipe):
            raise UsageError(
                "a proposal needs a causal language model, whose texts can be weighed; leave proposal= out"
            )
        if isinstance(given, ProposalPrompt):
            return _Proposal(self._pipe, given, str(given))
        own = isinstance(given, str | Path | Pipeline)
        pipe = as_pipeline(given, None if own else self.tokenizer)
        if draws_whole(pipe):
            raise UsageError("the proposal must be a causal language model like the model itself")
        require_same_tokens(self._pipe, pipe)
        return _Proposal(pipe, None, f"the model {pipe.model.name_or_path!r}")

    def _order_of(self, own: Mapping[str, Any], call: Call, proposal: _Proposal | None = None) -> Order:
        """Check guardwrap's options of a call, and fill them up with the wrapper's."""
        constraint, sampler, budget = self._constraint, self._sampler, self._budget
        if own.get("constraints") is not None:
            given = as_constraint_file(own["constraints"], allow_code=self._allow_code)
            constraint, budget = given.constraint, given.budget or budget
            sampler = sampler_named(given.sampler) if given.sampler else sampler
        if own.get("sampler") is not None:
            sampler = sampler_named(own["sampler"])
        if own.get("budget") is not None:
            budget = own["budget"]
        if not isinstance(budget, Budget):
            raise UsageError(f"budget must be a Budget, not {type(budget).__name__}; e.g. Budget(max_attempts=100)")
        seed = self._next_seed() if own.get("seed") is None else _require_whole("seed", own["seed"], 0)
        size = self._batch_size if own.get("batch_size") is None else _require_whole("batch_size", own["batch_size"], 1)
        model = self.model if proposal is None else proposal.pipe.model
        described = None if proposal is None else proposal.described
        notes: tuple[str, ...] = ()
        if proposal is not None and proposal.adapter is not None:
            proposal.adapter.require_constraint(constraint)
            model, notes = proposal.adapter.model(merge=not sampler.weighs)  # where a(y) is never computed
            described = proposal.adapter.described(constraint)
        if _has_dropout(self.model) or (model is not self.model and _has_dropout(model)):
            raise UsageError("the model is in training mode, so dropout makes its texts random; call model.eval()")
        early = self._stable_prefix(call).works and not call.parses
        if call.parses:
            notes += ("the content of the message was judged, as it is parsed from the answer",)
        elif not early:
            notes += ("no early abort: this tokenizer rewrites text that it has already decoded",)
        order = Order(constraint, sampler, budget, seed, size, "generate", early, notes)
        if draws_whole(self._pipe):
            return order
        weigh = Weigher(self.model, model) if proposal is not None and sampler.weighs else None
        return dataclasses.replace(order, mode=choose(model).name, model=model, proposal=described, weigh=weigh)

    def _served(self, prompts: Iterator[Prompt], call: Call, order: Order) -> Iterator[tuple[Prompt, Outcome]]:
        stable = self._stable_prefix(call)
        slow: set[int] = set()  # parts whose verdicts took too long: not asked again in this call

        def watch(ids: Sequence[int], settings: Settings | None = None) -> str | None:
            decode = None if settings is None else partial(call.growing, settings)
            return first_violated(order.constraint, stable(ids, decode), slow)

        watched = watch if order.early_abort else None
        if draws_whole(self._pipe):
            return serve(prompts, order, Whole(order.batch_size, watched), call.text)
        make_rows = partial(choose(order.model), order.model)
        return serve(prompts, order, Decoder(make_rows, order.batch_size, watched), call.text)

    def _stable_prefix(self, call: Call) -> StablePrefix:
        """Return the decoder of unfinished attempts; made, and tested, once for each way of reading tokens."""
        key = repr(sorted(call.reading.items()))
        if key not in self._stable:
            self._stable[key] = call.stable_prefix()
        return self._stable[key]

    def _completed(self, prompt: Prompt, outcome: Outcome, constraint: Constraint) -> Outcome:
        """Fill missing texts with the fallback, if it satisfies the constraint."""
        if outcome.ok or not isinstance(self._on_exhausted, Fallback):
            return outcome
        text = self._on_exhausted.text
        text = text if isinstance(text, str) else text(outcome.prompt)
        if not isinstance(text, str):
            raise UsageError(f"the fallback returned {type(text).__name__} instead of a string")
        with one_at_a_time:
            ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if not run_check(constraint, [Draw(prompt.text, ids, text)])[0]:
            note = "the fallback violates the constraint and was withheld"
            report = dataclasses.replace(outcome.report, notes=(*outcome.report.notes, note))
            return dataclasses.replace(outcome, report=report)
        missing = outcome.report.requested - len(outcome.texts)
        report = dataclasses.replace(outcome.report, fallback=True)
        return dataclasses.replace(outcome, texts=outcome.texts + (text,) * missing, report=report)

    def _raise_if_short(self, outcomes: Sequence[Outcome], *, strict: bool = False) -> None:
        """Raise where texts are missing and nothing may stand in their place."""
        if self._on_exhausted == "none" and not strict:
            return
        short = [o for o in outcomes if not o.ok and (strict or len(o.texts) < o.report.requested)]
        if not short:
            return
        if any(outcome.report.ended == "deterministic" for outcome in short):
            how = "temperature=1.0" if is_whisper(self._pipe) else "do_sample=True, num_beams=1"
            raise Deterministic(
                f"greedy or beam search gave a text that violates the constraint, and would give it again; pass {how}",
                outcomes,
            )
        raise BudgetExhausted(outcomes)

    def _records_lazily(self, prompts: Iterable[Any], call: Call, order: Order) -> Iterator[Any]:
        for prompt, outcome in self._outcomes(prompts, call, order):
            self._raise_if_short([outcome])
            yield _records(prompt, outcome, call)

    def _next_seed(self) -> int:
        call = next(self._calls)
        if self._seed is None:
            with one_at_a_time:
                return int(torch.randint(2**63 - 1, ()).item())
        if call == 0:
            return self._seed
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{call}".encode(), digest_size=7).digest(), "big")


def _records(prompt: Prompt, outcome: Outcome, call: Call) -> Any:
    """Render an outcome as the pipeline would, with None for texts that are missing."""
    others = outcome.texts[len(outcome.draws) :]
    missing = outcome.report.requested - len(outcome.texts)
    return call.records(prompt, [draw.token_ids for draw in outcome.draws], [*others, *[None] * missing])


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell guardwrap's options of a call from those of the pipeline."""
    own = {name: value for name, value in options.items() if name in OWN}
    # Prompts are tokenized one by one, without the pipeline's data loader.
    rest = {name: value for name, value in options.items() if name not in (*OWN, "num_workers")}
    return own, rest


def _require_whole(name: str, value: int, least: int) -> int:
    """Return a whole number that is large enough, or raise UsageError."""
    if not is_count(value) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")
    return value


def _has_dropout(model: Any) -> bool:
    """Whether the model draws random numbers of its own."""
    if any(module.training and module.p > 0 for module in model.modules() if isinstance(module, torch.nn.Dropout)):
        return True
    config = model.config.get_text_config()  # of those that drop without a module
    return model.training and any(getattr(config, name, 0) for name in _DROPOUTS)


_DROPOUTS = ("attention_dropout", "dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
