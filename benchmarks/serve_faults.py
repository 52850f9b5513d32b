"""A server while clients, requests and its own rules misbehave: the faults, and its responses.

    python benchmarks/serve_faults.py --out benchmarks/results/serve_faults.md

A real server with a small random model. Eight clients send requests all the time, each with a rule, and every text is
checked against it. Meanwhile there are clients that disconnect, partial requests, bodies of 10 MB, hostile schemas and
patterns, and rules that raise or hang. The model runs out of memory once. At the end the server receives SIGTERM during
requests.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from guardwrap import Keyword
from guardwrap.testing import llama_world

RULES = {
    "endless": "budget: {max_attempts: null}\nconstraint: {kind: python, function: 'rules_code:endless'}\n",
    "raises": "constraint: {kind: python, name: raises, function: 'rules_code:raises'}\n",
    "hangs": "constraint: {kind: python, name: hangs, function: 'rules_code:hangs'}\n",
}
CODE = """\
import time

def endless(text):
    time.sleep(0.01)
    return False

def raises(text):
    raise ValueError(text)

def hangs(text):
    time.sleep(3600)
"""
OUT_OF_MEMORY_AT = 400  # passes of the model
STARTED = f"""\
import torch
from transformers import LlamaForCausalLM
from guardwrap.cli import main
forward, passes = LlamaForCausalLM.forward, [0]
def once_too_much(self, *args, **kwargs):
    passes[0] += 1
    if passes[0] == {OUT_OF_MEMORY_AT}:
        print("out of memory", flush=True)
        raise torch.OutOfMemoryError("played")
    return forward(self, *args, **kwargs)
LlamaForCausalLM.forward = once_too_much
main()
"""
SETTINGS = """\
model: model
name: tiny
constraints: rules
allow_code: true
limits: {running: 16, queue: 100, seconds: 60, attempts: 1000000, checker_seconds: 1, body_seconds: 2, grace_seconds: 5}
"""
HOSTILE: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "(a+)+$(a|aa)+b" * 20}},
    {"structured_outputs": {"regex": "(" * 5000}},
    {"structured_outputs": {"regex": "a{1,60000}{1,60000}"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [0] * 60_000}}}},
    {"guardwrap": {"constraint": {"kind": "python", "function": "os:system"}}},
    {"guardwrap": {"constraint": {"file": "/etc/passwd"}}},
]
DEEP = b'{"model": "tiny", "prompt": "a", "response_format": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001

Fault = Callable[[httpx.AsyncClient, int], Coroutine[Any, Any, str]]
"""Does one thing wrong, and returns what became of it."""


def asked(seed: int, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a", "max_tokens": 8, "temperature": 1.0, "top_k": -1, "seed": seed, **more}


def status(reply: httpx.Response) -> str:
    """What a client sees, and whether a text got out with an error."""
    if reply.status_code == 200:
        return "200"
    error = reply.json()["error"]
    return f"{reply.status_code} {error['code']}"


async def vanishes(client: httpx.AsyncClient, number: int) -> str:
    wish = asked(number, guardwrap={"constraint": "endless"}, stream=bool(number % 2))
    try:
        await client.post("/v1/completions", json=wish, timeout=0.3 + 0.05 * (number % 7))
    except httpx.TimeoutException:
        return "gone before its reply"
    return "answered"


async def halves(client: httpx.AsyncClient, number: int) -> str:
    """A head without its end, or a body without its end; then the client goes, or waits."""
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(head if number % 2 else head + b'Content-Length: 500\r\n\r\n{"model": "ti')
    await writer.drain()
    try:
        if number % 4 < 3:
            await asyncio.sleep(0.1)
            return "gone in mid-request"
        first = await asyncio.wait_for(reader.readline(), 10)
        return first.decode().split(" ", 1)[1].strip() if first else "closed by the server"
    except TimeoutError:
        return "still waiting after 10 s"
    finally:
        writer.close()


async def is_large(client: httpx.AsyncClient, number: int) -> str:
    return status(await client.post("/v1/completions", json=asked(number, prompt="a" * 10_000_000)))


async def is_hostile(client: httpx.AsyncClient, number: int) -> str:
    which = number % (len(HOSTILE) + 1)
    if which == len(HOSTILE):
        headers = {"Content-Type": "application/json"}
        return status(await client.post("/v1/completions", content=DEEP, headers=headers))
    budget = {"guardwrap": {"budget": {"max_attempts": 200}}}
    return status(await client.post("/v1/completions", json=asked(number, **(budget | HOSTILE[which]))))


def has(rule: str) -> Fault:
    async def fault(client: httpx.AsyncClient, number: int) -> str:
        return status(await client.post("/v1/completions", json=asked(number, guardwrap={"constraint": rule})))

    return fault


FAULTS: dict[str, tuple[Fault, int]] = {
    "clients that vanish": (vanishes, 40),
    "half requests": (halves, 40),
    "bodies of 10 MB": (is_large, 10),
    "hostile patterns, schemas, references": (is_hostile, 32),
    "a rule that raises": (has("raises"), 20),
    "a rule that hangs": (has("hangs"), 4),
}


async def good(client: httpx.AsyncClient, counts: Counter[str], stop: asyncio.Event, number: int) -> None:
    """One client that asks all the time; its texts are held against its rule."""
    letter, i = "bcdefghi"[number], 0
    rule = Keyword(letter, whole_words=False)
    while not stop.is_set():
        i += 1
        wish = asked(1000 * number + i, guardwrap={"constraint": rule.spec(), "budget": {"max_attempts": 10_000}})
        try:
            reply = await client.post("/v1/completions", json=wish)
        except httpx.TransportError:
            counts["no reply"] += 1
            continue
        counts[status(reply)] += 1
        if reply.status_code == 200 and not rule.accepts(reply.json()["choices"][0]["text"]):
            counts["violations"] += 1


async def tried(url: str, process: "subprocess.Popen[str]") -> list[tuple[str, int, Counter[str]]]:
    """Do everything wrong, one kind after the other, while good clients ask."""
    rows = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        asking: Counter[str] = Counter()
        stop = asyncio.Event()
        clients = [asyncio.create_task(good(client, asking, stop, i)) for i in range(8)]
        for name, (fault, times) in FAULTS.items():
            found = await asyncio.gather(*(fault(client, i) for i in range(times)))
            rows.append((name, times, Counter(found)))
            print(*rows[-1], file=sys.stderr)
        figures = (await client.get("/v1/guardwrap/about")).json()["figures"]
        rows.append(
            ("requests in the batch afterwards, beside the eight", 1, Counter({f"{figures['running']:.0f} of 8": 1}))
        )
        ending = asyncio.create_task(has("endless")(client, 1))
        await asyncio.sleep(0.5)
        stop.set()
        process.send_signal(signal.SIGTERM)
        await asyncio.gather(*clients)
        rows.append(("SIGTERM: a request that would never end", 1, Counter([await ending])))
    rows.append(("good requests, all the time", sum(asking.values()) - asking["violations"], asking))
    return rows


def furnished(folder: Path) -> None:
    world = llama_world(letters="abcdefghi .", max_new_tokens=8)
    world.model.float().save_pretrained(folder / "model")
    world.tokenizer.save_pretrained(folder / "model")
    (folder / "rules").mkdir()
    for name, rule in RULES.items():
        (folder / "rules" / f"{name}.yaml").write_text("guardwrap: 1\n" + rule)
    (folder / "rules_code.py").write_text(CODE)
    (folder / "serve.yaml").write_text(SETTINGS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Try everything, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as place:
        furnished(Path(place))
        command = [sys.executable, "-c", STARTED, "serve", "--config", "serve.yaml", "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        log = Path(place) / "log"  # a file: a pipe that nobody reads would stop the server once it is full
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            line = next(line for line in process.stdout if "http://" in line)
            try:
                rows = asyncio.run(tried(line.split()[-1], process))
                said, _ = process.communicate(timeout=60)
            finally:
                process.kill()  # no effect once it has ended
        logged = log.read_text()
    rows.append(("the model runs out of memory", said.count("out of memory"), Counter({"nobody noticed": 1})))
    rows.append(("the process after SIGTERM", 1, Counter({f"exit code {process.returncode}": 1})))
    secrets = sum("played" in line or '"prompt"' in line for line in logged.splitlines())
    rows.append(("lines of the log with a text or a prompt", len(logged.splitlines()), Counter({str(secrets): 1})))
    table = ["| what | times | answered |", "|---|---|---|"]
    for name, times, found in rows:
        table.append(f"| {name} | {times} | {', '.join(f'{count} × {how}' for how, count in sorted(found.items()))} |")
    print("\n".join(table))
    if given.out is not None:
        given.out.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
