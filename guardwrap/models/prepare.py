"""The generation law of a prompt, as transformers resolves it from the user's settings.

``generate(custom_generate=callable)`` resolves configuration, keyword arguments, logits processors and stopping
criteria as for its own loop, and passes them to the callable. Ours keeps them and draws nothing.
``engine.transformers_loop`` calls ``generate`` the same way for each text, with a callable that draws.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinPLogitsWarper,
    StopStringCriteria,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from guardwrap.engine.forward_passes import taken_by
from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.engine.refill.llama_cpp import LlamaCppModel
from guardwrap.errors import ContextExceeded, UsageError, is_count
from guardwrap.outcomes import Usage
from guardwrap.support.model_loading import computing
from guardwrap.support.transformers_internals import (
    CACHE_NAMES,
    GenerationMode,
    beam_search,
    end_ids,
    library_lock,
    stand_in,
    translated,
    without_stop_strings,
)

if TYPE_CHECKING:
    from guardwrap.constraints.verdicts import Event
    from guardwrap.models.regions import MessageRegions

# These read only scores, row by row, so one call can process rows of all prompts. Subclasses may do something else.
_ROWWISE = (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
    TypicalLogitsWarper,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
)
_MODES: dict[GenerationMode, Literal["sample", "greedy", "beam"]] = {
    GenerationMode.SAMPLE: "sample",
    GenerationMode.GREEDY_SEARCH: "greedy",
    GenerationMode.BEAM_SEARCH: "beam",
}
_REFUSED = {
    "streamer": "call the wrapper with it, guarded(prompt, streamer=...), or use on_piece= of stream()",
    "assistant_model": "assisted generation cannot be combined with rejection; leave it out",
    "custom_generate": "guardwrap uses its own decoding loop; leave it out",
    "prefix_allowed_tokens_fn": "it depends on batch rows, which guardwrap rearranges; use a logits processor",
    **dict.fromkeys(CACHE_NAMES, "guardwrap manages its own cache; pass the whole prompt"),
    "cache": "guardwrap manages its own cache of states; to cache answers, keep the outcomes yourself",
    "deterministic": "it is an option of the wrapper",
    "inputs_embeds": "guardwrap needs the prompt as tokens; pass input_ids",
    "negative_prompt_ids": "classifier-free guidance depends on batch rows, which guardwrap rearranges; leave it out",
    "synced_gpus": "guardwrap runs in one process; leave it out",
}
_OBJECTS = {"generation_config": GenerationConfig, "logits_processor": Sequence, "stopping_criteria": Sequence}
_REFUSED_SETTINGS = {
    # Whisper's options: with each, a text is made in several rounds, which is not a single draw.
    "return_timestamps": "with timestamps, or for more than 30 seconds of audio, a text is made in several rounds; "
    "leave it out and pass shorter audio",
    "compression_ratio_threshold": "it redraws texts at another temperature; leave it out",
    "logprob_threshold": "it redraws texts at another temperature; leave it out",
    "no_speech_threshold": "it drops texts after they were drawn; leave it out",
    "token_healing": "it rewrites the prompt; leave it out, and heal the prompt beforehand",
    "output_scores": "scores of rejected attempts would be mixed in; leave it out",
    "output_logits": "logits of rejected attempts would be mixed in; leave it out",
    "output_attentions": "guardwrap returns only texts and token ids; leave it out",
    "output_hidden_states": "guardwrap returns only texts and token ids; leave it out",
}


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt, prepared by a pipeline."""

    number: int  # its position in the call, from 0. Its random numbers depend on it.
    given: Any  # the prompt as the user gave it
    text: str  # the prompt as text
    law: GenerationLaw  # the law that attempts are drawn from
    # the law that defines a(y), if attempts are drawn from something else; None if they are drawn from a itself
    target: GenerationLaw | None = None
    # the parser of the answer after the prompt, and what happened in the prompt; None if the answer is not parsed
    regions: tuple[MessageRegions, Sequence[Event]] | None = field(default=None, repr=False)
    learning: Usage = field(default_factory=Usage)  # what was spent on learning a twist from attempts for it
    # the prompt that the pipeline's own ``preprocess`` has made of it; None if it has made no other one
    changed: Any = None

    @property
    def shown(self) -> Any:
        """What the records of the prompt begin with."""
        return self.given if self.changed is None else self.changed


def prepare(
    model: Any,
    call: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    tokenizer: Any,
    known: Sequence[str] = (),
    media: bool = False,
) -> GenerationLaw:
    """Resolve the generation law of one prompt.

    ``media``: whether the model takes images or audio. Its ``generate`` may then accept further arguments, and the
    output of ``call`` is kept.
    """
    _require_supported(kwargs)
    if not media:
        _refuse_model_inputs(taken_by(model).intersection(kwargs))  # the model may fail on those of other prompts
    with library_lock:
        kwargs, count = translated(known, _one_sequence, model, kwargs, tokenizer)
    generate = _with_own_loop(model, call, kwargs)
    kept: dict[str, Any] = {}
    outputs = translated(known, generate, custom_generate=_keep_in(kept, count))
    if not kept:
        raise UsageError(
            f"{type(model).__name__} is not supported: its generate uses a decoding loop that guardwrap cannot replace"
        )
    config, mode = kept["config"], kept["mode"]
    if not media:
        _require_untouched(model, outputs, kept)
        _refuse_model_inputs(kwargs)
    elif kwargs.get("do_sample") and mode != "sample":
        raise UsageError(f"{type(model).__name__} ignores do_sample=True; pass temperature=1.0")
    processors, warpers = _split(kept["processors"])
    if not model.config.is_encoder_decoder:
        require_context(model, kept["ids"].shape[1], position_limit(model))
    ids = kept["ids"]
    criteria, max_length, end_tokens = _split_criteria(kept["criteria"])
    require_positions(model, ids.shape[1], max_length)
    return GenerationLaw(
        prompt_ids=ids[0],
        mode=mode,
        processors=processors,
        warpers=warpers,
        criteria=criteria,
        end_ids=end_tokens,
        max_length=max_length,
        pad_id=_pad_id(config),
        return_dict=bool(config.return_dict_in_generate),
        count=count,
        max_time=config.max_time,
        beam_results=translated(known, _beams, generate, count, ids.shape[1], end_tokens) if mode == "beam" else None,
        generate=generate,
        outputs=outputs if media else None,
    )


def _with_own_loop(model: Any, call: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function that runs ``call`` with a custom decoding loop, and with further settings."""

    def generate(custom_generate: Callable[..., torch.Tensor], **more: Any) -> Any:
        with ExitStack() as hidden:
            hidden.enter_context(without_stop_strings(model.generation_config))

            def begin(*args: Any, **inputs: Any) -> torch.Tensor:
                hidden.close()  # the criteria are made, so other threads need not wait until the texts are drawn
                return custom_generate(*args, **inputs)

            return call(custom_generate=begin, **_on_top(kwargs, more))

    return generate


def _keep_in(kept: dict[str, Any], count: int) -> Callable[..., torch.Tensor]:
    """Return a decoding loop that draws nothing and stores its arguments in ``kept``."""

    def keep(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        kept.update(ids=input_ids[:1], processors=logits_processor, criteria=stopping_criteria)
        kept.update(config=generation_config, mode=_mode(generation_config, count), rounds=kept.get("rounds", 0) + 1)
        return stand_in(input_ids[:1], generation_config)

    return keep


def _require_untouched(model: Any, outputs: Any, kept: Mapping[str, Any]) -> None:
    """Reject a model whose own ``generate`` changes the tokens that were drawn, or draws them in several rounds."""
    found = outputs.get("generated_sequence", outputs.get("sequences")) if isinstance(outputs, Mapping) else outputs
    drawn = stand_in(kept["ids"], kept["config"]).flatten().tolist()
    if kept["rounds"] > 1 or (isinstance(found, torch.Tensor) and found.flatten().tolist() != drawn):
        raise UsageError(
            f"{type(model).__name__} is not supported, because its generate changes drawn tokens; use another model "
            "or change texts in a pipeline's postprocess"
        )


def _require_supported(kwargs: Mapping[str, Any]) -> None:
    """Raise UsageError if an argument cannot be combined with rejection, or has the wrong type."""
    for name, way_out in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise UsageError(f"{name} is not supported: {way_out}")
    require_settings(kwargs)  # before Whisper's generate changes them
    for name, wanted in _OBJECTS.items():
        if kwargs.get(name) is not None and not isinstance(kwargs[name], wanted):
            raise UsageError(f"{name} is {type(kwargs[name]).__name__} instead of {wanted.__name__}")
    if any(isinstance(criterion, MaxTimeCriteria) for criterion in kwargs.get("stopping_criteria") or ()):
        raise UsageError("MaxTimeCriteria is not supported: its clock is shared by all attempts; pass max_time=...")


def require_settings(settings: Mapping[str, Any]) -> None:
    """Raise UsageError if a setting would have texts made or returned in a way that is not supported."""
    for name, way_out in _REFUSED_SETTINGS.items():
        if settings.get(name):
            raise UsageError(f"{name} is not supported: {way_out}")


def _split_criteria(criteria: StoppingCriteriaList) -> tuple[StoppingCriteriaList, int, frozenset[int]]:
    """Return the criteria that must be called, the maximum length with the prompt, and the end-of-sequence tokens."""
    called, max_length, end_tokens = StoppingCriteriaList(), 2**31, frozenset[int]()
    for criterion in criteria:  # criteria of the user replace those of transformers
        # Exact classes only: a subclass may end texts differently, so it has to be called.
        if type(criterion) is MaxLengthCriteria:
            max_length = min(max_length, criterion.max_length)
        elif type(criterion) is EosTokenCriteria:
            end_tokens |= frozenset(criterion.eos_token_id.tolist())
        elif type(criterion) is not MaxTimeCriteria:
            called.append(criterion)
    return called, max_length, end_tokens


def _beams(generate: Callable[..., Any], count: int, start: int, ends: frozenset[int]) -> list[tuple[list[int], bool]]:
    """Run transformers' beam search. Returns the new tokens of each text, and whether the model ended it."""
    rows: list[list[int]] = []

    def search(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        generation_config.return_dict_in_generate = False
        with computing():
            sequences: torch.Tensor = beam_search(
                model,
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                **model_kwargs,
            )
        rows.extend(sequences[:, start:].tolist())
        return sequences

    generate(custom_generate=search, num_return_sequences=count)
    results = []
    for new in rows:
        end = next((i + 1 for i, token in enumerate(new) if token in ends), None)
        results.append((new[:end], end is not None))
    return results


def _on_top(kwargs: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Override settings: in the configuration if there is one, because generate() warns if both are given."""
    config = kwargs.get("generation_config")
    if config is None:
        return {**kwargs, **more}
    config = copy.deepcopy(config)
    inside = {name: value for name, value in more.items() if hasattr(config, name)}
    # Older releases validate the configuration before they apply the arguments, and allow several texts for beams only.
    beams = ("num_beams", "do_sample") if more.get("num_return_sequences", 1) > 1 else ()
    inside = {name: kwargs[name] for name in beams if name in kwargs} | inside
    for name, value in inside.items():
        setattr(config, name, value)  # not update(), which validates the configuration without the other arguments
    rest = {name: value for name, value in {**kwargs, **more}.items() if name not in inside}
    return {**rest, "generation_config": config}


def _refuse_model_inputs(names: Iterable[str]) -> None:
    """Reject further inputs of the model, because guardwrap's decoding loop passes only tokens."""
    known = {*vars(GenerationConfig()), "generation_config", "logits_processor", "stopping_criteria", "use_cache"}
    known |= {"prefix_length"}  # the pipeline removes it, and adds it to max_length
    for name in names:
        if name not in known:
            raise UsageError(f"{name} is not supported: only tokens go to the model; leave it out")


def resolved(name: str, kwargs: Mapping[str, Any], config: GenerationConfig) -> Any:
    """Look up a setting like generate: in the arguments, then in their configuration, then in the model's."""
    values = (kwargs.get(name), getattr(kwargs.get("generation_config"), name, None), getattr(config, name))
    return next((value for value in values if value is not None), None)


def _one_sequence(model: Any, kwargs: Mapping[str, Any], tokenizer: Any) -> tuple[dict[str, Any], int]:
    """Remove the settings that guardwrap handles itself: the number of sequences, and stop strings."""
    kwargs = {name: value for name, value in kwargs.items() if name != "tokenizer"}
    config = kwargs.get("generation_config") or model.generation_config

    count = resolved("num_return_sequences", kwargs, model.generation_config)
    count = 1 if count is None else count
    if not is_count(count) or count < 1:
        raise UsageError(f"num_return_sequences={count!r}: give a whole number of at least 1")
    stops = resolved("stop_strings", kwargs, model.generation_config)
    kwargs = {name: value for name, value in kwargs.items() if name not in ("num_return_sequences", "stop_strings")}
    if kwargs.get("cache_implementation", config.cache_implementation) in ("paged", "quantized"):
        raise UsageError("cache_implementation is not supported: guardwrap manages its own cache; leave it out")
    changes: dict[str, Any] = {"num_return_sequences": 1}
    if stops:
        # With a custom loop, generate() drops the tokenizer and could not build this criterion.
        strings = (stops,) if isinstance(stops, str) else tuple(stops)
        stopping = _stop_criterion(tokenizer, len(tokenizer), strings, str(model.device))
        criteria = [*(kwargs.pop("stopping_criteria", None) or []), stopping]
        kwargs |= {"stopping_criteria": StoppingCriteriaList(criteria), "stop_strings": None}
    if kwargs.get("generation_config") is not None:
        changes["stop_strings"] = None
    return _on_top(kwargs, changes), count


@lru_cache(maxsize=4)
def _stop_criterion(tokenizer: Any, size: int, strings: tuple[str, ...], device: str) -> StopStringCriteria:
    """Make the criterion once for all prompts: with 49 k tokens it takes 0.3 s of CPU time.

    The cache of transformers never hits, because its key contains the vocabulary in arbitrary order. ``size`` is part
    of our key because tokens may be added, and ``device`` because the criterion moves its tables there.
    """
    return StopStringCriteria(tokenizer, list(strings))


def _mode(config: GenerationConfig, count: int) -> Literal["sample", "greedy", "beam"]:
    require_settings(vars(config))
    mode = _MODES.get(config.get_generation_mode())
    if mode is None:
        raise UsageError(
            f"generation mode {config.get_generation_mode().value!r} is not supported: "
            "use sampling (do_sample=True, num_beams=1), greedy search or beam search"
        )
    if mode == "greedy" and count > 1:
        raise UsageError(f"greedy search gives one text, not num_return_sequences={count}; pass do_sample=True")
    return mode


def _split(processors: LogitsProcessorList) -> tuple[LogitsProcessorList, LogitsProcessorList]:
    """Split off the longest tail of processors that read only scores."""
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor | SynthIDTextWatermarkLogitsProcessor):
            raise UsageError(f"{type(processor).__name__} is not supported: it keeps state per batch row; leave it out")
    cut = len(processors)
    while cut and type(processors[cut - 1]) in _ROWWISE:
        cut -= 1
    return LogitsProcessorList(processors[:cut]), LogitsProcessorList(processors[cut:])


def _pad_id(config: GenerationConfig) -> int:
    return next((token for token in (config.pad_token_id, *end_ids(config)) if token is not None), 0)


_POSITIONS = re.compile(r"(wpe|pos(ition)?s?_?emb\w*|embed_pos\w*)$")
"""Names of position tables in models."""

_SPARE = 8
"""The most extra rows of a position table: OPT has two."""


def trained_length(model: Any) -> int | None:
    """Return the number of tokens that a model was trained for; None if its configuration does not name it."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def position_limit(model: Any) -> int | None:
    """Return how many positions a model has, in a table or a context; None if it computes any number of them."""
    if model not in _limits:
        trained = trained_length(model)
        limited = trained is not None and (isinstance(model, LlamaCppModel) or _has_table(model, trained))
        _limits[model] = trained if limited else None
    return _limits[model]


_limits: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()


def require_context(model: Any, length: int, context: int | None) -> None:
    """Reject a prompt that fills the context, which must also hold a new token unless the model has an encoder."""
    if context is not None and length + (not model.config.is_encoder_decoder) > context:
        raise ContextExceeded(f"the prompt has {length} tokens and the model's context {context}; shorten the prompt")


def require_positions(model: Any, length: int, max_length: int) -> None:
    """Reject settings under which texts may outgrow a position table. Models that compute positions are not limited.

    ``generate`` would fail with an IndexError at the first such text, and with it the whole batch.
    """
    most = position_limit(model)
    if most is None or max_length - 1 <= most:  # the last token is drawn, but never an input
        return
    shorter = "" if model.config.is_encoder_decoder else ", or shorten the prompt"
    what = "context" if isinstance(model, LlamaCppModel) else "table"
    raise ContextExceeded(
        f"the model has a {what} of {most} positions, and {length} tokens with max_new_tokens={max_length - length} "
        f"need more; pass max_new_tokens={most + 1 - length} or less{shorter}"
    )


def _has_table(model: Any, positions: int) -> bool:
    """Whether a model looks positions up in a table, instead of computing them."""
    sizes = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and _POSITIONS.search(name)
    ]
    sizes += [len(table) for name, table in model.named_buffers() if _POSITIONS.search(name) and table.dim() > 1]
    kept = (getattr(module, "pos_encoding", None) for module in model.modules())  # CTRL's is no buffer
    sizes += [len(table) for table in kept if isinstance(table, torch.Tensor)]
    # Some models reserve rows for padding. A table of another size has another purpose, such as image patches.
    return any(positions <= size <= positions + _SPARE for size in sizes)
