"""What ``Count`` can count: how items are recognized in a text, and which of a prefix's no continuation changes."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import regex

from guardwrap.constraints.kinds.word_lists import LISTED, listed_words
from guardwrap.constraints.sentence_ends import sentences
from guardwrap.constraints.words import WORD
from guardwrap.documents.time_limits import check_deadline, matches

Item = Literal[
    "letters",
    "uppercase_letters",
    "lowercase_letters",
    "vowels",
    "consonants",
    "digits",
    "punctuation",
    "emoji",
    "words",
    "capital_words",
    "lowercase_words",
    "palindromes",
    "pronouns",
    "conjunctions",
    "stop_words",
    "statements",
    "questions",
    "exclamations",
    "numbers",
    "bullets",
    "numbered_items",
    "headings",
    "placeholders",
    "highlights",
]


def plain_word(word: str) -> str:
    """Return a word in lower case, with straight apostrophes and composed accents."""
    return unicodedata.normalize("NFC", word.casefold().replace("’", "'"))


def is_palindrome(word: str) -> bool:
    """Whether a word of at least three letters and digits is the same backwards, whatever stands between them."""
    check_deadline()
    letters = [char for char in plain_word(word) if char.isalnum()]
    return len(letters) > 2 and letters == letters[::-1]


class _Rule(NamedTuple):
    """How an item is recognized."""

    # Expression of one item. Whether it matches at a place must not depend on more than ``tail`` characters after the
    # match.
    pattern: str
    tail: int = 0  # number of characters after a match that may still change where it ends
    begun: bool = True  # whether an item counts as soon as it has begun, because it stays one however it continues
    keep: Callable[[str], bool] | None = None  # which matches count; None for all
    one: bool = False  # whether every match is a single character


_PICTURE = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)\p{Emoji_Modifier}?"
COUNTED_ENDS = {"statements": ".。｡।…۔", "questions": "?？؟", "exclamations": "!！"}
"""What the sentences end with that are counted."""

AFTER_ENDS = "\"'”’“‘»«)]」』）】 \n\t"
"""What may follow the last mark of a sentence."""

_RULES: dict[str, _Rule] = {
    "letters": _Rule(r"\p{L}", one=True),
    "uppercase_letters": _Rule(r"\p{Lu}", one=True),
    "lowercase_letters": _Rule(r"\p{Ll}", one=True),
    "vowels": _Rule("[aeiouAEIOU]", one=True),
    "consonants": _Rule("[b-df-hj-np-tv-zB-DF-HJ-NP-TV-Z]", one=True),
    "digits": _Rule(r"\p{Nd}", one=True),
    "punctuation": _Rule(r"\p{P}", one=True),
    # Two letters of a flag, or a picture with its skin color and those that it is joined to.
    "emoji": _Rule(rf"\p{{RI}}\p{{RI}}|{_PICTURE}(?:\u200D{_PICTURE})*", tail=2),
    "words": _Rule(WORD, tail=2),
    "capital_words": _Rule(WORD, tail=2, begun=False, keep=str.isupper),
    "lowercase_words": _Rule(WORD, tail=2, begun=False, keep=str.islower),
    "palindromes": _Rule(WORD, tail=2, begun=False, keep=is_palindrome),
    **{name: _Rule(WORD, tail=2, begun=False) for name in LISTED},
    **{name: _Rule("", begun=False) for name in COUNTED_ENDS},
    "numbers": _Rule(r"(?<!\w)[-+]?\p{Nd}+(?:[.,]\p{Nd}+)*", tail=2),
    "bullets": _Rule(r"(?m)^[ \t]*[*\-+•][ \t]+\S"),
    "numbered_items": _Rule(r"(?m)^[ \t]*\p{Nd}{1,3}[.)][ \t]+\S"),
    "headings": _Rule(r"(?m)^#{1,6}[ \t]+\S"),
    "placeholders": _Rule(r"\[[^\[\]\n]{1,200}\]"),
    "highlights": _Rule(r"\*{1,2}[^*\s](?:[^*\n]{0,200}[^*\s])?\*{1,2}", tail=1, begun=False),
}

_COMPILED = {
    item: regex.compile(f"(?:{rule.pattern})+" if rule.one else rule.pattern, regex.VERSION1)
    for item, rule in _RULES.items()
}


def item_pattern(item: str) -> str:
    """Return the expression of an item, for version 1 of ``regex``; "" if it has none."""
    return _RULES[item].pattern


def is_run(item: str | None) -> bool:
    """Whether what is found of an item are runs of single characters, each of which counts; None is a pattern."""
    return item is not None and _RULES[item].one


def total(item: str | None, found: Iterator[str]) -> int:
    """Count what is found of an item; None is a pattern."""
    return sum(map(len, found)) if is_run(item) else sum(1 for _ in found)


def found_items(item: str, text: str, language: str = "en") -> Iterator[str]:
    """Yield the items of a text; single characters in runs."""
    return _found(item, text, language, len(text), whole=True)


def settled_items(item: str, prefix: str, language: str = "en", *, exactly: bool = False) -> Iterator[str]:
    """Yield the items that every text with this prefix has.

    With ``exactly``, only those which are the same in every such text: a word counts as soon as it has begun, but may
    still become a longer one.
    """
    rule = _RULES[item]
    tail = 0 if rule.begun and not exactly else rule.tail
    return _found(item, prefix, language, len(prefix) - tail, whole=False)


def _found(item: str, text: str, language: str, last: int, *, whole: bool) -> Iterator[str]:
    if item in COUNTED_ENDS:
        ended = sentences(text) if whole else sentences(text)[:-1]
        yield from (sentence for sentence in ended if sentence.rstrip(AFTER_ENDS).endswith(tuple(COUNTED_ENDS[item])))
        return
    keep = (lambda word: plain_word(word) in listed_words(item, language)) if item in LISTED else _RULES[item].keep
    for match in matches(_COMPILED[item], text):
        if match.end() <= last and (keep is None or keep(match.group())):
            yield match.group()
