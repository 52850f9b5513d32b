"""Parsing by a grammar with ``llguidance``, within limits on size and time.

The library's Earley parser reads bytes, one token each, and never backtracks. If it rejects a byte, no text of the
language begins with the bytes so far. Judgements of whole texts and verdicts on prefixes therefore use the same steps.
In comments here, a sentence is a text of the language.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import regex
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, Unsatisfiable, nearest

__all__ = ["Exhausted", "Matcher"]

# Limits on a grammar. The library cannot be interrupted while it compiles one, which takes up to 0.2 s within these
# limits. Lark's grammar of Python has 391 definitions and brackets, and 198 repetitions.
MAX_CHARACTERS = 20_000
MAX_NESTED = 600  # definitions and brackets; each may take 3.2 kB of stack, and a stack overflow kills the process
MAX_REPEATS = 600  # repetitions; time and memory are quadratic in them: 10 000 in a row take 0.8 s and 400 MB
_FUEL = 200_000  # the lexer's limit, in the library's own unit

# The time limit is checked after this many bytes. One byte takes 2 µs, and up to 0.1 s with a hostile grammar.
_STEP = 16


class Exhausted(Exception):
    """The library reached one of its limits, so nothing is known about the text."""


class Matcher:
    """Parser for one grammar.

    All of its ``LLMatcher`` objects share one lexer, which grows as they read. When the lexer reaches its limit, all of
    them silently reject every byte. So a rejection counts only if the lexer still works afterwards: see ``alive``.

    Parameters
    ----------
    grammar
        Rules and terminals in Lark's EBNF.
    start
        The rule that the whole text must match.

    Raises
    ------
    ConstraintError
        If the grammar cannot be read.
    Unsatisfiable
        If no text is in its language.
    """

    def __init__(self, grammar: str, start: str) -> None:
        source = LLMatcher.grammar_from_lark(prepared(grammar, start))
        limits = LLParserLimits(initial_lexer_fuel=_FUEL, verbose_errors=False)
        self._first = LLMatcher(_bytes(), source, log_level=0, limits=limits)
        if self._first.is_error():
            raise ConstraintError(_complaint(self._first.get_error(), grammar))
        self._canary = [byte for byte in range(256) if self._first.validate_tokens([byte])][:1]
        if not (self._canary or self._first.is_accepting()):
            raise Unsatisfiable(f"the rule {start!r} matches no text: it refers to itself without end")

    def begin(self) -> LLMatcher:
        """Return the state of the parser before any text."""
        return self._first.deep_copy()

    @property
    def alive(self) -> bool:
        """Whether the lexer is still within its limit. Once it is not, this parser is of no further use."""
        return not self._canary or self.begin().try_consume_tokens(self._canary) == 1

    def follow(self, matcher: LLMatcher, text: str) -> LLMatcher | None:
        """Return the state after more text, or None if no sentence continues with this text.

        Parameters
        ----------
        matcher
            The state before the text; it does not change.
        text
            The text that follows.

        Raises
        ------
        Exhausted
            If the library reached one of its limits.
        TimeLimit
            If the time limit is exceeded.
        """
        after, tokens = matcher.deep_copy(), _encoded(text)
        for i in range(0, len(tokens), _STEP):
            check_deadline()
            step = tokens[i : i + _STEP]
            if after.try_consume_tokens(step) < len(step):
                self._require(after)
                return None
        return after

    def may_follow(self, matcher: LLMatcher, texts: Sequence[str]) -> list[bool]:
        """Return, for each text, whether some sentence continues with it. The state does not change.

        Raises
        ------
        Exhausted
            If the library reached one of its limits.
        TimeLimit
            If the time limit is exceeded.
        """
        return self.may_follow_bytes(matcher, [text.encode("utf-8", "surrogatepass") for text in texts])

    def may_follow_bytes(self, matcher: LLMatcher, texts: Sequence[bytes]) -> list[bool]:
        """Do the same as ``may_follow`` for UTF-8 bytes, which may end in the middle of a character."""
        possible = []
        for text in texts:
            check_deadline()
            tokens = list(text)
            possible.append(matcher.validate_tokens(tokens) == len(tokens))
        if not all(possible):
            self._require(matcher)
        return possible

    def ends(self, matcher: LLMatcher) -> bool:
        """Whether the text read so far is a sentence."""
        if matcher.is_accepting():
            return True
        self._require(matcher)
        return False

    def _require(self, matcher: LLMatcher) -> None:
        if matcher.is_error() or not self.alive:
            raise Exhausted


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def _encoded(text: str) -> list[int]:
    # Half of a surrogate pair becomes bytes that are not UTF-8, which no terminal matches.
    return list(text.encode("utf-8", "surrogatepass"))


# Parts of a grammar as the library reads it. Strings, regular expressions and comments are blanked out first.
_QUOTED = regex.compile(r'"(?:\\.|[^"\\\n])*+"|(?:\#|//)[^\n]*+|/(?:\\.|[^/\\])++/')
_DEFINED = regex.compile(r"^[ \t]*[?!]*([A-Za-z_][\w-]*)(?:\.-?\d+)?[ \t]*(?=:|\[[^\]\n]*\][ \t]*:)", regex.MULTILINE)
_FOREIGN = regex.compile(
    r"""%(?!(?:ignore|import)\b)\w* | :: | [^\w\s:|()\[\]{}?*+~.,>!%/"-]
      | ~(?!\s*\d)                                            # not a repetition
      | ^[ \t]*[?!]*[\w-]+[ \t]*\[(?=[^\]\n]*\][ \t]*:)        # options of a rule""",
    regex.MULTILINE | regex.VERBOSE,
)
_IMPORT = regex.compile(r"%import[ \t]+(?!common\b)([\w.]+)")


def prepared(grammar: str, start: str) -> str:
    """Return a grammar in the form that the library expects.

    Raises
    ------
    ConstraintError
        If the grammar is too large, uses syntax that is not supported, or lacks the rule ``start``.
    """
    if len(grammar) > MAX_CHARACTERS:
        raise ConstraintError(f"the grammar has {len(grammar)} characters; at most {MAX_CHARACTERS} are allowed")
    for characters, most, what in (
        ("([{~:", MAX_NESTED, "colons and brackets"),
        ("?*+", MAX_REPEATS, "repetitions (? * +)"),
    ):
        count = sum(map(grammar.count, characters))
        if count > most:
            raise ConstraintError(f"the grammar has {count} {what}; at most {most} are allowed")
    bare = _QUOTED.sub(lambda quoted: '"' + "\n" * quoted[0].count("\n") + '"', grammar)
    if foreign := _FOREIGN.search(bare):
        where = bare[: foreign.end()].count("\n") + 1
        raise ConstraintError(
            f"line {where}: {foreign[0].strip()!r} is not supported; a grammar is made of rules, terminals, "
            "%import common.NAME and %ignore, in Lark's EBNF"
        )
    if imported := _IMPORT.search(bare):
        where = bare[: imported.start()].count("\n") + 1
        raise ConstraintError(
            f"line {where}: {imported[1]!r} cannot be imported, only common.NAME; copy its rules into the grammar"
        )
    names = _DEFINED.findall(bare)
    if start not in names:
        raise ConstraintError(f"the grammar has no rule {start!r}{nearest(start, names)}; define it, or set start=")
    lines = [grammar, '%llguidance {"allow_initial_skip": true}']  # as in Lark, ignored text may come first
    if start != "start":
        if "start" in names:
            raise ConstraintError(f"the grammar has a rule 'start' besides start={start!r}; rename that rule")
        lines.append(f"start: {start}")
    return "\n".join(lines)


def _complaint(error: str, grammar: str) -> str:
    """Return the library's error message in one line, with the line number in the grammar."""
    lines = error.splitlines()
    match = regex.match(r"(?:at )?(?:(\d+)\(\d+\): )?(.*)", lines[0])
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    message = match[2].split(";")[0].replace("lexer error", "neither a rule nor a terminal")
    message = message.replace("(in regex): regex parse error:", f"({cause})")[:200]
    if not match[1]:
        return f"the grammar cannot be read: {message}"
    return f"line {min(int(match[1]), grammar.count(chr(10)) + 1)}: {message}"
