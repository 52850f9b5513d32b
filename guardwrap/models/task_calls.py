"""Calls of pipelines for images and for speech, and the class for each task.

Texts and records of these calls come from running the pipeline's ``postprocess`` on one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jinja2 import TemplateError
from transformers import AutomaticSpeechRecognitionPipeline, GenerationConfig, ImageTextToTextPipeline
from transformers.pipelines import Pipeline

from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.errors import PromptError, UsageError
from guardwrap.models.calls import Call, TextToTextCall, message_record, output_record, return_type
from guardwrap.models.loading import TextToTextPipeline
from guardwrap.models.prepare import PreparedPrompt, require_settings
from guardwrap.models.prompt_forms import taken, what_is_wrong
from guardwrap.outcomes import Draw
from guardwrap.support.transformers_internals import NEW_TEXT_BESIDE_IMAGES

_SETTINGS = frozenset(vars(GenerationConfig())) | {"generation_config", "logits_processor", "stopping_criteria"}


@dataclass(frozen=True)
class MediaCall(Call):
    """The common part of calls with images and calls with speech."""

    causal: ClassVar[bool] = False
    media: ClassVar[bool] = True
    sequence_name: ClassVar[str] = "generated_sequence"
    """The key of the tokens in the output of ``forward``."""

    ends_with_end: ClassVar[bool] = True
    """Whether those tokens include the end-of-sequence token."""

    @classmethod
    def _reading(cls, postprocess: Mapping[str, Any], templated: bool) -> dict[str, Any]:
        return {name: value for name, value in postprocess.items() if name != "return_type"}

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[PreparedPrompt]:
        """Preprocess numbered prompts and resolve their laws; see ``Call.prompts``."""
        for number, prompt in given:
            inputs = self._inputs(number, prompt)
            law = self.law_of(inputs)
            self._require_untouched(law)
            yield self._prepared(number, prompt, self._prompt_text(inputs), law, prompt)

    def _inputs(self, number: int, prompt: Any) -> dict[str, Any]:
        # Copy the prompt: the speech pipeline removes the entries that it has read.
        prompt = dict(prompt) if isinstance(prompt, Mapping) else prompt
        try:
            pieces = self._pieces(self.encoded(prompt))
        except (ValueError, TypeError, LookupError, OSError, TemplateError) as error:
            raise PromptError(f"prompt {number}: {what_is_wrong(prompt, error)}") from None
        if len(pieces) != 1:
            raise PromptError(
                f"prompt {number}: the audio is cut into {len(pieces)} pieces, each with a text of its own; "
                "leave chunk_length_s out and pass shorter audio"
            )
        return dict(pieces[0])

    def _pieces(self, inputs: Any) -> list[Any]:
        """Return the outputs of ``preprocess`` for one prompt, as a list."""
        return [inputs]

    def _prompt_text(self, inputs: Mapping[str, Any]) -> str:
        """Return the text of a prompt, from the output of ``preprocess``."""
        return ""

    def unparsed(self, law: GenerationLaw, ids: Sequence[int]) -> str:
        """Return the text of new tokens before the pipeline parses it."""
        return self._text(law.outputs, self._sequence(law, self._trimmed(law, ids)))

    def _sequence(self, law: GenerationLaw, ids: Sequence[int]) -> torch.Tensor:
        """Return the sequence that ``generate`` would return for new tokens, ``[1, length]``."""
        return torch.cat([law.prompt_ids[None].cpu(), torch.tensor([ids], dtype=torch.long)], dim=1)

    def _require_untouched(self, law: GenerationLaw) -> None:
        """Reject a model whose ``generate`` changes the tokens that were drawn."""
        begin = self._sequence(law, ()).flatten().tolist()
        returned = law.outputs[self.sequence_name].flatten().tolist()
        # The law was resolved with a stand-in for drawn tokens: a single end-of-sequence token.
        if returned[: len(begin)] != begin or len(returned) != len(begin) + self.ends_with_end:
            raise UsageError(f"{type(self.pipe.model).__name__} is not supported: its generate changes drawn tokens")

    def _record(self, outputs: Mapping[str, Any], sequence: torch.Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of a sequence; ``outputs`` is the output of ``forward`` for the prompt."""
        raise NotImplementedError

    def _text(self, outputs: Mapping[str, Any], sequence: torch.Tensor) -> str:
        """Return the text of a sequence."""
        raise NotImplementedError


@dataclass(frozen=True)
class VisionCall(MediaCall):
    """A call of the image-text-to-text pipeline."""

    unread: ClassVar[str] = "is not a string, a chat or {'images': ..., 'text': '...'}"

    @classmethod
    def _options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        # The pipeline would pass these to its processor. max_length is also an argument of the processor, so it stays.
        names = (_SETTINGS & options.keys()) - {"max_length", "max_new_tokens"}
        rest = {name: value for name, value in options.items() if name not in names}
        moved = {name: options[name] for name in names}
        return {**rest, "generate_kwargs": {**(options.get("generate_kwargs") or {}), **moved}}

    @classmethod
    def _settings(cls, forward: dict[str, Any]) -> dict[str, Any]:
        return forward.get("generate_kwargs") or {}

    @classmethod
    def _for_forward(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return {"generate_kwargs": settings}

    @classmethod
    def with_named_inputs(cls, prompts: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return prompts, with ``images`` and ``text`` put together as the pipeline does, and the other options."""
        names = ("images", "text")
        rest = {name: value for name, value in options.items() if name not in names}
        parts = {name: options[name] for name in names if options.get(name) is not None}
        if prompts is None and not parts:
            raise PromptError("there is no prompt: give a string, a chat or a list of them")
        if "text" not in parts:
            return parts.get("images", prompts), rest
        if prompts is not None:
            parts["images"] = prompts
        if "images" not in parts:
            return parts["text"], rest
        if not isinstance(parts["text"], str):
            raise PromptError("pass several prompts as a list: [{'images': ..., 'text': '...'}, ...]")
        return parts, rest

    @classmethod
    def one_prompt(cls, prompt: Any, number: int) -> Any:
        """Read one of several prompts."""
        if isinstance(prompt, Mapping) and isinstance(prompt.get("text"), str) and "images" in prompt:
            return taken(prompt)
        return super().one_prompt(prompt, number)

    def _prompt_text(self, inputs: Mapping[str, Any]) -> str:
        text = inputs["text"]
        if not isinstance(text, str):
            text = self.pipe.tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True)
        return str(text)

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return the text of all tokens, if the user receives tokens."""
        if return_type(self.postprocess) != "TENSORS":
            return None
        sequence = self._sequence(prompt.law, ids)[0]
        together: str = self.pipe.tokenizer.decode(sequence, skip_special_tokens=True)
        return together

    def text_alone(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens, decoded without a prompt."""
        outputs = {"prompt_text": "", "input_ids": torch.zeros(1, 0, dtype=torch.long)}
        return self._text(outputs, torch.tensor([ids], dtype=torch.long))

    def records(self, prompt: PreparedPrompt, draws: Sequence[Draw], others: Sequence[str | None]) -> Any:
        """Render the texts of a prompt in the pipeline's format."""
        law = prompt.law
        given = law.outputs["prompt_text"]
        about = {"input_text": getattr(given, "messages", given)}
        records = []
        for draw in draws:
            if draw.message is not None:
                records.append(about | message_record(given.messages, draw.message))
                continue
            sequence = self._sequence(law, self._shown(draw.token_ids, law))
            records.append(self._record(law.outputs, sequence, self.postprocess))
        return records + [about | output_record(given, text, self.postprocess) for text in others]

    def _record(self, outputs: Mapping[str, Any], sequence: torch.Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        records: list[dict[str, Any]] = self.pipe.postprocess({**outputs, "generated_sequence": sequence}, **options)
        return records[0]

    def _text(self, outputs: Mapping[str, Any], sequence: torch.Tensor) -> str:
        options = {**self.reading, "return_type": NEW_TEXT_BESIDE_IMAGES}
        return str(self._record(outputs, sequence, options)["generated_text"])


@dataclass(frozen=True)
class SpeechCall(MediaCall):
    """A call of the speech recognition pipeline around a model with a decoder."""

    named: ClassVar[str] = "inputs"
    reads_text: ClassVar[bool] = False
    sequence_name: ClassVar[str] = "tokens"

    @classmethod
    def _templated(cls, pipe: Pipeline) -> bool:
        return False  # this pipeline ignores the tokenizer's template

    @classmethod
    def one_prompt(cls, prompt: Any, number: int) -> Any:
        """Read one of several prompts."""
        return taken(prompt)

    def _pieces(self, inputs: Any) -> list[Any]:
        return list(inputs)

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return None: audio has no text."""
        return None

    def text_alone(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens, decoded without a prompt."""
        return self._text({"is_last": True}, torch.tensor([ids], dtype=torch.long))

    def records(self, prompt: PreparedPrompt, draws: Sequence[Draw], others: Sequence[str | None]) -> Any:
        """Render the texts of a prompt in the pipeline's format: a single text is not in a list."""
        law = prompt.law
        sequences = [self._sequence(law, draw.token_ids) for draw in draws]
        records = [self._record(law.outputs, sequence, self.postprocess) for sequence in sequences]
        records += [{"text": text} for text in others]
        return records[0] if len(records) == 1 else records

    def _record(self, outputs: Mapping[str, Any], sequence: torch.Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        # Pass a new dictionary, as postprocess removes its entries.
        record: dict[str, Any] = self.pipe.postprocess([{**outputs, "tokens": sequence}], **options)
        return record

    def _text(self, outputs: Mapping[str, Any], sequence: torch.Tensor) -> str:
        return str(self._record(outputs, sequence, self.reading)["text"])


@dataclass(frozen=True)
class WhisperCall(SpeechCall):
    """A call of the pipeline around Whisper, which has a ``generate`` of its own."""

    sampling: ClassVar[str] = "temperature=1.0"
    ends_with_end: ClassVar[bool] = False

    @classmethod
    def _records_wanted(cls, postprocess: dict[str, Any]) -> dict[str, Any]:
        require_settings(postprocess)  # before a text is decoded with them
        return postprocess

    def _sequence(self, law: GenerationLaw, ids: Sequence[int]) -> torch.Tensor:
        new = torch.tensor([ids], dtype=torch.long)
        return new[:, :-1] if ids and ids[-1] in law.end_ids else new


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
