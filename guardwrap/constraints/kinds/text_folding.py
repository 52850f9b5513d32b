"""Text folding: texts that readers take for the same become the same string, so that words can be searched in it."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Literal

import regex

from guardwrap.constraints.field_checks import require
from guardwrap.constraints.sentences import UNSPACED
from guardwrap.errors import ConstraintError, nearest
from guardwrap.support.limits import MAX_FIXED
from guardwrap.support.time_limits import check_deadline

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


_lock = threading.Lock()


def require_stemmer(language: str) -> None:
    """Raise ConstraintError unless there is a stemmer or a list for a language, and its library is installed."""
    known = _lemmatizer()[1] if _is_code(language) else _library().algorithms()
    require(language in known, f"stem={language!r} is not one of {', '.join(known)}{nearest(language, known)}")
    _stem("a", language)  # loads what it needs now, not within the time limit of a text


def stem_words(text: str, language: str) -> str:
    """Replace each word of a folded text by its stem, except in scripts without spaces and in Hangul."""
    stemmed: str = SPACED_WORD.sub(lambda match: _stem(match.group(), language), text)
    return stemmed


@lru_cache(maxsize=10_000)
def _stem(word: str, language: str) -> str:
    check_deadline()
    composed = unicodedata.normalize("NFC", word)
    with _lock:  # a stemmer keeps the word that it works on
        if _is_code(language):
            stem = _lemmatizer()[0].lemmatize(_as_in_a_list(composed, language), lang=language)
        else:
            stem = _stemmer(language).stemWord(composed)
    return unicodedata.normalize("NFD", stem).casefold() or word


def _is_code(language: object) -> bool:
    """Whether a language is given by its code (ISO 639), which asks for its list of lemmas, not by its name."""
    return isinstance(language, str) and len(language) in (2, 3) and language.isascii() and language.islower()


def _as_in_a_list(word: str, language: str) -> str:
    """Return a folded word in the spelling of the lists: German nouns begin with a capital, which suits others, too."""
    if language == "de":
        return word.capitalize()
    return word[:-1] + "ς" if language == "el" and word.endswith("σ") else word


@cache
def _lemmatizer() -> tuple[Any, list[str]]:
    """Return what looks lemmas up, and the codes of its languages."""
    try:
        from simplemma import Lemmatizer
        from simplemma.strategies import DefaultStrategy
        from simplemma.strategies.dictionaries.dictionary_factory import SUPPORTED_LANGUAGES
    except ImportError:
        raise ConstraintError("stem with a code needs simplemma: pip install 'guardwrap[lemma]'") from None
    # A list takes 4 to 50 MB so, instead of 30 to 300, and 20 µs for a word, instead of 6.
    strategy = DefaultStrategy(low_memory=True)
    return Lemmatizer(cache_max_size=1, lemmatization_strategy=strategy), sorted(SUPPORTED_LANGUAGES)


@cache
def _stemmer(language: str) -> Any:
    return _library().stemmer(language)


def _library() -> Any:
    try:
        import snowballstemmer
    except ImportError:
        raise ConstraintError("stem needs snowballstemmer: pip install 'guardwrap[stem]'") from None
    return snowballstemmer


# Besides the characters that are made to be invisible, those that control a terminal or an annotation.
_UNSEEN = r"\p{Default_Ignorable_Code_Point}\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufff9-\ufffb"
INVISIBLE = regex.compile(f"[{_UNSEEN}]+")
"""Characters that readers do not see: soft hyphens, zero-width characters, direction marks, control characters."""

_TATWEEL = "\u0640"  # stretches an Arabic word
# Of Arabic and Hebrew.
_VOWELS = regex.compile(f"[{_TATWEEL}\u064b-\u0652\u0670\u05b0-\u05bd\u05bf\u05c1\u05c2\u05c7]+")
_JAMO = regex.compile("[\u1100-\u11ff]+")
_MANY_MARKS = regex.compile(r"\p{M}{30}")
# What may be sorted before, or composed with, the character before it: marks, jamo of any width, and what is left out.
_JOINING = rf"[\u0640\p{{M}}{_UNSEEN}\u1160-\u11ff\u3131-\u318e\uff9e-\uffdc]"
_PIECE = regex.compile(f".{_JOINING}*", regex.DOTALL)
_WORD = regex.compile(rf"[\w{_UNSEEN}]+|.{_JOINING}*", regex.DOTALL)
_JOINS = regex.compile(_JOINING)
# Lines through a letter, and circles and keys around it, which belong to no spelling.
_LINES = r"\u0334-\u0338\u20d0-\u20f0"
_CROSSED = regex.compile(rf"[\p{{L}}\p{{N}}]\p{{M}}*[{_LINES}]\p{{M}}*")
_OVERLAYS = regex.compile(f"[{_LINES}]+")
# Keyboards have typographic and plain forms, and Arabic, Persian and Urdu letters that look alike.
_ALIKE = str.maketrans("\u2019\u02bc\u2010\u2011\u06cc\u06a9\u06aa\u06c1\u06c3", "''--\u064a\u0643\u0643\u0647\u0629")
_HAS_ALIKE = regex.compile(f"[{''.join(map(chr, _ALIKE))}]")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# What Unicode does not decompose to the letter alone: (a), (A), and A in a filled circle or square.
_ENCLOSED = {
    first + number: letter
    for first in (0x249C, 0x1F110, 0x1F150, 0x1F170)
    for number, letter in enumerate(_ALPHABET.lower() if first == 0x249C else _ALPHABET)
}
_OTHER_SHAPES = ("<wide>", "<narrow>", "<initial>", "<medial>", "<final>", "<isolated>")
_SIGN = regex.compile(r"[[\p{Nd}\p{No}\u249c-\u24b5\U0001f110-\U0001f189]--[0-9]]", regex.V1)


@dataclass(frozen=True)
class TextFolding:
    """Caseless matching as in the Unicode Standard (section 3.13, D144 to D147), except for the Turkish i.

    The folded text is decomposed (NFD, or NFKD), so the spelling and order of marks make no difference. Hangul
    syllables stay whole, so no word begins or ends within one. Typographic apostrophes and hyphens become ``'`` and
    ``-``. Arabic and Hebrew vowel marks and tatweel are left out, because most texts are written without them, as are
    lines through letters. Persian yeh and kaf, and the Urdu heh, become the Arabic ones. I is the capital of both i and
    ı, so it is kept where a word contains ı or I. With NFKD, digits of all scripts become 0 to 9.

    Keywords and detectors compare texts in this form, and nothing else.
    """

    form: Literal["NFC", "NFKC"]  # ``"NFC"`` (canonical equivalence) or ``"NFKC"`` (compatibility)
    case_sensitive: bool  # whether to keep upper and lower case
    # whether to leave out default ignorable code points, such as soft hyphens and zero-width spaces
    ignore_invisible: bool
    keep_capital_i: bool  # whether I stays apart from i
    stem: str | None = None  # the language whose inflected forms become one form, or None
    # signs that NFKD leaves as they are, such as ``№`` where a word contains it; see ``marks_on_purpose``
    kept: str = ""

    def fold(self, text: str) -> str:
        """Return the folded text."""
        folded = self._with_case(self._decomposed(text))
        return folded if self.stem is None else stem_words(folded, self.stem)

    def settled(self, prefix: str) -> str:
        """Return what the folded form of every text with this prefix begins with."""
        text = self._decomposed(prefix)
        end = len(text)
        if not text.isascii():
            while end and unicodedata.combining(text[end - 1]):  # another mark may be sorted before these
                end -= 1
            if end and _is_open(text[end - 1]):
                end -= 1
        if self.keep_capital_i and not self.case_sensitive and text[max(end - 1, 0) : end] == "I":  # a dot may follow
            end -= 1
        settled = self._with_case(text[:end])
        if self.stem is None:
            return settled
        # The stem of the last word depends on all its letters. (Searching from the end for the end of a word is slow.)
        end = len(settled)
        while end and SPACED_WORD.match(settled[end - 1]):
            end -= 1
        return stem_words(settled[:end], self.stem)

    def closed(self, text: str) -> int:
        """Return up to where a text is folded alike, and apart from the rest, whatever follows."""
        if self.stem is None:
            return last_piece(text)
        end = len(text)
        while end and not text[end - 1].isspace():
            end -= 1
        return min(end, last_piece(text))

    def located(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the folded text, and for each of its characters the start and end of the text that it comes from."""
        folded: list[str] = []
        origins: list[tuple[int, int]] = []
        for match in (_PIECE if self.stem is None else _WORD).finditer(text):
            piece = self.fold(match.group())
            folded.append(piece)
            origins += [match.span()] * len(piece)
        return "".join(folded), origins

    def _decomposed(self, text: str) -> str:
        if text.isascii():
            return INVISIBLE.sub("", text) if self.ignore_invisible and not text.isprintable() else text
        if self.ignore_invisible:
            text = INVISIBLE.sub("", text)
        text = text.replace(_TATWEEL, "")
        if _OVERLAYS.search(text):
            text = _CROSSED.sub(lambda match: _OVERLAYS.sub("", match.group()), text)
        if self.form == "NFC":
            text = _normalized("NFD", text)
        else:
            parts = regex.split(f"([{regex.escape(self.kept)}]+)", text) if self.kept else [text]
            text = "".join(_compatible(part) if number % 2 == 0 else part for number, part in enumerate(parts))
        text = _VOWELS.sub("", text)  # ligatures decompose to some, too
        text = _JAMO.sub(lambda run: unicodedata.normalize("NFC", run.group()), text)
        return text.translate(_ALIKE) if _HAS_ALIKE.search(text) else text

    def _with_case(self, text: str) -> str:
        if self.case_sensitive:
            return text
        if not text.isascii():
            text = text.replace("I\u0307", "i").replace("i\u0307", "i").replace("\u0149", "'n")
        if self.stem in ("turkish", "tr"):
            text = text.replace("I", "ı")
        return "I".join(map(str.casefold, text.split("I"))) if self.keep_capital_i else text.casefold()


AS_READ = TextFolding("NFKC", case_sensitive=True, ignore_invisible=True, keep_capital_i=False)
"""Folds what readers do not tell apart, and nothing else: for detectors and expressions."""


def marks_on_purpose(words: Iterable[str]) -> str:
    """Return the signs in words that NFKD would replace, so that a ban on ``№`` or ``²`` is none on "no" or 2.

    Full-width letters and digits of other scripts are left out: they are the same letter or digit.
    """
    signs = sorted({char for word in words for char in word if not char.isascii()})
    return "".join(char for char in signs if _is_sign(char) and _compatible(char) != _normalized("NFD", char))


def _is_sign(char: str) -> bool:
    shape = unicodedata.decomposition(char)
    same_letter = (char.isalnum() and shape.startswith(_OTHER_SHAPES)) or (
        char.isalpha() and shape.startswith("<compat>")
    )
    return not (same_letter or char.isdecimal())


def _compatible(text: str) -> str:
    return _normalized("NFKD", _SIGN.sub(lambda match: _plain(match.group()), text))


def _plain(sign: str) -> str:
    digit = unicodedata.digit(sign, None)
    return _ENCLOSED.get(ord(sign), sign) if digit is None else str(digit)


def _normalized(form: Literal["NFD", "NFKD"], text: str) -> str:
    return "".join(unicodedata.normalize(form, part) for part in _parts(text))


def last_piece(text: str) -> int:
    """Return where the last piece begins: the text before it is folded alike whatever follows."""
    start = max(len(text) - 1, 0)
    while start and _JOINS.match(text[start]):
        start -= 1
    return start


def without_last_hangul(text: str) -> str:
    """Return a text without the Hangul syllables and jamo at its end."""
    end = len(text)
    while end and ("\uac00" <= text[end - 1] <= "\ud7a3" or "\u1100" <= text[end - 1] <= "\u11ff"):
        end -= 1
    return text[:end]


def _parts(text: str) -> Iterator[str]:
    """Cut a text after every 30 marks in a row: sorting marks takes quadratic time (UAX #15, Stream-Safe Text)."""
    start = 0
    for match in _MANY_MARKS.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _is_open(char: str) -> bool:
    """Whether a jamo that follows may change a character: a leading consonant, or a syllable without a final one."""
    return "\u1100" <= char <= "\u1112" or ("\uac00" <= char <= "\ud7a3" and (ord(char) - 0xAC00) % 28 == 0)
