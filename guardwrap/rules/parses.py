"""The ``Parses`` constraint: a parser accepts the text. Python's own parser, and how recursive parsers are called."""

from __future__ import annotations

import ast
import re
import warnings
from codeop import PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]  # not in typeshed
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from typing import Literal, NamedTuple, get_args

from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.rules import formats, sql
from guardwrap.support.threads import in_thread
from guardwrap.support.time_limits import CHECK_SECONDS, TimeLimit, check_deadline, time_limit

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
    "sql": _Language(sql.fault_in_sql, most=8_000),
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
            require_choice(self.dialect, sql.sql_dialects(), "dialect")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        """Parse one string."""
        return self._fault(text) is None

    def fault(self, text: str) -> str:
        """Return what the parser reports, with the line if it is known."""
        return self._fault(text) or ""

    def _fault(self, text: str) -> str | None:
        if self._is_too_long(text):
            return f"has more than {MAX_CHARACTERS} characters"
        if self._has_too_many_pieces(text):
            return f"has more than {_LANGUAGES[self.language].most} words and characters of punctuation"
        if self.language == "sql":
            return fault_or_too_deep(lambda: sql.fault_in_sql(text, self.dialect))
        return fault_or_too_deep(lambda: _LANGUAGES[self.language].fault(text))

    def _is_too_long(self, text: str) -> bool:
        return len(text) > MAX_CHARACTERS and not _LANGUAGES[self.language].bounded

    def _has_too_many_pieces(self, text: str) -> bool:
        most = _LANGUAGES[self.language].most
        if most is None or len(text) <= most:
            return False
        return next(islice(_PIECE.finditer(text), most, None), None) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED if no continuation of the prefix parses."""
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
        """Judge the whole text again if a line has ended."""
        if self.verdict is not Verdict.UNDECIDED or not text:
            return self
        whole = self.text + text
        judged = "\n" in text or len(whole) > MAX_CHARACTERS
        verdict = run_verdict(self.constraint, whole) if judged else self.verdict
        return LineMonitor(self.constraint, whole, verdict)
