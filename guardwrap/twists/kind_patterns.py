"""Regular expressions that say what constraints of some kinds say, or what they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import regex

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.kinds.count import (
    AFTER_ENDS,
    COUNTED_ENDS,
    LISTED,
    Count,
    item_pattern,
    listed_words,
    plain_word,
)
from guardwrap.constraints.kinds.text import Case, OneOf, Regex
from guardwrap.constraints.layout.edges import Edges
from guardwrap.twists.pattern_programs import Program, Unsupported, program_of
from guardwrap.twists.pattern_progress import CountedMatch

_SPACE = r"[\s\x1c-\x1f]*"
"""White space as ``str.strip`` removes it."""


class TextPattern(NamedTuple):
    """An expression and how it is used."""

    source: str  # the expression
    flags: Sequence[str] = ()  # the names of its flags
    whole: bool = False  # whether it must match the whole text, and not only somewhere
    version1: bool = True  # whether it is one of guardwrap's own, in version 1 of ``regex``
    absent: bool = False  # whether it must not match


_CASED = TextPattern(r"[\p{Lu}\p{Ll}\p{Lt}]")
_LETTER = r"[\p{L}\p{M}\p{Nd}_]"
_WRONG = {
    "upper": r"[\p{Ll}\p{Lt}]",
    "lower": r"[\p{Lu}\p{Lt}]",
    "title": rf"(?:(?<![\p{{L}}\p{{M}}\p{{Nd}}_'’])|(?<!{_LETTER})['’])\p{{Ll}}",
}


def patterns_of(constraint: Constraint) -> list[TextPattern]:
    """Return the expressions that a text must match, or must not, to satisfy a constraint; none if there are none."""
    if isinstance(constraint, Regex):
        known = constraint.checksum is None
        whole = constraint.match == "fullmatch"
        return [TextPattern(constraint.pattern, constraint.engine_flags, whole, version1=False)] if known else []
    if isinstance(constraint, OneOf):
        return [TextPattern(f"{_SPACE}{_one_of(constraint.texts)}{_SPACE}", _flags(constraint.ignore_case), whole=True)]
    if isinstance(constraint, Edges):
        # The beginning and the end do not overlap, and anything may stand between them.
        source = rf"{_SPACE}{_one_of(constraint.start)}[\s\S]*{_one_of(constraint.end)}{_SPACE}"
        return [TextPattern(source, _flags(constraint.ignore_case), whole=True)]
    if isinstance(constraint, Case):
        return [_CASED, TextPattern(_WRONG[constraint.letters], absent=True)]
    return []


def _one_of(texts: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(regex.escape, texts))})"


def _flags(ignore_case: bool) -> tuple[str, ...]:
    return ("ignorecase",) if ignore_case else ()


def counted_program(constraint: Count) -> tuple[Program, CountedMatch]:
    """Return the program of what a ``Count`` counts, and which matches count."""
    if constraint.unique or constraint.each or constraint.share_of is not None or constraint.of == "palindromes":
        raise Unsupported
    if constraint.pattern is not None:
        program, item = program_of(constraint.pattern, _flags(constraint.ignore_case), repeated=True), CountedMatch()
    elif constraint.of in COUNTED_ENDS:
        program = sentence_program()
        item = _ending(program, str(constraint.of))
    else:
        program = program_of(item_pattern(str(constraint.of)), version1=True, repeated=True)
        item = _kept(program, str(constraint.of), constraint.language)
    if constraint.shortest == 1:
        return program, item
    least = constraint.shortest
    return program, CountedMatch(
        (0, item.begun),
        lambda state, char: (min(least, state[0] + 1), item.read(state[1], char)),
        lambda state: state[0] == least and item.counts(state[1]),
    )


def _kept(program: Program, name: str, language: str) -> CountedMatch:
    """Return which words count."""
    if name in LISTED:
        words = listed_words(name, language)
        begun = {word[:size] for word in words for size in range(len(word) + 1)}
        for letter in sorted({*"".join(words), "’"}):
            program.class_of(regex.escape(letter), regex.IGNORECASE)

        def read(item: Any, char: str) -> Any:
            longer = None if item is None else item + plain_word(char)
            return longer if longer in begun else None

        return CountedMatch("", read, lambda item: item in words)
    if name in ("capital_words", "lowercase_words"):
        upper = name == "capital_words"
        for source in (r"\p{Uppercase}", r"\p{Lowercase}", r"\p{Lt}"):
            program.class_of(source)
        right = str.isupper if upper else str.islower

        def cased(item: Any, char: str) -> Any:
            if item == "wrong" or not (char.isupper() or char.islower() or char.istitle()):
                return item
            return "right" if right(char) else "wrong"

        return CountedMatch("open", cased, lambda item: item == "right")
    return CountedMatch()


_MARKS = r"[.!?…‼⁇⁈⁉؟]"
_CLOSING = r"[\"'”’」』》〉»›)\]]"
_ABBREVIATED = r"(?<!\w)(?:\p{Lu}|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|e\.g|i\.e|cf)\.(?=\s)"
_AT_MARK = "|".join(
    (
        rf"(?<!{_MARKS})\.{_CLOSING}*(?=\s)",
        r"[!?‼⁇⁈⁉؟](?=\s)",
        # After an ellipsis or a quotation, the sentence may continue.
        rf"(?:{_MARKS}\.|…){_CLOSING}*\s+(?![\s\p{{Ll}}])",
        rf"[!?‼⁇⁈⁉؟]{_CLOSING}+\s+(?![\s\p{{Ll}}])",
    )
)
_SENTENCE = rf"(?:\d{{1,3}}\.(?=\s)|(?=\S))(?s:{_ABBREVIATED}|.)*?(?:{_AT_MARK}|(?=\n)|\Z)"


def sentence_program() -> Program:
    """Return the program of sentences, by the most frequent of the rules of ``sentences``."""
    return program_of(_SENTENCE, version1=True, repeated=True)


def _ending(program: Program, name: str) -> CountedMatch:
    """Return which sentences count, by their last mark."""
    ends = COUNTED_ENDS[name]
    for chars in (ends, AFTER_ENDS):
        program.class_of(f"[{regex.escape(chars)}]")
    return CountedMatch(False, lambda item, char: item if char in AFTER_ENDS else char in ends, bool)
