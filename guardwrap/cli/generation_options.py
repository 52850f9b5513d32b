"""Options of the commands that draw texts, ``generate`` and ``plan``, as Typer reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AttemptLimit",
    "BatchSize",
    "Chat",
    "ComputedTokensLimit",
    "Count",
    "JSONLines",
    "MaxNewTokens",
    "Output",
    "Overwrite",
    "Parquet",
    "PromptFile",
    "Quiet",
    "RandomSeed",
    "RayAddress",
    "Resume",
    "RetryFailed",
    "SamplerName",
    "SecondsLimit",
    "Temperature",
    "TokenLimit",
    "TopK",
    "TopP",
    "WorkerGPUs",
    "Workers",
]

_PROMPTS, _SETTINGS, _BUDGET, _OUTPUT, _RAY = "Prompts", "Generation", "Budget for each prompt", "Output", "Ray"

PromptFile = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="PATH", rich_help_panel=_PROMPTS, help="Prompts, one a line; - is stdin."),
]
JSONLines = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=_PROMPTS,
        help='Prompts as JSON Lines with "prompt" or "messages"; "constraint", "sampler", "budget" and "seed" are '
        "the line's own, other fields are copied. - is stdin.",
    ),
]
Parquet = Annotated[
    str | None,
    typer.Option(metavar="PATH", rich_help_panel=_PROMPTS, help="The same as rows of a Parquet file; with --ray."),
]
Chat = Annotated[bool, typer.Option("--chat", rich_help_panel=_PROMPTS, help="Make each plain prompt a user message.")]
SamplerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="rejection, qrs or imh, or one with options: 'qrs: {target_tvd: 0.05}'; if left out the constraint "
        "file's, or rejection.",
    ),
]
Count = Annotated[
    int, typer.Option("-n", "--num-return-sequences", min=1, rich_help_panel=_SETTINGS, help="Texts a prompt.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=_SETTINGS, help="Longest text; if left out the model's own limit, or 256."),
]
Temperature = Annotated[
    float | None, typer.Option(rich_help_panel=_SETTINGS, help="If left out the model's own, or 0.7.")
]
TopP = Annotated[
    float | None, typer.Option(rich_help_panel=_SETTINGS, help="Sample from the likeliest tokens of this mass.")
]
TopK = Annotated[int | None, typer.Option(rich_help_panel=_SETTINGS, help="Sample from this many likeliest tokens.")]
RandomSeed = Annotated[
    int | None,
    typer.Option(rich_help_panel=_SETTINGS, help="The same seed gives the same texts; if left out a new one."),
]
BatchSize = Annotated[
    int | None, typer.Option(rich_help_panel=_SETTINGS, help="Attempts side by side, at most; if left out 32.")
]
AttemptLimit = Annotated[
    int | None,
    typer.Option(rich_help_panel=_BUDGET, help="Attempts; if left out the constraint file's limit, or 1000."),
]
TokenLimit = Annotated[int | None, typer.Option(rich_help_panel=_BUDGET, help="Tokens over all attempts.")]
ComputedTokensLimit = Annotated[
    int | None,
    typer.Option(rich_help_panel=_BUDGET, help="Tokens that the model is run for; what is known is free."),
]
SecondsLimit = Annotated[
    float | None, typer.Option(rich_help_panel=_BUDGET, help="Seconds; attempts under way run to their end.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        rich_help_panel=_OUTPUT,
        help="JSON Lines file, instead of stdout; with --ray a folder.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", rich_help_panel=_OUTPUT, help="Go on where the output file of an interrupted run ends."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", rich_help_panel=_OUTPUT, help="Replace an output file that exists.")
]
RetryFailed = Annotated[
    bool,
    typer.Option(
        "--retry-failed",
        rich_help_panel=_OUTPUT,
        help="With --resume: first draw again for the prompts that did not get all their texts, with another seed. "
        "The budget may be another one; what is said of it here replaces what lines say of their own.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=_RAY,
        help="Share the rows of --jsonl or --parquet among workers of Ray: 'auto' starts one here, HOST:PORT joins "
        "a cluster. Any number of workers gives the same texts.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=_RAY, help="Workers, each with a model and a CPU; if left out 1."),
]
WorkerGPUs = Annotated[
    float | None, typer.Option(min=0, rich_help_panel=_RAY, help="GPUs of each worker; if left out none.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Do not say on stderr how far it is.")
]
