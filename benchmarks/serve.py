"""The gain of `guardwrap serve` from batching callers, and whether each gets the same texts as alone.

    python benchmarks/serve.py --model models/stories15M --out benchmarks/results/serve.json

starts a server and drives it with the official openai client: the same requests by one client after the other, and by
64 clients at once, each with another constraint. It reports requests per second, CPU seconds of the server (both
cores), the latencies' p50 and p99, and, over many short requests, the server's memory. Texts are compared one by one:
the same seed must give the same text regardless of other requests, and each text must satisfy its constraint.

    python benchmarks/serve.py --overhead --clients 32 --requests 128 --tokens 64 --threads 1

compares what a token costs: the same prompts, seeds and settings by ``model.generate``, by one call of the wrapper,
and by clients of the server, with and without streaming, in turn. It reports CPU seconds of the process with the model
for each token that it computes, and counts the model's passes, rows and prompt tokens, so that one sees whether more
passes or something else takes the time. The texts of the wrapper and of the server must be the same.

    python benchmarks/serve.py --check --requests 4000

measures the latency of checks without a model: texts of 1 kB, by a regular expression, a keyword, a length and a JSON
Schema in turn, by one client and by many at once.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from loops import Counter, generate_padded
from openai import AsyncOpenAI

from guardwrap import Constraint, GuardedGenerator, Keyword, Length
from guardwrap.cli.commands import serve_command
from guardwrap.cli.shared import load_generator
from guardwrap.constraints.files.constraint_file import PerPromptOptions

SEEN = ["a", "and", "the", "was", "to", "he", "she", "had", "with", "in", "little", "girl", "boy", "named"]
OTHERS = ["it", "her", "his", "they", "said", "of", "you", "so", "very", "happy", "day", "big", "play", "mom", "friend"]
LENGTHS = [Length(max=most, unit="characters") for most in (80, 95, 110)]
RULES: list[Constraint] = [Keyword(word) for word in SEEN] + LENGTHS + [~Keyword(word) for word in SEEN + OTHERS]
RULES += [Keyword(word) & ~Keyword(other) for word, other in zip(SEEN, OTHERS, strict=False)]
BANS = [~Keyword(word) for word in SEEN + OTHERS]
RULES += [~Keyword(word) & ~Keyword(other) for word, other in zip(OTHERS[:4], SEEN[4:8], strict=True)]
PROMPT = "Once upon a time, there was a"
TICKS = os.sysconf("SC_CLK_TCK")
ANYTHING = Length(min=0)
HERE = ("generate", "run")
"""Ways to draw texts in the process of the benchmark; the others are the server's."""
THINGS = ["dog", "red ball", "little bird", "big blue house", "cat who sings", "tree", "rainy day", "boat on a lake"]


class CounterInFile(Counter):
    """Counts what a model computes, and keeps the totals in a file that another process can read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        path.write_text(json.dumps(self.totals))

    def _count(self, model: Any, args: Any, kwargs: Any) -> None:
        super()._count(model, args, kwargs)
        self._path.write_text(json.dumps(self.totals))


@dataclass
class Server:
    """A server process: where it listens, and what it takes."""

    process: "subprocess.Popen[str]"
    url: str

    @property
    def cpu(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(options: Sequence[str], threads: int, running: int, folder: Path) -> Iterator[Server]:
    """Start a server on a free port, and end it."""
    settings = folder / "serve.yaml"
    settings.write_text(f"name: model\nlimits: {{running: {running}, queue: 1000, attempts: 10000, n: 64}}\n")
    command = [sys.executable, __file__, "--serve", str(folder / "counts")]
    command += ["serve", "--port", "0", "--config", str(settings), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "http://" in line)
            url = next(word for word in line.split() if word.startswith("http://"))
            yield Server(process, url.rstrip("/.,"))
        finally:
            process.terminate()


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def drive(
    server: Server,
    count: int,
    clients: int,
    tokens: int,
    first: int = 0,
    rules: Sequence[Constraint] = RULES,
    top_k: int = 50,
) -> dict[str, Any]:
    """Send requests, so many at once; the i-th has constraint and seed number i."""
    texts: dict[int, str] = {}
    latencies: list[float] = []
    rows = {"attempts": 0, "computed_tokens": 0}
    waiting = iter(range(first, first + count))
    began, cpu = time.monotonic(), server.cpu

    async def one_client(client: AsyncOpenAI) -> None:
        for i in waiting:
            start = time.monotonic()
            rule = rules[i % len(rules)]
            reply = await client.completions.create(
                model="model",
                prompt=PROMPT,
                max_tokens=tokens,
                temperature=1.0,
                seed=i,
                extra_body={"top_k": top_k, "guardwrap": {"constraint": rule.spec()}},
            )
            latencies.append(time.monotonic() - start)
            texts[i] = reply.choices[0].text
            assert rule.accepts(texts[i]), "a text violates its constraint"
            usage = reply.model_extra["guardwrap"]["usage"]  # type: ignore[index]
            for name in rows:
                rows[name] += usage[name]

    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)
    await asyncio.gather(*(one_client(client) for _ in range(clients)))
    await client.close()
    seconds = time.monotonic() - began
    return {
        "texts": texts,
        "clients": clients,
        "requests": count,
        "seconds": seconds,
        "requests_a_second": count / seconds,
        "cpu_seconds": server.cpu - cpu,
        "p50": statistics.median(latencies),
        "p99": percentile(latencies, 0.99),
        **rows,
    }


async def measured(server: Server, given: argparse.Namespace) -> dict[str, Any]:
    """Run both, in turn, and then many short requests."""
    await drive(server, 64, 8, given.tokens, first=10**6)  # what is done once is done
    alone, together = [], []
    for repeat in range(given.repeats):
        wish = {"tokens": given.tokens, "first": repeat * given.requests, "top_k": given.top_k}
        alone.append(await drive(server, given.requests, 1, **wish))
        together.append(await drive(server, given.requests, given.clients, **wish))
    pairs = [(a.pop("texts"), b.pop("texts")) for a, b in zip(alone, together, strict=True)]
    other = [sum(a[i] != b[i] for i in a) for a, b in pairs]
    memory = []
    for i in range(0, given.many, 500):
        await drive(server, min(500, given.many - i), given.clients, 8, 2 * 10**6 + i, BANS)
        memory.append(server.memory)
        print(f"{i + 500} short requests: {memory[-1] / 2**20:.0f} MiB", file=sys.stderr)
    pairs = list(zip(alone, together, strict=True))
    return {
        "one_after_the_other": alone,
        "together": together,
        "other_texts": other,
        "throughput_ratio": [b["requests_a_second"] / a["requests_a_second"] for a, b in pairs],
        "cpu_ratio": [a["cpu_seconds"] / b["cpu_seconds"] for a, b in pairs],
        "memory_mib": [round(each / 2**20, 1) for each in memory],
        "memory_growth": memory[-1] / memory[0] - 1 if memory else None,
    }


CHECKS = {
    "regex": "{kind: not, of: {kind: regex, pattern: '[0-9]{5,}'}}",
    "keyword": "{kind: keyword, words: [idiot, stupid], match: none}",
    "length": "{kind: length, max: 400, unit: words}",
    "schema": "{kind: json_schema, schema: {type: object, properties: {texts: {items: {type: string}, minItems: 9}}}}",
}


async def checks(server: Server, count: int, clients: int) -> dict[str, Any]:
    """Check texts, so many at once, over connections that are kept; the latency is what a client sees."""
    sentence = "Once upon a time, there was a little girl who had a big red ball. "
    texts = dict.fromkeys(CHECKS, (16 * sentence)[:1000])
    texts["schema"] = json.dumps({"texts": [sentence] * 14})
    bodies = [json.dumps({"input": text, "constraint": name}).encode() for name, text in texts.items()]
    latencies: list[float] = []
    waiting = iter(range(count))
    host, port = server.url.removeprefix("http://").split(":")
    began, cpu = time.monotonic(), server.cpu

    async def one_client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for i in waiting:
            start, body = time.monotonic(), bodies[i % len(bodies)]
            head = f"POST /v1/check HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.partition(b"content-length:")[2].split()[0])
            assert b'"accepted": true' in await reader.readexactly(length), "a text was rejected"
            latencies.append(time.monotonic() - start)
        writer.close()

    await asyncio.gather(*(one_client() for _ in range(clients)))
    seconds = time.monotonic() - began
    shares = {f"p{100 * share:g}_ms": 1000 * percentile(latencies, share) for share in (0.5, 0.99)}
    cpu = 1000 * (server.cpu - cpu) / count
    return {"clients": clients, "requests_a_second": count / seconds, "server_cpu_ms": cpu, **shares}


async def checked(server: Server, given: argparse.Namespace) -> dict[str, Any]:
    """Check texts by one client and by many, in turn."""
    await checks(server, 400, 8)  # what is done once is done
    runs = [
        await checks(server, given.requests, clients) for _ in range(given.repeats) for clients in (1, given.clients)
    ]
    return {"checks": runs}


def serve_counted(path: Path, arguments: Sequence[str]) -> None:
    """Run ``guardwrap serve``, and count what its model computes."""
    from guardwrap.cli import main as guardwrap_main

    loaded = serve_command._loaded

    def counted(settings: Any) -> GuardedGenerator:
        guarded = loaded(settings)
        counting.enter_context(CounterInFile(path).on(guarded.model))
        return guarded

    serve_command._loaded = counted
    sys.argv[1:] = arguments
    with ExitStack() as counting:
        guardwrap_main()


def prompts_of(count: int) -> list[str]:
    """Return different prompts of a few lengths."""
    return [f"Once upon a time, number {i}, there was a {THINGS[i % len(THINGS)]}. One" for i in range(count)]


def generated(guarded: GuardedGenerator, prompts: Sequence[str], size: int, settings: dict[str, Any]) -> int:
    """Draw a text of each prompt with ``model.generate``; return the number of their tokens."""
    tokenizer, tokens = guarded.tokenizer, 0
    end = tokenizer.eos_token_id
    for first in range(0, len(prompts), size):
        rows = [tokenizer(prompt, return_tensors="pt")["input_ids"][0] for prompt in prompts[first : first + size]]
        torch.manual_seed(first)
        new = generate_padded(guarded.model, rows, pad_token_id=end, **settings)
        tokens += sum(row.index(end) + 1 if end in row else len(row) for row in new.tolist())
    return tokens


async def requested(
    server: Server, prompts: Sequence[str], first: int, clients: int, settings: dict[str, Any], *, stream: bool
) -> tuple[dict[int, str], int, int]:
    """Draw a text of each prompt by clients of a server; return the texts, and numbers of tokens and chunks."""
    texts: dict[int, str] = {}
    counts = {"tokens": 0, "chunks": 0}
    waiting = iter(enumerate(prompts))
    law = {"max_tokens": settings["max_new_tokens"], "temperature": settings["temperature"]}
    rest = {"top_k": settings["top_k"]}

    async def one_client(client: AsyncOpenAI) -> None:
        for i, prompt in waiting:
            asked: Any = {"model": "model", "prompt": prompt, "seed": first + i, **law, "extra_body": rest}
            if not stream:
                reply = await client.completions.create(**asked)
                texts[i], report = reply.choices[0].text, reply.model_extra["guardwrap"]
            else:
                texts[i], report = "", None
                async for chunk in await client.completions.create(**asked, stream=True):
                    texts[i] += chunk.choices[0].text
                    counts["chunks"] += 1
                    report = (chunk.model_extra or {}).get("guardwrap", report)
            counts["tokens"] += report["usage"]["tokens"]

    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)
    await asyncio.gather(*(one_client(client) for _ in range(clients)))
    await client.close()
    return texts, counts["tokens"], counts["chunks"]


def overhead(server: Server, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure what a token costs, by each way in turn."""
    torch.set_num_threads(given.threads)
    guarded = load_generator(given.model, ANYTHING, dtype="float32", batch_size=32)
    here = Counter()

    def computed(way: str) -> dict[str, int]:
        return here.totals if way in HERE else json.loads((folder / "counts").read_text())

    settings = {"max_new_tokens": given.tokens, "temperature": 1.0, "top_k": given.top_k, "do_sample": True}
    runs: dict[str, list[dict[str, Any]]] = {"generate": [], "run": [], "server": [], "streamed": []}
    with here.on(guarded.model):
        for repeat in range(-1, given.repeats):  # the first time is not counted
            prompts = prompts_of(given.requests if repeat >= 0 else 32)
            first = repeat * given.requests if repeat >= 0 else 10**6
            texts: dict[str, dict[int, str]] = {}
            for way, measured_runs in runs.items():
                before, began, chunks = computed(way), time.monotonic(), 0
                cpu = time.process_time() if way in HERE else server.cpu
                if way == "generate":
                    tokens = generated(guarded, prompts, given.clients, settings)
                elif way == "run":
                    each = [PerPromptOptions(seed=first + i) for i in range(len(prompts))]
                    outcomes = guarded.run(prompts, constraint_each=each, **settings)
                    tokens = sum(outcome.report.usage.tokens for outcome in outcomes)
                    texts[way] = {i: outcome.texts[0] for i, outcome in enumerate(outcomes)}
                else:
                    asked = requested(server, prompts, first, given.clients, settings, stream=way == "streamed")
                    texts[way], tokens, chunks = asyncio.run(asked)
                cpu = (time.process_time() if way in HERE else server.cpu) - cpu
                counts = {name: value - before[name] for name, value in computed(way).items()}
                row = {"cpu_seconds": cpu, "tokens": tokens, "ms_a_token": 1000 * cpu / tokens, "chunks": chunks}
                row |= {"seconds": time.monotonic() - began, **counts}
                if repeat >= 0:
                    measured_runs.append(row)
                    print(f"{way}: {json.dumps(row)}", file=sys.stderr, flush=True)
            if not texts["run"] == texts["server"] == texts["streamed"]:
                raise SystemExit("the same seeds gave other texts")
    by = {way: [row["ms_a_token"] for row in rows] for way, rows in runs.items()}
    ratios = {
        f"{way} / {base}": statistics.median(a / b for a, b in zip(by[way], by[base], strict=True))
        for way, base in (("run", "generate"), ("server", "generate"), ("server", "run"), ("streamed", "run"))
    }
    return {"ratios": ratios, "ms_a_token": {way: statistics.median(row) for way, row in by.items()}, "runs": runs}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write down."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "--serve":
        serve_counted(Path(arguments[1]), arguments[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="local", help="Hub id or folder; a story model knows the words asked for")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=24, help="longest text")
    parser.add_argument(
        "--top-k", type=int, default=50, help="0 opens the whole vocabulary, where rounding decides more"
    )
    parser.add_argument("--many", type=int, default=5000, help="short requests, for the memory")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--running", type=int, default=64, help="the server's limits.running")
    parser.add_argument("--overhead", action="store_true", help="compare CPU per token with the wrapper and generate")
    parser.add_argument("--check", action="store_true", help="measure checks without a model")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--model", given.model, "--dtype", "float32"]  # in which texts do not depend on who else is served
        if given.check:
            (folder / "rules").mkdir()
            for rule, constraint in CHECKS.items():
                (folder / "rules" / f"{rule}.yaml").write_text(f"guardwrap: 1\nconstraint: {constraint}\n")
            options = ["--check-only", str(folder / "rules")]
        with serving(options, given.threads, given.running, folder) as server:
            work = checked if given.check else measured
            found = overhead(server, given, folder) if given.overhead else asyncio.run(work(server, given))
    found = {"settings": {name: str(value) for name, value in vars(given).items()}, **found}
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
