"""The output folder: a small file for each block that is done, and at the end one file in the order of the rows."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from guardwrap.environment.atomic_files import unfollowed, write_whole
from guardwrap.errors import UsageError
from guardwrap.prompt_files.records import AGAIN
from guardwrap.ray.dataset_rows import key_of, row_digest

__all__ = ["Done", "Folder", "first_other"]

RESULTS, FAILED, RUN, PARTS, LOCK = "results.jsonl", "failed.jsonl", "run.json", "parts", ".lock"


@dataclass(frozen=True, slots=True)
class Done:
    """Where the record of a row stands.

    Parameters
    ----------
    file, offset, size
        The file's number, and where its line begins and how long it is, in bytes.
    ok
        Whether the row got all its texts.
    texts
        How many it got.
    again
        How many times it was drawn for again.
    row
        Fingerprint of what the row came with.
    name
        The row's id.
    """

    file: int
    offset: int
    size: int
    ok: bool
    texts: int
    again: int
    row: int
    name: int | str


def first_other(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first name, by the alphabet, under which two mappings have something else, or None."""
    return next((name for name in sorted({*before, *now}) if before.get(name) != now.get(name)), None)


class Folder:
    """An output folder that this process alone writes to.

    Whatever kills a process, each file is whole or not there: it is written beside its place and then renamed.

    Parameters
    ----------
    path
        Of the folder.

    Attributes
    ----------
    done : dict
        From keys of ids to ``Done``: the rows that have a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[int, Done] = {}
        self._files: list[Path] = []
        self._next = 0

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, resume: bool, overwrite: bool) -> Iterator[Folder]:
        """Make the folder, or go on with it.

        Parameters
        ----------
        path
            Of the folder.
        resume, overwrite
            What is to be done with one that has results.

        Raises
        ------
        UsageError
            If it cannot be written to, has results and neither is said, or another run writes to it.
        """
        if resume and overwrite:
            raise UsageError("--resume keeps what --overwrite throws away; give one of them")
        if path.exists() and not path.is_dir():
            raise UsageError(f"cannot write to {str(path)!r}: with --ray the output is a folder, and this is none")
        used = any((path / name).exists() for name in (RESULTS, FAILED, RUN))
        if used and not (resume or overwrite):
            raise UsageError(f"{str(path)!r} has results; continue with --resume or replace them with --overwrite")
        try:
            (path / PARTS).mkdir(parents=True, exist_ok=True)
            lock = open(path / LOCK, "a", opener=unfollowed)  # noqa: SIM115  # closed by the with below
        except OSError as error:
            raise UsageError(f"cannot write to {str(path)!r}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by the system, however the process ends
            except OSError:
                raise UsageError(f"another run writes to {str(path)!r}; wait for its end, or give another -o") from None
            folder = cls(path)
            if overwrite:
                folder._clear()
            folder.read()
            yield folder

    def _clear(self) -> None:
        # What says how it was made goes last: a folder without it is not gone on with.
        for name in (RESULTS, FAILED, RUN):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / PARTS)
        (self.path / PARTS).mkdir()

    def made_with(self) -> dict[str, Any] | None:
        """Return what the run that began the folder was asked for, or None for a new one."""
        try:
            data = json.loads((self.path / RUN).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            data = None
        if not isinstance(data, dict):
            raise UsageError(f"{str(self.path / RUN)!r} cannot be read; give another -o")
        return data

    def begin(self, run: Mapping[str, Any]) -> None:
        """Write down what the run is asked for."""
        self._write(self.path / RUN, [json.dumps(run, indent=1).encode() + b"\n"])

    def read(self) -> None:
        """Find out which rows have a record. One that has several counts once: all are of the same row."""
        self.done, self._files = {}, []
        parts = sorted((self.path / PARTS).glob("*.jsonl"))
        self._next = int(parts[-1].stem) + 1 if parts else 0
        for path in (self.path / FAILED, self.path / RESULTS, *parts):
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        self._files.append(path)
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                self._note(f"{path}:{number}", line, offset)
                offset += len(line)

    def _note(self, where: str, line: bytes, offset: int) -> None:
        try:
            data = json.loads(line)
            name, ok = data["id"], data["ok"]
            again = data.get("report", {}).get("settings", {}).get(AGAIN, 0)
            texts = len(data.get("texts") or ())
            found = Done(len(self._files) - 1, offset, len(line), ok, texts, again, row_digest(data), name)
            key = key_of(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UsageError(f"{where}: is not a line that guardwrap wrote; give another -o") from None
        before = self.done.get(key)
        # A later one was drawn again: it counts where no text is given up for it.
        if before is None or (found.ok, found.texts) >= (before.ok, before.texts):
            self.done[key] = found

    def add(self, lines: Sequence[bytes]) -> None:
        """Write the records of a block: all of them or none."""
        if not lines:
            return
        path = self.path / PARTS / f"{self._next:08}.jsonl"
        self._next += 1
        self._write(path, lines)
        self._files.append(path)
        offset = 0
        for line in lines:
            self._note(str(path), line, offset)
            offset += len(line)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records."""
        for ok in (True, False):
            yield from map(json.loads, self._lines(self.done.values(), ok))

    def merge(self, order: Mapping[int, int]) -> None:
        """Make one file of the rows that got all their texts, and one of the others, in their order.

        A process that is killed in between loses nothing: the blocks' files go last, and a row that stands in two files
        counts once.

        Parameters
        ----------
        order
            From keys of ids to the rows' places in the input.
        """
        entries = [done for _, done in sorted(self.done.items(), key=lambda each: order.get(each[0], len(order)))]
        for name, ok in ((RESULTS, True), (FAILED, False)):
            self._write(self.path / f"{name}.new", self._lines(entries, ok))
        for name in (RESULTS, FAILED):
            (self.path / f"{name}.new").replace(self.path / name)
        if not (self.path / FAILED).stat().st_size:
            (self.path / FAILED).unlink()
        for path in sorted((self.path / PARTS).iterdir()):
            path.unlink()
        self.read()

    def _lines(self, entries: Iterable[Done], ok: bool) -> Iterator[bytes]:
        files: dict[int, BinaryIO] = {}
        try:
            for done in entries:
                if done.ok is ok:
                    if done.file not in files:
                        if len(files) >= 64:  # of the files that one process may have open
                            files.pop(next(iter(files))).close()
                        files[done.file] = self._files[done.file].open("rb")
                    files[done.file].seek(done.offset)
                    yield files[done.file].read(done.size)
        finally:
            for file in files.values():
                file.close()

    def _write(self, path: Path, lines: Iterable[bytes]) -> None:
        try:
            write_whole(path, lines)
        except OSError as error:
            raise OSError(error.errno, f"cannot write the results: {error.strerror}", str(path)) from None
