"""The wrapper: a pipeline or model whose every text satisfies the constraints."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import torch

from guardwrap.backends.endpoint.server import Endpoint
from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError, require_whole, strict_arguments
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.tensor_prompts import returned_rows
from guardwrap.planning.pilot import plan_of
from guardwrap.planning.plan import Plan
from guardwrap.samplers import Attempt, Sampler
from guardwrap.scheduling.batch import OnBusy
from guardwrap.scheduling.request import OnOutcome, OnText
from guardwrap.session.base_session import SessionConfig
from guardwrap.session.delivery import Delivery
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.fallback import Fallback, raise_if_short, require_on_exhausted
from guardwrap.session.local_session import LocalSession
from guardwrap.session.pipeline_api import PipelineLike, streaming

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded

__all__ = ["Fallback", "GuardedGenerator"]


class GuardedGenerator(PipelineLike):
    r"""Wrap a pipeline or a model so that every text that comes out satisfies the constraints.

    Texts are drawn from the model's own distribution, as the generation settings define it, conditioned on the
    constraints: g(y) = a(y) b(y) / Z of the paper. With rejection sampling from the model itself this is exact.

    Parameters
    ----------
    generator
        A ``text-generation``, ``image-text-to-text`` or ``automatic-speech-recognition`` pipeline (the latter of a
        model with a decoder, such as Whisper), a causal or encoder-decoder language model, a Hub id, a path,
        ``"local"``, the embedded default model, or an ``Endpoint``, a model on a server. A causal model gets the
        pipeline's defaults in calls (sampling at temperature 0.7, 256 new tokens) and its own in ``generate``. The
        others keep their own, which often are greedy or beam search: say how to sample (``do_sample=True,
        num_beams=1``; for Whisper, ``temperature=1.0``).
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
        The model is not touched. Over an ``Endpoint``, the name under which the server has it. Texts are from g' as
        with ``proposal``; not both.
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

    @strict_arguments
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
        allowed = require_on_exhausted(on_exhausted)
        config = SessionConfig(
            tokenizer=tokenizer,
            sampler=sampler,
            proposal=proposal,
            adapter=adapter,
            budget=budget,
            batch_size=batch_size,
            seed=seed,
            allow_code=allow_code,
        )
        self._session: LocalSession | EndpointSession
        if isinstance(generator, Endpoint):
            self._session = EndpointSession(generator, constraints, config)
        else:
            self._session = LocalSession(generator, constraints, config)
        self._delivery = Delivery(allowed, self._session)

    @property
    def session(self) -> LocalSession | EndpointSession:
        """Where the options of calls are put together, for code that draws in ways of its own."""
        return self._session

    @property
    def batch_size(self) -> int:
        """Attempts side by side, at most."""
        return self._session.batch_size

    @property
    def constraint(self) -> Constraint:
        """What every text satisfies."""
        return self._session.constraint

    @property
    def adapter(self) -> Loaded | Checkpoint | None:
        """The adapter in use, with its ``name`` and ``card``; its name alone over an endpoint; None without one."""
        return self._session.adapter

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
        self._session.use_adapter(adapter, allow_mismatch=allow_mismatch)

    def unload_adapter(self) -> None:
        """Draw from the model itself from now on, exactly g again. Calls that are running keep their adapter."""
        self._session.adapter = None

    def __call__(self, prompts: Any = None, **options: Any) -> Any:
        """Generate, in the pipeline's own format.

        Parameters
        ----------
        prompts
            What the pipeline takes: a string, a chat (list of messages), audio, ``{"images": ..., "text": ...}``, a
            list of such, a generator or a dataset. An image and a text may also be given as ``images=`` and ``text=``.
        **options
            ``constraints``, ``sampler``, ``proposal``, ``adapter``, ``budget``, ``seed`` and ``batch_size`` replace the
            wrapper's own for this call (``proposal=False``, ``adapter=False``: none). ``constraint_each``, one for each
            prompt, must hold of its texts besides; a constraint file there brings its budget and its sampler. A
            ``streamer`` (TextStreamer) is handed the text, whole, when it has been accepted. The rest goes to the
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
        with streaming(options) as hand:
            prompts, options = self._session.call_class.with_named_inputs(prompts, options)
            given = self._session.call_class.read_prompts(prompts)
            hand.require_one(given.single)
            job = self._session.job(options)
            if given.lazy:
                return self._delivery.records(given.prompts, job)
            outcomes, records = self._delivery.collected(given.prompts, job, render=True)
            self._delivery.require_all(outcomes)
            hand(outcomes)
        return records[0] if given.single else records

    def run(self, prompts: Any = None, *, progress: bool | None = None, **options: Any) -> list[Outcome]:
        """Generate and return outcomes with reports; never raises because a budget ended.

        Parameters
        ----------
        prompts, **options
            As in a call.
        progress
            Whether to show a progress bar; None shows it for several prompts on a terminal.
        """
        prompts, options = self._session.call_class.with_named_inputs(prompts, options)
        given = list(self._session.call_class.read_prompts(prompts).prompts)
        return self._delivery.collected(given, self._session.job(options), progress=progress)[0]

    def stream(
        self, prompts: Iterable[Any], *, first: int = 0, on_outcome: OnOutcome | None = None, **options: Any
    ) -> Iterator[Outcome]:
        """Generate lazily: outcomes in the order of the prompts, which are taken as they are needed.

        Parameters
        ----------
        prompts, **options
            As in a call.
        first
            Number of the first prompt: a run that stopped after k goes on alike from ``first=k`` with its seed.
        on_outcome
            Told the number of a prompt and its outcome when it has ended, also while slower ones before it go on.
        """
        given = self._session.call_class.read_prompts(prompts).prompts
        require_whole("first", first, 0)
        job = self._session.job(options)
        served = self._delivery.outcomes(given, job, first=first, alone=True, on_outcome=on_outcome)
        return (outcome for _, outcome in served)

    async def arun(self, prompts: Any = None, **options: Any) -> list[Outcome]:
        """Generate as ``run`` does, without blocking the event loop: calls that run side by side share one batch."""
        return [outcome async for outcome in self.astream(prompts, **options)]

    async def astream(
        self, prompts: Any = None, *, on_text: OnText | None = None, on_busy: OnBusy | None = None, **options: Any
    ) -> AsyncGenerator[Outcome, None]:
        """Generate as ``arun`` does, and yield each outcome when those of the prompts before it are there.

        A task that is cancelled leaves the batch at once, and so does ``aclose``.

        Parameters
        ----------
        prompts, **options
            As in a call. Lists only: what a generator of prompts waits for would keep other calls waiting.
        on_text
            Told the number of a prompt and a text of its own as soon as that is accepted, before the others of its
            prompt are there. Called in the batch's thread, which it must not hold up.
        on_busy
            Called with True when the call joins the batch, and with False when nothing is computed for it any more.
            For a call that is canceled in the middle of a step that is at the step's end. Called in any thread.

        Raises
        ------
        UsageError
            If an option is unknown, or the prompts are a generator.
        """
        prompts, options = self._session.call_class.with_named_inputs(prompts, options)
        given = self._session.call_class.read_prompts(prompts)
        if given.lazy:
            raise UsageError("a generator of prompts is for stream(); give astream() a list")
        job = await asyncio.to_thread(self._session.job, options)
        job = dataclasses.replace(job, on_text=on_text, on_busy=on_busy)
        async with aclosing(job.aserved(job.requests(given.prompts))) as served:
            async for prompt, constraint, outcome in served:
                yield await asyncio.to_thread(self._delivery.completed, prompt, constraint, outcome)

    def attempts(self, prompts: Any, count: int, *, weigh: bool = True, **options: Any) -> list[list[Attempt]]:
        """Draw a fixed number of attempts for each prompt and return them all, judged: for estimates and training.

        Parameters
        ----------
        prompts, **options
            As in a call; and ``on_attempt``, called without arguments as each attempt is judged.
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
        return self._session.attempts(prompts, count, weigh=weigh, **options)

    def plan(self, prompts: Any, *, pilot: int = 64, **options: Any) -> Plan:
        """Say what a call will cost, from a small pilot.

        Parameters
        ----------
        prompts, **options
            As in the call that is planned, with its ``num_return_sequences``; and ``on_attempt``, as of ``attempts``.
        pilot
            Attempts for each prompt.

        Returns
        -------
        Plan
            For each prompt the acceptance rate, the attempts, tokens and seconds expected, and how probably the budget
            suffices; the sampler and budget to choose; and what the model itself, and masked, would cost instead.
        """
        return plan_of(self._session, prompts, pilot, options)

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
        with streaming(options) as hand:
            job, prompts, begins = self._session.tensor_job(inputs, options)
            served = list(job.served(job.requests_of(prompts)))
            raise_if_short("raise", [outcome for _, _, outcome in served], self._session.call_class.sampling)
            hand([outcome for _, _, outcome in served])
        new = [(prompt, draw.token_ids) for prompt, _, outcome in served for draw in outcome.draws]
        return returned_rows(new, begins, two_parts=not self._session.call_class.causal)
