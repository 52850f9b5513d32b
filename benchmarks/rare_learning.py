"""What a twist of a rare word costs after it has learned from more or fewer attempts.

    python benchmarks/rare.py bank --model PATH --bank FOLDER --batches 258
    python benchmarks/rare_learning.py --model PATH --bank FOLDER --out rare-learning.jsonl --seed 1
    python benchmarks/rare_learning.py --model PATH --bank FOLDER --out rare-learning.jsonl --table

For each word of ``rare.py``, a twist learns from 384, 768 and 1 536 attempts. Its log-weights of exact draws of g then
give the attempts that a text takes by QRS for a true distance of .1 and of .05, with ψ to several powers. Learning from
other attempts may give another figure, so measure several seeds. Lines that exist are not measured again.
"""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rare import (
    DISTANCES,
    WORDS,
    Bank,
    learned,
    lines_of,
    parser_of,
    written,
)

from guardwrap import Keyword, Twisted

ATTEMPTS = (384, 768, 1536)
STRENGTHS = (0.5, 0.65, 0.8)


def measure(path: str, bank: Path, words: Sequence[str], out: Path, seed: int) -> None:
    """Write a line for each word and number of attempts that have none in the file with this seed."""
    texts = Bank.read(path, bank)
    finished = {(line["word"], line["learning"], line["seed"]) for line in lines_of(out)}
    for word, attempts in itertools.product(words, ATTEMPTS):
        exact, count = texts.exact(word)
        if (word, attempts, seed) in finished or not exact:
            continue
        share = count / len(texts.rows)
        guarded = texts.guarded(Keyword(word), Twisted(attempts=attempts))
        began = time.process_time()
        twist = learned(guarded, seed, 100_000 * seed)
        line = {"word": word, "Z": share, "exact": count, "learning": attempts, "seed": seed}
        line["cpu seconds"] = round(time.process_time() - began, 1)
        for strength in STRENGTHS:
            line[f"attempts at {strength}"] = texts.costs(dataclasses.replace(twist, strength=strength), exact, share)
        written(out, line)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the attempts a text by word, power of ψ and attempts of learning: geometric means over the seeds."""

    def mean(values: Sequence[float]) -> float:
        return float(np.exp(np.log(values).mean()))

    def cells(some: Sequence[dict[str, Any]], strength: float, relative: bool) -> list[str]:
        columns = []
        for attempts, place in itertools.product(ATTEMPTS, range(len(DISTANCES))):
            costs = [
                line[f"attempts at {strength}"][place] * (line["Z"] if relative else 1)
                for line in some
                if line["learning"] == attempts
            ]
            columns.append(f"{mean(costs):.3g}" if costs else "")
        return columns

    heads = [f"{attempts}, {tvd}" for attempts in ATTEMPTS for tvd in DISTANCES]
    rows = [["word", "power", "rejection", *heads]]
    for word in dict.fromkeys(line["word"] for line in lines):
        some = [line for line in lines if line["word"] == word]
        rejection = f"{1 / some[0]['Z']:.0f}"
        rows += [[word, str(strength), rejection, *cells(some, strength, False)] for strength in STRENGTHS]
    rows += [["all", str(strength), "1", *cells(lines, strength, True)] for strength in STRENGTHS]
    return "\n".join(" | ".join(row) for row in rows)


def main() -> None:
    parser = parser_of(__doc__, WORDS, 1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="write the table of the lines that there are")
    options = parser.parse_args()
    if options.table:
        print(table(lines_of(options.out)))
        return
    measure(options.model, options.bank, options.words.split(","), options.out, options.seed)


if __name__ == "__main__":
    main()
