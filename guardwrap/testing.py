"""Finite worlds whose g is known exactly, and checks for custom constraints and backends.

A world is a small model with so few texts that a(y), and so g(y), is computed exactly. The output of a sampler is
compared with it by a goodness-of-fit test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.special import chdtrc
from tokenizers import Regex as TokenizersRegex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TextGenerationPipeline,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from guardwrap.constraints import Constraint, Verdict, dump, parse
from guardwrap.constraints.base import lacks_part
from guardwrap.constraints.checking import run_check, run_verdict
from guardwrap.constraints.verdicts import Monitor
from guardwrap.engine.scheduling.backend import AttemptState, Backend, Launch
from guardwrap.outcomes import Draw

__all__ = [
    "TableModel",
    "World",
    "check_backend",
    "check_constraint",
    "goodness_of_fit",
    "llama_world",
    "table_world",
]


class TableConfig(PreTrainedConfig):
    """Configuration of a TableModel."""

    model_type = "guardwrap-table"

    vocab_size: int = 4
    max_position_embeddings: int = 16
    num_hidden_layers: int = 1


class TableModel(PreTrainedModel, GenerationMixin):
    """A position-dependent Markov chain: logits are ``table[position, last token]``.

    It is a very fast causal language model, for tests that take many thousands of draws.
    """

    config_class = TableConfig
    _no_split_modules = ()
    _supports_sdpa = True

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        shape = (config.max_position_embeddings, config.vocab_size, config.vocab_size)
        self.table: Any = torch.nn.Parameter(torch.zeros(shape))
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Look up the logits; ``[rows, length, vocabulary]``."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return CausalLMOutputWithPast(logits=self.table[position_ids, input_ids], past_key_values=past_key_values)


AutoConfig.register("guardwrap-table", TableConfig)
AutoModelForCausalLM.register(TableConfig, TableModel)


@dataclass(frozen=True)
class World:
    """A model with a small number of texts.

    Parameters
    ----------
    model, tokenizer
        The model, and a tokenizer with one token per character; padding and end-of-sequence are the same token.
    prompt
        The prompt.
    max_new_tokens
        Length of the longest text, in tokens.
    temperature, top_k
        Generation settings that define a; ``top_k=0`` keeps all tokens.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    prompt: str
    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of ``generate`` under which the model's distribution is ``law()``."""
        return {
            "do_sample": True,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_k": self.top_k,
        }

    def pipeline(self) -> TextGenerationPipeline:
        """Return a pipeline over the model."""
        return TextGenerationPipeline(model=self.model, tokenizer=self.tokenizer, task="text-generation")

    @torch.no_grad()
    def law(self) -> dict[tuple[int, ...], float]:
        """Return a(y) for every y: a mapping from new tokens, with the end-of-sequence token, to probability.

        It is computed in float64 from full forward passes, without cache, padding or any part of the engine.
        """
        end = self.tokenizer.eos_token_id
        prompt = self.tokenizer(self.prompt)["input_ids"]
        done: dict[tuple[int, ...], float] = {}
        frontier: dict[tuple[int, ...], float] = {(): 1.0}
        for length in range(1, self.max_new_tokens + 1):
            if not frontier:  # every text has ended
                break
            prefixes = list(frontier)
            ids = torch.tensor([[*prompt, *prefix] for prefix in prefixes], device=self.model.device)
            scores = self.model(input_ids=ids).logits[:, -1].double() / self.temperature
            if self.top_k:
                least = scores.topk(self.top_k).values[:, -1:]
                scores = scores.masked_fill(scores < least, float("-inf"))
            steps = scores.softmax(-1).tolist()
            grown: dict[tuple[int, ...], float] = {}
            for prefix, row in zip(prefixes, steps, strict=True):
                for token, step in enumerate(row):
                    target = done if token == end or length == self.max_new_tokens else grown
                    if step:
                        target[(*prefix, token)] = frontier[prefix] * step
            frontier = grown
        return done

    def draw(self, token_ids: Sequence[int]) -> Draw:
        """Return a text of this world as a finished attempt."""
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return Draw(self.prompt, tuple(token_ids), text, finished=token_ids[-1] == self.tokenizer.eos_token_id)

    def gold(self, constraint: Constraint) -> dict[tuple[int, ...], float]:
        """Return g(y) = a(y) b(y) / Z for every y that satisfies the constraint."""
        law = self.law()
        holds = run_check(constraint, [self.draw(ids) for ids in law])
        kept = {ids: p for (ids, p), ok in zip(law.items(), holds, strict=True) if ok}
        total = sum(kept.values())
        return {ids: p / total for ids, p in kept.items()}


def table_world(
    seed: int = 0, *, letters: str = "ab", max_new_tokens: int = 4, temperature: float = 1.0, top_k: int = 0
) -> World:
    """Return a world over a random TableModel."""
    tokenizer = character_tokenizer(letters)
    config = TableConfig(vocab_size=len(tokenizer), max_position_embeddings=max_new_tokens + 16)
    model = TableModel(config).eval()
    with torch.no_grad():
        model.table.copy_(torch.randn(model.table.shape, generator=torch.Generator().manual_seed(seed)))
    return World(_with_end(model, tokenizer), tokenizer, letters[0], max_new_tokens, temperature, top_k)


def llama_world(
    seed: int = 0,
    *,
    letters: str = "ab",
    max_new_tokens: int = 4,
    temperature: float = 1.0,
    top_k: int = 0,
    dtype: torch.dtype = torch.float64,
) -> World:
    """Return a world over a random Llama of two layers, where attention, cache and positions matter.

    The default is float64, because rounding depends on the other rows in a batch: in float32 about one draw in a
    million differs, depending on the processor. Use float32 for adapters, which have that dtype.
    """
    tokenizer = character_tokenizer(letters)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.25,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval().to(dtype)
    return World(_with_end(model, tokenizer), tokenizer, letters[0], max_new_tokens, temperature, top_k)


def character_tokenizer(letters: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character; ``<end>`` is padding and end-of-sequence."""
    vocabulary = {"<end>": 0, **{letter: i for i, letter in enumerate(letters, start=1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=letters[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(TokenizersRegex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", clean_up_tokenization_spaces=False
    )


def _with_end(model: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
        config.bos_token_id = None
    return model


def goodness_of_fit(draws: Iterable[Any], law: Mapping[Any, float], *, least: float = 5.0) -> float:
    """Test whether draws follow a distribution.

    Parameters
    ----------
    draws
        The draws.
    law
        Probability of every possible draw.
    least
        Cells with a smaller expected count are pooled.

    Returns
    -------
    float
        p-value of Pearson's chi-squared test; 0 if a draw has no probability.
    """
    counts = Counter(draws)
    if counts.keys() - law.keys():
        return 0.0
    size = counts.total()
    cells = [(counts[key], size * p) for key, p in law.items()]
    large = [cell for cell in cells if cell[1] >= least]
    small = [cell for cell in cells if cell[1] < least]
    if small:
        large.append((sum(seen for seen, _ in small), sum(expected for _, expected in small)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in large if expected > 0)
    return float(chdtrc(max(len(large) - 1, 1), statistic))


_CHARACTERS = "".join(map(chr, range(128))) + "é中🙂\ufffd"
_SURROGATES = "".join(map(chr, range(0xD800, 0xE000)))
_BEGUN = (b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x99")


def check_constraint(constraint: Constraint, texts: Iterable[str]) -> None:
    """Assert the properties that every constraint must have, on texts and all their prefixes.

    - Verdicts are sound.
    - A monitor gives the same verdicts however a text is split.
    - Checks are repeatable and do not depend on the batch.
    - The negation gives the opposite result, unless a part is missing that ``on`` selects.
    - The YAML form, if there is one, reads back with the same digest.

    Parameters
    ----------
    constraint
        The constraint, of any class.
    texts
        Texts to test with. Include difficult ones.

    Raises
    ------
    AssertionError
        If a property does not hold.
    """
    texts = list(texts)
    draws = [Draw("", (), text) for text in texts]
    together = run_check(constraint, draws)
    alike: dict[Any, Monitor] = {}
    assert together == [run_check(constraint, [draw])[0] for draw in draws], "the result depends on the batch"
    for draw, holds, negated in zip(draws, together, run_check(~constraint, draws), strict=True):
        assert negated is not holds or lacks_part(constraint, draw), "the negation is not the opposite"
    for text, holds in zip(texts, together, strict=True):
        first = reading = constraint.monitor()
        for end in range(len(text) + 1):
            verdict = run_verdict(constraint, text[:end])
            whole, one_more = first.read(text[:end]).verdict, first.read(text[: end // 2]).read(text[end // 2 : end])
            assert {whole, reading.verdict, one_more.verdict} == {verdict}, (
                f"the monitor's verdict on {text[:end]!r} depends on how the text is split"
            )
            following = [text[end:], text[end : end + 1], ""]
            assert reading.verdicts(following) == [reading.read(each).verdict for each in following], (
                f"the monitor's verdicts() on continuations of {text[:end]!r} differ from those of read()"
            )
            partial = text[end : end + 1].encode("utf-8", "surrogatepass")[:-1]
            begun = [partial[:size] for size in range(1, len(partial) + 1)]
            assert (
                all(map(reading.may_begin, begun)) or reading.read(text[end : end + 1]).verdict is Verdict.VIOLATED
            ), f"after {text[:end]!r} the monitor's may_begin() rejects bytes of a character that may come next"
            if reading.delimiters is not None:
                ends = f"{reading.delimiters.decode()}{_SURROGATES}"
                free = "".join(char for char in f"{text}{_CHARACTERS}" if char not in ends)
                fails = reading.read(free).verdict is Verdict.VIOLATED or not all(map(reading.may_begin, _BEGUN))
                assert not fails, f"after {text[:end]!r} a text without the monitor's delimiters is VIOLATED"
            if reading.key is not None:
                same = alike.setdefault(reading.key, reading)
                assert same.verdicts(following) == reading.verdicts(following), (
                    f"the monitor has the same key for {text[:end]!r} and another prefix, but other verdicts after it"
                )
            reading = reading.read(text[end : end + 1])
            assert verdict is Verdict.UNDECIDED or (verdict is Verdict.SATISFIED) == holds, (
                f"the verdict {verdict.name} on {text[:end]!r} is unsound: {text!r} "
                f"{'satisfies' if holds else 'violates'} the constraint"
            )
    if not constraint.in_memory:
        assert parse(dump(constraint), allow_code=True).constraint.digest == constraint.digest


def check_backend(make: Callable[[int], Backend], launches: Sequence[Launch]) -> None:
    """Assert the properties of backends that the scheduler relies on; test their distribution with ``goodness_of_fit``.

    - Each attempt ends once, and is counted as running until then.
    - The attempts do not depend on the batch size.
    - Canceled attempts are not returned, and others are not affected.
    - A watch ends attempts, which keep the reason.

    Parameters
    ----------
    make
        Function from the batch size to a new backend.
    launches
        At least a dozen attempts of at least two requests, without watch, mask and deadline. Most should be longer than
        one token.

    Raises
    ------
    AssertionError
        If a property does not hold.
    """
    few = _all_ended(make(2), launches)
    alone = [_outcome(attempt) for attempt in few]
    if make(1).can.repeats_seeds:
        together = [_outcome(attempt) for attempt in _all_ended(make(len(launches)), launches)]
        assert alone == together, "an attempt depends on the other attempts in its batch"

    backend, unneeded = make(len(launches)), launches[0].request
    ended = backend.launch(launches)
    before = {id(attempt.launch) for attempt in ended}
    cancelled = backend.cancel(lambda launch: launch.request == unneeded)
    assert all(attempt.launch.request == unneeded for attempt in cancelled), "another request's attempt was canceled"
    assert unneeded not in backend.lengths(), "a request has running attempts after they were canceled"
    while backend.running:
        ended += backend.advance()
    back = {id(attempt.launch) for attempt in ended if attempt.launch.request == unneeded}
    assert back <= before, "a canceled attempt was returned"
    needed = [i for i, launch in enumerate(launches) if launch.request != unneeded]
    kept = {id(attempt.launch): _outcome(attempt) for attempt in ended}
    assert all(id(launches[i]) in kept for i in needed), "an attempt was lost when another one was canceled"
    if backend.can.repeats_seeds:
        assert [kept[id(launches[i])] for i in needed] == [alone[i] for i in needed], "canceling changed other attempts"

    if backend.can.ends_early:
        watched = _all_ended(make(4), [replace(launch, watch=lambda _: "never") for launch in launches])
        assert all(attempt.whole or attempt.blame == "never" for attempt in watched), "an aborted attempt has no blame"
        aborted = [attempt for attempt in watched if attempt.status == "aborted"]
        assert aborted or all(attempt.length < 2 for attempt in few), "a watch was not called"


def _outcome(attempt: AttemptState) -> tuple[str, tuple[int, ...], str]:
    return attempt.status, tuple(attempt.token_ids), "" if attempt.streamed is None else attempt.streamed.text


def _all_ended(backend: Backend, launches: Sequence[Launch]) -> list[AttemptState]:
    """Draw attempts to the end, assert that each is counted until then, and return them in the order of launches."""
    ended: list[AttemptState] = []
    rest = list(launches)
    while rest or backend.running:
        room = backend.room
        assert room or backend.running, "no attempt is running, and there is no room for one"
        now, rest = rest[:room], rest[room:]
        ended += backend.launch(now) if now else backend.advance()
        begun = Counter(launch.request for launch in launches[: len(launches) - len(rest)])
        begun.subtract(attempt.launch.request for attempt in ended)
        lengths = {request: len(each) for request, each in backend.lengths().items() if each}
        assert (lengths, backend.running) == (+begun, begun.total()), "an attempt was lost, or ended twice"
    for attempt in ended:
        if attempt.error is not None:
            raise attempt.error
        assert attempt.status in ("finished", "cut", "aborted", "dead_end"), f"an attempt ended as {attempt.status!r}"
    place = {id(launch): number for number, launch in enumerate(launches)}
    return sorted(ended, key=lambda attempt: place[id(attempt.launch)])
