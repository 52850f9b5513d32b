"""The most that drafts from other accepted texts could save under a JSON schema, which decides whether to build them.

    python benchmarks/drafts.py [--fields 2 5 20] [--texts 8] [--seeds 2]

Draws texts of a prompt under a mask, and replays each: after the last tokens that also occur in another text, what
follows there is the draft, and those of its tokens count that are the ones drawn. This is a bound: drafts cost nothing
but their pass, and no row pays for another one's draft. "all": all other texts of the call are known from the first
token on; "earlier": those before it, as if texts were drawn one after the other, while a batch draws them together. A
pass over a draft costs more than one over a token; how much more is measured on the model, with one row and with as
many as texts. The gain is what tokens one by one cost, relative to the passes with drafts.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import product
from statistics import median
from typing import Any

import torch
from structured import MASKS, Bench, record
from transformers import DynamicCache

from guardwrap.engine.forward_passes import taken_by
from guardwrap.support.transformers_internals import CACHE_NAMES

LENGTHS = (1, 2, 4, 8)
"""Tokens of a draft at most, of which at least the last ``SAME`` before it are the same."""
SAME = 3


@torch.no_grad()
def cost_of_passes(model: Any, rows: int, past: int = 100) -> dict[int, float]:
    """Return the CPU time of a pass over a token and a draft, relative to one over a token, by the draft's length."""

    def seconds(tokens: int) -> float:
        cache = DynamicCache(config=model.config)
        states = {name: cache for name in CACHE_NAMES if name in taken_by(model)}
        model(input_ids=torch.ones(rows, past, dtype=torch.long), logits_to_keep=1, **states)
        began = time.process_time()
        model(input_ids=torch.ones(rows, tokens, dtype=torch.long), **states)
        return time.process_time() - began

    turns = [{length: seconds(1 + length) for length in (0, *LENGTHS)} for _ in range(5)]
    return {length: median(turn[length] / turn[0] for turn in turns) for length in LENGTHS}


def passes_with_drafts(text: Sequence[int], others: Sequence[Sequence[int]], length: int) -> tuple[int, int]:
    """Return how many passes a text takes without a draft, and with one."""
    following = {tuple(other[at : at + SAME]): other[at + SAME :] for other in others for at in range(len(other))}
    done = plain = drafted = 0
    while done < len(text):
        draft = following.get(tuple(text[max(0, done - SAME) : done]), ())[:length]
        same = next((at for at, (a, b) in enumerate(zip(draft, text[done:], strict=False)) if a != b), len(draft))
        plain, drafted = plain + (not draft), drafted + bool(draft)
        done += same + 1
    return plain, drafted


def main() -> None:
    """Print a line for each number of fields and length of drafts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", nargs="+", type=int, default=[2, 5, 20])
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench()
    costs = {rows: cost_of_passes(bench.model, rows) for rows in (1, options.texts)}
    for fields in options.fields:
        how = MASKS["beyond truncation"]
        calls = [bench.draw(record(fields), options.texts, seed, **how) for seed in range(options.seeds)]
        texts = [[list(draw.token_ids) for draw in call.draws] for call in calls]
        tokens = sum(len(text) for call in texts for text in call)
        for length, known in product(LENGTHS, ("all", "earlier")):
            counts = [
                passes_with_drafts(text, [*call[:at], *(call[at + 1 :] if known == "all" else [])], length)
                for call in texts
                for at, text in enumerate(call)
            ]
            plain, drafted = (sum(column) for column in zip(*counts, strict=True))
            gains = {rows: tokens / (plain + drafted * cost[length]) for rows, cost in costs.items()}
            line = ", ".join(f"{rows} rows {gain:.2f} (pass {costs[rows][length]:.2f})" for rows, gain in gains.items())
            passes = f"{tokens / (plain + drafted):.2f} tokens per pass"
            print(f"{fields} fields, {known}, drafts of {length}: {passes}; gain {line}", flush=True)


if __name__ == "__main__":
    main()
