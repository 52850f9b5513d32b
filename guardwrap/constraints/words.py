"""Words of a text, in every script, by the default rules of Unicode where a script has no spaces."""

from __future__ import annotations

import regex

from guardwrap.documents.time_limits import matches

UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}"
    r"\p{Tai_Tham}\p{Tai_Viet}\p{Ahom}\p{Balinese}\p{Javanese}\u30fc\u3099\u309a"
)
"""Scripts without spaces between words, as the content of a set for ``regex``: Line_Break is Complex_Context or
Ideographic (UAX #14), and similar. The last three characters belong to more than one script."""

# Each character of these is a word (UAX #29). Words of Thai, Lao, Khmer and Burmese could only be found with a
# dictionary, so a run of their letters without spaces is one word.
_ALONE = r"\p{Han}\p{Hiragana}\p{Bopomofo}\p{Yi}"
_LETTER = rf"[\p{{L}}\p{{M}}\p{{Nd}}_--[{_ALONE}]]"
WORD = rf"(?:[{_ALONE}]\p{{M}}*|{_LETTER}+(?:['’\-]{_LETTER}+)*)"
"""Expression of a word, for version 1 of ``regex``: sets are subtracted in it."""

FIRST_WORD = regex.compile(WORD, regex.VERSION1)
"""Finds the first word of a text."""
_JOINTS = "'’-"
_ANY_ALONE = regex.compile(rf"[{_ALONE}]")
_PARTS = regex.compile(rf"[{_ALONE}]|{_LETTER}[^{_ALONE}]*", regex.VERSION1)


def words_of(text: str) -> list[str]:
    """Return the words of a text: letters, digits and ``_``, with apostrophes and hyphens between them.

    In Chinese and Japanese, each Han character and each Hiragana is a word, and so is a run of Katakana (UAX #29). In
    Thai, Lao, Khmer and Burmese, a run without spaces is one word, as no dictionary is used.
    """
    return [match.group() for match in matches(FIRST_WORD, text)]


def settled_words(prefix: str) -> list[str]:
    """Return the words of a prefix that no continuation can change."""
    words = list(matches(FIRST_WORD, prefix))
    if words:
        end = words[-1].end()
        if end == len(prefix) or (end == len(prefix) - 1 and prefix[-1] in _JOINTS):
            words.pop()
    return [match.group() for match in words]


def count_spaced_words(text: str) -> int:
    """Count what white space separates. In Chinese and Japanese, each Han character and each Hiragana counts.

    The count never falls when text is added at the end.
    """
    pieces = text.split()
    if not _ANY_ALONE.search(text):
        return len(pieces)
    return sum(max(1, sum(1 for _ in matches(_PARTS, piece))) for piece in pieces)
