"""Finding what must not occur in a text, such as a card number, in a text that may still grow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import regex

from guardwrap.constraints.escapes import decodings
from guardwrap.constraints.field_checks import excerpt, shortened
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.kinds.text_folding import AS_READ, last_piece
from guardwrap.constraints.verdicts import READ_ALWAYS, Monitor, Verdict
from guardwrap.support.time_limits import matches


class HitRule(NamedTuple):
    """How one kind of hit is recognized, in text in which letters, digits, spaces and dashes are mostly ASCII."""

    # Compiled expression of a run of characters in which a hit may be. Where it matches, and where it ends, must depend
    # on at most ``tail`` characters after the match. So runs that are followed by that many characters are the same in
    # all continuations.
    run: Any
    # Returns what kind of hit is in a run, for reports, or None. It sees nothing but the run.
    find: Callable[[str], str | None]
    tail: int = 1  # number of characters after a run that may change it
    overlapped: bool = False  # whether a run may begin within another one
    # the most characters that have been read of a run that does not match yet, but may if more text follows
    widest: int = 64


_CLOSING = '"\n'
"""What no escape reaches across, so that the texts before and behind it are decoded one by one."""

_MARKS = regex.compile(r"\p{M}+")
# Lines and long vowels are written in place of dashes.
_DASHES = "\u02d7\u05be\u1806\u2012\u2013\u2014\u2015\u2043\u2212\u2500\u2e3a\u2e3b\u30fc"
_DOTS = "\u00b7\u2022\u2024\u2027\u2219\u22c5\u3002\u30fb"
# "一三八〇〇一三八〇〇〇" is a number that can be dialed.
_DIGITS = dict(zip("〇零一二三四五六七八九", "00123456789", strict=True))
_PLAIN = str.maketrans(dict.fromkeys(_DASHES, "-") | dict.fromkeys(_DOTS, ".") | _DIGITS)


class HitConstraint(TextConstraint):
    """A constraint that nothing occurs in the text that one of its rules finds, however it is spelled."""

    article: ClassVar[str] = ""
    shown: ClassVar[int | None] = None
    """The characters of a hit that explanations show; None for all."""

    @property
    @abstractmethod
    def rules(self) -> tuple[HitRule, ...]:
        """The rules."""

    def holds(self, text: str) -> bool:
        """Look for hits in one string."""
        return first_hit(self.rules, text) is None

    def fault(self, text: str) -> str:
        """Return what kind of hit there is, and the piece of the text that has it, or its beginning."""
        piece = excerpt(text, lambda part: not self.holds(part))
        piece = piece if self.shown is None else f"{piece[: self.shown]}…"
        return f"has {self.article}{first_hit(self.rules, text)}, {shortened(piece)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED once there is a hit that no continuation can undo."""
        return hit_monitor(self.rules).read(prefix).verdict

    def monitor(self) -> Monitor:
        """Return a monitor, which folds and searches only the new text if the view is the completion."""
        return hit_monitor(self.rules) if self.on == "completion" else super().monitor()


def first_hit(rules: Iterable[HitRule], text: str) -> str | None:
    """Return what the first rule that has a hit in a reading of a text calls it; None if there is no hit.

    The readings are the text and its decodings, each as it is written and folded: what follows a number may hide it in
    one of them.
    """
    rules = tuple(rules)
    for written in (text, *decodings(text, anywhere=True)):
        for reading in dict.fromkeys((written, _plain(AS_READ.fold(written)))):
            hit = _Scan(reading).hit(rules)
            if hit is not None:
                return hit
    return None


def _plain(folded: str) -> str:
    return folded if folded.isascii() else _MARKS.sub("", folded).translate(_PLAIN)


@dataclass(frozen=True)
class _Scan:
    """A text, and for each rule where to look for the next hit: before it, nothing changes any more."""

    text: str = ""
    starts: tuple[int, ...] = ()

    @property
    def undecided(self) -> int:
        """How many characters at the end have to be searched again."""
        return len(self.text) - min(self.starts, default=0)

    def hit(self, rules: Sequence[HitRule]) -> str | None:
        """Return the first hit in a whole text."""
        for rule in rules:
            for match in matches(rule.run, self.text, overlapped=rule.overlapped):
                hit = rule.find(match.group())
                if hit is not None:
                    return hit
        return None

    def advanced(self, rules: Sequence[HitRule]) -> _Scan | None:
        """Return the scan after all hits that no continuation can undo have been looked for; None if there is one."""
        starts = []
        for rule, start in zip(rules, self.starts or (0,) * len(rules), strict=True):
            following = self._next_start(rule, start)
            if following is None:
                return None
            starts.append(following)
        return _Scan(self.text, tuple(starts))

    def _next_start(self, rule: HitRule, start: int) -> int | None:
        size = len(self.text)
        undecided, decided = size, start
        for match in matches(rule.run, self.text, overlapped=rule.overlapped, pos=start):
            if match.end() > size - rule.tail:
                undecided = min(undecided, match.start())
            elif rule.find(match.group()) is not None:
                return None
            elif not rule.overlapped:
                decided = match.end()
        return min(undecided, max(decided, size - rule.widest))


@dataclass(frozen=True)
class _Reading:
    """A text that grows, as it is written and folded."""

    rules: tuple[HitRule, ...]
    written: _Scan = _Scan()  # the text as it is written
    folded: _Scan = _Scan()  # the folded form of the text, as far as no later text can change it
    rest: str = ""  # the end of the text, which is not folded yet
    differs: bool = False  # whether the folded form is another than the text

    def read(self, text: str) -> _Reading | None:
        """Search the new text, and fold it if it has to be; return None if there is a hit."""
        written = replace(self.written, text=self.written.text + text).advanced(self.rules)
        if written is None:
            return None
        rest = self.rest + text
        cut = last_piece(rest)
        piece = _plain(AS_READ.fold(rest[:cut]))
        folded = replace(self.folded, text=self.folded.text + piece)
        differs = self.differs or piece != rest[:cut]
        if differs:
            end = _plain(AS_READ.settled(rest[cut:]))
            scan = replace(folded, text=folded.text + end).advanced(self.rules)
            if scan is None:
                return None
            folded = replace(folded, starts=scan.starts)
        return _Reading(self.rules, written, folded, rest[cut:], differs)


@dataclass(frozen=True)
class HitMonitor(Monitor):
    """Monitor that looks for hits where some may have become certain."""

    text: _Reading  # the text
    closed: _Reading  # the text up to the last quotation mark or line break
    rest: str = ""  # the text behind it, which is not decoded yet
    # the closed text, decoded once, twice, ...; those are left out that are like the one before
    decoded: tuple[_Reading, ...] = ()
    verdict: Verdict = Verdict.UNDECIDED  # the verdict on the text read so far

    @property
    def rereads(self) -> bool:
        """Whether a long run has not ended, which is searched again for each piece."""
        return self.text.written.undecided > READ_ALWAYS

    def read(self, text: str, /) -> HitMonitor:
        """Search the new text, and decode it up to its last quotation mark or line break."""
        if self.verdict is not Verdict.UNDECIDED:
            return self
        reading: _Reading | None = self.text
        closed, rest, decoded = self.closed, self.rest + text, self.decoded
        cut = max(text.rfind(mark) + 1 for mark in _CLOSING)
        if cut:
            end = len(rest) - len(text) + cut
            reading = self.text.read(text[:cut])
            read = self._decoded(rest[:end])
            if reading is None or read is None:
                return replace(self, verdict=Verdict.VIOLATED)
            closed, rest, decoded = reading, rest[end:], read
        if reading is not None and cut < len(text):
            reading = reading.read(text[cut:])
        if reading is None:
            return replace(self, verdict=Verdict.VIOLATED)
        return HitMonitor(reading, closed, rest, decoded)

    def _decoded(self, piece: str) -> tuple[_Reading, ...] | None:
        """Return the closed text with one more piece, decoded once, twice, ...; None if there is a hit."""
        pieces = list(decodings(piece, anywhere=True))
        before = list(self.decoded)
        before += [before[-1] if before else self.closed] * (len(pieces) - len(before))
        pieces += [pieces[-1] if pieces else piece] * (len(before) - len(pieces))
        decoded = []
        for reading, text in zip(before, pieces, strict=True):
            read = reading.read(text)
            if read is None:
                return None
            decoded.append(read)
        return tuple(decoded)


def hit_monitor(rules: tuple[HitRule, ...]) -> HitMonitor:
    """Return the monitor of some rules."""
    return HitMonitor(_Reading(rules), _Reading(rules))
