"""Output files of ``guardwrap generate``: JSON Lines, written in whole lines as prompts end, and sorted at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from guardwrap.calls.prompts import OPTIONS, Item, PromptSource
from guardwrap.calls.records import AGAIN, NUMBER, difference, is_written, require_unchanged
from guardwrap.errors import UsageError
from guardwrap.support.files import write_whole
from guardwrap.support.limits import irregular

if TYPE_CHECKING:
    from guardwrap.cli.generate_request import GenerateRequest


@dataclass(frozen=True)
class Task:
    """A prompt to generate for."""

    number: int  # its number in the input, from 1
    item: Item
    retried: int | None = None  # how often its line was retried; None if it has no line
    texts: int = 0  # number of texts of its line, which no line with fewer texts replaces

    def with_seed(self, seed: int) -> Task:
        """Return the task of a retry with another seed."""
        own = replace(self.item.own, seed=seed, number=self.number - 1)
        return replace(self, item=replace(self.item, own=own))


@dataclass(frozen=True)
class WrittenLines:
    """Lines that earlier runs have written."""

    count: int = 0  # number of prompts that have a line
    size: int = 0  # size of the complete lines, in bytes. An incomplete line may follow.
    last: int = 0  # number of the last prompt that has a line
    seed: int | None = None  # seed of the run, or None if there is no line
    missing: tuple[Task, ...] = ()  # prompts before the last one that have no line
    failed: tuple[Task, ...] = ()  # prompts whose line does not have all texts

    def tasks(self, items: Iterator[Item], retry_seed: int | None) -> Iterator[Task]:
        """Yield what is left to do, in input order: with a seed for retries, those, too."""
        retries = [] if retry_seed is None else [task.with_seed(retry_seed) for task in self.failed]
        left = sorted((*self.missing, *retries), key=lambda task: task.number)
        return chain(left, (Task(number, item) for number, item in enumerate(items, start=self.last + 1)))


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


class _Place(NamedTuple):
    line: int  # from 1
    offset: int  # in bytes
    size: int

    def read(self, file: Any) -> bytes:
        file.seek(self.offset)
        raw: bytes = file.read(self.size)
        return raw


def _places(path: Path) -> dict[int, _Place]:
    """Return where the line of each prompt is. The last one counts, and an incomplete line at the end does not."""
    places: dict[int, _Place] = {}
    offset = 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n") and raw.startswith(b"{"):
                break
            places[_read_back(f"{path}:{line}", raw)["report"][NUMBER]] = _Place(line, offset, len(raw))
            offset += len(raw)
    return places


def read_finished(
    path: Path, items: Iterator[Item], request: GenerateRequest, *, other_budget: bool = False
) -> WrittenLines:
    """Read the lines of an interrupted run. Consumes the items up to the last one that has a line."""
    if not path.exists():
        return WrittenLines()
    places, seed = _places(path), None
    missing, failed = [], []
    with path.open("rb") as file:
        for number in range(1, max(places, default=0) + 1):
            place, item = places.get(number), next(items, None)
            if item is None:
                place = next(place for at, place in sorted(places.items()) if at >= number)
                where = f"{path}:{place.line}"
                raise UsageError(f"{where}: there are fewer prompts than lines; resume with the same prompts")
            if place is None:
                missing.append(Task(number, item))
                continue
            data, again, seed = _same_run(
                f"{path}:{place.line}", place.read(file), item, request, seed, other_budget=other_budget
            )
            if not data["ok"]:
                failed.append(Task(number, item, again, len(data["texts"])))
    size = max((place.offset + place.size for place in places.values()), default=0)
    return WrittenLines(len(places), size, max(places, default=0), seed, tuple(missing), tuple(failed))


def sort_lines(path: Path) -> None:
    """Sort the lines by the numbers of their prompts, atomically, and keep the last one of each prompt."""
    places = _places(path)
    ordered = [places[number] for number in sorted(places)]
    ends = [place.offset + place.size for place in ordered]
    if [place.offset for place in ordered] == [0, *ends][:-1] and path.stat().st_size == (ends or [0])[-1]:
        return
    path = path.resolve()  # replace the target of a symbolic link, not the link
    try:
        with path.open("rb") as old:
            write_whole(path, (place.read(old) for place in ordered))
    except OSError as error:
        raise OSError(error.errno, f"cannot write the results: {error.strerror}", str(path)) from None


def _same_run(
    where: str, raw: bytes, item: Item, request: GenerateRequest, seed: int | None, *, other_budget: bool
) -> tuple[dict[str, Any], int, int | None]:
    """Return a line, how often it was retried, and the seed of the run. Raise UsageError if it is of another run."""
    data = _read_back(where, raw)
    report = data["report"]
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


def _read_back(where: str, raw: bytes) -> dict[str, Any]:
    data: Any = None
    with suppress(ValueError, RecursionError):
        data = json.loads(raw)
    if not is_written(data):
        raise UsageError(f"{where}: was not written by guardwrap generate; give another --output")
    written: dict[str, Any] = data
    number = written["report"].get(NUMBER)
    if type(number) is not int or number < 1:
        raise UsageError(f"{where}: does not have the number of its prompt; write to another --output")
    return written


def _prompt(fields: dict[str, Any]) -> tuple[Any, Any]:
    return fields.get("prompt"), fields.get("messages")


@contextmanager
def line_file(path: Path, size: int = 0) -> Iterator[Callable[[bytes], None]]:
    """Write whole lines to a file, and sort them at the end, also after an error or an interruption.

    Each line is written without a buffer, so an interruption cannot cut it in two. The file is opened with the first
    line, so that until then an old one stays unchanged.
    """
    file: FileIO | None = None

    def append(line: bytes) -> None:
        nonlocal file
        try:
            if file is None:
                file = open(path, "ab", buffering=0)  # noqa: SIM115  # it is closed before the lines are sorted
                if path.is_file():
                    file.truncate(size)
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:  # an error of a full disk, for example, does not name the file
            raise OSError(error.errno, f"cannot write the results: {error.strerror}", str(path)) from None

    def finish() -> None:
        if file is not None:
            file.close()
            if path.is_file():
                sort_lines(path)

    try:
        yield append
    except BaseException:
        with suppress(OSError):  # --resume sorts them as well
            finish()
        raise
    finish()
