"""Which texts a seed gives in batches of several sizes, with and without ``deterministic=True``, and the cost.

    python benchmarks/deterministic.py --out benchmarks/results/deterministic.jsonl

The embedded model without truncation, 32 texts of up to 40 tokens with an "e". A text counts as equal if it is that of
the same setting with a batch size of 1.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from guardwrap import GuardedGenerator, Regex, load_local

SETTINGS: dict[str, Any] = {"max_new_tokens": 40, "num_return_sequences": 32, "top_k": 0, "temperature": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("deterministic.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded, tokenizer = load_local()
    for dtype in (torch.bfloat16, torch.float32):
        model = loaded.to(dtype)
        for deterministic in (False, True):
            guarded = GuardedGenerator(model, Regex("e"), tokenizer=tokenizer, deterministic=deterministic)
            alone: tuple[str, ...] = ()
            for size in (1, 5, 16):
                start = time.process_time()
                (outcome,) = guarded.run("The old boat", seed=5, batch_size=size, **SETTINGS)
                alone = alone or outcome.texts
                line = {
                    "dtype": str(dtype).removeprefix("torch."),
                    "deterministic": deterministic,
                    "batch_size": size,
                    "equal": sum(one == other for one, other in zip(outcome.texts, alone, strict=True)),
                    "texts": len(alone),
                    "computed_tokens": outcome.report.usage.computed_tokens,
                    "cpu_seconds": round(time.process_time() - start, 1),
                }
                print(json.dumps(line), flush=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
