"""One call of a pipeline: how its inputs become prompts, and how new tokens become texts and records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import GenerationConfig
from transformers.pipelines import Pipeline, image_text_to_text, text_generation
from transformers.utils.chat_template_utils import Chat

from guardwrap.draws import Draw
from guardwrap.engine.formats import record, return_type, unpadded, what_is_wrong
from guardwrap.engine.prefix import StablePrefix
from guardwrap.engine.prepare import Settings, one_at_a_time, prepare, require_context
from guardwrap.engine.serve import Prompt
from guardwrap.engine.tasks import TextToTextPipeline, is_media, is_speech, is_vision, is_whisper
from guardwrap.errors import PromptError, UsageError

__all__ = ["OWN", "Call", "MediaCall", "TensorCall", "call_of"]

OWN = ("constraints", "sampler", "budget", "seed", "batch_size", "proposal", "adapter")
"""guardwrap's own options of a call."""


@dataclass(frozen=True)
class Call:
    """A call of a pipeline whose prompts are text.

    Parameters
    ----------
    pipe
        The pipeline.
    preprocess, forward, postprocess
        What it makes of the user's arguments, its own from construction included. ``forward`` has those of
        ``generate``.
    reading
        What the text of given tokens depends on: arguments of ``decode``, or of ``postprocess`` for images and speech.
    parses
        Whether the pipeline parses a chat's answer, as it does with some tokenizers.
    """

    pipe: Pipeline
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    forward: Mapping[str, Any] = field(default_factory=dict)
    postprocess: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    parses: bool = False

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[Prompt]:
        """Preprocess numbered prompts and resolve their settings.

        Parameters
        ----------
        given
            As ``read_prompts`` returns them.
        capacity
            Of how many prompts the settings are kept: equal ones under way together share one prefill.

        Raises
        ------
        PromptError
            If a prompt cannot be read.
        """
        recent: OrderedDict[tuple[int, ...], Settings] = OrderedDict()
        for number, prompt in given:
            try:
                inputs = self.encoded(prompt)
            except Exception as error:  # of a chat template, whatever its code raises
                raise PromptError(f"prompt {number}: {what_is_wrong(prompt, error)}") from None
            if not inputs["input_ids"].shape[1]:
                raise PromptError(
                    f"prompt {number} is empty, and this tokenizer adds no token to begin with; "
                    "give it text, e.g. the tokenizer's bos_token"
                )
            (ids,) = unpadded(inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])))
            key = tuple(ids.tolist())
            if key not in recent:
                require_context(self.pipe.model, len(key))
                inputs = {**inputs, "input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
                recent[key] = self.settings(inputs)
            recent.move_to_end(key)
            while len(recent) > capacity:
                recent.popitem(last=False)
            text = prompt if isinstance(prompt, str) else self.pipe.tokenizer.decode(key, skip_special_tokens=True)
            yield Prompt(number, getattr(prompt, "messages", prompt), text, recent[key])

    def encoded(self, prompt: Any) -> Any:
        """Preprocess a prompt as the pipeline does; truncation and padding are states of the tokenizer meanwhile."""
        with one_at_a_time:
            return self.pipe.preprocess(prompt, **self.preprocess)

    def settings(self, inputs: Mapping[str, Any]) -> Settings:
        """Resolve the settings for what ``preprocess`` made of a prompt."""
        pipe = self.pipe

        def forward(**kwargs: Any) -> Any:
            return pipe.forward(dict(inputs), **({"generate_kwargs": kwargs} if is_vision(pipe) else kwargs))

        return prepare(pipe.model, forward, self.forward, tokenizer=pipe.tokenizer, known=OWN, media=is_media(pipe))

    def alone(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens after no prompt at all."""
        text: str = self.pipe.tokenizer.decode(ids, **self.reading)
        return text

    def stable_prefix(self) -> StablePrefix:
        """Make the decoder of unfinished attempts, and test whether it can be used."""
        tokenizer = self.pipe.tokenizer
        with one_at_a_time:
            stable = StablePrefix(tokenizer, self.alone)
        clean = self.reading.get("clean_up_tokenization_spaces")
        if clean or (clean is None and getattr(tokenizer, "clean_up_tokenization_spaces", False)):
            stable.works = False
        return stable

    def growing(self, settings: Settings, ids: Sequence[int]) -> str:
        """Return the text of new tokens before the pipeline parses it."""
        return self.alone(ids)

    def text(self, prompt: Prompt, ids: Sequence[int]) -> str:
        """Return the text of new tokens as the user gets it: what is judged."""
        given = prompt.given
        if not self.parses or isinstance(given, str | Mapping) or given[-1]["role"] == "assistant":
            return self.growing(prompt.settings, ids)
        return str(self.message(prompt, ids).get("content") or "")

    def draw(
        self, prompt: Prompt, ids: Sequence[int], finished: bool = True, log_probability: float | None = None
    ) -> Draw:
        """Return an attempt as the user gets it: what is judged. Parameters are those of a Draw."""
        text = self.text(prompt, ids)
        return Draw(prompt.text, tuple(ids), text, finished, log_probability, self.full(prompt, ids))

    def full(self, prompt: Prompt, ids: Sequence[int]) -> str | None:
        """Return prompt and new tokens as the user reads them, where that is not the prompt's text and the new text."""
        if return_type(self.postprocess) != "TENSORS" or isinstance(self.pipe, TextToTextPipeline):
            return None
        target = prompt.target or prompt.settings
        together: str = self.pipe.tokenizer.decode([*target.ids, *ids], **self.reading)
        return together

    def message(self, prompt: Prompt, ids: Sequence[int]) -> Any:
        """Return the message that the pipeline parses from a chat's answer."""
        target = prompt.target or prompt.settings
        before = self.pipe.tokenizer.decode(target.prompt_ids, **self.reading)
        return self.pipe.tokenizer.parse_response(self.growing(target, ids), prefix=before)

    def records(self, prompt: Prompt, drawn: Sequence[Sequence[int]], others: Sequence[str | None]) -> Any:
        """Render what a prompt got, as the pipeline would.

        Parameters
        ----------
        drawn
            New tokens of each text.
        others
            Texts that no tokens stand behind, and None for each text that is missing.
        """
        given = prompt.given if isinstance(prompt.given, str) else Chat(prompt.given)
        ids = self.encoded(given)["input_ids"]
        if isinstance(self.pipe, TextToTextPipeline):
            ids = prompt.settings.prompt_ids[None].cpu()
        records: list[dict[str, Any]] = []
        for new in drawn:
            # One at a time, so that no padding gets into a text that was judged without it.
            sequence = torch.cat([ids, torch.tensor([new], dtype=ids.dtype)], dim=1)
            rendered = {"generated_sequence": sequence[None], "input_ids": ids, "prompt_text": given}
            records += self.pipe.postprocess(rendered, **self.postprocess)
        return records + [record(given, text, self.postprocess) for text in others]


@dataclass(frozen=True)
class TensorCall(Call):
    """A call of ``generate``: tensors come in and tensors go out, and the user decodes them.

    Parameters
    ----------
    begins
        Of each prompt, by its number, the tokens that a returned row begins with, padding included.
    """

    begins: Sequence[Sequence[int]] = ()

    def full(self, prompt: Prompt, ids: Sequence[int]) -> str | None:
        """Return the text of a whole row; of an encoder-decoder model, whose rows lack the prompt, there is none."""
        if isinstance(self.pipe, TextToTextPipeline):
            return None
        together: str = self.pipe.tokenizer.decode([*self.begins[prompt.number], *ids], **self.reading)
        return together


class MediaCall(Call):
    """A call of a pipeline for images or speech.

    What a text is, and what the record around it, is whatever ``postprocess`` makes of one sequence alone.
    """

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[Prompt]:
        """Preprocess numbered prompts and resolve their settings; parameters as for text."""
        for number, prompt in given:
            inputs = self._inputs(number, prompt)
            text = "" if is_speech(self.pipe) else inputs["text"]
            if not isinstance(text, str):
                text = self.pipe.tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True)
            settings = self.settings(inputs)
            self._require_untouched(settings)
            yield Prompt(number, getattr(prompt, "messages", prompt), text, settings)

    def _inputs(self, number: int, prompt: Any) -> dict[str, Any]:
        # A copy, for the speech pipeline takes out what it has read.
        prompt = dict(prompt) if isinstance(prompt, Mapping) else prompt
        try:
            inputs = self.encoded(prompt)
            pieces = list(inputs) if is_speech(self.pipe) else [inputs]
        except (ValueError, TypeError, LookupError, OSError, TemplateError) as error:
            raise PromptError(f"prompt {number}: {what_is_wrong(prompt, error)}") from None
        if len(pieces) != 1:
            raise PromptError(
                f"prompt {number}: the audio is cut into {len(pieces)} pieces whose texts are put together afterwards; "
                "leave chunk_length_s out and give shorter audio"
            )
        return dict(pieces[0])

    def full(self, prompt: Prompt, ids: Sequence[int]) -> str | None:
        """Return the text of all tokens, where they are what the user gets."""
        if is_speech(self.pipe) or return_type(self.postprocess) != "TENSORS":
            return None
        sequence = self._sequence(prompt.settings, ids)[0]
        together: str = self.pipe.tokenizer.decode(sequence, skip_special_tokens=True)
        return together

    def alone(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens after no prompt at all."""
        outputs = {"prompt_text": "", "input_ids": torch.zeros(1, 0, dtype=torch.long)}
        return self._text({"is_last": True} if is_speech(self.pipe) else outputs, torch.tensor([ids], dtype=torch.long))

    def growing(self, settings: Settings, ids: Sequence[int]) -> str:
        """Return the text of new tokens before the pipeline parses it."""
        return self._text(settings.outputs, self._sequence(settings, ids))

    def message(self, prompt: Prompt, ids: Sequence[int]) -> Any:
        """Return the message that the pipeline parses from a chat's answer."""
        sequence = self._sequence(prompt.settings, ids)
        return self._record(prompt.settings.outputs, sequence, self.postprocess)["generated_text"][-1]

    def records(self, prompt: Prompt, drawn: Sequence[Sequence[int]], others: Sequence[str | None]) -> Any:
        """Render what a prompt got: for speech a single text without a list, as the pipeline does."""
        settings = prompt.settings
        records = [self._record(settings.outputs, self._sequence(settings, ids), self.postprocess) for ids in drawn]
        if is_speech(self.pipe):
            records += [{"text": text} for text in others]
            return records[0] if len(records) == 1 else records
        given = settings.outputs["prompt_text"]
        about = {"input_text": getattr(given, "messages", given)}
        return records + [about | record(given, text, self.postprocess) for text in others]

    def _sequence(self, settings: Settings, ids: Sequence[int]) -> torch.Tensor:
        """Return what the model's ``generate`` would give for new tokens, ``[1, length]``."""
        new = torch.tensor([ids], dtype=torch.long)
        if is_whisper(self.pipe):
            return new[:, :-1] if ids and ids[-1] in settings.end_ids else new
        return torch.cat([settings.prompt_ids[None].cpu(), new], dim=1)

    def _require_untouched(self, settings: Settings) -> None:
        """Refuse a model whose ``generate`` makes other tokens of those that were drawn."""
        begin = self._sequence(settings, ()).flatten().tolist()
        found = settings.outputs["tokens" if is_speech(self.pipe) else "generated_sequence"].flatten().tolist()
        # What stood in for drawn tokens is the end alone, which Whisper takes off.
        if found[: len(begin)] != begin or len(found) != len(begin) + (not is_whisper(self.pipe)):
            raise UsageError(f"{type(self.pipe.model).__name__} is not supported: its generate rewrites what was drawn")

    def _record(self, outputs: Mapping[str, Any], sequence: torch.Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of a sequence, with what ``forward`` returned for the prompt: ``Settings.outputs``."""
        if is_speech(self.pipe):
            # In a dictionary of its own, for postprocess takes it apart.
            record: dict[str, Any] = self.pipe.postprocess([{**outputs, "tokens": sequence}], **options)
            return record
        (record,) = self.pipe.postprocess({**outputs, "generated_sequence": sequence}, **options)
        return record

    def _text(self, outputs: Mapping[str, Any], sequence: torch.Tensor) -> str:
        if is_speech(self.pipe):
            return str(self._record(outputs, sequence, self.reading)["text"])
        options = {**self.reading, "return_type": image_text_to_text.ReturnType.NEW_TEXT}
        return str(self._record(outputs, sequence, options)["generated_text"])


_SETTINGS = frozenset(vars(GenerationConfig())) | {"generation_config", "logits_processor", "stopping_criteria"}


def call_of(pipe: Pipeline, options: Mapping[str, Any]) -> Call:
    """Read the arguments of a call as the pipeline does.

    Raises
    ------
    UsageError
        If the pipeline refuses one.
    """
    options = dict(options)
    if is_vision(pipe):
        # It would give them to its processor. max_length is the processor's too, and stays its.
        names = (_SETTINGS & options.keys()) - {"max_length", "max_new_tokens"}
        moved = {name: options.pop(name) for name in names}
        options["generate_kwargs"] = {**(options.get("generate_kwargs") or {}), **moved}
    prefix = options.get("prefix")
    if not (prefix is None or isinstance(prefix, str) or is_media(pipe)):
        raise UsageError(f"prefix={prefix!r} is no string")
    try:
        with one_at_a_time:  # a prefix is tokenized
            preprocess, forward, postprocess = pipe._sanitize_parameters(**options)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the pipeline does not take its arguments: {what_is_wrong(prefix, error)}") from None
    forward = {**pipe._forward_params, **forward}
    if is_vision(pipe):
        forward = forward.get("generate_kwargs") or {}
    if "generation_config" not in forward:
        forward = {**pipe._generate_kwargs, **forward}
    postprocess = {**pipe._postprocess_params, **postprocess}
    if isinstance(pipe, TextToTextPipeline) and return_type(postprocess) == "FULL_TEXT":
        postprocess["return_type"] = text_generation.ReturnType.NEW_TEXT  # its texts do not continue their prompts
    template = getattr(pipe.tokenizer, "response_template", None) is not None
    full = return_type(postprocess) == "FULL_TEXT"
    parses = template and full and not is_speech(pipe) and not postprocess.get("continue_final_message")
    preprocess = {**pipe._preprocess_params, **preprocess}
    if is_media(pipe):
        reading = {name: value for name, value in postprocess.items() if name != "return_type"}
        return MediaCall(pipe, preprocess, forward, postprocess, reading, parses)
    skip = postprocess.get("skip_special_tokens")
    clean = postprocess.get("clean_up_tokenization_spaces")
    reading = {"skip_special_tokens": not template and (skip is None or skip), "clean_up_tokenization_spaces": clean}
    return Call(pipe, preprocess, forward, postprocess, reading, parses)
