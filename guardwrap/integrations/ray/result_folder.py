"""Output folder of a job: one small file per finished block, and at the end one file in input order."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from guardwrap.calls.records import AGAIN
from guardwrap.errors import UsageError
from guardwrap.integrations.ray.rows import key_of, row_digest
from guardwrap.support.files import unfollowed, write_whole

RESULTS, FAILED, RUN, PARTS, LOCK = "results.jsonl", "failed.jsonl", "run.json", "parts", ".lock"


@dataclass(frozen=True, slots=True)
class Done:
    """Location and result of the record of one row."""

    file: int  # number of the file, and offset and length of the line in it, in bytes
    offset: int
    size: int
    ok: bool  # whether the row got all its texts
    texts: int  # number of its texts
    again: int  # how often it was retried
    row: int  # hash of the row's input fields; see ``row_digest``


class Folder:
    """An output folder with a lock, so that only one process writes to it.

    Each file is written under a temporary name and then renamed, so that a killed process leaves no partial files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[int, Done] = {}
        self._files: list[Path] = []
        self._next = 0

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, resume: bool, overwrite: bool) -> Iterator[Folder]:
        """Create the folder, or open an existing one, for the duration of the ``with`` block."""
        if resume and overwrite:
            raise UsageError("--resume keeps the results that --overwrite replaces; give one of them")
        if path.exists() and not path.is_dir():
            raise UsageError(f"cannot write to {str(path)!r}: it is not a folder, which --ray needs for its output")
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
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when the process ends
            except OSError:
                raise UsageError(f"another run is writing to {str(path)!r}; wait for it, or give another -o") from None
            folder = cls(path)
            if overwrite:
                folder._clear()
            folder.read()
            yield folder

    def _clear(self) -> None:
        # run.json is removed last: a folder with records but without it cannot be resumed.
        for name in (RESULTS, FAILED, RUN):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / PARTS)
        (self.path / PARTS).mkdir()

    def made_with(self) -> dict[str, Any] | None:
        """Return the settings of the run that began the folder, or None for a new folder."""
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
        """Save the settings of the run."""
        self._write(self.path / RUN, [json.dumps(run, indent=1).encode() + b"\n"])

    def read(self) -> None:
        """Read which rows have a record. A row may have several, of which the best one counts."""
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
            done = Done(len(self._files) - 1, offset, len(line), ok, texts, again, row_digest(data))
            key = key_of(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UsageError(f"{where}: was not written by guardwrap; give another -o") from None
        before = self.done.get(key)
        # A later record comes from a retry, and replaces the earlier one unless it has fewer texts.
        if before is None or (done.ok, done.texts) >= (before.ok, before.texts):
            self.done[key] = done

    def add(self, lines: Sequence[bytes]) -> None:
        """Write the records of a block to a new file, atomically."""
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
        """Yield the records, complete ones first."""
        for ok in (True, False):
            yield from map(json.loads, self._lines(self.done.values(), ok))

    def merge(self, order: Mapping[int, int]) -> None:
        """Write one file with the rows that got all their texts, and one with the others, in input order.

        If the process is killed in between, nothing is lost: the files of the blocks are removed last, and a row in two
        files counts once.
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
                        if len(files) >= 64:  # stay below the limit for open files of a process
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
