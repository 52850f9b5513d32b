"""An adapter on prompts that it was not trained on, beside the model itself, a mask, and both.

    python benchmarks/unseen.py --adapter catalogue:json-object --prompts examples/training/json-unseen.txt

draws as many attempts for each prompt in each way, in turn. It prints the acceptance rate with its interval over
prompts like these, how many prompts had no text, CPU seconds per text, and for ways that are weighed the
share of the attempts that their effective sample size is, as a mean over the prompts with a text.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guardwrap import GuardedGenerator, Masked
from guardwrap.metrics import effective_sample_size
from guardwrap.metrics.intervals import rate_over

LAW = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 64}
WAYS: dict[str, dict[str, Any]] = {
    "the model": {"adapter": False},
    "mask": {"adapter": False, "proposal": Masked()},
    "adapter": {},
    "adapter and mask": {"proposal": Masked()},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", default="catalogue:json-object")
    parser.add_argument("--constraint", default="catalogue:json-object")
    parser.add_argument("--prompts", type=Path, required=True, help="one per line")
    parser.add_argument("--attempts", type=int, default=10, help="of each prompt in each way")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the accepted attempts of each prompt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    guarded = GuardedGenerator("local", options.constraint, adapter=options.adapter, batch_size=64)
    chats = [[{"role": "user", "content": line}] for line in options.prompts.read_text().splitlines()]
    counts: dict[str, list[int]] = {}
    for name in options.ways:
        weighed, began = "mask" in name, time.process_time()
        drawn = guarded.attempts(chats, options.attempts, weigh=weighed, seed=options.seed, **LAW, **WAYS[name])
        seconds = time.process_time() - began
        counts[name] = [sum(attempt.satisfied for attempt in attempts) for attempts in drawn]
        rate = rate_over(counts[name], options.attempts, range(len(counts[name])))
        worth = ""
        if weighed:
            weights = [[attempt.log_weight or 0.0 for attempt in attempts if attempt.satisfied] for attempts in drawn]
            shares = [effective_sample_size(of_prompt).value / options.attempts for of_prompt in weights if of_prompt]
            worth = f", worth {np.mean(shares):.2f} of the attempts"
        texts = sum(counts[name])
        print(
            f"{name}: {rate}, {counts[name].count(0)} of {len(chats)} prompts without a "
            f"text, {seconds / max(texts, 1):.2f} CPU s per text{worth}",
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps({"attempts": options.attempts, "accepted": counts}))


if __name__ == "__main__":
    main()
