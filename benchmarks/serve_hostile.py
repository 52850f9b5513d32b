"""The delay of other requests by a hostile request to a default server: latencies with and without it, in turn.

    python benchmarks/serve_hostile.py [--model local] [--requests 60] [--rounds 2] [--out serve_hostile.json]

starts `guardwrap serve` with its default settings on 127.0.0.1 and sends it short requests from a few clients. In every
round each hostile case runs once, between two phases without it:

    masked       one request with a masked proposal and an expression that takes nearly 2 s per text
    slow         one request with such an expression, judged on whole texts
    prompts      24 requests of 950 kB each
    no words     24 requests of 640 kB without white space, whose lower bound on tokens is just within the context
    gone         the masked request four times; its client disconnects after 0.2 s

A hostile request that has ended is sent again while its phase lasts, at most 20 times. The extra delay is the p99 of
the other requests with it, minus the p99 in the phases without it. Seconds depend on the load of the machine, which the
phases without it show.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import regex
from serve import percentile

SLOW = r"^(?:a|aa)+b"
CLIENTS, TOKENS = 3, 8
MOST = 20  # times that a hostile request is sent in a phase


@contextmanager
def serving(model: str, folder: Path) -> Iterator[str]:
    """Start a server with its default settings on a free port of this machine; yield its address, and end it."""
    settings = folder / "serve.yaml"
    settings.write_text("name: local\n")
    command = [sys.executable, "-m", "guardwrap", "serve", "--model", model, "--port", "0", "--config", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line for line in process.stdout if "http://" in line).split()[-1]
        finally:
            process.terminate()


def calibrated(seconds: float = 1.0) -> int:
    """Return how many letters make the expression take nearly so long here."""
    count = 20
    while True:
        began = time.thread_time()
        regex.match(SLOW, "a" * (count + 1), timeout=30)
        if time.thread_time() - began > seconds:
            return count
        count += 1


def masked(letters: int) -> dict[str, Any]:
    rule = {"kind": "regex", "pattern": SLOW, "on": "full", "timeout": 2}
    own = {"proposal": "masked", "constraint": rule, "budget": {"max_seconds": 1}}
    return {"model": "local", "prompt": "a" * letters, "max_tokens": 1, "top_k": -1, "guardwrap": own}


def slow(letters: int) -> dict[str, Any]:
    rule = {"kind": "regex", "pattern": SLOW, "on": "full", "timeout": 2}
    return {"model": "local", "prompt": "a" * letters, "max_tokens": 4, "guardwrap": {"constraint": rule}}


def huge(size: int, piece: str) -> dict[str, Any]:
    return {"model": "local", "prompt": piece * (size // len(piece)), "max_tokens": 1}


async def bystanders(url: str, count: int, first: int) -> list[float]:
    """Send short requests from a few clients, and return how long each took."""
    latencies: list[float] = []
    waiting = iter(range(first, first + count))

    async def one_client(client: httpx.AsyncClient) -> None:
        for i in waiting:
            began = time.monotonic()
            body = {"model": "local", "prompt": "Once upon a time", "max_tokens": TOKENS, "seed": i}
            reply = await client.post("/v1/completions", json=body)
            reply.raise_for_status()
            latencies.append(time.monotonic() - began)

    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        await asyncio.gather(*(one_client(client) for _ in range(CLIENTS)))
    return latencies


async def again_and_again(send: Callable[[httpx.AsyncClient], Awaitable[None]], url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        for _ in range(MOST):
            await send(client)


def posting(body: dict[str, Any], times: int = 1, leaves: float | None = None) -> Any:
    async def send(client: httpx.AsyncClient) -> None:
        async def one() -> None:
            with suppress(httpx.TimeoutException):
                await client.post("/v1/completions", json=body, timeout=leaves or 300)

        await asyncio.gather(*(one() for _ in range(times)))

    return send


async def measured(url: str, given: argparse.Namespace) -> dict[str, Any]:
    letters = calibrated()
    cases = {
        "masked": posting(masked(letters)),
        "slow": posting(slow(letters)),
        "prompts": posting(huge(950_000, "word "), 24),
        "no words": posting(huge(640_000, "qzx"), 24),
        "gone": posting(masked(letters), 4, leaves=0.2),
    }
    cases = {name: send for name, send in cases.items() if not given.only or name in given.only}
    await bystanders(url, 2 * CLIENTS, 10**6)  # what is done once is done
    found: dict[str, list[list[float]]] = {name: [] for name in ("alone", *cases)}

    async def phase(name: str, number: int) -> None:
        latencies = await bystanders(url, given.requests, number * 1000)
        found[name].append(latencies)
        print(f"{name:10} p50 {percentile(latencies, 0.5):.2f} s, p99 {percentile(latencies, 0.99):.2f} s", flush=True)

    for number in range(given.rounds):
        await phase("alone", number)
        for name, send in cases.items():
            hostile = asyncio.create_task(again_and_again(send, url))
            await asyncio.sleep(0.3)
            await phase(name, number)
            hostile.cancel()
            await asyncio.gather(hostile, return_exceptions=True)
            await settled(url)
            await phase("alone", number)
    alone = [latency for phase in found["alone"] for latency in phase]
    rows: dict[str, Any] = {}
    for name, phases in found.items():
        latencies = [latency for phase in phases for latency in phase]
        p99 = percentile(latencies, 0.99)
        rows[name] = {
            "requests": len(latencies),
            "p50": round(percentile(latencies, 0.5), 3),
            "p99": round(p99, 3),
            "extra_p99": round(p99 - percentile(alone, 0.99), 3),
            "phases_p99": [round(percentile(phase, 0.99), 3) for phase in phases],
        }
        print(f"{name:10} {rows[name]}", flush=True)
    return {"letters": letters, "clients": CLIENTS, "tokens": TOKENS, "rows": rows}


async def settled(url: str) -> None:
    """Wait until the server has let go of all requests."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        for _ in range(600):
            if re.search(r"\nguardwrap_running{[^}]*} 0\.0", (await client.get("/metrics")).text):
                return
            await asyncio.sleep(0.2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="local", help="Hub id or folder")
    parser.add_argument("--requests", type=int, default=60, help="of bystanders in each phase")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="cases to run")
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder, serving(given.model, Path(folder)) as url:
        result = asyncio.run(measured(url, given))
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
