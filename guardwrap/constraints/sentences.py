"""Words and sentences of a text, by rules that hold in many languages and scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import regex

from guardwrap.support.time_limits import matches, within

UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}"
    r"\p{Tai_Tham}\p{Tai_Viet}\p{Ahom}\p{Balinese}\p{Javanese}\u30fc\u3099\u309a"
)
"""Scripts without spaces between words, as the content of a set for ``regex``: Line_Break is Complex_Context or
Ideographic (UAX #14), and similar. The last three characters belong to more than one script."""

# Each character of these is a word (UAX #29). Words of Thai, Lao, Khmer and Burmese could only be found with a
# dictionary, so a run of their letters without spaces is one word.
_ALONE = r"\p{Han}\p{Hiragana}\p{Bopomofo}\p{Yi}"
_WORD_LETTER = rf"[\p{{L}}\p{{M}}\p{{Nd}}_--[{_ALONE}]]"
WORD = rf"(?:[{_ALONE}]\p{{M}}*|{_WORD_LETTER}+(?:['’\-]{_WORD_LETTER}+)*)"
"""Expression of a word, for version 1 of ``regex``: sets are subtracted in it."""

FIRST_WORD = regex.compile(WORD, regex.VERSION1)
"""Finds the first word of a text."""
_JOINTS = "'’-"
_ANY_ALONE = regex.compile(rf"[{_ALONE}]")
_PARTS = regex.compile(rf"[{_ALONE}]|{_WORD_LETTER}[^{_ALONE}]*", regex.VERSION1)


def words_of(text: str) -> list[str]:
    """Return the words of a text: letters, digits and ``_``, with apostrophes and hyphens between them.

    In Chinese and Japanese, each Han character and each Hiragana is a word, and so is a run of Katakana (UAX #29). In
    Thai, Lao, Khmer and Burmese, a run without spaces is one word, as no dictionary is used.
    """
    words: list[str] = within(FIRST_WORD.findall, text)
    return words


def settled_words(prefix: str) -> list[str]:
    """Return the words of a prefix that no continuation can change."""
    words = words_of(prefix)
    # No letter follows the last word, so its last occurrence is where it is.
    behind = prefix[prefix.rindex(words[-1]) + len(words[-1]) :] if words else " "
    return words[:-1] if behind in ("", *_JOINTS) else words


def count_spaced_words(text: str) -> int:
    """Count what white space separates. In Chinese and Japanese, each Han character and each Hiragana counts.

    The count never falls when text is added at the end.
    """
    pieces = text.split()
    if not _ANY_ALONE.search(text):
        return len(pieces)
    return sum(max(1, sum(1 for _ in matches(_PARTS, piece))) for piece in pieces)


NEVER_END = frozenset(
    " ".join(
        (
            "Mr Mrs Ms Dr Prof St Jr Sr vs e.g i.e cf Messrs Gen Rev Hon approx incl",
            # German, Dutch
            "z d u v d.h u.a v.a bzw ca evtl ggf inkl vgl Nr Hr Fr Abb Mio Mrd Ing Dipl sog insb exkl zzgl einschl",
            "ehem Fam Frl Hrsg Tel dhr Dhr mevr Mevr mw Mw drs Drs bijv",
            # French, Spanish, Portuguese, Italian
            "p p.ex env MM Mme Mlle Mgr av tél p.ej p.e Sra Srta Sres Dra Dña Ud Uds núm pág págs EE Av Avda aprox",
            "séc Profa sig Sig dott Dott dott.ssa Dott.ssa prof.ssa avv cfr",
            # Polish, Czech
            "np tzn tj ul prof dr im hab inż mgr św al wg tzw godz např tzv",
            # Russian, Ukrainian
            "т т.е т.к т.н ул им рис стр см напр кв корп просп пер гл проф акад вул буд пров ім див",
            "к г д с м р п",
            # Turkish, Vietnamese, Greek
            "Cad Mah Sok TP GS PGS TS ThS κ κα",
            # Hindi, Thai
            "डॉ प्रो पं रु श्री कु ดร รศ ผศ",
        )
    ).split()
)
"""A name, a number or another word always follows."""

MAY_END = frozenset(
    " ".join(
        (
            "etc usw u.s.w Jh Std a.m p.m enz UU Cía Ltda ecc vb",
            "itd itp zł tys mln mld atd apod hod",
            "т.д т.п др пр руб коп тыс млн млрд грн тис рр ст",
        )
    ).split()
)
"""A sentence ends after these, unless a small letter follows."""

BEFORE_NUMBER = frozenset(
    " ".join(("No Nos Art art Abs Bd Kap Str vol Vol chap cap fig Fig réf pag", "n s m ok č ст")).split()
)
"""These are abbreviations only before a number. Otherwise they are words at the end of a sentence."""

# A sentence ends at one of these with closing quotes, brackets or emphasis, before white space, or at a line break.
# After those of scripts without spaces, white space is not necessary. There, “ and ‘ only open quotes.
_UNSPACED_ENDS = "。！？｡।॥។៕။።։"
_ENDS = f".!?…‼⁇⁈⁉؟۔{_UNSPACED_ENDS}"
_QUOTES = "\"'”’」』》〉»›"
_UNSPACED_CLOSING = rf"{_QUOTES})\]）】〕］"
_OPENING = "“‘«‹"  # which close quotations in German
_EMPHASIS = "*_"  # of Markdown, which closes unless a letter follows
_SPACE_WITHIN = "[ \u00a0\u202f]"  # French quotes have a space within them
_CANDIDATE = regex.compile(
    rf"(?P<marks>(?<![{_ENDS}])[{_ENDS}]++|(?<=\p{{Greek}})[;\u037e])"
    rf"(?P<closing>(?:[{_UNSPACED_CLOSING}{_OPENING}]|{_SPACE_WITHIN}[»›]|[{_EMPHASIS}]++(?!\w))*+)(?P<gap>\s*+)"
    r"|(?<!\s)(?P<line>\s*\n\s*)"
)
_WITHIN_RANGE = 1000
"""Characters before a » in which « is looked for."""

_LAST = 80
"""Characters of an abbreviation, or of a date, that are read at most."""
_WORD = regex.compile(r"(?:(?<!\w)\w\w?\.\s?)*+[\w\p{M}.\-]*+\Z")
_DOTTED = regex.compile(r"(?:\p{L}\p{M}*){1,2}(?:\.(?:\p{L}\p{M}*){1,2})+")
_LETTER = rf"(?:\p{{Lu}}|[\p{{Lo}}--[\p{{Hangul}}{UNSPACED}]]|\p{{Thai}})"
_INITIAL = regex.compile(rf"(?<![\w\p{{M}}]|\w[\"״]){_LETTER}\p{{M}}*\Z", regex.VERSION1)
_ROMAN = regex.compile("[IVXLC]{2,}")
_LIST_NUMBER = regex.compile(r"(?:\A|[:\"'”’)\]]\s|[：；，、]|\n)\d{1,3}\Z")
_UNIT = regex.compile(r"(?:\d|\b[IVXLC]+)\s?\p{Ll}\Z")
_NOUNS = (
    *("Januar", "Jänner", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober"),
    *("November", "Dezember", "Jahrhundert", "Weltkrieg"),
)
_AFTER_ORDINAL = regex.compile(rf"\p{{Ll}}|{'|'.join(_NOUNS)}")
_DAY = regex.compile(r"(?<!\d)\d{1,2}\Z")
_SECOND_NUMBER = regex.compile(r"(?<!\d)\d{1,2}\.\s\d{1,2}\Z")
_YEAR = regex.compile(r"(?<!\d)\d{4}\Z")
_LAST_OF_DATE = regex.compile(r"(?<!\d)\d{4}\.\s\d{1,2}\.\s\d{1,2}\Z")
_REST_FROM_MONTH = regex.compile(r"\d{1,2}\.\s(?:\d{4}|\p{Ll})")  # 3. 5. 2024
_REST_FROM_YEAR = regex.compile(r"\d{1,2}\.\s\d{1,2}\.")  # 2024. 5. 3.
_FULL_YEAR = regex.compile(r"\d{4}")
_YEAR_AND_MONTH = regex.compile(r"(?<!\d)\d{4}\.\s\d{1,2}\Z")
_DAY_AFTER = regex.compile(r"\d{1,2}\.")
_SMALL = regex.compile(r"\p{Ll}")
_DASH = regex.compile(r"[—–]\s?[\p{Ll}\p{Lo}]")
_CASELESS = regex.compile(r"\p{Lo}")
_QUOTED = regex.compile(f"[{_QUOTES}{_OPENING}]")
_QUOTING_PARTICLE = regex.compile("と|って")


_SECOND_LETTER = {"a": regex.compile(r"m\."), "i": regex.compile(r"d\.")}  # a. m. and i. d. R.


class _Undecided(Exception):
    """The text that follows decides whether a sentence has ended."""


def sentences(text: str) -> list[str]:
    """Split a text into sentences: at ``.``, ``!``, ``?`` or ``…`` before white space, and at line breaks.

    At ``。``, ``！``, ``？``, ``।`` and the full stops of other scripts, sentences end without white space, too, and
    ``;`` after a Greek letter is a question mark. No sentence ends after a single capital ("J. Smith", so "A. B. C." is
    one sentence), an abbreviation (Mr, Dr, e.g, z. B, p. ex, т. е and others; etc only before a small letter), an
    ordinal number before a month ("3. März"), the number of a list item ("1. Tea. 2. Coffee." is two sentences), an
    ellipsis before a small letter, or a quotation that is followed by its speaker (“Stop!” he said). Text that is added
    at the end never moves a boundary.
    """
    pieces, start = [], 0
    for end, following, _ in _boundaries(text, 0, 0):
        pieces.append(text[start:end])
        start = following
    return [piece for piece in pieces if piece.strip()]


class SentenceCount(NamedTuple):
    """How many sentences a text has that may grow, and where to count on."""

    number: int = 0
    settled: int = 0  # how many of them have ended, whatever follows
    start: int = 0  # where the next one begins, in the end of the text that is kept
    place: int = 0  # where its end is looked for

    def grown(self, text: str) -> tuple[SentenceCount, str]:
        """Count on in what was kept and the text after it; return the count, and what to keep for the next one."""
        number, start = self.settled, self.start
        settled, begins, place = self.settled, self.start, self.place
        for end, following, behind in _boundaries(text, self.start, self.place):
            number += text[start:end].strip() != ""
            start = following
            if behind < len(text):  # else more text may still change what was matched
                settled, begins, place = number, following, behind
        cut = 0
        if begins > self.start:
            earlier = (text.rfind(mark, max(0, begins - _WITHIN_RANGE), begins) for mark in "«‹»›")  # for _is_open
            last = max(earlier)
            cut = begins - 1 if last < 0 else last
        return SentenceCount(number, settled, begins - cut, place - cut), text[cut:]


def _boundaries(text: str, start: int, place: int) -> Iterator[tuple[int, int, int]]:
    """Yield where each sentence ends, where the next one begins, and where to look for its end; the text's end last.

    ``start``: where a sentence begins; ``place``: from where its end is looked for.
    """
    stop = len(text)
    for match in matches(_CANDIDATE, text, pos=place):
        end, following = _gap(match, text)
        if following == len(text):
            stop = end  # without white space at the end
            break
        try:
            ends = match["line"] is not None or "\n" in text[end:following] or _ends(text, start, match, end, following)
        except _Undecided:
            break
        if ends:
            yield end, following, match.end()
            start = following
    yield stop, len(text), len(text)


def _gap(match: regex.Match[str], text: str) -> tuple[int, int]:
    """Return where the sentence ends, and where the next one begins, if the match is a boundary."""
    if match["line"] is not None:
        return match.start(), match.end()
    for index in range(*match.span("closing")):
        # White space and » may also open a quotation, as in German books.
        if text[index] == " " and not _is_open(text, index):
            return index, index + 1
        if text[index] in _OPENING and match["marks"][-1] in _UNSPACED_ENDS:
            return index, index
    return match.start("gap"), match.end()


def _is_open(text: str, index: int) -> bool:
    """Whether « or ‹ has been opened and not closed before a place."""
    before = text[max(0, index - _WITHIN_RANGE) : index]
    return max(map(before.rfind, "«‹")) > max(map(before.rfind, "»›"))


def _ends(text: str, start: int, match: regex.Match[str], end: int, following: int) -> bool:
    """Whether a sentence that begins at ``start`` ends here, before a character at ``following``."""
    marks, closing = match["marks"], text[match.start("closing") : end]
    if end == following and (marks[-1] not in _UNSPACED_ENDS or text[following] in _ENDS):
        return False
    if marks == ".":
        return closing.strip(_EMPHASIS) != "" or not _is_abbreviated(text, start, match.start(), following)
    if marks in (";", "\u037e"):
        return True
    quoted = _QUOTED.search(closing) is not None
    if quoted and end == following and marks[-1] == "。":
        return not _follows(_QUOTING_PARTICLE, text, following)
    if (quoted or marks[-1] in ".…") and _SMALL.match(text, following):
        return False
    if marks[-1] in "。।॥":
        return True
    if quoted and _CASELESS.match(text, following):
        return False
    return not _follows(_DASH, text, following)


def _is_abbreviated(text: str, start: int, stop: int, following: int) -> bool:
    """Whether a full stop at ``stop`` belongs to an abbreviation or a number within the sentence."""
    before = text[max(start, stop - _LAST) : stop]
    small, digit = _SMALL.match(text, following) is not None, text[following].isdecimal()
    if before[-1:].isdecimal():
        return _is_within_date(text, before, following) or _LIST_NUMBER.search(before.lstrip()) is not None
    match = _WORD.search(before)
    piece = "" if match is None else match.group().lstrip(_EMPHASIS)
    word = piece.split()[-1] if piece.split() else ""
    compact = "".join(piece.split())
    tail = word.rpartition("-")[2]
    unit = _SMALL.match(before, len(before) - 1) is not None and _UNIT.search(before) is not None
    if compact in MAY_END or word in MAY_END or tail in MAY_END:
        return small or (digit and word in BEFORE_NUMBER)
    if unit:
        return small or digit
    if compact in NEVER_END or word in NEVER_END or tail in NEVER_END or _INITIAL.search(before):
        return True
    if _ROMAN.fullmatch(word):
        return small or before.strip() == word
    if _DOTTED.fullmatch(word):
        return small
    if word in _SECOND_LETTER and small:
        return _follows(_SECOND_LETTER[word], text, following)
    return digit and (word in BEFORE_NUMBER or word.endswith("str"))


def _is_within_date(text: str, before: str, following: int) -> bool:
    """Whether a number is an ordinal, or belongs to a date such as 3. 5. 2024 or 2024. 5. 3."""
    if _LAST_OF_DATE.search(before):
        return True
    if _YEAR.search(before):
        return _follows(_REST_FROM_YEAR, text, following)
    if not _DAY.search(before):
        return False
    if _SECOND_NUMBER.search(before) and _follows(_FULL_YEAR, text, following):
        return True
    if _YEAR_AND_MONTH.search(before) and _follows(_DAY_AFTER, text, following):
        return True
    return _follows(_AFTER_ORDINAL, text, following) or _follows(_REST_FROM_MONTH, text, following)


def _follows(pattern: regex.Pattern[str], text: str, following: int) -> bool:
    """Whether an expression matches here; raises ``_Undecided`` if a continuation of the text might match."""
    match = pattern.match(text, following, partial=True)
    if match is not None and match.partial:
        raise _Undecided
    return match is not None
