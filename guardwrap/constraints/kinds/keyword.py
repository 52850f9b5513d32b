"""The ``Keyword`` constraint: words and phrases that the text must, or must not, contain."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import permutations
from typing import Any, Literal

import regex

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.escapes import decodings
from guardwrap.constraints.field_checks import listed, require, require_booleans, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.kinds.text_folding import (
    TextFolding,
    alternatives,
    ends_in_hangul,
    in_one_spelling,
    longest_spelling,
    marks_on_purpose,
    require_stemmer,
    spaced,
    without_last_hangul,
)
from guardwrap.constraints.verdicts import READ_ALWAYS, Monitor, Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import Unsatisfiable, is_count, quoted
from guardwrap.support.limits import ITEMS_OF_ANY, MAX_WORD_PAIRS, count_items
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import matches

_GAPS = {"flexible": (r"\s+", " "), "optional": (r"[\s\-]+", "")}
_PLAIN = regex.compile(r"[A-Za-z0-9_]+")
_SHORT = 1024
"""The longest expression that stays compiled, in characters."""
_QUICK = 100_000
"""Characters of all words times characters of the text. A search of this size takes about a millisecond at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Keyword(TextConstraint):
    r"""Words or phrases that the text must, or must not, contain.

    Parameters
    ----------
    words
        One word or phrase, or several.
    match
        ``"any"``: the words occur at least ``min_count`` and at most ``max_count`` times in total; ``"all"``: each
        word does; ``"none"``: no word occurs.
    case_sensitive
        Whether upper and lower case are different.
    whole_words
        Whether a word counts only if it is not part of a longer one. Chinese, Japanese, Thai, Lao, Khmer and Burmese
        are written without spaces, so a word in their scripts counts wherever it occurs. Korean particles may follow a
        word in Hangul, and the article may precede a word in Arabic or Hebrew script, as may the Arabic "and". Letters
        of two such groups do not form one word: ``AI`` occurs in ``AI模型``. If False, a word counts anywhere, even if
        its last letter carries a further mark, as ``e`` does in ``é``.
    min_count, max_count
        Inclusive limits on the number of non-overlapping occurrences; not with ``"none"``. Without either, at least
        one occurrence is required. With ``max_count`` alone, none is required.
    spacing
        White space within a phrase. ``"flexible"``: any white space matches any other, such as a line break or a
        no-break space; ``"exact"``: as written; ``"optional"``: white space or a hyphen within a word or phrase matches
        white space, hyphens or nothing, so ``e-mail`` finds ``e mail`` and ``email``.
    normalize
        ``"NFKC"``: compatible spellings are the same, such as full-width letters, letters in circles, and digits of any
        script; a sign that is written in a word, such as ``№`` or ``²``, is found as it is. ``"NFC"``: only canonically
        equivalent ones are, such as composed and decomposed accents.
    ignore_invisible
        Whether soft hyphens, zero-width spaces and joiners, variation selectors, control characters and others that
        cannot be seen (Default_Ignorable_Code_Point) are left out, so that a ban on ``secret`` finds it with a soft
        hyphen in it.
    stem
        Language whose inflected forms are the same word: its code, such as ``"de"``, for a list of words with their
        lemmas (simplemma; extra ``lemma``), or its name, such as ``"german"``, for the rules of a stemmer (Snowball;
        extra ``stem``). ``Haus`` also finds ``Häuser``; only the list knows that ``ging`` is a form of ``gehen``. Only
        with ``whole_words`` and without ``case_sensitive``.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    Unsatisfiable
        If ``min_count`` exceeds ``max_count``.

    Notes
    -----
    Without ``case_sensitive``, words match by full case folding: ``Straße`` and ``STRASSE`` are the same. I matches i
    and ı, and İ matches i. Curly apostrophes match straight ones, and U+2010 and U+2011 match the hyphen. Vowel marks
    of Arabic and Hebrew do not matter. A text may omit the dots of a ё or a Greek accent of the word, and may spell a
    nasal before a Hindi consonant either way (``हिन्दी``, ``हिंदी``).

    A word also occurs where it is spelled with escapes: of JSON strings, also of JSON within them up to three deep,
    ``\u0041`` and ``\x41`` in code, ``&#65;`` and ``%41``. A prefix is judged as it is written.

    Examples
    --------
    >>> Keyword(["mug", "cup"]).accepts("A Mug of tea")
    True
    """

    words: str | Sequence[str]
    match: Literal["any", "all", "none"] = field(default="any", kw_only=True)
    case_sensitive: bool = field(default=False, kw_only=True)
    whole_words: bool = field(default=True, kw_only=True)
    min_count: int | None = field(default=None, kw_only=True)
    max_count: int | None = field(default=None, kw_only=True)
    spacing: Literal["flexible", "exact", "optional"] = field(default="flexible", kw_only=True)
    normalize: Literal["NFC", "NFKC"] = field(default="NFKC", kw_only=True)
    ignore_invisible: bool = field(default=True, kw_only=True)
    stem: str | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["keyword"] = field(default="keyword", kw_only=True)

    def __post_init__(self) -> None:
        # A set is rejected: its order, and so the digest, would differ from one process to the next.
        require(isinstance(self.words, Sequence), f"words must be a text or a list of texts, not {shown(self.words)}")
        words = (self.words,) if isinstance(self.words, str) else tuple(self.words)
        require(
            bool(words) and all(isinstance(w, str) and w.strip() for w in words),
            f"words must be texts with at least one character each, not {shown(self.words)}",
        )
        object.__setattr__(self, "words", words)
        require_choice(self.match, ("any", "all", "none"), "match")
        require_choice(self.spacing, ("flexible", "exact", "optional"), "spacing")
        require_choice(self.normalize, ("NFC", "NFKC"), "normalize")
        require_booleans(self, "case_sensitive", "whole_words", "ignore_invisible")
        for name in ("min_count", "max_count"):
            limit = getattr(self, name)
            require(limit is None or is_count(limit), f"{name}={shown(limit)}: give a whole number of at least 0")
        if self.min_count == 1 and self.max_count is None:  # the default; one canonical form means one digest
            object.__setattr__(self, "min_count", None)
        counted = self.min_count is not None or self.max_count is not None
        require(not (self.match == "none" and counted), "min_count and max_count cannot be used with match='none'")
        if self.max_count is not None and self.least > self.max_count:
            raise Unsatisfiable(f"min_count={self.min_count} exceeds max_count={self.max_count}")
        object.__setattr__(self, "on", read_view(self.on))
        if self.stem is not None:
            require_stemmer(self.stem)
            require(self.whole_words and not self.case_sensitive, "stem needs whole words, and ignores case")
        blank = next((word for word in words if not self.folding.fold(word).strip()), None)
        require(
            blank is None, f"{shown(blank)} has no character that can be seen; set ignore_invisible=False to find it"
        )
        size = ITEMS_OF_ANY * len(words) if self.match == "all" else 0  # each word becomes an expression
        if self.folding.keep_capital_i and not self.case_sensitive:  # each becomes a set of characters
            size += 2 * sum(word.count(letter) for word in words for letter in "iIı")
        count_items(self._characters + size, "words have")
        self.compiled  # noqa: B018  # compile now, so that the first text does not wait for it

    @property
    def least(self) -> int:
        """The number of occurrences that are required."""
        return (1 if self.max_count is None else 0) if self.min_count is None else self.min_count

    @cached_property
    def folding(self) -> TextFolding:
        """How words and texts are folded before they are compared."""
        capital_i = any(letter in word for word in self.words for letter in "Iı")
        capital_i = capital_i and self.stem is None  # stemmers read small letters
        kept = marks_on_purpose(self.words) if self.normalize == "NFKC" else ""
        return TextFolding(self.normalize, self.case_sensitive, self.ignore_invisible, capital_i, self.stem, kept)

    @cached_property
    def folded_words(self) -> tuple[str, ...]:
        """The folded words, each once."""
        return tuple(dict.fromkeys(map(self.folding.fold, self.words)))

    @cached_property
    def compiled(self) -> tuple[regex.Pattern[str], ...]:
        """Expressions for folded text: for ``"all"`` one per word; for ``"any"`` and ``"none"`` one for all words."""
        # Longest first, so that where one word begins another, the longer one is counted.
        words = sorted(self.folded_words, key=len, reverse=True)
        capital_i = self.folding.keep_capital_i and not self.case_sensitive
        spell = partial(spaced, spacing=self.spacing, capital_i=capital_i)
        groups = [[word] for word in words] if self.match == "all" else [words]
        expressions = [alternatives(group, spell, whole=self.whole_words) for group in groups]
        return tuple((_kept if len(each) <= _SHORT else _compiled)(each) for each in expressions)

    def find(self, pattern: regex.Pattern[str], folded: str, start: int = 0) -> Iterator[regex.Match[str]]:
        """Yield the occurrences of one expression in a folded text."""
        # A few words in a short text are found in less time than it takes to check the time limit.
        quick = self._characters * (len(folded) - start) <= _QUICK
        return pattern.finditer(folded, start) if quick else matches(pattern, folded, pos=start)

    def settled_end(self, folded: str) -> int:
        """Return up to where the occurrences in the beginning of a folded text are certain.

        A whole word counts once the character after it is known; before particles, the character after all of them.
        """
        if not self.whole_words:
            return len(folded)
        return len(without_last_hangul(folded) if self._particles else folded) - 1

    @cached_property
    def _particles(self) -> bool:
        return any(map(ends_in_hangul, self.folded_words))

    @cached_property
    def _characters(self) -> int:
        return sum(map(len, self.folded_words))

    def holds(self, text: str) -> bool:
        """Count the occurrences in one string, in that of its readings which has most."""
        counts = [0] * len(self.compiled)
        for folded in self._readings(text):
            for number, pattern in enumerate(self.compiled):
                counts[number] = max(counts[number], sum(1 for _ in self.find(pattern, folded)))
        if self.match == "none":
            return not any(counts)
        most = float("inf") if self.max_count is None else self.max_count
        return all(self.least <= count <= most for count in counts)

    def _readings(self, text: str) -> Iterator[str]:
        """Yield the folded text, as it is written and decoded. A monitor knows the first one, so it finds no more."""
        for written in (text, *decodings(text)):
            folded = self.folding.fold(written)
            yield folded
            if self.normalize == "NFKC" and not written.isascii():  # "Acme™" has "Acme" in it, and "AcmeTM" has not
                plain = replace(self.folding, form="NFC").fold(written)
                if plain != folded:
                    yield plain

    def fault(self, text: str) -> str:
        if self.match == "all":
            wrong = [word for word in self.words if not replace(self, words=(word,)).holds(text)]
            lacks = self.max_count is None and self.least == 1
            return f"{'lacks' if lacks else 'does not have as often as required'} {listed(wrong)}"
        return "" if self.match == "any" and self.max_count is None else self._has(text)

    def found_in(self, text: str) -> str:
        return self._has(text) if self.match == "any" else ""

    def _has(self, text: str) -> str:
        words = listed(self._present(text))
        return words and f"has {words}"

    def _present(self, text: str) -> Iterator[str]:
        """Yield the words that occur in a string. Halves of the list are searched, as it may be long."""
        rule = replace(self, match="any", min_count=None, max_count=None)
        halves: list[Sequence[str]] = [self.words]
        while halves:
            words = halves.pop()
            if replace(rule, words=words).holds(text):
                middle = len(words) // 2
                if not middle:
                    yield words[0]
                else:
                    halves += [words[middle:], words[:middle]]

    def prefix_verdict(self, prefix: str) -> Verdict:
        return KeywordMonitor(self).read(prefix).verdict

    def monitor(self) -> Monitor:
        """Return a monitor, which folds and searches only the new text if the view is the completion."""
        return KeywordMonitor(self).read("") if self.on == "completion" else super().monitor()

    def next_start(self, folded: str, end: int) -> int:
        """Return where an occurrence that ends behind ``end`` may begin at the earliest, or a place before it."""
        widest = self._widest
        if not self._variable:
            return end - widest
        # White space in an occurrence may have any length, so count the other characters.
        start = max(0, end - 4 * widest)
        letters = "".join(folded[start:end].split()).replace("-", "")
        return start if len(letters) > widest else 0

    @cached_property
    def _widest(self) -> int:
        return max(map(longest_spelling, self.folded_words))

    @cached_property
    def _variable(self) -> bool:
        """Whether the length of an occurrence is not fixed."""
        return self.spacing != "exact" and any(regex.search(r"[\s\-]", word) for word in self.folded_words)

    def verdict_on(self, counts: Sequence[int]) -> Verdict:
        """Return the verdict on a text with at least these occurrences of each expression."""
        if self.match == "none":
            return Verdict.VIOLATED if any(counts) else Verdict.UNDECIDED
        if self.max_count is not None:
            return Verdict.VIOLATED if max(counts) > self.max_count else Verdict.UNDECIDED
        return Verdict.SATISFIED if min(counts) >= self.least else Verdict.UNDECIDED

    @cached_property
    def prefixing(self) -> bool:
        """Whether counts may fall when text is added, because a longer word replaces occurrences of shorter ones.

        This matters only where occurrences are counted: that some word occurs stays true.
        """
        counted = self.match == "any" and (self.least > 1 or self.max_count is not None)
        words = list(map(in_one_spelling, self.folded_words))
        if counted and len(words) * sum(map(len, words)) > MAX_WORD_PAIRS:
            return True
        if not self.case_sensitive:  # I matches i and ı
            words = [word.replace("I", "i").replace("ı", "i") for word in words]
        if self.spacing != "exact":
            words = [regex.sub(*_GAPS[self.spacing], word) for word in words]
        # With optional gaps, two words may differ only in what is around them.
        alike = self.spacing == "optional"
        return counted and any((a != b or alike) and a in b for a, b in permutations(words, 2))

    def excludes(self, other: Constraint) -> str | None:
        """Return why another constraint contradicts this one; None if that is not plain."""
        if not isinstance(other, Keyword) or self.on != other.on or other.match != "none":
            return None
        if self._comparison != other._comparison or self.least < 1:
            return None
        needed, banned = (
            {replace(each.folding, keep_capital_i=each.stem is None).fold(word) for word in each.words}
            for each in (self, other)
        )
        clash = needed & banned if self.match == "all" else needed if needed <= banned else set()
        return f"{', '.join(sorted(clash))} is both required and banned" if clash and self.match != "none" else None

    @property
    def _comparison(self) -> tuple[object, ...]:
        return self.case_sensitive, self.whole_words, self.spacing, self.normalize, self.ignore_invisible, self.stem

    def digest_fields(self) -> dict[str, Any]:
        """Return the version of the matching rules, if it makes a difference for the words in ordinary English text."""
        return {} if all(map(_PLAIN.fullmatch, self.words)) else {"matching": 4}


def _compiled(expression: str) -> regex.Pattern[str]:
    return regex.compile(expression, regex.VERSION0, cache_pattern=False)


_kept = lru_cache(128)(_compiled)
"""Short expressions stay compiled, since the requests of one app repeat their words."""


@dataclass(frozen=True)
class KeywordMonitor(Monitor):
    """Monitor that counts the occurrences that are certain."""

    constraint: Keyword
    folded: str = ""  # the folded form of the text, as far as no later text can change it
    rest: str = ""  # the last character, and the marks after it; with stems, the last word
    # for each expression, the number of occurrences so far, and where to look for the next one
    progress: tuple[tuple[int, int], ...] = ()
    verdict: Verdict = Verdict.UNDECIDED  # the verdict on the text read so far

    @property
    def rereads(self) -> bool:
        """Whether a long word has not ended, which is folded again for each piece."""
        return len(self.rest) > READ_ALWAYS

    @property
    def delimiters(self) -> bytes | None:
        """None are needed if words only have to occur."""
        return b"" if self.constraint.match != "none" and self.constraint.max_count is None else None

    def read(self, text: str, /) -> KeywordMonitor:
        """Fold the new text, and search where an occurrence may have become certain."""
        constraint = self.constraint
        if self.verdict is not Verdict.UNDECIDED or constraint.prefixing:
            return self
        text = self.rest + text
        cut = constraint.folding.closed(text)
        folded, rest = self.folded + constraint.folding.fold(text[:cut]), text[cut:]
        certain = folded + constraint.folding.settled(rest)
        end = constraint.settled_end(certain)
        before = self.progress or ((0, 0),) * len(constraint.compiled)
        progress = tuple(
            self._searched(pattern, certain, end, *each)
            for pattern, each in zip(constraint.compiled, before, strict=True)
        )
        return KeywordMonitor(
            constraint, folded, rest, progress, constraint.verdict_on([count for count, _ in progress])
        )

    def _searched(self, pattern: regex.Pattern[str], certain: str, end: int, count: int, start: int) -> tuple[int, int]:
        for match in self.constraint.find(pattern, certain, start):
            if match.end() > end:
                break
            count, start = count + 1, match.end()
        return count, max(start, self.constraint.next_start(certain, end))


_AFFIX = regex.compile(r"[-~…]\p{L}+|\p{L}+[-~…]")
_WILDCARD = regex.compile(r"\p{L}+\*|\*\p{L}+|\.\*\p{L}+|\p{L}+\.\*")


def unlikely_words(keyword: Keyword) -> list[str]:
    """Return notes on words that are lists, parts of words, wildcards or single marks."""
    notes = [note for word in keyword.words if (note := _note(word, keyword)) is not None]
    if len(keyword.words) == 1 and "," in keyword.words[0]:
        notes.append(f"{quoted(keyword.words[0])} is one phrase; for several words write a list: [tea, coffee]")
    return notes


def _note(word: str, keyword: Keyword) -> str | None:
    if _AFFIX.fullmatch(word):
        part = quoted(word.strip("-~…"))
        return f"{quoted(word)} occurs only with its dash; for a part of words write {part} and whole_words: false"
    if _WILDCARD.fullmatch(word):
        return f"{quoted(word)} is searched for as written, as a keyword has no wildcards; use kind: regex"
    if word != word.strip():
        shorter = quoted(word.strip())
        return f"{quoted(word)} occurs only with the white space around it; write {shorter} to find it anywhere"
    if keyword.whole_words and unicodedata.combining(keyword.folding.fold(word)[0]):
        return f"{quoted(word)} begins with a mark, which belongs to the letter before it; set whole_words: false"
    return None
