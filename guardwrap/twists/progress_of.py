"""The automaton of a constraint: what its kind says itself (``Constraint.progress``), and what needs more than that."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, singledispatch
from typing import Any, NamedTuple

import numpy as np
import regex

from guardwrap.constraints.base import All, AnyOf, Constraint, Not
from guardwrap.constraints.field_checks import is_between
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.count import (
    AFTER_ENDS,
    COUNTED_ENDS,
    LISTED,
    Count,
    item_pattern,
    listed_words,
    plain_word,
)
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Finished, Length
from guardwrap.constraints.kinds.text_folding import TextFolding, has_spellings, is_spaced, pieces_of_phrase
from guardwrap.constraints.verdicts import Progress, TextPattern
from guardwrap.support.time_limits import OutOfTime, time_limit
from guardwrap.twists.automata import Automaton, TooManyStates, build, minimized, product
from guardwrap.twists.json_progress import json_progress
from guardwrap.twists.pattern_programs import (
    CountedMatch,
    Program,
    Unsupported,
    count_progress,
    match_progress,
    program_of,
)

BUILD_SECONDS = 2.0
"""The most CPU seconds for an automaton. Constraints may come from anyone."""


def automaton_of(constraint: Constraint) -> Automaton | None:
    """Return the automaton that follows a constraint; None if there is none of a fair size, soon enough.

    The automaton may be wrong about some texts: a proposal that follows it still has exact weights.
    """
    try:
        with time_limit(BUILD_SECONDS):
            return _known(constraint)
    except (TooManyStates, OutOfTime, RecursionError):
        return None


def _known(constraint: Constraint) -> Automaton | None:
    try:
        return _automaton(constraint)
    except Unsupported:
        return None


@singledispatch
def _automaton(constraint: Constraint) -> Automaton | None:
    progress = constraint.progress()
    if isinstance(progress, Constraint):
        return _automaton(progress)
    if progress is None or getattr(constraint, "on", "completion") != "completion":
        return None
    if isinstance(progress, Progress):
        return minimized(build(progress))
    return minimized(product([_matching(pattern) for pattern in progress], np.logical_and))


@_automaton.register
def _(constraint: All) -> Automaton | None:
    # What cannot be followed is left to rejection.
    parts = [part for each in constraint.of if (part := _known(each)) is not None]
    return product(parts, np.logical_and) if parts else None


@_automaton.register
def _(constraint: AnyOf) -> Automaton | None:
    parts = [_known(each) for each in constraint.of]
    known = [part for part in parts if part is not None]
    return product(known, np.logical_or) if len(known) == len(parts) else None


@_automaton.register
def _(constraint: Not) -> Automaton | None:
    part = _known(constraint.of)
    return None if part is None else _negated(part)


@_automaton.register
def _(constraint: Finished) -> Automaton:
    return build(Progress(0, (0,), lambda char: 0, lambda state, kind: 0, lambda state, ended: ended))


@_automaton.register
def _(constraint: Length) -> Automaton | None:
    if constraint.on == "completion" and constraint.unit == "sentences":
        return _counting(sentence_program(), CountedMatch(), constraint)
    if constraint.on != "completion" or constraint.unit not in ("characters", "words", "lines"):
        return None
    most = (constraint.min or 0) if constraint.max is None else constraint.max + 1

    def kind_of(char: str) -> str:
        splits = char.isspace() if constraint.unit == "words" else len(("a" + char).splitlines()[0]) == 1
        return "gap" if splits and constraint.unit != "characters" else "other"

    def step(state: Any, kind: Any) -> Any:
        count, inside = state
        if kind == "gap":
            # An empty line counts as a line.
            grown = constraint.unit == "lines" and not inside
            return min(most, count + grown), False
        return min(most, count + (constraint.unit == "characters" or not inside)), True

    kinds = ("other",) if constraint.unit == "characters" else ("other", "gap")
    return build(Progress((0, False), kinds, kind_of, step, lambda state, ended: constraint.within(state[0])))


@_automaton.register
def _(constraint: Keyword) -> Automaton | None:
    read = read_as(constraint)
    return None if read is None else build(word_progress(read))


def read_as(rule: Keyword) -> Keyword | None:
    """Return the rule that an automaton follows for some words; None if there is none.

    For words that are required, it may see too much or too little. For others it would rule out texts that pass.
    """
    if rule.on != "completion" or rule.stem is not None or rule.prefixing:
        return None
    # Where words end in Arabic, Chinese or Korean, for example, depends on more than letters and spaces.
    anywhere = rule.whole_words and not all(is_spaced(char) for word in rule.folded_words for char in word)
    one_spelling = not any(map(has_spellings, rule.folded_words))
    required = rule.match != "none" and rule.least > 0 and rule.max_count is None
    if (anywhere or not one_spelling) and not required:
        return None
    return replace(rule, whole_words=False) if anywhere else rule


@_automaton.register
def _(constraint: Count) -> Automaton | None:
    return _counting(*counted_program(constraint), constraint) if constraint.on == "completion" else None


def _counting(program: Program, item: CountedMatch, limits: Count | Length) -> Automaton:
    """Return the automaton of a number of matches between two limits."""
    least, most = int(limits.min or 0), None if limits.max is None else int(limits.max)
    within = partial(is_between, least=least, most=most)
    return minimized(build(count_progress(program, least if most is None else most + 1, within, item)))


def _matching(pattern: TextPattern) -> Automaton:
    program = program_of(pattern.source, pattern.flags, version1=pattern.version1)
    automaton = build(match_progress(program, whole=pattern.whole))
    return _negated(automaton) if pattern.absent else automaton


def _negated(automaton: Automaton) -> Automaton:
    return Automaton(automaton.table, automaton.kind_of, ~automaton.ended, ~automaton.cut)


@_automaton.register
def _(constraint: JSONSchema) -> Automaton | None:
    whole = constraint.on == "completion" and constraint.where == "text"
    return minimized(build(json_progress(constraint))) if whole else None


def counted_program(constraint: Count) -> tuple[Program, CountedMatch]:
    """Return the program of what a ``Count`` counts, and which matches count."""
    if constraint.unique or constraint.each or constraint.share_of is not None or constraint.of == "palindromes":
        raise Unsupported
    if constraint.pattern is not None:
        flags = ("ignorecase",) if constraint.ignore_case else ()
        program, item = program_of(constraint.pattern, flags, repeated=True), CountedMatch()
    elif constraint.of in COUNTED_ENDS:
        program = sentence_program()
        item = _ending(program, str(constraint.of))
    else:
        program = program_of(item_pattern(str(constraint.of)), version1=True, repeated=True)
        item = _kept(program, str(constraint.of), constraint.language)
    if constraint.shortest == 1:
        return program, item
    least = constraint.shortest
    return program, CountedMatch(
        (0, item.begun),
        lambda state, char: (min(least, state[0] + 1), item.read(state[1], char)),
        lambda state: state[0] == least and item.counts(state[1]),
    )


def _kept(program: Program, name: str, language: str) -> CountedMatch:
    """Return which words count."""
    if name in LISTED:
        words = listed_words(name, language)
        begun = {word[:size] for word in words for size in range(len(word) + 1)}
        for letter in sorted({*"".join(words), "’"}):
            program.class_of(regex.escape(letter), regex.IGNORECASE)

        def read(item: Any, char: str) -> Any:
            longer = None if item is None else item + plain_word(char)
            return longer if longer in begun else None

        return CountedMatch("", read, lambda item: item in words)
    if name in ("capital_words", "lowercase_words"):
        upper = name == "capital_words"
        for source in (r"\p{Uppercase}", r"\p{Lowercase}", r"\p{Lt}"):
            program.class_of(source)
        right = str.isupper if upper else str.islower

        def cased(item: Any, char: str) -> Any:
            if item == "wrong" or not (char.isupper() or char.islower() or char.istitle()):
                return item
            return "right" if right(char) else "wrong"

        return CountedMatch("open", cased, lambda item: item == "right")
    return CountedMatch()


_MARKS = r"[.!?…‼⁇⁈⁉؟]"
_CLOSING = r"[\"'”’」』》〉»›)\]*_]"
_ABBREVIATED = r"(?<!\w)(?:\p{Lu}|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|e\.g|i\.e|cf)\.(?=\s)"
_AT_MARK = "|".join(
    (
        rf"(?<!{_MARKS})\.{_CLOSING}*(?=\s)",
        r"[!?‼⁇⁈⁉؟](?=\s)",
        # After an ellipsis or a quotation, the sentence may continue.
        rf"(?:{_MARKS}\.|…){_CLOSING}*\s+(?![\s\p{{Ll}}])",
        rf"[!?‼⁇⁈⁉؟]{_CLOSING}+\s+(?![\s\p{{Ll}}])",
    )
)
_SENTENCE = rf"(?:\d{{1,3}}\.(?=\s)|(?=\S))(?s:{_ABBREVIATED}|.)*?(?:{_AT_MARK}|(?=\n)|\Z)"


def sentence_program() -> Program:
    """Return the program of sentences, by the most frequent of the rules of ``sentences``."""
    return program_of(_SENTENCE, version1=True, repeated=True)


def _ending(program: Program, name: str) -> CountedMatch:
    """Return which sentences count, by their last mark."""
    ends = COUNTED_ENDS[name]
    for chars in (ends, AFTER_ENDS):
        program.class_of(f"[{regex.escape(chars)}]")
    return CountedMatch(False, lambda item, char: item if char in AFTER_ENDS else char in ends, bool)


# ----------------------------------------------------------------------------------------------- words of a Keyword


def word_progress(constraint: Keyword) -> Progress:
    """Return the automaton that counts the occurrences of words, whose counts do not depend on longer words."""
    words = _Words(constraint)
    start = _WordState((0,) * (max(words.group_of) + 1), False, frozenset(), frozenset())
    return Progress(start, words.kinds, words.kind_of, words.step, lambda state, ended: words.satisfied(state))


class _Gap(NamedTuple):
    """White space in a phrase that matches any number of characters: at least one unless it is optional."""

    optional: bool


class _WordState(NamedTuple):
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

    def step(self, state: _WordState, kind: str) -> _WordState:
        """Return the state after a character."""
        for char in kind if kind in self.folds else (kind,):
            state = self._read(state, char)
        return state

    def satisfied(self, state: _WordState) -> bool:
        """Whether a text that ends here satisfies the constraint."""
        if state.final is not None:
            return state.final
        counts, most = self._counted(state.counts, state.ending), self.constraint.max_count
        if self.constraint.match == "none":
            return not any(counts)
        return min(counts) >= self.constraint.least and (most is None or max(counts) <= most)

    def _read(self, state: _WordState, kind: str) -> _WordState:
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
            return _WordState((), False, frozenset(), frozenset(), final)
        # Occurrences do not overlap, so those that a complete one has met end.
        open_places = frozenset(
            (word, place)
            for word, place in places
            if place < len(self.words[word]) and self.group_of[word] not in complete
        )
        return _WordState(counts, belongs, open_places, ending)

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
    return char.isalnum() or char == "_" or unicodedata.category(char).startswith("M")  # folded accents are marks


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
