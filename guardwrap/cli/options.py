"""Typer options that several commands have."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer


def _set_verbosity(count: int) -> int:
    if count:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logger = logging.getLogger("guardwrap")
        logger.handlers = [handler]
        logger.setLevel(logging.INFO if count == 1 else logging.DEBUG)
    return count


Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        callback=_set_verbosity,
        help="Log to stderr, such as the result of each prompt; -vv also logs rejected attempts with their texts.",
    ),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let constraint files name Python functions, which are imported (also from the current folder) and run. "
        "Use it only for files that you trust.",
    ),
]
Model = Annotated[
    str,
    typer.Option("--model", "-m", help="A Hub id, a folder, or 'local' (the embedded model)."),
]

Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Data type of the model: float32, bfloat16 or float16; default: that of its stored weights.",
    ),
]

Server = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Draw from an OpenAI-compatible server, e.g. http://localhost:8000/v1. --model is the model's name there. "
        "The API key is read from the environment variable OPENAI_API_KEY.",
    ),
]

Prompts = Annotated[
    list[str] | None, typer.Argument(show_default=False, help="Prompts; - reads one per line from stdin.")
]
Constraints = Annotated[
    list[str],
    typer.Option(
        "--constraints",
        "-c",
        metavar="FILE",
        help="A constraint file, or catalogue:NAME. May be repeated; all must hold.",
    ),
]
Proposal = Annotated[
    str | None,
    typer.Option(metavar="TEMPLATE", help="Draw attempts with this prompt; {prompt} is replaced by the original one."),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Draw attempts from this adapter: a folder, a Hub id, or catalogue:NAME; with --endpoint, its name there.",
    ),
]

Masked = Annotated[
    bool,
    typer.Option(
        "--masked",
        help="Never draw a token that the constraint rules out; --sampler qrs restores the model's own distribution.",
    ),
]

Twisted = Annotated[
    bool,
    typer.Option(
        "--twisted",
        help="Weigh tokens by how likely they are to lead to a satisfying text, as learned before the first prompt.",
    ),
]

NoProposal = Annotated[
    bool,
    typer.Option("--no-proposal", help="Draw from the model itself, even if the constraint file names something else."),
]

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", show_default=False, help="Folder for the results.")]
OtherModel = Annotated[
    str | None, typer.Option("--model", "-m", help="A Hub id, a folder, or 'local'; default: as in the file.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Random seed; default: as in the file, or 0.")]


_PROMPTS, _SETTINGS, _BUDGET, _OUTPUT, _RAY = "Prompts", "Generation", "Budget for each prompt", "Output", "Ray"

PromptFile = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", metavar="PATH", rich_help_panel=_PROMPTS, help="A file with one prompt per line; - is stdin."
    ),
]
JSONLines = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=_PROMPTS,
        help='A JSON Lines file; - is stdin. Each line has "prompt" or "messages", and may have "constraint", '
        '"sampler", "budget" and "seed" for this prompt. Other fields are copied to the output.',
    ),
]
Parquet = Annotated[
    str | None,
    typer.Option(metavar="PATH", rich_help_panel=_PROMPTS, help="A Parquet file with such rows; requires --ray."),
]
Chat = Annotated[
    bool, typer.Option("--chat", rich_help_panel=_PROMPTS, help="Send each plain prompt as a user message.")
]
SamplerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="rejection, qrs or imh, or one with options: 'qrs: {target_tvd: 0.05}'; default: the one in the "
        "constraint file, or rejection.",
    ),
]
Count = Annotated[
    int, typer.Option("-n", "--num-return-sequences", min=1, rich_help_panel=_SETTINGS, help="Texts per prompt.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=_SETTINGS, help="Maximum tokens per text; default: the model's, or 256."),
]
Temperature = Annotated[float | None, typer.Option(rich_help_panel=_SETTINGS, help="Default: the model's own, or 0.7.")]
TopP = Annotated[
    float | None,
    typer.Option(rich_help_panel=_SETTINGS, help="Sample from the most likely tokens with this total probability."),
]
TopK = Annotated[
    int | None, typer.Option(rich_help_panel=_SETTINGS, help="Sample from this many of the most likely tokens.")
]
RandomSeed = Annotated[
    int | None,
    typer.Option(rich_help_panel=_SETTINGS, help="The same seed gives the same texts; default: a new one."),
]
BatchSize = Annotated[
    int | None, typer.Option(rich_help_panel=_SETTINGS, help="Maximum attempts in one batch; default: 32.")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        rich_help_panel=_SETTINGS,
        help="Compute each attempt alone, so that a seed gives the same texts in half precision too. Slow.",
    ),
]
AttemptLimit = Annotated[
    int | None,
    typer.Option(rich_help_panel=_BUDGET, help="Attempts; default: the limit in the constraint file, or 1000."),
]
TokenLimit = Annotated[int | None, typer.Option(rich_help_panel=_BUDGET, help="Tokens of all attempts.")]
ComputedTokensLimit = Annotated[
    int | None,
    typer.Option(rich_help_panel=_BUDGET, help="Tokens that the model computes; cached ones are free."),
]
SecondsLimit = Annotated[
    float | None, typer.Option(rich_help_panel=_BUDGET, help="Seconds; attempts that have begun are completed.")
]
TimeoutLimit = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        rich_help_panel=_BUDGET,
        help="Seconds for the whole run, after which running attempts are dropped. This favors short texts, and the "
        "report says so.",
    ),
]
RepairTurns = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Chats only: after the budget is spent, show the model the rejected answer and the reasons, up to N "
        "times, each with the same budget; or with a message: '{max_turns: N, message: \"No: {reasons}\"}'. 0: none, "
        "even if the constraint file has some.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        rich_help_panel=_OUTPUT,
        help="Write a JSON Lines file instead of stdout; with --ray, a folder.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", rich_help_panel=_OUTPUT, help="Continue an interrupted run from its output file."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", rich_help_panel=_OUTPUT, help="Replace an existing output file.")
]
RetryFailed = Annotated[
    bool,
    typer.Option(
        "--retry-failed",
        rich_help_panel=_OUTPUT,
        help="With --resume: first retry the prompts that did not get all their texts, with another seed. The budget "
        "may differ; limits given here replace those of the input lines.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=_RAY,
        help="Distribute the rows of --jsonl or --parquet over Ray workers: 'auto' starts Ray on this machine, "
        "HOST:PORT joins a cluster. The texts do not depend on the number of workers.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=_RAY, help="Number of workers, each with a model and a CPU; default: 1."),
]
WorkerGPUs = Annotated[float | None, typer.Option(min=0, rich_help_panel=_RAY, help="GPUs per worker; default: none.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Do not show progress on stderr.")]
ShowRejected = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        show_default=False,
        rich_help_panel=_OUTPUT,
        help="Print up to N rejected attempts per prompt to stderr, with their texts and what is wrong with them.",
    ),
]
