"""Kinds of pipelines: which can be wrapped, and what is particular about each."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutomaticSpeechRecognitionPipeline,
    GenerationConfig,
    ImageTextToTextPipeline,
    TextGenerationPipeline,
)
from transformers.pipelines import Pipeline

from guardwrap.errors import UsageError

__all__ = ["TextToTextPipeline", "draws_whole", "is_media", "is_speech", "is_vision", "is_whisper", "require_task"]


class TextToTextPipeline(TextGenerationPipeline):
    """The text-generation pipeline around an encoder-decoder model, for which transformers has none any more.

    Settings are the model's own, with 256 new tokens where it says nothing of lengths.
    """

    _default_generation_config = GenerationConfig(max_new_tokens=256)

    def check_model_type(self, supported_models: Any) -> None:
        """Take models that the text-generation pipeline does not know."""


def is_vision(pipe: Pipeline) -> bool:
    """Whether its prompts are images and text."""
    return isinstance(pipe, ImageTextToTextPipeline)


def is_speech(pipe: Pipeline) -> bool:
    """Whether its prompts are audio."""
    return isinstance(pipe, AutomaticSpeechRecognitionPipeline)


def is_media(pipe: Pipeline) -> bool:
    """Whether its prompts are more than text."""
    return is_vision(pipe) or is_speech(pipe)


def is_whisper(pipe: Pipeline) -> bool:
    """Whether its model is Whisper, whose ``generate`` is unlike the others'."""
    return is_speech(pipe) and pipe.type == "seq2seq_whisper"


def draws_whole(pipe: Pipeline) -> bool:
    """Whether its texts are drawn by transformers' own loop; see ``whole``."""
    return is_media(pipe) or isinstance(pipe, TextToTextPipeline)


def require_task(pipe: Pipeline) -> None:
    """Refuse pipelines that have no text to draw.

    Raises
    ------
    UsageError
        Says why.
    """
    if is_speech(pipe) and not pipe.type.startswith("seq2seq"):
        raise UsageError(
            f"{type(pipe.model).__name__} is not supported: it gives one transcription and no distribution to draw "
            "from; take a speech model with a decoder, e.g. Whisper"
        )
    if not is_media(pipe) and not isinstance(pipe, TextGenerationPipeline):
        why = ", which gives no text to judge" if pipe.task in ("text-to-audio", "text-to-speech") else ""
        raise UsageError(
            f"the pipeline's task is {pipe.task!r}{why}; guardwrap wraps 'text-generation', 'image-text-to-text' and "
            "'automatic-speech-recognition'"
        )
    if type(pipe) is TextGenerationPipeline and pipe.model.config.is_encoder_decoder:
        raise UsageError(
            "the text-generation pipeline cuts the beginning off an encoder-decoder model's texts; "
            "give the model itself: GuardedGenerator(model, constraints, tokenizer=tokenizer)"
        )
