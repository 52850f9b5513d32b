"""The cost of guarded generation, compared with the loops that people write.

    python benchmarks/engine.py --model models/stories15M --out benchmarks/results/engine

writes engine.json and engine.md, again after each case; --resume continues with the missing cases. Each case runs in
turn with its rivals, several times in one process. Measured are CPU seconds, wall seconds, and deterministic counts
(row-steps = rows × model calls, prompt tokens computed). Peak memory is measured in separate processes. The cases are
in cases.py, the loops and the counters in loops.py.

--profile LOOP prints instead where the time of one run goes, operation by operation, and how often a pass of the model
waits for the device: what to send along with a question about a GPU.

retry     model.generate with num_return_sequences = batch, again until enough texts satisfy the constraint
cached    the same with the prompt's states computed once and copied
generate  model.generate with no constraint
"""

import argparse
import dataclasses
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from cases import CASES, Bound, Busy, Case, Least, Paired, Peak, PerAttempt, Together, quick
from loops import Bench, load, peak_mb

import guardwrap

Runs = dict[str, list[dict[str, Any]]]
"""From a loop to what was measured each time."""

Figures = list[dict[str, Any]]
"""Rows of the first table."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="Hub id or path of a base model (a story model) for the cases without a chat")
    parser.add_argument("--chat", help="Hub id or path of a chat model for the others; default: the embedded model")
    parser.add_argument("--quick", action="store_true", help="everything small: to see that it runs")
    parser.add_argument("--repeats", type=int, help="runs of each loop where the case does not say (5; quick: 1)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--batch", type=int, help="rows, at most, in place of what the cases say; GPUs have room for more"
    )
    parser.add_argument("--device", default="cpu", help="of the models, such as cuda; default: cpu")
    parser.add_argument("--case", action="append", help="part of a case's name; default: all")
    parser.add_argument(
        "--profile", metavar="LOOP", help="print the profile of a loop, such as ours, and measure nothing"
    )
    parser.add_argument("--resume", action="store_true", help="skip the cases that --out has already")
    parser.add_argument("--out", type=Path, default=Path("engine"))
    parser.add_argument("--peak", nargs=3, metavar=("CASE", "LOOP", "SEED"), help=argparse.SUPPRESS)
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given, argparse.Namespace(given=given))
    options.repeats = options.repeats or (1 if options.quick else 5)
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = [quick(case) if options.quick else case for case in CASES]
    if options.batch:
        chosen = [dataclasses.replace(case, batch=options.batch) for case in chosen]
    if options.peak:
        name, loop, seed = options.peak
        print(json.dumps(peak_of(next(case for case in chosen if case.name == name), loop, int(seed), options)))
        return

    written = header(options)
    file = options.out.with_suffix(".json")
    if options.resume and file.exists():
        old = json.loads(file.read_text())
        if any(old.get(part) != written[part] for part in ("settings", "versions", "machine")):
            parser.error(f"{file} was measured with other settings, versions or machine; leave --resume out")
        written["cases"] = old["cases"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for case in chosen:
        if options.case and not any(part in case.name for part in options.case):
            continue
        if case.name in written["cases"] and not options.profile:
            continue
        if case.model == "base" and options.model is None:
            print(f"{case.name}: left out; it needs --model", flush=True)
            continue
        if options.profile:
            print(f"{case.name}, {options.profile}:\n{profile(case, options)}", flush=True)
            continue
        figures, runs = MEASURE[type(case)](case, options)
        written["cases"][case.name] = {
            "kind": type(case).__name__,
            "parameters": {key: value for key, value in vars(case).items() if key not in ("name", "target")},
            "figures": figures,
            "runs": runs,
        }
        file.write_text(json.dumps(written, indent=1, ensure_ascii=False, default=str) + "\n")
        options.out.with_suffix(".md").write_text(tables(written))
        for row in figures:
            print(f"{case.name}: {row['what']} = {row['median']:.3f}  {row['values']}", flush=True)


def header(options: argparse.Namespace) -> dict[str, Any]:
    names = ("model", "chat", "quick", "repeats", "threads", "batch")
    packages = {"guardwrap": guardwrap, "torch": torch, "transformers": transformers}
    return {
        "settings": {name: shown(value) for name, value in vars(options).items() if name in names},
        "versions": {name: module.__version__ for name, module in packages.items()}
        | {"python": platform.python_version()},
        "machine": {"system": platform.system(), "cpu": cpu_name(), **accelerator(vars(options).get("device", "cpu"))},
        "cases": {},
    }


def shown(setting: Any) -> Any:
    """A setting as it is recorded: of a folder its name only, which is the same on every machine."""
    return Path(setting).name if isinstance(setting, str) and Path(setting).is_dir() else setting


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def accelerator(device: str) -> dict[str, str]:
    return {} if device == "cpu" else {"gpu": torch.cuda.get_device_name(device)}


def figure(what: str, values: Sequence[float], bound: Bound | None = None) -> dict[str, Any]:
    """A row of the first table."""
    median = statistics.median(values)
    return {
        "what": what,
        "target": str(bound) if bound else None,
        "median": round(median, 4),
        "values": [round(value, 4) for value in values],
        "met": bound.met(median) if bound else None,
    }


def in_turn(case: Case, loops: Sequence[str], options: argparse.Namespace) -> Runs:
    """Run the loops one after the other, every second time in reverse."""
    bench = Bench(case, source(case, options), options.device)
    bench.warm_up()
    runs: Runs = {loop: [] for loop in loops}
    for seed in range(case.repeats or options.repeats):
        for loop in loops if seed % 2 == 0 else reversed(loops):
            runs[loop].append(bench.measure(loop, seed))
    return runs


def source(case: Case, options: argparse.Namespace) -> str | None:
    name: str | None = options.model if case.model == "base" else options.chat
    return name


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def each(runs: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [run[key] for run in runs]


def paired(case: Paired, options: argparse.Namespace) -> tuple[Figures, Runs]:
    runs = in_turn(case, ("ours", *case.rivals), options)
    figures = []
    for rival in case.rivals:
        above, below = (rival, "ours") if case.target.sign == "≥" else ("ours", rival)
        for key in case.measures:
            values = ratios(each(runs[above], key), each(runs[below], key))
            bound = case.target if rival == case.rivals[0] else None
            figures.append(figure(f"{above} / {below}, {COUNTS[key][0]}", values, bound))
    return figures, runs


def per_attempt(case: PerAttempt, options: argparse.Namespace) -> tuple[Figures, Runs]:
    runs = in_turn(case, ("ours", "generate"), options)
    text = ratios(each(runs["generate"], "cpu_s"), each(runs["generate"], "attempts"))
    for run in runs["ours"]:
        run["begun"] = run["attempts"] + run["surplus_attempts"]
    decided, begun = (ratios(each(runs["ours"], "cpu_s"), each(runs["ours"], key)) for key in ("attempts", "begun"))
    return [
        figure("ours an attempt decided / generate a text, CPU s", ratios(decided, text), case.target),
        figure("ours an attempt begun / generate a text, CPU s", ratios(begun, text)),
    ], runs


def least(case: Least, options: argparse.Namespace) -> tuple[Figures, Runs]:
    runs = in_turn(case, ("ours",), options)
    for run in runs["ours"]:
        run["least"] = run["tokens"] - run["attempts"]
        run["drawn"] = run["least"] + run["surplus_tokens"] - run["surplus_attempts"]
    lower = each(runs["ours"], "least")
    return [
        figure("row-steps / least", ratios(each(runs["ours"], "row_steps"), lower), case.target),
        figure("drawn, needed or not / least", ratios(each(runs["ours"], "drawn"), lower)),
    ], runs


def busy(case: Busy, options: argparse.Namespace) -> tuple[Figures, Runs]:
    runs = in_turn(case, ("stream",), options)
    return [
        figure("attempts / slots until the tail", each(runs["stream"], "busy_attempts"), case.target),
        figure("rows / slots until the tail", each(runs["stream"], "busy_rows")),
    ], runs


def together(case: Together, options: argparse.Namespace) -> tuple[Figures, Runs]:
    runs = in_turn(case, ("together", "padded"), options)
    ours, theirs = runs["together"], runs["padded"]
    return [
        figure(
            "ours / generate, passes of the model", ratios(each(ours, "passes"), each(theirs, "passes")), case.target
        ),
        figure("ours / generate, CPU s", ratios(each(ours, "cpu_s"), each(theirs, "cpu_s"))),
    ], runs


def peak(case: Peak, options: argparse.Namespace) -> tuple[Figures, Runs]:
    runs: Runs = {"ours": [], "generate": []}
    for seed in range(case.repeats or options.repeats):
        for loop, measured in runs.items():
            command = [sys.executable, __file__, *options.given, "--peak", case.name, loop, str(seed)]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                said = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
                raise SystemExit(f"{case.name}, {loop}: {said[-1]}")
            measured.append(json.loads(process.stdout.splitlines()[-1]))
    ours, theirs = runs["ours"], runs["generate"]
    return [
        figure("ours / generate, whole process", ratios(each(ours, "peak_mb"), each(theirs, "peak_mb")), case.target),
        figure("ours / generate, above loading", ratios(each(ours, "above_mb"), each(theirs, "above_mb"))),
    ], runs


def peak_of(case: Case, loop: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run a loop once in this process, the engine's self-test included: what it needed."""
    load(source(case, options), case.dtype, options.device)
    loaded = peak_mb(options.device)
    measured = Bench(case, source(case, options), options.device).measure(loop, seed)
    most = peak_mb(options.device)
    return measured | {"peak_mb": round(most, 1), "above_mb": round(most - loaded, 1)}


def profile(case: Case, options: argparse.Namespace) -> str:
    """The operations that one run of a loop spends its time in, and its waits for the device for each pass."""
    bench = Bench(case, source(case, options), options.device)
    bench.warm_up()
    with torch.profiler.profile() as profiler:  # of all devices that there are
        measured = bench.measure(options.profile, 0)
    operations = profiler.key_averages()
    by = "self_cpu_time_total" if options.device == "cpu" else "self_device_time_total"
    counts = {each.key: each.count for each in operations}
    waits = ", ".join(f"{name} {counts[name] / measured['passes']:.2f}" for name in WAITS if name in counts)
    shown_operations = operations.table(sort_by=by, row_limit=25, max_name_column_width=45)
    return f"{shown_operations}waits for the device in each of {measured['passes']} passes: {waits or 'none'}"


WAITS = (
    "aten::_local_scalar_dense",  # .item(), also of a tensor of the CPU
    "aten::nonzero",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
)
"""Operations that wait for the device, by their names in profiles."""


MEASURE: Mapping[type[Case], Callable[[Any, argparse.Namespace], tuple[Figures, Runs]]] = {
    Paired: paired,
    PerAttempt: per_attempt,
    Peak: peak,
    Least: least,
    Busy: busy,
    Together: together,
}

COUNTS = {
    "cpu_s": ("CPU s", ".2f"),
    "wall_s": ("wall s", ".2f"),
    "attempts": ("attempts", ".0f"),
    "accepted": ("accepted", ".0f"),
    "passes": ("passes", ".0f"),
    "row_steps": ("row-steps", ".0f"),
    "attempt_steps": ("attempts' steps", ".0f"),
    "prompt_tokens": ("prompt tokens", ".0f"),
    "peak_mb": ("peak MB", ".0f"),
}
"""What the second table shows of the runs: titles and formats."""


def tables(written: Mapping[str, Any]) -> str:
    """Figures against their targets, and medians of what was counted."""
    machine = written["machine"]
    about = [
        *(machine[part] for part in ("gpu", "cpu") if part in machine),
        *(f"{name} {version}" for name, version in written["versions"].items()),
    ]
    about += [f"{name} {value}" for name, value in written["settings"].items() if value not in (None, False)]
    figures, counts = [], []
    for name, case in written["cases"].items():
        for row in case["figures"]:
            values = ", ".join(f"{value:.2f}" for value in row["values"])
            met = {True: "yes", False: "no", None: ""}[row["met"]]
            figures.append((name, row["what"], row["target"] or "", f"{row['median']:.2f}", values, met))
        for loop, runs in case["runs"].items():
            cells = [
                format(statistics.median(run[key] for run in runs), form) if key in runs[0] else ""
                for key, (_, form) in COUNTS.items()
            ]
            counts.append((name, loop, runs[0].get("mode", ""), *cells))
    return "\n".join(
        (
            "; ".join(about) + ".\n",
            table(("case", "figure", "target", "median", "all", "met"), figures),
            "Medians over the runs:\n",
            table(("case", "loop", "mode", *(title for title, _ in COUNTS.values())), counts),
        )
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
