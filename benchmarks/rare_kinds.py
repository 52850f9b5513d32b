"""What rare rules of several kinds cost with a twist, beside a mask and rejection: JSON, bullets, characters, lengths.

    python benchmarks/rare_kinds.py --out benchmarks/results/rare-kinds.jsonl [--attempts 256] [--rules array,bullets]

For each rule, attempts of the embedded model are drawn from the model itself, from ``Masked()``, and from ``Twisted()``
with a share of the model's own distribution in each step of 0 and of .6, with the same values. A line has for each of
them how many attempts passed, the estimate of Z (the mean weight of an attempt), and the effective sample size of the
weights, (Σ w)² / Σ w², per attempt. Attempts of learning are counted apart. Rules whose lines exist are left out.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from guardwrap import Constraint, Count, Finished, GuardedGenerator, JSONSchema, Length, Masked, Regex, Twisted
from guardwrap.metrics import effective_sample_size
from guardwrap.session import twisting

KEYS = ("name", "age", "email", "city", "job")
PERSON = {
    "type": "object",
    "properties": {key: {"type": "string"} for key in KEYS},
    "required": [*KEYS],
    "additionalProperties": False,
}


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


RULES: dict[str, tuple[Any, Constraint, int]] = {
    "five strings": (asked("Describe a person in JSON with name, age, email, city and job."), JSONSchema(PERSON), 60),
    "array": (
        asked("Give me three fruits as a JSON array of strings."),
        JSONSchema({"type": "array", "items": {"type": "string"}}),
        40,
    ),
    "bullets": (asked("Give me tips for a good cup of tea."), Count("bullets", min=3, max=3), 60),
    "no comma": ("The old boat", ~Regex(","), 23),
    "eight words": ("The old boat", Length(max=8, unit="words") & Finished(), 23),
}
"""The prompt, the constraint and the most tokens of each rule."""


def figures(guarded: GuardedGenerator, prompt: Any, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """Draw attempts, and return how many passed and what they are worth."""
    began = time.process_time()
    (attempts,) = guarded.attempts([prompt], count, **options)
    logs = [attempt.log_weight if attempt.satisfied else None for attempt in attempts]
    weights = np.array([-math.inf if log is None else log for log in logs])
    passed = sum(log is not None for log in logs)
    worth = effective_sample_size(weights).value if passed else 0.0
    return {
        "attempts": len(attempts),
        "passed": passed,
        "Z": float(np.exp(weights).mean()),
        "effective per attempt": round(worth / len(attempts), 4),
        "cpu seconds": round(time.process_time() - began, 1),
    }


def measured(name: str, count: int, seed: int) -> dict[str, Any]:
    """Return the line of a rule."""
    prompt, rule, tokens = RULES[name]
    options: dict[str, Any] = {"max_new_tokens": tokens, "seed": seed, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    line: dict[str, Any] = {"rule": name, "tokens": tokens, "seed": seed}
    plain = GuardedGenerator("local", rule, batch_size=32)
    line["rejection"] = figures(plain, prompt, count, options)
    line["mask"] = figures(GuardedGenerator("local", rule, proposal=Masked(), batch_size=32), prompt, count, options)
    twisted = GuardedGenerator("local", rule, proposal=Twisted(), batch_size=32)
    began = time.process_time()
    twisted.attempts([prompt], 1, **options)
    line["learning cpu seconds"] = round(time.process_time() - began, 1)
    for share in (0.0, 0.6):
        with mock.patch.object(twisting, "model_share_for", lambda *_, share=share: share):
            line[f"twist, own {share:g}"] = figures(twisted, prompt, count, options)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--attempts", type=int, default=256)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    there = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    finished = {json.loads(line)["rule"] for line in there}
    for name in options.rules.split(","):
        if name in finished:
            continue
        line = measured(name, options.attempts, options.seed)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line, indent=1), flush=True)


if __name__ == "__main__":
    main()
