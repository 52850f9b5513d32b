"""Accepted texts per second with vLLM: guardwrap compared with a loop that draws, checks and retries whole texts.

Both draw from the same server under the same settings, with the same number of concurrent requests, until they have
the same number of texts that satisfy the constraint. The loop uses the official client without streaming, as most
people do::

    python benchmarks/over_vllm.py .venv-vllm/bin/vllm --out vllm.json

With ``LLM`` in place of the command, in a Python that has vLLM, both draw from an ``LLM`` in the process, and the loop
draws batches. CPU seconds are then those of all, and else of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import openai
from vllm_server import NAME, figures, in_process, serving

from guardwrap import Budget, Endpoint, GuardedGenerator, JSONSchema, Regex
from guardwrap.constraints.base import Constraint

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
WHOLE: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
LIKELY: dict[str, Any] = {"temperature": 0.7, "top_p": 1.0, "top_k": 50}  # as in structured.py, and so the rows below


def chat(words: str) -> list[dict[str, str]]:
    """Return what a user says."""
    return [{"role": "user", "content": words}]


EXAMPLE = 'Write JSON with the name and the age of a person, and nothing else. For example: {"name": "Ada", "age": 36}'
SIZES = ("small", "big", "old", "young", "tiny", "brave", "sad", "happy", "clever", "quiet")
ANIMALS = ("dog", "cat", "bear", "fox", "frog", "bird", "mouse", "horse", "lion", "duck")
MORE = ("cow", "fish", "rabbit", "turtle", "wolf", "owl", "bee", "hen", "goat", "pig")
STORIES = [f"Once upon a time there was a {size} {animal}" for size, animal in product(SIZES, ANIMALS + MORE)]
ROWS: dict[str, tuple[list[Any], Constraint, dict[str, Any], int, int]] = {
    "no comma": (["Once upon a time"], ~Regex(","), WHOLE, 60, 8),
    "JSON": ([chat("Give me a name and an age as JSON.")], JSONSchema(PERSON), LIKELY, 64, 4),
    "JSON, with an example": ([chat(EXAMPLE)], JSONSchema(PERSON), WHOLE, 60, 8),
    "200 prompts": (STORIES, ~Regex(","), WHOLE, 20, 5),
}
"""By name: prompts, constraint, settings, ``max_new_tokens``, texts of each prompt."""

AT_ONCE = 32


def guarded(at: Any, name: str, seed: int) -> int:
    """Draw with guardwrap; return the attempts."""
    prompts, rule, law, length, texts = ROWS[name]
    wrapper = GuardedGenerator(at, rule, budget=Budget(max_attempts=None), batch_size=AT_ONCE, seed=seed)
    outcomes = wrapper.run(prompts, num_return_sequences=texts, max_new_tokens=length, **law)
    assert all(len(outcome.texts) == texts for outcome in outcomes)
    return sum(each.report.usage.attempts + each.report.usage.surplus_attempts for each in outcomes)


class Wanted:
    """What a loop still has to draw: prompts take turns until each has its texts."""

    def __init__(self, name: str) -> None:
        prompts, self._rule, _, _, self._texts = ROWS[name]
        self._prompts, self._passing, self.attempts = dict(enumerate(prompts)), Counter[int](), 0

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def take(self) -> tuple[int, Any]:
        """Return the number of the next attempt's prompt, and the prompt."""
        number = next(iter(self._prompts))
        self._prompts[number] = prompt = self._prompts.pop(number)
        self.attempts += 1
        return number, prompt

    def judge(self, number: int, text: str) -> None:
        """Count a whole text if it passes."""
        self._passing[number] += self._rule.accepts(text)
        if self._passing[number] >= self._texts:
            self._prompts.pop(number, None)


def batched(llm: Any, name: str, seed: int) -> int:
    """Draw batches of whole texts until enough pass; return the attempts."""
    from vllm import SamplingParams

    prompts, _, law, length, _ = ROWS[name]
    draw, wanted = llm.generate if isinstance(prompts[0], str) else llm.chat, Wanted(name)
    while wanted:
        numbers, turns = zip(*(wanted.take() for _ in range(AT_ONCE)), strict=True)
        seeds = range(seed * 1_000_000 + wanted.attempts - AT_ONCE, seed * 1_000_000 + wanted.attempts)
        settings = [SamplingParams(max_tokens=length, seed=one, **law) for one in seeds]
        for number, answer in zip(numbers, draw([*turns], settings, use_tqdm=False), strict=True):
            wanted.judge(number, answer.outputs[0].text)
    return wanted.attempts


def looped(at: Endpoint, name: str, seed: int) -> int:
    """Draw whole texts and try again; return the attempts."""
    _, _, law, length, _ = ROWS[name]
    wanted = Wanted(name)

    async def worker(client: Any) -> None:
        fields: dict[str, Any] = {"model": NAME, "max_tokens": length, "extra_body": {"top_k": law["top_k"] or -1}}
        fields |= {"temperature": law["temperature"], "top_p": law["top_p"]}
        while wanted:
            number, prompt = wanted.take()
            attempt_seed = seed * 1_000_000 + wanted.attempts
            if isinstance(prompt, str):
                text = (await client.completions.create(prompt=prompt, seed=attempt_seed, **fields)).choices[0].text
            else:
                answer = await client.chat.completions.create(messages=prompt, seed=attempt_seed, **fields)
                text = answer.choices[0].message.content or ""
            wanted.judge(number, text)

    async def everyone() -> None:
        client = openai.AsyncOpenAI(base_url=at.base_url, api_key="none", timeout=600)
        workers = [asyncio.create_task(worker(client)) for _ in range(AT_ONCE)]
        while wanted:
            await asyncio.wait([task for task in workers if not task.done()], timeout=0.1)
        for task in workers:  # attempts that still run are not needed
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await client.close()

    asyncio.run(everyone())
    return wanted.attempts


def idle(at: Any) -> None:
    """Wait until nothing runs."""
    while figures(at)["vllm:num_requests_running"]:
        time.sleep(0.2)


def cpu_seconds(process: int) -> float:
    """What the server's processes have computed: it leads a session of its own."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has just ended
            fields = path.read_text().rpartition(")")[2].split()
            ticks += (int(fields[11]) + int(fields[12])) * (int(fields[3]) == process)
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(at: Any, process: int, way: Callable[[Any, str, int], int], name: str, seed: int) -> dict[str, float]:
    """Draw the texts of a row once, and measure what it took."""
    idle(at)
    before, computed, begun = cpu_seconds(process), figures(at)["vllm:generation_tokens_total"], time.monotonic()
    attempts = way(at, name, seed)
    seconds = time.monotonic() - begun
    idle(at)
    cpu, tokens = cpu_seconds(process) - before, figures(at)["vllm:generation_tokens_total"] - computed
    texts = len(ROWS[name][0]) * ROWS[name][4]
    return {"attempts": attempts, "seconds": seconds, "cpu": cpu, "tokens": tokens, "texts": texts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each row, both ways in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vllm", help="vLLM's command, or LLM")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    here = given.vllm == "LLM"
    ways = {"guardwrap": guarded, "retry loop": batched if here else looped}
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    with in_process() if here else serving(given.vllm) as (place, other):
        at, process = (place, os.getsid(0)) if here else (Endpoint(str(place), model=NAME), int(other))
        GuardedGenerator(at, Regex(""))("Tea", max_new_tokens=8)
        for name in given.rows:
            runs[name] = {way: [] for way in ways}
            for seed in range(1, given.repeats + 1):
                for way, draw in ways.items():
                    runs[name][way].append(measured(at, process, draw, name, seed))
    if given.out is not None:
        given.out.write_text(json.dumps(runs, indent=1) + "\n")
    for name, both in runs.items():
        for way, found in both.items():
            total = {key: sum(run[key] for run in found) for key in found[0]}
            print(
                f"{name:22} {way:10} {total['texts'] / total['seconds']:7.3f} texts/s "
                f"{total['cpu'] / total['texts']:7.2f} CPU s/text {total['tokens'] / total['texts']:8.1f} tokens/text "
                f"{total['attempts'] / total['texts']:7.1f} attempts/text"
            )
        # The attempts of both pass equally often, so attempts a second say more than a few texts do.
        for what in ("texts", "attempts"):
            rates = [statistics.mean(run[what] / run["seconds"] for run in both[way]) for way in ways]
            print(f"{name:22} {rates[0] / rates[1]:.2f} times as many {what} a second")


if __name__ == "__main__":
    main()
