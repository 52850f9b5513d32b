"""``guardwrap doctor``: show versions and the speed of a model, and suggest fixes."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from guardwrap.cli.options import Verbose
from guardwrap.cli.shared import load_generator
from guardwrap.errors import GuardwrapError

OLDEST, NEWEST = "5.20.2", "5.24.0"
"""Oldest and newest tested releases of transformers: the lower bound in pyproject.toml, and the version in the lock."""

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "peft", "regex", "jsonschema", "llguidance")
"""Packages whose versions affect how guardwrap works."""

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "local": ("gguf",),
    "metrics": ("sacrebleu",),
    "quant": ("bitsandbytes",),
    "plots": ("matplotlib",),
    "tensorboard": ("tensorboard",),
    "telemetry": ("opentelemetry-sdk",),
    "langchain": ("langchain-core",),
    "llamaindex": ("llama-index-core",),
    "haystack": ("haystack-ai",),
    "serve": ("fastapi", "uvicorn", "prometheus-client"),
    "endpoint": ("openai",),
    "sql": ("sqlglot",),
    "values": ("babel",),
    "html": ("tinyhtml5",),
    "language": ("py3langid",),
    "pii": ("phonenumbers", "python-stdnum"),
    "stem": ("snowballstemmer",),
    "lemma": ("simplemma",),
    "ray": ("ray",),
}
"""Optional extras, with the packages that each requires."""

TEXTS, TOKENS, ROUNDS = 8, 16, 1
"""Size of the speed test: texts per call, maximum tokens per text, and calls of guardwrap and of ``generate`` each."""


@dataclass
class Findings:
    """Prints findings, and collects advice."""

    advice: list[str] = field(default_factory=list)  # what to do, in the order of the findings

    def say(self, label: str, words: str, advice: str = "") -> None:
        """Print one line, and keep the advice that belongs to it."""
        typer.echo(f"{label:<14}{words}")
        if advice:
            self.advice.append(advice)


def doctor(
    model: Annotated[str, typer.Argument(help="A Hub id, a folder, or 'local' (the embedded model).")] = "local",
    verbose: Verbose = 0,
) -> None:
    """Print versions and the speed of a model, and what to do if something is missing or slow.

    Generates a few texts to compare the speed with that of the model's own `generate`. Exit code 0: nothing to do; 1:
    the last lines say what to do.
    """
    findings = Findings()
    _versions(findings)
    _extras(findings)
    try:
        _model(findings, model)
    except GuardwrapError as error:
        findings.say("model", "cannot be used", str(error))
    typer.echo("")
    for line in findings.advice:
        typer.secho(f"to do: {line}", fg="yellow")
    if findings.advice:
        raise typer.Exit(1)
    typer.echo("nothing to do")


def _versions(findings: Findings) -> None:
    from guardwrap import __version__

    findings.say("guardwrap", __version__)
    findings.say("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        installed = _installed(name)
        if installed is None:
            findings.say(name, "missing", f"install {name}: pip install {name}")
        elif name == "transformers":
            findings.say(name, *_of_transformers(installed))
        else:
            findings.say(name, installed)


def _of_transformers(installed: str) -> tuple[str, str]:
    """Return whether a release of transformers is in the tested range, and what to do if not."""
    from packaging.version import Version

    words = f"{installed} (tested: {OLDEST} to {NEWEST})"
    if Version(installed) < Version(OLDEST):
        return words, f"transformers {installed} is not supported: pip install 'transformers>={OLDEST},<6'"
    if Version(installed) > Version(NEWEST):
        return words, f"transformers {installed} is newer than the tested releases; check for an update of guardwrap"
    return words, ""


def _extras(findings: Findings) -> None:
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if _installed(name) is None]
        words = f"missing {', '.join(missing)}: pip install 'guardwrap[{extra}]'" if missing else "installed"
        findings.say(f"[{extra}]", words)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _model(findings: Findings, name: str) -> None:
    """Report the device, size, mode and speed of a model."""
    from guardwrap.constraints import Length

    guarded = load_generator(name, Length(min=0), batch_size=TEXTS)
    import torch

    model, device = guarded.model, guarded.model.device
    threads = f", {torch.get_num_threads()} of {os.cpu_count()} threads" if device.type == "cpu" else ""
    idle = torch.cuda.is_available() and device.type == "cpu"
    findings.say(
        "device", f"{device}{threads}", "a GPU is idle; load the model on it with device_map='auto'" if idle else ""
    )
    size = sum(parameter.numel() for parameter in model.parameters())
    dtype = str(model.dtype).removeprefix("torch.")
    findings.say("model", f"{type(model).__name__}, {size / 1e6:,.1f} million parameters, {dtype}")
    _speed(findings, guarded)


def _speed(findings: Findings, guarded: Any) -> None:
    from guardwrap.backends.refill.mode_selection import SLOWER, slower_because

    mode, ours, theirs = _measured(guarded)
    reason = slower_because(guarded.model)
    if reason is None:
        findings.say("mode", f"{mode!r}, the fastest for this model")
    else:
        findings.say(
            "mode",
            reason,
            f"the mode {mode!r} takes about {SLOWER[mode]:g} times as long as 'refill'; if guardwrap and "
            "transformers are up to date, report the model's class and the reason above",
        )
    findings.say(
        "speed", f"{ours:.0f} tokens/s; the model's generate: {theirs:.0f} tokens/s ({ours / theirs:.2f} times)"
    )


def _measured(guarded: Any) -> tuple[str, float, float]:
    """Return the mode, and tokens per second of guardwrap and of ``generate``, measured in alternation."""
    from time import perf_counter

    import torch

    settings: dict[str, Any] = {"do_sample": True, "num_return_sequences": TEXTS}
    prompt = "Once upon a time"
    inputs = guarded.tokenizer(prompt, return_tensors="pt").to(guarded.model.device)
    # The decoder of an encoder-decoder model starts with one start token, not with the prompt.
    begin = 1 if guarded.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    ends = _ends(guarded.model)
    tokens, seconds = {"ours": 0, "theirs": 0}, {"ours": 0.0, "theirs": 0.0}
    mode = ""
    for turn in range(ROUNDS + 1):
        settings["max_new_tokens"] = TOKENS if turn else 2  # the first turn is a warm-up
        started = perf_counter()
        (outcome,) = guarded.run(prompt, seed=turn, **settings)
        between = perf_counter()
        with torch.random.fork_rng():
            torch.manual_seed(turn)
            drawn = guarded.model.generate(**inputs, pad_token_id=next(iter(ends), 0), **settings)
        ended = perf_counter()
        mode = outcome.report.mode
        if turn:
            tokens["ours"] += outcome.report.usage.tokens
            tokens["theirs"] += sum(_length(row, ends) for row in drawn[:, begin:].tolist())
            seconds["ours"] += between - started
            seconds["theirs"] += ended - between
    return mode, tokens["ours"] / seconds["ours"], tokens["theirs"] / seconds["theirs"]


def _ends(model: Any) -> list[int]:
    from guardwrap.environment.transformers_internals import end_ids

    return end_ids(model.generation_config)


def _length(row: list[int], ends: list[int]) -> int:
    """Return the number of tokens of a text, up to its end token."""
    return next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
