"""Pipelines from whatever a user wraps: a pipeline, a model, a path or a Hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    ImageTextToTextPipeline,
    PreTrainedConfig,
    PreTrainedModel,
    TextGenerationPipeline,
    pipeline,
)
from transformers.pipelines import Pipeline
from transformers.utils import find_adapter_config_file

from guardwrap.errors import ModelError, UsageError, nearest
from guardwrap.models.calls import require_callable
from guardwrap.models.embedded_model import load_local
from guardwrap.models.gguf_pipeline import gguf_pipeline, is_llama, require_tokenizer
from guardwrap.models.prompt_forms import with_kind
from guardwrap.support.model_loading import loading_model
from guardwrap.support.network import cached_or_online
from guardwrap.support.transformers_internals import uncompiled


class TextToTextPipeline(TextGenerationPipeline):
    """A text-generation pipeline for encoder-decoder models, which transformers no longer provides.

    Generation settings are the model's own, with 256 new tokens if it sets no length.
    """

    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def check_model_type(self, supported_models: Any) -> None:
        """Accept models that the text-generation pipeline does not list."""


_WRAPPED = (TextGenerationPipeline, ImageTextToTextPipeline, AutomaticSpeechRecognitionPipeline)


def pipeline_of(generator: Any, tokenizer: Any) -> Pipeline:
    """Return a pipeline for a model, path or Hub id. A pipeline is returned as it is."""
    generator = uncompiled(generator)  # the ``generate`` of what ``torch.compile`` returns is this model's
    if isinstance(generator, Pipeline):
        if tokenizer is not None:
            raise UsageError("a pipeline has its own tokenizer; leave tokenizer= out")
        if hasattr(generator, "guarded"):
            raise UsageError("the pipeline is guarded already; wrap its .guarded.pipeline with both constraints: a & b")
        pipe = generator
        _require_task(pipe)
        require_callable(pipe)
    elif generator == "local":
        pipe = _pipeline_of(*load_local())
    elif is_llama(generator) or (isinstance(generator, str | Path) and Path(generator).suffix == ".gguf"):
        pipe = gguf_pipeline(generator, tokenizer)
    elif isinstance(generator, str | Path):
        pipe = _loaded(str(generator), tokenizer)
    elif isinstance(generator, PreTrainedModel) or hasattr(generator, "get_base_model"):
        if tokenizer is None:
            raise UsageError("a model needs its tokenizer: GuardedGenerator(model, constraints, tokenizer=tokenizer)")
        require_tokenizer(tokenizer)
        pipe = _pipeline_of(generator, tokenizer)
    elif isinstance(getattr(generator, "module", None), PreTrainedModel):
        raise UsageError(f"cannot wrap {type(generator).__name__}, which cannot generate texts; give its .module")
    else:
        raise UsageError(
            f"cannot wrap {type(generator).__name__}; give a pipeline, a model with tokenizer=, a Hub id, a path or "
            "'local'"
        )
    if pipe.tokenizer is None:
        raise UsageError("the pipeline has no tokenizer, so texts cannot be judged; give one that has")
    return pipe


def _loaded(source: str, tokenizer: Any) -> TextGenerationPipeline:
    """Load a model. Encoder-decoder models are loaded explicitly: ``pipeline`` would take only their decoder."""
    name = source
    try:
        source = cached_or_online(source)
        try:
            config, _ = PreTrainedConfig.get_config_dict(source)
        except OSError:  # an adapter has no config; the pipeline handles it, or explains what is missing
            config = {}
        if not config.get("is_encoder_decoder"):
            with loading_model():
                return pipeline("text-generation", model=source, tokenizer=tokenizer)
        with loading_model():
            model = AutoModelForSeq2SeqLM.from_pretrained(source)
        if tokenizer is None or isinstance(tokenizer, str):
            tokenizer = AutoTokenizer.from_pretrained(tokenizer or source)
    except Exception as error:  # a damaged file can make the libraries raise anything
        raise ModelError(f"cannot load the model {name!r}{nearest(name, ['local'])}: {with_kind(error)}") from None
    return _pipeline_of(model, tokenizer)


def require_model(source: str) -> None:
    """Require that the configuration of a model or adapter can be read. Its weights are not."""
    if source == "local":
        return
    try:
        place = cached_or_online(source)
        if find_adapter_config_file(place) is None and not PreTrainedConfig.get_config_dict(place)[0]:
            raise OSError("it has no config.json")
    except Exception as error:  # a damaged file can make the libraries raise anything
        raise ModelError(f"cannot load the model {source!r}{nearest(source, ['local'])}: {with_kind(error)}") from None


def image_pipeline(source: str) -> ImageTextToTextPipeline:
    """Return the pipeline of a model that takes images."""
    try:
        source = cached_or_online(source)
        with loading_model():
            return pipeline("image-text-to-text", model=source)
    except Exception as error:  # a damaged file can make the libraries raise anything
        raise ModelError(f"cannot load {source!r} as a model that takes images: {with_kind(error)}") from None


def _pipeline_of(model: Any, tokenizer: Any) -> TextGenerationPipeline:
    kind = TextGenerationPipeline
    if model.config.is_encoder_decoder:
        kind = TextToTextPipeline
        if model.main_input_name != "input_ids":
            raise UsageError(f"{type(model).__name__} does not read text; give its pipeline instead of the model")
    side = tokenizer.padding_side
    device = None if getattr(model, "hf_device_map", None) else model.device
    pipe = kind(model=model, tokenizer=tokenizer, device=device, task="text-generation")
    tokenizer.padding_side = side  # undo the change by the pipeline, as guardwrap does not pad with the tokenizer
    return pipe


def _require_task(pipe: Pipeline) -> None:
    """Require a pipeline that draws texts."""
    if isinstance(pipe, AutomaticSpeechRecognitionPipeline) and not pipe.type.startswith("seq2seq"):
        raise UsageError(
            f"{type(pipe.model).__name__} is not supported: it gives one transcription and no distribution to draw "
            "from; use a speech model with a decoder, e.g. Whisper"
        )
    if not isinstance(pipe, _WRAPPED):
        why = ", which gives no text to judge" if pipe.task in ("text-to-audio", "text-to-speech") else ""
        raise UsageError(
            f"the pipeline's task is {pipe.task!r}{why}; guardwrap wraps 'text-generation', 'image-text-to-text' and "
            "'automatic-speech-recognition'"
        )
    if type(pipe) is TextGenerationPipeline and pipe.model.config.is_encoder_decoder:
        raise UsageError(
            "the text-generation pipeline cuts off the beginning of an encoder-decoder model's texts; "
            "pass the model itself: GuardedGenerator(model, constraints, tokenizer=tokenizer)"
        )


def has_dropout(model: Any) -> bool:
    """Whether dropout is active, so that the model itself is random."""
    if any(module.training and module.p > 0 for module in model.modules() if isinstance(module, torch.nn.Dropout)):
        return True
    config = model.config.get_text_config()  # some models apply dropout without a module
    return model.training and any(getattr(config, name, 0) for name in _DROPOUTS)


_DROPOUTS = ("attention_dropout", "dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
