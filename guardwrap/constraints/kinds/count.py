"""The ``Count`` constraint: how often something occurs in the text, or how large a share of it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Literal, get_args

from guardwrap.constraints.base import about, require, shown
from guardwrap.constraints.excerpts import listed
from guardwrap.constraints.kinds.count_limits import is_between, limits_in_words, number_in_words, verdict_on_count
from guardwrap.constraints.kinds.counted_items import Item, found_items, is_run, settled_items, total
from guardwrap.constraints.kinds.text import TextConstraint, require_choice
from guardwrap.constraints.kinds.word_lists import LISTED, languages_of
from guardwrap.constraints.regex_analysis import Occurrences, occurrences
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import Unsatisfiable, is_count, is_number


@dataclass(frozen=True, eq=False, repr=False)
class Count(TextConstraint):
    r"""How often something occurs is between two limits.

    Parameters
    ----------
    of
        What is counted, in every script:

        - ``"letters"``, ``"uppercase_letters"``, ``"lowercase_letters"``, ``"digits"``, ``"punctuation"``, ``"emoji"``;
          ``"vowels"`` and ``"consonants"`` from A to Z.
        - ``"words"``: letters, digits, ``_``, and apostrophes and hyphens between them; in Chinese and Japanese, each
          Han character, each Hiragana and each run of Katakana. ``"capital_words"`` and ``"lowercase_words"``: words
          without a letter of the other case; ``"palindromes"``: words of at least three letters.
        - ``"pronouns"`` (personal and possessive ones), coordinating ``"conjunctions"`` and ``"stop_words"``, from
          short lists for ``language``.
        - ``"statements"``, ``"questions"``, ``"exclamations"``: sentences that end in a full stop, a question mark or
          an exclamation mark.
        - ``"numbers"`` such as ``1,250.5``.
        - ``"bullets"``, ``"numbered_items"`` and ``"headings"`` at the beginning of a line, as in Markdown;
          ``"placeholders"`` such as ``[name]``; ``"highlights"`` such as ``*this*`` and ``**this**``.

        None if ``pattern`` is given.
    pattern
        Regular expression of what is counted, of which the matches must not overlap; None if ``of`` is given.
    ignore_case
        Whether the pattern ignores case.
    min, max
        Limits, inclusive; None means no limit.
    unique
        Whether equal items count once. Case is ignored.
    each
        Whether the limits are for each item by itself: with ``max=2``, no word occurs more than twice. Case is ignored.
    shortest
        Number of characters; items with fewer do not count.
    language
        Language of the word lists (ISO 639-1): ``"de"``, ``"en"``, ``"es"``, ``"fr"``, ``"pt"``, and for pronouns and
        conjunctions also ``"pl"``, ``"ru"`` and ``"tr"``.
    share_of
        An item as for ``of``: the limits are for the number of items divided by the number of these, or 0 without
        any.
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
    Attempts end as soon as there are certainly more than ``max``, except for shares, and for a pattern whose matches
    have no greatest length.

    Examples
    --------
    >>> Count("capital_words", max=1).accepts("NASA is not ESA.")
    False
    >>> Count("words", unique=True, min=3).accepts("Tea, tea and tea")
    False
    >>> Count("vowels", share_of="letters", max=0.4).accepts("rhythm and blues")
    True
    """

    of: Item | None = None
    pattern: str | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    min: int | float | None = field(default=None, kw_only=True)
    max: int | float | None = field(default=None, kw_only=True)
    unique: bool = field(default=False, kw_only=True)
    each: bool = field(default=False, kw_only=True)
    shortest: int = field(default=1, kw_only=True)
    language: str = field(default="en", kw_only=True)
    share_of: Item | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["count"] = field(default="count", kw_only=True)

    def __post_init__(self) -> None:
        require((self.of is None) != (self.pattern is None), "Count needs either of= or pattern=")
        for item, name in ((self.of, "of"), (self.share_of, "share_of")):
            if item is not None:
                require_choice(item, get_args(Item), name)
        require(not (self.ignore_case and self.pattern is None), "ignore_case applies to pattern= only")
        whole = is_count(self.shortest) and self.shortest > 0
        require(whole, f"shortest={shown(self.shortest)}: give a whole number of at least 1")
        require(not (self.each and (self.unique or self.share_of)), "each cannot be used with unique or share_of")
        require(self.shortest == 1 or not is_run(self.of), "shortest applies to items of several characters only")
        listed = [item for item in (self.of, self.share_of) if item in LISTED]
        require(bool(listed) or self.language == "en", f"language applies to {', '.join(LISTED)} only")
        for item in listed:
            require_choice(self.language, languages_of(str(item)), "language")
        require(self.min is not None or self.max is not None, "Count needs min, max or both")
        for name, limit in (("min", self.min), ("max", self.max)):
            if limit is None:
                continue
            if self.share_of is None:
                require(is_count(limit), f"limit {shown(limit)}: give a whole number of at least 0")
                continue
            in_range = is_number(limit) and limit >= 0
            require(in_range, f"limit {shown(limit)}: give a share of at least 0, such as 0.5")
            object.__setattr__(self, name, float(limit))  # one canonical form means one digest
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Unsatisfiable(f"Count min={number_in_words(self.min)} exceeds max={number_in_words(self.max)}")
        object.__setattr__(self, "on", read_view(self.on))
        with about("pattern"):
            self._occurrences  # noqa: B018  # so that an invalid expression is noticed now

    @cached_property
    def _occurrences(self) -> Occurrences | None:
        return None if self.pattern is None else occurrences(self.pattern, ignore_case=self.ignore_case)

    def measure(self, text: str) -> float:
        """Return the number of items in one string, or their share; with ``each``, that of the most frequent item."""
        if self.each:
            return max(self._frequencies(self._items(text)).values(), default=0)
        count = self._number(self._items(text))
        if self.share_of is None:
            return count
        whole = total(self.share_of, found_items(self.share_of, text, self.language))
        return count / whole if whole else 0.0

    def holds(self, text: str) -> bool:
        """Count in one string."""
        if self.each:
            return all(is_between(count, self.min, self.max) for count in self._frequencies(self._items(text)).values())
        return is_between(self.measure(text), self.min, self.max)

    def fault(self, text: str) -> str:
        """Return what was counted, and the limits."""
        what = "matches" if self.of is None else f"{'different ' * self.unique}{self.of.replace('_', ' ')}"
        if self.each:
            wrong = (item for item, n in self._frequencies(self._items(text)).items() if not self._is_within(n))
            return f"has {what} that do not occur {limits_in_words(self.min, self.max)} times each: {listed(wrong)}"
        share = "" if self.share_of is None else f" per {self.share_of.replace('_', ' ').removesuffix('s')}"
        items = listed(self._items(text)) if self.of is None else ""  # of units, such as words, the number says enough
        limits = f"not {limits_in_words(self.min, self.max)}{f': {items}' if items else ''}"
        return f"has {number_in_words(self.measure(text))} {what}{share}, {limits}"

    def found_in(self, text: str) -> str:
        """Return what was counted."""
        if self.each or self.share_of is not None:
            return ""
        what = f"matches: {listed(self._items(text))}" if self.of is None else self.of.replace("_", " ")
        return f"has {number_in_words(self.measure(text))} {what}".removesuffix(": ")

    def _is_within(self, count: float) -> bool:
        return is_between(count, self.min, self.max)

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge by the items that count whatever follows."""
        unsettled = self._occurrences is not None and self._occurrences.reach is None
        if self.share_of is not None or unsettled:
            return Verdict.UNDECIDED
        if self.each:
            if self.max is None:  # what follows may be an item that is too rare
                return Verdict.UNDECIDED
            most = max(self._frequencies(self._certain(prefix)).values(), default=0)
            return Verdict.VIOLATED if most > self.max else Verdict.UNDECIDED
        return verdict_on_count(self._number(self._certain(prefix)), self.min, self.max)

    def _items(self, text: str) -> Iterator[str]:
        if self._occurrences is not None:
            return self._long(match.group() for match in self._occurrences.find(text))
        return self._long(found_items(str(self.of), text, self.language))

    def _certain(self, prefix: str) -> Iterator[str]:
        """Yield the items that every text with this prefix has."""
        if self._occurrences is not None:
            return self._long(match.group() for match in self._occurrences.find(prefix, settled=True))
        return self._long(settled_items(str(self.of), prefix, self.language, exactly=self.unique or self.each))

    def _long(self, items: Iterator[str]) -> Iterator[str]:
        return items if self.shortest == 1 else (item for item in items if len(item) >= self.shortest)

    def _number(self, items: Iterator[str]) -> int:
        return len(self._frequencies(items)) if self.unique else total(self.of, items)

    def _frequencies(self, items: Iterator[str]) -> Counter[str]:
        folded = (item.casefold() for item in items)
        return Counter(chain.from_iterable(folded) if is_run(self.of) else folded)
