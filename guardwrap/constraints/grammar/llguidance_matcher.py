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

from guardwrap.constraints.grammar.terminal_patterns import Literal, not_alone, require_unlike, rewritten
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, Unsatisfiable, nearest

# Limits on a grammar. The library cannot be interrupted while it compiles one, which takes up to 0.2 s within these
# limits. Lark's grammar of Python has 391 definitions and brackets, and 198 repetitions.
MAX_CHARACTERS = 20_000
MAX_NESTED = 600  # definitions and brackets; each may take 3.2 kB of stack, and a stack overflow kills the process
MAX_REPEATS = 600  # repetitions; time and memory are quadratic in them: 10 000 in a row take 0.8 s and 400 MB
MAX_LAZY = 60  # questions about terminals, which take milliseconds each
_FUEL = 200_000  # the lexer's limit, in the library's own unit

# The time limit is checked after this many bytes. One byte takes 2 µs, and up to 0.1 s with a hostile grammar.
_STEP = 16


class Exhausted(Exception):
    """The library reached one of its limits, so nothing is known about the text."""


class Matcher:
    """Parser for one grammar.

    All of its ``LLMatcher`` objects share one lexer, which grows as they read. When the lexer reaches its limit, all of
    them silently reject every byte. So a rejection counts only if the lexer still works afterwards: see ``alive``.
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
        """Return the state after more text, or None if no sentence continues with this text."""
        after, tokens = matcher.deep_copy(), _encoded(text)
        for i in range(0, len(tokens), _STEP):
            check_deadline()
            step = tokens[i : i + _STEP]
            if after.try_consume_tokens(step) < len(step):
                self._require(after)
                return None
        return after

    def may_follow(self, matcher: LLMatcher, texts: Sequence[str]) -> list[bool]:
        """Return, for each text, whether some sentence continues with it. The state does not change."""
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
_QUOTED = regex.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*+"i?)|(?P<comment>(?:\#|//)[^\n]*+)|/(?P<pattern>(?:\\.|[^/\\])++)/(?P<flags>[a-z]*+)"""
)
_DEFINED = regex.compile(r"^[ \t]*[?!]*([A-Za-z_][\w-]*)(?:\.-?\d+)?[ \t]*(?=:|\[[^\]\n]*\][ \t]*:)", regex.MULTILINE)
_FOREIGN = regex.compile(
    r"""%(?!(?:ignore|import)\b)\w* | :: | [^\w\s:|()\[\]{}?*+~.,>!%/"-]
      | ~(?!\s*\d)                                            # not a repetition
      | ^[ \t]*[?!]*[\w-]+[ \t]*\[(?=[^\]\n]*\][ \t]*:)        # options of a rule""",
    regex.MULTILINE | regex.VERBOSE,
)
_IMPORT = regex.compile(r"%import[ \t]+(?!common\b)([\w.]+)")


def prepared(grammar: str, start: str) -> str:
    """Return a grammar in the form that the library expects."""
    if len(grammar) > MAX_CHARACTERS:
        raise ConstraintError(f"the grammar has {len(grammar)} characters; at most {MAX_CHARACTERS} are allowed")
    for characters, most, what in (
        ("([{~:", MAX_NESTED, "colons and brackets"),
        ("?*+", MAX_REPEATS, "repetitions (? * +)"),
    ):
        count = sum(map(grammar.count, characters))
        if count > most:
            raise ConstraintError(f"the grammar has {count} {what}; at most {most} are allowed")
    bare = _blanked(grammar)
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
    if start != "start" and "start" in names:
        raise ConstraintError(f"the grammar has a rule 'start' besides start={start!r}; rename that rule")
    # The library does not read a definition on after a line with only a comment or white space.
    grammar = _QUOTED.sub(lambda quoted: "" if quoted["comment"] is not None else quoted[0], grammar)
    grammar, terminals = _with_first_ends(regex.sub(r"(?m)^[ \t]+$", "", grammar))
    ignored = _ignored(grammar)
    lines = [grammar, *terminals, '%llguidance {"allow_initial_skip": true}']  # as in Lark, ignored text may come first
    if ignored:  # and last, where the library expects another terminal
        if start == "start":
            start = _fresh("start", grammar)
            lines[0] = _renamed(grammar, "start", start)
        lines.append(f"start: {start} ({' | '.join(ignored)})*")
    elif start != "start":
        lines.append(f"start: {start}")
    return "\n".join(lines)


def _blanked(grammar: str) -> str:
    """Return the grammar with quotes for all characters of strings and expressions, and without comments."""

    def blank(quoted: regex.Match[str]) -> str:
        char = " " if quoted["comment"] is not None else '"'
        return "".join("\n" if each == "\n" else char for each in quoted[0])

    text: str = _QUOTED.sub(blank, grammar)
    return text


def _fresh(name: str, grammar: str) -> str:
    """Return a name that the grammar does not have."""
    while regex.search(rf"(?i)\b{name}", grammar):
        name += "_"
    return name


def _renamed(grammar: str, name: str, other: str) -> str:
    """Return the grammar with another name for a rule."""
    bare = _blanked(grammar)
    places = [match.start() for match in regex.finditer(rf"(?<![\w.-]){name}(?![\w-])", bare)]
    for place in reversed(places):
        grammar = grammar[:place] + other + grammar[place + len(name) :]
    return grammar


# The beginning of a definition or a statement, and where its body begins.
_STATEMENT = regex.compile(
    r"^[ \t]*(?:%(?P<word>ignore)\b|%\w+|[?!]*(?P<name>[A-Za-z_][\w-]*)(?:\.-?\d+)?[ \t]*:)", regex.MULTILINE
)


def _bodies(bare: str) -> list[tuple[str, int, int]]:
    """Return the name of each definition, or "%ignore", with the place of its body; "" for other statements."""
    matches = list(_STATEMENT.finditer(bare))
    ends = [*(match.start() for match in matches[1:]), len(bare)]
    return [
        ("%ignore" if match["word"] else match["name"] or "", match.end(), end)
        for match, end in zip(matches, ends, strict=True)
    ]


def _ignored(grammar: str) -> list[str]:
    """Return what each ``%ignore`` ignores, in one line each."""
    bare = _blanked(grammar)
    bodies = [(start, end) for name, start, end in _bodies(bare) if name == "%ignore"]
    return [f"({body})" for start, end in bodies if (body := grammar[start:end].replace("\n", " ").strip())]


def _with_first_ends(grammar: str) -> tuple[str, list[str]]:
    """Return the grammar with names for expressions with lazy quantifiers, and the terminals of these names."""
    prefix, bare, is_empty = _fresh("LAZY", grammar), _blanked(grammar), _Emptiness()
    bodies, terms, lazy, edits = _bodies(bare), dict[str, str](), set[str](), list[tuple[int, int, str]]()

    def line(place: int) -> str:
        return f"line {grammar.count(chr(10), 0, place) + 1}: "

    for name, start, end in bodies:
        literals = list(_QUOTED.finditer(grammar, start, end))
        for match in literals:
            if match["pattern"] is None:
                continue
            try:
                term = rewritten(Literal(match["pattern"], match["flags"]), is_empty)
                if term is not None and not _is_rule(name):
                    lazy.add(name)
                    if bare[start:end].replace('"', "").split() != ["|"] * (len(literals) - 1):
                        raise not_alone()
                    require_unlike([term, *(each[0] for each in literals if each is not match)], is_empty)
            except ConstraintError as error:
                raise ConstraintError(f"{line(match.start())}{error}") from None
            if term is not None:
                terms[f"{prefix}{len(terms)}"] = term
                edits.append((*match.span(), f"{prefix}{len(terms) - 1}"))
    for name, start, end in bodies:
        words = regex.findall(r"[\w-]+", bare[start:end])
        if not _is_rule(name) and lazy.intersection(words) and (len(words) > 1 or bare[start:end].strip() != words[0]):
            raise ConstraintError(f"{line(start)}{not_alone()}")
    for first, last, terminal in reversed(edits):
        grammar = grammar[:first] + terminal + grammar[last:]
    return grammar, [f"{terminal}: {term}" for terminal, term in terms.items()]


def _is_rule(name: str) -> bool:
    return name != "%ignore" and not name.lstrip("_")[:1].isupper()


class _Emptiness:
    """Asks the library whether terminals match no text."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, terminal: str) -> bool:
        self._asked += 1
        if self._asked > MAX_LAZY:
            raise ConstraintError("the grammar has too many lazy quantifiers; name the characters that may come")
        source = LLMatcher.grammar_from_lark(f'start: T | "\\u0000"\nT: {terminal}')
        limits = LLParserLimits(initial_lexer_fuel=_FUEL, verbose_errors=False)
        matcher = LLMatcher(_bytes(), source, log_level=0, limits=limits)
        # The null character is still possible, so the lexer is within its limit.
        return not matcher.is_error() and [byte for byte in range(256) if matcher.validate_tokens([byte])] == [0]


def _complaint(error: str, grammar: str) -> str:
    """Return the library's error message in one line, with the line number in the grammar."""
    lines = error.splitlines()
    match = regex.match(r"(?:at )?(?:(\d+)\(\d+\): )?(.*)", lines[0])
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    message = match[2].split(";")[0].replace("lexer error", "neither a rule nor a terminal")
    message = message.replace(_fresh("start", grammar), "start")
    message = message.replace("params not supported yet", "templates are not supported; write the rule out")
    message = message.replace("priority not supported yet", "priority not supported; leave it out")
    message = message.replace("(in regex): regex parse error:", f"({cause})")[:200]
    if not match[1]:
        return f"the grammar cannot be read: {message}"
    return f"line {min(int(match[1]), grammar.count(chr(10)) + 1)}: {message}"
