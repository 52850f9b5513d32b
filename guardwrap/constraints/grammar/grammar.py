"""The ``Grammar`` constraint on syntax, and ``csv``, a ready-made grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, TypeVar

from llguidance import LLMatcher

from guardwrap.constraints.field_checks import about, require
from guardwrap.constraints.grammar.llguidance_matcher import Exhausted, Matcher
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import REPLACEMENT, Monitor, Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import CheckFailed, is_count
from guardwrap.support.time_limits import VERDICT_SECONDS, OutOfTime, time_limit
from guardwrap.support.yaml_nodes import path_beside, read_text

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, eq=False, repr=False)
class Grammar(TextConstraint):
    r"""The whole text is in the language of a context-free grammar (Earley's algorithm, through ``llguidance``).

    Parameters
    ----------
    grammar
        Rules and terminals in Lark's EBNF.
    file
        Path of a file that holds the grammar, instead of ``grammar``. In a constraint file, a relative path is relative
        to that file.
    start
        The rule that the whole text must match.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If the grammar cannot be read; the message names the line.
    Unsatisfiable
        If no text is in its language.

    Notes
    -----
    Terminals are greedy: the longest match of all terminals that are possible at a position wins. With ``A: /a+/`` and
    ``B: /ab/``, ``A B`` does not match ``aab``. A lazy quantifier, as in ``/".*?"/``, ends its terminal at the first
    possible end, as in Lark; it repeats one character, between fixed numbers of others. Regular expressions are those
    of Rust's ``regex`` crate, without look-around, anchors, possessive quantifiers and operators within ``[]``.
    ``%import common.NAME``, aliases (``-> name``), ``?rule``, ``!rule`` and ``%ignore`` are as in Lark; templates,
    priorities, other imports, ``%declare``, ``%override`` and ``%extend`` are rejected.

    A prefix is VIOLATED once no text of the language begins with it. In two cases the parser notices this late: when a
    terminal that has begun can no longer be completed in time, and when a rule derives no text at all.

    Examples
    --------
    >>> sums = Grammar('start: N ("+" N)*\nN: /[0-9]+/\n%ignore " "')
    >>> sums.accepts("1 + 22+3")
    True
    >>> sums.verdict("1 +").name, sums.verdict("1 + +").name
    ('UNDECIDED', 'VIOLATED')
    """

    grammar: str | None = None
    file: InitVar[str | None] = field(default=None, kw_only=True)
    start: str = field(default="start", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["grammar"] = field(default="grammar", kw_only=True)

    def __post_init__(self, file: str | None) -> None:
        require((self.grammar is None) is not (file is None), "Grammar needs either a grammar or a file that holds one")
        require(file is None or isinstance(file, str), f"file must be a path, not {type(file).__name__}")
        if file is not None:  # the canonical form holds the file's contents, not its path
            object.__setattr__(self, "grammar", read_text(path_beside(file)))
        require(isinstance(self.grammar, str), f"grammar must be a string, not {type(self.grammar).__name__}")
        require(isinstance(self.start, str), f"start must be the name of a rule, not {type(self.start).__name__}")
        object.__setattr__(self, "on", read_view(self.on))
        # Report mistakes in the grammar now, not at the first text.
        with about("grammar" if file is None else "file"):
            self.recogniser  # noqa: B018

    @property
    def recogniser(self) -> Matcher:
        """The parser for this grammar. It is replaced by a new one after it has exceeded its limits."""
        matcher: Matcher | None = self.__dict__.get("_recogniser")
        if matcher is None or not matcher.alive:
            matcher = self.__dict__["_recogniser"] = Matcher(str(self.grammar), self.start)
        return matcher

    def __getstate__(self) -> dict[str, Any]:
        # The parser cannot be pickled; a copy creates its own.
        return {key: value for key, value in self.__dict__.items() if key != "_recogniser"}

    def holds(self, text: str) -> bool:
        def is_sentence(recogniser: Matcher) -> bool:
            matcher = recogniser.follow(recogniser.begin(), text)
            return matcher is not None and recogniser.ends(matcher)

        try:
            return self._ask(is_sentence)
        except Exhausted:
            reason = (
                f"is too ambiguous for one text of {len(text)} characters; make repetitions left-recursive (x: x y | y)"
            )
            raise CheckFailed(self.title, reason) from None

    def prefix_verdict(self, prefix: str) -> Verdict:
        try:
            return self._reading(prefix).verdict
        except Exhausted:
            return Verdict.UNDECIDED

    def monitor(self) -> Monitor:
        """Return a monitor. Each step takes 2 µs per new byte and 30 ns per byte read before."""
        return self._reading("") if self.on == "completion" else super().monitor()

    def _reading(self, text: str) -> _Reading:
        def read(recogniser: Matcher) -> _Reading:
            return _Reading(self, text, recogniser, recogniser.follow(recogniser.begin(), text))

        return self._ask(read)

    def _ask(self, question: Callable[[Matcher], _Answer]) -> _Answer:
        """Ask the parser. If other texts have used up its limits, ask a new parser."""
        recogniser = self.recogniser
        try:
            return question(recogniser)
        except Exhausted:
            if recogniser.alive:
                raise
        return question(self.recogniser)


@dataclass(frozen=True)
class _Reading(Monitor):
    """Monitor of a grammar after the text read so far."""

    grammar: Grammar
    text: str
    recogniser: Matcher
    matcher: LLMatcher | None  # None if no text of the language begins with this one, or if ``lost``
    lost: bool = False  # whether reading exceeded the time limit or the parser's limits

    @property
    def verdict(self) -> Verdict:
        return Verdict.VIOLATED if self.matcher is None and not self.lost else Verdict.UNDECIDED

    def read(self, text: str, /) -> _Reading:
        if self.matcher is None:
            return self
        longer = self.text + text
        try:
            with time_limit(VERDICT_SECONDS):
                try:
                    return _Reading(self.grammar, longer, self.recogniser, self.recogniser.follow(self.matcher, text))
                except Exhausted:  # other texts may have used up the parser's limits, so try again with a new one
                    return self.grammar._reading(longer)
        except (OutOfTime, Exhausted):
            return _Reading(self.grammar, "", self.recogniser, None, lost=True)

    def may_begin(self, partial: bytes, /) -> bool:
        """Return whether the parser, which reads bytes, accepts these bytes or U+FFFD next."""
        if self.matcher is None:
            return self.lost
        try:
            with time_limit(VERDICT_SECONDS):
                return any(self.recogniser.may_follow_bytes(self.matcher, (partial, REPLACEMENT.encode())))
        except (OutOfTime, Exhausted):
            return True

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        if self.matcher is None:
            return [self.verdict] * len(texts)
        try:
            with time_limit(VERDICT_SECONDS):
                possible = self.recogniser.may_follow(self.matcher, texts)
        except (OutOfTime, Exhausted):
            return super().verdicts(texts)
        return [Verdict.UNDECIDED if may else Verdict.VIOLATED for may in possible]


# RFC 4180, except that a line may also end with a line feed alone.
_CSV = r"""
start: record (NEWLINE record)* NEWLINE?
field: [TEXT | QUOTED]
TEXT: /[^",\r\n]+/
QUOTED: /"([^"]|"")*"/
NEWLINE: /\r?\n/
"""


def csv(columns: int, *, on: View = "completion", name: str | None = None) -> Grammar:
    r"""Return the constraint that a text is CSV (RFC 4180) with the same number of columns in every record.

    Parameters
    ----------
    columns
        The number of columns, from 1 to 10000.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Examples
    --------
    >>> csv(2).accepts('name,born\n"King, Ada",1815\n')
    True
    >>> csv(2).verdict("Ada,1815,").name
    'VIOLATED'
    """
    require(is_count(columns) and 1 <= columns <= 10_000, "columns must be a whole number from 1 to 10000")
    more = f' ("," field)~{columns - 1}' if columns > 1 else ""
    return Grammar(f"record: field{more}{_CSV}", on=on, name=name)
