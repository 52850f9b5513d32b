"""What declared rules save, compared with the same rules as functions that judge whole texts.

    python benchmarks/instructions/cost.py --out benchmarks/results/instructions-cost.jsonl

asks the embedded model for one text per prompt of ``cost_prompts.yaml``, within the tokens of 16 full attempts,
and writes one line of JSON per prompt: computed tokens (rows times passes of the model), attempts and whether there was
a text, for the rules declared and as ``Python`` functions without prefix verdicts. Prompts with a line are skipped,
so a run that was stopped can be continued. ``--summary`` prints the figures.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
import yaml

from guardwrap import Budget, Constraint, GuardedGenerator, load_local
from guardwrap.constraints import Python, parse

SETTINGS: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 0, "max_new_tokens": 64}
BUDGET = Budget(max_attempts=None, max_computed_tokens=16 * SETTINGS["max_new_tokens"])
DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("cost_prompts.yaml").read_text(encoding="utf-8"))


def constraint_of(rule: Any) -> Constraint:
    document = {"guardwrap": 1, "constraint": rule}
    return parse(yaml.safe_dump(document, allow_unicode=True, width=10_000)).constraint


def cost(guarded: GuardedGenerator, prompt: str) -> dict[str, Any]:
    (outcome,) = guarded.run([{"role": "user", "content": prompt}], budget=BUDGET, seed=3, **SETTINGS)
    usage = outcome.report.usage
    return {"answered": outcome.ok, "computed": usage.computed_tokens, "attempts": usage.attempts}


def ratio_of_tokens(lines: list[dict[str, Any]]) -> float:
    """Return the tokens with declared rules as a share of those with functions, all lines together."""
    tokens: dict[str, int] = {way: sum(line[way]["computed"] for line in lines) for way in ("declared", "functions")}
    return round(tokens["declared"] / max(tokens["functions"], 1), 2)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures, over prompts, and of each rule over the prompts that have it.

    A prompt without a text within the budget costs the whole budget, so of ratios only those of prompts that both ways
    answered compare like with like. Tokens per answered prompt count all tokens.
    """
    both = [line for line in lines if line["declared"]["answered"] and line["functions"]["answered"]]
    ratios = {line["prompt"]: line["declared"]["computed"] / line["functions"]["computed"] for line in both}
    figures: dict[str, Any] = {"prompts": len(lines), "answered by both": len(both)}
    for way in ("declared", "functions"):
        answered = sum(line[way]["answered"] for line in lines)
        computed = sum(line[way]["computed"] for line in lines)
        figures[way] = {"answered": answered, "computed per answered": round(computed / max(answered, 1))}
    figures["mean ratio"] = round(fmean(ratios.values()), 3) if ratios else None
    figures["ratio of all tokens"] = ratio_of_tokens(both)
    figures["prompts above 1"] = sum(ratio > 1 for ratio in ratios.values())
    rules = sorted({rule for line in both for rule in line["rules"]})
    figures["ratio of tokens by rule"] = {
        rule: ratio_of_tokens([line for line in both if rule in line["rules"]]) for rule in rules
    }
    return figures


def measured(model: Any, tokenizer: Any, row: dict[str, Any], declared: Constraint) -> dict[str, Any]:
    line = dict(row)
    for name, rule in {"declared": declared, "functions": Python(declared.accepts)}.items():
        line[name] = cost(GuardedGenerator(model, rule, tokenizer=tokenizer), row["prompt"])
    return line


def arguments(description: str, out: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--summary", action="store_true", help="print the figures of the lines in the file")
    return parser


def run(
    options: argparse.Namespace,
    summary: Callable[[list[dict[str, Any]]], dict[str, Any]],
    measured: Callable[[Any, Any, dict[str, Any], Constraint], dict[str, Any]],
) -> None:
    """Write a line for each prompt that has none in the file, or print the figures of all lines."""
    written = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    lines = [json.loads(line) for line in written]
    if options.summary:
        print(json.dumps(summary(lines), indent=1))
        return
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    model, tokenizer = load_local()
    finished = {line["prompt"] for line in lines}
    for row in DATA["prompts"]:
        if row["prompt"] in finished:
            continue
        line = measured(model, tokenizer, row, constraint_of([DATA["rules"][name] for name in row["rules"]]))
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    run(arguments(__doc__, "instructions-cost.jsonl").parse_args(), summary, measured)
