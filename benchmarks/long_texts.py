"""What verdicts on growing texts cost: CPU time per token at several lengths, characters read, and memory.

    python benchmarks/long_texts.py [--lengths 500 4000] [--only WORD ...]

Each rule watches one text as it grows by tokens of the embedded model, as a running attempt is watched: prose (this
project's docs), JSON, Chinese, code, a list, or one long word. No rule is violated, so that no verdict ends the text
early. The table has the mean CPU time of the last eighth of the verdicts before each length, in µs, the ratio of the
last two of these figures, and the memory that watching the longest text took, in MB.

With ``--pipeline TOKENS``, the embedded model instead writes eight texts of so many tokens under the ten rules, and the
shares of the CPU seconds that the model, the verdicts and all the rest took are printed.
"""

import argparse
import gc
import json
import re
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from guardwrap import (
    Arithmetic,
    Case,
    Constraint,
    Copy,
    Count,
    Depth,
    Edges,
    Grammar,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Language,
    Length,
    NoCopy,
    NumbersFrom,
    OneOf,
    OnlyFrom,
    Order,
    Parses,
    Part,
    PersonalData,
    Quotes,
    Readability,
    Regex,
    Secrets,
    Share,
    Split,
    ToolCalls,
    Values,
    load_local,
)
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.constraints.stop_strings import StopAt
from guardwrap.constraints.verdicts import Context
from guardwrap.engine.scheduling.backend import TokenIds
from guardwrap.models.early_abort import PrefixWatch, StablePrefix
from guardwrap.models.regions import MessageRegions

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
SUMS = "\n".join(f"{i} + {2 * i} = {3 * i}, which is what was sold that day." for i in range(1, 500))
TOOL = {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
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
    "share": ("prose", Share(Keyword("zeppelin"), 0.5)),
    "order": ("prose", Order("paragraphs", "different")),
    "part, first sentence": ("prose", Keyword("zeppelin", match="none", on=Part(sentence=1))),
    "part, second word of each sentence": ("prose", Length(max=2_000, on=Part(each="sentence", word=2))),
    "part, after": ("prose", Keyword("zeppelin", match="none", on=Part(after="guardwrap"))),
    "personal data": ("prose", PersonalData(["phone", "card", "iban"])),
    "secrets": ("prose", Secrets()),
    "language": ("prose", Language("en")),
    "language, second paragraph": ("prose", Language("en", on=Part(paragraph=2))),
    "no copy": ("prose", NoCopy(SOURCE)),
    "no copy, one word": ("word", NoCopy(SOURCE)),
    "quotes": ("prose", Quotes(SOURCE)),
    "only from": ("prose", OnlyFrom(["https://example.com"], of="urls")),
    "values": ("prose", Values("number", max_count=100_000)),
    "arithmetic": ("sums", Arithmetic()),
    "grammar": ("prose", Grammar(r"start: /[^\x00]+/")),
    "json schema": ("json", SCHEMA),
    "json schema, long string": (
        "string",
        JSONSchema({"properties": {"text": {"maxLength": 10**6, "pattern": "^.*$"}}}),
    ),
    "case": ("prose", Case("title", on="first_word")),
    "copy": ("string", Copy("zeppelin", at="end")),
    "depth": ("prose", Depth("brackets", max=50)),
    "edges": ("prose", Edges(end=".")),
    "numbers from": ("sums", NumbersFrom("\n".join(f"{i} {2 * i} {3 * i}" for i in range(1, 500)))),
    "one of": ("sums", OneOf([SUMS, "0"])),
    "readability": ("prose", Readability("flesch_kincaid", language="en", max=500)),
    "parses, json": ("json", Parses("json")),
    "parses, json lines": ("rows", Parses("jsonl")),
    "parses, csv": ("table", Parses("csv")),
    "parses, python": ("code", Parses("python")),
    "parses, yaml": ("table", Parses("yaml")),
    "personal data, json": ("rows", PersonalData(["phone", "card", "iban", "email", "ip"])),
    "personal data, chinese": ("chinese", PersonalData(["email", "card"])),
    "secrets, json": ("rows", Secrets()),
    "secrets, one word": ("word", Secrets(random_strings=False)),
    "keyword, chinese": ("chinese", Keyword("公司", match="none")),
    "keyword, stems of one word": ("word", Keyword("zeppelin", match="none", stem="english")),
    "grammar, chinese": ("chinese", Grammar(r"start: /[^\x00]+/")),
    "answer": ("prose", Keyword("zeppelin", match="none", on="answer")),
    "stop string": ("prose", StopAt(Keyword("zeppelin", match="none"), ("<end>",))),
    "tool calls": ("call", ToolCalls([TOOL])),
    "any and not": ("prose", ~(Keyword("zeppelin") | Secrets(on="lines") & Keyword("quagga"))),
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
        "sums": SUMS,
        "rows": "\n".join(json.dumps({"name": f'the "{i}"', "price": i * 1.5}) for i in range(500)),
        "string": '{"text": "' + "All of it is in one string, which does not end. " * 500,
        "call": '<call>{"name": "write", "arguments": {"text": "' + "All of it is in one call. " * 800,
        "table": "\n".join(f"{i},the name of {i},{i * 1.5}" for i in range(1, 1000)),
        "code": "\n".join(f"x{i} = f({i}, 'the name')" for i in range(1, 1000)),
        "chinese": "今天天气很好我们一起去公园散步然后回家吃饭" * 400,
        "word": "aGVsbG8gd29ybGQ" * 1500,
    }


TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant:",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "content": {"close_pattern": "<end>", "content": "text"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}


def reader_of(rule: Constraint) -> PrefixReader:
    """Return a reader of answers, whose parts some rules judge."""
    return PrefixReader(rule).after(Context("assistant:", message=_begun()))


@cache
def _begun() -> Any:
    _, tokenizer = load_local()
    tokenizer.response_template = TEMPLATE
    return MessageRegions.begin(tokenizer, "assistant:")


def watched(rule: Constraint, ids: Sequence[int], stable: StablePrefix, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the costs of watching one text as it grows."""
    watch = PrefixWatch(reader_of(rule), stable)
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
    watch = PrefixWatch(reader_of(rule), stable)
    grown = TokenIds()
    for token in ids:
        grown.append(token)
        watch(grown)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / 1e6


def pipeline(tokens: int, rows: int = 8) -> dict[str, float]:
    """Return the CPU seconds of a call that the model, the verdicts and the rest took."""
    _, rule = RULES["ten rules"]
    generator = GuardedGenerator("local", rule, batch_size=rows)
    took = {"model": 0.0, "verdicts": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timer(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments, **options)
            finally:
                took[name] += time.process_time() - began

        return timer

    model = generator.pipeline.model
    model.forward = timed("model", model.forward)
    watched = PrefixWatch._read
    PrefixWatch._read = timed("verdicts", watched)  # type: ignore[method-assign]
    prompts = [f"Write a long report about the harbor of city number {number}." for number in range(rows)]
    began = time.process_time()
    generator(prompts, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=True, seed=0)
    whole = time.process_time() - began
    PrefixWatch._read = watched  # type: ignore[method-assign]
    return took | {"rest": whole - sum(took.values())}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[500, 4000])
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of rules")
    parser.add_argument("--pipeline", type=int, metavar="TOKENS", help="draw texts of so many tokens instead")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.pipeline:
        took = pipeline(chosen.pipeline)
        print({name: f"{seconds:.1f} s, {seconds / sum(took.values()):.1%}" for name, seconds in took.items()})
        return
    _, tokenizer = load_local()
    stable = StablePrefix(tokenizer, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    longest = max(chosen.lengths)
    ids = {name: tokenizer(text)["input_ids"][:longest] for name, text in texts().items()}
    assert all(len(row) == longest for row in ids.values()), {name: len(row) for name, row in ids.items()}
    print("| rule |", " | ".join(map(str, chosen.lengths)), "| ratio | MB |")
    print("|---|" + "---|" * (len(chosen.lengths) + 2))
    for name, (text, rule) in RULES.items():
        if any(word in name for word in chosen.only):
            costs = watched(rule, ids[text], stable, chosen.lengths)
            figures = " | ".join(f"{value:.0f}" for value in costs.values())
            *_, shorter, longer = 1.0, *costs.values()
            print(
                f"| {name} | {figures} | {longer / shorter:.1f} | {memory(rule, ids[text], stable):.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
