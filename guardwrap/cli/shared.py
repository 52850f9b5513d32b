"""What several commands need."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from guardwrap.cli.flags import in_flags
from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.files.catalogue_files import catalogue_names
from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.environment.package_data import PREFIX
from guardwrap.environment.process import keep_freed_memory, quieten_transformers
from guardwrap.errors import SpecError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from guardwrap.generator import GuardedGenerator
    from guardwrap.outcomes import Outcome
    from guardwrap.session.local_session import LocalSession

__all__ = [
    "Adapter",
    "AllowCode",
    "Constraints",
    "Model",
    "NoProposal",
    "OtherModel",
    "Out",
    "Prompts",
    "Proposal",
    "Seed",
    "Server",
    "Verbose",
    "fail",
    "generator_of",
    "in_one_line",
    "known",
    "load_generator",
    "load_session",
    "printable_text",
    "progress_bar",
    "read_constraints",
    "require_folder",
    "show",
]


# Threads that wait for each other in a loop slow down ten times where other programs want the processor too. Read by
# torch when it is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


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
        help="Log to stderr; -vv logs more, which may include texts that were rejected.",
    ),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let constraint files name Python functions, which are imported (from the current folder too) and run. "
        "For files you trust.",
    ),
]
Model = Annotated[
    str,
    typer.Option("--model", "-m", help="A Hub id, a folder, or 'local': the embedded model."),
]

Server = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Draw from an OpenAI-compatible server, e.g. http://localhost:8000/v1; --model is the model's name there, "
        "and its key is OPENAI_API_KEY of the environment.",
    ),
]

Prompts = Annotated[
    list[str] | None, typer.Argument(show_default=False, help="Prompts; - reads them from stdin, one a line.")
]
Constraints = Annotated[
    list[str],
    typer.Option(
        "--constraints", "-c", metavar="FILE", help="A constraint file, or catalogue:NAME. Several must all hold."
    ),
]
Proposal = Annotated[
    str | None,
    typer.Option(metavar="TEMPLATE", help="Draw attempts from this prompt; {prompt} stands for the user's own."),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Draw attempts from this adapter: its folder, Hub id, or catalogue:NAME; with --endpoint, its name there.",
    ),
]

Masked = Annotated[
    bool,
    typer.Option(
        "--masked",
        help="Never draw a token that the constraint rules out; --sampler qrs takes it back to the model's law.",
    ),
]

NoProposal = Annotated[
    bool,
    typer.Option("--no-proposal", help="Draw from the model itself, whatever the constraint file draws from."),
]

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", show_default=False, help="For what is written.")]
OtherModel = Annotated[
    str | None, typer.Option("--model", "-m", help="A Hub id, a folder, or 'local'; if left out as in the file.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="If left out as in the file, or 0.")]


def require_folder(out: Path) -> None:
    """Raise UsageError where something else stands in a folder's place."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"cannot write to {str(out)!r}: it is no folder")


@contextmanager
def progress_bar(label: str, total: int, console: Console) -> Iterator[tuple[Progress, TaskID]]:
    """Show how much is done and when all will be; it vanishes at the end."""
    from rich import progress

    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    with progress.Progress(label, *columns, console=console, transient=True) as bar:
        yield bar, bar.add_task("", total=total)


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given; what is left out is decided elsewhere."""
    return {name: value for name, value in options.items() if value is not None}


def fail(message: str, code: int) -> int:
    """Write one line to stderr and return the exit code."""
    with suppress(OSError):  # the code says it too
        typer.echo(f"guardwrap: {' '.join(message.splitlines())}", err=True)
    return code


def read_constraints(given: Sequence[str], *, allow_code: bool) -> ConstraintFile:
    """Read constraint files, all of which must hold.

    Parameters
    ----------
    given
        Paths, or ``catalogue:NAME``.
    allow_code
        Whether they may name Python functions.

    Raises
    ------
    GuardwrapError
        If one cannot be read or is not well formed.
    """
    for name in given:
        if not Path(name).exists() and name in catalogue_names():
            raise UsageError(f"there is no file {name!r}; did you mean {PREFIX}{name}?")
    if allow_code and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return as_constraint_file(given[0] if len(given) == 1 else list(given), allow_code=allow_code)
    except SpecError as error:
        raise SpecError(str(error).replace("allow_code=True", "--allow-code")) from None


def generator_of(model: str, endpoint: str | None) -> Any:
    """Return what a wrapper draws from: a model's name, or an endpoint.

    Raises
    ------
    UsageError
        If an endpoint is given without a model's name.
    """
    if endpoint is None:
        return model
    if model == "local":
        raise UsageError("--endpoint needs --model, the model's name on the server")
    from guardwrap.backends.endpoint.server import Endpoint

    return Endpoint(endpoint, model=model)


def load_generator(model: Any, constraints: Any, *, dtype: str | None = None, **options: Any) -> GuardedGenerator:
    """Make a ``GuardedGenerator``. torch is first imported here: help, ``check`` and ``catalogue`` start without it.

    Parameters
    ----------
    model, constraints, **options
        As it takes them.
    dtype
        What the model is to compute in; None is what its weights are stored in.
    """
    with ends_at_once():
        from guardwrap.generator import GuardedGenerator

    return _loaded(lambda: GuardedGenerator(model, constraints, **options), dtype)


def load_session(model: str, constraints: Any, *, dtype: str | None = None, **options: Any) -> LocalSession:
    """Make a ``LocalSession``, for what draws attempts and returns no texts; parameters as of ``load_generator``."""
    with ends_at_once():
        from guardwrap.session.base_session import SessionConfig
        from guardwrap.session.local_session import LocalSession

    return _loaded(lambda: LocalSession(model, constraints, SessionConfig(**options)), dtype)


_Loaded = TypeVar("_Loaded", "GuardedGenerator", "LocalSession")


def _loaded(make: Callable[[], _Loaded], dtype: str | None) -> _Loaded:
    """Load a model as commands want it."""
    keep_freed_memory()
    quieten_transformers()
    made = make()
    if dtype is not None:
        import torch

        made.model.to(getattr(torch, dtype))
    return made


def printable_text(text: str) -> str:
    """Replace what a terminal would obey instead of show, such as escape sequences."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def in_one_line(text: str, width: int = 70) -> str:
    """Quote a text for a list: in one line, shortened."""
    line = repr(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def show(console: Console, outcome: Outcome) -> None:
    """Print an outcome's texts and what they cost, for people."""
    from rich.table import Table
    from rich.text import Text

    texts = Table.grid(padding=(0, 2, 0, 0))
    for number, text in enumerate(outcome.texts, start=1):
        texts.add_row(f"{number:3}.", Text(printable_text(text).strip(), style="green"))
    if outcome.texts:
        console.print(texts)
    if not outcome.ok:
        console.print(Text(f"  {in_flags(outcome.report.advice())}", style="red"), soft_wrap=True)
    console.print(Text(str(outcome.report), style="dim"), soft_wrap=True)
