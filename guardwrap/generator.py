"""The wrapper around a pipeline or a model: every text that it returns satisfies the constraints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers.pipelines import Pipeline

from guardwrap.budget import Budget
from guardwrap.calls.choice import is_unchosen, with_choice, without_choice
from guardwrap.calls.job import Job
from guardwrap.calls.missing_texts import Missing, plain_draw
from guardwrap.calls.pilot import studied
from guardwrap.calls.pipeline_api import as_pipeline, streaming
from guardwrap.calls.plan import Plan
from guardwrap.calls.sessions import EndpointSession, LocalSession
from guardwrap.calls.telemetry import CallSpan, call_span
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.explanation import Explanation, explain_draw
from guardwrap.engine.endpoint.vllm_engine import endpoint_of
from guardwrap.engine.scheduling.live_text import OnPiece, passing
from guardwrap.engine.scheduling.request import Hooks, OnBusy, OnOutcome, OnRejected, OnText
from guardwrap.errors import UsageError, nearest, require_whole, strict_arguments
from guardwrap.models.prompt_forms import returned_rows
from guardwrap.outcomes import Draw, Outcome
from guardwrap.samplers import Attempt, Sampler
from guardwrap.support.process import Teller

if TYPE_CHECKING:
    from guardwrap.adapters.loaded import Checkpoint, Loaded


class GuardedGenerator:
    r"""A wrapper around a pipeline or a model. Every text that it returns satisfies the constraints.

    Call it like the pipeline: it accepts the same inputs and options, and returns the same format.

    Texts are drawn from the model's own distribution under the generation settings, conditioned on the constraints:
    g(y) = a(y) b(y) / Z in the paper. With rejection sampling from the model itself this is exact.

    Parameters
    ----------
    generator
        A ``text-generation``, ``image-text-to-text`` or ``automatic-speech-recognition`` pipeline (the latter of a
        model with a decoder, such as Whisper), a causal or encoder-decoder language model, a Hub id, a path,
        ``"local"`` for the embedded default model, a ``Llama`` of llama-cpp-python or the path of a GGUF file, an
        ``Endpoint`` for a model on a server, or an ``LLM`` of vLLM. A causal model uses the pipeline's defaults in
        calls (sampling at temperature 0.7, 256 new tokens) and its own in ``generate``. All other models keep their own
        defaults, often greedy or beam search: turn sampling on with ``do_sample=True, num_beams=1``, or for Whisper
        ``temperature=1.0``.
    constraints
        A Constraint, a mapping as in a constraint file (``{"kind": ...}``), a sequence of them (all must hold),
        ``"catalogue:<name>"``, or the path of a constraint file.
    tokenizer
        The tokenizer. Required for a model given as an object.
    sampler
        ``"rejection"``, ``"qrs"``, ``"imh"``, ``"auto"``, the name of another sampler, or the result of ``qrs(...)``,
        ``imh(...)`` or ``auto(...)``. None uses the constraint file's sampler, or ``"rejection"``.
    proposal
        Where attempts come from instead of the model itself: a ``Prompt``, or another model with the same tokenizer (a
        pipeline, a Hub id, a path, or a model object). Rejection then samples g' ∝ a' b; QRS and IMH bring the texts
        closer to g.
    adapter
        A trained adapter to draw attempts from: its folder or Hub id, an ``Adapter``, a full checkpoint with the same
        tokenizer, or an adapter in training (the result of ``adapters.attach``, or a model, in its current state). The
        wrapped model stays unchanged. With an ``Endpoint``, the adapter's name on the server; with vLLM's ``LLM``, its
        folder. Texts follow g', as with ``proposal``. It can be combined only with ``Masked()`` and ``Twisted()``,
        which then mask or twist the adapted model; weights stay those of the model itself.
    budget
        The most that may be spent on one prompt. None uses the constraint file's budget, or ``Budget()``.
    on_exhausted
        What to do when the budget ends before all texts are accepted: ``"raise"`` BudgetExhausted, return None for
        each missing text (``"none"``), return a ``Fallback``, or let the model ``Repair`` its answer in further turns.
        A ``Repair`` replaces the constraint file's ``repair``; with anything else, the file's turns come first.
    batch_size
        The most attempts drawn in parallel. None uses the pipeline's batch size, or 32. With encoder-decoder models,
        images and speech, only attempts of the same prompt are drawn in parallel.
    seed
        Makes calls reproducible: the n-th call draws the same texts again. With None each call takes a new seed from
        torch's global generator, as ``generate`` does. Each report has the seed of its call.
    allow_code
        Whether constraint files may name Python functions.
    deterministic
        Whether a seed gives the same texts in half precision too, whatever else is drawn at the same time. Each attempt
        is then computed alone, one after the other.

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
        on_exhausted: Missing = "raise",
        batch_size: int | None = None,
        seed: int | None = None,
        allow_code: bool = False,
        deterministic: bool = False,
    ) -> None:
        options = {
            "tokenizer": tokenizer,
            "sampler": sampler,
            "proposal": proposal,
            "adapter": adapter,
            "budget": budget,
            "on_exhausted": on_exhausted,
            "batch_size": batch_size,
            "seed": seed,
            "allow_code": allow_code,
            "deterministic": deterministic,
        }
        self._session: LocalSession | EndpointSession
        if (endpoint := endpoint_of(generator)) is not None:
            self._session = EndpointSession(endpoint, constraints, options)
        else:
            self._session = LocalSession(generator, constraints, options)

    @property
    def session(self) -> LocalSession | EndpointSession:
        """The session that all calls share, for code that needs more than the methods here."""
        return self._session

    def _local(self, otherwise: str) -> LocalSession:
        """Return the session of a local model; raise UsageError with these words for an endpoint."""
        if not isinstance(self._session, LocalSession):
            raise UsageError(otherwise)
        return self._session

    @property
    def pipeline(self) -> Pipeline:
        """The wrapped pipeline, or one made for the wrapped model. Texts from calling it directly are not checked."""
        return self._local("an endpoint has no local pipeline, model or device; to get texts, call the wrapper").pipe

    @property
    def model(self) -> Any:
        """The wrapped model. Texts from its own ``generate`` are not checked."""
        return self._session.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer in use."""
        return self._session.tokenizer

    @property
    def task(self) -> str:
        """The pipeline's task, e.g. ``"text-generation"``."""
        return str(self.pipeline.task)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self.pipeline.device
        return device

    @property
    def framework(self) -> str:
        """Always ``"pt"``. Libraries that once supported several frameworks read it."""
        return "pt"

    def as_pipeline(self) -> Pipeline:
        """Return a ``Pipeline`` of the same class, for libraries that accept nothing else.

        Its calls go through the wrapper, and so does ``generate`` of its ``model``. Its stages cannot be called one by
        one, because ``forward`` would return unchecked texts.
        """
        return as_pipeline(self)

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> NoReturn:
            # The pipeline's attributes are not forwarded, because they could return unchecked texts.
            known = sorted(attribute for attribute in dir(type(self)) if not attribute.startswith("_"))
            raise AttributeError(
                f"{type(self).__name__!r} has no attribute {name!r}{nearest(name, known)}; it has {', '.join(known)}; "
                "as_pipeline() returns a real Pipeline"
            )

    @property
    def batch_size(self) -> int:
        """The most attempts drawn in parallel."""
        return self._session.batch_size

    @property
    def constraint(self) -> Constraint:
        """The constraint that every text satisfies."""
        return self._session.spec.constraint

    @property
    def adapter(self) -> Loaded | Checkpoint | None:
        """The adapter in use, with its ``name`` and ``card``; for an endpoint only its name; None without one."""
        adapter: Loaded | Checkpoint | None = self._session.adapter
        return adapter

    def load_adapter(self, adapter: Any, *, allow_mismatch: bool = False) -> None:
        """Draw from an adapter from now on, instead of the current one. Running calls keep the adapter that they have.

        Parameters
        ----------
        adapter
            The folder or Hub id of an adapter or a full checkpoint, or an ``Adapter``.
        allow_mismatch
            Whether to accept an adapter whose card names another model or another constraint.

        Raises
        ------
        AdapterError
            If its files cannot be used; ``AdapterMismatch`` if it is for another model or constraint. The current
            adapter then stays in use.
        UsageError
            If the model cannot take an adapter, or the wrapper has a proposal.
        """
        self._session.use_adapter(adapter, allow_mismatch=allow_mismatch)

    def unload_adapter(self) -> None:
        """Draw from the model itself from now on: texts follow g exactly again. Running calls keep their adapter."""
        self._session.adapter = None

    def save_twist(self, path: str | Path) -> None:
        """Save what ``Twisted()`` has learned for the wrapper's constraint, for use in another process.

        Parameters
        ----------
        path
            The file, such as ``"robot.safetensors"``, in the format of that name. An existing one is replaced.
            ``Twisted(learned=path)`` uses it.

        Raises
        ------
        UsageError
            If no twist was learned for the wrapper's constraint, or the file cannot be written.
        """
        self._local("Twisted() needs a model of your own, so there is no twist to save over an endpoint").save_twist(
            path
        )

    def _read(self, options: Mapping[str, Any]) -> Job:
        """Return the job of a call."""
        job = self._session.job(options)
        self._session.require_fallback(job)
        return job

    def _job(self, prompts: Iterable[Any], options: Mapping[str, Any], span: CallSpan, **hooks: Any) -> tuple[Any, Job]:
        """Return the prompts and the job of a call, whose sampler may have to be chosen by a plan."""
        job = replace(self._read(options), hooks=Hooks(tells=Teller(), **hooks), span=span, called=span.began)
        return with_choice(self._session, prompts, options, job) if is_unchosen(job) else (prompts, job)

    def __call__(self, prompts: Any = None, **options: Any) -> Any:
        """Generate, in the pipeline's own format.

        Parameters
        ----------
        prompts
            Anything that the pipeline accepts: a string, a chat (list of messages), audio, ``{"images": ..., "text":
            ...}``, a list of these, a generator or a dataset. An image and a text may also be passed as ``images=`` and
            ``text=``.
        **options
            ``constraints``, ``sampler``, ``proposal``, ``adapter``, ``budget``, ``on_exhausted``, ``seed`` and
            ``batch_size`` override the wrapper's settings for this call (``proposal=False``, ``adapter=False``: none).
            ``constraint_each``
            gives each prompt one more constraint; a constraint file there also sets the prompt's budget and sampler.
            ``fields`` fills the placeholders of constraint files: a mapping, or a list with one for each prompt. A
            ``streamer`` (TextStreamer) receives the text while it is drawn, once it is certain to be accepted, or as a
            whole. All other options go to the pipeline.

        Returns
        -------
        list of dict, list of list of dict, or iterator
            The pipeline's format: a list for one prompt, a list of lists for several, an iterator for a generator or
            dataset. Speech recognition returns a dict instead of a list with one item. For an encoder-decoder model,
            ``generated_text`` is only the new text.

        Raises
        ------
        BudgetExhausted
            If the budget ended first and ``on_exhausted`` is ``"raise"``.
        UsageError
            If an option is unknown.
        """
        with streaming(options) as streamer, call_span(self._session, prompts, options) as span:
            prompts, options = self._session.call_class.with_named_inputs(prompts, options)
            inputs = self._session.call_class.read_prompts(prompts)
            streamer.require_one(inputs.single)
            given, job = self._job(inputs.prompts, options, span, pass_on=streamer.pass_on)
            if inputs.lazy:
                return span.following(job.records(given))
            outcomes, records = job.collected(given, render=True)
            job.require_all(outcomes)
            streamer(outcomes)
        return records[0] if inputs.single else records

    def run(self, prompts: Any = None, *, progress: bool | None = None, **options: Any) -> list[Outcome]:
        """Generate, and return one outcome per prompt, with its report. An exhausted budget does not raise.

        Parameters
        ----------
        prompts, **options
            Prompts and options, as for a call of the wrapper.
        progress
            Whether to show a progress bar. None shows one for several prompts on a terminal.
        """
        with call_span(self._session, prompts, options) as span:
            prompts, options = self._session.call_class.with_named_inputs(prompts, options)
            inputs, job = self._job(list(self._session.call_class.read_prompts(prompts).prompts), options, span)
            return job.collected(inputs, progress=progress)[0]

    def stream(
        self,
        prompts: Iterable[Any],
        *,
        first: int = 0,
        on_outcome: OnOutcome | None = None,
        on_rejected: OnRejected | None = None,
        whole_rejected: bool = False,
        on_piece: OnPiece | None = None,
        **options: Any,
    ) -> Iterator[Outcome]:
        """Generate lazily, and yield outcomes in the order of the prompts. Prompts are consumed as needed.

        Parameters
        ----------
        prompts, **options
            Prompts and options, as for a call of the wrapper.
        first
            The number of the first prompt. To resume a run that stopped after k prompts, pass the remaining prompts
            with ``first=k`` and the seed of the run: the texts are those of an uninterrupted run.
        on_outcome
            Called with a prompt's number and its outcome as soon as it ends, even if earlier prompts are still running.
        on_rejected
            Called with a ``RejectedAttempt`` for each attempt that violates the constraint, text included.
        whole_rejected
            Whether an attempt that can no longer pass is drawn to its end, not stopped, which costs more. The accepted
            texts stay the same. Masks still apply.
        on_piece
            Called with a prompt's number, the index of one of its texts, and the next piece of that text. The pieces of
            a text add up to it. They come while the text is drawn, as soon as it is certain to be accepted, or in one
            piece when it is accepted; the report says which. A fallback has no pieces.
        """
        with call_span(self._session, prompts, options) as span:
            inputs = self._session.call_class.read_prompts(prompts).prompts
            require_whole("first", first, 0)
            hooks = {"on_rejected": on_rejected, "whole_rejected": whole_rejected, "pass_on": passing(on_piece)}
            inputs, job = self._job(inputs, options, span, **hooks)
            served = job.outcomes(inputs, first=first, alone=True, on_outcome=on_outcome)
            return span.following(outcome for _, outcome in served)

    async def arun(self, prompts: Any = None, **options: Any) -> list[Outcome]:
        """Generate like ``run``, without blocking the event loop. Concurrent calls share one batch."""
        return [outcome async for outcome in self.astream(prompts, **options)]

    async def astream(
        self,
        prompts: Any = None,
        *,
        on_text: OnText | None = None,
        on_piece: OnPiece | None = None,
        on_busy: OnBusy | None = None,
        called: float | None = None,
        **options: Any,
    ) -> AsyncGenerator[Outcome, None]:
        """Generate like ``arun``, and yield outcomes one by one, in the order of the prompts.

        Canceling the task, or calling ``aclose``, removes the call from the batch at once.

        Parameters
        ----------
        prompts, **options
            Prompts and options, as for a call of the wrapper, except that prompts cannot be a generator: waiting for
            its next prompt would block other calls.
        on_text
            Called with a prompt's number and the ``Draw`` of each text as soon as it is accepted, before the prompt's
            other texts are complete. It runs in the batch's thread and must return quickly.
        on_piece
            Called with the pieces of each text, as in ``stream``, all of them before ``on_text``. It runs in the
            batch's thread and must return quickly.
        on_busy
            Called with True when the call joins the batch, and with False once nothing more is computed for it (after
            a cancellation: at the end of the running step). It may run in any thread.
        called
            The moment from which the budget's ``timeout`` counts, by ``time.monotonic()``; None for now.

        Raises
        ------
        UsageError
            If an option is unknown, or the prompts are a generator.
        """
        with call_span(self._session, prompts, options, current=False) as span:
            prompts, options = self._session.call_class.with_named_inputs(prompts, options)
            inputs = self._session.call_class.read_prompts(prompts)
            if inputs.lazy:
                raise UsageError("astream() does not accept a generator of prompts; pass a list, or use stream()")
            threads = self._session.threads
            given, job = inputs.prompts, await threads.run(partial(self._read, options))
            hooks = Hooks(on_text=on_text, pass_on=passing(on_piece), on_busy=on_busy)
            job = replace(job, hooks=hooks, span=span, called=span.began if called is None else called)
            if is_unchosen(job):
                choice = partial(with_choice, self._session, given, options, job)
                try:
                    given, job = await threads.plan(partial(span.within, choice), on_busy, job.seconds_left)
                except TimeoutError:  # other plans were in the way
                    job = without_choice(self._session, options, job)
            async with aclosing(job.aserved(await job.arequests(given))) as served:
                async for request, outcome in served:
                    complete = partial(job.completed, request, outcome)
                    # Only a fallback, which may be a user's function, takes time.
                    yield complete() if outcome.ok else await threads.run(complete)

    def attempts(self, prompts: Any, count: int, *, weigh: bool = True, **options: Any) -> list[list[Attempt]]:
        """Draw a fixed number of attempts per prompt and return all of them, judged. For estimates and training.

        Parameters
        ----------
        prompts, **options
            Prompts and options, as for a call of the wrapper. ``on_attempt`` is called without arguments after each
            judged attempt.
        count
            The number of attempts per prompt.
        weigh
            Whether to compute log-weights, log a(y) - log a'(y) in nats, of attempts that satisfy the constraint. All
            other attempts have minus infinity.

        Returns
        -------
        list of list of Attempt
            The attempts of each prompt, in launch order. Unless an attempt is ``satisfied``, its text violates the
            constraint, and may stop where it did.
        """
        return self._session.pilot(prompts, count, weigh=weigh, **options)[1]

    def explain(
        self, text: str | Draw, *, prompt: str = "", constraints: Any = None, fields: Mapping[str, Any] | None = None
    ) -> Explanation:
        """Check a text with every part of the constraint, and return which ones reject it, where, and why.

        Parameters
        ----------
        text
            The text, as a complete answer without reasoning and tool calls; or the ``draw`` of an ``Attempt``, with all
            that the model wrote. An attempt that was stopped early lacks its end, which later parts may miss.
        prompt
            The prompt of a text, for rules that compare the two.
        constraints
            Replaces the wrapper's constraint, as in a call.
        fields
            Values for the placeholders of a constraint file.

        Raises
        ------
        CheckFailed
            If a part crashes or takes too long.
        """
        if not isinstance(text, str | Draw):
            raise UsageError(
                f"explain() takes a text or a Draw, not {type(text).__name__}; pass attempt.draw or a string"
            )
        constraint = self._session.constraint_of({"constraints": constraints, "fields": fields})
        draw = plain_draw(text, prompt, self._session.tokenizer) if isinstance(text, str) else text
        return explain_draw(constraint, draw)

    def plan(self, prompts: Any, *, pilot: int | None = None, max_seconds: float | None = None, **options: Any) -> Plan:
        """Estimate the cost of a call from a small pilot.

        A plan does not count as a call: with or without it, the next call of the wrapper has the same seed.

        Parameters
        ----------
        prompts, **options
            Prompts and options of the planned call, ``num_return_sequences`` included. ``on_attempt`` is called without
            arguments after each judged attempt.
        pilot
            The number of attempts per prompt, for each way to draw texts. From 64 on, if fewer than 10 attempts of a
            prompt pass and an automaton follows the constraint, a twist is tried as well, which is learned from up to
            768 attempts. With None, attempts are drawn in stages of 8, 16, 32 and 64, and ways are tried, only as long
            as the plan costs at most a tenth of the expected attempts of the run. (At least 8 are drawn, and 64 for
            each way without a twist if none passes.)
        max_seconds
            The most seconds that the plan may take. Attempts that still run then are dropped, and the plan says so: its
            figures then favor short texts. None for no limit.

        Returns
        -------
        Plan
            Per prompt, the acceptance rate, the expected attempts, tokens and seconds, and the probability that the
            budget suffices; the recommended sampler and budget; and the cost of drawing from the model itself, with
            and without a mask or a twist, instead.
        """
        return studied(self._session, prompts, pilot, options, max_seconds).plan

    def generate(self, inputs: torch.Tensor | None = None, **options: Any) -> Any:
        """Generate, in the format of ``model.generate``.

        Parameters
        ----------
        inputs
            Token ids, ``[prompts, length]``. May also be passed as ``input_ids=``.
        **options
            guardwrap's options, as for a call of the wrapper; ``attention_mask``, which marks padding on either side;
            and the arguments of ``model.generate``.

        Returns
        -------
        torch.Tensor or ModelOutput
            ``[prompts × num_return_sequences, length]``: the inputs as given (for an encoder-decoder model, the first
            tokens of the decoder), then the new tokens, padded on the right.

        Raises
        ------
        BudgetExhausted
            If the budget ended before all texts were accepted, whatever ``on_exhausted`` is: a tensor has no place for
            a missing text.
        UsageError
            If the model takes images or audio, or the options do not go together.
        """
        session = self._local("generate works on token ids, and an endpoint gives only text; call the wrapper or run()")
        with streaming(options) as streamer, call_span(session, inputs, options) as span:
            job, prompts, begins = session.tensor_job(inputs, options)
            hooks = Hooks(pass_on=streamer.pass_on, tells=Teller())
            job = replace(job, hooks=hooks, span=span, called=span.began)
            outcomes, _ = job.collected(prompts, progress=False)
            job.require_all(outcomes)
            streamer(outcomes)
        drawn = zip(prompts, outcomes, strict=True)
        new = [(prompt, draw.token_ids) for prompt, outcome in drawn for draw in outcome.draws]
        return returned_rows(new, begins, two_parts=not session.call_class.causal)
