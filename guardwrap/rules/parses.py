"""The ``Parses`` constraint: a parser accepts the text. Those of Python and SQL, and how recursive ones are called."""

from __future__ import annotations

import ast
import logging
import re
import threading
import warnings
from codeop import PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]  # not in typeshed
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.rules import formats
from guardwrap.support.threads import in_thread
from guardwrap.support.time_limits import CHECK_SECONDS, OutOfTime, TimeLimit, check_deadline, time_limit

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
    except (OutOfTime, RecursionError, MemoryError):
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


_LONGEST_WAIT = 30.0
"""Seconds of wall-clock time. The parsers called here end after far fewer CPU seconds, whatever the text."""


def fault_or_too_deep(parse: Callable[[], str | None]) -> str | None:
    """Return what a recursive parser finds wrong with a text; None if it accepts it.

    If Python's limit on recursion is reached, the text is parsed again in a thread, whose stack is empty. One that does
    not fit there either is nested too deeply, which is a rejection. The parser must not catch ``RecursionError``.
    """
    try:
        return parse()
    except RecursionError:
        check_deadline()

    def parse_in_time() -> str | None:
        with time_limit(CHECK_SECONDS):
            return parse()

    try:
        faults, _ = in_thread(parse_in_time, _LONGEST_WAIT, name="guardwrap-parser")
    except RecursionError:
        return "is nested too deeply"
    if not faults:
        raise TimeLimit(CHECK_SECONDS, shared=True)
    return faults[0]


_NAME = "<checked text>"
"""The file name that the parser sees. It is not the name of any module, so a warnings filter can select it."""

_SILENT = ("ignore", None, Warning, re.compile(re.escape(_NAME)), 0)


def fault_in_python(text: str) -> str | None:
    """Return the first syntax error with its line; None if the text is a module.

    Python's grammar alone decides: ``return`` outside a function is a later error of the compiler, so it is accepted.
    """
    try:
        parse_python(text)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except MemoryError:  # how the parser reports a text that is nested too deeply
        return "is nested too deeply"
    except ValueError:  # a null character, or half of a surrogate pair
        return "has a character that Python source cannot contain"
    return None


def python_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if the complete lines of a prefix cannot begin a module.

    The parser reports incomplete input if its tokenizer reached the end, also within a string or a bracket. If it fails
    before, it has read tokens of complete lines only. They are the same in every continuation, so it fails there too.
    The last line is left out, because its last token may still change.
    """
    lines = prefix[: prefix.rfind("\n") + 1]
    if not lines:
        return Verdict.UNDECIDED
    try:
        parse_python(lines, PyCF_ALLOW_INCOMPLETE_INPUT)
    except SyntaxError as error:
        # Some releases report a string or a bracket that is still open as an error of its own, even after another one.
        if "incomplete input" in str(error.msg):
            return Verdict.UNDECIDED
        if any(words in str(error.msg) for words in ("unterminated", "never closed", "EOF")):
            before = lines.split("\n")[: (error.lineno or 1) - 1]
            return python_verdict("\n".join([*before, ""])) if before else Verdict.UNDECIDED
        return Verdict.VIOLATED
    except (MemoryError, RecursionError, ValueError):
        return Verdict.UNDECIDED
    return Verdict.UNDECIDED


def parse_python(text: str, flags: int = 0) -> ast.Module:
    """Return the syntax tree of a module."""
    # The parser warns of escapes such as "\d", and the warning would print the text. ``catch_warnings`` is not safe in
    # threads, so a filter for this file name stays in front of the others.
    if warnings.filters[:1] != [_SILENT]:
        warnings.filterwarnings("ignore", module=_SILENT[3].pattern)
    tree: ast.Module = compile(text, _NAME, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
    return tree


LanguageName = Literal["csv", "html", "json", "jsonl", "markdown_table", "python", "sql", "toml", "xml", "yaml"]

MAX_CHARACTERS = 30_000
"""The longest text in a language whose parser cannot be interrupted."""


_PIECE = re.compile(r"\w+|[^\w\s]")
"""A word, or one character of punctuation: what the time of a parser depends on."""


class _Language(NamedTuple):
    """A parser, and what it can say of a prefix."""

    fault: Callable[[str], str | None]  # returns what is wrong with a text, or None
    verdict: Callable[[str], Verdict] | None = None  # judges a prefix; None if it is always UNDECIDED
    by_line: bool = False  # whether ``verdict`` depends on complete lines only
    bounded: bool = False  # whether the parser itself keeps to the time limit, so that a text may be of any length
    # the most words and characters of punctuation in a text, so that the parser takes a tenth of a second at most; None
    # for any number
    most: int | None = None


_LANGUAGES: dict[str, _Language] = {
    "csv": _Language(formats.fault_in_csv, formats.csv_verdict, by_line=True),
    "html": _Language(formats.fault_in_html, most=12_000),
    "json": _Language(formats.fault_in_json, bounded=True),
    "jsonl": _Language(formats.fault_in_json_lines, bounded=True),
    "markdown_table": _Language(formats.fault_in_markdown_table, formats.markdown_table_verdict, by_line=True),
    "python": _Language(fault_in_python, python_verdict, by_line=True),
    "sql": _Language(fault_in_sql, most=8_000),
    "toml": _Language(formats.fault_in_toml),
    "xml": _Language(formats.fault_in_xml, formats.xml_verdict),
    "yaml": _Language(formats.fault_in_yaml, most=6_000),
}

_LIBRARIES = {"sql": "sqlglot", "html": "tinyhtml5"}
"""Libraries of optional extras, which have the language's name."""


@dataclass(frozen=True, eq=False, repr=False)
class Parses(TextConstraint):
    r"""A parser of the language accepts the text. Nothing is executed, fetched or expanded.

    Parameters
    ----------
    language
        - ``"python"``: a module, by the grammar of the running Python.
        - ``"json"``: as ``JSONSchema`` with the schema ``True``. ``"jsonl"``: one such value per line.
        - ``"toml"``: TOML 1.0, as ``tomllib`` reads it.
        - ``"yaml"``: one YAML 1.1 document with standard tags, as PyYAML reads it. Prose is often a YAML string, so
          combine it with another rule.
        - ``"xml"``: a well-formed document with namespaces. A DOCTYPE with declarations is rejected.
        - ``"html"``: HTML without parse errors: a document if it begins with ``<!doctype``, otherwise a fragment, the
          contents of a ``div``. Requires the extra ``guardwrap[html]``.
        - ``"sql"``: one or more statements that sqlglot parses. Requires the extra ``guardwrap[sql]``.
        - ``"csv"``: RFC 4180, comma-separated, equally many fields in all rows.
        - ``"markdown_table"``: one table of GitHub Flavored Markdown, each row with ``|`` at both ends and as many
          cells as the header.
    dialect
        For ``"sql"``: the name of one of sqlglot's dialects, such as ``"postgres"``; None for a lenient mixture.
    on
        The view of the text that is judged, such as ``Part(between=["<code>", "</code>"])``.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or the language requires a library that is not installed.

    Notes
    -----
    Except in JSON and JSON Lines, a text of more than 30 000 characters is rejected, and so is one that is nested too
    deeply for its parser: for Python's limit on recursion, or in SQL if the parser tries too much, as it does for types
    in types in types. Words and characters of punctuation are limited to 12 000 in HTML, 8 000 in SQL and 6 000 in
    YAML. A text at which sqlglot itself fails is rejected, such as ``SELECT MAP(1)`` in Hive.

    A prefix is VIOLATED in JSON, JSON Lines and XML as soon as it is not well-formed, and in Python, CSV and Markdown
    tables at the end of a line that no continuation can mend. In the other languages prefixes are UNDECIDED.

    Examples
    --------
    >>> Parses("python").accepts("print('hello')")
    True
    >>> Parses("python").accepts("print 'hello'")
    False
    """

    language: LanguageName
    dialect: str | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["parses"] = field(default="parses", kw_only=True)

    way_out = "; shorten the texts"

    def __post_init__(self) -> None:
        require_choice(self.language, get_args(LanguageName), "language")
        library = _LIBRARIES.get(self.language, "")
        require(
            not library or find_spec(library) is not None,
            f"language={self.language!r} requires {library}: pip install 'guardwrap[{self.language}]'",
        )
        if self.dialect is not None:
            require(self.language == "sql", f"dialect={shown(self.dialect)}: only language='sql' has dialects")
            require_choice(self.dialect, sql_dialects(), "dialect")
        object.__setattr__(self, "on", read_view(self.on))

    def progress(self) -> Constraint | None:
        return JSONSchema(True, on=self.on) if self.language == "json" else None

    def holds(self, text: str) -> bool:
        return self._fault(text) is None

    def fault(self, text: str) -> str:
        return self._fault(text) or ""

    def _fault(self, text: str) -> str | None:
        if self._is_too_long(text):
            return f"has more than {MAX_CHARACTERS} characters"
        if self._has_too_many_pieces(text):
            return f"has more than {_LANGUAGES[self.language].most} words and characters of punctuation"
        if self.language == "sql":
            return fault_or_too_deep(lambda: fault_in_sql(text, self.dialect))
        return fault_or_too_deep(lambda: _LANGUAGES[self.language].fault(text))

    def _is_too_long(self, text: str) -> bool:
        return len(text) > MAX_CHARACTERS and not _LANGUAGES[self.language].bounded

    def _has_too_many_pieces(self, text: str) -> bool:
        most = _LANGUAGES[self.language].most
        if most is None or len(text) <= most:
            return False
        return next(islice(_PIECE.finditer(text), most, None), None) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        if self.language in ("json", "jsonl"):
            return self._on_completion.monitor().read(prefix).verdict
        if self._is_too_long(prefix) or self._has_too_many_pieces(prefix):
            return Verdict.VIOLATED
        judge = _LANGUAGES[self.language].verdict
        return Verdict.UNDECIDED if judge is None else judge(prefix)

    def monitor(self) -> Monitor:
        """Return a monitor: of JSON, one that reads only the new text; of lines, one that judges when a line ends."""
        if self.on == "completion":
            if self.language == "json":
                return formats.any_json().monitor()
            if self.language == "jsonl":
                return formats.JSONLinesMonitor(formats.any_json().monitor())
            if _LANGUAGES[self.language].by_line:
                return LineMonitor(self)
        return super().monitor()


@dataclass(frozen=True)
class LineMonitor(Monitor):
    """Monitor of a constraint whose verdict changes only where a line ends, or where the text becomes too long."""

    constraint: TextConstraint
    text: str = ""  # the text read so far
    verdict: Verdict = Verdict.UNDECIDED  # the verdict on it

    @property
    def rereads(self) -> bool:
        """True."""
        return True

    def read(self, text: str, /) -> Monitor:
        if self.verdict is not Verdict.UNDECIDED or not text:
            return self
        whole = self.text + text
        judged = "\n" in text or len(whole) > MAX_CHARACTERS
        verdict = run_verdict(self.constraint, whole) if judged else self.verdict
        return LineMonitor(self.constraint, whole, verdict)
