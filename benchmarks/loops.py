"""The loops that engine.py compares, and the counters of their work."""

import copy
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from cases import PROMPTS, STORY, Busy, Case, PerAttempt, Together
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from guardwrap import Budget, GuardedGenerator, Length, load_local
from guardwrap.engine.forward_passes import taken_by
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.support.transformers_internals import CACHE_NAMES


@lru_cache(maxsize=1)  # one at a time; what is on disk is the pristine copy
def load(path: str | None, dtype: str, device: str = "cpu") -> tuple[Any, Any]:
    """Load a model in float32, None being the embedded one, and convert it."""
    if path is None:
        model, tokenizer = load_local()
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(path)
    model.to(device, getattr(torch, dtype))
    for parameter in model.parameters():
        parameter.sum()  # weights come from the disk when they are first read; that belongs to no case
    return model, tokenizer


class Counter:
    """Counts what a model computes.

    Attributes
    ----------
    rows : list of int
        Of each call that adds a token to running texts.
    attempts : list of int
        That these calls were for. Other than the rows only where attempts share a row.
    prompt_passes, prompt_tokens : int
        The other calls, and the tokens of all their rows, padding included.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.attempts: list[int] = []
        self.prompt_tokens = self.prompt_passes = 0
        self._running: int | None = None  # in the engine's decoder; None in other loops

    @contextmanager
    def on(self, model: Any) -> Iterator[None]:
        """Count while this context lasts."""
        advance = RefillBackend.advance

        def noted(decoder: RefillBackend) -> Any:
            self._running = decoder.running
            return advance(decoder)

        hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
        try:
            with mock.patch.object(RefillBackend, "advance", noted):
                yield
        finally:
            hook.remove()

    @property
    def totals(self) -> dict[str, int]:
        """Passes of the model, rows of those that add a token, and passes and tokens of the others."""
        passes = len(self.rows) + self.prompt_passes
        return {
            "passes": passes,
            "row_steps": sum(self.rows),
            "prompt_passes": self.prompt_passes,
            "prompt_tokens": self.prompt_tokens,
        }

    def _count(self, model: Any, args: Any, kwargs: Any) -> None:
        ids, past = kwargs["input_ids"], next((kwargs[name] for name in CACHE_NAMES if name in kwargs), None)
        # A prompt may be a single token: then only the empty cache tells it from a token of a running text.
        if ids.shape[1] > 1 or past is None or not past.get_seq_length():
            self.prompt_tokens += ids.numel()
            self.prompt_passes += 1
        else:
            self.rows.append(len(ids))
            self.attempts.append(len(ids) if self._running is None else self._running)


class Bench:
    """One case on one model: a method for each loop, from a seed to counts.

    The wrapper is made once, as in an application.
    """

    def __init__(self, case: Case, path: str | None, device: str = "cpu") -> None:
        self.case = case
        self.model, self.tokenizer = load(path, case.dtype, device)
        self.prompt = PROMPTS[case.prompt](self.tokenizer)
        self.settings = {**case.settings, **self._ends()}
        self.ids = self._tokens(self.prompt)
        budget = Budget(max_attempts=case.most)
        self.guarded = GuardedGenerator(
            self.model, case.constraint, tokenizer=self.tokenizer, batch_size=case.batch, budget=budget
        )
        self.counter = Counter()

    def _ends(self) -> dict[str, Any]:
        config = self.model.config.get_text_config()
        if self.case.ends == "never":
            return {"eos_token_id": config.vocab_size}  # no token has this id
        if self.case.ends == "full stop":
            return {"eos_token_id": [self.tokenizer("end.")["input_ids"][-1], self.tokenizer.eos_token_id]}
        return {}

    def _tokens(self, prompt: Any) -> torch.Tensor:
        """Ids of a prompt, ``[1, length]``."""
        if isinstance(prompt, str):
            read = self.tokenizer(prompt, return_tensors="pt")
        else:
            given = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
            read = self.tokenizer.apply_chat_template(prompt, **given)
        ids: torch.Tensor = read["input_ids"].to(self.model.device)
        return ids

    def warm_up(self) -> None:
        """Have done what is done once a model and wrapper, such as the engine's self-test."""
        few = {**self.settings, "max_new_tokens": 2}
        self.guarded.run(self.prompt, budget=Budget(max_attempts=1), seed=0, **few)
        self._generate(self.ids, num_return_sequences=1, **few)

    def measure(self, loop: str, seed: int) -> dict[str, Any]:
        """Run a loop once: seconds and counts."""
        self.counter = Counter()
        with self.counter.on(self.model):
            cpu, wall = time.process_time(), time.perf_counter()
            counts = getattr(self, loop)(seed)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {
            "seed": seed,
            "cpu_s": round(cpu, 4),
            "wall_s": round(wall, 4),
            "attempt_steps": sum(self.counter.attempts),
            **self.counter.totals,
            **counts,
        }

    def ours(self, seed: int) -> dict[str, Any]:
        """GuardedGenerator: all texts of the prompt in one call."""
        outcomes = self.guarded.run(self.prompt, num_return_sequences=self.case.texts, seed=seed, **self.settings)
        return _usage(outcomes)

    def stream(self, seed: int) -> dict[str, Any]:
        """GuardedGenerator on many prompts, and how busy the slots were while there were prompts to come."""
        prompts, taken_in = self._prompts(), 0

        def until_the_last() -> Iterator[str]:
            nonlocal taken_in
            for prompt in prompts:
                taken_in = len(self.counter.rows)
                yield prompt

        options = {"num_return_sequences": self.case.texts, "seed": seed, **self.settings}
        counts = _usage(list(self.guarded.stream(until_the_last(), **options)))
        slots = self.case.batch * taken_in
        lengths = [self._tokens(prompt).shape[1] for prompt in prompts]
        return counts | {
            "busy_attempts": sum(self.counter.attempts[:taken_in]) / slots,
            "busy_rows": sum(self.counter.rows[:taken_in]) / slots,
            "calls_before_tail": taken_in,
            "calls": len(self.counter.rows),
            "prompt_lengths": [min(lengths), statistics.median(lengths), max(lengths)],
        }

    def _prompts(self) -> list[str]:
        """Pieces of a story, of all lengths; always the same ones."""
        assert isinstance(self.case, Busy)
        chance, ids = random.Random(0), self.tokenizer(STORY, add_special_tokens=False)["input_ids"]
        low, high = self.case.lengths
        pieces = []
        for _ in range(self.case.prompts):
            start, length = chance.randrange(len(ids)), chance.randint(low, high - 1)  # bos may be one more
            pieces.append(self.tokenizer.decode((ids * 3)[start : start + length]))
        return pieces

    def together(self, seed: int) -> dict[str, Any]:
        """GuardedGenerator on many prompts at once, in one call or from a thread each."""
        assert isinstance(self.case, Together)
        prompts, options = self._prompts(), {"seed": seed, **self.settings}
        if self.case.way == "rules":
            rules = [Length(max=10_000 + number) for number in range(len(prompts))]
            return _usage(self.guarded.run(prompts, constraint_each=rules, **options))
        warm = self.case.way == "temperatures"
        with ThreadPoolExecutor(len(prompts)) as threads:
            each = [options | ({"temperature": 0.5 + 0.02 * i} if warm else {}) for i in range(len(prompts))]
            calls = [
                threads.submit(self.guarded.run, [prompt], **options)
                for prompt, options in zip(prompts, each, strict=True)
            ]
        return _usage([outcome for call in calls for outcome in call.result()])

    def padded(self, seed: int) -> dict[str, Any]:
        """``model.generate`` on the same prompts in one batch, padded on the left, with no constraint."""
        torch.manual_seed(seed)
        rows = [self._tokens(prompt)[0] for prompt in self._prompts()]
        generate_padded(self.model, rows, **self.settings)
        return {"attempts": len(rows), "accepted": len(rows)}

    def retry(self, seed: int, cached: bool = False) -> dict[str, Any]:
        """``model.generate`` for as many texts as the batch has rows, until enough satisfy the constraint."""
        torch.manual_seed(seed)
        case, rows, past = self.case, self.case.batch, None
        if cached:
            past = DynamicCache(config=self.model.config)
            with torch.no_grad():
                self.model(input_ids=self.ids[:, :-1], **self._cache(past), use_cache=True)
        accepted = attempts = 0
        while accepted < case.texts and (case.most is None or attempts < case.most):
            if past is None:
                out = self._generate(self.ids, num_return_sequences=rows, **self.settings)
            else:
                copied = copy.deepcopy(past)
                copied.batch_repeat_interleave(rows)
                out = self._generate(self.ids.repeat(rows, 1), **self._cache(copied), **self.settings)
            texts = self.tokenizer.batch_decode(out[:, self.ids.shape[1] :], skip_special_tokens=True)
            accepted += sum(case.constraint.accepts(text) for text in texts)
            attempts += rows
        return {"attempts": attempts, "accepted": accepted}

    def _cache(self, past: DynamicCache) -> dict[str, DynamicCache]:
        """The argument that hands a cache to the model, under the name that it has in this release."""
        return {name: past for name in CACHE_NAMES if name in taken_by(self.model)}

    def cached(self, seed: int) -> dict[str, Any]:
        """The same, with the prompt's states computed once and copied."""
        return self.retry(seed, cached=True)

    def generate(self, seed: int) -> dict[str, Any]:
        """``model.generate``, with no constraint."""
        torch.manual_seed(seed)
        count = self.case.samples if isinstance(self.case, PerAttempt) else self.case.texts
        for done in range(0, count, self.case.batch):
            self._generate(self.ids, num_return_sequences=min(self.case.batch, count - done), **self.settings)
        return {"attempts": count, "accepted": count}

    def _generate(self, ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        made: torch.Tensor = self.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return made


def generate_padded(model: Any, prompts: Sequence[torch.Tensor], **settings: Any) -> torch.Tensor:
    """Return the new tokens of ``model.generate`` on prompts in one batch, padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0)) for row in prompts])
    mask = torch.stack([torch.arange(longest) >= longest - len(row) for row in prompts]).long().to(ids.device)
    tokens: torch.Tensor = model.generate(ids, attention_mask=mask, **settings)
    return tokens[:, longest:]


def _usage(outcomes: list[Any]) -> dict[str, Any]:
    """What the outcomes of a call cost together, and how the engine kept their states."""
    usages = [outcome.report.usage for outcome in outcomes]
    counts = {
        name: sum(getattr(usage, name) for usage in usages)
        for name in ("attempts", "tokens", "surplus_attempts", "surplus_tokens")
    }
    accepted = sum(len(outcome.texts) for outcome in outcomes)
    return counts | {"accepted": accepted, "mode": outcomes[0].report.mode}


def peak_mb(device: str = "cpu") -> float:
    """The most memory that this process ever had resident, or allocated on a GPU, in MB (10⁶ bytes)."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        # Not ru_maxrss: on Linux a child process starts with its parent's.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
