"""The class that reads and renders the calls of a pipeline, by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutomaticSpeechRecognitionPipeline, ImageTextToTextPipeline
from transformers.pipelines import Pipeline

from guardwrap.pipelines.calls import Call, TextToTextCall
from guardwrap.pipelines.loading import TextToTextPipeline
from guardwrap.pipelines.media import SpeechCall, VisionCall, WhisperCall


def call_kind(pipe: Pipeline) -> type[Call]:
    """Return the class of a pipeline's calls."""
    if isinstance(pipe, ImageTextToTextPipeline):
        return VisionCall
    if isinstance(pipe, AutomaticSpeechRecognitionPipeline):
        return WhisperCall if pipe.type == "seq2seq_whisper" else SpeechCall
    return TextToTextCall if isinstance(pipe, TextToTextPipeline) else Call


def call_of(pipe: Pipeline, options: Mapping[str, Any]) -> Call:
    """Read the arguments of a call as the pipeline does."""
    return call_kind(pipe).read(pipe, options)
