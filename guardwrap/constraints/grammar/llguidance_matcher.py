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

from guardwrap.errors import ConstraintError, Unsatisfiable, nearest
from guardwrap.support.time_limits import check_deadline

# Limits on a grammar. The library cannot be interrupted while it compiles one, which takes up to 0.2 s within these
# limits. Lark's grammar of Python has 391 definitions and brackets, and 198 repetitions.
MAX_CHARACTERS = 20_000
MAX_NESTED = 600  # definitions and brackets; each may take 3.2 kB of stack, and a stack overflow kills the process
MAX_REPEATS = 600  # repetitions; time and memory are quadratic in them: 10 000 in a row take 0.8 s and 400 MB
MAX_DEPTH = 100  # open brackets of a regular expression
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
    prefix, bare = _fresh("LAZY", grammar), _blanked(grammar)
    bodies, terms, lazy, edits = _bodies(bare), dict[str, str](), set[str](), list[tuple[int, int, str]]()

    def at(place: int, error: object) -> ConstraintError:
        return ConstraintError(f"line {grammar.count(chr(10), 0, place) + 1}: {error}")

    for name, start, end in bodies:
        literals = list(_QUOTED.finditer(grammar, start, end))
        for match in literals:
            try:
                term = None if match["pattern"] is None else first_end(match["pattern"], match["flags"])
            except ConstraintError as error:
                raise at(match.start(), error) from None
            if term is None:
                continue
            if not _is_rule(name):
                lazy.add(name)
                if len(literals) > 1 or bare[start:end].strip(' \t\n"'):
                    raise at(match.start(), _LAZY)
            terms[f"{prefix}{len(terms)}"] = term
            edits.append((*match.span(), f"{prefix}{len(terms) - 1}"))
    for name, start, end in bodies:
        words = regex.findall(r"[\w-]+", bare[start:end])
        if not _is_rule(name) and lazy.intersection(words) and (len(words) > 1 or bare[start:end].strip() != words[0]):
            raise at(start, _LAZY)
    for first, last, terminal in reversed(edits):
        grammar = grammar[:first] + terminal + grammar[last:]
    return grammar, [f"{terminal}: {term}" for terminal, term in terms.items()]


def _is_rule(name: str) -> bool:
    return name != "%ignore" and not name.lstrip("_")[:1].isupper()


# --------------------------------------------------------------------------------- regular expressions of terminals
# The library ignores anchors and the ``?`` of lazy quantifiers, and knows more operators in sets than Lark.

_ESCAPED = r"\\(?:[pPuxU]\{[^}]*\}|[pP]\w|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|(?s:.))"
_SET = rf"\[\^?+(?:\](?=[^\]]*+\]))?+(?:{_ESCAPED}|[^\]\\])*+\]"
_TIMES = r"(?:[*+?]|\{\d+(?:,\d*)?\})"
_OPEN = r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*+[:)]))?"
_PART = regex.compile(
    rf"(?P<escape>{_ESCAPED})|(?P<set>{_SET})|(?P<times>{_TIMES})(?P<how>[?+]?)|(?P<open>{_OPEN})|(?s:.)"
)
_COMMENT = regex.compile(rf"({_ESCAPED}|{_SET})|\#[^\n]*+")
_OPERATOR = regex.compile(r"(?<!^)(?:\[|&&|~~|(?<!^\[\^?)--)")  # in a set
_OPENINGS = {
    "(?=": "look-around", "(?!": "look-around", "(?<=": "look-around", "(?<!": "look-around",
    "(?>": "an atomic group", "(?(": "a condition", "(?P=": "a backreference", "(?#": "a comment",
}  # fmt: skip
_UNSUPPORTED = regex.compile("|".join(map(regex.escape, _OPENINGS)))
_ANCHORS = "AZzbBGK<>"
_LAZY = (
    "a lazy quantifier is supported only after one character between fixed numbers of others, as in the whole terminal "
    '/".*?"/; name the characters that may come, as in /"[^"]*"/'
)
_CHAR = rf"(?:{_ESCAPED}|{_SET}|[^][\\(){{}}|^$*+?])"
_ONE = rf"(?:{_CHAR}|\((?:\?:)?{_CHAR}(?:\|{_CHAR})*\))"
_FIXED = rf"(?:{_ONE}(?:\{{\d+\}})?)*"
_LAZY_TERMINAL = regex.compile(rf"(?P<flags>(?:\(\?[a-zA-Z]+\))?)(?P<begin>{_FIXED}{_ONE}{_TIMES})\?(?P<end>{_FIXED})")


def first_end(pattern: str, flags: str) -> str | None:
    """Return a terminal that ends at the first possible end of an expression; None if it has no lazy quantifier.

    Of what a single lazy quantifier of one character and fixed numbers of others match, it is what no shorter match
    begins: ``T & ~(T ANY+)``.
    """
    if not _has_lazy(pattern, verbose="x" in flags):
        return None
    match = _LAZY_TERMINAL.fullmatch(pattern)
    if match is None or "x" in flags:
        raise ConstraintError(_LAZY)
    greedy = f"/{match['flags']}{match['begin']}{match['end']}/{flags}"
    return f"({greedy}) & ~(({greedy}) /(?s:.)/+)"


def _has_lazy(pattern: str, *, verbose: bool) -> bool:
    """Whether an expression has a lazy quantifier. What the library would read otherwise than Lark is rejected."""
    lazy, depth = False, 0
    for part in _PART.finditer(_COMMENT.sub(lambda match: match[1] or "", pattern) if verbose else pattern):
        if opening := _UNSUPPORTED.match(part.string, part.start()):
            raise ConstraintError(
                f"{_OPENINGS[opening[0]]} ({opening[0]}…) is not supported in a regular expression; leave it out"
            )
        if part[0] in ("^", "$") or (part["escape"] and part[0][1] in _ANCHORS):
            raise ConstraintError(
                f"the anchor {part[0]!r} is not supported in a terminal; leave it out, or use a Regex rule too"
            )
        if part["escape"] and part[0][1] in "123456789":
            raise ConstraintError(f"the backreference {part[0]!r} is not supported; write its text out")
        if part["set"] and (operator := _OPERATOR.search(regex.sub(_ESCAPED, "x", part[0]))):
            raise ConstraintError(f"{operator[0]!r} within [] is not supported; put a backslash before it")
        if part["how"] == "+":
            raise ConstraintError(f"the possessive quantifier {part[0]!r} is not supported; leave out its last +")
        lazy |= part["how"] == "?" and regex.fullmatch(r"\{\d+\}", part["times"]) is None
        depth += 0 if part["escape"] else part[0].startswith("(") - part[0].endswith(")")  # (?i) opens nothing
        if depth > MAX_DEPTH:
            raise ConstraintError(f"invalid regex (groups are nested deeper than {MAX_DEPTH})")
    return lazy


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
