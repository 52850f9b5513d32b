"""All subschemas that apply to one value of one kind, and their combined verdicts, by Kleene's three-valued logic.

A subschema is judged once per value, however many paths lead to it. Its local verdict covers its own rules for the
value; its total verdict also covers the subschemas that it applies to the same value (``allOf``, ``$ref`` and so on).
Below, the place of a subschema is its index in ``Applicators.nodes``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from guardwrap.constraints.json.scalars import NumberRange, Pattern, Words
from guardwrap.constraints.json.subschemas import Arrays, InPlace, Kind, Objects, Strings, Subschema
from guardwrap.constraints.verdicts import Verdict
from guardwrap.documents.time_limits import check_deadline

VIOLATED, UNDECIDED, SATISFIED = (int(verdict) for verdict in Verdict)  # plain integers compare faster
Verdicts = tuple[int, ...]
LITERALS: dict[Kind, Any] = {"null": None, "true": True, "false": False}


class Children(NamedTuple):
    """The subschemas that apply to a child of an object or array: a property's value, an item or a key."""

    nodes: tuple[Subschema, ...]  # the subschemas that apply to the child
    # for each of them, the places of the container's subschemas that are violated if it is violated
    asked: tuple[tuple[int, ...], ...]
    # for each of them, the places of the container's subschemas that count it for ``contains``
    counted: tuple[tuple[int, ...], ...]
    never: tuple[int, ...]  # the places of the container's subschemas that do not allow this child at all


class Closed(NamedTuple):
    """The allowed keys of an object that must not have others."""

    words: Words
    patterns: tuple[Pattern, ...]
    rules: Objects

    def may_become(self, prefix: str, seen: Collection[str]) -> bool:
        """Whether a key that begins with the prefix can be an allowed one that may follow the keys in ``seen``."""
        barred = self.rules.barred(seen)
        return self.words.may_become(prefix, barred) or any(each.may_be_found(prefix, -1) for each in self.patterns)


class _Logic(NamedTuple):
    """An ``InPlace`` with places instead of subschemas. The verdict at place -1 is always UNDECIDED."""

    every: tuple[int, ...]
    some: tuple[tuple[int, ...], ...]
    one: tuple[int, ...]
    none: int | None
    condition: tuple[int, int | None, int | None] | None
    dependent: tuple[tuple[str, int], ...]


class Applicators:
    """The subschemas that apply to one value of one kind.

    ``roots``: the subschemas that apply to the value. ``nodes`` also holds those that they apply to the same value in
    turn.
    """

    def __init__(self, roots: Sequence[Subschema], kind: Kind) -> None:
        self.nodes, places, parts = _closure(roots, kind)
        self.roots = tuple(places[root] for root in roots)
        logic = [inner and _placed(inner, place, places) for place, inner in enumerate(parts)]
        self._logic = logic if any(logic) else None
        self.dependent = {key for inner in parts if inner for key, _ in inner.dependent}
        """Keys whose presence makes another subschema apply to the object (``dependentSchemas``)."""
        self.local = tuple(_at_start(node, kind) for node in self.nodes)
        self.total = self.totals(self.local, (), finished=kind in LITERALS)
        self.pending = tuple((i, self.nodes[i]) for i, verdict in enumerate(self.local) if verdict == UNDECIDED)
        """The subschemas that the kind of the value alone does not decide, with their places."""
        of_kind: dict[Kind, list[tuple[int, Any]]] = {"string": [], "number": [], "object": [], "array": []}
        for i, node in self.pending:
            by_kind = {"string": node.strings, "number": node.limits, "object": node.objects, "array": node.arrays}
            rules = by_kind.get(kind)  # null, true and false have no rules of their own
            if rules is not None:
                of_kind[kind].append((i, rules))
        self.strings: list[tuple[int, Strings]] = of_kind["string"]
        self.numbers: list[tuple[int, NumberRange]] = of_kind["number"]
        self.objects: list[tuple[int, Objects]] = of_kind["object"]
        self.arrays: list[tuple[int, Arrays]] = of_kind["array"]
        self.wants_value = any(node.asked for _, node in self.pending)
        self.wants_text = self.wants_value or any(
            rules.words or rules.pattern or rules.asked for _, rules in self.strings
        )
        self.wants_items = any(rules.unique for _, rules in self.arrays)
        self.counting = tuple((i, rules) for i, rules in self.arrays if rules.contains)
        self.closed = tuple((i, closed) for i, rules in self.objects if (closed := _closed(rules)))
        self.names = _children([(rules.names, i) for i, rules in self.objects])
        # The most items or properties, checked at each comma, because one more must follow it.
        sized: list[tuple[int, Any]] = of_kind["object"] + of_kind["array"]
        self.most = tuple((i, rules.most) for i, rules in sized if rules.most < float("inf"))
        # SATISFIED before the end matters only to combined verdicts, and needs a node without other open rules.
        self.settled_by = tuple(
            (i, rules.settled_by)
            for i, rules in self.objects
            if self._logic is not None
            and rules.settled_by is not None
            and not (self.nodes[i].asked or self.nodes[i].opaque)
        )
        self._named = {key for _, rules in self.objects for key in rules.properties}
        self._all_named = not any(rules.patterns for _, rules in self.objects)
        self._longest = max((len(rules.prefix) for _, rules in self.arrays), default=0)
        self._children: dict[str | int | None, Children] = {}

    def totals(self, local: Verdicts, seen: Collection[str], *, finished: bool) -> Verdicts:
        """Return the total verdicts, by place."""
        if self._logic is None:
            return local
        total = [UNDECIDED] * (len(local) + 1)  # the last one is for place -1
        for i, (verdict, logic) in enumerate(zip(local, self._logic, strict=True)):
            if logic and verdict != VIOLATED:
                check_deadline()
                verdict = min(verdict, _applied(logic, total, seen, finished=finished))
            total[i] = verdict
        return tuple(total[:-1])

    def alive(self, roots: Iterable[int], total: Verdicts) -> set[int]:
        """Return the places of the subschemas through which a root may still be satisfied."""
        alive: set[int] = set()
        todo = [*roots]
        while todo:
            place = todo.pop()
            if place < 0 or place in alive or total[place] == VIOLATED:
                continue
            alive.add(place)
            logic = self._logic[place] if self._logic is not None else None
            if logic:
                todo += [*logic.every, *(i for group in logic.some for i in group), *logic.one]
                todo += [i for i in (logic.condition or ())[1:] if i is not None]
                todo += [i for _, i in logic.dependent]
        return alive

    def of_key(self, key: str) -> Children:
        """Return the subschemas that apply to the value of a property."""
        named = key if key in self._named else None
        if named is None and not self._all_named:  # not cached, because there is no limit to the number of such keys
            return self._of_key(key)
        if named not in self._children:
            self._children[named] = self._of_key(key)
        return self._children[named]

    def _of_key(self, key: str) -> Children:
        asked: list[tuple[Subschema | None, int]] = []
        for i, rules in self.objects:
            check_deadline()
            applied: list[Subschema | None] = [inner for pattern, inner in rules.patterns if pattern.found_in(key)]
            applied += [rules.properties[key]] if key in rules.properties else []
            asked += [(inner, i) for inner in applied or [rules.additional]]
        return _children(asked)

    def of_item(self, index: int) -> Children:
        """Return the subschemas that apply to the item at an index."""
        index = min(index, self._longest)
        if index not in self._children:
            self._children[index] = _children(
                [(rules.prefix[index] if index < len(rules.prefix) else rules.items, i) for i, rules in self.arrays],
                [(rules.contains, i) for i, rules in self.counting],
            )
        return self._children[index]


def _children(
    asked: Iterable[tuple[Subschema | None, int]], counted: Iterable[tuple[Subschema | None, int]] = ()
) -> Children:
    places: dict[Subschema, tuple[list[int], list[int]]] = {}
    never: list[int] = []
    for inner, i in asked:
        if inner is not None and inner.never:
            never.append(i)
        elif inner is not None and not inner.trivial:
            places.setdefault(inner, ([], []))[0].append(i)
    for inner, i in counted:
        if inner is not None:
            places.setdefault(inner, ([], []))[1].append(i)
    asking, counting = zip(*places.values(), strict=True) if places else ((), ())
    return Children(tuple(places), tuple(map(tuple, asking)), tuple(map(tuple, counting)), tuple(never))


def _closed(rules: Objects) -> Closed | None:
    if rules.additional is None or not rules.additional.never:
        return None
    words = Words([key for key, inner in rules.properties.items() if not inner.never])
    return Closed(words, tuple(pattern for pattern, inner in rules.patterns if not inner.never), rules)


def _closure(
    roots: Sequence[Subschema], kind: Kind
) -> tuple[tuple[Subschema, ...], dict[Subschema, int], list[InPlace | None]]:
    """Return all subschemas that apply to the value, their places, and what each applies to the value in turn.

    A subschema comes after those that it applies, except where these form a cycle.
    """
    places: dict[Subschema, int] = {}
    parts: list[InPlace | None] = []
    entered: set[Subschema] = set()
    todo: list[tuple[Subschema, InPlace | None, Iterator[Subschema]]] = []

    def enter(node: Subschema) -> None:
        check_deadline()
        entered.add(node)
        inner = _in_place(node.loaded(), kind)
        todo.append((node, inner, iter(_members(inner))))

    for root in roots:
        if root not in entered:
            enter(root)
        while todo:
            node, inner, members = todo[-1]
            following = next((each for each in members if each not in entered), None)
            if following is not None:
                enter(following)
                continue
            todo.pop()
            places[node] = len(places)
            parts.append(inner)
    return tuple(places), places, parts


def _in_place(node: Subschema, kind: Kind) -> InPlace | None:
    if node.kinds is not None and kind not in node.kinds:
        return None  # the node is violated by its type alone
    inner = node.in_place or InPlace()
    if kind in ("object", "array"):
        like = tuple(tuple(each for each in group if each.schema["type"] == kind) for group in node.containers)
        inner = inner._replace(some=inner.some + like)
    if kind != "object":
        inner = inner._replace(dependent=())
    return inner if any(inner) else None


def _members(inner: InPlace | None) -> Iterator[Subschema]:
    if inner is None:
        return
    yield from inner.every
    for group in inner.some:
        yield from group
    yield from inner.one
    if inner.none is not None:
        yield inner.none
    yield from (each for each in inner.condition or () if each is not None)
    yield from (each for _, each in inner.dependent)


def _placed(inner: InPlace, parent: int, places: dict[Subschema, int]) -> _Logic:
    def place(node: Subschema) -> int:
        return places[node] if places[node] < parent else -1  # a later place means a cycle

    condition = None
    if inner.condition:
        met, then, otherwise = inner.condition
        if_met, if_not = (None if each is None else place(each) for each in (then, otherwise))
        condition = (place(met), if_met, if_not)
    return _Logic(
        every=tuple(map(place, inner.every)),
        some=tuple(tuple(map(place, group)) for group in inner.some),
        one=tuple(map(place, inner.one)),
        none=None if inner.none is None else place(inner.none),
        condition=condition,
        dependent=tuple((key, place(each)) for key, each in inner.dependent),
    )


def _applied(logic: _Logic, total: Sequence[int], seen: Collection[str], *, finished: bool) -> int:
    """Return the combined verdict of the subschemas that a subschema applies to the same value."""
    verdict = min((total[i] for i in logic.every), default=SATISFIED)
    for group in logic.some:
        verdict = min(verdict, max((total[i] for i in group), default=VIOLATED))
    if logic.one:
        branches = [total[i] for i in logic.one]
        satisfied, undecided = branches.count(SATISFIED), branches.count(UNDECIDED)
        if satisfied > 1 or (satisfied == 0 and undecided == 0):
            verdict = VIOLATED
        elif undecided:
            verdict = min(verdict, UNDECIDED)
    if logic.none is not None:
        verdict = min(verdict, -total[logic.none])
    if logic.condition:
        met, then, otherwise = logic.condition
        if_met = SATISFIED if then is None else total[then]
        if_not = SATISFIED if otherwise is None else total[otherwise]
        verdict = min(verdict, if_met if if_met == if_not else min(max(-total[met], if_met), max(total[met], if_not)))
    for key, i in logic.dependent:
        if key in seen:
            verdict = min(verdict, total[i])
        elif not finished:
            verdict = min(verdict, max(UNDECIDED, total[i]))
    return verdict


def _at_start(node: Subschema, kind: Kind) -> int:
    """Return the local verdict when only the kind of the value is known."""
    if node.kinds is not None and kind not in node.kinds:
        return VIOLATED
    undecided: Any = node.asked or node.opaque
    if kind in LITERALS:
        if not all(kind in each for each in node.literals):
            return VIOLATED
        answers = [node.asks(keyword, LITERALS[kind]) for keyword in node.asked]
        if False in answers:
            return VIOLATED
        undecided = node.opaque or None in answers
    elif kind == "string" and node.strings:
        undecided = True
        if not all(words.may_become("") for words in node.strings.words):
            return VIOLATED
    elif kind == "number" and node.limits:
        undecided = True
        if not all(node.limits.choices):
            return VIOLATED
    elif kind in ("object", "array"):
        undecided = undecided or (node.objects if kind == "object" else node.arrays)
    return UNDECIDED if undecided else SATISFIED
