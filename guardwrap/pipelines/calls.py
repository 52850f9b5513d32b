"""One call of a text-generation pipeline: how its inputs become prompts, and how new tokens become texts and records.

Calls of pipelines for images and speech are in ``media``; ``tasks.call_of`` finds the class for a pipeline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers.pipelines import Pipeline

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.environment.transformers_internals import NEW_TEXT, Chat, read_arguments, tokenizer_lock
from guardwrap.errors import PromptError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.pipelines.early_abort import StablePrefix
from guardwrap.pipelines.messages import (
    UNPARSED,
    has_template,
    message_fault,
    message_text,
    require_template,
    unfinished,
)
from guardwrap.pipelines.minimum_tokens import fewest_tokens
from guardwrap.pipelines.output_records import output_record, return_type
from guardwrap.pipelines.prepare import PreparedPrompt, prepare, require_context
from guardwrap.pipelines.prompt_forms import PromptReader, unpadded, what_is_wrong

__all__ = ["CALL_OPTIONS", "Call", "TensorCall", "TextToTextCall"]

CALL_OPTIONS = ("constraints", "constraint_each", "sampler", "budget", "seed", "batch_size", "proposal", "adapter")
"""guardwrap's own options of a call."""


@dataclass(frozen=True)
class Call(PromptReader):
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
    trims
        Whether texts end before the end-of-sequence token. A tokenizer with a ``response_template`` has the pipeline
        keep it, and no answer would be JSON; ``skip_special_tokens=False`` keeps it here too.
    """

    causal: ClassVar[bool] = True
    """Whether attempts are drawn by our own loop, and can be weighed."""

    sampling: ClassVar[str] = "do_sample=True, num_beams=1"
    """The arguments that make it sample."""

    pipe: Pipeline
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    forward: Mapping[str, Any] = field(default_factory=dict)
    postprocess: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    parses: bool = False
    trims: bool = False

    @classmethod
    def read(cls, pipe: Pipeline, options: Mapping[str, Any]) -> Call:
        """Read the arguments of a call as the pipeline does.

        Raises
        ------
        UsageError
            If the pipeline refuses one.
        """
        prefix = options.get("prefix")
        if not (prefix is None or isinstance(prefix, str) or cls.media):
            raise UsageError(f"prefix={prefix!r} is no string")
        try:
            preprocess, forward, postprocess, settings = read_arguments(pipe, cls._options(options))
        except (ValueError, TypeError) as error:
            raise UsageError(f"the pipeline does not take its arguments: {what_is_wrong(prefix, error)}") from None
        forward = cls._settings(forward)
        if "generation_config" not in forward:
            forward = {**settings, **forward}
        postprocess = cls._records_wanted(postprocess)
        templated = cls._templated(pipe)
        if templated:
            require_template(pipe.tokenizer)
        parses = templated and return_type(postprocess) == "FULL_TEXT" and not postprocess.get("continue_final_message")
        trims = templated and postprocess.get("skip_special_tokens") is not False
        reading = cls._reading(postprocess, templated)
        return cls(pipe, preprocess, forward, postprocess, reading, parses, trims)

    @classmethod
    def _options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments under the names by which the pipeline hands them to ``generate``."""
        return dict(options)

    @classmethod
    def _settings(cls, forward: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``generate`` among those of ``forward``."""
        return forward

    @classmethod
    def _records_wanted(cls, postprocess: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``postprocess``."""
        return postprocess

    @classmethod
    def _reading(cls, postprocess: Mapping[str, Any], templated: bool) -> dict[str, Any]:
        """Return the arguments with which the pipeline decodes new tokens."""
        skip = postprocess.get("skip_special_tokens")
        clean = postprocess.get("clean_up_tokenization_spaces")
        return {"skip_special_tokens": not templated and (skip is None or skip), "clean_up_tokenization_spaces": clean}

    @classmethod
    def _templated(cls, pipe: Pipeline) -> bool:
        """Whether the tokenizer says how answers are parsed."""
        return has_template(pipe.tokenizer)

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[PreparedPrompt]:
        """Preprocess numbered prompts and resolve their laws.

        Parameters
        ----------
        given
            As ``read_prompts`` returns them.
        capacity
            Of how many prompts the laws are kept: equal ones under way together share one prefill.

        Raises
        ------
        PromptError
            If a prompt cannot be read.
        """
        recent: OrderedDict[tuple[int, ...], GenerationLaw] = OrderedDict()
        known: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # strings that were encoded already
        for number, prompt in given:
            plain = prompt if isinstance(prompt, str) else None
            ids = known.get(plain) if plain is not None else None
            if ids is None or ids not in recent:
                ids, inputs = self._encoded_ids(number, prompt)
                if ids not in recent:
                    require_context(self.pipe.model, len(ids))
                    recent[ids] = self.law_of(inputs)
            recent.move_to_end(ids)
            if plain is not None:
                known[plain] = ids
                known.move_to_end(plain)
            for cache in (recent, known):
                while len(cache) > capacity:
                    cache.popitem(last=False)
            text = prompt if plain is not None else self.pipe.tokenizer.decode(ids, skip_special_tokens=True)
            yield PreparedPrompt(number, getattr(prompt, "messages", prompt), text, recent[ids])

    def _encoded_ids(self, number: int, prompt: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Return a prompt's tokens without padding, and all of what ``preprocess`` makes of it."""
        try:
            inputs = self.encoded(prompt)
        except PromptError:
            raise
        except Exception as error:  # of a chat template, whatever its code raises
            raise PromptError(f"prompt {number}: {what_is_wrong(prompt, error)}") from None
        if not inputs["input_ids"].shape[1]:
            raise PromptError(
                f"prompt {number} is empty, and this tokenizer adds no token to begin with; "
                "give it text, e.g. the tokenizer's bos_token"
            )
        (ids,) = unpadded(inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])))
        inputs = {**inputs, "input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        return tuple(ids.tolist()), inputs

    def encoded(self, prompt: Any) -> Any:
        """Preprocess a prompt as the pipeline does; truncation and padding are states of the tokenizer meanwhile."""
        self._require_short(prompt)
        with tokenizer_lock(self.pipe.tokenizer):
            return self.pipe.preprocess(prompt, **self.preprocess)

    def _require_short(self, prompt: Any) -> None:
        """Refuse a prompt that is longer than the context in any case, before it is tokenized."""
        context = getattr(self.pipe.model.config.get_text_config(), "max_position_embeddings", None)
        options = self.preprocess
        cuts = ("truncation", "max_length", "handle_long_generation", "tokenizer_encode_kwargs")
        if context is None or self.media or any(options.get(name) is not None for name in cuts):
            return
        tokenizer = self.pipe.tokenizer
        text = prompt
        if isinstance(prompt, Chat) and fewest_tokens(tokenizer, _contents(prompt), context) > context:
            goes_on = options.get("continue_final_message")  # as the pipeline has it
            goes_on = prompt.messages[-1]["role"] == "assistant" if goes_on is None else goes_on
            how = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
            how |= {name: options.get(name) for name in ("tools", "documents")}
            with suppress(Exception):  # whatever a template raises is told by the pipeline
                text = tokenizer.apply_chat_template(prompt.messages, tokenize=False, **how)
        length = fewest_tokens(tokenizer, text, context) if isinstance(text, str) else 0
        if length > context:
            raise PromptError(
                f"the prompt has at least {length} tokens and the model's context {context}; shorten the prompt"
            )

    def law_of(self, inputs: Mapping[str, Any]) -> GenerationLaw:
        """Resolve the law for what ``preprocess`` made of a prompt."""
        pipe = self.pipe

        def forward(**kwargs: Any) -> Any:
            return pipe.forward(dict(inputs), **self._for_forward(kwargs))

        known = CALL_OPTIONS
        return prepare(pipe.model, forward, self.forward, tokenizer=pipe.tokenizer, known=known, media=self.media)

    @classmethod
    def _for_forward(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``generate`` as ``forward`` takes them."""
        return settings

    def text_alone(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens after no prompt at all."""
        text: str = self.pipe.tokenizer.decode(ids, **self.reading)
        return text

    def stable_prefix(self) -> StablePrefix:
        """Make the decoder of unfinished attempts, and test whether it can be used."""
        tokenizer = self.pipe.tokenizer
        with tokenizer_lock(tokenizer):
            skips = bool(self.reading.get("skip_special_tokens"))
            stable = StablePrefix(tokenizer, self.text_alone, skips=skips)
        clean = self.reading.get("clean_up_tokenization_spaces")
        if clean or (clean is None and getattr(tokenizer, "clean_up_tokenization_spaces", False)):
            stable.works = False
        return stable

    def unparsed(self, law: GenerationLaw, ids: Sequence[int]) -> str:
        """Return the text of new tokens before the pipeline parses it."""
        return self.text_alone(self._trimmed(law, ids))

    def _trimmed(self, law: GenerationLaw, ids: Sequence[int]) -> Sequence[int]:
        """Leave out the token that ended a text, where the pipeline would show it and readers want an answer."""
        if not (self.trims and ids and ids[-1] in law.end_ids):
            return ids
        special = not self.pipe.tokenizer.decode([ids[-1]], skip_special_tokens=True)
        return ids[:-1] if special else ids

    def parsed(self, prompt: PreparedPrompt) -> bool:
        """Whether the user gets a message that the pipeline parses from the answer to this prompt."""
        if not self.parses or isinstance(prompt.given, str | Mapping):
            return False
        begun = prompt.given[-1]["role"] == "assistant"  # its message is continued, unless a setting says otherwise
        return not begun or self.postprocess.get("continue_final_message") is False

    def draw(
        self, prompt: PreparedPrompt, ids: Sequence[int], finished: bool = True, log_probability: float | None = None
    ) -> Draw:
        """Return an attempt as the user gets it: what is judged. Parameters are those of a Draw."""
        text, fault = self._said(prompt, ids, finished)
        return Draw(prompt.text, tuple(ids), text, finished, log_probability, self.full(prompt, ids), fault)

    def _said(self, prompt: PreparedPrompt, ids: Sequence[int], finished: bool) -> tuple[str, str | None]:
        """Return the text that is judged, and why it is no answer, whatever it says."""
        if not self.parsed(prompt):
            return self.unparsed(prompt.law, ids), None
        law, tokenizer = prompt.target or prompt.law, self.pipe.tokenizer
        answer = self.text_alone(ids)
        try:
            message = self.message(prompt, ids)
            fault = message_fault(tokenizer, message)
            if fault is None and not finished:
                before = tokenizer.decode(law.prompt_ids, skip_special_tokens=False)
                fault = unfinished(tokenizer, before, answer)
            return message_text(tokenizer, message), fault
        except Exception:  # of the parser, whatever the answer makes it raise; its message quotes the answer
            return answer, UNPARSED

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return prompt and new tokens as the user reads them, where that is not the prompt's text and the new text."""
        if return_type(self.postprocess) != "TENSORS":
            return None
        target = prompt.target or prompt.law
        together: str = self.pipe.tokenizer.decode([*target.ids, *self._trimmed(target, ids)], **self.reading)
        return together

    def message(self, prompt: PreparedPrompt, ids: Sequence[int]) -> Any:
        """Return the message that the pipeline parses from a chat's answer."""
        (record,) = self._postprocessed(prompt, Chat(prompt.given), self._beginning(prompt, prompt.given), ids)
        return record["generated_text"][-1]

    def records(self, prompt: PreparedPrompt, drawn: Sequence[Sequence[int]], others: Sequence[str | None]) -> Any:
        """Render what a prompt got, as the pipeline would.

        Parameters
        ----------
        drawn
            New tokens of each text.
        others
            Texts that no tokens stand behind, and None for each text that is missing.
        """
        given = prompt.given if isinstance(prompt.given, str) else Chat(prompt.given)
        beginning = self._beginning(prompt, given)
        records: list[dict[str, Any]] = []
        for ids in drawn:
            # One at a time, so that no padding gets into a text that was judged without it.
            records += self._postprocessed(prompt, given, beginning, self._shown(prompt, ids))
        return records + [output_record(given, text, self.postprocess) for text in others]

    def _shown(self, prompt: PreparedPrompt, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens of a text that its record is made of."""
        whole = self.parsed(prompt) or return_type(self.postprocess) == "TENSORS"
        return ids if whole else self._trimmed(prompt.law, ids)

    def _postprocessed(self, prompt: PreparedPrompt, given: Any, beginning: torch.Tensor, ids: Sequence[int]) -> Any:
        """Return the pipeline's own records of one sequence: there is one."""
        sequence = torch.cat([beginning, torch.tensor([ids], dtype=beginning.dtype)], dim=1)
        rendered = {"generated_sequence": sequence[None], "input_ids": beginning, "prompt_text": given}
        return self.pipe.postprocess(rendered, **self.postprocess)

    def _beginning(self, prompt: PreparedPrompt, given: Any) -> torch.Tensor:
        """Return the tokens that a sequence begins with, ``[1, length]``."""
        if self.parsed(prompt):
            return (prompt.target or prompt.law).prompt_ids[None].cpu()  # without padding, as the message was judged
        ids: torch.Tensor = self.encoded(given)["input_ids"]
        return ids


def _contents(chat: Chat) -> str:
    """Return the texts of a chat's messages, of which a template makes a prompt."""
    return " ".join(each["content"] for each in chat.messages if isinstance(each["content"], str))


@dataclass(frozen=True)
class TextToTextCall(Call):
    """A call of an encoder-decoder model: its texts do not continue their prompts."""

    causal: ClassVar[bool] = False

    @classmethod
    def _records_wanted(cls, postprocess: dict[str, Any]) -> dict[str, Any]:
        wanted = return_type(postprocess) == "FULL_TEXT"
        return {**postprocess, "return_type": NEW_TEXT} if wanted else postprocess

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return nothing: no sequence holds the prompt."""
        return None

    def _beginning(self, prompt: PreparedPrompt, given: Any) -> torch.Tensor:
        return prompt.law.prompt_ids[None].cpu()


@dataclass(frozen=True)
class TensorCall(Call):
    """A call of ``generate``: tensors come in and tensors go out, and the user decodes them.

    Parameters
    ----------
    begins
        Of each prompt, by its number, the tokens that a returned row begins with, padding included.
    with_prompt
        Whether that is the prompt: not of an encoder-decoder model.
    """

    begins: Sequence[Sequence[int]] = ()
    with_prompt: bool = True

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return the text of a whole row, where it holds the prompt."""
        if not self.with_prompt:
            return None
        together: str = self.pipe.tokenizer.decode([*self.begins[prompt.number], *ids], **self.reading)
        return together
