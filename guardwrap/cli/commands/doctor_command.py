"""``guardwrap doctor``: show versions and the speed of a model, or what a server enforces, and suggest fixes."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, metadata, version
from time import perf_counter
from typing import Annotated, Any

import typer

from guardwrap.cli.options import Verbose
from guardwrap.cli.shared import load_generator
from guardwrap.errors import GuardwrapError, UsageError

NEWEST = "5.24.0"
"""Newest tested release of transformers: the version in requirements.lock. The oldest one is that of pyproject.toml."""

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "peft", "regex", "jsonschema", "llguidance")
"""Packages whose versions affect how guardwrap works."""

_OF_DEVELOPERS = ("docs", "paper", "test", "dev")
"""Extras that only a checkout needs."""

TEXTS, TOKENS = 8, 16
"""Size of the speed test: number of texts, and maximum tokens per text."""


class Findings:
    """Prints findings, and collects advice."""

    def __init__(self) -> None:
        self.advice: list[str] = []

    def say(self, label: str, words: str, advice: str = "") -> None:
        """Print one line, and keep the advice that belongs to it."""
        typer.echo(f"{label:<14}{words}")
        if advice:
            self.advice.append(advice)


def doctor(
    model: Annotated[str, typer.Argument(help="A Hub id, a folder, or 'local' (the embedded model).")] = "local",
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="Instead, try whether this OpenAI-compatible server enforces what it accepts.",
        ),
    ] = None,
    served: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The model's name on the server; default: the first one that it lists."),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="Requests for each field that is tried at a server.")] = 3,
    verbose: Verbose = 0,
) -> None:
    """Print versions and the speed of a model, and what to do if something is missing or slow.

    Generates a few texts to compare the speed with that of the model's own `generate`. Exit code 0: nothing to do; 1:
    the last lines say what to do.

    With --endpoint, sends requests on which a field that the server ignores shows, such as a schema for a prompt that
    asks for a poem. Exit code 0: the server enforces or refuses each field; 1: it ignores some; 2: it cannot be asked.
    """
    if endpoint is not None:
        raise typer.Exit(_enforced(endpoint, served, tries))
    if served is not None:
        raise UsageError("--model names a model of --endpoint; give a model to load as an argument: doctor MODEL")
    findings = Findings()
    _versions(findings)
    for extra, packages in required_by_extras().items():
        missing = [name for name in packages if _installed(name) is None]
        words = f"missing {', '.join(missing)}: pip install 'guardwrap[{extra}]'" if missing else "installed"
        findings.say(f"[{extra}]", words)
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


def _enforced(url: str, model: str | None, tries: int) -> int:
    """Print what a server does with each field, and return the exit code."""
    from guardwrap.cli.enforcement import Result, findings

    ignored = 0
    for finding in findings(url, model, tries):
        color = "red" if finding.result is Result.IGNORED else None
        count = f"{finding.tries} {'try' if finding.tries == 1 else 'tries'}"
        typer.secho(f"{finding.name:<30}{finding.result:<14}{count:<9}{finding.detail}".rstrip(), fg=color)
        ignored += finding.result is Result.IGNORED
    typer.echo(f"\n{ignored} fields are accepted and not enforced" if ignored else "\nno field is ignored")
    return 1 if ignored else 0


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


def _declared() -> Any:
    """Return what guardwrap's pyproject.toml declares, as it was installed."""
    return metadata("guardwrap")


def _of_transformers(installed: str) -> tuple[str, str]:
    """Return whether a release of transformers is in the tested range, and what to do if not."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    requirements = map(Requirement, _declared().get_all("Requires-Dist"))
    accepted = next(requirement.specifier for requirement in requirements if requirement.name == "transformers")
    words = f"{installed} (accepted: {accepted}; newest tested: {NEWEST})"
    if installed not in accepted:
        return words, f"transformers {installed} is not supported: pip install 'transformers{accepted}'"
    if Version(installed) > Version(NEWEST):
        return words, f"transformers {installed} is newer than the tested releases; check for an update of guardwrap"
    return words, ""


def required_by_extras() -> dict[str, list[str]]:
    """Return the extras for users, with the packages that each requires."""
    from packaging.requirements import Requirement

    declared = _declared()
    optional = [
        requirement for requirement in map(Requirement, declared.get_all("Requires-Dist")) if requirement.marker
    ]
    return {
        extra: [one.name for one in optional if one.marker is not None and one.marker.evaluate({"extra": extra})]
        for extra in declared.get_all("Provides-Extra")
        if extra not in _OF_DEVELOPERS
    }


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
    size = model.num_parameters()
    dtype = getattr(model, "precision", None) or str(model.dtype).removeprefix("torch.")
    # A step of the embedded model by AVX2: 3.4 times as long in bfloat16 as in float32, 2.8 in float16.
    emulated = device.type == "cpu" and model.dtype.itemsize == 2 and torch.backends.cpu.get_cpu_capability() == "AVX2"
    findings.say(
        "model",
        f"{type(model).__name__}, {size / 1e6:,.1f} million parameters, {dtype}",
        f"this processor emulates {dtype}, which takes about three times as long as float32; load the model with "
        "dtype='float32', or --dtype float32 on the command line"
        if emulated
        else "",
    )
    _speed(findings, guarded)


def _speed(findings: Findings, guarded: Any) -> None:
    """Report the mode, and compare the speed with that of the model's ``generate``."""
    import torch

    from guardwrap.engine.refill.mode_selection import SLOWER, slower_because
    from guardwrap.support.transformers_internals import end_ids

    prompt, model = "Once upon a time", guarded.model
    settings: dict[str, Any] = {"do_sample": True, "num_return_sequences": TEXTS}
    inputs = guarded.tokenizer(prompt, return_tensors="pt").to(model.device)
    # The decoder of an encoder-decoder model starts with one start token, not with the prompt.
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    ends = end_ids(model.generation_config)
    reports = []

    def ours(tokens: int) -> int:
        (outcome,) = guarded.run(prompt, seed=0, max_new_tokens=tokens, **settings)
        reports.append(outcome.report)
        return int(outcome.report.usage.tokens)

    def theirs(tokens: int) -> int:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            drawn = model.generate(**inputs, pad_token_id=next(iter(ends), 0), max_new_tokens=tokens, **settings)
        return sum(_length(row, ends) for row in drawn[:, start:].tolist())

    our_speed, their_speed = _tokens_per_second(ours), _tokens_per_second(theirs)
    mode, reason = reports[-1].mode, slower_because(model)
    if reason is None:
        findings.say("mode", f"{mode!r}, the fastest for this model")
    else:
        findings.say(
            "mode",
            reason,
            f"the mode {mode!r} takes about {SLOWER[mode]:g} times as long as 'refill'; if guardwrap and "
            "transformers are up to date, report the model's class and the reason above",
        )
    times = f"{our_speed / their_speed:.2f} times"
    findings.say("speed", f"{our_speed:.0f} tokens/s; the model's generate: {their_speed:.0f} tokens/s ({times})")


def _tokens_per_second(draw: Callable[[int], int]) -> float:
    draw(2)  # a warm-up
    start = perf_counter()
    return draw(TOKENS) / (perf_counter() - start)


def _length(row: list[int], ends: list[int]) -> int:
    """Return the number of tokens of a text, up to its end token."""
    return next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
