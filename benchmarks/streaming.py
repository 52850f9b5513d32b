"""Seconds to the first piece of a streamed text, compared with seconds to the whole text.

    python benchmarks/streaming.py

draws one text at a time of the embedded model, with no rule, with a keyword, and with a ban, which is decided only at
the end of a text. With the same seeds it draws the texts again without streaming, and compares texts and seconds.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from guardwrap import Constraint, GuardedGenerator, Keyword, Length

CHAT = [{"role": "user", "content": "Write a short story about a coffee mug."}]
RULES: dict[str, Constraint] = {
    "no rule": Length(min=0),
    'the word "mug"': Keyword("mug"),
    'no word "tea"': ~Keyword("tea"),
}


def measured(guarded: GuardedGenerator, rule: Constraint, seeds: range, tokens: int) -> dict[str, float]:
    """Return medians over seeds, in seconds, and how many texts were streamed while they were drawn."""
    first, whole, plain, live = [], [], [], 0
    for seed in seeds:
        moments: list[float] = []
        pieces: list[str] = []

        def on_piece(prompt: int, number: int, text: str, moments: list[float] = moments) -> None:
            moments.append(time.perf_counter())
            pieces.append(text)  # noqa: B023  # called in this iteration only

        began = time.perf_counter()
        options: dict[str, Any] = {"constraints": rule, "seed": seed, "max_new_tokens": tokens}
        (outcome,) = guarded.stream([CHAT], on_piece=on_piece, **options)
        whole.append(time.perf_counter() - began)
        first.append(moments[0] - began)
        live += len(moments) > 1
        began = time.perf_counter()
        (again,) = guarded.stream([CHAT], **options)
        plain.append(time.perf_counter() - began)
        if not ("".join(pieces) == outcome.texts[0] == again.texts[0]):
            raise SystemExit(f"seed {seed}: the pieces are not the text")
    return {
        "first": statistics.median(first),
        "whole": statistics.median(whole),
        "without streaming": statistics.median(plain),
        "live": live,
        "texts": len(seeds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200, help="max_new_tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    guarded = GuardedGenerator("local", Length(min=0))
    guarded.run(CHAT, max_new_tokens=4)  # loads what is loaded once
    results = {}
    print("| rule | first piece | whole text | without streaming | streamed while drawn |\n|---|---|---|---|---|")
    for name, rule in RULES.items():
        row = results[name] = measured(guarded, rule, range(options.texts), options.tokens)
        seconds = " | ".join(f"{row[key]:.2f} s" for key in ("first", "whole", "without streaming"))
        print(f"| {name} | {seconds} | {row['live']} of {row['texts']} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
