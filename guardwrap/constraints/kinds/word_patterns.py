"""Expressions that find words in a folded text: their edges in all scripts, particles and articles, white space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import regex

from guardwrap.constraints.words import UNSPACED
from guardwrap.documents.limits import MAX_FIXED

_HANGUL = "\u1100-\u11ff\uac00-\ud7a3"
_SPACED = rf"[^\W{UNSPACED}{_HANGUL}]"
SPACED_WORD = regex.compile(f"{_SPACED}+")
"""A word in a script that separates words by spaces."""

# Korean writes these behind nouns without a space: case and topic particles, the plural, a title, forms of "to be".
_PARTICLES = (
    "은 는 이 가 을 를 의 에 에서 에서는 에게 에게서 께 께서 한테 한테서 와 과 랑 이랑 하고 로 으로 로서 "
    "으로서 로써 으로써 도 만 까지 부터 마저 조차 밖에 처럼 같이 만큼 보다 마다 나 이나 든지 이든지 라도 "
    "이라도 라고 이라고 라는 이라는 란 이란 야 이야 여 이여 아 들 님 씨 다 이다 입니다 이에요 예요 이었다 "
    "였다 이었어요 였어요 이었습니다 였습니다 이고 이며 인 인데 이지만 이라서 라서 이니까 이면 이네요 이죠 뿐 대로 커녕"
)
_PARTICLE = "|".join(sorted(_PARTICLES.split(), key=len, reverse=True))

# Arabic writes the article before nouns without a space, and before it "and", "so", "in", "like" or "for".
# "And" and "so" also precede nouns without the article. Short nouns are left out: many are the end of another word.
_ARTICLE = r"[وف]?(?:[بك]?ال|لل)|[وف](?=\w{3})"
# Hebrew does the same with its article, and "and" or "that" before it.
_HEBREW_ARTICLE = "ו?(?:כש|ש)?ה"

_EDGES = {
    "spaced": (f"(?<!{_SPACED})", rf"(?!{_SPACED}|\p{{M}})"),
    "arabic": (rf"(?<=(?<!{_SPACED})(?:{_ARTICLE})?)", rf"(?!{_SPACED}|\p{{M}})"),
    "hebrew": (rf"(?<=(?<!{_SPACED})(?:{_HEBREW_ARTICLE})?)", rf"(?!{_SPACED}|\p{{M}})"),
    "hangul": (f"(?<![{_HANGUL}])", rf"(?!\p{{M}})(?=(?:{_PARTICLE}){{0,3}}(?![{_HANGUL}]))"),
    "free": ("", r"(?!\p{M})"),
}
_KINDS = tuple(
    (regex.compile(kind), name)
    for kind, name in (
        (r"(?=\p{Arabic})\w", "arabic"),
        (r"(?=\p{Hebrew})\w", "hebrew"),
        (_SPACED, "spaced"),
        (f"[{_HANGUL}]", "hangul"),
    )
)
# Marks that many writers leave out: the dots of ё, and the accent of Greek, which capitals do not carry.
_OFTEN_LEFT_OUT = regex.compile("(?<=[еЕ])\u0308|(?<=[αεηιουωΑΕΗΙΟΥΩ]\u0308?)\u0301")
# Hindi writes a nasal before a consonant of its class as that letter or as a dot: हिन्दी, हिंदी.
_ANUSVARA = "\u0902"
_NASALS = {
    nasal: regex.compile(f"(?:{_ANUSVARA}|{nasal}\u094d)(?=[{consonants}])")
    for nasal, consonants in {"ङ": "क-घ", "ञ": "च-झ", "ण": "ट-ढ", "न": "त-ध", "म": "प-भ"}.items()
}
_I = {"i": "[iI]", "I": "[iIı]", "ı": "[ıI]"}


def alternatives(words: Sequence[str], spell: Callable[[str], str], *, whole: bool) -> str:
    """Return an expression for any of some folded words; where two begin alike, the first one is preferred."""
    if not whole:
        return f"(?:{'|'.join(map(spell, words))})"
    runs = groupby(words, key=lambda word: (_kind(word[0]), _kind(word[-1])))
    groups = [
        f"{_EDGES[first][0]}(?:{'|'.join(map(spell, members))}){_EDGES[last][1]}" for (first, last), members in runs
    ]
    return groups[0] if len(groups) == 1 else f"(?:{'|'.join(groups)})"


def ends_in_hangul(word: str) -> bool:
    """Whether particles may follow a word."""
    return _kind(word[-1]) == "hangul"


def spaced(word: str, *, spacing: str, capital_i: bool) -> str:
    """Return an expression for one folded word.

    ``spacing``: ``"exact"``; ``"flexible"``: any white space matches any other; ``"optional"``: also a hyphen, or
    nothing.
    """
    literal = _with_capital_i if capital_i else _escaped
    if spacing == "exact":
        return literal(word)
    before, pieces, after = pieces_of_phrase(word, spacing)
    joint = r"\s+" if spacing == "flexible" else r"[\s\-]*"
    outer = ("".join(r"\s" if char.isspace() else regex.escape(char) for char in each) for each in (before, after))
    return joint.join(map(literal, pieces)).join(outer)


def pieces_of_phrase(word: str, spacing: str) -> tuple[str, list[str], str]:
    """Return what is before the first piece of a phrase, its pieces, between which gaps vary, and what is after them.

    What is around the pieces has a fixed length, so an occurrence does not grow.
    """
    gap = r"\s" if spacing == "flexible" else r"[\s\-]"
    inside = [index for index, char in enumerate(word) if not regex.match(gap, char)]
    if not inside:
        return "", [word], ""
    start, end = inside[0], inside[-1] + 1
    return word[:start], regex.split(f"{gap}+", word[start:end]), word[end:]


def in_one_spelling(word: str) -> str:
    """Return the shortest of the spellings in which a folded word is searched for."""
    for nasal in _NASALS.values():
        word = nasal.sub(_ANUSVARA, word)
    return str(_OFTEN_LEFT_OUT.sub("", word))


def has_spellings(word: str) -> bool:
    """Whether a folded word is searched for in more than one spelling."""
    return len(in_one_spelling(word)) != longest_spelling(word)


def longest_spelling(word: str) -> int:
    """Return the length of the longest spelling in which a folded word is searched for, or more."""
    return len(word) + word.count(_ANUSVARA)


def is_spaced(char: str) -> bool:
    """Whether a character belongs to no word, or to one of a script that separates words by spaces.

    False for Arabic and Hebrew, where an article may come first.
    """
    return _kind(char) == "spaced" or not regex.match(r"\w", char)


def _kind(char: str) -> str:
    return next((kind for pattern, kind in _KINDS if pattern.match(char)), "free")


def _with_capital_i(word: str) -> str:
    return "".join(_I.get(part) or _escaped(part) for part in regex.split("([iIı])", word) if part)


def _escaped(word: str) -> str:
    """Return an expression for a text. A long one is split, with an always-true assertion between the pieces.

    ``compile_pattern`` rejects longer runs of fixed characters, because ``regex`` takes cubic time for them.
    """
    step = MAX_FIXED // 2
    pieces = (regex.escape(word[i : i + step]) for i in range(0, len(word), step))
    return "(?!(?!))".join(map(_in_every_spelling, pieces))


def _in_every_spelling(expression: str) -> str:
    for nasal, pattern in _NASALS.items():
        expression = pattern.sub(f"(?:{_ANUSVARA}|{nasal}\u094d)", expression)
    return str(_OFTEN_LEFT_OUT.sub(r"\g<0>?", expression))
