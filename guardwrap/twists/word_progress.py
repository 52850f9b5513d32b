"""How far a text has come with the words of a ``Keyword``."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text_folding import TextFolding, pieces_of_phrase
from guardwrap.twists.automata import Progress


def word_progress(constraint: Keyword) -> Progress:
    """Return the automaton that counts the occurrences of words, whose counts do not depend on longer words."""
    words = _Words(constraint)
    start = _State((0,) * (max(words.group_of) + 1), False, frozenset(), frozenset())
    return Progress(start, words.kinds, words.kind_of, words.step, lambda state, ended: words.satisfied(state))


class _Gap(NamedTuple):
    """White space in a phrase that matches any number of characters: at least one unless it is optional."""

    optional: bool


class _State(NamedTuple):
    """What may still become an occurrence."""

    counts: tuple[int, ...]  # the number of occurrences of each group, up to what makes a difference
    inside: bool  # whether the last character belongs to a word
    # begun occurrences: the number of the word, and how many of its items have been read
    places: frozenset[tuple[int, int]]
    ending: frozenset[int]  # groups with an occurrence that counts if the next character belongs to no word
    # whether the constraint is satisfied, or violated, whatever follows; None if that is open
    final: bool | None = None


@dataclass(frozen=True)
class _Words:
    """The words of a constraint, and the steps of their automaton."""

    constraint: Keyword

    @cached_property
    def folding(self) -> TextFolding:
        """How characters are folded: compatible spellings are left out, as models hardly write them."""
        return replace(self.constraint.folding, form="NFC")

    @cached_property
    def words(self) -> list[tuple[str | _Gap, ...]]:
        """The items of each word: folded characters, and gaps."""
        folded = dict.fromkeys(map(self.folding.fold, self.constraint.words))
        return [_items(word, self.constraint.spacing) for word in folded]

    @cached_property
    def group_of(self) -> list[int]:
        """The group of each word; occurrences are counted by group."""
        every = self.constraint.match == "all"
        return list(range(len(self.words))) if every else [0] * len(self.words)

    @cached_property
    def letters(self) -> frozenset[str]:
        """The characters of the words."""
        return frozenset(item for word in self.words for item in word if isinstance(item, str))

    @cached_property
    def folds(self) -> frozenset[str]:
        """What single characters are folded to, where that is several characters and one of them is in a word."""
        return frozenset(fold for fold in _long_folds(self.folding) if self.letters & {*fold})

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of characters: those of the words, and four others."""
        return tuple(dict.fromkeys((*sorted(self.letters), *sorted(self.folds), " ", "word", "mark", "joined")))

    def kind_of(self, char: str) -> str:
        """Return the kind of a character."""
        fold = self.folding.fold(char)
        if fold in self.letters or fold in self.folds:
            return fold
        if not fold or unicodedata.category(fold[0]).startswith("M"):
            return "joined"
        return " " if fold.isspace() else "word" if _is_word(fold[0]) else "mark"

    def step(self, state: _State, kind: str) -> _State:
        """Return the state after a character."""
        for char in kind if kind in self.folds else (kind,):
            state = self._read(state, char)
        return state

    def satisfied(self, state: _State) -> bool:
        """Whether a text that ends here satisfies the constraint."""
        if state.final is not None:
            return state.final
        counts, most = self._counted(state.counts, state.ending), self.constraint.max_count
        if self.constraint.match == "none":
            return not any(counts)
        return min(counts) >= self.constraint.least and (most is None or max(counts) <= most)

    def _read(self, state: _State, kind: str) -> _State:
        if state.final is not None or kind == "joined":
            return state
        counts, whole = state.counts, self.constraint.whole_words
        belongs = kind == "word" or (len(kind) == 1 and _is_word(kind))
        if not belongs:
            counts = self._counted(counts, state.ending)
        places = {each for word, place in state.places for each in self._onward(word, place, kind)}
        # A word that begins, or ends, with a symbol may touch letters there.
        for word, items in enumerate(self.words):
            if not (whole and state.inside and _is_letter(items[0])):
                places |= self._onward(word, 0, kind)
        ended = [word for word, place in places if place == len(self.words[word])]
        complete = frozenset(self.group_of[word] for word in ended)
        ending = frozenset(self.group_of[word] for word in ended if whole and _is_letter(self.words[word][-1]))
        counts = self._counted(counts, complete - ending)
        final = self._final(counts)
        if final is not None:
            return _State((), False, frozenset(), frozenset(), final)
        # Occurrences do not overlap, so those that a complete one has met end.
        open_places = frozenset(
            (word, place)
            for word, place in places
            if place < len(self.words[word]) and self.group_of[word] not in complete
        )
        return _State(counts, belongs, open_places, ending)

    def _onward(self, word: int, place: int, kind: str) -> set[tuple[int, int]]:
        """Return where a character takes an occurrence."""
        items = self.words[word]
        item = items[place]
        if not isinstance(item, _Gap):
            return {(word, place + 1)} if item == kind or (item.isspace() and kind == " ") else set()
        wide = kind == " " or (item.optional and kind == "-")
        if item.optional:  # it may be over, too
            return ({(word, place)} if wide else set()) | self._onward(word, place + 1, kind)
        # One character makes it a gap, which may then be over, and further ones change nothing.
        return {(word, place), (word, place + 1)} if wide else set()

    def _counted(self, counts: tuple[int, ...], groups: frozenset[int]) -> tuple[int, ...]:
        return tuple(min(self._enough, count + (group in groups)) for group, count in enumerate(counts))

    @cached_property
    def _enough(self) -> int:
        """The count beyond which further occurrences make no difference."""
        if self.constraint.match == "none":
            return 1
        most = self.constraint.max_count
        return max(self.constraint.least, 1) if most is None else most + 1

    def _final(self, counts: tuple[int, ...]) -> bool | None:
        if self.constraint.match == "none":
            return False if any(counts) else None
        if self.constraint.max_count is not None:
            return False if max(counts) > self.constraint.max_count else None
        return True if min(counts) >= self._enough else None


def _is_letter(item: str | _Gap) -> bool:
    return isinstance(item, str) and _is_word(item)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _items(word: str, spacing: str) -> tuple[str | _Gap, ...]:
    """Return the characters of a folded word, with a gap for white space that may vary."""
    if spacing == "exact":
        return tuple(word)
    before, (first, *others), after = pieces_of_phrase(word, spacing)
    items: list[str | _Gap] = [*before, *first]
    for piece in others:
        items += [_Gap(spacing == "optional"), *piece]
    return (*items, *after)


@lru_cache(maxsize=8)
def _long_folds(folding: TextFolding) -> frozenset[str]:
    """Return what characters are folded to, where that is several characters."""
    folds = (folding.fold(chr(code)) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000)
    return frozenset(fold for fold in folds if len(fold) > 1)
