"""The ``Order`` constraint: how each word, sentence, line or paragraph relates to the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from guardwrap.constraints.field_checks import require, require_choice, shortened, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.layout import unit_features
from guardwrap.constraints.layout.unit_features import Feature, Unit
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import is_count

Relation = Literal[
    "increasing",
    "decreasing",
    "same",
    "different",
    "alternating",
    "next_letter",
    "no_next_letter",
    "chained",
    "circular",
]
_ORDERED = ("increasing", "decreasing")
_LETTERS = ("next_letter", "no_next_letter")


@dataclass(frozen=True, eq=False, repr=False)
class Order(TextConstraint):
    """Each word, sentence, line or paragraph relates to the one before it in a certain way.

    Parameters
    ----------
    units
        What is compared: ``"words"``, ``"sentences"``, ``"lines"`` or ``"paragraphs"``.
    relation
        - ``"increasing"``, ``"decreasing"``: each is more, or less, than the one before.
        - ``"same"``, ``"different"``: neighbors are alike, or are not.
        - ``"alternating"``: odd and even numbers alternate.
        - ``"next_letter"``: each begins with the next letter of the alphabet, and the first letter follows the last
          one; ``"no_next_letter"``: none begins with the next letter (but with the first one after the last).
        - ``"chained"``: each begins with the last word of the one before; not for words.
        - ``"circular"``: the first and the last one are alike.
    by
        What of each unit is compared: its ``"text"`` (words in lower case without accents, in the order of Unicode's
        code points), its ``"first_letter"``, ``"first_word"`` or ``"last_word"``; or the number of its ``"words"``,
        ``"characters"``, ``"letters"`` or ``"syllables"`` (estimated by the vowels), its ``"indent"`` (white space at
        the beginning), or its ``"alliteration"`` (the most words in a row that begin with the same letter).
    step
        With increasing or decreasing numbers: the exact difference; None for any.
    ties
        Whether neighbors may also be equal in an increasing or decreasing order.
    alphabet
        The letters for ``"next_letter"`` and ``"no_next_letter"``, in their order.
    on
        The view of the text that is judged: with ``on="lines"``, the words of each line.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

    Notes
    -----
    A prefix is VIOLATED as soon as two neighbors that no later text changes do not relate so, except with
    ``"circular"``. A text with fewer than two units is accepted. Units without a word are left out, except for
    ``"indent"`` and ``"characters"``.

    Examples
    --------
    >>> Order("words", "different", by="first_letter").accepts("Big apples cost more")
    True
    >>> Order("sentences", "increasing", by="words", step=2).accepts("Tea. I like tea.")
    True
    """

    units: Unit
    relation: Relation
    by: Feature = field(default="text", kw_only=True)
    step: int | None = field(default=None, kw_only=True)
    ties: bool = field(default=False, kw_only=True)
    alphabet: str = field(default="abcdefghijklmnopqrstuvwxyz", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["order"] = field(default="order", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.units, get_args(Unit), "units")
        require_choice(self.relation, get_args(Relation), "relation")
        require_choice(self.by, get_args(Feature), "by")
        numeric = self.by in unit_features.NUMERIC
        if self.relation in (*_LETTERS, "chained"):
            default = {"chained": "text"}.get(self.relation, "first_letter")
            require(self.by in ("text", default), f"relation={self.relation!r} cannot be used with by={self.by!r}")
            object.__setattr__(self, "by", default)
        require(self.relation != "chained" or self.units != "words", "words cannot be chained; give sentences or lines")
        require(self.relation != "alternating" or numeric, "alternating requires by= a number, such as 'syllables'")
        ordered = self.relation in _ORDERED
        require(self.step is None or (ordered and numeric), "step requires an increasing or decreasing number")
        valid = self.step is None or (is_count(self.step) and self.step > 0)
        require(valid, f"step={shown(self.step)}: give a whole number of at least 1")
        require(isinstance(self.ties, bool) and not (self.ties and not ordered), "ties requires an order")
        require(not (self.ties and self.step is not None), "ties cannot be used with step")
        valid = isinstance(self.alphabet, str) and len({*self.alphabet}) == len(self.alphabet) > 1
        require(valid, f"alphabet must be different letters in their order, not {shown(self.alphabet)}")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        """Compare the units of one string."""
        return self._follow(unit_features.units_of(text, self.units))

    def _follow(self, units: Sequence[str]) -> bool:
        if self.relation == "chained":
            ends = [ends for unit in units if (ends := unit_features.first_and_last(unit)) is not None]
            return all(one[1] == two[0] for one, two in pairwise(ends))
        keys = unit_features.features(units, self.by)
        if self.relation == "circular":
            return not keys or keys[0] == keys[-1]
        for one, two in pairwise(keys):
            check_deadline()
            if not self._relates(one, two):
                return False
        return True

    def fault(self, text: str) -> str:
        """Return the first units that are not related as required."""
        units = unit_features.units_of(text, self.units)
        if self.relation == "circular":
            return f"begins with {shortened(units[0])} and ends with {shortened(units[-1])}" if units else ""
        pairs = ((one, two) for one, two in pairwise(units) if not self._follow([one, two]))
        wrong = next(pairs, None)
        return "" if wrong is None else f"has {shortened(wrong[0])} before {shortened(wrong[1])}"

    def _relates(self, one: int | str, two: int | str) -> bool:
        if self.relation in _LETTERS:
            place, next_place = self._place(one), self._place(two)
            if self.relation == "no_next_letter":
                return place < 0 or next_place != place + 1
            return min(place, next_place) >= 0 and next_place == (place + 1) % len(self.alphabet)
        if self.relation == "alternating":
            return (int(one) - int(two)) % 2 == 1
        if self.relation in ("same", "different"):
            return (one == two) == (self.relation == "same")
        if self.relation == "decreasing":
            one, two = two, one
        if self.step is not None:
            return int(two) - int(one) == self.step
        return one < two or (self.ties and one == two)  # type: ignore[operator]  # both are of one type

    def _place(self, letter: int | str) -> int:
        return self.alphabet.find(str(letter))

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Compare the units that no later text changes, and what is known of the one that grows."""
        if self.relation == "circular":
            return Verdict.UNDECIDED
        ended, growing = unit_features.begun_units(prefix, self.units)
        if self.relation == "chained":
            first = unit_features.first_and_last(growing)
            units = ended if first is None or not unit_features.has_settled_word(growing) else [*ended, growing]
            return Verdict.UNDECIDED if self._follow(units) else Verdict.VIOLATED
        if not self._follow(ended):
            return Verdict.VIOLATED
        keys = unit_features.features(ended, self.by)
        least = unit_features.settled_feature(growing, self.by, self.units)
        possible = not keys or least is None or self._may_follow(keys[-1], least)
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED

    def _may_follow(self, one: int | str, two: int | str) -> bool:
        """Whether a unit may still relate to the one before: of a number, it is at least ``two``."""
        if self.by not in unit_features.GROWING:
            return self._relates(one, two)
        one, two = int(one), int(two)
        if self.relation == "same":
            return two <= one
        if self.relation == "decreasing":
            return two <= one - (self.step or (0 if self.ties else 1))
        return self.step is None or two <= one + self.step
