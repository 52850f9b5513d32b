"""What several commands do: read constraint files, load models, show texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from guardwrap.cli.flags import in_flags
from guardwrap.cli.signals import ends_at_once
from guardwrap.environment.files import PREFIX
from guardwrap.environment.process import keep_freed_memory, quieten_transformers
from guardwrap.errors import UsageError, nearest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from guardwrap.constraints.files.constraint_file import ConstraintFile
    from guardwrap.generator import GuardedGenerator
    from guardwrap.outcomes import Outcome
    from guardwrap.session.local_session import LocalSession


# OpenMP threads that busy-wait become ten times slower when other programs use the CPU. torch reads this on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_DTYPES = ("float32", "bfloat16", "float16")


def require_folder(out: Path) -> None:
    """Raise UsageError if the path exists and is not a folder."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"cannot write to {str(out)!r}: it is not a folder")


@contextmanager
def progress_bar(label: str, total: int, console: Console) -> Iterator[tuple[Progress, TaskID]]:
    """Show a progress bar with an ETA, which is removed at the end."""
    from rich import progress

    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    with progress.Progress(label, *columns, console=console, transient=True) as bar:
        yield bar, bar.add_task("", total=total)


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def fail(message: str, code: int) -> int:
    """Write one line to stderr and return the exit code."""
    with suppress(OSError):  # if stderr is closed, the exit code has to do
        typer.echo(f"guardwrap: {' '.join(message.splitlines())}", err=True)
    return code


def read_constraints(files: Sequence[str], *, allow_code: bool) -> ConstraintFile:
    """Read constraint files, all of which must hold."""
    with ends_at_once():
        from guardwrap.constraints.files.catalogue_files import catalogue_names
        from guardwrap.constraints.files.coerce import as_constraint_file
        from guardwrap.documents.validation import code_needs

    for name in files:
        if not Path(name).exists() and name in catalogue_names():
            raise UsageError(f"there is no file {name!r}; did you mean {PREFIX}{name}?")
    if allow_code and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with code_needs("; pass --allow-code if you trust the file"):
        return as_constraint_file(files[0] if len(files) == 1 else list(files), allow_code=allow_code)


def generator_of(model: str, endpoint: str | None, dtype: str | None = None) -> Any:
    """Return the generator to wrap: the name of a model, or an endpoint."""
    if dtype is not None and dtype not in _DTYPES:
        raise UsageError(f"--dtype {dtype!r} is not one of {', '.join(_DTYPES)}{nearest(dtype, _DTYPES)}")
    if endpoint is None:
        return model
    if dtype is not None:
        raise UsageError("--dtype does not work with --endpoint, whose server has loaded the model; leave it out")
    if model == "local":
        raise UsageError("--endpoint needs --model, the model's name on the server")
    from guardwrap.backends.endpoint.server import Endpoint

    return Endpoint(endpoint, model=model)


def load_generator(
    model: Any, constraints: Any, *, dtype: str | None = None, images: bool = False, **options: Any
) -> GuardedGenerator:
    """Create a ``GuardedGenerator``. This imports torch, which help, ``check`` and ``catalogue`` do not need."""
    with ends_at_once():
        from guardwrap.generator import GuardedGenerator
        from guardwrap.pipelines.loading import image_pipeline

    def make() -> GuardedGenerator:
        return GuardedGenerator(image_pipeline(model) if images else model, constraints, **options)

    return _loaded(make, dtype)


def load_session(model: str, constraints: Any, *, dtype: str | None = None, **options: Any) -> LocalSession:
    """Create a ``LocalSession``, for commands that draw attempts but return no texts. See ``load_generator``."""
    with ends_at_once():
        from guardwrap.session.base_session import SessionConfig
        from guardwrap.session.local_session import LocalSession

    return _loaded(lambda: LocalSession(model, constraints, SessionConfig(**options)), dtype)


_Loaded = TypeVar("_Loaded", "GuardedGenerator", "LocalSession")


def _loaded(make: Callable[[], _Loaded], dtype: str | None) -> _Loaded:
    """Load a model quietly, and convert it to a data type."""
    keep_freed_memory()
    quieten_transformers()
    loaded = make()
    if dtype is not None:
        import torch

        loaded.model.to(getattr(torch, dtype))
    return loaded


def printable_text(text: str) -> str:
    """Replace characters that control the terminal, such as those of escape sequences."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def in_one_line(text: str, width: int = 70) -> str:
    """Quote a text in one line, shortened to a width."""
    line = repr(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def show(console: Console, outcome: Outcome) -> None:
    """Print the texts and the report of an outcome to a terminal."""
    from rich.table import Table
    from rich.text import Text

    texts = Table.grid(padding=(0, 2, 0, 0))
    for number, text in enumerate(outcome.texts, start=1):
        texts.add_row(f"{number:3}.", Text(printable_text(text).strip(), style="green"))
    if outcome.texts:
        console.print(texts)
    if not outcome.ok:
        obstacle = outcome.report.obstacle
        why = "" if obstacle is None else f"{obstacle}; "
        console.print(Text(f"  {in_flags(why + outcome.report.advice())}", style="red"), soft_wrap=True)
    console.print(Text(str(outcome.report), style="dim"), soft_wrap=True)
