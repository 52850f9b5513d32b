"""Output files of ``guardwrap generate``: JSON Lines, written in whole lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guardwrap.documents.inputs import irregular
from guardwrap.environment.atomic_files import write_whole
from guardwrap.errors import UsageError
from guardwrap.outcomes import Outcome
from guardwrap.prompt_files.overrides import OPTIONS
from guardwrap.prompt_files.prompts import Item, PromptSource
from guardwrap.prompt_files.records import AGAIN, record_of, to_bytes
from guardwrap.prompt_files.run_identity import difference
from guardwrap.prompt_files.written_records import is_written, require_unchanged

if TYPE_CHECKING:
    from guardwrap.cli.generate_request import GenerateRequest


def to_line(item: Item, outcome: Outcome, settings: Mapping[str, Any]) -> bytes:
    """Return the line for one prompt; see ``record_of``."""
    return to_bytes(record_of(item.fields, outcome, settings))


@dataclass(frozen=True)
class WrittenLines:
    """Lines that an interrupted run has written."""

    count: int = 0  # number of complete lines
    size: int = 0  # size of the complete lines, in bytes. An incomplete line may follow.
    short: int = 0  # number of lines whose prompt did not get all its texts
    seed: int | None = None  # seed of the run, or None if there is no line
    # for each of these lines: its number from 0, its item, how often it was retried, and how many texts it has
    failed: tuple[tuple[int, Item, int, int], ...] = ()


def check_output(path: Path, source: PromptSource, *, resume: bool, overwrite: bool) -> None:
    """Raise UsageError if writing to the path would lose data or cannot work."""
    if resume and overwrite:
        raise UsageError("--resume keeps the results that --overwrite replaces; give one of them")
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir():
        raise UsageError(f"cannot write to {str(path)!r}: " + ("it is a folder" if path.is_dir() else "no such folder"))
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write to {str(path)!r}: permission denied")
    what = irregular(path)
    if what and resume:
        raise UsageError(f"{str(path)!r} is {what}, which cannot be resumed; leave --resume out")
    if path.is_file() and not (resume or overwrite):
        raise UsageError(f"{str(path)!r} exists; continue it with --resume or replace it with --overwrite")
    if source.path not in (None, "-") and path.exists() and path.samefile(str(source.path)):
        raise UsageError(f"{str(path)!r} holds the prompts; write to another file")


_SAME = {
    "constraint": "other constraints; resume with the same ones",
    "sampler": "another sampler; resume with the same one",
}
"""Fields that are the same in all reports of one run, and the end of the error message if they differ."""


def read_finished(
    path: Path, items: Iterator[Item], request: GenerateRequest, *, other_budget: bool = False
) -> WrittenLines:
    """Read the lines of an interrupted run, and skip the prompts that have one."""
    done = WrittenLines()
    if not path.exists():
        return done
    failed: list[tuple[int, Item, int, int]] = []
    with path.open("rb") as file:
        for number, raw in enumerate(file):
            where = f"{path}:{number + 1}"
            if not raw.endswith(b"\n") and raw.startswith(b"{"):
                break
            item = next(items, None)
            if item is None:
                raise UsageError(f"{where}: there are fewer prompts than lines; resume with the same prompts")
            data, again, seed = _same_run(where, raw, item, request, done.seed, other_budget=other_budget)
            failed += [] if data["ok"] else [(number, item, again, len(data["texts"]))]
            done = WrittenLines(number + 1, done.size + len(raw), len(failed), seed)
    return replace(done, failed=tuple(failed))


def is_of_run(raw: bytes, item: Item, request: GenerateRequest, seed: int, *, other_budget: bool = False) -> bool:
    """Return whether the run with this seed would write this line for a prompt; see ``read_finished``."""
    try:
        _same_run("", raw, item, request, seed, other_budget=other_budget)
    except UsageError:
        return False
    return True


def _same_run(
    where: str, raw: bytes, item: Item, request: GenerateRequest, seed: int | None, *, other_budget: bool
) -> tuple[dict[str, Any], int, int | None]:
    """Return a line, how often it was retried, and the seed of the run. Raise UsageError if it is of another run."""
    data, report = _read_back(where, raw)
    if _prompt(data) != _prompt(item.fields):
        raise UsageError(f"{where}: is for another prompt than {item.where}; resume with the same prompts")
    made_with = dict(report["settings"])
    again = made_with.pop(AGAIN, 0)
    fixed = [name for name in OPTIONS if name != "budget" or not (other_budget or again)]
    if new := next((name for name in fixed if data.get(name) != item.fields.get(name)), None):
        raise UsageError(f"{where}: was made with another {new} than {item.where} has; resume with the same")
    run = request.report_of(item)
    for name, other in _SAME.items():
        if report.get(name) != run[name]:
            raise UsageError(f"{where}: was made with {other}")
    _require_same(where, made_with, request.settings_of(item))
    _require_same_amount(where, report, run, other_budget=other_budget or bool(again))
    require_unchanged(where, data, request.constraint_of(item))
    if again:  # a retried line has the seed of its retry
        return data, again, seed
    if report["seed"] != (seed if run["seed"] is None else run["seed"]) is not None:
        raise UsageError(f"{where}: has another seed than the line before; this file cannot be resumed")
    return data, again, report["seed"] if run["seed"] is None else seed


def _require_same(where: str, made_with: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise UsageError if a line was made with other settings."""
    if other := difference(made_with, settings):
        raise UsageError(f"{where}: {other}; resume with the same settings, or write to another --output")


def _require_same_amount(where: str, report: Mapping[str, Any], run: Mapping[str, Any], *, other_budget: bool) -> None:
    """Raise UsageError if a line was made for another number of texts, or with another budget."""
    if report.get("requested") != run["requested"]:
        raise UsageError(f"{where}: was made with -n {report.get('requested')}; resume with the same number of texts")
    budget = report.get("budget")
    for name, limit in {}.items() if other_budget else run["budget"].items():
        was = budget.get(name) if isinstance(budget, dict) else None
        if was != limit:
            how = f"without {name}" if was is None else f"with {name} {was}"
            now = "has none" if limit is None else f"has {limit}"
            raise UsageError(f"{where}: was made {how}, but this run {now}; resume with the same budget")


def _read_back(where: str, raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    with suppress(ValueError, RecursionError):
        data = json.loads(raw)
        if is_written(data):
            return data, data["report"]
    raise UsageError(f"{where}: was not written by guardwrap generate; give another --output")


def _prompt(fields: dict[str, Any]) -> tuple[Any, Any]:
    return fields.get("prompt"), fields.get("messages")


@contextmanager
def line_file(path: Path, size: int = 0) -> Iterator[Callable[[bytes], None]]:
    """Write whole lines to a file. Each is written without a buffer, so an interruption cannot cut it in two.

    The file is opened with the first line, so that until then an old one stays unchanged.
    """
    with ExitStack() as stack:
        file: FileIO | None = None

        def append(line: bytes) -> None:
            nonlocal file
            try:
                if file is None:
                    file = stack.enter_context(open(path, "ab", buffering=0))
                    if path.is_file():
                        file.truncate(size)
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:  # an error of a full disk, for example, does not name the file
                raise OSError(error.errno, f"cannot write the results: {error.strerror}", str(path)) from None

        yield append


def replace_lines(path: Path, new: Mapping[int, bytes]) -> int:
    """Replace lines of a file atomically: after an interruption, it is either the old file or the new one."""
    path = path.resolve()  # replace the target of a symbolic link, not the link
    try:
        with path.open("rb") as old:
            return write_whole(path, (new.get(i, raw) for i, raw in enumerate(old) if raw.endswith(b"\n")))
    except OSError as error:
        raise OSError(error.errno, f"cannot write the results: {error.strerror}", str(path)) from None
