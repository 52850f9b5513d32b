"""Text folding: texts that readers take for the same become the same string, so that words can be searched in it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import regex

from guardwrap.constraints.kinds.stemming import stem_words
from guardwrap.constraints.kinds.word_patterns import SPACED_WORD

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
