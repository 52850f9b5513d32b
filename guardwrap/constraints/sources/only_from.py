"""The ``OnlyFrom`` constraint: hosts, addresses, citations and the like only from a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from guardwrap.constraints.field_checks import about, listed, require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.regex_analysis import Occurrences, occurrences
from guardwrap.constraints.sources.named_items import ITEMS, Item, Reference
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.limits import count_items
from guardwrap.errors import is_count

_FORMS = {
    "urls": "; begin it with a scheme: https://www.example.com also allows www.example.com",
    "hosts": "; give a host without scheme and path, such as example.com or *.example.com",
    "emails": "; give an address such as ada@example.com, or *@example.com",
    "citations": "; give one number, one key, or authors and year such as Smith, 2020",
}
"""What to write, for the error about an entry that is something else."""


@dataclass(frozen=True, eq=False, repr=False)
class OnlyFrom(TextConstraint):
    r"""Everything of a sort that the text names is on a list: its hosts, URLs, e-mail addresses or citations.

    Parameters
    ----------
    allowed
        The list.
    of
        What is looked for; give either this or ``pattern``.

        - ``"hosts"``: the host of each URL of any scheme, of ``www.…``, of each e-mail address, and of each bare name
          such as ``example.com`` with one of the usual endings. ``"*.example.com"`` on the list allows all hosts below
          ``example.com``.
        - ``"urls"``: each URL of any scheme, and ``www.…``. Fragments do not matter.
        - ``"emails"``: each e-mail address. ``"*@example.com"`` on the list allows all addresses of the host.
        - ``"citations"``: ``[1]``, ``[1, 3-5]``, ``[^1]``, ``[@key]``, ``\cite{key}``, ``(Smith, 2020)``,
          ``(Smith et al. 2020; Doe & Roe, 2019)``. The list has numbers, keys, or ``"Smith, 2020"``.
    pattern
        A regular expression (``regex`` module) of what is looked for. If it has a group, the first one is compared.
    min
        The least number of items that the text names.
    ignore_case
        Whether upper and lower case are the same; only with ``pattern``.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

    Notes
    -----
    Hosts are compared as browsers read them: without user names (``https://good.com@evil.com`` is ``evil.com``), ports
    and a dot at the end, with ``\`` as ``/``, percent-encoding and punycode decoded, and compatibility forms and case
    folded. Names that only look alike, such as ``gооd.com`` with Cyrillic letters, are different.

    A prefix is VIOLATED as soon as an item that is not on the list has ended.

    Examples
    --------
    >>> rule = OnlyFrom(["example.com", "*.example.org"], of="hosts")
    >>> rule.accepts("See https://EXAMPLE.com/a or docs.example.org.")
    True
    >>> rule.accepts("See https://example.com@evil.net/")
    False
    >>> OnlyFrom(["1", "2"], of="citations").accepts("Tea is old [1], and good [1, 3].")
    False
    """

    allowed: Sequence[str]
    of: Item | None = field(default=None, kw_only=True)
    pattern: str | None = field(default=None, kw_only=True)
    min: int | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["only_from"] = field(default="only_from", kw_only=True)

    def __post_init__(self) -> None:
        allowed: Any = self.allowed
        several = tuple(allowed) if isinstance(allowed, Sequence) and not isinstance(allowed, str) else None
        valid = several is not None and all(isinstance(one, str) and one.strip() != "" for one in several)
        require(valid, f"allowed must be a list of texts that are not blank, not {shown(allowed)}")
        count_items(sum(map(len, several or ())), "allowed has")
        object.__setattr__(self, "allowed", several)
        require((self.of is None) != (self.pattern is None), "give either of or pattern")
        require(isinstance(self.ignore_case, bool), "ignore_case must be true or false")
        require(self.pattern is not None or not self.ignore_case, "ignore_case requires pattern")
        require(self.min is None or is_count(self.min), f"min={shown(self.min)}: give a whole number of at least 0")
        if self.of is not None:
            require_choice(self.of, get_args(Item), "of")
            for one in self.allowed:
                entry = ITEMS[self.of].entry(one)
                form = _FORMS[self.of]
                require(
                    entry is not None, f"allowed: {shown(one)} is not one of the {self.of} that a list can have{form}"
                )
        object.__setattr__(self, "on", read_view(self.on))
        with about("pattern"):
            self._occurrences  # noqa: B018  # so that an invalid expression is noticed now

    @cached_property
    def _occurrences(self) -> Occurrences | None:
        return None if self.pattern is None else occurrences(self.pattern, ignore_case=self.ignore_case)

    @cached_property
    def _list(self) -> frozenset[str]:
        if self.of is None:
            return frozenset(map(self._plain, self.allowed))
        return frozenset(entry for one in self.allowed if (entry := ITEMS[self.of].entry(one)) is not None)

    def _plain(self, item: str) -> str:
        item = " ".join(item.split())
        return item.casefold() if self.ignore_case else item

    def holds(self, text: str) -> bool:
        """Look for items in one string."""
        number = 0
        for item in self._items(text):
            number += 1
            if not self._is_allowed(item):
                return False
        return number >= (self.min or 0)

    def fault(self, text: str) -> str:
        """Return how many items are not on the list, or that there are too few."""
        items = list(self._items(text))
        wrong = sum(not self._is_allowed(item) for item in items)
        what = "matches" if self.of is None else self.of
        if wrong:
            first = listed(item.form for item in items if not self._is_allowed(item))
            return f"has {wrong} of {len(items)} {what} that are not on the list: {first}"
        return f"has {len(items)} {what}, not at least {self.min}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge by the items that have ended."""
        allowed = all(self._is_allowed(item) for item in self._items(prefix, settled=True))
        return Verdict.UNDECIDED if allowed else Verdict.VIOLATED

    def _items(self, text: str, *, settled: bool = False) -> Iterator[Reference]:
        """Yield the items of a text, or those that every text with this prefix has."""
        if self._occurrences is None:
            assert self.of is not None
            yield from ITEMS[self.of].find(text, settled)
            return
        groups = self._occurrences.compiled.groups
        for match in self._occurrences.find(text, settled=settled):
            yield Reference(self._plain((match[1] if groups else match[0]) or ""))

    def _is_allowed(self, item: Reference) -> bool:
        return item.form in self._list or any(wider in self._list for wider in item.wider)
