"""Inflected forms of a word become one form, by the Snowball algorithm or the list of lemmas of its language."""

from __future__ import annotations

import threading
import unicodedata
from functools import cache, lru_cache
from typing import Any

from guardwrap.constraints.base import require
from guardwrap.constraints.kinds.word_patterns import SPACED_WORD
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, nearest

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
