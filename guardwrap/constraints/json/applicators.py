"""All subschemas that are applied to one value of one kind, and what they come to: Kleene's logic over their verdicts.

A subschema is judged once a value, however many ways lead to it. What it says itself is its local verdict; with what
the subschemas in it say of the same value, its total one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from guardwrap.constraints.json.scalars import NumberRange, Pattern, Words
from guardwrap.constraints.json.subschemas import Arrays, InPlace, Kind, Objects, Strings, Subschema
from guardwrap.constraints.verdicts import Verdict
from guardwrap.documents.time_limits import check_deadline

__all__ = ["LITERALS", "SATISFIED", "UNDECIDED", "VIOLATED", "Applicators", "Children"]

VIOLATED, UNDECIDED, SATISFIED = (int(verdict) for verdict in Verdict)  # plain, for they are compared all the time
Verdicts = tuple[int, ...]
LITERALS: dict[Kind, Any] = {"null": None, "true": True, "false": False}


class Children(NamedTuple):
    """What is asked of the value of a property, of an item, or of a key.

    Parameters
    ----------
    nodes
        The subschemas that are applied to it.
    asked
        For each of them, the places of the container's that are violated if it is.
    counted
        For each of them, the places of the container's that count the items that satisfy it.
    never
        The places of the container's that allow no such value at all.
    """

    nodes: tuple[Subschema, ...]
    asked: tuple[tuple[int, ...], ...]
    counted: tuple[tuple[int, ...], ...]
    never: tuple[int, ...]


class Closed(NamedTuple):
    """The keys of an object to which no others may be added."""

    words: Words
    patterns: tuple[Pattern, ...]

    def may_become(self, prefix: str, seen: Collection[str]) -> bool:
        """Whether a key that begins like this may be one of them, and none that was there."""
        return self.words.may_become(prefix, seen) or any(each.may_be_found(prefix, -1) for each in self.patterns)


class _Logic(NamedTuple):
    """An ``InPlace`` by places in a plan. What stands at place -1 is never known."""

    every: tuple[int, ...]
    some: tuple[tuple[int, ...], ...]
    one: tuple[int, ...]
    none: int | None
    condition: tuple[int, int | None, int | None] | None
    dependent: tuple[tuple[str, int], ...]


class Applicators:
    """What is applied to one value of one kind.

    Parameters
    ----------
    roots
        The subschemas that are asked for. With those that they apply to the same value they have places.
    kind
        Of the value.
    """

    def __init__(self, roots: Sequence[Subschema], kind: Kind) -> None:
        self.nodes, places, parts = _closure(roots, kind)
        self.roots = tuple(places[root] for root in roots)
        logic = [inner and _placed(inner, own, places) for own, inner in enumerate(parts)]
        self._logic = logic if any(logic) else None
        self.dependent = {key for inner in parts if inner for key, _ in inner.dependent}
        """Keys on which something depends that is applied to the whole."""
        self.local = tuple(_at_start(node, kind) for node in self.nodes)
        self.total = self.totals(self.local, (), finished=kind in LITERALS)
        self.pending = tuple((i, self.nodes[i]) for i, verdict in enumerate(self.local) if verdict == UNDECIDED)
        """Those that have not said all about this kind of value, with their places."""
        of_kind: dict[Kind, list[tuple[int, Any]]] = {"string": [], "number": [], "object": [], "array": []}
        for i, node in self.pending:
            said = {"string": node.strings, "number": node.limits, "object": node.objects, "array": node.arrays}
            rules = said.get(kind)  # of null, true and false there is nothing to say but by a reference not followed
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
        # With so many items or properties there are no more; checked where a comma promises one.
        sized: list[tuple[int, Any]] = of_kind["object"] + of_kind["array"]
        self.most = tuple((i, rules.most) for i, rules in sized if rules.most < float("inf"))
        # Said early only where someone else may want to know, and where nothing else is to be said.
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
        """Return the total verdicts.

        Parameters
        ----------
        local
            The local ones.
        seen
            The keys of the object so far.
        finished
            Whether there will be no more.
        """
        if self._logic is None:
            return local
        total = [UNDECIDED] * (len(local) + 1)  # the last stands for what is never known
        for i, (verdict, logic) in enumerate(zip(local, self._logic, strict=True)):
            if logic and verdict != VIOLATED:
                check_deadline()
                verdict = min(verdict, _applied(logic, total, seen, finished=finished))
            total[i] = verdict
        return tuple(total[:-1])

    def of_key(self, key: str) -> Children:
        """Return what is asked of the value of a property."""
        named = key if key in self._named else None
        if named is None and not self._all_named:  # there is no end of such keys
            return self._of_key(key)
        if named not in self._children:
            self._children[named] = self._of_key(key)
        return self._children[named]

    def _of_key(self, key: str) -> Children:
        asked: list[tuple[Subschema | None, int]] = []
        for i, rules in self.objects:
            check_deadline()
            found: list[Subschema | None] = [inner for pattern, inner in rules.patterns if pattern.found_in(key)]
            found += [rules.properties[key]] if key in rules.properties else []
            asked += [(inner, i) for inner in found or [rules.additional]]
        return _children(asked)

    def of_item(self, index: int) -> Children:
        """Return what is asked of an item."""
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
    found: dict[Subschema, tuple[list[int], list[int]]] = {}
    never: list[int] = []
    for inner, i in asked:
        if inner is not None and inner.never:
            never.append(i)
        elif inner is not None and not inner.trivial:
            found.setdefault(inner, ([], []))[0].append(i)
    for inner, i in counted:
        if inner is not None:
            found.setdefault(inner, ([], []))[1].append(i)
    asking, counting = zip(*found.values(), strict=True) if found else ((), ())
    return Children(tuple(found), tuple(map(tuple, asking)), tuple(map(tuple, counting)), tuple(never))


def _closed(rules: Objects) -> Closed | None:
    if rules.additional is None or not rules.additional.never:
        return None
    words = Words([key for key, inner in rules.properties.items() if not inner.never])
    return Closed(words, tuple(pattern for pattern, inner in rules.patterns if not inner.never))


def _closure(
    roots: Sequence[Subschema], kind: Kind
) -> tuple[tuple[Subschema, ...], dict[Subschema, int], list[InPlace | None]]:
    """Return all subschemas that are applied to the value: inner ones first, unless they go in circles."""
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
        return None  # it is violated, whatever the others say
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


def _placed(inner: InPlace, own: int, places: dict[Subschema, int]) -> _Logic:
    def place(node: Subschema) -> int:
        return places[node] if places[node] < own else -1  # it comes later: they go in a circle

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
    """Return the verdict on what a subschema applies to the value itself."""
    found = min((total[i] for i in logic.every), default=SATISFIED)
    for group in logic.some:
        found = min(found, max((total[i] for i in group), default=VIOLATED))
    if logic.one:
        verdicts = [total[i] for i in logic.one]
        satisfied, undecided = verdicts.count(SATISFIED), verdicts.count(UNDECIDED)
        if satisfied > 1 or (satisfied == 0 and undecided == 0):
            found = VIOLATED
        elif undecided:
            found = min(found, UNDECIDED)
    if logic.none is not None:
        found = min(found, -total[logic.none])
    if logic.condition:
        met, then, otherwise = logic.condition
        if_met = SATISFIED if then is None else total[then]
        if_not = SATISFIED if otherwise is None else total[otherwise]
        found = min(found, if_met if if_met == if_not else min(max(-total[met], if_met), max(total[met], if_not)))
    for key, i in logic.dependent:
        if key in seen:
            found = min(found, total[i])
        elif not finished:
            found = min(found, max(UNDECIDED, total[i]))
    return found


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
