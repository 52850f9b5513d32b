"""How large what others gave may be: files, and what is in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from guardwrap.documents.time_limits import check_deadline, time_limit
from guardwrap.errors import ConstraintError

__all__ = ["count_items", "loading"]

# Of a file.
MAX_BYTES = 1_000_000
MAX_DEPTH = 60
MAX_DIRECTIVES = 100
MAX_FILES = 8  # that refer to one another, in a row
MAX_VALUES = 20_000
MAX_NUMBER = 40  # characters
LOAD_SECONDS = 1.7  # of reading; with what is then made of it, its digest for one, no more than 2

# Of its parts. An item is a character, a set or the like; `regex` takes 4 to 13 µs and 250 to 700 bytes for each, and
# writes fixed repeats out: (a{1000}){1000} takes 250 MB, and one level more takes all memory there is.
MAX_ITEMS = 100_000  # of one regular expression, or of the words of one Keyword
MAX_ITEMS_OF_A_FILE = 150_000
ITEMS_OF_ANY = 25  # what an expression costs however short it is
MAX_SETS = 3_000  # brackets in one expression; looking for the ends of those left open takes 6 s for 20 000
MAX_FIXED = 500  # characters in a row; `regex` takes time cubic in their number, 0.02 s for these and 130 s for 10 000
MAX_COMPARED = 200  # parts that are compared with each other for contradictions
MAX_WORD_PAIRS = 10_000_000  # words times characters of all words, where words are looked for in each other


class _File(threading.local):
    items: int | None = None  # of the file that is read, so far


_file = _File()


@contextmanager
def loading() -> Iterator[None]:
    """Read a file, within the limits of one."""
    outer = _file.items
    _file.items = 0
    try:
        with time_limit(LOAD_SECONDS, anew=True):
            yield
    finally:
        _file.items = outer


def count_items(items: int, what: str) -> None:
    """Raise ConstraintError where expressions are too large, one of them or those of a file together."""
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
