"""The cost of structured output, exact and masked, compared with engines that mask; and the distance of masks from g.

    python benchmarks/structured.py [--only NAME ...] [--seeds 3] [--out structured.json]
    python benchmarks/structured.py --engines Outlines XGrammar llguidance
    python benchmarks/structured.py --attempts [--only NAME ...] [--seeds 3] [--top-k 0] [--out attempts.json]
    python benchmarks/structured.py --fields 2 5 20 50 --texts 1 8 --engines XGrammar llguidance Outlines

The embedded model, one thread, temperature 0.7, top_k 50, at most 64 tokens; eight texts per prompt, and one. Tokens
are computed tokens, one per row of a pass, without those of the prompt. CPU seconds are those of a call with its
prompt; models, tokenizers' tables and grammars are loaded before.

Distances are KL(g‖g') in nats and TVD, from weights a(y) / a'(y), where g' is the distribution of valid texts. Attempts
of ``Masked()`` have weights; texts of an engine are scored with its mask and without (``masks.log_probabilities``).
Weights miss texts of g that an engine masks; draws from g show their share. If it is above 0, the KL is infinite, and
the printed one is that of the other texts.

``--attempts`` prints the number of attempts per text of ``Masked()``, with eight texts per prompt, for ten constraints
and for three cases in which nearly all tokens are masked. Two kinds of attempts are counted separately, as no mask
helps them: those cut off at 64 tokens before they were complete, and dead ends, where none of the top k tokens can
follow. There are no dead ends with ``--top-k 0``. Engines mask before they take the top k.

``--fields`` prints the CPU seconds per valid text of objects with so many fields, of about 10 tokens each, for
``Masked()``, for ``Masked(beyond_truncation=True)``, and for engines. All draw the same task with the same seed in
turn, so that a slower minute of the machine is everyone's; the ratio is to the first engine. With ``--long``, the
strings are up to 80 characters long. The most tokens are 24 per field, 72 with ``--long``.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from masks import ENGINES, Compile, Rule, log_probabilities

from guardwrap import (
    Budget,
    Constraint,
    GuardedGenerator,
    JSONSchema,
    Length,
    Masked,
    Outcome,
    Regex,
    load_local,
    qrs,
)
from guardwrap.metrics import (
    acceptance_rate,
    effective_sample_size,
    kl_gold_guarded,
    tvd_gold_guarded,
)
from guardwrap.metrics.divergence import kl_to_sampler, tvd_to_sampler
from guardwrap.outcomes import Estimate, plain

SETTINGS: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 50, "max_new_tokens": 64}
BUDGET = Budget(max_attempts=None, max_computed_tokens=100_000)
EIGHT = 8
GOLD_SEED, MASKED_SEED = 100, 101  # of the draws for distances

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
SENTIMENT = {
    "type": "object",
    "required": ["sentiment", "score"],
    "properties": {"sentiment": {"enum": ["positive", "negative"]}, "score": {"type": "number"}},
    "additionalProperties": False,
}
COLOURS = {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3}
DATE, WORD = r"\d{4}-\d\d-\d\d", r"(yes|no|Yes|No)\.?"


@dataclass(frozen=True)
class Task:
    """A prompt with what its texts must satisfy, for us and for engines; and the tokens a text may cost."""

    name: str
    prompt: str
    constraint: Constraint
    rule: Rule
    target: float = math.inf
    settings: dict[str, Any] = field(default_factory=dict)
    texts: int = 8

    @property
    def chat(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]


TASKS = (
    Task("name, age", "Give me a name and an age as JSON.", JSONSchema(PERSON), PERSON, 40),
    Task(
        "enum, number",
        'Classify the sentiment of: "I loved it". Answer with JSON {"sentiment": "positive"|"negative", '
        '"score": number}.',
        JSONSchema(SENTIMENT),
        SENTIMENT,
        22,
    ),
    Task("three strings", "List three colours as a JSON array of strings.", JSONSchema(COLOURS), COLOURS, 400),
    Task(
        "date",
        "When did World War II end? Answer with a date like 1999-12-31 only.",
        Regex(DATE, match="fullmatch"),
        DATE,
        15,
    ),
    Task("yes or no", "Is the sky blue? Answer yes or no.", Regex(WORD, match="fullmatch"), WORD, 3),
    Task("no comma", "Describe the sea in two sentences.", ~Regex(","), "[^,]*", 70),
)
BOOK = {
    "type": "object",
    "required": ["title", "year"],
    "properties": {"title": {"type": "string", "maxLength": 40}, "year": {"type": "integer", "minimum": 1000}},
    "additionalProperties": False,
}
SIZE = {"enum": ["small", "medium", "large"]}
TIME, SUM = r"([01]\d|2[0-3]):[0-5]\d", r"\d+( [+*-] \d+)+ = \d+"
MORE_TASKS = (
    Task(
        "title, year", 'Name a famous book. Answer with JSON {"title": string, "year": number}.', JSONSchema(BOOK), BOOK
    ),
    Task(
        "enum",
        "How large is an elephant? Answer with a JSON string.",
        JSONSchema(SIZE),
        SIZE,
    ),
    Task("time", "When does the sun rise? Answer with a time like 13:45.", Regex(TIME, match="fullmatch"), TIME),
    Task("sum", "Write an easy sum with its result.", Regex(SUM, match="fullmatch"), SUM),
)


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def object_task(name: str, request: str, shape: str, properties: dict[str, Any]) -> Task:
    """Return the task of a JSON object whose prompt describes its shape."""
    schema = closed(properties)
    return Task(name, f"{request} Answer with JSON {shape}.", JSONSchema(schema), schema)


TEXT = {"type": "string"}
HELD_OUT = (  # masks and pilots were not tuned with these
    object_task(
        "address",
        "Invent an address in the United States.",
        '{"street": string, "city": string, "zip": string}',
        {"street": TEXT, "city": TEXT, "zip": {"type": "string", "pattern": r"^\d{5}$"}},
    ),
    object_task(
        "product",
        "Invent a product of a shop.",
        '{"name": string, "price": number, "in_stock": boolean}',
        {"name": TEXT, "price": {"type": "number"}, "in_stock": {"type": "boolean"}},
    ),
    object_task(
        "task",
        "Invent a task for tomorrow.",
        '{"title": string, "priority": "low"|"medium"|"high", "minutes": integer}',
        {"title": TEXT, "priority": {"enum": ["low", "medium", "high"]}, "minutes": {"type": "integer"}},
    ),
    object_task(
        "tags",
        "Give one to four tags for an article about the sea.",
        '{"tags": [string, ...]}',
        {"tags": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 4}},
    ),
    object_task(
        "reason",
        "Is a tomato a fruit?",
        '{"answer": "yes"|"no", "reason": string}',
        {"answer": {"enum": ["yes", "no"]}, "reason": {"type": "string", "maxLength": 120}},
    ),
)
DIGIT, REPLY = Regex("[1-5]", match="fullmatch"), Regex("yes|no", match="fullmatch")
CASES = (
    Task("digit, top_k 1000", "Rate this from 1 to 5: a good film.", DIGIT, "[1-5]", settings={"top_k": 1000}, texts=4),
    Task("yes|no, top_k 0", "Say hi.", REPLY, "yes|no", settings={"top_k": 0}, texts=20),
    Task("yes|no, top_k 50", "Say hi.", REPLY, "yes|no"),
)
FIELDS = """
    name age active status city country email phone plan score company role team level language currency balance visits
    verified tier street number postcode region timezone birthday gender height weight hobby pet color food music sport
    movie book season weekday month year device browser theme newsletter orders returns rating comment referrer
""".split()  # noqa: SIM905


def record(count: int, *, long: bool = False) -> Task:
    """Return the task of an object with so many fields: strings, integers, choices and booleans in turn."""
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "string", "minLength": 1, "maxLength": 80 if long else 16},
        {"type": "integer", "minimum": 0, "maximum": 9999},
        {"enum": ["low", "medium", "high"]},
        {"type": "boolean"},
    )
    properties = {name: kinds[0 if long else place % len(kinds)] for place, name in enumerate(FIELDS[:count])}
    schema = closed(properties)
    prompt = f"Invent a customer. Answer with a JSON object that has the fields {', '.join(properties)}."
    settings = {"max_new_tokens": (72 if long else 24) * count}
    return Task(f"{count} {'long' if long else 'fields'}", prompt, JSONSchema(schema), schema, settings=settings)


MASKS: dict[str, dict[str, Any]] = {
    "Masked()": {"proposal": Masked(), "sampler": "rejection"},
    "beyond truncation": {"proposal": Masked(beyond_truncation=True), "sampler": "rejection"},
}
WAYS: dict[str, dict[str, Any]] = {
    "rejection, exactly g": {},
    "Masked, qrs(0.1)": {"proposal": Masked(), "sampler": qrs(target_tvd=0.1)},
}


class Bench:
    """The model with what counts its passes."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load_local()
        self.pipe = transformers.pipeline("text-generation", model=self.model, tokenizer=self.tokenizer)
        self.passes = 0
        self.hook = self.model.register_forward_pre_hook(self._count)
        self.guarded = GuardedGenerator(self.pipe, Length(min=0), budget=BUDGET, on_exhausted="none")
        self.draw(TASKS[-1], 2, 0, constraints=Length(min=0))  # finds out how to keep rows, and how tokens decode

    def _count(self, *_: Any) -> None:
        self.passes += 1

    @contextmanager
    def measured(self) -> Iterator[dict[str, float]]:
        """Yield figures that are filled in at the end."""
        figures: dict[str, float] = {}
        before, begin = self.passes, time.process_time()
        yield figures
        figures |= {"passes": self.passes - before, "cpu_s": time.process_time() - begin}

    def draw(self, task: Task, texts: int, seed: int, **how: Any) -> Outcome:
        given = {"constraints": task.constraint, **how, **SETTINGS, **task.settings}
        (outcome,) = self.guarded.run([task.chat], num_return_sequences=texts, seed=seed, **given)
        return outcome

    def ids(self, task: Task) -> Any:
        return self.tokenizer.apply_chat_template(
            task.chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )


def ours(bench: Bench, task: Task, texts: int, seed: int, how: dict[str, Any]) -> dict[str, Any]:
    with bench.measured() as figures:
        outcome = bench.draw(task, texts, seed, **how)
    use = outcome.report.usage
    return {
        **figures,
        "texts": len(outcome.texts),
        "valid": sum(map(task.constraint.accepts, outcome.texts)),
        "attempts": use.attempts,
        "acceptance": plain(outcome.report.acceptance),
        "computed_tokens": use.computed_tokens,
        "length": sum(len(draw.token_ids) for draw in outcome.draws),
    }


def written(bench: Bench, task: Task, texts: int, seed: int, make: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return an engine's texts, with their tokens."""
    torch.manual_seed(seed)
    inputs, pad = bench.ids(task), 0
    rows = bench.model.generate(
        **inputs,
        **SETTINGS | task.settings,
        num_return_sequences=texts,
        logits_processor=[make()],
        pad_token_id=pad,
    )
    tokens = [row[row != pad].tolist() for row in rows[:, inputs["input_ids"].shape[1] :]]
    return [(tuple(row), bench.tokenizer.decode(row, skip_special_tokens=True)) for row in tokens]


def theirs(bench: Bench, task: Task, texts: int, seed: int, make: Any) -> dict[str, Any]:
    with bench.measured() as figures:
        found = written(bench, task, texts, seed, make)
    return {
        **figures,
        "texts": texts,
        "valid": sum(task.constraint.accepts(text) for _, text in found),
        "computed_tokens": (figures["passes"] - 1) * texts,  # rows that have ended run along
        "length": sum(len(tokens) for tokens, _ in found),
    }


def total(runs: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(run[name] for run in runs))


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return figures for a valid text, over all seeds."""
    valid = total(runs, "valid")
    found = {
        "valid": valid / max(total(runs, "texts"), 1),
        "computed_tokens": total(runs, "computed_tokens") / valid if valid else math.inf,
        "length": total(runs, "length") / max(total(runs, "texts"), 1),
        "passes": total(runs, "passes") / valid if valid else math.inf,
        "cpu_s": total(runs, "cpu_s") / valid if valid else math.inf,
    }
    return found | ({"attempts": total(runs, "attempts") / valid} if valid and "attempts" in runs[0] else {})


def masked_distance(bench: Bench, task: Task, attempts: int) -> dict[str, Any]:
    given = {"constraints": task.constraint, "proposal": Masked(), **SETTINGS}
    (found,) = bench.guarded.attempts([task.chat], attempts, seed=MASKED_SEED, **given)
    weights = np.array([attempt.log_weight for attempt in found], dtype=float)
    return {
        "acceptance": acceptance_rate(int(np.isfinite(weights).sum()), attempts, stopped_on_acceptance=False),
        "effective_sample_size": effective_sample_size(weights),
        "kl": kl_gold_guarded(weights),
        "tvd": tvd_gold_guarded(weights),
    }


def engine_distance(bench: Bench, task: Task, gold: Outcome, texts: int, make: Any) -> dict[str, Any]:
    """From weights of the engine's own texts; and the share of g that it does not mask."""
    prompt = bench.ids(task)["input_ids"]

    def both(tokens: tuple[int, ...]) -> tuple[float, float]:
        if tokens not in known:
            known[tokens] = log_probabilities(bench.model, prompt, tokens, SETTINGS, make())
        return known[tokens]

    known: dict[tuple[int, ...], tuple[float, float]] = {}
    weights, accepted = np.full(texts, -np.inf), np.full(texts, -np.inf)
    for number, (tokens, text) in enumerate(written(bench, task, texts, MASKED_SEED, make)):
        if task.constraint.accepts(text):
            log_a, log_masked = both(tokens)
            weights[number], accepted[number] = log_a - log_masked, 0.0
    reached = 0
    for draw in gold.draws:
        log_a, log_masked = both(draw.token_ids)
        assert draw.log_proposal is not None
        assert abs(log_a - draw.log_proposal) < 1e-2, "what is scored is not what was drawn"
        reached += log_masked > -math.inf
    return {
        "masks of g": opposite(acceptance_rate(reached, len(gold.draws), stopped_on_acceptance=False)),
        "effective_sample_size": effective_sample_size(weights),
        "kl": kl_to_sampler(weights, accepted),
        "tvd": tvd_to_sampler(weights, accepted),
    }


def opposite(share: Estimate) -> Estimate:
    return Estimate(1 - share.value, 1 - share.high, 1 - share.low)


def measure(bench: Bench, task: Task, engines: dict[str, Compile], options: argparse.Namespace) -> dict[str, Any]:
    """Measure a task in every way, and print a line for each."""
    found: dict[str, Any] = {"target": task.target, "runs": {}, "compile_s": {}, "distance": {}}
    makes = {}
    for name, compiled in engines.items():
        begin = time.process_time()
        makes[name] = compiled(task.rule)
        found["compile_s"][name] = time.process_time() - begin
    for texts in (EIGHT, 1):
        for name in [*WAYS, *makes]:
            for seed in range(options.seeds):
                if name in WAYS:
                    run = ours(bench, task, texts, seed, WAYS[name])
                else:
                    run = theirs(bench, task, texts, seed, makes[name])
                found["runs"].setdefault(f"{name}, {texts}", []).append(run)
            show(task, f"{name}, {texts}", summary(found["runs"][f"{name}, {texts}"]))
    found["distance"]["Masked"] = masked_distance(bench, task, options.masked)
    if makes:
        gold = bench.draw(task, options.gold, GOLD_SEED)
        for name, make in makes.items():
            found["distance"][name] = engine_distance(bench, task, gold, options.drawn, make)
    for name, seconds in found["compile_s"].items():
        print(f"{task.name:14} {name:24} reading the grammar: {seconds:.2f} CPU s")
    for name, figures in found["distance"].items():
        told = ", ".join(f"{key} {figure:.3g}" if isinstance(figure, float) else f"{key} {figure}"
                         for key, figure in figures.items())  # fmt: skip
        print(f"{task.name:14} {name:24} {told}", flush=True)
    found["summary"] = {name: summary(runs) for name, runs in found["runs"].items()}
    return found


def attempts_of_masked(bench: Bench, task: Task, seeds: int) -> dict[str, Any]:
    """Measure what texts of ``Masked()`` take, and print a line."""
    outcomes, begin = [], time.process_time()
    for seed in range(seeds):
        budget = Budget(max_attempts=20 * task.texts)
        outcomes.append(bench.draw(task, task.texts, seed, proposal=Masked(), budget=budget))
    seconds = time.process_time() - begin
    texts = sum(len(outcome.texts) for outcome in outcomes)
    attempts = sum(outcome.report.usage.attempts for outcome in outcomes)
    cut = sum(outcome.report.cut_off for outcome in outcomes)
    dead = sum(outcome.report.rejections.get("a mask that left no token", 0) for outcome in outcomes)
    each = max(texts, 1)
    figures: dict[str, Any] = {"texts": texts, "attempts": attempts, "cut off": cut, "dead ends": dead}
    figures |= {"a text": (attempts - cut - dead) / each}
    figures |= {"tokens a text": sum(outcome.report.usage.computed_tokens for outcome in outcomes) / each}
    figures |= {"CPU s a text": seconds / each, "ended": sorted({outcome.report.ended for outcome in outcomes})}
    told = "".join(f"{figures[name]:12.{places}f}" for name, places in _FIGURES.items())
    print(f"{task.name:20}{told}  {', '.join(figures['ended'])}", flush=True)
    return figures


def compare(bench: Bench, task: Task, compiled: dict[str, Compile], options: argparse.Namespace) -> dict[str, Any]:
    """Measure masks and engines in turn, and print a line for each: what a valid text costs."""
    makes = {name: compile_rule(task.rule) for name, compile_rule in compiled.items()}
    ways = [name for name in MASKS if options.masks is None or name in options.masks]
    summaries: dict[str, Any] = {}
    for texts in options.texts:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*makes, *ways)}
        for seed in range(options.seeds):
            for name, make in makes.items():
                runs[name].append(theirs(bench, task, texts, seed, make))
            for name in ways:
                runs[name].append(ours(bench, task, texts, seed, MASKS[name]))
        costs = {name: summary(its) for name, its in runs.items()}
        first = next(iter(costs.values()))["cpu_s"]
        for name, figures in costs.items():
            show(task, f"{name}, {texts}", figures, f"{figures['cpu_s'] / first:8.2f}")
        summaries[str(texts)] = {name: {"summary": costs[name], "runs": its} for name, its in runs.items()}
    return summaries


_FIGURES = {"texts": 0, "attempts": 0, "cut off": 0, "dead ends": 0, "a text": 2, "tokens a text": 1, "CPU s a text": 3}


def show(task: Task, name: str, figures: dict[str, Any], ratio: str = "") -> None:
    values = (figures[key] for key in ("valid", "computed_tokens", "length", "passes", "cpu_s"))
    attempts = f"{figures['attempts']:11.1f}" if "attempts" in figures else f"{'':11}"
    print(f"{task.name:14} {name:24}" + "".join(f"{value:10.2f}" for value in values) + attempts + ratio, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*TASKS, *HELD_OUT, *MORE_TASKS, *CASES)
    parser.add_argument("--only", nargs="+", choices=[task.name for task in every], help="tasks")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=[], help="to compare with")
    parser.add_argument("--gold", type=int, default=50, help="draws of g that engines are held against")
    parser.add_argument("--drawn", type=int, default=32, help="texts of each engine, for its distance to g")
    parser.add_argument("--masked", type=int, default=300, help="attempts of Masked(), for its distance to g")
    parser.add_argument("--attempts", action="store_true", help="only how many attempts a text of Masked() takes")
    parser.add_argument("--top-k", type=int, help="another top_k with --attempts; 0 is none")
    parser.add_argument("--fields", nargs="+", type=int, help="only objects with so many fields, up to 50")
    parser.add_argument("--long", action="store_true", help="long strings with --fields")
    parser.add_argument("--texts", nargs="+", type=int, default=[1, 8], help="texts per prompt with --fields")
    parser.add_argument("--masks", nargs="*", choices=list(MASKS), help="which masks of ours with --fields")
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    bench = Bench()
    chosen = [task for task in every if task.name in (options.only or [task.name])]
    if options.attempts:
        SETTINGS.update({} if options.top_k is None else {"top_k": options.top_k})
        print(f"{'':20}" + "".join(f"{name:>12}" for name in _FIGURES) + "  ended")
        bench.draw(TASKS[0], 1, 0, proposal=Masked())  # reads the vocabulary
        figures = {task.name: attempts_of_masked(bench, task, options.seeds) for task in chosen}
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1) + "\n")
        return
    engines = {name: ENGINES[name](bench.model, bench.tokenizer) for name in options.engines}
    print(f"{'':39}{'valid':>10}{'tokens':>10}{'length':>10}{'passes':>10}{'CPU s':>10}{'attempts':>11}  a valid text")
    if options.fields:
        costs: dict[str, Any] = {"versions": versions(options.engines), "tasks": {}}
        bench.draw(TASKS[0], 1, 0, proposal=Masked())  # reads the vocabulary
        for task in [record(count, long=options.long) for count in options.fields]:
            costs["tasks"][task.name] = compare(bench, task, engines, options)
            if options.out:
                options.out.write_text(json.dumps(plain(costs), indent=1) + "\n")
        return
    settings = {**SETTINGS, "seeds": options.seeds, "gold": options.gold, "drawn": options.drawn}
    found: dict[str, Any] = {"settings": settings, "versions": versions(options.engines), "tasks": {}}
    for task in (*TASKS, *HELD_OUT):
        if task in chosen:
            found["tasks"][task.name] = measure(bench, task, engines, options)
            if options.out:
                options.out.write_text(json.dumps(plain(found), indent=1) + "\n")


def versions(engines: Sequence[str]) -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", *map(str.lower, engines))}


if __name__ == "__main__":
    main()
