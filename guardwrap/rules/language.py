"""The ``Language`` constraint: which language a text is written in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import regex

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.sentences import sentences
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import is_number
from guardwrap.support.time_limits import check_deadline

_WRONG = 0.01
"""A text is surely not in these languages if together they have less than this probability."""
_RIGHT = 0.5
"""A text is in these languages if together they have at least this probability."""
_FEWEST = 12
"""Bytes of UTF-8 that letters must have: twelve Latin, six Cyrillic or four Chinese ones. Less decides nothing."""
_PIECE = 10_000
"""Characters that are judged together, because the identifier cannot be interrupted."""

_WORDS, _LETTERS = 3, 8
"""Words and letters of another script that make a short text certain. Names, units and "OK" have fewer."""

_SCRIPTS = {
    "Arabic": "ar ary arz fa ps ug ur",
    "Armenian": "hy",
    "Bengali": "as bn",
    "Cyrillic": "ba be bg ky mk ru tg uk",
    "Devanagari": "hi mr ne",
    "Ethiopic": "am",
    "Georgian": "ka",
    "Greek": "el grc",
    "Gujarati": "gu",
    "Han": "ja ko wuu yue zh",
    "Hangul": "ko",
    "Hebrew": "hbo he",
    "Hiragana": "ja",
    "Kannada": "kn",
    "Katakana": "ja",
    "Khmer": "km",
    "Lao": "lo",
    "Malayalam": "ml",
    "Myanmar": "my",
    "Oriya": "or",
    "Sinhala": "si",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
    "Tibetan": "dz",
}
"""Scripts other than Latin, and languages that are not written in Latin letters."""
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]+")

_lock = threading.Lock()


@dataclass(frozen=True, eq=False, repr=False)
class Language(TextConstraint):
    """The text is written in a language, or in one of several.

    py3langid gives each of its languages a probability. The text is in an allowed language if these together have
    at least 0.5, in another one if they have less than 0.01, and otherwise uncertain, as short texts often are. If all
    allowed languages have a script of their own, such as Chinese, Russian and Arabic, a text without a letter of it is
    in another language if it has at least three words with eight letters in total. Single letters are no words.

    Parameters
    ----------
    languages
        Two-letter code of the language (ISO 639-1), such as ``"de"``, or a list of them.
    share
        Judge each sentence instead of the whole text: at least this share of the letters of those sentences that are
        certain must be in allowed languages. For texts that may quote another language.
    uncertain
        What happens to a text, or with ``share`` to one of which all sentences are uncertain: ``"pass"`` or ``"fail"``.
        Other texts of fewer than twelve Latin letters, six Cyrillic or four Chinese ones are uncertain.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or py3langid is not installed: it comes with ``guardwrap[language]``.

    Notes
    -----
    Prefixes are UNDECIDED: whatever a text begins with, it may continue at length in another language. To stop
    attempts early that begin in the wrong script, add ``~Regex("[а-я]")``, or judge each sentence with
    ``on="sentences"``: then an attempt ends after the first sentence in another language.

    Similar languages, such as Czech and Slovak or Danish and Norwegian, can be distinguished in long texts only.

    Examples
    --------
    >>> german = Language("de")
    >>> german.accepts("Der Zug nach Berlin fährt heute leider erst zwei Stunden später ab.")
    True
    >>> german.accepts("Unfortunately the train to Berlin leaves two hours later today.")
    False
    """

    languages: str | Sequence[str]
    share: float | None = field(default=None, kw_only=True)
    uncertain: Literal["pass", "fail"] = field(default="pass", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["language"] = field(default="language", kw_only=True)

    way_out = "; shorten the texts"

    def __post_init__(self) -> None:
        library = find_spec("py3langid") is not None
        require(library, "Language requires py3langid: pip install 'guardwrap[language]'")
        languages: Any = (self.languages,) if isinstance(self.languages, str) else self.languages
        valid = isinstance(languages, Sequence) and len(languages) > 0
        require(valid, f"languages must be a code such as 'de', or a list of codes, not {shown(self.languages)}")
        for language in languages:
            require_choice(language, known_languages(), "languages")
        object.__setattr__(self, "languages", tuple(sorted(set(languages))))  # one canonical form means one digest
        if self.share is not None:
            in_range = is_number(self.share) and 0 < self.share <= 1
            require(in_range, f"share={shown(self.share)}: give a share above 0 and at most 1, such as 0.8")
            object.__setattr__(self, "share", float(self.share))
        require_choice(self.uncertain, ("pass", "fail"), "uncertain")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        right, wrong = self._letters(text)
        if not right + wrong:
            return self.uncertain == "pass"
        return right >= (1.0 if self.share is None else self.share) * (right + wrong)

    def _letters(self, text: str) -> tuple[int, int]:
        """Return the number of letters in pieces that are in an allowed language, and in another one."""
        right = wrong = 0
        for part in [text] if self.share is None else sentences(text):
            for piece in _pieces(part):
                letters = "".join(filter(str.isalpha, piece))
                if _is_in_another_script(piece, tuple(self.languages)):
                    wrong += len(letters)
                    continue
                if len(letters.encode("utf-8", "surrogatepass")) < _FEWEST:
                    continue
                probability = probability_of(piece, self.languages)
                right += len(letters) * (probability >= _RIGHT)
                wrong += len(letters) * (probability < _WRONG)
        return right, wrong


def _is_in_another_script(text: str, languages: tuple[str, ...]) -> bool:
    """Whether a text has words, but no letter of the scripts that these languages are always written in."""
    letter = _letter_of(languages)
    if letter is None or letter.search(text):
        return False
    words = _WORD.findall(text)
    return len(words) >= _WORDS and sum(map(len, words)) >= _LETTERS


@cache
def _letter_of(languages: tuple[str, ...]) -> regex.Pattern[str] | None:
    """Return a pattern of one letter of the languages' scripts; None if one may be written in Latin letters."""
    scripts = {script: set(codes.split()) & set(languages) for script, codes in _SCRIPTS.items()}
    if set().union(*scripts.values()) != set(languages):
        return None
    return regex.compile("|".join(rf"\p{{Script={script}}}" for script, codes in scripts.items() if codes))


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in equal pieces of at most ``_PIECE`` characters."""
    size = -(-len(text) // -(-len(text) // _PIECE)) if text else 1
    for start in range(0, len(text), size):
        check_deadline()
        yield text[start : start + size]


def probability_of(text: str, languages: Sequence[str]) -> float:
    """Return the probability that a text is in one of some languages."""
    with _lock:
        ranked = _identifier().rank(text)
    return float(sum(probability for language, probability in ranked if language in languages))


def known_languages() -> tuple[str, ...]:
    """Return the codes of the languages that can be identified, in alphabetical order."""
    return tuple(sorted(_identifier().labels))


@cache
def _identifier() -> Any:
    from py3langid import langid

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
