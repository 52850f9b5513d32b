"""The ``Parses`` constraint: a parser accepts the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from typing import Literal, NamedTuple, get_args

from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.languages import data_texts, markup, python_source, sql_statements, text_tables
from guardwrap.constraints.languages.recursion import fault_or_too_deep
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import View, read_view

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
    "csv": _Language(text_tables.fault_in_csv, text_tables.csv_verdict, by_line=True),
    "html": _Language(markup.fault_in_html, most=12_000),
    "json": _Language(data_texts.fault_in_json, bounded=True),
    "jsonl": _Language(data_texts.fault_in_json_lines, bounded=True),
    "markdown_table": _Language(text_tables.fault_in_markdown_table, text_tables.markdown_table_verdict, by_line=True),
    "python": _Language(python_source.fault_in_python, python_source.python_verdict, by_line=True),
    "sql": _Language(sql_statements.fault_in_sql, most=8_000),
    "toml": _Language(data_texts.fault_in_toml),
    "xml": _Language(markup.fault_in_xml, markup.xml_verdict),
    "yaml": _Language(data_texts.fault_in_yaml, most=6_000),
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
            require_choice(self.dialect, sql_statements.sql_dialects(), "dialect")
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
            return fault_or_too_deep(lambda: sql_statements.fault_in_sql(text, self.dialect))
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
                return data_texts.any_json().monitor()
            if self.language == "jsonl":
                return data_texts.JSONLinesMonitor(data_texts.any_json().monitor())
            if _LANGUAGES[self.language].by_line:
                return LineMonitor(self)
        return super().monitor()


@dataclass(frozen=True)
class LineMonitor(Monitor):
    """Monitor of a constraint whose verdict changes only where a line ends, or where the text becomes too long."""

    constraint: TextConstraint
    text: str = ""  # the text read so far
    verdict: Verdict = Verdict.UNDECIDED  # the verdict on it

    def read(self, text: str, /) -> Monitor:
        """Judge the whole text again if a line has ended."""
        if self.verdict is not Verdict.UNDECIDED or not text:
            return self
        whole = self.text + text
        judged = "\n" in text or len(whole) > MAX_CHARACTERS
        verdict = run_verdict(self.constraint, whole) if judged else self.verdict
        return LineMonitor(self.constraint, whole, verdict)
