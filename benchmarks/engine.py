"""What guarded generation costs, against the loops that anyone would write.

    python benchmarks/engine.py --out benchmarks/results/engine

writes engine.json and engine.md. Each case is run in turn with its rivals, several times over, in one process: CPU
seconds and their ratios, wall seconds, and counts that do not wobble (row-steps = rows × model calls, prompt tokens
computed). The rivals:

retry     model.generate with num_return_sequences = batch, again until enough texts satisfy the constraint
cached    the same with the prompt's states computed once and copied
generate  model.generate for the same number of texts, with no constraint
"""

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from guardwrap import Constraint, GuardedGenerator, Keyword, Length, Regex
from guardwrap.engine.local import load_local

ANYTHING = Length(min=0)
CHAT = [{"role": "user", "content": "Write one sentence about a coffee mug."}]


class Counter:
    """Counts what a model computes: rows × calls, and tokens of prompts."""

    def __init__(self, model: Any) -> None:
        self.row_steps = self.prompt_tokens = 0
        model.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, model: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"]
        if ids.shape[1] == 1:
            self.row_steps += len(ids)
        else:
            self.prompt_tokens += ids.numel()


class Bench:
    def __init__(self, model: Any, tokenizer: Any, batch: int) -> None:
        self.model, self.tokenizer, self.batch = model, tokenizer, batch
        self.counter = Counter(model)

    def ids(self, prompt: Any) -> torch.Tensor:
        if isinstance(prompt, str):
            return self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        inputs = self.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        return inputs["input_ids"]

    def ours(self, prompt: Any, judged: Constraint, count: int, seed: int, **settings: Any) -> int:
        guarded = GuardedGenerator(self.model, judged, tokenizer=self.tokenizer, batch_size=self.batch)
        (outcome,) = guarded.run(prompt, num_return_sequences=count, seed=seed, budget=None, **settings)
        assert outcome.ok
        return outcome.report.usage.attempts

    def retry(
        self, prompt: Any, judged: Constraint, count: int, seed: int, cached: bool = False, **settings: Any
    ) -> int:
        torch.manual_seed(seed)
        ids = self.ids(prompt)
        past = None
        if cached:
            past = DynamicCache(config=self.model.config)
            with torch.no_grad():
                self.model(input_ids=ids[:, :-1], past_key_values=past, use_cache=True)
        accepted = attempts = 0
        while accepted < count:
            extra = {}
            inputs = ids
            if past is not None:
                extra["past_key_values"] = copy.deepcopy(past)
                extra["past_key_values"].batch_repeat_interleave(self.batch)
                inputs = ids.repeat(self.batch, 1)
            else:
                extra["num_return_sequences"] = self.batch
            out = self.model.generate(inputs, attention_mask=torch.ones_like(inputs), **extra, **settings)
            texts = self.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
            accepted += sum(judged.accepts(text) for text in texts)
            attempts += self.batch
        return attempts

    def cached(self, *args: Any, **settings: Any) -> int:
        return self.retry(*args, cached=True, **settings)

    def generate(self, prompt: Any, judged: Constraint, count: int, seed: int, **settings: Any) -> int:
        torch.manual_seed(seed)
        ids = self.ids(prompt)
        done = 0
        while done < count:
            rows = min(self.batch, count - done)
            self.model.generate(ids, attention_mask=torch.ones_like(ids), num_return_sequences=rows, **settings)
            done += rows
        return done

    def measure(self, run: Callable[[], int]) -> dict[str, float]:
        self.counter.row_steps = self.counter.prompt_tokens = 0
        cpu, wall = time.process_time(), time.perf_counter()
        attempts = run()
        return {
            "cpu_s": time.process_time() - cpu,
            "wall_s": time.perf_counter() - wall,
            "attempts": attempts,
            "row_steps": self.counter.row_steps,
            "prompt_tokens": self.counter.prompt_tokens,
        }


def cases(tokenizer: Any) -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """Name to (prompt, constraint, count, settings) and rivals, the one of the target first."""
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 50}
    long = sampling | {"max_new_tokens": 128}
    fixed = sampling | {"max_new_tokens": 64, "eos_token_id": len(tokenizer) - 1}  # an id that is never drawn
    words = "The quick brown fox jumps over the lazy dog and runs along the quiet river. " * 40
    prompt500 = tokenizer.decode(tokenizer(words)["input_ids"][:500])
    return {
        "no constraint, chat, up to 128 tokens": ((CHAT, ANYTHING, 32, long), ("generate",)),
        "no constraint, fixed length 64": (("Once upon a time", ANYTHING, 64, fixed), ("generate",)),
        "ban the comma": ((CHAT, ~Regex(","), 32, long), ("retry", "cached")),
        "must contain mug": ((CHAT, Keyword("mug"), 32, long), ("retry", "cached")),
        "one text, fixed length 64": ((CHAT, ANYTHING, 1, fixed), ("generate",)),
        "prompt of 500 tokens": ((prompt500, ANYTHING, 32, sampling | {"max_new_tokens": 32}), ("retry", "cached")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="Hub id or path; default: the embedded model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument("--out", type=Path, default=Path("engine"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
    else:
        model, tokenizer = load_local()
    model.to(getattr(torch, options.dtype))
    bench = Bench(model, tokenizer, options.batch)
    bench.ours("a", ANYTHING, 1, 0, max_new_tokens=2)  # the self-test of the model belongs to no case

    results: dict[str, Any] = {}
    for name, ((prompt, judged, count, settings), rivals) in cases(tokenizer).items():
        if options.case and not any(part in name for part in options.case):
            continue
        batch = bench.batch = min(options.batch if count < 64 else count, count)
        runs: dict[str, list[dict[str, float]]] = {}
        for repeat in range(options.repeats):
            for kind in ("ours", *rivals):
                runs.setdefault(kind, []).append(
                    bench.measure(lambda: getattr(bench, kind)(prompt, judged, count, repeat, **settings))  # noqa: B023
                )
        results[name] = {"batch": batch, "count": count, "runs": runs}
        for kind in rivals:
            ratios = [theirs["cpu_s"] / own["cpu_s"] for theirs, own in zip(runs[kind], runs["ours"], strict=True)]
            results[name][f"{kind} / ours"] = statistics.median(ratios)
            print(
                f"{name}: {kind} / ours = {statistics.median(ratios):.2f}  {[round(r, 2) for r in ratios]}", flush=True
            )
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    written = {"settings": {k: str(v) for k, v in vars(options).items()}, "versions": versions, "cases": results}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(written, indent=1))
    options.out.with_suffix(".md").write_text(table(results))


def table(results: dict[str, Any]) -> str:
    titles = ("case", "loop", "CPU s", "ratio to ours", "attempts", "row-steps", "prompt tokens")
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name, case in results.items():
        for kind, runs in case["runs"].items():
            middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            ratio = case.get(f"{kind} / ours", 1.0)
            counts = f"{middle['attempts']:.0f} | {middle['row_steps']:.0f} | {middle['prompt_tokens']:.0f}"
            lines.append(f"| {name} | {kind} | {middle['cpu_s']:.2f} | {ratio:.2f} | {counts} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
