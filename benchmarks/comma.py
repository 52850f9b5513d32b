"""The constraint "no comma", which many try first, compared with the loop that many write first.

    OMP_NUM_THREADS=1 python benchmarks/comma.py

prints one line of JSON: versions, the decoding mode, and CPU seconds per text of guardwrap and of a
loop over ``generate`` that draws four texts at a time until enough of them have no comma. Both run in turn, in one
process, on the embedded model. ``--modes`` compares every mode with the fastest one instead, for the figures in
``guardwrap.engine.refill.mode_selection.SLOWER``.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from statistics import fmean
from typing import Any
from unittest import mock

import torch
import transformers

from guardwrap import Budget, GuardedGenerator, Regex, load_local
from guardwrap.engine.refill.row_states import Plain, Wave
from guardwrap.engine.refill.slots import Slots

CHAT = [{"role": "user", "content": "Write one sentence about a coffee mug."}]
SETTINGS: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 48}
NO_COMMA = ~Regex(",")
AT_ONCE = 4
MODES = (Slots, Wave, Plain)


class Bench:
    """Guardwrap and the loop on one prompt.

    Parameters
    ----------
    texts
        How many are returned each time.
    """

    def __init__(self, texts: int) -> None:
        self.texts = texts
        self.model, self.tokenizer = load_local()
        budget = Budget(max_attempts=10_000)
        self.guarded = GuardedGenerator(self.model, NO_COMMA, tokenizer=self.tokenizer, budget=budget)
        given: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        self.prompt = self.tokenizer.apply_chat_template(CHAT, **given)
        self.modes: set[str] = set()

    def ours(self, seed: int) -> None:
        (outcome,) = self.guarded.run(CHAT, num_return_sequences=self.texts, seed=seed, **SETTINGS)
        assert outcome.ok
        self.modes.add(outcome.report.mode)

    def ours_in(self, kind: Any, seed: int) -> None:
        with mock.patch("guardwrap.calls.source.select_rows", return_value=kind):
            self.ours(seed)

    def loop(self, seed: int) -> None:
        torch.manual_seed(seed)
        returned, begin = 0, self.prompt["input_ids"].shape[1]
        while returned < self.texts:
            drawn = self.model.generate(**self.prompt, num_return_sequences=AT_ONCE, **SETTINGS)
            read = self.tokenizer.batch_decode(drawn[:, begin:], skip_special_tokens=True)
            returned += sum(map(NO_COMMA.accepts, read))

    def measured(self, ways: dict[str, Callable[[int], None]], repeats: int) -> dict[str, list[float]]:
        """CPU seconds of each way with each seed, in turn."""
        few: dict[str, Any] = {**SETTINGS, "max_new_tokens": 2}  # what is done once a process belongs to neither
        self.guarded.run(CHAT, budget=Budget(max_attempts=1), seed=0, **few)
        self.model.generate(**self.prompt, **few)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for seed in range(repeats):
            for name, way in ways.items():
                begin = time.process_time()
                way(seed)
                seconds[name].append(time.process_time() - begin)
        return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--modes", action="store_true", help="measure each mode instead of the loop")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    bench = Bench(options.texts)
    ways: dict[str, Callable[[int], None]] = {"ours": bench.ours, "loop": bench.loop}
    if options.modes:
        ways = {kind.name: lambda seed, kind=kind: bench.ours_in(kind, seed) for kind in MODES}  # type: ignore[misc]
    seconds = bench.measured(ways, options.repeats)
    first, *others = seconds
    ratios = {name: round(sum(seconds[name]) / sum(seconds[first]), 2) for name in others}
    print(
        json.dumps(
            {
                "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "peft")},
                "modes": sorted(bench.modes),
                "cpu_s_per_text": {name: round(fmean(each) / options.texts, 3) for name, each in seconds.items()},
                "cpu_s": {name: [round(one, 2) for one in each] for name, each in seconds.items()},
                f"times {first}": ratios,
            }
        )
    )


if __name__ == "__main__":
    main()
