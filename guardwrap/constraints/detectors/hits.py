"""Finding what must not occur in a text, such as a card number, in a text that may still grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import regex

from guardwrap.constraints.escapes import decodings
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.documents.time_limits import matches

__all__ = ["HitRule", "first_hit"]


class HitRule(NamedTuple):
    """How one kind of hit is recognized, in text in which letters, digits, spaces and dashes are mostly ASCII.

    Parameters
    ----------
    run
        Compiled expression of a run of characters in which a hit may be. Where it matches, and where it ends, must
        depend on at most ``tail`` characters after the match, and it must fail at a place only for reasons that no
        continuation changes. So runs that are followed by that many characters are the same in all continuations.
    find
        Returns what kind of hit is in a run, for reports, or None. It sees nothing but the run.
    tail
        Number of characters after a run that may change it.
    overlapped
        Whether a run may begin within another one.
    """

    run: Any
    find: Callable[[str], str | None]
    tail: int = 1
    overlapped: bool = False


def first_hit(rules: Iterable[HitRule], text: str, *, grows: bool = False) -> str | None:
    """Return what the first rule that has a hit in a reading of a text calls it; None if there is no hit.

    Parameters
    ----------
    rules
        The rules.
    text
        The text.
    grows
        Whether the text is a prefix, so that only hits count that no continuation can undo.

    Raises
    ------
    TimeLimit
        If a limit is exceeded.
    """
    rules = tuple(rules)
    hits = (_hit(rules, reading, grows=grows) for reading in _readings(text, grows=grows))
    return next((hit for hit in hits if hit is not None), None)


def _hit(rules: Iterable[HitRule], text: str, *, grows: bool) -> str | None:
    for rule in rules:
        last = len(text) - rule.tail if grows else len(text)
        for match in matches(rule.run, text, overlapped=rule.overlapped):
            if match.end() <= last:
                hit = rule.find(match.group())
                if hit is not None:
                    return hit
    return None


_FOLDING = TextFolding("NFKC", case_sensitive=True, ignore_invisible=True, keep_capital_i=False)
_MARKS = regex.compile(r"\p{M}+")
# Lines and long vowels are written in place of dashes.
_DASHES = "\u02d7\u05be\u1806\u2012\u2013\u2014\u2015\u2043\u2212\u2500\u2e3a\u2e3b\u30fc"
_DOTS = "\u00b7\u2022\u2024\u2027\u2219\u22c5\u3002\u30fb"
# "一三八〇〇一三八〇〇〇" is a number that can be dialed.
_DIGITS = dict(zip("〇零一二三四五六七八九", "00123456789", strict=True))
_PLAIN = str.maketrans(dict.fromkeys(_DASHES, "-") | dict.fromkeys(_DOTS, ".") | _DIGITS)


def _readings(text: str, *, grows: bool) -> Iterator[str]:
    """Yield a text and its decodings, each as it is written and folded: what follows a number may hide it in one."""
    yield from _plain(text, grows=grows)
    for decoded in decodings(text, anywhere=True, grows=grows):
        yield from _plain(decoded, grows=grows)


def _plain(text: str, *, grows: bool) -> Iterator[str]:
    yield text
    folded = _FOLDING.settled(text) if grows else _FOLDING.fold(text)
    plain = folded if folded.isascii() else _MARKS.sub("", folded).translate(_PLAIN)
    if plain != text:
        yield plain
