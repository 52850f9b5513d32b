"""Tables as text: CSV, and tables in Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from guardwrap.constraints.verdicts import Verdict
from guardwrap.documents.time_limits import check_deadline


def fault_in_csv(text: str) -> str | None:
    """Return why a text is not CSV (RFC 4180) whose rows have equally many fields; None if it is."""
    return next(_csv_faults(text), None) if text else "has no row"


def csv_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if a complete row of a prefix is wrong, whatever follows."""
    lines = prefix[: prefix.rfind("\n") + 1]
    return Verdict.VIOLATED if next(_csv_faults(lines, complete=False), None) else Verdict.UNDECIDED


def _csv_faults(text: str, *, complete: bool = True) -> Iterator[str]:
    """Yield the faults of a text.

    ``complete``: whether nothing follows. If something may, the last row may continue within a quoted field.
    """
    ended = False

    def lines() -> Iterator[str]:
        nonlocal ended
        yield from io.StringIO(text, newline="")
        ended = True

    width = None
    try:
        for number, row in enumerate(csv.reader(lines(), strict=True), 1):
            check_deadline()
            if not row:
                yield f"row {number} is empty"
            width = width or len(row)
            if len(row) != width:
                yield f"row {number} has {len(row)} fields, not {width}"
    except csv.Error as error:
        if complete or not ended:
            yield str(error)


_ESCAPE = re.compile(r"\\.")
_DASHES = re.compile(r"[ \t]*+:?-++:?[ \t]*+")


def fault_in_markdown_table(text: str) -> str | None:
    r"""Return why a text is not one table of GitHub Flavored Markdown; None if it is.

    Each row begins and ends with ``|``, and has as many cells as the header. ``\|`` does not separate cells.
    """
    return _fault_of_rows(text.removesuffix("\n").split("\n"), complete=True)


def markdown_table_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if a complete line of a prefix is not a row of the table."""
    return Verdict.VIOLATED if _fault_of_rows(prefix.split("\n")[:-1], complete=False) else Verdict.UNDECIDED


def _fault_of_rows(lines: list[str], *, complete: bool) -> str | None:
    width = None
    for number, line in enumerate(lines, 1):
        check_deadline()
        cells = _cells(line)
        if cells is None:
            return f"line {number} is not a row that begins and ends with |"
        if number == 2 and not all(_DASHES.fullmatch(cell) for cell in cells):
            return "line 2 is not a row of dashes, such as |---|---|"
        width = width or len(cells)
        if len(cells) != width:
            return f"line {number} has {len(cells)} cells, not {width}"
    return "has no row of dashes below its header" if complete and len(lines) < 2 else None


def _cells(line: str) -> list[str] | None:
    """Return the cells of a row, without escapes; None if it does not begin and end with ``|``."""
    row = _ESCAPE.sub("", line).rstrip(" \t\r")
    bare = row.lstrip(" ")
    if len(row) - len(bare) > 3 or len(bare) < 2 or not (bare.startswith("|") and bare.endswith("|")):
        return None
    return bare[1:-1].split("|")
