"""What rare rules of several kinds cost with a twist, beside rejection, a mask and a hint.

    python benchmarks/rare_kinds.py --out benchmarks/results/rare-kinds.jsonl [--attempts 256] [--rules array/bullets]
    python benchmarks/rare_kinds.py --out benchmarks/results/rare-pair.jsonl --model PATH --rules "dragon and castle"
    python benchmarks/rare_kinds.py --out benchmarks/results/rare-kinds.jsonl --table

For each rule and temperature, attempts of the embedded model are drawn from the model itself, from ``Masked()``, from a
prompt that asks for what the rule wants, and from ``Twisted()``. A line has for each of them how many attempts passed,
the estimate of Z (the mean weight of an attempt), the effective sample size of the weights, (Σ w)² / Σ w², and the
tokens and CPU seconds that it took. Learning is counted apart, with 2 seconds that read the vocabulary. Lines that
exist are not measured again.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import pipeline

from guardwrap import (
    Constraint,
    Count,
    Edges,
    Finished,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    Prompt,
    Regex,
    Twisted,
)
from guardwrap.metrics import effective_sample_size

KEYS = ("name", "age", "email", "city", "job")
PERSON = {
    "type": "object",
    "properties": {key: {"type": "string"} for key in KEYS},
    "required": [*KEYS],
    "additionalProperties": False,
}
STRINGS = {"type": "array", "items": {"type": "string"}}


class Task(NamedTuple):
    """A prompt, its constraint, the most tokens, and the hint for a prompt that asks for what the constraint wants."""

    prompt: Any
    rule: Constraint
    tokens: int
    hint: str


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


JSON_HINT = "{prompt} Answer with the JSON only, without any other text."
TASKS = {
    "five strings": Task(
        asked("Describe a person in JSON with name, age, email, city and job."), JSONSchema(PERSON), 60, JSON_HINT
    ),
    "array": Task(asked("Give me three fruits as a JSON array of strings."), JSONSchema(STRINGS), 40, JSON_HINT),
    "bullets": Task(
        asked("Give me tips for a good cup of tea."),
        Count("bullets", min=3, max=3),
        60,
        "{prompt} Write exactly three short bullet points, each beginning with a hyphen.",
    ),
    "three keywords": Task(
        asked("Write a sentence about an old boat."),
        Keyword(["river", "stone", "wind"], match="all"),
        40,
        "{prompt} It contains the words river, stone and wind.",
    ),
    "two keywords": Task(
        asked("Write a sentence about an old boat."),
        Keyword(["fog", "lantern"], match="all"),
        40,
        "{prompt} It contains the words fog and lantern.",
    ),
    "dragon and castle": Task(
        "Once upon a time",
        Keyword(["dragon", "castle"], match="all"),
        40,
        "A story about a dragon and a castle. <s> {prompt}",
    ),
    "phrase": Task(
        asked("Describe a garden at night in one sentence."),
        Keyword("under the stars"),
        40,
        '{prompt} It contains the phrase "under the stars".',
    ),
    "four digits": Task(
        asked("Tell me about the sea in one sentence."), Regex(r"\b\d{4}\b"), 40, "{prompt} Mention a year."
    ),
    "question": Task(
        asked("Say something about tea."), Edges(end="?") & Finished(), 40, "{prompt} Answer with a short question."
    ),
    "twelve words": Task("The old boat", Length(max=12, unit="words") & Finished(), 30, "A short sentence. {prompt}"),
    "no comma": Task("The old boat", ~Regex(","), 23, "A text without commas. {prompt}"),
    "no comma, long": Task("The old boat", ~Regex(","), 60, "A text without commas. {prompt}"),
}
TEMPERATURES = (1.0, 0.7)
LEARNING, WAYS = "learning", ("rejection", "mask", "hint", "twist")
FEW_PASSED = 10
COUNTS = (8, 64)
"""Texts of a call, over which the cost of learning is divided in the table."""


def figures(guarded: GuardedGenerator, prompt: Any, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """Draw attempts, and return how many passed, what they are worth, and what they cost."""
    began = time.process_time()
    (attempts,) = guarded.attempts([prompt], count, **options)
    seconds = time.process_time() - began
    logs = [attempt.log_weight if attempt.satisfied else None for attempt in attempts]
    weights = np.array([-math.inf if log is None else log for log in logs])
    passed = sum(log is not None for log in logs)
    return {
        "attempts": len(attempts),
        "passed": passed,
        "Z": float(np.exp(weights).mean()),
        "effective": round(effective_sample_size(weights).value, 2) if passed else 0.0,
        "tokens": sum(len(attempt.draw.token_ids) for attempt in attempts),
        "cpu seconds": round(seconds, 2),
    }


def measured(model: str, name: str, temperature: float, count: int, seed: int) -> dict[str, Any]:
    """Return the line of a rule at a temperature."""
    prompt, rule, tokens, hint = TASKS[name]
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        "seed": seed,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
    }
    line: dict[str, Any] = {"rule": name, "temperature": temperature, "tokens": tokens, "seed": seed}
    proposals = {"rejection": None, "mask": Masked(), "hint": Prompt(hint), "twist": Twisted()}
    generator: Any = model if model == "local" else pipeline("text-generation", model, dtype=torch.float32)
    for way, proposal in proposals.items():
        guarded = GuardedGenerator(generator, rule, proposal=proposal, batch_size=32)
        began = time.process_time()
        guarded.attempts([prompt], 1, **options)  # reads the vocabulary, and learns
        if proposal == Twisted():
            line[LEARNING] = round(time.process_time() - began, 2)
        line[way] = figures(guarded, prompt, count, options)
    return line


def seconds_each(line: dict[str, Any], way: str, count: int) -> float:
    """Return the CPU seconds of an effective draw of g, with its share of learning.

    Where few attempts of rejection passed, Z is the twist's.
    """
    figure = line[way]
    effective = figure["effective"]
    if way == "rejection" and figure["passed"] < FEW_PASSED:
        effective = line["twist"]["Z"] * figure["attempts"]
    if not effective:
        return math.inf
    return float(figure["cpu seconds"] / effective) + (line[LEARNING] / count if way == "twist" else 0)


def table(lines: list[dict[str, Any]]) -> str:
    """Return the lines as a table of CPU seconds and tokens for each effective draw of g."""
    heads = ("rule", "T", "Z", *(f"{way}, {count}" for way in WAYS for count in COUNTS if way == "twist" or count == 8))
    rows = [heads]
    for line in lines:
        cells = [line["rule"], line["temperature"], f"{line['twist']['Z']:.2g}"]
        for way in WAYS:
            figure = line[way]
            worth = f"{figure['effective'] / figure['attempts']:.2g} an attempt"
            costs = [f"{seconds_each(line, way, count):.3g} s" for count in COUNTS[: 2 if way == "twist" else 1]]
            cells += [f"{costs[0]}, {worth}, {figure['passed']} passed", *costs[1:]]
        rows.append(tuple(map(str, cells)))
    return "\n".join(" | ".join(row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rules", default="/".join(TASKS), help="names, with a slash between them")
    parser.add_argument("--attempts", type=int, default=256)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--model", default="local", help="another model than the embedded one, in float32")
    parser.add_argument("--table", action="store_true", help="write the table of the lines that there are")
    options = parser.parse_args()
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    if options.table:
        print(table([json.loads(line) for line in lines]))
        return
    torch.set_num_threads(1)
    finished = {(line["rule"], line["temperature"]) for line in map(json.loads, lines)}
    for name in options.rules.split("/"):
        for temperature in TEMPERATURES:
            if (name, temperature) in finished:
                continue
            line = measured(options.model, name, temperature, options.attempts, options.seed)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line, indent=1), flush=True)


if __name__ == "__main__":
    main()
