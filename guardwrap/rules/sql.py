"""SQL in a dialect, as sqlglot parses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from guardwrap.support.time_limits import TimeLimit, check_deadline

_STATEMENTS = (
    "Query", "DML", "DDL", "Values", "Drop", "Alter", "AlterSession", "Analyze", "Attach", "Cache", "Comment", "Commit",
    "Copy", "Declare", "Describe", "Detach", "Grant", "Kill", "LoadData", "Merge", "Pragma", "Refresh", "Revoke",
    "Rollback", "Set", "Show", "Summarize", "Transaction", "TruncateTable", "Uncache", "Use",
)  # fmt: skip
"""sqlglot's classes of statements. It also parses bare expressions, and so many short sentences in English."""


_STEPS, _STEPS_OF_TOKEN = 40_000, 4
"""The most tokens that the parser may read in a text, again and again, beside a number of times for each token.

It tries types first, and parses again what is none, so each level of ``DECIMAL(DECIMAL(1))`` may double its time. The
statements that people write take 1.0 to 1.3 steps for each token. A step takes about 6 µs.
"""

_DEEPEST, _DEEPEST_UNCOUNTED = 64, 16
"""The most brackets within each other, and where steps cannot be counted, as sqlglot is compiled.

Arrays of arrays take cubic time in some dialects.
"""

_LONGEST_CHAIN = 64
"""The most indices in a row, as in ``a[1][2]``. They take quadratic time."""

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_DEEP = "is nested too deeply"


class _TooDeep(Exception):
    """The parser would take too long."""


class _Parsing(threading.local):
    active: bool = False  # whether this thread is parsing a text


_parsing = _Parsing()


def _outside_of_checks(record: logging.LogRecord) -> bool:
    return not _parsing.active


def fault_in_sql(text: str, dialect: str | None = None) -> str | None:
    """Return why a text is not one or more SQL statements; None if it is.

    A statement that sqlglot keeps as an unparsed command, such as ``VACUUM t``, is rejected, and so is what it would
    parse for too long. Where the number of a function's arguments is wrong, it may raise anything: IndexError for
    ``MAP(1)`` in Hive. That is a fault as well, since an attempt that cannot be judged would end the whole call.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect

    _silence()
    _parsing.active = True
    try:
        rules = Dialect.get_or_raise(dialect)
        tokens = rules.tokenize(text)
        plain = rules.parser()
        counting = _counting(plain)
        depth, chain = _depth_and_chain(tokens, plain.NESTED_TYPE_TOKENS)
        if chain > _LONGEST_CHAIN or depth > (_DEEPEST_UNCOUNTED if counting is None else _DEEPEST):
            return _DEEP
        parser = plain if counting is None else counting
        statements = [each for each in parser.parse(tokens, text) if each is not None]  # None: between ;
        for number, each in enumerate(statements, 1):
            if not isinstance(each, _classes()) or each.find(exp.Command) is not None:
                return f"statement {number} is not one that the parser understands"
    except _TooDeep:
        return _DEEP
    except sqlglot.errors.SqlglotError as error:
        return str(error).partition("\n")[0]
    except (TimeLimit, RecursionError, MemoryError):
        raise
    except Exception as error:
        return f"the parser fails: {type(error).__name__}"
    finally:
        _parsing.active = False
    return None if statements else "has no statement"


def _depth_and_chain(tokens: Sequence[Any], types: Collection[Any]) -> tuple[int, int]:
    """Return how many brackets stand within each other, and how many indices in a row.

    ``types`` are the tokens of names that ``<`` may follow as a bracket.
    """
    closing: list[str] = []  # of the brackets that are open
    rows = [0]  # the indices in a row at each level
    deepest = longest = 0
    before, after_dot = None, False
    for token in tokens:
        # A string or a quoted name is longer in the text than what it says.
        text = token.text if token.end - token.start + 1 == len(token.text) else ""
        angle = text == "<" and before in types
        if angle or text in _CLOSING:
            rows[-1] = rows[-1] + 1 if text == "[" else 0
            longest = max(longest, rows[-1])
            rows.append(0)
            closing.append(">" if angle else _CLOSING[text])
            deepest = max(deepest, len(closing))
        elif closing and text and set(text) == {closing[-1]}:
            for _ in text:  # >> closes two
                if closing and closing[-1] == text[0]:
                    closing.pop()
                    rows.pop()
        elif text != "." and not after_dot:
            rows[-1] = 0
        before, after_dot = token.token_type, text == "."
    return deepest, longest


def _counting(parser: Any) -> Any:
    """Return one of sqlglot's parsers as one that stops after too many steps; None if sqlglot is compiled."""
    from sqlglot.parser import Parser

    try:
        kind: Any = type(parser)
        counted = _counting_class(kind)(dialect=parser.dialect)
    except TypeError:  # compiled classes have no subclasses
        return None
    for name, inner in list(vars(counted).items()):
        if isinstance(inner, Parser):  # Athena's parser has others parse
            setattr(counted, name, _counting(inner))
    return counted


@cache
def _counting_class(parser: Any) -> Any:
    class Counting(parser):  # type: ignore[misc]
        def parse(self, raw_tokens: list[Any], sql: str) -> Any:
            self.steps_left = _STEPS + _STEPS_OF_TOKEN * len(raw_tokens)
            return super().parse(raw_tokens, sql)

        def _advance(self, times: int = 1) -> None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise _TooDeep
            check_deadline()
            super()._advance(times)

    return Counting


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
