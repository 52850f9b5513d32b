"""What verdicts on growing texts cost: CPU time per token at several lengths, characters read, and memory.

    python benchmarks/long_texts.py [--lengths 100 500 1000 2000 4000] [--only WORD ...]

Each rule watches one text as it grows by tokens of the embedded model, as a running attempt is watched: prose (this
project's docs), JSON, or a list of sums. No rule is violated, so that no verdict ends the text early. The table has the
mean CPU time of the last eighth of the verdicts before each length, in µs, and the memory that watching the longest
text took, in MB.
"""

import argparse
import gc
import json
import re
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from guardwrap import (
    Arithmetic,
    Constraint,
    Count,
    Grammar,
    JSONSchema,
    Keyword,
    Language,
    Length,
    NoCopy,
    OnlyFrom,
    Order,
    Part,
    PersonalData,
    Quotes,
    Regex,
    Secrets,
    Split,
    Values,
    load_local,
)
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.engine.scheduling.backend import TokenIds
from guardwrap.models.early_abort import PrefixWatch, StablePrefix

ROOT = Path(__file__).parents[1]
LAST = 1 / 8
"""The share of the verdicts before each length that is measured. Some rules read the text again at a few of these."""

SOURCE = "The harbor master wrote down every ship that came in, its cargo and the name of its captain. " * 40

ROW = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "price"],
}
SCHEMA = JSONSchema({"type": "array", "items": ROW})

RULES: dict[str, tuple[str, Constraint]] = {
    "keyword": ("prose", Keyword("zeppelin")),
    "keyword, none": ("prose", Keyword(["zeppelin", "xylophone"], match="none")),
    "regex": ("prose", Regex(r"\bzeppelin\w*")),
    "regex, negated": ("prose", ~Regex(r"\bzeppelin\w*")),
    "regex, fullmatch": ("prose", Regex(r"[^\x00]*", match="fullmatch")),
    "regex, back reference": ("prose", ~Regex(r"(\w{9,}) \1 \1")),
    "length, characters": ("prose", Length(max=100_000)),
    "length, words": ("prose", Length(max=20_000, unit="words")),
    "length, sentences": ("prose", Length(max=5_000, unit="sentences")),
    "count": ("prose", Count(pattern="zeppelin", max=3)),
    "split": ("prose", Split("paragraph", max=5_000)),
    "order": ("prose", Order("paragraphs", "different")),
    "part, first sentence": ("prose", Keyword("zeppelin", match="none", on=Part(sentence=1))),
    "part, second word of each sentence": ("prose", Length(max=2_000, on=Part(each="sentence", word=2))),
    "part, after": ("prose", Keyword("zeppelin", match="none", on=Part(after="guardwrap"))),
    "personal data": ("prose", PersonalData(["phone", "card", "iban"])),
    "secrets": ("prose", Secrets()),
    "language": ("prose", Language("en")),
    "language, second paragraph": ("prose", Language("en", on=Part(paragraph=2))),
    "no copy": ("prose", NoCopy(SOURCE)),
    "quotes": ("prose", Quotes(SOURCE)),
    "only from": ("prose", OnlyFrom(["https://example.com"], of="urls")),
    "values": ("prose", Values("number", max_count=100_000)),
    "arithmetic": ("sums", Arithmetic()),
    "grammar": ("prose", Grammar(r"start: /[^\x00]+/")),
    "json schema": ("json", SCHEMA),
    "part, json": ("json", Length(max=400, on=Part(json="$[*].name"))),
    "ten rules": (
        "prose",
        Keyword(["zeppelin"], match="none")
        & Keyword(["xylophone", "quagga"], match="none")
        & ~Regex(r"\bfoo\w*bar")
        & Length(max=100_000)
        & Length(max=20_000, unit="words")
        & Length(max=5_000, unit="sentences")
        & Secrets()
        & Values("number", max_count=100_000)
        & NoCopy(SOURCE)
        & Count(pattern="zeppelin", max=3),
    ),
}
"""The text that each rule watches, and the rule."""


def texts() -> dict[str, str]:
    """Return the texts by name."""
    paragraphs = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        paragraphs += [" ".join(part.split()) for part in text.split("\n\n") if re.match(r"[A-Z]", part)]
    rows = ({"name": f"item {i}", "price": i * 1.5, "tags": ["a", "b"], "ok": i % 2 == 0} for i in range(2_000))
    return {
        "prose": "\n\n".join(re.sub(r"[`*\[\]|]|\(\S*?\)|https?:\S+", "", part) for part in paragraphs),
        "json": "[" + ", ".join(map(json.dumps, rows)),
        "sums": "\n".join(f"{i} + {2 * i} = {3 * i}, which is what was sold that day." for i in range(1, 500)),
    }


def watched(rule: Constraint, ids: Sequence[int], stable: StablePrefix, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the costs of watching one text as it grows."""
    watch = PrefixWatch(PrefixReader(rule), stable)
    took: dict[int, list[int]] = {length: [] for length in lengths}
    grown = TokenIds()
    for length in range(1, max(lengths) + 1):
        wanted = next((end for end in lengths if end * (1 - LAST) < length <= end), None)
        before = time.process_time_ns()
        grown.append(ids[length - 1])
        blame = watch(grown)
        if wanted is not None:
            took[wanted].append(time.process_time_ns() - before)
        if blame is not None:
            raise SystemExit(f"{rule.title} is violated after {length} tokens")
    return {str(length): statistics.mean(took[length]) / 1e3 for length in lengths}


def memory(rule: Constraint, ids: Sequence[int], stable: StablePrefix) -> float:
    """Return the memory that watching one text takes, in MB."""
    gc.collect()
    tracemalloc.start()
    watch = PrefixWatch(PrefixReader(rule), stable)
    grown = TokenIds()
    for token in ids:
        grown.append(token)
        watch(grown)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 500, 1000, 2000, 4000])
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of rules")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    _, tokenizer = load_local()
    stable = StablePrefix(tokenizer, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    longest = max(chosen.lengths)
    ids = {name: tokenizer(text)["input_ids"][:longest] for name, text in texts().items()}
    assert all(len(row) == longest for row in ids.values()), {name: len(row) for name, row in ids.items()}
    print("| rule |", " | ".join(map(str, chosen.lengths)), "| MB |")
    print("|---|" + "---|" * (len(chosen.lengths) + 1))
    for name, (text, rule) in RULES.items():
        if any(word in name for word in chosen.only):
            costs = watched(rule, ids[text], stable, chosen.lengths)
            figures = " | ".join(f"{value:.0f}" for value in costs.values())
            print(f"| {name} | {figures} | {memory(rule, ids[text], stable):.1f} |", flush=True)


if __name__ == "__main__":
    main()
