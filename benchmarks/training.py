"""Methods of training compared at the same number of samples: one command, one table, curves of KL(g‖a').

::

    python benchmarks/training.py examples/training/dragon.yaml --model MODEL --out FOLDER [--samples N] [--only NAME]

Each method has a folder of its own and goes on where it was. KL(g‖a') is measured on draws of g, which all share:
attempts of the model itself, drawn first (``gold_attempts`` of the file).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from guardwrap.cli.common import load_generator
from guardwrap.draws import Estimate, plain
from guardwrap.metrics import kl_gold_base
from guardwrap.metrics.intervals import mean_of
from guardwrap.training import Settings, read_settings, train
from guardwrap.training.trainer import Gold, Trainer

METHODS: dict[str, dict[str, Any]] = {
    "replay (ours)": {"method": "replay"},
    "warm-start DPG": {"method": "dpg"},
    "DPG": {"method": "dpg", "hints": []},
    "SFT on hints": {"method": "sft"},
    "SFT": {"method": "sft", "hints": []},
}


def main(
    config: Path,
    out: Annotated[Path, typer.Option()],
    model: Annotated[str | None, typer.Option()] = None,
    samples: Annotated[int | None, typer.Option()] = None,
    only: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Train with each method and write ``training.json``, ``training.md`` and ``training.png``."""
    torch.set_num_threads(1)
    changes = {name: value for name, value in {"model": model, "samples": samples}.items() if value is not None}
    settings, constraint = read_settings(config, changes=changes)
    guarded = load_generator(settings.model, constraint, dtype=settings.dtype, batch_size=settings.draw_batch_size)
    shared = Trainer(guarded, settings, out / "shared")
    shared.find_gold()
    assert shared.gold is not None, "the file needs gold_attempts"
    prompts = len(settings.prompts)
    itself = {
        "acceptance_after": shared.gold.acceptance(prompts),
        "kl_gold_proposal": mean_of(
            [kl_gold_base(count, shared.gold.drawn.attempts) for count in shared.gold.drawn.accepted(prompts)]
        ),
    }
    found: dict[str, Any] = {"model itself": {"curve": [], "figures": itself}}
    for number, template in enumerate(settings.hints, start=1):
        found[f"CAP {number}"] = {"template": template, "curve": [], "figures": cap(shared, shared.gold, template)}
    for name, method in METHODS.items():
        if only and name not in only:
            continue
        folder = out / name.replace(" ", "-")
        shutil.copytree(out / "shared" / "gold", folder / "gold", dirs_exist_ok=True)
        changed = Settings.model_validate({**settings.model_dump(), **method})
        trained = train(guarded, changed, folder, tick=lambda row, name=name: print(f"{name}: {row}", flush=True))
        found[name] = {"curve": trained.curve, "figures": trained.figures, "samples": trained.samples}
        write(out, found)
    write(out, found)


def cap(trainer: Trainer, gold: Gold, template: str) -> dict[str, Estimate]:
    """Measure a constraint-aware prompt on draws of g."""
    samples = gold.drawn.samples
    log_cap = trainer.task.log_probabilities(trainer.task.model, samples, trainer.task.hinted(template))
    kl = gold.kl(log_cap, len(trainer.settings.prompts))
    return {} if kl is None else {"kl_gold_proposal": kl}


def write(out: Path, found: Mapping[str, Any]) -> None:
    """Write what was found so far."""
    (out / "training.json").write_text(json.dumps(plain(found), indent=1, ensure_ascii=False) + "\n")
    lines = ["| method | samples | AR | KL(g‖a') [nats] | KL(g‖g') [nats] |", "|---|---|---|---|---|"]
    for name, what in found.items():
        figures = [what["figures"].get(key) for key in ("acceptance_after", "kl_gold_proposal", "kl_gold_guarded")]
        cells = ["" if figure is None else str(figure) for figure in figures]
        lines.append(f"| {name} | {what.get('samples', '')} | {' | '.join(cells)} |")
    (out / "training.md").write_text("\n".join(lines) + "\n")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, what in found.items():
        points = [(row.samples, row.kl_gold) for row in what["curve"] if row.kl_gold is not None]
        if points:
            (line,) = axes.plot([x for x, _ in points], [kl.value for _, kl in points], marker="o", ms=3, label=name)
            low, high = [kl.low for _, kl in points], [kl.high for _, kl in points]
            axes.fill_between([x for x, _ in points], low, high, alpha=0.15, color=line.get_color())
        elif (kl := what["figures"].get("kl_gold_proposal")) is not None:
            axes.axhline(kl.value, ls=":", lw=1, color="grey")
            axes.annotate(name, (0, kl.value), fontsize=7, color="grey", va="bottom")
    axes.set(xlabel="training samples", ylabel="KL(g‖a') [nats], on draws of g", ylim=(0, None))
    axes.legend()
    FigureCanvasAgg(figure).print_png(str(out / "training.png"))


if __name__ == "__main__":
    typer.run(main)
