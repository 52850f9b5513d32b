"""One call of a text-generation pipeline: reads prompts, and renders new tokens as texts and records.

``task_calls`` has those for images and speech, and ``call_of``, which finds the class for a pipeline.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig
from transformers.pipelines import Pipeline

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.stop_strings import cut
from guardwrap.constraints.verdicts import Context, Event
from guardwrap.constraints.views import NO_MESSAGE
from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.errors import PromptError, UsageError
from guardwrap.models.early_abort import StablePrefix
from guardwrap.models.parsed_message import (
    CUT_OFF,
    UNPARSED,
    ReadAnswer,
    has_template,
    message_fault,
    message_parts,
    message_text,
    parsed_note,
    require_template,
    written_fields,
)
from guardwrap.models.prepare import PreparedPrompt, position_limit, prepare, require_context, trained_length
from guardwrap.models.prompt_forms import CALL_OPTIONS, PromptReader, unpadded, what_is_wrong
from guardwrap.models.regions import MessageRegions, json_text
from guardwrap.models.templates import UNKNOWN_FAMILY, family_of, with_template
from guardwrap.outcomes import Draw
from guardwrap.support.transformers_internals import NEW_TEXT, Chat, read_arguments, tokenizer_lock


@dataclass(frozen=True)
class Call(PromptReader):
    """A call of a pipeline whose prompts are text."""

    causal: ClassVar[bool] = True
    """Whether guardwrap's own loop draws the attempts, which can then be weighed."""

    writes_messages: ClassVar[bool] = True
    """Whether an answer to a chat can be parsed into a message."""

    sampling: ClassVar[str] = "do_sample=True, num_beams=1"
    """The arguments that turn sampling on."""

    pipe: Pipeline  # the pipeline
    # Arguments of the pipeline's three stages, from the user and from the pipeline's construction. ``forward`` holds
    # the arguments of ``generate``.
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    forward: Mapping[str, Any] = field(default_factory=dict)
    postprocess: Mapping[str, Any] = field(default_factory=dict)
    # arguments that determine the text of tokens: of ``decode``, or of ``postprocess`` for images and speech
    reading: Mapping[str, Any] = field(default_factory=dict)
    parses: bool = False  # whether the pipeline parses a chat's answer into a message, as it does with some tokenizers
    # Whether to cut texts before the end-of-sequence token. With a ``response_template`` the pipeline would keep the
    # token, and no answer would be valid JSON. ``skip_special_tokens=False`` keeps it.
    trims: bool = False
    # whether a rule judges a part of a message, so that answers are parsed even if the pipeline returns them whole
    reads_parts: bool = False
    # the model family whose template parses the answers, if the tokenizer has none of its own
    family: str | None = None

    @classmethod
    def read(cls, pipe: Pipeline, options: Mapping[str, Any]) -> Call:
        """Read the arguments of a call as the pipeline does."""
        require_callable(pipe)
        prefix = options.get("prefix")
        if not (prefix is None or isinstance(prefix, str) or cls.media):
            raise UsageError(f"prefix={prefix!r} is not a string")
        try:
            preprocess, forward, postprocess, settings = read_arguments(pipe, cls._options(options))
        except (ValueError, TypeError) as error:
            raise UsageError(f"the pipeline rejects its arguments: {what_is_wrong(prefix, error)}") from None
        forward = cls._settings(forward)
        if "generation_config" not in forward:
            forward = {**settings, **forward}
        postprocess = cls._records_wanted(postprocess)
        templated = cls._templated(pipe)
        if templated:
            require_template(pipe.tokenizer)
        return cls(pipe, preprocess, forward, postprocess, **cls._ways(postprocess, templated))

    @classmethod
    def _ways(cls, postprocess: Mapping[str, Any], templated: bool) -> dict[str, Any]:
        """Return the fields that depend on whether the tokenizer has a template for parsing answers."""
        parses = templated and return_type(postprocess) == "FULL_TEXT" and not postprocess.get("continue_final_message")
        trims = templated and postprocess.get("skip_special_tokens") is not False
        return {"reading": cls._reading(postprocess, templated), "parses": parses, "trims": trims}

    def with_parts(self, part: str) -> Call:
        """Return the same call, which parses chats' answers for rules on a part of the message.

        If the tokenizer has no response template, that of its family is used, as if it were the tokenizer's own.
        """
        if not self.writes_messages:
            raise UsageError(NO_MESSAGE.format(part, "this call gives plain text"))
        if self._templated(self.pipe):
            return replace(self, reads_parts=True)
        family = family_of(self.pipe.tokenizer)
        if family is None:
            raise UsageError(NO_MESSAGE.format(part, UNKNOWN_FAMILY))
        pipe = with_template(self.pipe, family.template)
        return replace(self, pipe=pipe, reads_parts=True, family=family.name, **self._ways(self.postprocess, True))

    def notes(self, prompt: PreparedPrompt, constraint: Constraint) -> tuple[str, ...]:
        """Return notes for the report about what becomes of the answer to a prompt."""
        if not self.parsed(prompt):
            return ()
        return (parsed_note(constraint, f"the template of {self.family}" if self.family else "its response_template"),)

    @classmethod
    def _options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in the form in which the pipeline passes them to ``generate``."""
        return dict(options)

    @classmethod
    def _settings(cls, forward: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``generate`` from those of ``forward``."""
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
        """Whether the tokenizer has a template for parsing answers."""
        return has_template(pipe.tokenizer)

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[PreparedPrompt]:
        """Preprocess numbered prompts and resolve their laws.

        ``capacity``: how many laws to cache. Equal prompts that run at the same time share a law, and one prefill.
        """
        recent: OrderedDict[tuple[int, ...], GenerationLaw] = OrderedDict()
        known: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # token ids of recent strings
        changes = own_method(self.pipe, ("preprocess",)) is not None
        for number, prompt in given:
            plain = prompt if isinstance(prompt, str) and not changes else None
            ids = known.get(plain) if plain is not None else None
            if ids is None or ids not in recent:
                ids, inputs = self._encoded_ids(number, prompt)
                if ids not in recent:
                    require_context(self.pipe.model, len(ids), position_limit(self.pipe.model))
                    recent[ids] = self.law_of(inputs)
            recent.move_to_end(ids)
            if plain is not None:
                known[plain] = ids
                known.move_to_end(plain)
            for cache in (recent, known):
                while len(cache) > capacity:
                    cache.popitem(last=False)
            shown = inputs["prompt_text"] if changes else prompt
            text = shown if isinstance(shown, str) else self.pipe.tokenizer.decode(ids, skip_special_tokens=True)
            yield self._prepared(number, prompt, text, recent[ids], shown)

    def _prepared(self, number: int, prompt: Any, text: str, law: GenerationLaw, shown: Any) -> PreparedPrompt:
        """Return a prompt with the parser of its answer."""
        given, shown = (getattr(each, "messages", each) for each in (prompt, shown))
        prepared = PreparedPrompt(number, given, text, law, changed=None if shown is given else shown)
        return replace(prepared, regions=self._regions(prepared))

    def _encoded_ids(self, number: int, prompt: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Return a prompt's token ids without padding, and the whole output of ``preprocess``."""
        try:
            inputs = self.encoded(prompt)
        except PromptError:
            raise
        except Exception as error:  # the code of a chat template may raise anything
            raise PromptError(f"prompt {number}: {what_is_wrong(prompt, error)}") from None
        if not inputs["input_ids"].shape[1]:
            raise PromptError(
                f"prompt {number} is empty, and this tokenizer adds no token at its start; "
                "pass some text, e.g. the tokenizer's bos_token"
            )
        (ids,) = unpadded(inputs["input_ids"], inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])))
        inputs = {**inputs, "input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        return tuple(ids.tolist()), inputs

    def encoded(self, prompt: Any) -> Any:
        """Preprocess a prompt as the pipeline does. Locked, as truncation and padding change the tokenizer's state."""
        with tokenizer_lock(self.pipe.tokenizer):
            return self.pipe.preprocess(prompt, **self.preprocess)

    def fits(self, prompt: PreparedPrompt, more: int = 0) -> bool:
        """Whether the longest text that a prompt may get, and ``more`` tokens, fit into the context with it."""
        context = trained_length(self.pipe.model)
        return context is None or prompt.law.max_length + more <= context

    def law_of(self, inputs: Mapping[str, Any]) -> GenerationLaw:
        """Return the law of a prompt from the output of ``preprocess``.

        It is that of an earlier prompt of the same length under the same settings, if it does not depend on the tokens:
        resolving one takes 2 ms, for a server as much as some tokens.
        """
        key, laws = self._law_key(inputs), _laws.setdefault(self.pipe, OrderedDict())
        if key is None or (like := laws.get(key)) is None:
            law = self._resolved(inputs)
            if key is not None and not (law.processors or law.criteria or law.beam_results):
                laws[key] = replace(law, generate=_forgotten)  # without the pipeline, so that it can be freed
                while len(laws) > _LAWS:
                    laws.popitem(last=False)
            return law

        def generate(**settings: Any) -> Any:
            return self._resolved(inputs).generate(**settings)

        return replace(like, prompt_ids=inputs["input_ids"][0].to(like.prompt_ids.device), generate=generate)

    def _law_key(self, inputs: Mapping[str, Any]) -> Hashable | None:
        """Return all that the law of a prompt depends on besides its tokens; None if that is not known."""
        model, known = self.pipe.model, {"input_ids", "attention_mask", "prompt_text"}
        config = self.forward.get("generation_config")
        rest = {name: value for name, value in self.forward.items() if name != "generation_config"}
        if type(self) is not Call or not known.issuperset(inputs) or not all(map(_is_plain, rest.values())):
            return None
        if not isinstance(config, GenerationConfig | None):  # refused where the law is resolved
            return None
        if own_method(model, _LAW_BY) or own_method(self.pipe, ("_prepare_generate_kwargs",)):
            return None
        # In some releases of transformers the pipeline has one of its own, and before 5.20 it passes one.
        configs = (config, model.generation_config, getattr(self.pipe, "generation_config", None))
        states = repr([config and _spelled(vars(config)) for config in configs])
        return inputs["input_ids"].shape[1], repr(sorted(rest.items())), states, str(model.device)

    def _resolved(self, inputs: Mapping[str, Any]) -> GenerationLaw:
        """Resolve the law of a prompt as ``generate`` does."""
        pipe = self.pipe

        def forward(**kwargs: Any) -> Any:
            return pipe.forward(dict(inputs), **self._for_forward(kwargs))

        return prepare(
            pipe.model, forward, self.forward, tokenizer=pipe.tokenizer, known=CALL_OPTIONS, media=self.media
        )

    @classmethod
    def _for_forward(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``generate`` in the form that ``forward`` accepts."""
        return settings

    def text_alone(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens, decoded without a prompt."""
        text: str = self.pipe.tokenizer.decode(ids, **self.reading)
        return text

    def stable_prefix(self) -> StablePrefix:
        """Make the decoder of unfinished attempts, and test whether it works."""
        tokenizer = self.pipe.tokenizer
        with tokenizer_lock(tokenizer):
            skips = bool(self.reading.get("skip_special_tokens"))
            stable = StablePrefix(tokenizer, self.text_alone, skips=skips)
        clean = self.reading.get("clean_up_tokenization_spaces")
        if clean or (clean is None and getattr(tokenizer, "clean_up_tokenization_spaces", False)):
            stable.works = False
        # The test is on random tokens, and a user's own code may rewrite what these do not say.
        if own_method(tokenizer, ("decode", "batch_decode")) is not None:
            stable.works = False
        return stable

    def unparsed(self, law: GenerationLaw, ids: Sequence[int]) -> str:
        """Return the text of new tokens before the pipeline parses it."""
        return self.text_alone(self._trimmed(law, ids))

    def _trimmed(self, law: GenerationLaw, ids: Sequence[int]) -> Sequence[int]:
        """Remove the special token that ended a text, where the pipeline would leave it in the answer."""
        if not (self.trims and ids and ids[-1] in law.end_ids):
            return ids
        special = not self.pipe.tokenizer.decode([ids[-1]], skip_special_tokens=True)
        return ids[:-1] if special else ids

    def parsed(self, prompt: PreparedPrompt) -> bool:
        """Whether the pipeline parses the answer to this prompt into a message."""
        if not self.parses or isinstance(prompt.shown, str | Mapping):
            return False
        begun = prompt.shown[-1]["role"] == "assistant"  # by default the pipeline continues this message
        return not begun or self.postprocess.get("continue_final_message") is False

    def draw(
        self,
        prompt: PreparedPrompt,
        ids: Sequence[int],
        finished: bool = True,
        log_probability: float | None = None,
        *,
        stops: Sequence[str] = (),
    ) -> Draw:
        """Return an attempt as the user receives it, which is also what is judged. ``Draw`` explains the parameters.

        ``stops`` are the strings that a message ends before. Texts are cut by ``StopAt``, and by whoever returns them.
        """
        answer = self._read_answer(prompt, ids, finished, stops)
        return Draw(
            prompt=prompt.text,
            token_ids=tuple(ids),
            finished=finished,
            log_proposal=log_probability,
            full=self.full(prompt, ids),
            begun=self.begun(prompt),
            **answer._asdict(),
        )

    def _read_answer(
        self, prompt: PreparedPrompt, ids: Sequence[int], finished: bool, stops: Sequence[str]
    ) -> ReadAnswer:
        """Return what a text says, and the reason why it is not an answer, if it is not."""
        parsed, start = self.parsed(prompt), prompt.regions
        if start is None:
            return ReadAnswer(self.unparsed(prompt.law, ids))
        raw = self.text_alone(ids)
        text = raw if parsed else self.unparsed(prompt.law, ids)
        if stops:  # the name of the token that ended the text has none
            before_end = self.unparsed(prompt.law, ids)
            raw = raw if (left := cut(before_end, stops)) == before_end else left
        state, _ = start[0].read(raw)
        message = state.message()
        try:
            if message is None:
                return ReadAnswer(raw if parsed else text, UNPARSED, ())
            fields = written_fields(self.pipe.tokenizer, message)
            fault, said = message_fault(fields), message_text(fields)
        except ValueError:
            return ReadAnswer(raw if parsed else text, UNPARSED, ())
        text = said if parsed else text
        if parsed and fault is not None:
            return ReadAnswer(text, fault, ())
        fault = CUT_OFF if not finished and state.is_cut_off else None
        whole = json_text(message) if parsed and fault is None else None
        return ReadAnswer(text, fault, message_parts(fields), whole)

    def _regions(self, prompt: PreparedPrompt) -> tuple[MessageRegions, Sequence[Event]] | None:
        """Return the parser of a chat's answer after the prompt; None if nobody asks for the parts of a message."""
        if not _is_chat(prompt.shown) or not (self.parsed(prompt) or self.reads_parts):
            return None
        tokenizer = self.pipe.tokenizer
        before = tokenizer.decode(prompt.law.prompt_ids, skip_special_tokens=False)
        return MessageRegions.begin(tokenizer, before, self.postprocess.get("tools"))

    def begun(self, prompt: PreparedPrompt) -> str:
        """Return the text of the assistant message that the answer continues."""
        if not _is_chat(prompt.shown) or self.postprocess.get("continue_final_message") is False:
            return ""
        last = prompt.shown[-1]
        content = last["content"] if last["role"] == "assistant" else ""
        return content if isinstance(content, str) else ""

    def context(self, prompt: PreparedPrompt) -> Context:
        """Return what comes before the new text, for monitors."""
        together = None if return_type(self.postprocess) == "TENSORS" else prompt.text
        return Context(together, self.begun(prompt), prompt.regions, whole=not self.parsed(prompt))

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return the text of prompt and new tokens, if it is not the prompt's text followed by the new text."""
        if return_type(self.postprocess) != "TENSORS":
            return None
        target = prompt.target or prompt.law
        together: str = self.pipe.tokenizer.decode([*target.ids, *self._trimmed(target, ids)], **self.reading)
        return together

    def records(self, prompt: PreparedPrompt, draws: Sequence[Draw], others: Sequence[str | None]) -> Any:
        """Render the texts of a prompt in the pipeline's format."""
        given = prompt.shown if isinstance(prompt.shown, str) else Chat(prompt.shown)
        beginning = self._beginning(prompt, given)
        records: list[dict[str, Any]] = []
        for draw in draws:
            if draw.message is not None:
                records.append(message_record(prompt.shown, draw.message))
                continue
            # One at a time: padding must not get into a text that was judged without it.
            records += self._postprocessed(prompt, given, beginning, self._shown(draw.token_ids, prompt.law))
        return records + [output_record(given, text, self.postprocess) for text in others]

    def _shown(self, ids: Sequence[int], law: GenerationLaw) -> Sequence[int]:
        """Return the tokens that the record of a text, which is no message, is made from."""
        return ids if return_type(self.postprocess) == "TENSORS" else self._trimmed(law, ids)

    def _postprocessed(self, prompt: PreparedPrompt, given: Any, beginning: torch.Tensor, ids: Sequence[int]) -> Any:
        """Return the pipeline's records of one sequence, a list with one item."""
        sequence = torch.cat([beginning, torch.tensor([ids], dtype=beginning.dtype)], dim=1)
        rendered = {"generated_sequence": sequence[None], "input_ids": beginning, "prompt_text": given}
        # With the options of the text that was judged: before transformers 5.20 it cleans up spaces by default.
        return self.pipe.postprocess(rendered, **{**self.reading, **self.postprocess})

    def _beginning(self, prompt: PreparedPrompt, given: Any) -> torch.Tensor:
        """Return the tokens that a sequence begins with, ``[1, length]``."""
        ids: torch.Tensor = self.encoded(given)["input_ids"]
        return ids


_laws: WeakKeyDictionary[Pipeline, OrderedDict[Hashable, GenerationLaw]] = WeakKeyDictionary()
_LAWS = 64  # remembered for each pipeline
_LAW_BY = ("generate", "_prepare_generation_config", "_get_logits_processor", "_get_stopping_criteria")
"""Methods of models that resolve a law. A user's own may look at the tokens."""


def _is_plain(value: Any) -> bool:
    """Whether the representation of a setting says all about it."""
    each = value if isinstance(value, list | tuple) else (value,)
    return all(one is None or type(one) in (bool, int, float, str) for one in each)


_ORIGIN = frozenset({"_from_model_config", "_commit_hash", "_original_object_hash", "transformers_version"})
"""What a generation config says of where it comes from; configs that differ in nothing else are equal."""


def _spelled(settings: Any) -> str:
    """Return one representation of settings, whatever the order of mappings in them."""
    if not isinstance(settings, dict):
        return repr(settings)
    return repr(sorted((repr(name), _spelled(value)) for name, value in settings.items() if name not in _ORIGIN))


def _forgotten(**_: Any) -> Any:
    raise AssertionError("a remembered law has no prompt")


def _is_chat(given: Any) -> bool:
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[-1], Mapping)


@dataclass(frozen=True)
class TextToTextCall(Call):
    """A call of an encoder-decoder model, whose texts do not continue the prompt."""

    causal: ClassVar[bool] = False
    writes_messages: ClassVar[bool] = False

    @classmethod
    def _records_wanted(cls, postprocess: dict[str, Any]) -> dict[str, Any]:
        wanted = return_type(postprocess) == "FULL_TEXT"
        return {**postprocess, "return_type": NEW_TEXT} if wanted else postprocess

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return None: the prompt is not part of the sequence."""
        return None

    def _beginning(self, prompt: PreparedPrompt, given: Any) -> torch.Tensor:
        return prompt.law.prompt_ids[None].cpu()


@dataclass(frozen=True)
class TensorCall(Call):
    """A call of ``generate``: tensors in, tensors out."""

    writes_messages: ClassVar[bool] = False

    # the tokens that the returned rows of each prompt begin with, padding included; by prompt number
    begins: Sequence[Sequence[int]] = ()
    with_prompt: bool = True  # whether those are the prompt's tokens. False for encoder-decoder models.

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[PreparedPrompt]:
        """Return the prompts: they are already prepared."""
        return (prompt for _, prompt in given)

    def full(self, prompt: PreparedPrompt, ids: Sequence[int]) -> str | None:
        """Return the text of a whole row, if it contains the prompt."""
        if not self.with_prompt:
            return None
        together: str = self.pipe.tokenizer.decode([*self.begins[prompt.number], *ids], **self.reading)
        return together

    def context(self, prompt: PreparedPrompt) -> Context:
        """Return that nothing is known: the texts of prompt and new tokens are decoded together."""
        return Context()


def return_type(postprocess: Mapping[str, Any]) -> str:
    """Return the kind of record requested, by name, as each pipeline has its own enumeration."""
    kind = postprocess.get("return_type")
    if kind is not None and not hasattr(kind, "name"):
        raise UsageError(
            f"return_type={kind!r} is not a ReturnType of the pipeline; pass return_full_text or return_tensors"
        )
    return "FULL_TEXT" if kind is None else str(kind.name)


def message_record(messages: Iterable[Any], answer: str) -> dict[str, Any]:
    """Render the answer to a chat that was parsed into a message, given as JSON, as it was judged.

    The pipeline itself would keep the last piece of a text that reasoning or calls interrupt.
    """
    return {"generated_text": [*messages, json.loads(answer)]}


def output_record(prompt: str | Chat, text: str | None, postprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Render a text without tokens, such as a fallback; None stands for a missing text."""
    kind = return_type(postprocess)
    if kind == "TENSORS":
        return {"generated_token_ids": None}
    if text is None or kind == "NEW_TEXT":
        return {"generated_text": text}
    if isinstance(prompt, str):
        return {"generated_text": prompt + text}
    messages = list(prompt.messages)
    proceed = postprocess.get("continue_final_message")
    if proceed or (proceed is None and messages[-1]["role"] == "assistant"):
        content = messages[-1]["content"]
        if isinstance(content, str):
            content += text
        else:  # a list of parts, as in chats with images
            content = [*content[:-1], {**content[-1], "text": content[-1]["text"] + text}]
        return {"generated_text": [*messages[:-1], {**messages[-1], "content": content}]}
    return {"generated_text": [*messages, {"role": "assistant", "content": text}]}


_LIBRARIES = ("transformers", "guardwrap")
_NOT_RUN = ("__call__", "run_single", "run_multi", "iterate", "get_iterator")
"""Methods of pipelines that a wrapper does not call, as it draws the texts of many prompts together."""

_TEXTS_BY = ("postprocess", "_forward", "forward")
"""Stages that may change a text after it is drawn, and thus after it is judged."""


def own_method(thing: Any, names: Iterable[str]) -> str | None:
    """Return the first of these methods that no library has defined, with its class; None if there is none."""
    for name in names:
        # Python looks up special methods on the class. Decorators of tracing libraries keep a function's module.
        method = getattr(type(thing) if name.startswith("__") else thing, name, None)
        module = getattr(getattr(method, "__func__", method), "__module__", None) or ""
        if method is not None and module.partition(".")[0] not in _LIBRARIES:
            return f"{type(thing).__name__}.{name}"
    return None


def require_callable(pipe: Any) -> None:
    """Require that a call of the pipeline is its three stages in turn, and that no text is changed once it is drawn."""
    if (method := own_method(pipe, _NOT_RUN)) is not None:
        raise UsageError(
            f"{method} is not supported, because guardwrap runs the pipeline's stages itself; change prompts in "
            "preprocess, and texts after the call"
        )
    if (method := own_method(pipe, _TEXTS_BY)) is not None:
        raise UsageError(
            f"{method} is not supported, because it may change a text after it was judged; change texts after the call"
        )
