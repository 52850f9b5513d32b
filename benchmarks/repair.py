"""Whether a repair turn helps: 30 prompts with one rule each, with as many attempts in all.

    python benchmarks/repair.py --out benchmarks/results/repair.jsonl [--seeds 4]

Each prompt gets three attempts: three draws of the model itself, or one draw and up to two repair turns of one draw. A
line has for each of the three rules how many prompts got a text, and the tokens that this took.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from guardwrap import Budget, Constraint, Finished, GuardedGenerator, JSONSchema, Keyword, Length, Repair

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
THINGS = ["tea", "the sea", "an old boat", "snow", "a cat", "bread", "the moon", "a garden", "winter", "a bridge"]
TASKS: dict[str, tuple[list[str], Constraint]] = {
    "JSON": (
        [f"Invent a person who likes {thing}. Answer with JSON that has a name and an age." for thing in THINGS],
        JSONSchema(PERSON, name="a JSON object with the keys name and age"),
    ),
    "short": (
        [f"Describe {thing} in one sentence of at most ten words." for thing in THINGS],
        Length(max=10, unit="words", name="at most ten words") & Finished(),
    ),
    "keyword": (
        [f"Write a sentence about {thing} that contains the word 'because'." for thing in THINGS],
        Keyword("because", name="the word 'because' must occur"),
    ),
}
SETTINGS: dict[str, Any] = {"max_new_tokens": 60, "temperature": 0.7, "top_k": 0}
TURNS = 2
WAYS: dict[str, dict[str, Any]] = {
    "draws": {"budget": Budget(TURNS + 1), "on_exhausted": "none"},
    "repair": {"budget": Budget(1), "on_exhausted": Repair(max_turns=TURNS, otherwise="none")},
}


def measured(name: str, seed: int) -> dict[str, Any]:
    """Return the line of a rule."""
    prompts, rule = TASKS[name]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    line: dict[str, Any] = {"rule": name, "prompts": len(prompts), "seed": seed}
    for way, options in WAYS.items():
        guarded = GuardedGenerator("local", rule, batch_size=10, **options)
        began = time.process_time()
        outcomes = guarded.run(chats, seed=seed, progress=False, **SETTINGS)
        usages = [outcome.report.usage for outcome in outcomes]
        line[way] = {
            "texts": sum(outcome.ok for outcome in outcomes),
            "attempts": sum(usage.attempts for usage in usages),
            "tokens": sum(usage.tokens for usage in usages),
            "cpu seconds": round(time.process_time() - began, 1),
        }
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with options.out.open("a", encoding="utf-8") as file:
        for seed in range(1, options.seeds + 1):
            for name in TASKS:
                line = json.dumps(measured(name, seed))
                file.write(f"{line}\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
