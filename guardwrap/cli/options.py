"""Typer options of several commands, and those of ``guardwrap generate`` and ``plan`` as dataclasses."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from guardwrap.cli.shared import known
from guardwrap.errors import UsageError

_Options = TypeVar("_Options")


def command_of(options: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Make a command of a function that takes a dataclass, whose fields become the command's arguments and options."""
    annotations = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=annotations[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[[_Options], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(options(**values))

        vars(command)["__signature__"] = Signature(parameters)
        return command

    return decorate


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
Model = Annotated[str, typer.Option("--model", "-m", help="A Hub id, a folder, or 'local' (the embedded model).")]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Data type of the model: float32, bfloat16 or float16; default: that of its stored weights.",
    ),
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
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", show_default=False, help="Folder for the results.")]
OtherModel = Annotated[
    str | None, typer.Option("--model", "-m", help="A Hub id, a folder, or 'local'; default: as in the file.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Random seed; default: as in the file, or 0.")]

_prompt, _setting, _limit, _output, _ray = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Prompts", "Generation", "Budget for each prompt", "Output", "Ray")
)


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Options of commands that draw texts for prompts."""

    prompts: Annotated[
        list[str] | None, typer.Argument(show_default=False, help="Prompts; - reads one per line from stdin.")
    ] = None
    constraints: Constraints
    file: Annotated[
        str | None, _prompt("--file", "-f", metavar="PATH", help="A file with one prompt per line; - is stdin.")
    ] = None
    jsonl: Annotated[
        str | None,
        _prompt(
            metavar="PATH",
            help='A JSON Lines file; - is stdin. Each line has "prompt" or "messages", and may have "constraint", '
            '"sampler", "budget" and "seed" for this prompt. Other fields are copied to the output.',
        ),
    ] = None
    chat: Annotated[bool, _prompt("--chat", help="Send each plain prompt as a user message.")] = False
    model: Model = "local"
    dtype: Dtype = None
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Draw from an OpenAI-compatible server, e.g. http://localhost:8000/v1. --model is the model's name "
            "there. The API key is read from the environment variable OPENAI_API_KEY.",
        ),
    ] = None
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="rejection, qrs or imh, or one with options: 'qrs: {target_tvd: 0.05}'; default: the one in the "
            "constraint file, or rejection.",
        ),
    ] = None
    proposal: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE", help="Draw attempts with this prompt; {prompt} is replaced by the original one."
        ),
    ] = None
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Draw attempts from this adapter: a folder, a Hub id, or catalogue:NAME; with --endpoint, its name "
            "there.",
        ),
    ] = None
    masked: Annotated[
        bool,
        typer.Option(
            "--masked",
            help="Never draw a token that the constraint rules out; --sampler qrs restores the model's own "
            "distribution.",
        ),
    ] = False
    twisted: Annotated[
        bool,
        typer.Option(
            "--twisted",
            help="Weigh tokens by how likely they are to lead to a satisfying text, as learned before the first "
            "prompt.",
        ),
    ] = False
    no_proposal: Annotated[
        bool,
        typer.Option(
            "--no-proposal", help="Draw from the model itself, even if the constraint file names something else."
        ),
    ] = False
    count: Annotated[int, _setting("-n", "--num-return-sequences", min=1, help="Texts per prompt.")] = 1
    max_new_tokens: Annotated[
        int | None, _setting(min=1, help="Maximum tokens per text; default: the model's, or 256.")
    ] = None
    temperature: Annotated[float | None, _setting(help="Default: the model's own, or 0.7.")] = None
    top_p: Annotated[float | None, _setting(help="Sample from the most likely tokens with this total probability.")] = (
        None
    )
    top_k: Annotated[int | None, _setting(help="Sample from this many of the most likely tokens.")] = None
    seed: Annotated[int | None, _setting(help="The same seed gives the same texts; default: a new one.")] = None
    batch_size: Annotated[int | None, _setting(help="Maximum attempts in one batch; default: 32.")] = None
    max_attempts: Annotated[
        int | None, _limit(help="Attempts; default: the limit in the constraint file, or 1000.")
    ] = None
    max_tokens: Annotated[int | None, _limit(help="Tokens of all attempts.")] = None
    max_computed_tokens: Annotated[int | None, _limit(help="Tokens that the model computes; cached ones are free.")] = (
        None
    )
    max_seconds: Annotated[float | None, _limit(help="Seconds; attempts that have begun are completed.")] = None
    allow_code: AllowCode = False
    verbose: Verbose = 0

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that replace those of the constraint file."""
        names = ("max_attempts", "max_tokens", "max_computed_tokens", "max_seconds")
        return known({name: getattr(self, name) for name in names})

    @property
    def generation(self) -> dict[str, Any]:
        """Arguments of the pipeline."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k")
        return known({name: getattr(self, name) for name in names})

    @property
    def used_proposals(self) -> list[str]:
        """The used options that say what attempts are drawn from."""
        used = {
            "--proposal": self.proposal is not None,
            "--masked": self.masked,
            "--twisted": self.twisted,
            "--adapter": self.adapter is not None,
        }
        return [option for option, is_used in used.items() if is_used]


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(DrawOptions):
    """Options of ``guardwrap generate``."""

    parquet: Annotated[str | None, _prompt(metavar="PATH", help="A Parquet file with such rows; requires --ray.")] = (
        None
    )
    deterministic: Annotated[
        bool,
        _setting(
            "--deterministic",
            help="Compute each attempt alone, so that a seed gives the same texts in half precision too. Slow.",
        ),
    ] = False
    timeout: Annotated[
        float | None,
        _limit(
            "--timeout",
            metavar="SECONDS",
            help="Seconds for the whole run, after which running attempts are dropped. This favors short texts, and "
            "the report says so.",
        ),
    ] = None
    repair: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Chats only: after the budget is spent, show the model the rejected answer and the reasons, up to N "
            "times, each with the same budget; or with a message: '{max_turns: N, message: \"No: {reasons}\"}'. 0: "
            "none, even if the constraint file has some.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        _output(
            "--output", "-o", metavar="PATH", help="Write a JSON Lines file instead of stdout; with --ray, a folder."
        ),
    ] = None
    resume: Annotated[bool, _output("--resume", help="Continue an interrupted run from its output file.")] = False
    overwrite: Annotated[bool, _output("--overwrite", help="Replace an existing output file.")] = False
    retry_failed: Annotated[
        bool,
        _output(
            "--retry-failed",
            help="With --resume: first retry the prompts that did not get all their texts, with another seed. The "
            "budget may differ; limits given here replace those of the input lines.",
        ),
    ] = False
    ray: Annotated[
        str | None,
        _ray(
            metavar="ADDRESS",
            help="Distribute the rows of --jsonl or --parquet over Ray workers: 'auto' starts Ray on this machine, "
            "HOST:PORT joins a cluster. The texts do not depend on the number of workers.",
        ),
    ] = None
    workers: Annotated[int | None, _ray(min=1, help="Number of workers, each with a model and a CPU; default: 1.")] = (
        None
    )
    worker_gpus: Annotated[float | None, _ray(min=0, help="GPUs per worker; default: none.")] = None
    quiet: Annotated[bool, _output("--quiet", "-q", help="Do not show progress on stderr.")] = False
    show_rejected: Annotated[
        int,
        _output(
            metavar="N",
            min=0,
            show_default=False,
            help="Print up to N rejected attempts per prompt to stderr, with their texts and what is wrong with them.",
        ),
    ] = 0
    keep_rejected: Annotated[
        int,
        _output(
            metavar="N",
            min=0,
            show_default=False,
            help='Keep up to N rejected texts per prompt in each line, as "rejected". Attempts are drawn to their end '
            "even if they can no longer pass.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        if self.retry_failed and not self.resume:
            raise UsageError("--retry-failed retries lines of an output file; give --resume, and this file as --output")
        if self.resume and self.output is None:
            raise UsageError("--resume needs --output, the file to continue")

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that replace those of the constraint file."""
        return super().limits | known({"timeout": self.timeout})
