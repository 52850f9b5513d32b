"""Compiles regular expressions within limits, and decides which prefix verdicts are sound for each.

The analysis parses an expression with the standard library's parser and looks at every operation. Whatever is not known
to be safe gets the cautious answer, including each construct that the ``regex`` module reads differently from ``re``.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined, unused-ignore]  # the parser that `re` itself uses
from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any, Literal, NamedTuple

import regex

from guardwrap.constraints.verdicts import characters
from guardwrap.errors import ConstraintError, quoted
from guardwrap.support.limits import MAX_FIXED, MAX_ITEMS, MAX_SETS, count_items
from guardwrap.support.time_limits import check_deadline, matches, within

_CONSUMING = {op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY}
_BEGINNINGS = {op.AT_BEGINNING, op.AT_BEGINNING_STRING}
_ENDS = {op.AT_END, op.AT_END_STRING}
_OUTER = _BEGINNINGS | _ENDS
_REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT}
# `regex` gives {e<=1}, [[ ... ]] and [:alpha:] special meanings, where `re` sees literal characters.
_FOREIGN = re.compile(r"\{(?!\d*,?\d*\})|\[\[|\[:|&&|\|\||--|~~")

_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,\d*)?\}|.", re.DOTALL)

# Control characters that \b and \1 to \7 become in double quotes. Nobody writes them in an expression on purpose.
_LOST = {"\b": r"\b"} | {chr(digit): rf"\{digit}" for digit in range(1, 8)}

# Index, in a compiled expression's pickled data, of the fixed text that every match contains. At the first search
# `regex` builds a table from this text, which no timeout interrupts, so its length is limited.
_REQUIRED = 8

_ALONE = threading.Lock()


class _Unknown(Exception):
    """The expression contains an operation that is not known to be safe."""


@contextmanager
def filtered_warnings(action: Literal["ignore", "error"], message: str = "") -> Iterator[None]:
    """Ignore warnings whose message begins with ``message``, or raise them as errors, within the context.

    A lock is held meanwhile. Warning filters belong to the whole process, so two threads at once would each restore
    what the other had set.
    """
    with _ALONE, warnings.catch_warnings():
        warnings.filterwarnings(action, message)
        yield


def compile_pattern(pattern: str, flags: Sequence[str] = (), *, spelling: str | None = None) -> Any:
    """Compile an expression with the ``regex`` module, version 0 behaviour."""
    spelling = pattern if spelling is None else spelling
    shown = quoted(spelling[:80])
    if spelling.count("[") > MAX_SETS:
        raise ConstraintError(f"regular expression {shown} has more than {MAX_SETS} '['; write fewer sets")
    # A long set costs about as much as one item for every two of its characters.
    count_items(max(_items(pattern), len(pattern) // 2), f"regular expression {shown} expands to")
    tokens = () if _LOST.keys().isdisjoint(spelling) else map(re.Match.group, _TOKENS.finditer(spelling))
    if lost := next((token for token in tokens if token in _LOST), None):
        raise ConstraintError(
            f"regular expression {shown} contains the control character U+{ord(lost):04X}, to which double quotes turn "
            rf"{_LOST[lost]}: use single quotes (YAML), r'...' (Python) or two backslashes (JSON); "
            rf"to match the control character itself, write \x{ord(lost):02x} with its backslash"
        )
    bits = regex.VERSION0
    for flag in flags:
        bits |= getattr(regex, flag.upper())
    try:
        # Not cached, because the module shrinks its cache with the global random generator, which is the user's.
        with filtered_warnings("ignore"):  # deprecation warnings concern the expression's author, not its user
            compiled = regex.compile(pattern, bits, cache_pattern=False)
    except Exception as error:  # regex.error, but also OverflowError, RecursionError, ValueError, KeyError …
        position = getattr(error, "pos", None)
        where = f" at position {position}" if position is not None else ""
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise ConstraintError(f"invalid regular expression {shown}{where}: {reason[:200]}") from None
    if len(compiled._pickled_data[_REQUIRED]) > MAX_FIXED:
        raise ConstraintError(
            f"regular expression {shown} requires more than {MAX_FIXED} fixed characters in a row; use a Keyword"
        )
    return compiled


def _items(pattern: str) -> int:
    """Estimate how many items the expression has once its fixed repeats are expanded. Errs on the high side."""
    sizes, last = [0], 0
    for token in _TOKENS.finditer(pattern):
        text = token.group()
        if text == "(":
            sizes.append(0)
            last = 0
            continue
        if text == ")":
            last = sizes.pop() if len(sizes) > 1 else sizes[0]
        elif token.group(1) is not None:
            count = int(token.group(1)[:12])
            last, added = last * max(count, 1), last * max(count - 1, 0)
            sizes[-1] += added
            continue
        else:
            last = 1
        sizes[-1] += last
    return sum(sizes)


class Extent(NamedTuple):
    """What is known about an expression's matches in a text that is still growing."""

    # The number w such that a match that ends at least w characters before the end of a prefix is also a match in every
    # text that begins with the prefix. None if no such number is known.
    lookahead: int | None = None
    # The length of the longest possible match, in characters. None if there is no limit, or it is not known.
    widest: int | None = None
    # whether the expression has no zero-width assertion, so that a failed partial match proves that no text beginning
    # with the prefix matches
    only_consumes: bool = False
    dies: bool = False  # whether a failed partial search proves that no text beginning with the prefix has a match

    @property
    def reach(self) -> int | None:
        """How many characters from the start of a match decide where it ends; None if not known."""
        return None if self.widest is None or self.lookahead is None else self.widest + self.lookahead


def extent(pattern: str, flags: Sequence[str]) -> Extent:
    """Return what is known about the matches of an expression with these flags (names, such as ``"ignorecase"``)."""
    parsed = parse_pattern(pattern, flags)
    if parsed is None:
        return Extent()
    width = int(parsed.getwidth()[1])
    widest = width if width < MAX_ITEMS else None
    operations = list(_flatten(parsed, parsed.state.flags))
    only_consumes = all(code in _CONSUMING for code, _, _ in operations)
    # The answers of ^ and \A never change as a text grows. A $ or \Z that comes last fails in a partial search only if
    # it fails in every longer text too. An earlier one may match at the end of the prefix, inside a group whose other
    # branches are then never tried, although a longer text needs them: see ^(?>$|\n)b.
    plain = all(code in _CONSUMING or (code is op.AT and argument in _OUTER) for code, argument, _ in operations)
    dies = plain and sum(code is op.AT and argument in _ENDS for code, argument, _ in operations) == _last_words(parsed)
    try:
        reaches = (_reach(code, argument, active) for code, argument, active in operations)
        return Extent(max(reaches, default=0), widest, only_consumes, dies)
    except _Unknown:
        return Extent(None, widest, only_consumes, dies)


class Occurrences(NamedTuple):
    """An expression of something that occurs in texts."""

    compiled: Any  # the compiled expression
    reach: int | None  # how many characters from the start of a match decide where it ends; None if not known

    def find(self, text: str, *, settled: bool = False) -> Iterator[Any]:
        """Yield the matches in a text; if ``settled``, those that every text that begins with it has."""
        if settled and self.reach is None:
            return
        last = len(text) - (self.reach or 0) * settled
        yield from (match for match in matches(self.compiled, text) if match.start() <= last)


def occurrences(pattern: str, *, ignore_case: bool) -> Occurrences:
    """Return an expression of something that occurs in texts."""
    if not isinstance(pattern, str):
        raise ConstraintError(f"pattern must be a string, not {type(pattern).__name__}")
    flags = ("ignorecase",) if ignore_case else ()
    compiled = compile_pattern(pattern, flags)
    if compiled.fullmatch("") is not None:
        raise ConstraintError("it matches the empty text, which occurs everywhere")
    return Occurrences(compiled, extent(pattern, flags).reach)


def _last_words(parsed: Any) -> int:
    """Count the assertions of the end of the text that come last in the expression, in any of its branches."""
    if not len(parsed):
        return 0
    code, argument = parsed[-1]
    if code is op.BRANCH:
        return sum(map(_last_words, argument[1]))
    if code is op.SUBPATTERN:
        return _last_words(argument[3])
    return int(code is op.AT and argument in _ENDS)


def parse_pattern(pattern: str, flags: Sequence[str], *, as_re: bool = False) -> Any:
    """Return the operations of an expression, as the standard library's parser gives them."""
    if _FOREIGN.search(pattern) and not as_re:
        return None
    bits = 0
    for flag in flags:
        bits |= getattr(re, flag.upper())
    try:
        with filtered_warnings("error", "Possible "):  # "Possible nested set": `re` and `regex` read it differently
            parsed = parser.parse(pattern, bits)
            parsed.getwidth()
            return parsed
    except (re.error, OverflowError, RecursionError, Warning):
        return None


def _flatten(parsed: Iterable[tuple[Any, Any]], flags: int) -> Iterable[tuple[Any, Any, int]]:
    """Yield the operations inside groups, branches and repeats, each with the flags that apply to it."""
    for code, argument in parsed:
        if code is op.BRANCH:
            for branch in argument[1]:
                yield from _flatten(branch, flags)
        elif code is op.SUBPATTERN:
            _, added, dropped, body = argument
            yield from _flatten(body, (flags | added) & ~dropped)
        elif code in _REPEATS:
            yield from _flatten(argument[2], flags)
        else:
            yield code, argument, flags


def _reach(code: Any, argument: Any, flags: int) -> int:
    """Return how many characters beyond its own position an operation looks at; raise ``_Unknown`` if not known."""
    if code in _CONSUMING or code is op.GROUPREF:
        return 0
    if code is op.AT:
        if argument in _BEGINNINGS:
            return 0
        if argument in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
            return 1
        if argument is op.AT_END and flags & re.MULTILINE:
            return 1
    if code in (op.ASSERT, op.ASSERT_NOT):
        direction, body = argument
        if all(inner in _CONSUMING for inner, _, _ in _flatten(body, flags)):
            width = body.getwidth()[1]
            if direction < 0:
                return 0
            if width < 1000:
                return int(width)
    raise _Unknown


_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}
_MOST_CHARACTERS = 4096  # the most characters that are sorted into groups, which takes up to 0.1 s
_MOST_SETS = 100  # the most different sets of characters in an expression that is analyzed


@lru_cache(1024)
def character_kinds(pattern: str, flags: tuple[str, ...], partial: bytes) -> str | None:
    """Group the characters that begin with these bytes by how an expression treats them; return one of each group."""
    sets = _sets(pattern, flags)
    if sets is None:
        return None
    text = characters(partial)
    groups: list[Iterable[str]] = [text]
    for each in sets:
        check_deadline()
        if len(text) > _MOST_CHARACTERS:
            if within(each.search, text):
                return None
            continue
        inside = each.findall(text)
        if 0 < len(inside) < len(text):
            some = set(inside)
            groups = [part for group in groups for part in (some.intersection(group), set(group) - some) if part]
    return "".join(sorted(map(min, groups)))


@lru_cache(64)
def _sets(pattern: str, flags: tuple[str, ...]) -> list[Any] | None:
    """Compile each set of characters in an expression; a single character counts as a set."""
    parsed = parse_pattern(pattern, flags)
    if parsed is None:
        return None
    sources = {(set_source(code, argument), active) for code, argument, active in _flatten(parsed, parsed.state.flags)}
    if len(sources) > _MOST_SETS:
        return None
    names = ("IGNORECASE", "ASCII", "DOTALL")
    return [
        regex.compile(
            source, sum((getattr(regex, name) for name in names if active & getattr(re, name)), regex.VERSION0)
        )
        for source, active in sorted(sources)
    ]


def set_source(code: Any, argument: Any) -> str:
    """Return an operation that consumes one character as an expression."""
    if code is op.ANY:
        return "."
    items = argument if code is op.IN else [(op.LITERAL, argument)]
    spelled = "^" if code is op.NOT_LITERAL else ""
    for kind, value in items:
        if kind is op.NEGATE:
            spelled += "^"
        elif kind is op.CATEGORY:
            spelled += _CATEGORIES[value]
        elif kind is op.RANGE:
            spelled += rf"\U{value[0]:08x}-\U{value[1]:08x}"
        else:
            spelled += rf"\U{value:08x}"
    return f"[{spelled}]"
