"""A constraint on syntax: the text is in the language of a context-free grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, TypeVar

from llguidance import LLMatcher

from guardwrap.constraints.base import about, require
from guardwrap.constraints.grammar.llguidance_matcher import Exhausted, Matcher
from guardwrap.constraints.kinds.text import TextConstraint, require_choice
from guardwrap.constraints.utf8 import REPLACEMENT
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import VIEWS, View
from guardwrap.documents.time_limits import VERDICT_SECONDS, TimeLimit, time_limit
from guardwrap.documents.yaml_nodes import path_beside, read_text
from guardwrap.errors import CheckFailed, is_count

__all__ = ["Grammar", "csv"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, eq=False, repr=False)
class Grammar(TextConstraint):
    r"""The whole text is in the language of a context-free grammar (Earley's algorithm, through ``llguidance``).

    Parameters
    ----------
    grammar
        Rules and terminals in Lark's EBNF.
    file
        A file of them instead. One that a constraint file names is looked for beside it.
    start
        The rule that sentences are derived from.
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If the grammar cannot be read; names the line.
    Unsatisfiable
        If no text is in its language.

    Notes
    -----
    A terminal takes as many characters as any terminal that may stand there can: with ``A: /a+/`` and ``B: /ab/``,
    ``A B`` does not match ``aab``. Regular expressions are those of Rust's ``regex`` crate, without look-around.
    ``%import common.NAME``, aliases (``-> name``), ``?rule``, ``!rule`` and ``%ignore`` are as in Lark; templates,
    priorities, other imports, ``%declare``, ``%override`` and ``%extend`` are refused.

    A prefix is VIOLATED where the parser cannot go on: where no sentence begins like this. Two things it does not see
    before it is there: that a terminal which has begun can no longer end in time, and that a rule derives nothing.

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
        require((self.grammar is None) is not (file is None), "Grammar needs the grammar, or a file with it")
        require(file is None or isinstance(file, str), f"file must be a path, not {type(file).__name__}")
        if file is not None:  # the spelling is that of what stands in it
            object.__setattr__(self, "grammar", read_text(path_beside(file)))
        require(isinstance(self.grammar, str), f"grammar must be a string, not {type(self.grammar).__name__}")
        require(isinstance(self.start, str), f"start must be the name of a rule, not {type(self.start).__name__}")
        require_choice(self.on, VIEWS, "on")
        # What is wrong with the grammar is reported here, not at the first text.
        with about("grammar" if file is None else "file"):
            self.recogniser  # noqa: B018

    @property
    def recogniser(self) -> Matcher:
        """What reads texts; a new one where the last gave up."""
        found: Matcher | None = self.__dict__.get("_recogniser")
        if found is None or not found.alive:
            found = self.__dict__["_recogniser"] = Matcher(str(self.grammar), self.start)
        return found

    def __getstate__(self) -> dict[str, Any]:
        # The recogniser is not to be pickled; a copy makes its own.
        return {key: value for key, value in self.__dict__.items() if key != "_recogniser"}

    def holds(self, text: str) -> bool:
        """Parse one string."""

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
        """VIOLATED where no sentence begins like this."""
        try:
            return self._reading(prefix).verdict
        except Exhausted:
            return Verdict.UNDECIDED

    def monitor(self) -> Monitor:
        """Return a monitor whose steps cost what is new: 2 µs a byte, and 30 ns for each byte before."""
        return self._reading("") if self.on == "completion" else super().monitor()

    def _reading(self, text: str) -> _Reading:
        def read(recogniser: Matcher) -> _Reading:
            return _Reading(self, text, recogniser, recogniser.follow(recogniser.begin(), text))

        return self._ask(read)

    def _ask(self, question: Callable[[Matcher], _Answer]) -> _Answer:
        """Ask what reads texts; once more where other texts had used it up."""
        recogniser = self.recogniser
        try:
            return question(recogniser)
        except Exhausted:
            if recogniser.alive:
                raise
        return question(self.recogniser)


@dataclass(frozen=True)
class _Reading(Monitor):
    """A text read so far."""

    grammar: Grammar
    text: str
    recogniser: Matcher
    matcher: LLMatcher | None  # None: no sentence begins like this
    lost: bool = False  # took too long, or too much

    @property
    def verdict(self) -> Verdict:
        """VIOLATED where no sentence begins like this."""
        return Verdict.VIOLATED if self.matcher is None and not self.lost else Verdict.UNDECIDED

    def read(self, text: str, /) -> _Reading:
        """Let the parser go on from where it is."""
        if self.matcher is None:
            return self
        longer = self.text + text
        try:
            with time_limit(VERDICT_SECONDS):
                try:
                    return _Reading(self.grammar, longer, self.recogniser, self.recogniser.follow(self.matcher, text))
                except Exhausted:  # perhaps by other texts
                    return self.grammar._reading(longer)
        except (TimeLimit, Exhausted):
            return _Reading(self.grammar, "", self.recogniser, None, lost=True)

    def may_begin(self, partial: bytes, /) -> bool:
        """Look whether the parser, which reads bytes, could go on with these, or with U+FFFD."""
        if self.matcher is None:
            return self.lost
        try:
            with time_limit(VERDICT_SECONDS):
                return any(self.recogniser.may_follow_bytes(self.matcher, (partial, REPLACEMENT.encode())))
        except (TimeLimit, Exhausted):
            return True

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Look which candidates the parser could go on with; it stays where it is."""
        if self.matcher is None:
            return [self.verdict] * len(texts)
        try:
            with time_limit(VERDICT_SECONDS):
                possible = self.recogniser.may_follow(self.matcher, texts)
        except (TimeLimit, Exhausted):
            return super().verdicts(texts)
        return [Verdict.UNDECIDED if may else Verdict.VIOLATED for may in possible]


# RFC 4180, with line feeds alone too.
_CSV = r"""
start: record (NEWLINE record)* NEWLINE?
field: [TEXT | QUOTED]
TEXT: /[^",\r\n]+/
QUOTED: /"([^"]|"")*"/
NEWLINE: /\r?\n/
"""


def csv(columns: int, *, on: View = "completion", name: str | None = None) -> Grammar:
    r"""Return the constraint that a text is CSV (RFC 4180) with so many columns in every line.

    Parameters
    ----------
    columns
        How many, at least 1.
    on, name
        As of Grammar.

    Examples
    --------
    >>> csv(2).accepts('name,born\n"King, Ada",1815\n')
    True
    >>> csv(2).verdict("Ada,1815,").name
    'VIOLATED'
    """
    require(is_count(columns) and 1 <= columns <= 10_000, "columns must be a whole number of 1 to 10000")
    more = f' ("," field)~{columns - 1}' if columns > 1 else ""
    return Grammar(f"record: field{more}{_CSV}", on=on, name=name)
