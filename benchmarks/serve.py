"""The gain of `guardwrap serve` from batching callers, and whether each gets the same texts as alone.

    python benchmarks/serve.py --model models/stories15M --out benchmarks/results/serve.json

starts a server and drives it with the official openai client: the same requests by one client after the other, and by
64 clients at once, each with another constraint. It reports requests per second, CPU seconds of the server (both
cores), the latencies' p50 and p99, and, over many short requests, the server's memory. Texts are compared one by one:
the same seed must give the same text regardless of other requests, and each text must satisfy its constraint.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openai import AsyncOpenAI

from guardwrap import Constraint, Keyword, Length

SEEN = ["a", "and", "the", "was", "to", "he", "she", "had", "with", "in", "little", "girl", "boy", "named"]
OTHERS = ["it", "her", "his", "they", "said", "of", "you", "so", "very", "happy", "day", "big", "play", "mom", "friend"]
LENGTHS = [Length(max=most, unit="characters") for most in (80, 95, 110)]
RULES: list[Constraint] = [Keyword(word) for word in SEEN] + LENGTHS + [~Keyword(word) for word in SEEN + OTHERS]
RULES += [Keyword(word) & ~Keyword(other) for word, other in zip(SEEN, OTHERS, strict=False)]
BANS = [~Keyword(word) for word in SEEN + OTHERS]
RULES += [~Keyword(word) & ~Keyword(other) for word, other in zip(OTHERS[:4], SEEN[4:8], strict=True)]
PROMPT = "Once upon a time, there was a"
TICKS = os.sysconf("SC_CLK_TCK")


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
def serving(model: str, threads: int, running: int, folder: Path) -> Iterator[Server]:
    """Start a server on a free port, and end it."""
    settings = folder / "serve.yaml"
    settings.write_text(f"name: model\nlimits: {{running: {running}, queue: 1000, attempts: 10000, n: 64}}\n")
    command = [sys.executable, "-m", "guardwrap", "serve", "--model", model, "--port", "0", "--config", str(settings)]
    command += ["--dtype", "float32"]  # in which texts do not depend on who else is served
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write down."""
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
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder, serving(given.model, given.threads, given.running, Path(folder)) as server:
        found = asyncio.run(measured(server, given))
    found = {"settings": {name: str(value) for name, value in vars(given).items()}, **found}
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
