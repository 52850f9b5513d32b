"""How late answers are after a timeout: callers at the same time, and a constraint that no text satisfies.

    python benchmarks/timeouts.py [--timeout 5] [--callers 1,20,64] [--limits timeout,deadline] [--out timeouts.json]

The embedded model on one thread, 200 tokens, 32 rows. Each caller asks once with ``Budget(timeout=...)``; overshoot is
the time from the timeout to the answer, in percent of the timeout. Beside it are ``deadline`` and ``max_seconds`` with
the same number of seconds.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

import numpy as np
import torch

from guardwrap import Budget, GuardedGenerator, Regex

RULE = Regex("this is never written")
PROMPTS = ("Write a story about a boat.", "Describe a house.", "What is rain?", "Name three birds.")


async def waited(guarded: GuardedGenerator, number: int, budget: Budget) -> float:
    """Return the seconds until a caller has an answer."""
    began = time.monotonic()
    chat = [{"role": "user", "content": f"{PROMPTS[number % len(PROMPTS)]} ({number})"}]
    (outcome,) = await guarded.arun([chat], budget=budget, max_new_tokens=200)
    assert not outcome.ok
    return time.monotonic() - began


async def all_of(guarded: GuardedGenerator, callers: int, budget: Budget) -> list[float]:
    return await asyncio.gather(*(waited(guarded, number, budget) for number in range(callers)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--callers", default="1,20,64")
    parser.add_argument("--limits", default="timeout,deadline,max_seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    guarded = GuardedGenerator("local", RULE, batch_size=32, seed=1)
    guarded.run([[{"role": "user", "content": "Hello"}]], budget=Budget(max_attempts=1), max_new_tokens=2)
    lines = []
    for callers in map(int, options.callers.split(",")):
        for name in options.limits.split(","):
            budget = Budget(max_attempts=None, **{name: options.timeout})
            seconds = np.array(asyncio.run(all_of(guarded, callers, budget)))
            over = 100 * (seconds / options.timeout - 1)
            line = {"callers": callers, "limit": name, "seconds": options.timeout}
            line |= {"median %": round(float(np.median(over)), 1), "worst %": round(float(over.max()), 1)}
            lines.append(line)
            print(line, flush=True)
    if options.out:
        options.out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
