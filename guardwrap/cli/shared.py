"""What several commands do: read constraint files, load models, end with a message, show texts and advice."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from guardwrap.cli.signals import ends_in_order, exit_of
from guardwrap.errors import UsageError
from guardwrap.support.files import PREFIX
from guardwrap.support.process import keep_freed_memory, quieten_transformers

if TYPE_CHECKING:
    from rich.console import Console

    from guardwrap.constraints.files.constraint_file import ConstraintFile
    from guardwrap.generator import GuardedGenerator
    from guardwrap.outcomes import Outcome


# OpenMP threads that busy-wait become ten times slower when other programs use the CPU. torch reads this on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def require_folder(out: Path) -> None:
    """Raise UsageError if the path exists and is not a folder."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"cannot write to {str(out)!r}: it is not a folder")


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def fail(message: str, code: int) -> int:
    """Write one line to stderr and return the exit code."""
    with suppress(OSError):  # if stderr is closed, the exit code has to do
        typer.echo(f"guardwrap: {' '.join(message.splitlines())}", err=True)
    return code


@contextmanager
def interruptible(state: Callable[[], str]) -> Iterator[None]:
    """Exit after Ctrl-C or SIGTERM with a message about what is done, which ``state`` returns."""
    try:
        with ends_in_order():
            yield
    except KeyboardInterrupt as interruption:
        word, code = exit_of(interruption)
        raise typer.Exit(fail(f"{word}: {state()}", code)) from None


def read_constraints(files: Sequence[str], *, allow_code: bool) -> ConstraintFile:
    """Read constraint files, all of which must hold."""
    from guardwrap.constraints.files.constraint_data import catalogue_names
    from guardwrap.constraints.files.constraint_file import as_constraint_file
    from guardwrap.support.validation import code_needs

    for name in files:
        if not Path(name).exists() and name in catalogue_names():
            raise UsageError(f"there is no file {name!r}; did you mean {PREFIX}{name}?")
    if allow_code and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with code_needs("; pass --allow-code if you trust the file"):
        return as_constraint_file(files[0] if len(files) == 1 else list(files), allow_code=allow_code)


def load_generator(
    model: Any, constraints: Any, *, dtype: str | None = None, images: bool = False, **options: Any
) -> GuardedGenerator:
    """Create a ``GuardedGenerator``. This imports torch, which help, ``check`` and ``catalogue`` do not need."""
    from guardwrap.generator import GuardedGenerator
    from guardwrap.models.loading import image_pipeline

    keep_freed_memory()
    quieten_transformers()
    guarded = GuardedGenerator(image_pipeline(model) if images else model, constraints, **options)
    if dtype is not None:
        import torch

        guarded.model.to(getattr(torch, dtype))
    return guarded


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


_SPELLED: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"Repair\(\) continues a chat \(a list of messages\), and this prompt is none: .*": (
        'a repair turn continues a chat, and this prompt is plain text: add --chat, or give "messages" with --jsonl, '
        "or leave out the turns with --repair 0"
    ),
    r"\bplan\(max_seconds=([\d.]+)\)": r"--plan-seconds \1",
    r"sampler='(\w+)'": r"--sampler \1",
    r"proposal=Prompt\(\.\.\.\)": "--proposal '... {prompt}'",
    r"Budget\(([^)]*)\)": lambda budget: budget[1].replace(",", ""),
    r"\b(max_\w+|pilot|top_k|top_p)=(\d+(?:\.\d+)?)": lambda limit: f"--{limit[1].replace('_', '-')} {limit[2]}",
    r"(?<!\w)(?<!ended by )(top_k|top_p|max_(?:\w+_)?(?:tokens|attempts|seconds))(?![\w=])": lambda option: (
        f"--{option[1].replace('_', '-')}"
    ),
}
"""Regular expressions and their replacements, applied one after the other."""


def in_flags(message: str) -> str:
    """Replace Python arguments in advice or in an error message by options of the command line.

    Examples
    --------
    >>> in_flags("sampler='qrs' and Budget(max_attempts=8200), enough with probability 0.99")
    '--sampler qrs and --max-attempts 8200, enough with probability 0.99'
    """
    for pattern, flag in _SPELLED.items():
        message = re.sub(pattern, flag, message)
    return message
