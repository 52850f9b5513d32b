"""Words, sentences, lines and paragraphs of a text, and what of them can be compared."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import regex

from guardwrap.constraints.sentences import FIRST_WORD, sentences, settled_words, words_of
from guardwrap.constraints.views import filled_lines, paragraphs
from guardwrap.documents.time_limits import check_deadline, within

Unit = Literal["words", "sentences", "lines", "paragraphs"]
Feature = Literal[
    "text",
    "first_letter",
    "first_word",
    "last_word",
    "words",
    "characters",
    "letters",
    "syllables",
    "indent",
    "alliteration",
]
GROWING = ("words", "characters", "letters")
"""Features that are numbers and never fall while a unit grows."""
NUMERIC = (*GROWING, "syllables", "indent", "alliteration")

_SPLIT: dict[str, Callable[[str], list[str]]] = {
    "words": words_of,
    "sentences": sentences,
    "lines": filled_lines,
    "paragraphs": paragraphs,
}
_VOWELS = regex.compile("[aeiouyæøœаеиоуыэюяєіїαεηιουω]+")
_SILENT = regex.compile("(?<=[aeiouy].*)(?<![aeiouyl])e$")
_LETTER = regex.compile(r"\p{L}")
_SHORT = 40
_HANGUL = regex.compile("[\u1100-\u11ff\uac00-\ud7a3]")


def units_of(text: str, unit: str) -> list[str]:
    """Split a text into words, sentences, lines or paragraphs, those that are not blank."""
    return _SPLIT[unit](text)


def begun_units(prefix: str, unit: str) -> tuple[list[str], str]:
    """Return the units of a prefix that no later text changes, and the one that grows, which may be empty.

    Of a sentence or paragraph that grows, only what stays in it is returned: its settled words, with a space behind.
    """
    units = units_of(prefix, unit)
    if unit == "words":
        ended = settled_words(prefix)
        return ended, units[-1] if len(units) > len(ended) else ""
    if unit == "lines":
        last = (prefix.splitlines(keepends=True) or [""])[-1]
        grows = last.strip() != "" and last == last.splitlines()[0]
        return (units[:-1], units[-1]) if grows else (units, "")
    if not units:
        return [], ""
    *ended, growing = units
    # The last words of a sentence may turn out to begin the next one.
    words = settled_words(growing if prefix.endswith(growing) else f"{growing} ")
    return ended, f"{growing[: _end_of(words, growing)]} " if words else ""


def _end_of(words: Sequence[str], text: str) -> int:
    end = 0
    for word in words:
        end = text.index(word, end) + len(word)
    return end


def has_settled_word(unit: str) -> bool:
    """Whether no later text changes the first word of a unit that grows."""
    return bool(settled_words(unit))


def _folded(word: str) -> str:
    """Return a word in lower case without accents, for comparisons."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFD", word.casefold().replace("’", "'"))
    if len(decomposed) == 1:
        return decomposed
    return unicodedata.normalize("NFC", "".join(char for char in decomposed if not unicodedata.combining(char)))


def first_and_last(unit: str) -> tuple[str, str] | None:
    """Return the first and the last word of a unit, folded; None without words."""
    words = words_of(unit)
    return (_folded(words[0]), _folded(words[-1])) if words else None


def features(units: Sequence[str], name: str) -> list[Any]:
    """Return a feature of each unit, except those without it."""
    values = []
    for unit in units:
        check_deadline()
        if (value := _remembered(unit, name) if len(unit) <= _SHORT else _FEATURES[name](unit)) is not None:
            values.append(value)
    return values


@lru_cache(maxsize=4096)
def _remembered(unit: str, name: str) -> Any:
    """Return a feature of a short unit: words come again and again."""
    return _FEATURES[name](unit)


def settled_feature(unit: str, name: str, kind: str) -> Any:
    """Return what no later text changes of a feature of a unit that grows; of a number, its least value. Or None."""
    if name in GROWING:
        return _FEATURES[name](unit) if unit else None
    if name == "indent":
        return _indent(unit) if unit.strip() else None
    if name == "first_letter":
        words = words_of(unit)
        # A mark may follow the first letter, and change nothing else than that.
        return _first_letter(unit) if words and len(words[0]) > 1 else None
    if name == "first_word" and kind != "words":
        return _FEATURES[name](unit) if has_settled_word(unit) else None
    return None


def _first_letter(unit: str) -> str | None:
    word = within(FIRST_WORD.search, unit)
    folded = "" if word is None else _folded(word.group())
    if not folded:
        return None
    letter = folded[0]
    return unicodedata.normalize("NFD", letter)[0] if _HANGUL.match(letter) else letter


def _indent(unit: str) -> int:
    line = unit.expandtabs(4)
    return len(line) - len(line.lstrip())


def _syllables(word: str) -> int:
    """Estimate the number of syllables of a word: its groups of vowels, without a silent e at the end."""
    plain = _folded(word)
    groups = len(_VOWELS.findall(plain))
    silent = word.isascii() and _SILENT.search(plain) is not None
    return max(1, groups - silent)


def _alliteration(unit: str) -> int:
    letters = [word[0] for word in map(_folded, words_of(unit)) if word]
    most = run = 1
    for one, two in pairwise(letters):
        run = run + 1 if one == two else 1
        most = max(most, run)
    return most if most > 1 else 0


def _text(unit: str) -> str | None:
    return " ".join(map(_folded, words_of(unit))) or None


_FEATURES: dict[str, Callable[[str], Any]] = {
    "text": _text,
    "first_letter": _first_letter,
    "first_word": lambda unit: (first_and_last(unit) or (None, None))[0],
    "last_word": lambda unit: (first_and_last(unit) or (None, None))[1],
    "words": lambda unit: len(words_of(unit)) or None,
    "characters": lambda unit: len(unit.strip()),
    "letters": lambda unit: len(_LETTER.findall(unit)) if words_of(unit) else None,
    "syllables": lambda unit: sum(map(_syllables, words_of(unit))) or None,
    "indent": _indent,
    "alliteration": lambda unit: _alliteration(unit) if words_of(unit) else None,
}
