"""The cost of rows on Ray, and whether any are lost, doubled or changed when processes are killed.

    python benchmarks/ray_rows.py speed --model models/stories15M
    python benchmarks/ray_rows.py kills --model models/stories15M
    python benchmarks/ray_rows.py memory

Each runs `guardwrap generate --ray auto` as a user would. `speed` compares two single-threaded workers with one, and
the bytes that they write. `kills` sends SIGKILL to workers and to the driver process at random times, and continues
with `--resume`. `memory` measures the resident memory of the driver, with a tiny random model.

The file is not called ray.py because scripts in this folder would import it instead of Ray.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

COSTS = ("seconds", "surplus_attempts", "surplus_tokens", "computed_tokens")
"""Figures of a report that depend on the moment, or on what is drawn beside."""

RULE = "guardwrap: 1\nconstraint: {kind: keyword, words: WORD}\n"
SHORT = ("--max-new-tokens", "8", "--max-attempts", "5")
WHO = ("girl", "boy", "dog", "cat", "bird")
TICKS = os.sysconf("SC_CLK_TCK")


def rows(path: Path, count: int) -> None:
    """Write rows with ids of their own."""
    lines = ({"id": f"row-{i}", "prompt": f"One day a {WHO[i % len(WHO)]} saw {i} birds and"} for i in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def in_float32(model: str, folder: Path) -> str:
    """Copy a model as float32, in which texts do not depend on what is drawn beside them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return str(folder)


def tiny(folder: Path) -> str:
    """Make a random model over letters."""
    from guardwrap.testing import llama_world

    world = llama_world(
        letters="".join(sorted({*"One day a girl boy dog cat bird saw bcdef 0123456789."})), max_new_tokens=6
    )
    world.model.save_pretrained(folder)
    world.tokenizer.save_pretrained(folder)
    return str(folder)


def command(model: str, rule: Path, given: Path, out: Path, workers: int, *more: str) -> "subprocess.Popen[str]":
    """Start the command."""
    said = ["generate", "-m", model, "-c", str(rule), "--jsonl", str(given), "-o", str(out), "--seed", "1", "-q"]
    said += ["--ray", "auto", "--workers", str(workers), *more]
    # Ray runs its workers at a lower priority, which on a machine that others use too would measure them.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    return subprocess.Popen([sys.executable, "-m", "guardwrap", *said], env=environment, text=True)


def family(pid: int) -> list[int]:
    """Return the processes that a process has begun, and those have, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def workers_of(pid: int) -> list[int]:
    """Return the processes among them that have a model."""
    found = []
    for each in family(pid):
        try:
            name = Path(f"/proc/{each}/cmdline").read_bytes()
        except OSError:
            continue
        if b"LineWorker" in name:
            found.append(each)
    return found


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> float:
    """Return the most that a process had in memory, in MiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def kept(out: Path) -> list[str]:
    """Return the records of a folder without what they cost."""
    found = []
    for name in ("results.jsonl", "failed.jsonl"):
        if (out / name).exists():
            for line in (out / name).read_text().splitlines():
                record = json.loads(line)
                for cost in COSTS:
                    record.get("report", {}).get("usage", {}).pop(cost, None)
                found.append(json.dumps(record))
    return found


def measured(process: "subprocess.Popen[str]", out: Path) -> dict[str, Any]:
    """Wait for a run; say how long its workers took from the first block to the last, and what they computed."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    began = ended = memory = 0.0
    before = seen = 0
    while process.poll() is None:
        time.sleep(0.05)
        memory = max(memory, resident(process.pid))
        there = len(list((out / "parts").glob("*.jsonl"))) if (out / "parts").exists() else 0
        if there > seen:
            now = time.monotonic()
            used = {each: cpu(each) for each in workers_of(process.pid)}
            if not began:
                began, before, first = now, there, used
            seen, ended, last = there, now, {**last, **used}
    if process.returncode not in (0, 3):
        raise SystemExit(f"the command ended with {process.returncode}")
    if seen == before:
        return {"memory_mib": memory}
    took = sum(used - first.get(each, 0.0) for each, used in last.items())
    return {"blocks": seen - before, "seconds": ended - began, "cpu_seconds": took, "memory_mib": memory}


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare two workers with one, in turn."""
    model = in_float32(options.model, folder / "model")
    (folder / "rule.yaml").write_text(RULE.replace("WORD", "the"))
    rows(folder / "rows.jsonl", options.rows)
    found: dict[str, Any] = {"load": [], "one": [], "two": []}
    for turn in range(options.repeats):
        for name, workers in (("one", 1), ("two", 2)):
            out = folder / f"{name}-{turn}"
            given = (model, folder / "rule.yaml", folder / "rows.jsonl", out, workers, *SHORT)
            found[name].append(measured(command(*given), out))
            found["load"].append(os.getloadavg()[0])
            print(name, found[name][-1], "load", found["load"][-1], flush=True)
    found["same_bytes"] = len({"".join(kept(folder / f"{name}-{0}")) for name in ("one", "two")}) == 1
    return found


def kills(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill workers and drivers at random moments, and compare with a run that nobody disturbs."""
    model = in_float32(options.model, folder / "model")
    (folder / "rule.yaml").write_text(RULE.replace("WORD", "the"))
    rows(folder / "rows.jsonl", options.rows)
    given = (model, folder / "rule.yaml", folder / "rows.jsonl")
    calm = command(*given, folder / "calm", 1, *SHORT)
    if calm.wait() not in (0, 3):
        raise SystemExit(f"the command ended with {calm.returncode}")
    rng = random.Random(options.seed)
    out = folder / "killed"
    done: list[dict[str, Any]] = []
    process = command(*given, out, 2, *SHORT)
    while process.poll() is None and len(done) < options.kills:
        time.sleep(rng.uniform(options.least, options.most))
        kind = rng.choice(("worker", "driver"))
        there = sorted(workers_of(process.pid))
        if process.poll() is not None:
            break
        if kind == "worker" and not there:
            continue
        victims = family(process.pid)
        os.kill(rng.choice(there) if kind == "worker" else process.pid, signal.SIGKILL)
        parts = len(list((out / "parts").glob("*.jsonl"))) if (out / "parts").exists() else 0
        done.append({"killed": kind, "workers": len(there), "blocks_by_then": parts})
        print(done[-1], flush=True)
        if kind == "driver":
            process.wait()
            while any(Path(f"/proc/{each}/cmdline").exists() for each in victims):
                time.sleep(0.2)
            more = ["--resume"] if (out / "run.json").exists() else []
            process = command(*given, out, 2, *SHORT, *more)
    code = process.wait()
    expected, got = kept(folder / "calm"), kept(out)
    names = [json.loads(line)["id"] for line in got]
    return {
        "rows": options.rows,
        "kills": done,
        "code": code,
        "failed_rows": sum("reason" in json.loads(line) for line in got),
        "lost": len({f"row-{i}" for i in range(options.rows)} - set(names)),
        "doubled": len(names) - len(set(names)),
        "same_bytes": got == expected,
    }


def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Say how much memory the driving process takes for so many rows."""
    model = tiny(folder / "model")
    (folder / "rule.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: '[a-f]'}\n")
    found: dict[str, Any] = {}
    for count in (1000, options.rows):
        rows(folder / "rows.jsonl", count)
        out = folder / f"out-{count}"
        given = (model, folder / "rule.yaml", folder / "rows.jsonl", out, 1, "--max-new-tokens", "6")
        found[str(count)] = measured(command(*given), out)["memory_mib"]
        if len(kept(out)) != count:
            raise SystemExit(f"{count} rows gave {len(kept(out))} records")
        print(count, found[str(count)], flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rows on Ray: speed, kills, memory.")
    parser.add_argument("what", choices=("speed", "kills", "memory"))
    parser.add_argument("--model", help="folder of a small model")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--least", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--most", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    options.rows = options.rows or {"speed": 2048, "kills": 3000, "memory": 10_000}[options.what]
    with TemporaryDirectory() as folder:
        found = {"speed": speed, "kills": kills, "memory": memory}[options.what](options, Path(folder))
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
