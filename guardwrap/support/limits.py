"""Limits on the size of files and their contents, so that a hostile file cannot exhaust time or memory."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guardwrap.errors import ConstraintError
from guardwrap.support.time_limits import check_deadline, time_limit

# Limits on one file.
MAX_BYTES = 1_000_000
MAX_DEPTH = 60  # levels of nesting
MAX_DIRECTIVES = 100  # YAML directives
MAX_FILES = 8  # files that refer to one another in a chain
MAX_VALUES = 20_000
MAX_NUMBER = 40  # characters in one number
LOAD_SECONDS = 1.7  # CPU seconds for reading; processing the result, such as its digest, stays within 2 s in total

# Limits on parts of a file. An item is a character, a set or the like. `regex` takes 4 to 13 µs and 250 to 700 bytes
# per item, and expands fixed repeats: (a{1000}){1000} takes 250 MB, and one more level takes all memory.
MAX_ITEMS = 100_000  # items in one regular expression, or in the words of one Keyword
MAX_ITEMS_OF_A_FILE = 150_000
ITEMS_OF_ANY = 25  # fixed cost of an expression, however short
MAX_SETS = 3_000  # brackets in one expression; searching for the ends of 20 000 unclosed ones takes 6 s
MAX_FIXED = 500  # fixed characters in a row; `regex` takes cubic time for them: 0.02 s for 500, 130 s for 10 000
MAX_COMPARED = 200  # parts that are compared with each other to find contradictions
MAX_WORD_PAIRS = 10_000_000  # number of words times their total characters, in a search for words within words


class _File(threading.local):
    items: int | None = None  # items so far in the file that is being read; None outside of one


_file = _File()


@contextmanager
def loading() -> Iterator[None]:
    """Context for reading one file: starts its time limit and its count of items."""
    outer = _file.items
    _file.items = 0
    try:
        with time_limit(LOAD_SECONDS, ignore_outer=True):
            yield
    finally:
        _file.items = outer


def count_items(items: int, what: str) -> None:
    """Raise ConstraintError if one expression is too large, or those of the current file together are."""
    check_deadline()
    if items > MAX_ITEMS:
        number = items if items < 10**9 else "far too many"
        raise ConstraintError(f"{what} {number} items; at most {MAX_ITEMS} are allowed")
    if _file.items is not None:
        _file.items += items + ITEMS_OF_ANY
        if _file.items > MAX_ITEMS_OF_A_FILE:
            raise ConstraintError(
                f"the expressions and words of the file have more than {MAX_ITEMS_OF_A_FILE} items together; "
                "split it into several files"
            )


def is_text(text: str) -> bool:
    """Whether a string has no half of a surrogate pair, which is not a character and which no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(text: str) -> str:
    """Return a text with U+FFFD in place of each half of a surrogate pair, which no tokenizer accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def irregular(path: str | Path) -> str | None:
    """Return the type of a special file, reading which might never end; None for a regular file or a missing one.

    Files that the shell opened, such as ``<(command)``, count as regular, because the caller controls when they end.
    """
    if os.fspath(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/")):
        return None
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # opening the file will report the error
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # opening a folder fails at once
        return None
    return "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
