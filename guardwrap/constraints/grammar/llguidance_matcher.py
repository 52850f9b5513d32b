"""Whether a text is in the language of a grammar, and whether it may become one that is: ``llguidance``, within limits.

Its Earley parser reads bytes, each as one token, and takes back none. A text that it does not read to the end begins no
sentence, however it goes on; so judgements and verdicts come from the same steps of the same parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import regex
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, Unsatisfiable, nearest

__all__ = ["Exhausted", "Matcher"]

# Of a grammar. What the library does with one cannot be interrupted; within these it takes at most 0.2 s. The grammar
# of Python that comes with Lark has 391 and 198.
MAX_CHARACTERS = 20_000
MAX_NESTED = 600  # definitions and brackets: each may take 3.2 kB of the stack, at whose end the process ends
MAX_REPEATS = 600  # time and memory are quadratic in them: 10 000 in a row take 0.8 s and 400 MB
_FUEL = 200_000  # of the lexer; the library's own measure

# Of a text. After so many bytes the clock is looked at: one takes 2 µs, and where a grammar is hostile 0.1 s.
_STEP = 16


class Exhausted(Exception):
    """The library gave up: nothing is known about the text."""


class Matcher:
    """What reads texts by one grammar.

    All its matchers share a lexer, which grows with what they read. When it reaches its limit every one of them refuses
    whatever comes, without a word. So a refusal counts only if the lexer still answers afterwards: see ``alive``.

    Parameters
    ----------
    grammar
        In Lark's EBNF.
    start
        The rule that sentences are derived from.

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
            raise Unsatisfiable(f"no text is in the language of {start!r}: it refers to itself without an end")

    def begin(self) -> LLMatcher:
        """Return a matcher that has read nothing."""
        return self._first.deep_copy()

    @property
    def alive(self) -> bool:
        """Whether the lexer still answers: once it gives up it never does again."""
        return not self._canary or self.begin().try_consume_tokens(self._canary) == 1

    def follow(self, matcher: LLMatcher, text: str) -> LLMatcher | None:
        """Return a matcher that has read this too, or None if no sentence goes on like this.

        Raises
        ------
        Exhausted
            If the library gave up.
        TimeLimit
            If the time is over.
        """
        after, read = matcher.deep_copy(), _encoded(text)
        for i in range(0, len(read), _STEP):
            check_deadline()
            step = read[i : i + _STEP]
            if after.try_consume_tokens(step) < len(step):
                self._require(after)
                return None
        return after

    def may_follow(self, matcher: LLMatcher, texts: Sequence[str]) -> list[bool]:
        """Say of each text whether a sentence may go on like this; the matcher stays as it is.

        Raises
        ------
        Exhausted
            If the library gave up.
        TimeLimit
            If the time is over.
        """
        return self.may_follow_bytes(matcher, [text.encode("utf-8", "surrogatepass") for text in texts])

    def may_follow_bytes(self, matcher: LLMatcher, texts: Sequence[bytes]) -> list[bool]:
        """Say the same of texts as bytes of UTF-8, which may end within a character."""
        possible = []
        for text in texts:
            check_deadline()
            read = list(text)
            possible.append(matcher.validate_tokens(read) == len(read))
        if not all(possible):
            self._require(matcher)
        return possible

    def ends(self, matcher: LLMatcher) -> bool:
        """Whether what was read is a sentence."""
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
    # Half of a surrogate pair becomes bytes that are no UTF-8 and match no terminal.
    return list(text.encode("utf-8", "surrogatepass"))


# What a grammar is made of, as the library sees it: what is quoted, and comments, have no part in its structure.
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
    """Return a grammar as the library takes it, or raise ConstraintError: too large, or not of Lark's EBNF."""
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
            f"line {where}: {imported[1]!r} cannot be imported, only common.NAME; write its rules out"
        )
    names = _DEFINED.findall(bare)
    if start not in names:
        raise ConstraintError(f"the grammar has no rule {start!r}{nearest(start, names)}; define it, or say start=")
    lines = [grammar, '%llguidance {"allow_initial_skip": true}']  # as Lark has it: what is ignored may come first, too
    if start != "start":
        if "start" in names:
            raise ConstraintError(f"the grammar has a rule 'start' beside start={start!r}; give it another name")
        lines.append(f"start: {start}")
    return "\n".join(lines)


def _complaint(error: str, grammar: str) -> str:
    """Put what the library complains of into one line."""
    lines = error.splitlines()
    found = regex.match(r"(?:at )?(?:(\d+)\(\d+\): )?(.*)", lines[0])
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    message = found[2].split(";")[0].replace("lexer error", "neither a rule nor a terminal")
    message = message.replace("(in regex): regex parse error:", f"({cause})")[:200]
    if not found[1]:
        return f"the grammar cannot be read: {message}"
    return f"line {min(int(found[1]), grammar.count(chr(10)) + 1)}: {message}"
