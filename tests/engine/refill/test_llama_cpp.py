"""Models of llama.cpp, with a torch model in place of the library; ``test_llama_cpp_real.py`` has the real one."""

import copy
import gc
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from guardwrap import Budget, GuardedGenerator, Length, Masked, Prompt, Regex, Twisted
from guardwrap.constraints import Python
from guardwrap.engine.forward_passes import RoomTaken
from guardwrap.engine.refill import llama_cpp
from guardwrap.engine.refill.llama_cpp import Context, LlamaRows, Texts
from guardwrap.engine.refill.mode_selection import select_rows
from guardwrap.engine.refill.row_states import Plain
from guardwrap.errors import ContextExceeded, ModelError, UsageError
from guardwrap.testing import World, goodness_of_fit, llama_world

ROOM = 32
"""The most tokens of a text."""


class Llama:
    """What guardwrap reads of a ``Llama``."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.known: dict[tuple[int, ...], torch.Tensor] = {}  # logits by tokens
        self.model = SimpleNamespace(ends=[world.tokenizer.eos_token_id], recurrent=False, encoder=False, layers=2)
        self.context_params = SimpleNamespace(embeddings=False)
        self.lora_path = None
        self.begins: list[int] = []
        self.model_path = "tiny.gguf"
        for name, value in changes.items():
            setattr(self.model if hasattr(self.model, name) else self, name, value)

    def n_vocab(self) -> int:
        return len(self.world.tokenizer)

    def n_ctx(self) -> int:
        return ROOM

    def tokenize(self, text: bytes) -> list[int]:
        return [*self.begins, *self.world.tokenizer(text.decode(), add_special_tokens=False)["input_ids"]]

    def detokenize(self, ids: list[int], special: bool) -> bytes:
        assert special
        return str(self.world.tokenizer.decode(ids)).encode()


Llama.__module__ = "llama_cpp.llama"

LIBRARY = SimpleNamespace(
    llama_model_n_layer=lambda model: model.layers,
    llama_model_n_params=lambda model: 7,
    llama_model_get_vocab=lambda model: model,
    llama_vocab_is_eog=lambda model, token: token in model.ends,
    llama_model_has_encoder=lambda model: model.encoder,
    llama_model_is_recurrent=lambda model: model.recurrent,
    llama_model_is_hybrid=lambda model: False,
    llama_model_is_diffusion=lambda model: False,
)


class Sequences(Context):
    """Sequences of tokens, whose logits a torch model computes from the beginning."""

    def __init__(self, llm: Llama, count: int, length: int) -> None:
        self.count, self.length = count, length
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.computed = 0
        self._world, self._known = llm.world, llm.known

    @torch.no_grad()
    def decode(self, parts: Any) -> torch.Tensor:
        logits = [torch.empty(0, len(self._world.tokenizer))]
        for sequence, start, ids, kept in parts:
            tokens = self.tokens[sequence]
            assert start == len(tokens)
            assert len(tokens) + len(ids) <= self.length
            assert ids
            tokens += ids
            self.computed += len(ids)
            logits += [self._after(tokens[: len(tokens) - back]) for back in range(kept)[::-1]]
        return torch.cat(logits)

    def _after(self, tokens: list[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._world.model(input_ids=torch.tensor([tokens])).logits[0, -1:].float()
        return self._known[key]

    def copy(self, source: int, target: int, length: int) -> None:
        assert not self.tokens[target]
        self.tokens[target] = self.tokens[source][:length]

    def clear(self, sequence: int) -> None:
        self.tokens[sequence] = []


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", LIBRARY)
    monkeypatch.setattr(llama_cpp, "Context", Sequences)


@pytest.fixture
def small() -> World:
    return llama_world(3, letters="abc", max_new_tokens=4)


def wrapped(world: World, rule: Any, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(Llama(world), rule, tokenizer=world.tokenizer, **options)


SETTINGS: dict[str, Any] = {"max_new_tokens": 4, "temperature": 1.0, "top_k": 0}


def test_texts_follow_the_law(small):
    """Negative control: they do not have the law at another temperature."""
    rule = ~Regex("ab|ca")
    guarded = wrapped(small, rule, budget=Budget(max_attempts=None), seed=1)
    (outcome,) = guarded.run(small.prompt, num_return_sequences=4000, **SETTINGS)
    drawn = [draw.token_ids for draw in outcome.draws]
    assert goodness_of_fit(drawn, small.gold(rule)) > 1e-3
    assert goodness_of_fit(drawn, replace(small, temperature=1.5).gold(rule)) < 1e-9
    assert outcome.report.drawn_from.startswith("exactly")
    assert select_rows(guarded.model) is LlamaRows
    assert outcome.report.usage.computed_tokens < outcome.report.usage.tokens / 4  # prefixes are computed once


@pytest.mark.parametrize("proposal", [Masked(), Twisted()], ids=["mask", "twist"])
def test_weighted_texts_follow_the_law(small, proposal):
    """Negative control: without weights, they do not."""
    rule = Regex("c.*b") & ~Regex("aa")
    options: dict[str, Any] = {"budget": Budget(max_attempts=None), "seed": 1, "proposal": proposal}
    results = {}
    for sampler in ("qrs", "rejection"):
        (outcome,) = wrapped(small, rule, sampler=sampler, **options).run(
            small.prompt, num_return_sequences=1500, **SETTINGS
        )
        results[sampler] = goodness_of_fit([draw.token_ids for draw in outcome.draws], small.gold(rule))
    assert results["qrs"] > 1e-3
    assert results["rejection"] < 1e-6


def test_weights_are_those_of_the_law(small):
    """Negative control: without the temperature, they are others."""
    guarded = wrapped(small, Length(min=0), proposal=Prompt("b{prompt}"), sampler="qrs", seed=1)
    settings = SETTINGS | {"temperature": 0.7}
    (attempts,) = guarded.attempts(["a"], 20, **settings)
    differences = []
    for temperature in (0.7, 1.0):
        laws = [replace(small, prompt=prompt, temperature=temperature).law() for prompt in ("a", "ba")]
        weights = [math.log(laws[0][each.draw.token_ids] / laws[1][each.draw.token_ids]) for each in attempts]
        differences.append(max(abs((each.log_weight or 0.0) - w) for each, w in zip(attempts, weights, strict=True)))
    assert differences[0] < 1e-4 < differences[1]


def test_a_seed_gives_the_same_texts_in_any_batch(small):
    rule = ~Regex("ab|ca") & Length(min=1)
    texts = [
        wrapped(small, rule, seed=5, batch_size=size, **options).run(
            ["a", "b", "cc"], num_return_sequences=9, max_new_tokens=9
        )
        for size, options in [(1, {}), (3, {}), (40, {}), (3, {"deterministic": True})]
    ]
    assert len({repr([outcome.texts for outcome in outcomes]) for outcomes in texts}) == 1


def test_states_that_are_misplaced_are_noticed(small, monkeypatch):
    """Negative control of the test of a model: it finds rows that start a token too late."""
    rows = select_rows(wrapped(small, Length(min=0)).model)
    assert rows is LlamaRows

    def misplaced(context: Any, source: int, target: int, length: int) -> None:
        context.tokens[target] = context.tokens[source][:length][::-1]

    monkeypatch.setattr(Sequences, "copy", misplaced)
    assert select_rows(wrapped(small, Length(min=0)).model) is Plain


def rows_and_context(world: World, rows: int) -> tuple[LlamaRows, Sequences]:
    model = llama_cpp.LlamaCppModel(Llama(world))
    context = model.reserve(rows).context
    assert isinstance(context, Sequences)
    return LlamaRows(model), context


def test_what_others_have_computed_is_not_computed_again(small):
    rows, context = rows_and_context(small, 8)
    rows.add([(1, 2, 3), (1, 2, 3), (2,)])
    assert context.computed == 4
    rows.forward(torch.tensor([1, 2, 0]), {0: (1, 2, 3, 1)})
    assert context.computed == 7
    rows.keep([1, 2])
    assert rows.join((1, 2, 3, 1), 3) == 0  # the row ended, and its states are kept
    assert rows.join((1, 2, 3, 1, 1), 3) == 1
    rows.forward(torch.tensor([1, 1, 1, 1]))
    assert context.computed == 12
    assert sorted(map(tuple, context.tokens))[-3:] == [(1, 2, 3, 1, 1, 1), (1, 2, 3, 2, 1), (2, 0, 1)]


def test_sequences_are_used_again(small):
    rows, context = rows_and_context(small, 8)
    for _ in range(5):
        for number in range(context.count):
            rows.add([(1, number % 3, 2)])
            rows.keep([])
    del rows
    gc.collect()
    assert sum(map(bool, context.tokens)) <= 3  # one for each prompt that others may have


def test_memory_that_runs_out_is_an_error_of_its_kind(small):
    model = llama_cpp.LlamaCppModel(Llama(small))
    rows = LlamaRows(model)
    with pytest.raises(torch.OutOfMemoryError, match="all sequences"):
        rows.add([(1, 2)] * 40)
    del rows
    gc.collect()
    LlamaRows(model).add([(1, 2)])


def test_more_attempts_than_room_run_one_after_the_other(small, caplog):
    """A backend that asks for more rows than there are sequences restarts with half as many, and draws the same."""
    rule = ~Regex("ab")
    (right,) = wrapped(small, rule, seed=1, batch_size=3).run("a", num_return_sequences=30, max_new_tokens=9)
    guarded = wrapped(small, rule, seed=1, batch_size=60)
    fixed = Texts(Sequences(Llama(small), 12, ROOM))
    guarded.model.reserve = lambda rows: fixed
    (outcome,) = guarded.run("a", num_return_sequences=30, max_new_tokens=9)
    assert outcome.texts == right.texts
    assert "out of memory: continuing with at most" in caplog.text


def test_a_batch_continues_with_fewer_rows_when_another_one_takes_its_sequences(caplog):
    """Attempts restart in the middle of their texts, where others have computed them."""
    world = llama_world(3, letters="abcdefgh", max_new_tokens=12)
    guarded = wrapped(world, Length(min=0), batch_size=8)
    options: dict[str, Any] = {"num_return_sequences": 200, "seed": 2, **SETTINGS, "max_new_tokens": 12}
    (right,) = wrapped(world, Length(min=0), batch_size=8).run("a", **options)
    texts: list[str] = []
    others: list[LlamaRows] = []

    def judge(text: str) -> bool:
        texts.append(text)
        if len(texts) == 20:
            others.append(LlamaRows(guarded.model))
            with suppress(torch.OutOfMemoryError):
                others[0].add([(i, j) for i in range(2) for j in range(4)])
        return True

    (outcome,) = guarded.run("a", constraints=Python(judge), **options)
    assert outcome.texts == right.texts
    assert "out of memory: continuing with at most" in caplog.text


@pytest.mark.parametrize("size", [1, 8, 20])
def test_the_room_is_that_of_the_batch_size(small, size):
    guarded = wrapped(small, Length(min=0), batch_size=size)
    assert guarded.model._texts is None  # what tested the model
    guarded.run("a", num_return_sequences=5, **SETTINGS)
    context = guarded.model.reserve(1).context
    assert (context.count, context.length) == (size + size // 4 + 4, ROOM)


def test_one_attempt_waits_for_others_that_have_all_the_room(small):
    guarded = wrapped(small, Length(min=0), batch_size=1)
    guarded.run("a", **SETTINGS)
    other = LlamaRows(guarded.model)
    taken = 0
    with suppress(RoomTaken):
        while True:
            other.add([(1, 2)])
            taken += 1
    assert taken > 2
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(guarded.run, "a", **SETTINGS)
        with pytest.raises(TimeoutError):
            call.result(timeout=0.5)
        other.keep([])
        (outcome,) = call.result(timeout=30)
    assert len(outcome.texts) == 1


def test_negative_control_other_memory_is_not_waited_for(small, monkeypatch):
    guarded = wrapped(small, Length(min=0), batch_size=1)
    monkeypatch.setattr(llama_cpp, "RoomTaken", torch.OutOfMemoryError)
    other = LlamaRows(guarded.model)
    with suppress(torch.OutOfMemoryError):
        while True:
            other.add([(1, 2)])
    with pytest.raises(ModelError, match="out of memory with one attempt at a time"):
        guarded.run("a", **SETTINGS)


def test_a_padded_batch_is_computed_text_by_text(small):
    model = llama_cpp.LlamaCppModel(Llama(small))
    ids = torch.tensor([[0, 0, 1, 2], [1, 2, 3, 1]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    whole = model(input_ids=ids, attention_mask=mask).logits
    expected = small.model(input_ids=ids[:1, 2:]).logits[0].float()
    torch.testing.assert_close(whole[0, 2:], expected)
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask, logits_to_keep=1).logits, whole[:, -1:])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recurrent": True}, "recurrent layers"),
        ({"encoder": True}, "encoder"),
        ({"lora_path": "a.gguf"}, "merge it"),
        ({"context_params": SimpleNamespace(embeddings=True)}, "embeddings"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(small, changes, words):
    with pytest.raises(UsageError, match=words):
        GuardedGenerator(Llama(small, **changes), Length(min=0), tokenizer=small.tokenizer)


def test_what_it_cannot_give_is_refused(small):
    guarded = wrapped(small, Length(min=0))
    with pytest.raises(UsageError, match="own number of bits"):
        guarded.model.to(torch.bfloat16)
    assert guarded.model.to("cpu") is guarded.model
    assert guarded.model.num_parameters() == 7
    with pytest.raises(UsageError, match="takes no adapters"):
        wrapped(small, Length(min=0), adapter="folder")
    with pytest.raises(UsageError, match="cannot be changed"):
        copy.deepcopy(guarded.model)
    with pytest.raises(ContextExceeded, match=f"max_new_tokens={ROOM}"):
        guarded.run("a", max_new_tokens=ROOM + 1)
    with pytest.raises(ContextExceeded, match="larger n_ctx"):
        guarded.model(input_ids=torch.ones(1, ROOM + 1, dtype=torch.long))
    (outcome,) = guarded.run("a", max_new_tokens=ROOM, num_return_sequences=3)
    assert len(outcome.texts) == 3


def test_a_tokenizer_of_another_model_is_refused(small):
    other = llama_world(letters="xyz").tokenizer
    with pytest.raises(UsageError, match="not that of the GGUF file"):
        GuardedGenerator(Llama(small), Length(min=0), tokenizer=other)


@pytest.mark.parametrize("tokenizer", [3, object()])
def test_what_is_no_tokenizer_is_refused(small, tokenizer):
    with pytest.raises(UsageError, match=r"is not a tokenizer; load one with AutoTokenizer\.from_pretrained"):
        GuardedGenerator(Llama(small), Length(min=0), tokenizer=tokenizer)


def test_a_beginning_that_only_one_of_both_writes_is_named(small, caplog):
    """Llama 3's files lack the flag by which transformers writes it, and llama.cpp writes it all the same."""
    small.tokenizer.add_special_tokens({"bos_token": "b"})
    wrapped(small, Length(min=0))
    assert "prompts that are strings" not in caplog.text
    llm = Llama(small, begins=[small.tokenizer.bos_token_id])
    GuardedGenerator(llm, Length(min=0), tokenizer=small.tokenizer)
    assert "prompts that are strings lack 'b' here, and have it in llama.cpp" in caplog.text


def test_a_file_needs_the_library(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ModelError, match="pip install llama-cpp-python"):
        GuardedGenerator(tmp_path / "model.gguf", Length(min=0))
