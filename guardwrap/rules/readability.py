"""The ``Readability`` constraint: how hard a text is to read, by formulas on the lengths of words and sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import regex

from guardwrap.constraints.field_checks import is_between, limits_in_words, require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.sentences import sentences
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import Unsatisfiable, is_number
from guardwrap.support.formatting import digits
from guardwrap.support.time_limits import check_deadline, matches

Formula = Literal["flesch", "flesch_kincaid", "lix"]
FormulaLanguage = Literal["de", "en", "es", "fr", "it", "nl", "pt", "ru", "tr"]


class _Weights(NamedTuple):
    """Of Flesch's formula: start - per_word * (words per sentence) - per_syllable * (syllables per word)."""

    start: float
    per_word: float
    per_syllable: float


_FLESCH = {
    "de": _Weights(180, 1, 58.5),  # Amstad 1978
    "en": _Weights(206.835, 1.015, 84.6),  # Flesch 1948
    "es": _Weights(206.84, 1.02, 60),  # Fernández Huerta 1959
    "fr": _Weights(207, 1.015, 73.6),  # Kandel and Moles 1958
    "it": _Weights(217, 1.3, 60),  # Franchina and Vacca 1986
    "nl": _Weights(206.84, 0.93, 77),  # Douma 1960
    "pt": _Weights(248.835, 1.015, 84.6),  # Martins et al. 1996
    "ru": _Weights(206.835, 1.3, 60.1),  # Oborneva 2006
    "tr": _Weights(198.825, 2.61, 40.175),  # Ateşman 1997
}
_KINCAID = _Weights(-15.59, -0.39, -11.8)  # Kincaid et al. 1975

_WORD = regex.compile(r"[\p{L}\p{M}]+(?:['’\-][\p{L}\p{M}]+)*")
_LONG = 6  # letters that a word of LIX may have without being long (Björnsson 1968)

# A syllable is a group of vowels; in Russian and Turkish each vowel is one.
_VOWELS = "aeiouyàáâãäåæèéêëìíîïòóôõöøœùúûüýÿ"
_SYLLABLE = {
    **dict.fromkeys(get_args(FormulaLanguage), regex.compile(f"[{_VOWELS}]+")),
    "ru": regex.compile("[аеёиоуыэюя]"),
    "tr": regex.compile("[aeıioöuüâîû]"),
}
_SILENT = {
    "en": regex.compile(f"(?<=[^{_VOWELS}])(?:(?<![^{_VOWELS}]l)e|(?<![td])ed)\\Z"),  # late and walked, not table
    "fr": regex.compile(f"(?<=[^{_VOWELS}])es?\\Z"),
}
"""Endings that are no syllable unless they are the only one."""


@dataclass(frozen=True, eq=False, repr=False)
class Readability(TextConstraint):
    """How easy the text is to read is between two limits.

    Parameters
    ----------
    formula
        - ``"flesch"``: reading ease; 100 is very easy, 0 very hard. Each language has its own weights.
        - ``"flesch_kincaid"``: years of school in the United States. English only.
        - ``"lix"``: words per sentence, and the percentage of words with more than six letters; 20 is very easy, 60
          very hard. For all languages that put spaces between words.
    language
        The language of the text, such as ``"de"``. None for ``"lix"``.
    min, max
        Limits, inclusive; None means no limit.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    Unsatisfiable
        If ``min`` exceeds ``max``.

    Notes
    -----
    Syllables are counted as groups of vowels. The formulas were fitted to texts of a hundred words and more; for
    shorter ones they say little. A text without words is rejected. Prefixes are UNDECIDED: what follows may be easier.

    References
    ----------
    R. Flesch, A new readability yardstick, Journal of Applied Psychology 32 (1948).

    Examples
    --------
    >>> Readability("flesch", language="en", min=80).accepts("The cat sat on the mat. It was warm.")
    True
    >>> Readability("flesch", language="en", min=80).accepts("Institutional considerations necessitate deliberation.")
    False
    """

    formula: Formula
    language: FormulaLanguage | None = field(default=None, kw_only=True)
    min: int | float | None = field(default=None, kw_only=True)
    max: int | float | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["readability"] = field(default="readability", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.formula, get_args(Formula), "formula")
        if self.formula == "lix":
            require(self.language is None, "formula='lix' is the same for all languages: leave language out")
        else:
            require(self.language is not None, f"formula={self.formula!r} needs a language, such as 'en'")
            known = get_args(FormulaLanguage) if self.formula == "flesch" else ("en",)
            require_choice(self.language, known, "language")
        require(self.min is not None or self.max is not None, "Readability needs min, max or both")
        for name, limit in (("min", self.min), ("max", self.max)):
            if limit is not None:
                require(is_number(limit), f"{name}={shown(limit)} is not a finite number")
                object.__setattr__(self, name, float(limit))  # one canonical form means one digest
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Unsatisfiable(f"Readability min={digits(self.min)} exceeds max={digits(self.max)}")
        object.__setattr__(self, "on", read_view(self.on))

    def measure(self, text: str) -> float | None:
        """Return the formula's value for one string, or None without words."""
        number_of_words = number_of_syllables = number_of_long = 0
        for match in matches(_WORD, text):
            check_deadline()
            word = match.group()
            number_of_words += 1
            number_of_long += sum(map(str.isalpha, word)) > _LONG
            if self.language is not None:
                number_of_syllables += _syllables(word, self.language)
        if not number_of_words:
            return None
        per_sentence = number_of_words / (sum(_WORD.search(each) is not None for each in sentences(text)) or 1)
        if self.formula == "lix":
            return per_sentence + 100 * number_of_long / number_of_words
        assert self.language is not None
        weights = _FLESCH[self.language] if self.formula == "flesch" else _KINCAID
        per_word = number_of_syllables / number_of_words
        return weights.start - weights.per_word * per_sentence - weights.per_syllable * per_word

    def holds(self, text: str) -> bool:
        value = self.measure(text)
        return value is not None and is_between(value, self.min, self.max)

    def fault(self, text: str) -> str:
        value = self.measure(text)
        return "has no words" if value is None else f"has {digits(value)}, not {limits_in_words(self.min, self.max)}"


def _syllables(word: str, language: str) -> int:
    """Count the syllables of a word; those of parts with hyphens add up."""
    number = 0
    for part in word.lower().split("-"):
        groups = len(_SYLLABLE[language].findall(part))
        silent = language in _SILENT and _SILENT[language].search(part) is not None
        number += max(1, groups - silent)
    return number
