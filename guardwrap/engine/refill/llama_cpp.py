"""Models of llama.cpp in this process: a GGUF file, computed at its own number of bits.

llama.cpp computes the logits, and tokens are drawn as for a transformers model. Each row is a sequence of llama.cpp
with cells of its own, where its states are in the order of its tokens, whatever else is computed. So on a CPU its
logits do not depend on the other rows, although layers with quantized weights round their input.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput

from guardwrap.engine.forward_passes import RoomTaken
from guardwrap.engine.scheduling.backend import Ids
from guardwrap.errors import ContextExceeded, ModelError, UsageError

ROWS = 8
"""The default of ``batch_size``: more rows are hardly faster on a CPU, and each takes the memory of a whole text."""

_TESTED = 64
"""The most tokens of a text by which ``select_rows`` tests the model."""

_AT_ONCE = 63
"""The most tokens in one pass: from 64 tokens of a sequence on, flash attention on a CPU rounds in another way."""


class Part(NamedTuple):
    """Tokens to compute in a sequence, and of how many of them, the last ones, to return the logits."""

    sequence: int
    start: int
    ids: Sequence[int]
    kept: int


class Context:
    """A context of llama.cpp for a number of sequences, made with the parameters of a ``Llama``."""

    def __init__(self, llm: Any, count: int, length: int) -> None:
        import llama_cpp

        self.count = count
        self._library = llama_cpp
        self._vocabulary = llm.n_vocab()
        parameters = type(llm.context_params).from_buffer_copy(llm.context_params)
        parameters.n_ctx = length * count
        parameters.n_seq_max = count
        parameters.n_batch = parameters.n_ubatch = _AT_ONCE
        parameters.kv_unified = False
        parameters.swa_full = True
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama_cpp.llama_init_from_model(llm.model, parameters)
        if not self._context:
            raise ModelError(
                f"llama.cpp cannot make a context for {count} texts of {length} tokens; pass a smaller n_ctx to "
                "Llama, or a smaller batch_size"
            )
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(_AT_ONCE, 0, 1)
        # The weights, which ``llm`` frees, must outlive the context.
        weakref.finalize(self, _free, llama_cpp, self._context, self._batch, llm)

    def decode(self, parts: Sequence[Part]) -> torch.Tensor:
        """Compute tokens; return logits in the order of the parts, ``[kept, vocabulary]``, float32."""
        tokens = [
            (part.sequence, part.start + place, token, place >= len(part.ids) - part.kept)
            for part in parts
            for place, token in enumerate(part.ids)
        ]
        chunks = (tokens[begin : begin + _AT_ONCE] for begin in range(0, len(tokens), _AT_ONCE))
        return torch.cat([torch.empty(0, self._vocabulary), *map(self._decode, chunks)])

    def _decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> torch.Tensor:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, (sequence, position, token, kept) in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, position, kept
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
        if code := self._library.llama_decode(self._context, batch):
            raise ModelError(f"llama.cpp failed with code {code}; see its log (Llama(..., verbose=True))")
        count = sum(kept for *_, kept in tokens)
        if not count:
            return torch.empty(0, self._vocabulary)
        pointer = self._library.llama_get_logits(self._context)
        return torch.from_numpy(np.ctypeslib.as_array(pointer, (count, self._vocabulary)).copy())

    def copy(self, source: int, target: int, length: int) -> None:
        """Make a sequence of the first ``length`` tokens of another one."""
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._library.llama_memory_seq_rm(self._memory, target, length, -1)

    def clear(self, sequence: int) -> None:
        """Remove the tokens of a sequence."""
        self._library.llama_memory_seq_rm(self._memory, sequence, -1, -1)


def _free(library: Any, context: Any, batch: Any, llm: Any) -> None:
    library.llama_batch_free(batch)
    library.llama_free(context)


@dataclass(eq=False)
class Text:
    """A text that has a sequence; its first ``computed`` tokens are computed."""

    sequence: int
    ids: list[int]
    computed: int = 0
    prefixes: list[Ids] = field(default_factory=list)  # those of its prefixes at which other texts may start


class Texts:
    """The texts in a context. Those that ended are kept as long as no other needs their place, to start others from."""

    def __init__(self, context: Context) -> None:
        self.lock = RLock()
        self.context = context
        self._free: list[int] = [*range(context.count)]
        self._ended: OrderedDict[Text, None] = OrderedDict()
        self._starts: dict[Ids, Text] = {}

    def begin(self, ids: Ids, least: int, most: int) -> Text:
        """Return a new text, which starts with the longest known prefix of ``least`` to ``most`` tokens."""
        length = next((length for length in range(len(ids), least - 1, -1) if ids[:length] in self._starts), 0)
        source = self._starts.get(ids[:length])
        if source is not None and source in self._ended:
            self._ended.move_to_end(source)
        text = Text(self._place(), list(ids), min(length, most))
        if source is not None:
            self.context.copy(source.sequence, text.sequence, text.computed)
            self.remember(text, ids[: text.computed])
        return text

    def _place(self) -> int:
        """Return the lowest place without a running text: llama.cpp computes adjoining sequences together."""
        if not self._free and len(self._ended) > 1:
            self._drop(self._ended.popitem(last=False)[0])  # not the last one, from which the new text may start
        if not self._free:
            raise RoomTaken("all sequences of llama.cpp are in use")
        place = min(self._free)
        self._free.remove(place)
        lowest = min(self._ended, key=lambda text: text.sequence, default=None)
        if lowest is not None and lowest.sequence < place:
            self.context.copy(lowest.sequence, place, lowest.computed)
            self.context.clear(lowest.sequence)
            lowest.sequence, place = place, lowest.sequence
        return place

    def compute(self, texts: Sequence[Text], end: int | None = None) -> torch.Tensor:
        """Compute the tokens before ``end``, by default all; without ``end``, return logits of the next ones."""
        kept = int(end is None)
        parts = [Part(text.sequence, text.computed, text.ids[text.computed : end], kept) for text in texts]
        logits = self.context.decode(sorted(parts))  # by sequence
        for text, part in zip(texts, parts, strict=True):
            text.computed += len(part.ids)
        return logits[torch.tensor([part.sequence for part in parts]).argsort().argsort()] if kept else logits

    def remember(self, text: Text, prefix: Ids) -> None:
        """Let other texts start at a prefix of a text that is computed."""
        before = self._starts.get(prefix)
        self._starts[prefix] = text
        text.prefixes.append(prefix)
        if before is not None and before in self._ended and not self._is_start(before):
            del self._ended[before]
            self._drop(before)

    def end(self, text: Text) -> None:
        """Keep a text only to start others from."""
        if self._is_start(text):
            self._ended[text] = None
        else:
            self._drop(text)

    def _is_start(self, text: Text) -> bool:
        return any(self._starts.get(prefix) is text for prefix in text.prefixes)

    def _drop(self, text: Text) -> None:
        for prefix in text.prefixes:
            if self._starts.get(prefix) is text:
                del self._starts[prefix]
        self.context.clear(text.sequence)
        self._free.append(text.sequence)


class LlamaCppConfig(PreTrainedConfig):
    """The configuration of a LlamaCppModel."""

    model_type = "guardwrap-llama.cpp"

    vocab_size: int = 1
    max_position_embeddings: int = 1
    num_hidden_layers: int = 1


class LlamaCppModel(PreTrainedModel, GenerationMixin):
    """A ``Llama`` of llama-cpp-python as a model of transformers.

    Parameters
    ----------
    llm
        The ``Llama``. Its ``n_ctx`` is the length of the longest text, with the prompt.
    """

    config_class = LlamaCppConfig
    precision = "at the file's own number of bits"
    dtype = torch.float32  # of logits
    device = torch.device("cpu")  # of logits

    def __init__(self, llm: Any) -> None:
        import llama_cpp

        for asked, what in _REFUSED.items():
            if asked(llama_cpp, llm):
                raise UsageError(f"guardwrap cannot draw from this Llama: {what}")
        super().__init__(
            LlamaCppConfig(
                vocab_size=llm.n_vocab(),
                max_position_embeddings=llm.n_ctx(),
                num_hidden_layers=llama_cpp.llama_model_n_layer(llm.model),
                name_or_path=llm.model_path,
            )
        )
        vocabulary = llama_cpp.llama_model_get_vocab(llm.model)
        ends = [token for token in range(llm.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocabulary, token)]
        self.generation_config = GenerationConfig(
            eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0, use_cache=False
        )
        self.rounds_with_batch = True  # unless the test of the model shows otherwise
        self.eval()
        self._llm = llm
        self._texts: Texts | None = None
        self._tested = False  # whether rows are made to test them
        self._reserving = RLock()

    def reserve(self, rows: int) -> Texts:
        """Return the model's texts, with room for a number of rows, and for others that ended or are scored.

        Batches of the model share this room. One that finds it full raises RoomTaken, and draws fewer at once.
        """
        with self._reserving:
            rows, length = (ROWS, _TESTED) if self._tested else (rows, self.config.max_position_embeddings)
            count = rows + rows // 4 + 4
            if self._texts is None or self._texts.context.count < count:
                self._texts = None  # its memory is freed first, unless it is in use
                self._texts = Texts(Context(self._llm, count, length))
            return self._texts

    @contextmanager
    def tested(self) -> Iterator[None]:
        """Return a context in which rows are short, so that a test does not take the memory of long texts."""
        with self._reserving:
            self._texts, self._tested = None, True
            try:
                yield
            finally:
                self._texts, self._tested = None, False

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, logits_to_keep: int = 0, **_: Any
    ) -> CausalLMOutput:
        """Compute texts from their beginnings, one after the other; return ``[rows, kept, vocabulary]``."""
        rows, length = input_ids.shape
        first = length - (logits_to_keep or length)
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = torch.zeros(rows, length - first, self.config.vocab_size)
        texts = self.reserve(1)
        for row, ids in enumerate(input_ids):
            (columns,) = seen[row].nonzero(as_tuple=True)
            kept = columns[columns >= first]
            if len(columns) > self.config.max_position_embeddings:
                raise ContextExceeded(
                    f"a text has {len(columns)} tokens and the context {self.config.max_position_embeddings}; "
                    "pass a larger n_ctx to Llama"
                )
            with texts.lock:
                text = texts.begin((), 1, 0)
                try:
                    part = Part(text.sequence, 0, ids[columns].tolist(), len(kept))
                    logits[row, kept - first] = texts.context.decode([part])
                finally:
                    texts.end(text)
        return CausalLMOutput(logits=logits)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model. Rejects data types, which the file and the parameters of the ``Llama`` determine."""
        if any(isinstance(each, torch.dtype) and each != self.dtype for each in (*args, *kwargs.values())):
            raise UsageError("llama.cpp computes at the file's own number of bits; leave the data type out")
        return super().to(*args, **kwargs)

    def num_parameters(self, *args: Any, **kwargs: Any) -> int:
        """Return the number of parameters in the file."""
        import llama_cpp

        return int(llama_cpp.llama_model_n_params(self._llm.model))

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise UsageError("the weights of a GGUF file cannot be changed; for adapters and training, use transformers")


AutoConfig.register("guardwrap-llama.cpp", LlamaCppConfig)
AutoModelForCausalLM.register(LlamaCppConfig, LlamaCppModel)

_REFUSED: dict[Callable[[Any, Any], Any], str] = {
    lambda library, llm: llm.context_params.embeddings: "it computes embeddings; make it without embedding=True",
    lambda library, llm: llm.lora_path: "its LoRA adapter is not applied to other contexts; merge it into the file",
    lambda library, llm: library.llama_model_has_encoder(llm.model): "it has an encoder; use transformers",
    lambda library, llm: library.llama_model_is_diffusion(llm.model): "it is a diffusion model",
    lambda library, llm: library.llama_model_is_recurrent(llm.model) or library.llama_model_is_hybrid(llm.model): (
        "it has recurrent layers, whose states cannot be cut to a prefix; use transformers"
    ),
}
"""What cannot be drawn from, and why."""


class LlamaRows:
    """Rows of a model of llama.cpp; see ``row_states.Rows``."""

    name = "refill"
    refills = True
    shares = True

    def __init__(self, model: LlamaCppModel) -> None:
        self._texts = model.reserve(1)
        self._rows: list[Text] = []
        weakref.finalize(self, _end, self._texts, self._rows)

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        with self._texts.lock:
            before = len(self._rows)
            unused = {ids: self._begin(ids, len(ids), len(ids) - 1) for ids in dict.fromkeys(prompts)}
            logits = dict(zip(unused, self._texts.compute([*unused.values()]), strict=True))
            for ids, text in unused.items():
                self._texts.remember(text, ids)
            new = [unused.pop(ids) if ids in unused else self._begin(ids, len(ids), len(ids)) for ids in prompts]
            self._rows[before:] = new  # in the order of the prompts
            return torch.stack([logits[ids] for ids in prompts])

    def _begin(self, ids: Ids, least: int, most: int) -> Text:
        text = self._texts.begin(ids, least, most)
        self._rows.append(text)  # at once, so that it ends with the rows if memory runs out
        return text

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``. The tokens are computed by the next ``forward``, those of a prompt at once."""
        with self._texts.lock:
            text = self._begin(prefix, prompt, len(prefix))
            if text.computed < prompt:
                self._texts.compute([text], prompt)
                self._texts.remember(text, prefix[:prompt])
            return len(prefix) - text.computed

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        kept = [self._rows[row] for row in rows]
        with self._texts.lock:
            for text in {*self._rows} - {*kept}:
                self._texts.end(text)
        self._rows[:] = kept
        return list(rows)

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """See ``Rows.rewind``; ``can_rewind`` is False, as words are only written by models with embeddings."""
        raise NotImplementedError

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        with self._texts.lock:
            for text, token in zip(self._rows, tokens.tolist(), strict=True):
                text.ids.append(token)
            logits = self._texts.compute(self._rows)
            for row, ids in (remember or {}).items():
                self._texts.remember(self._rows[row], ids)
            return logits


def _end(texts: Texts, rows: list[Text]) -> None:
    with texts.lock:
        for text in rows:
            texts.end(text)
