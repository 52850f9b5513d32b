"""Verdicts on prefixes of JSON, measured on MaskBench: real schemas with valid and invalid instances.

    python benchmarks/maskbench.py --data maskbench [--only NAME ...] [--out maskbench.json]

Each data file contains a ``schema`` and ``tests``, each with ``data`` and ``valid``. Each instance is written with
``json.dumps`` and read token by token, as the embedded model would write it; every seventh also character by
character. Whole texts are judged for comparison: an invalid instance that the validator accepts violates a ``format``,
or a keyword of an earlier draft. Seconds are CPU seconds of one thread.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from guardwrap import load_local
from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.verdicts import Monitor
from guardwrap.errors import ConstraintError, first_line

FORMAT = "' is not a '"  # in what the data says of an instance that breaks one


def pieces(tokenizer: Any, text: str) -> list[str]:
    """Cut a text where its tokens end; a character of several tokens comes with the last of them."""
    offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    ends = sorted({0, len(text), *(start for start, _ in offsets)})
    return [text[start:end] for start, end in pairwise(ends)]


def verdicts(monitor: Monitor, parts: Sequence[str]) -> Iterator[Verdict]:
    for part in parts:
        monitor = monitor.read(part)
        yield monitor.verdict


def given_up(monitor: Monitor, parts: Sequence[str]) -> int | None:
    """Return the number of parts after which a text was violated, if it was."""
    found = (i for i, verdict in enumerate(verdicts(monitor, parts), 1) if verdict is Verdict.VIOLATED)
    return next(found, None)


def each_cost(monitor: Monitor, parts: Sequence[str]) -> list[float]:
    """Return the seconds that each part took."""
    costs = []
    for part in parts:
        start = time.thread_time()
        monitor = monitor.read(part)
        costs.append(time.thread_time() - start)
        if monitor.verdict is not Verdict.UNDECIDED:
            break
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the data and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of MaskBench's files")
    parser.add_argument("--only", nargs="+", help="names of files that begin like this")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    _, tokenizer = load_local()
    counts: Counter[str] = Counter(dict.fromkeys(("unsound", "unsound, by character", "depends on cuts"), 0))
    problems: list[str] = []
    missed: Counter[str] = Counter()
    shares, costs, whole, compile_seconds, candidates = [], [], [0.0, 0], [], []
    for path in sorted(options.data.glob("*.json")):
        if options.only and not path.name.startswith(tuple(options.only)):
            continue
        content = json.loads(path.read_text())
        try:
            start = time.thread_time()
            constraint = JSONSchema(content["schema"])
            compile_seconds.append(time.thread_time() - start)
        except ConstraintError as error:
            counts["schemas refused"] += 1
            problems.append(f"{path.name}: refused: {first_line(error)[:120]}")
            continue
        counts["schemas"] += 1
        for number, test in enumerate(content["tests"]):
            text = json.dumps(test["data"], ensure_ascii=False)
            parts = pieces(tokenizer, text)
            accepted = constraint.accepts(text)
            start = time.thread_time()
            end = given_up(constraint.monitor(), parts)
            whole[0] += time.thread_time() - start
            whole[1] += len(parts) if end is None else end
            costs += each_cost(constraint.monitor(), parts)
            counts["valid" if test["valid"] else "invalid"] += 1
            if end is not None and accepted:
                counts["unsound"] += 1
                problems.append(f"{path.name} {number}: unsound after {''.join(parts[:end])[-40:]!r}")
            if number % 7 == 0:
                by_character = given_up(constraint.monitor(), text)
                if by_character is not None and accepted:
                    counts["unsound, by character"] += 1
                if (end is None) != (by_character is None):
                    counts["depends on cuts"] += 1
                reading = constraint.monitor()
                for part in parts[: len(parts) // 2]:
                    reading = reading.read(part)
                start = time.thread_time()
                reading.verdicts(parts[:100])
                candidates.append((time.thread_time() - start) / len(parts[:100]))
            if test["valid"]:
                counts["valid, accepted"] += accepted
            elif accepted:
                reason = first_line(Exception(test.get("python_error", "")))
                counts[f"invalid, accepted: {'a format' if FORMAT in reason else 'an earlier draft'}"] += 1
                problems.append(f"{path.name} {number}: accepted: {reason[:80]}")
            else:
                counts["invalid, rejected"] += 1
                early = end is not None and end < len(parts)
                counts["given up early"] += early
                counts["given up at the end"] += end == len(parts)
                counts["never given up"] += end is None
                if early:
                    shares.append(len("".join(parts[:end])) / len(text))
                else:
                    missed[test.get("python_error", "").split("Failed validating ")[-1].split(" ")[0]] += 1
    found = {
        **dict(sorted(counts.items())),
        "given up early, share": counts["given up early"] / max(counts["invalid, rejected"], 1),
        "text read then, mean share": float(np.mean(shares)) if shares else None,
        "microseconds a token, mean": 1e6 * whole[0] / max(whole[1], 1),
        "microseconds a token, 50th, 99th, 99.9th percentile, worst": [
            round(1e6 * float(np.quantile(costs, q)), 1) for q in (0.5, 0.99, 0.999, 1)
        ],
        "microseconds a candidate, mean": 1e6 * float(np.mean(candidates)),
        "milliseconds to make a constraint, mean": 1e3 * float(np.mean(compile_seconds)),
        "not given up early, by keyword": dict(missed.most_common()),
    }
    for line in problems:
        print(line)
    for name, figure in found.items():
        print(f"{name:60} {figure if not isinstance(figure, float) else format(figure, '.3g')}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
