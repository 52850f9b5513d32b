"""The ``Order`` constraint: how each word, sentence, line or paragraph relates to the one before it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, get_args

import regex

from guardwrap.constraints.field_checks import require, require_booleans, require_choice, shortened, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.sentences import FIRST_WORD, sentences, settled_words, words_of
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, filled_lines, paragraphs, read_view
from guardwrap.errors import is_count
from guardwrap.support.time_limits import check_deadline, within

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


def begun_units(prefix: str, unit: str) -> tuple[list[str], str]:
    """Return the units of a prefix that no later text changes, and the one that grows, which may be empty.

    Of a sentence or paragraph that grows, only what stays in it is returned: its settled words, with a space behind.
    """
    units = _SPLIT[unit](prefix)
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
        return _FEATURES[name](unit) if settled_words(unit) else None
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


Relation = Literal[
    "increasing",
    "decreasing",
    "same",
    "different",
    "alternating",
    "next_letter",
    "no_next_letter",
    "chained",
    "circular",
]
_ORDERED = ("increasing", "decreasing")
_LETTERS = ("next_letter", "no_next_letter")


@dataclass(frozen=True, eq=False, repr=False)
class Order(TextConstraint):
    """Each word, sentence, line or paragraph relates to the one before it in a certain way.

    Parameters
    ----------
    units
        What is compared: ``"words"``, ``"sentences"``, ``"lines"`` or ``"paragraphs"``.
    relation
        - ``"increasing"``, ``"decreasing"``: each is more, or less, than the one before.
        - ``"same"``, ``"different"``: neighbors are alike, or are not.
        - ``"alternating"``: odd and even numbers alternate.
        - ``"next_letter"``: each begins with the next letter of the alphabet, and the first letter follows the last
          one; ``"no_next_letter"``: none begins with the next letter (but with the first one after the last).
        - ``"chained"``: each begins with the last word of the one before; not for words.
        - ``"circular"``: the first and the last one are alike.
    by
        What of each unit is compared: its ``"text"`` (words in lower case without accents, in the order of Unicode's
        code points), its ``"first_letter"``, ``"first_word"`` or ``"last_word"``; or the number of its ``"words"``,
        ``"characters"``, ``"letters"`` or ``"syllables"`` (estimated by the vowels), its ``"indent"`` (white space at
        the beginning), or its ``"alliteration"`` (the most words in a row that begin with the same letter).
    step
        With increasing or decreasing numbers: the exact difference; None for any.
    ties
        Whether neighbors may also be equal in an increasing or decreasing order.
    alphabet
        The letters for ``"next_letter"`` and ``"no_next_letter"``, in their order, in lower case without accents.
    on
        The view of the text that is judged: with ``on="lines"``, the words of each line.
    name
        Label in reports.

    Notes
    -----
    A prefix is VIOLATED as soon as two neighbors that no later text changes do not relate so, except with
    ``"circular"``. A text with fewer than two units is accepted. Units without a word are left out, except for
    ``"indent"`` and ``"characters"``.

    Examples
    --------
    >>> Order("words", "different", by="first_letter").accepts("Big apples cost more")
    True
    >>> Order("sentences", "increasing", by="words", step=2).accepts("Tea. I like tea.")
    True
    """

    units: Unit
    relation: Relation
    by: Feature = field(default="text", kw_only=True)
    step: int | None = field(default=None, kw_only=True)
    ties: bool = field(default=False, kw_only=True)
    alphabet: str = field(default="abcdefghijklmnopqrstuvwxyz", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["order"] = field(default="order", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.units, get_args(Unit), "units")
        require_choice(self.relation, get_args(Relation), "relation")
        require_choice(self.by, get_args(Feature), "by")
        numeric = self.by in NUMERIC
        if self.relation in (*_LETTERS, "chained"):
            default = {"chained": "text"}.get(self.relation, "first_letter")
            require(self.by in ("text", default), f"relation={self.relation!r} cannot be used with by={self.by!r}")
            object.__setattr__(self, "by", default)
        require(self.relation != "chained" or self.units != "words", "words cannot be chained; give sentences or lines")
        require(self.relation != "alternating" or numeric, "alternating requires by= a number, such as 'syllables'")
        ordered = self.relation in _ORDERED
        require(self.step is None or (ordered and numeric), "step requires an increasing or decreasing number")
        valid = self.step is None or (is_count(self.step) and self.step > 0)
        require(valid, f"step={shown(self.step)}: give a whole number of at least 1")
        require_booleans(self, "ties")
        require(ordered or not self.ties, "ties requires an order")
        require(not (self.ties and self.step is not None), "ties cannot be used with step")
        valid = isinstance(self.alphabet, str) and len({*self.alphabet}) == len(self.alphabet) > 1
        require(valid, f"alphabet must be different letters in their order, not {shown(self.alphabet)}")
        for letter in self.alphabet:
            compared = _first_letter(letter)
            problem = f"no word begins with it, as words are compared in lower case without accents; write {compared!r}"
            require(compared == letter, f"alphabet has {letter!r}: {problem if compared else 'it is no letter'}")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        return self._follow(_SPLIT[self.units](text))

    def _follow(self, units: Sequence[str]) -> bool:
        if self.relation == "chained":
            ends = [ends for unit in units if (ends := first_and_last(unit)) is not None]
            return all(one[1] == two[0] for one, two in pairwise(ends))
        keys = features(units, self.by)
        if self.relation == "circular":
            return not keys or keys[0] == keys[-1]
        for one, two in pairwise(keys):
            check_deadline()
            if not self._relates(one, two):
                return False
        return True

    def fault(self, text: str) -> str:
        units = _SPLIT[self.units](text)
        if self.relation == "circular":
            return f"begins with {shortened(units[0])} and ends with {shortened(units[-1])}" if units else ""
        pairs = ((one, two) for one, two in pairwise(units) if not self._follow([one, two]))
        wrong = next(pairs, None)
        return "" if wrong is None else f"has {shortened(wrong[0])} before {shortened(wrong[1])}"

    def _relates(self, one: int | str, two: int | str) -> bool:
        if self.relation in _LETTERS:
            place, next_place = self._place(one), self._place(two)
            if self.relation == "no_next_letter":
                return place < 0 or next_place != place + 1
            return min(place, next_place) >= 0 and next_place == (place + 1) % len(self.alphabet)
        if self.relation == "alternating":
            return (int(one) - int(two)) % 2 == 1
        if self.relation in ("same", "different"):
            return (one == two) == (self.relation == "same")
        if self.relation == "decreasing":
            one, two = two, one
        if self.step is not None:
            return int(two) - int(one) == self.step
        return one < two or (self.ties and one == two)  # type: ignore[operator]  # both are of one type

    def _place(self, letter: int | str) -> int:
        return self.alphabet.find(str(letter))

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Compare the units that no later text changes, and what is known of the one that grows."""
        if self.relation == "circular":
            return Verdict.UNDECIDED
        ended, growing = begun_units(prefix, self.units)
        if self.relation == "chained":
            first = first_and_last(growing)
            units = ended if first is None or not settled_words(growing) else [*ended, growing]
            return Verdict.UNDECIDED if self._follow(units) else Verdict.VIOLATED
        if not self._follow(ended):
            return Verdict.VIOLATED
        keys = features(ended, self.by)
        least = settled_feature(growing, self.by, self.units)
        possible = not keys or least is None or self._may_follow(keys[-1], least)
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED

    def _may_follow(self, one: int | str, two: int | str) -> bool:
        """Whether a unit may still relate to the one before: of a number, it is at least ``two``."""
        if self.by not in GROWING:
            return self._relates(one, two)
        one, two = int(one), int(two)
        if self.relation == "same":
            return two <= one
        if self.relation == "decreasing":
            return two <= one - (self.step or (0 if self.ties else 1))
        return self.step is None or two <= one + self.step
