"""SQL in a dialect, as sqlglot parses it."""

from __future__ import annotations

import logging
import threading
from functools import cache
from typing import Any

__all__ = ["fault_in_sql", "sql_dialects"]

_STATEMENTS = (
    "Query", "DML", "DDL", "Values", "Drop", "Alter", "AlterSession", "Analyze", "Attach", "Cache", "Comment", "Commit",
    "Copy", "Declare", "Describe", "Detach", "Grant", "Kill", "LoadData", "Merge", "Pragma", "Refresh", "Revoke",
    "Rollback", "Set", "Show", "Summarize", "Transaction", "TruncateTable", "Uncache", "Use",
)  # fmt: skip
"""sqlglot's classes of statements. It also parses bare expressions, and so many short sentences in English."""


class _Parsing(threading.local):
    active: bool = False  # whether this thread is parsing a text


_parsing = _Parsing()


def _outside_of_checks(record: logging.LogRecord) -> bool:
    return not _parsing.active


def fault_in_sql(text: str, dialect: str | None = None) -> str | None:
    """Return why a text is not one or more SQL statements; None if it is.

    A statement that sqlglot keeps as an unparsed command, such as ``VACUUM t``, is rejected.
    """
    import sqlglot
    from sqlglot import exp

    _silence()
    _parsing.active = True
    try:
        statements = [each for each in sqlglot.parse(text, dialect=dialect) if each is not None]  # None: between ;
        for number, each in enumerate(statements, 1):
            if not isinstance(each, _classes()) or each.find(exp.Command) is not None:
                return f"statement {number} is not one that the parser understands"
    except RecursionError:
        return "is nested too deeply"
    except sqlglot.errors.SqlglotError as error:
        return str(error).partition("\n")[0]
    finally:
        _parsing.active = False
    return None if statements else "has no statement"


@cache
def _silence() -> None:
    """Keep sqlglot's log free of checked texts: it quotes the statements that it does not understand."""
    logging.getLogger("sqlglot").addFilter(_outside_of_checks)


@cache
def _classes() -> tuple[Any, ...]:
    from sqlglot import exp

    return tuple(getattr(exp, name) for name in _STATEMENTS if hasattr(exp, name))


@cache
def sql_dialects() -> tuple[str, ...]:
    """Return the names of sqlglot's dialects."""
    from sqlglot.dialects.dialect import Dialects

    return tuple(sorted(each.value for each in Dialects if each.value))
