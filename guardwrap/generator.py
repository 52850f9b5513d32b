"""The wrapper: a pipeline or model whose every text satisfies the constraints."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jinja2 import TemplateError
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.pipelines.text_generation import ReturnType
from transformers.utils.chat_template_utils import Chat

from guardwrap.constraints.base import Constraint, is_count, run_check
from guardwrap.constraints.files import as_constraint_file
from guardwrap.draws import Budget, Draw, Outcome
from guardwrap.engine.decode import Decoder
from guardwrap.engine.formats import as_pipeline, padding_mask, read_prompts, record, unpadded
from guardwrap.engine.prefix import StablePrefix, first_violated
from guardwrap.engine.prepare import Settings, one_at_a_time, prepare
from guardwrap.engine.selftest import choose
from guardwrap.engine.serve import Order, Prompt, TextOf, serve
from guardwrap.errors import (
    BudgetExhausted,
    Deterministic,
    GuardwrapError,
    PromptError,
    UsageError,
    first_line,
    nearest,
)
from guardwrap.samplers import Sampler, sampler_named

__all__ = ["Fallback", "GuardedGenerator"]

BATCH_SIZE = 32
_ON_EXHAUSTED = ("raise", "none")


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
        A ``text-generation`` pipeline, a causal language model, a Hub id, a path, or ``"local"``, the embedded
        default model. A model gets the pipeline's defaults in calls (sampling at temperature 0.7, 256 new tokens)
        and its own in ``generate``.
    constraints
        A Constraint, a sequence of them (all must hold), ``"catalogue:<name>"``, or the path of a constraint file.
    tokenizer
        For a model given as an object.
    sampler
        Name of the sampler; None for the constraint file's, or ``"rejection"``.
    budget
        What may be spent on one prompt; None for the constraint file's, or ``Budget()``.
    on_exhausted
        What happens when the budget ends first: ``"raise"`` BudgetExhausted, return None in the place of the missing
        texts (``"none"``), or return a ``Fallback``.
    batch_size
        Attempts side by side, at most; None for the pipeline's own, or 32.
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

    def __call__(self, prompts: Any, **options: Any) -> Any:
        """Generate, in the pipeline's own format.

        Parameters
        ----------
        prompts
            What the pipeline takes: a string, a chat (list of messages), a list of either, a generator or a dataset.
        **options
            ``constraints``, ``sampler``, ``budget``, ``seed`` and ``batch_size`` replace the wrapper's own for this
            call; the rest goes to the pipeline.

        Returns
        -------
        list of dict, list of list of dict, or iterator
            As the pipeline returns it: a list for one prompt, a list of lists for several, an iterator for a
            generator or dataset.

        Raises
        ------
        BudgetExhausted
            If the budget ended first and ``on_exhausted`` is ``"raise"``.
        UsageError
            If an option is unknown.
        """
        prompts, single, lazy = read_prompts(prompts)
        if lazy:
            return self._records_lazily(prompts, options)
        outcomes = self._collect(prompts, options)
        self._raise_if_short(outcomes)
        render = self._renderer(options)
        records = [render(outcome) for outcome in outcomes]
        return records[0] if single else records

    def run(self, prompts: Any, *, progress: bool | None = None, **options: Any) -> list[Outcome]:
        """Generate and return outcomes with reports; never raises because a budget ended.

        Parameters
        ----------
        prompts, **options
            As in a call.
        progress
            Whether to show a progress bar; None shows it for several prompts on a terminal.
        """
        prompts, _, _ = read_prompts(prompts)
        if not isinstance(prompts, list):
            prompts = list(prompts)
        return self._collect(prompts, options, progress=progress)

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
        prompts, _, _ = read_prompts(prompts)
        return self._outcomes(prompts, options, first=first)

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
        torch.Tensor or GenerateDecoderOnlyOutput
            ``[prompts × num_return_sequences, length]``: the inputs as given, then the new tokens, padded on the
            right.

        Raises
        ------
        BudgetExhausted
            If the budget ended first, whatever ``on_exhausted`` says: a tensor has no place for a missing text.
        """
        own, rest = _split(options)
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

            settings = prepare(self.model, call, rest, tokenizer=self.tokenizer, known=_OWN)
            text = self.tokenizer.decode(row, skip_special_tokens=True)
            prompts.append(Prompt(number, row.tolist(), text, settings))
        decoding = {"skip_special_tokens": True}
        order = self._order(own, decoding)
        outcomes = list(self._serve(iter(prompts), order, decoding, partial(self._raw_text, decoding)))
        self._raise_if_short(outcomes, strict=True)
        rows = [
            torch.cat([ids[prompt.number], torch.tensor(draw.token_ids, dtype=ids.dtype, device=ids.device)])
            for prompt, outcome in zip(prompts, outcomes, strict=True)
            for draw in outcome.draws
        ]
        pad = prompts[0].settings.pad_id
        sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        return GenerateDecoderOnlyOutput(sequences=sequences) if prompts[0].settings.return_dict else sequences

    def _outcomes(self, prompts: Iterable[Any], options: Mapping[str, Any], *, first: int = 0) -> Iterator[Outcome]:
        own, rest = _split(options)
        preprocess, forward, postprocess = self._parameters(rest)
        _require_whole("first", first, 0)
        decoding = self._decoding(postprocess)
        # A tokenizer of this kind has the pipeline parse a chat's answer; what is returned is what must be judged.
        parses = (
            getattr(self.tokenizer, "response_template", None) is not None
            and postprocess.get("return_type", ReturnType.FULL_TEXT) is ReturnType.FULL_TEXT
            and not postprocess.get("continue_final_message")
        )
        order = self._order(own, decoding, parses=parses)
        prepared = self._prepared(enumerate(prompts, start=first), preprocess, forward)
        text_of = partial(self._parsed_text if parses else self._raw_text, decoding)
        outcomes = self._serve(prepared, order, decoding, text_of)
        return (self._completed(outcome, order.constraint, preprocess) for outcome in outcomes)

    def _collect(self, prompts: Any, options: Mapping[str, Any], *, progress: bool | None = None) -> list[Outcome]:
        outcomes = self._outcomes(prompts, options)
        if progress or (progress is None and len(prompts) > 1):
            from rich.console import Console
            from rich.progress import track

            console = Console(stderr=True)
            if progress or console.is_terminal:
                outcomes = iter(track(outcomes, "generating", total=len(prompts), console=console, transient=True))
        done: list[Outcome] = []
        try:
            for outcome in outcomes:
                done.append(outcome)  # noqa: PERF402  # kept when an error ends the loop
        except GuardwrapError as error:
            error.outcomes = (*done, *error.outcomes)
            raise
        return done

    def _parameters(self, rest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return what the pipeline makes of the arguments of a call, its own from construction included."""
        pipe = self._pipe
        with one_at_a_time:  # a prefix is tokenized
            preprocess, forward, postprocess = pipe._sanitize_parameters(**rest)
        forward = {**pipe._forward_params, **forward}
        if "generation_config" not in forward:
            forward = {**pipe._generate_kwargs, **forward}
        return {**pipe._preprocess_params, **preprocess}, forward, {**pipe._postprocess_params, **postprocess}

    def _prepared(
        self, prompts: Iterable[tuple[int, Any]], preprocess: Mapping[str, Any], forward: Mapping[str, Any]
    ) -> Iterator[Prompt]:
        """Tokenize prompts and resolve their settings; equal prompts under way together share one prefill."""
        recent: OrderedDict[tuple[int, ...], Settings] = OrderedDict()
        for number, prompt in prompts:
            try:
                inputs = self._encoded(prompt, preprocess)
            except (ValueError, TypeError, TemplateError) as error:
                raise PromptError(f"prompt {number}: {first_line(error)}") from None
            if not inputs["input_ids"].shape[1]:
                raise PromptError(
                    f"prompt {number} is empty, and this tokenizer adds no token to begin with; "
                    "give it text, e.g. the tokenizer's bos_token"
                )
            (ids,) = unpadded(inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])))
            key = tuple(ids.tolist())
            if key not in recent:
                inputs = {**inputs, "input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}

                def call(inputs: Any = inputs, **kwargs: Any) -> Any:
                    return self._pipe.forward(dict(inputs), **kwargs)["generated_sequence"][0]

                recent[key] = prepare(self.model, call, forward, tokenizer=self.tokenizer, known=_OWN)
            recent.move_to_end(key)
            while len(recent) > self._batch_size:
                recent.popitem(last=False)
            text = prompt if isinstance(prompt, str) else self.tokenizer.decode(key, skip_special_tokens=True)
            yield Prompt(number, getattr(prompt, "messages", prompt), text, recent[key])

    def _encoded(self, prompt: Any, preprocess: Mapping[str, Any]) -> Any:
        """Tokenize a prompt as the pipeline does; truncation and padding are states of the tokenizer meanwhile."""
        with one_at_a_time:
            return self._pipe.preprocess(prompt, **preprocess)

    def _decoding(self, postprocess: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of ``tokenizer.decode`` with which the pipeline's ``postprocess`` makes the text."""
        skip = postprocess.get("skip_special_tokens")
        if getattr(self.tokenizer, "response_template", None):
            skip = False
        clean = postprocess.get("clean_up_tokenization_spaces")
        return {"skip_special_tokens": skip is None or skip, "clean_up_tokenization_spaces": clean}

    def _raw_text(self, decoding: dict[str, Any], prompt: Prompt, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, **decoding)
        return text

    def _parsed_text(self, decoding: dict[str, Any], prompt: Prompt, ids: Sequence[int]) -> str:
        """Return the content of the message that the pipeline makes of a chat's answer, as its ``postprocess`` does."""
        text = self._raw_text(decoding, prompt, ids)
        if isinstance(prompt.given, str) or prompt.given[-1]["role"] == "assistant":
            return text
        before = self.tokenizer.decode(prompt.settings.prompt_ids, **decoding)
        return str(self.tokenizer.parse_response(text, prefix=before).get("content") or "")

    def _order(self, own: Mapping[str, Any], decoding: dict[str, Any], *, parses: bool = False) -> Order:
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
        if _has_dropout(self.model):
            raise UsageError("the model is in training mode, so dropout makes its texts random; call model.eval()")
        early = self._stable_prefix(decoding).works and not parses
        notes: tuple[str, ...] = ()
        if parses:
            notes = ("the content of the message was judged, as it is parsed from the answer",)
        elif not early:
            notes = ("no early abort: this tokenizer rewrites text that it has already decoded",)
        mode = choose(self.model).name
        return Order(constraint, sampler, budget, seed, size, mode, early, notes)

    def _serve(
        self, prompts: Iterator[Prompt], order: Order, decoding: dict[str, Any], text_of: TextOf
    ) -> Iterator[Outcome]:
        stable = self._stable_prefix(decoding)

        def watch(ids: Sequence[int]) -> str | None:
            return first_violated(order.constraint, stable(ids))

        make_rows = partial(choose(self.model), self.model)
        decoder = Decoder(make_rows, order.batch_size, watch if order.early_abort else None)
        return serve(prompts, order, decoder, text_of)

    def _stable_prefix(self, decoding: dict[str, Any]) -> StablePrefix:
        """Return the decoder of unfinished attempts; made, and tested, once for each way of decoding."""
        key = repr(sorted(decoding.items()))
        if key not in self._stable:
            with one_at_a_time:
                stable = StablePrefix(self.tokenizer, partial(self.tokenizer.decode, **decoding))
            clean = decoding.get("clean_up_tokenization_spaces")
            if clean or (clean is None and getattr(self.tokenizer, "clean_up_tokenization_spaces", False)):
                stable.works = False
            self._stable[key] = stable
        return self._stable[key]

    def _completed(self, outcome: Outcome, constraint: Constraint, preprocess: Mapping[str, Any]) -> Outcome:
        """Fill missing texts with the fallback, if it satisfies the constraint."""
        if outcome.ok or not isinstance(self._on_exhausted, Fallback):
            return outcome
        text = self._on_exhausted.text
        text = text if isinstance(text, str) else text(outcome.prompt)
        if not isinstance(text, str):
            raise UsageError(f"the fallback returned {type(text).__name__} instead of a string")
        with one_at_a_time:
            ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        prompt = outcome.prompt
        if not isinstance(prompt, str):
            rendered = self._encoded(Chat(prompt), preprocess)["input_ids"][0]
            prompt = self.tokenizer.decode(rendered, skip_special_tokens=True)
        if not run_check(constraint, [Draw(prompt, ids, text)])[0]:
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
            raise Deterministic(
                "greedy or beam search gave a text that violates the constraint, and would give it again; "
                "pass do_sample=True, num_beams=1",
                outcomes,
            )
        raise BudgetExhausted(outcomes)

    def _records_lazily(self, prompts: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Any]:
        outcomes = self._outcomes(prompts, options)  # options are checked now, not at the first item
        render = self._renderer(options)

        def records() -> Iterator[Any]:
            for outcome in outcomes:
                self._raise_if_short([outcome])
                yield render(outcome)

        return records()

    def _renderer(self, options: Mapping[str, Any]) -> Callable[[Outcome], list[dict[str, Any]]]:
        """Return what renders the outcomes of a call; the pipeline reads the options once."""
        preprocess, _, postprocess = self._parameters(_split(options)[1])
        return partial(self._records, preprocess=preprocess, postprocess=postprocess)

    def _records(
        self, outcome: Outcome, *, preprocess: Mapping[str, Any], postprocess: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Render an outcome as the pipeline would."""
        prompt = outcome.prompt if isinstance(outcome.prompt, str) else Chat(outcome.prompt)
        ids = self._encoded(prompt, preprocess)["input_ids"]
        records = []
        for draw in outcome.draws:
            # One at a time, so that no padding gets into a text that was judged without it.
            sequence = torch.cat([ids, torch.tensor([draw.token_ids], dtype=ids.dtype)], dim=1)
            rendered = {"generated_sequence": sequence[None], "input_ids": ids, "prompt_text": prompt}
            records += self._pipe.postprocess(rendered, **postprocess)
        for text in outcome.texts[len(outcome.draws) :]:
            records.append(record(prompt, text, postprocess))
        missing = outcome.report.requested - len(records)
        key = "generated_token_ids" if postprocess.get("return_type") is ReturnType.TENSORS else "generated_text"
        return records + [{key: None} for _ in range(missing)]

    def _next_seed(self) -> int:
        call = next(self._calls)
        if self._seed is None:
            return int(torch.randint(2**63 - 1, ()).item())
        if call == 0:
            return self._seed
        return int.from_bytes(hashlib.blake2b(f"{self._seed}/{call}".encode(), digest_size=7).digest(), "big")


_OWN = ("constraints", "sampler", "budget", "seed", "batch_size")


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell guardwrap's options of a call from those of the pipeline."""
    own = {name: value for name, value in options.items() if name in _OWN}
    # Prompts are tokenized one by one, without the pipeline's data loader.
    rest = {name: value for name, value in options.items() if name not in (*_OWN, "num_workers")}
    return own, rest


def _require_whole(name: str, value: int, least: int) -> int:
    """Return a whole number that is large enough, or raise UsageError."""
    if not is_count(value) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")
    return value


def _has_dropout(model: Any) -> bool:
    """Whether the model draws random numbers of its own."""
    return any(
        module.training and module.p > 0 for module in model.modules() if isinstance(module, torch.nn.Dropout)
    ) or (model.training and bool(getattr(model.config.get_text_config(), "attention_dropout", 0)))
