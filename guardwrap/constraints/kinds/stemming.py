"""Stemming: inflected forms of a word become one form, by the Snowball algorithm of its language."""

from __future__ import annotations

import threading
import unicodedata
from functools import cache, lru_cache
from typing import Any

from guardwrap.constraints.base import require
from guardwrap.constraints.kinds.word_patterns import SPACED_WORD
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, nearest

__all__ = ["require_stemmer", "stem_words"]

_lock = threading.Lock()


def require_stemmer(language: str) -> None:
    """Raise ConstraintError unless there is a stemmer for a language, and its library is installed."""
    known = _library().algorithms()
    require(language in known, f"stem={language!r} is not one of {', '.join(known)}{nearest(language, known)}")


def stem_words(text: str, language: str) -> str:
    """Replace each word of a folded text by its stem, except in scripts without spaces and in Hangul."""
    stemmed: str = SPACED_WORD.sub(lambda match: _stem(match.group(), language), text)
    return stemmed


@lru_cache(maxsize=10_000)
def _stem(word: str, language: str) -> str:
    check_deadline()
    with _lock:  # a stemmer keeps the word that it works on
        stem = _stemmer(language).stemWord(unicodedata.normalize("NFC", word))
    return unicodedata.normalize("NFD", stem).casefold() or word


@cache
def _stemmer(language: str) -> Any:
    return _library().stemmer(language)


def _library() -> Any:
    try:
        import snowballstemmer
    except ImportError:
        raise ConstraintError("stem needs snowballstemmer: pip install 'guardwrap[stem]'") from None
    return snowballstemmer
