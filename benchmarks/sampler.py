"""The cost of weights: CPU seconds of QRS and of rejection for the same attempts, in turn in one process.

    python benchmarks/sampler.py --model models/stories15M --out benchmarks/results/sampler

The proposal is a prompt that asks for the constraint; about a tenth of its attempts satisfy it. QRS computes log a(y)
for those. Apart from that, both draw exactly the same texts.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from guardwrap import GuardedGenerator, Keyword, Prompt

SETTINGS: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hub id or path of a story model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attempts", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    pipe = transformers.pipeline("text-generation", model=options.model, dtype=options.dtype)
    told = Prompt("A story about being happy. <s>{prompt}")
    guarded = GuardedGenerator(pipe, Keyword(["happy", "smile", "smiled"]), batch_size=64, proposal=told)
    guarded.attempts("", 20, seed=0, **SETTINGS)  # finds out how to keep rows
    runs = []
    for seed in range(options.repeats):
        spent, ids = {}, {}
        for name, weigh in (("rejection", False), ("qrs", True)):
            begin = time.process_time()
            (attempts,) = guarded.attempts("", options.attempts, weigh=weigh, seed=seed, **SETTINGS)
            spent[name] = time.process_time() - begin
            ids[name] = [attempt.draw.token_ids for attempt in attempts]
        assert ids["qrs"] == ids["rejection"]
        satisfied = sum(attempt.satisfied for attempt in attempts) / len(attempts)
        runs.append({**spent, "satisfied": satisfied, "ratio": spent["qrs"] / spent["rejection"]})
        print(runs[-1], flush=True)
    found = {
        "dtype": options.dtype,
        "attempts": options.attempts,
        "ratio": statistics.median(run["ratio"] for run in runs),
        "runs": runs,
        "versions": {package.__name__: package.__version__ for package in (torch, transformers)},
    }
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
