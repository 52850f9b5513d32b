"""The cost of drawing from an adapter, compared with the model itself.

    python benchmarks/adapter.py --model models/stories15M --dtype bfloat16 --out benchmarks/results/adapter

draws texts of 64 tokens, which all satisfy the constraint, in turn from the model, from an adapter merged into a copy
of the weights (as rejection does) and from an adapter that is not merged (as QRS and IMH do), several times in one
process. It compares CPU seconds per row-step (one row of one call of the model). It also measures the effect of
merging in half precision, where weights are rounded again: the difference in log a' of texts, both computed in
float32. The adapter is LoRA of rank 8 on all linear layers with random numbers, strong enough to move log a' by some
nats, as training does.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import transformers
from cases import ANYTHING, PROMPTS
from engine import header
from loops import Counter, load
from peft import LoraConfig

from guardwrap import GuardedGenerator
from guardwrap.adapters import attach, save_adapter
from guardwrap.engine.sequence_scores import log_probabilities
from guardwrap.models.loading import pipeline_of
from guardwrap.models.task_calls import call_of

TARGET = 1.05
"""Time of the merged adapter over that of the model, per row-step, at most."""

LOOPS = ("model", "merged", "unmerged")
STEPS = 64  # tokens of a text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="Hub id or path of a model; default: the embedded one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--texts", type=int, default=64, help="of each run")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--strength", type=float, default=0.01, help="standard deviation of the adapter's B")
    parser.add_argument("--quick", action="store_true", help="everything small: to see that it runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("adapter"))
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    if options.quick:
        options.batch, options.texts, options.repeats = 4, 4, 1
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    options.chat = None  # for the header that all benchmarks have
    written = header(options)
    written["settings"] |= {name: getattr(options, name) for name in ("dtype", "batch", "texts", "strength")}
    with TemporaryDirectory() as folder:
        written["runs"], written["rounding"] = measured(options, Path(folder))
    del written["cases"]
    base = [run["cpu_s_per_row_step"] for run in written["runs"]["model"]]
    for loop in LOOPS[1:]:
        ratios = [run["cpu_s_per_row_step"] / by for run, by in zip(written["runs"][loop], base, strict=True)]
        median = statistics.median(ratios)
        written[loop] = {"ratios": [round(ratio, 4) for ratio in ratios], "median": round(median, 4)}
        target = f" (target ≤ {TARGET}: {'met' if median <= TARGET else 'missed'})" if loop == "merged" else ""
        print(f"{loop} adapter / model, CPU seconds per row-step: {median:.3f}{target}  {written[loop]['ratios']}")
    print("log a' in nats, root mean square over texts:", written["rounding"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")


def measured(options: argparse.Namespace, folder: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
    """Run the loops one after the other, every second time in reverse; also what merging does to log a'."""
    model, tokenizer = load(options.model, options.dtype)
    save_adapter(folder, random_adapter(model, options.strength))
    prompt = PROMPTS["story"](tokenizer)
    vocabulary = model.config.get_text_config().vocab_size
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": STEPS, "eos_token_id": vocabulary}

    def wrapped(**adapter: Any) -> GuardedGenerator:
        return GuardedGenerator(model, ANYTHING, tokenizer=tokenizer, batch_size=options.batch, **adapter)

    wrappers = {"model": wrapped(), "merged": wrapped(adapter=folder), "unmerged": wrapped(adapter=folder)}
    with mock.patch("guardwrap.adapters.loaded.merged", side_effect=RuntimeError("for comparison")):
        wrappers["unmerged"].run(prompt, **settings)  # so that it stays so
    assert wrappers["merged"].adapter is not None
    assert wrappers["unmerged"].adapter is not None
    drawn_from = {
        "model": model,
        "merged": wrappers["merged"].adapter.model(merge=True)[0],
        "unmerged": wrappers["unmerged"].adapter.model(merge=True)[0],
    }
    assert len({id(each) for each in drawn_from.values()}) == len(LOOPS)
    runs: dict[str, list[dict[str, Any]]] = {loop: [] for loop in LOOPS}
    for seed in range(-1, options.repeats):  # the first time is a warm-up
        for loop in LOOPS if seed % 2 == 0 else reversed(LOOPS):
            counter = Counter()
            with counter.on(drawn_from[loop]):
                began = time.process_time()
                wrappers[loop].run(prompt, num_return_sequences=options.texts, seed=max(seed, 0), **settings)
                spent = time.process_time() - began
            steps = sum(counter.rows)
            if seed >= 0:
                run = {"cpu_s": round(spent, 4), "row_steps": steps, "cpu_s_per_row_step": spent / steps}
                runs[loop].append(run)
    return runs, rounding(wrappers["unmerged"], drawn_from, prompt, settings)


def random_adapter(model: Any, strength: float) -> Any:
    adapted = attach(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(strength * torch.randn(parameter.shape, generator=chance))
    return adapted


def rounding(
    wrapper: GuardedGenerator, models: dict[str, Any], prompt: Any, settings: dict[str, Any]
) -> dict[str, float]:
    """How far apart log-probabilities of 64 texts of the adapter are, in nats."""
    (attempts,) = wrapper.attempts(prompt, 64, weigh=False, seed=0, **settings)
    pipe = pipeline_of(wrapper.model, wrapper.tokenizer)
    (read,) = call_of(pipe, settings).prompts([(0, prompt)], 1)
    texts = [(read.law, attempt.draw.token_ids) for attempt in attempts]
    seen = {name: log_probabilities(model, texts) for name, model in models.items()}

    def apart(one: str, two: str) -> float:
        squares = [(a - b) ** 2 for a, b in zip(seen[one], seen[two], strict=True)]
        return round(math.sqrt(statistics.fmean(squares)), 5)

    return {"adapter against model": apart("unmerged", "model"), "merged against unmerged": apart("merged", "unmerged")}


if __name__ == "__main__":
    main()
