"""A file with answers by their keys."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from guardwrap.errors import UsageError

__all__ = ["AnswerFile"]

logger = logging.getLogger("guardwrap")

MOST = 100_000
"""The most answers in a file. After that, those that were added first are removed."""

PATIENCE = 0.2
"""Seconds to wait for another process that writes to the file."""

_LAYOUT = """
create table if not exists answers (
    key text primary key,
    answer text not null,
    number integer not null
) without rowid;
create index if not exists answers_in_order on answers (number);
"""


class AnswerFile:
    """Answers in an SQLite file, which any number of threads and processes may use at once.

    The cache is never worth an error: a failure to read counts as a missing answer, a failure to write is logged.

    Parameters
    ----------
    path
        The file, which is created if it does not exist.

    Raises
    ------
    UsageError
        If the file cannot be created, or is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            with self._open() as file:
                file.execute("pragma journal_mode=wal")
                file.executescript(_LAYOUT)
                file.execute("select key, answer, number from answers limit 1")
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"cache={str(path)!r} cannot be used ({error}); give the path of a new file") from None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Return a connection for one thread, which commits if there is no error."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE)) as file, file:
            file.execute("pragma synchronous=normal")
            yield file

    def get(self, key: str) -> str | None:
        """Return the answer with a key; None without one."""
        try:
            with self._open() as file:
                row = file.execute("select answer from answers where key = ?", (key,)).fetchone()
        except (OSError, sqlite3.Error) as error:
            logger.warning("an answer could not be read from the cache: %s", type(error).__name__)
            return None
        return None if row is None else str(row[0])

    def put(self, answers: Iterable[tuple[str, str]]) -> None:
        """Add answers, pairs of key and answer. An answer with the same key is replaced."""
        try:
            with self._open() as file:
                (last,) = file.execute("select coalesce(max(number), 0) from answers").fetchone()
                rows = [(key, answer, number) for number, (key, answer) in enumerate(answers, last + 1)]
                file.executemany("insert or replace into answers values (?, ?, ?)", rows)
                file.execute("delete from answers where number <= ?", (last + len(rows) - MOST,))
        except (OSError, sqlite3.Error) as error:
            logger.warning("answers could not be written to the cache: %s", type(error).__name__)
