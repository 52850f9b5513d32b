"""The ``Count`` constraint: how often something occurs in the text, or how large a share of it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import regex

from guardwrap.constraints import regex_analysis
from guardwrap.constraints.base import about, require, shown
from guardwrap.constraints.kinds.count_limits import is_between, limits_in_words, number_in_words, verdict_on_count
from guardwrap.constraints.kinds.text import TextConstraint, require_choice
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.time_limits import matches
from guardwrap.errors import Unsatisfiable, is_count, is_number

__all__ = ["Count"]

Item = Literal[
    "letters",
    "uppercase_letters",
    "lowercase_letters",
    "vowels",
    "consonants",
    "digits",
    "punctuation",
    "emoji",
    "words",
    "capital_words",
    "numbers",
    "bullets",
    "numbered_items",
    "headings",
    "placeholders",
    "highlights",
]


class _Rule(NamedTuple):
    """How an item is recognized.

    Parameters
    ----------
    pattern
        Expression of one item. Whether it matches at a place must not depend on more than ``tail`` characters after
        the match.
    tail
        Number of characters after a match that may still change where it ends.
    begun
        Whether an item counts as soon as it has begun, because it stays one however it continues.
    keep
        Which matches count; None for all.
    one
        Whether every match is a single character.
    """

    pattern: str
    tail: int = 0
    begun: bool = True
    keep: Callable[[str], bool] | None = None
    one: bool = False


_WORD = r"[\p{L}\p{M}\p{Nd}_]+(?:['’\-][\p{L}\p{M}\p{Nd}_]+)*"
_PICTURE = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)\p{Emoji_Modifier}?"
_RULES: dict[str, _Rule] = {
    "letters": _Rule(r"\p{L}", one=True),
    "uppercase_letters": _Rule(r"\p{Lu}", one=True),
    "lowercase_letters": _Rule(r"\p{Ll}", one=True),
    "vowels": _Rule("[aeiouAEIOU]", one=True),
    "consonants": _Rule("[b-df-hj-np-tv-zB-DF-HJ-NP-TV-Z]", one=True),
    "digits": _Rule(r"\p{Nd}", one=True),
    "punctuation": _Rule(r"\p{P}", one=True),
    # Two letters of a flag, or a picture with its skin color and those that it is joined to.
    "emoji": _Rule(rf"\p{{RI}}\p{{RI}}|{_PICTURE}(?:\u200D{_PICTURE})*", tail=2),
    "words": _Rule(_WORD, tail=2),
    "capital_words": _Rule(_WORD, tail=2, begun=False, keep=str.isupper),
    "numbers": _Rule(r"(?<!\w)[-+]?\p{Nd}+(?:[.,]\p{Nd}+)*", tail=2),
    "bullets": _Rule(r"(?m)^[ \t]*[*\-+•][ \t]+\S"),
    "numbered_items": _Rule(r"(?m)^[ \t]*\p{Nd}{1,3}[.)][ \t]+\S"),
    "headings": _Rule(r"(?m)^#{1,6}[ \t]+\S"),
    "placeholders": _Rule(r"\[[^\[\]\n]{1,200}\]"),
    "highlights": _Rule(r"\*{1,2}[^*\s](?:[^*\n]{0,200}[^*\s])?\*{1,2}", tail=1, begun=False),
}

_COMPILED = {
    item: regex.compile(f"(?:{rule.pattern})+" if rule.one else rule.pattern, regex.VERSION0)
    for item, rule in _RULES.items()
}


@dataclass(frozen=True, eq=False, repr=False)
class Count(TextConstraint):
    r"""How often something occurs is between two limits.

    Parameters
    ----------
    of
        What is counted: ``"letters"``, ``"uppercase_letters"``, ``"lowercase_letters"``, ``"digits"`` and
        ``"punctuation"`` in every script; ``"vowels"`` and ``"consonants"`` from A to Z; ``"emoji"``; ``"words"``
        (letters, digits, ``_``, and apostrophes and hyphens between them); ``"capital_words"`` (without a lower case
        letter); ``"numbers"`` such as ``1,250.5``; ``"bullets"``, ``"numbered_items"`` and ``"headings"`` at the
        beginning of a line, as in Markdown; ``"placeholders"`` such as ``[name]``; ``"highlights"`` such as
        ``*this*`` and ``**this**``. None if ``pattern`` is given.
    pattern
        Regular expression of what is counted, of which the matches must not overlap; None if ``of`` is given.
    ignore_case
        Whether the pattern ignores case.
    min, max
        Limits, inclusive; None means no limit.
    unique
        Whether equal items count once. Case is ignored.
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
            self._compiled, self._reach  # noqa: B018  # so that an invalid expression is noticed now

    @cached_property
    def _compiled(self) -> Any:
        if self.pattern is None:
            return None
        compiled = regex_analysis.compile_pattern(self.pattern, self._flags)
        require(compiled.fullmatch("") is None, "it matches the empty text, which occurs everywhere")
        return compiled

    @property
    def _flags(self) -> tuple[str, ...]:
        return ("ignorecase",) if self.ignore_case else ()

    @cached_property
    def _reach(self) -> int | None:
        """How many characters from the start of a match of ``pattern`` decide where it ends; None if not known."""
        if self.pattern is None:
            return None
        return regex_analysis.extent(self.pattern, self._flags).reach

    def measure(self, text: str) -> float:
        """Return the number of items in one string, or their share."""
        count = self._number(self._items(text))
        if self.share_of is None:
            return count
        total = _total(self.share_of, _found(self.share_of, text))
        return count / total if total else 0.0

    def holds(self, text: str) -> bool:
        """Count in one string."""
        return is_between(self.measure(text), self.min, self.max)

    def fault(self, text: str) -> str:
        """Return what was counted, and the limits."""
        what = "matches" if self.of is None else f"{'different ' * self.unique}{self.of.replace('_', ' ')}"
        share = "" if self.share_of is None else f" per {self.share_of.replace('_', ' ').removesuffix('s')}"
        return f"has {number_in_words(self.measure(text))} {what}{share}, not {limits_in_words(self.min, self.max)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge by the items that count whatever follows."""
        if self.share_of is not None or (self.of is None and self._reach is None):
            return Verdict.UNDECIDED
        return verdict_on_count(self._number(self._certain(prefix)), self.min, self.max)

    def _items(self, text: str) -> Iterator[str]:
        if self.of is not None:
            return _found(self.of, text)
        return (match.group() for match in matches(self._compiled, text))

    def _certain(self, prefix: str) -> Iterator[str]:
        """Yield the items that every text with this prefix has."""
        if self.of is None:
            assert self._reach is not None
            last = len(prefix) - self._reach
            yield from (match.group() for match in matches(self._compiled, prefix) if match.start() <= last)
            return
        rule = _RULES[self.of]
        yield from _found(self.of, prefix, 0 if rule.begun and not self.unique else rule.tail)

    def _number(self, items: Iterator[str]) -> int:
        if not self.unique:
            return _total(self.of, items)
        folded = (item.casefold() for item in items)
        return len({*chain.from_iterable(folded)} if _is_run(self.of) else {*folded})


def _is_run(item: str | None) -> bool:
    """Whether what is found of an item are runs of single characters, each of which counts."""
    return item is not None and _RULES[item].one


def _total(item: str | None, found: Iterator[str]) -> int:
    """Count what is found of an item; None is a pattern."""
    return sum(map(len, found)) if _is_run(item) else sum(1 for _ in found)


def _found(item: str, text: str, tail: int = 0) -> Iterator[str]:
    """Yield the items that end at least ``tail`` characters before the end; single characters in runs."""
    rule, last = _RULES[item], len(text) - tail
    for match in matches(_COMPILED[item], text):
        if match.end() <= last and (rule.keep is None or rule.keep(match.group())):
            yield match.group()
