"""All subschemas that apply to one value of one kind, and their combined verdicts, by Kleene's three-valued logic.

A subschema is judged once per value, however many paths lead to it. Its local verdict covers its own rules for the
value; its total verdict also covers the subschemas that it applies to the same value (``allOf``, ``$ref`` and so on).
Below, an index is that of a subschema in ``Applicators.nodes``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from guardwrap.constraints.json.subschemas import (
    Arrays,
    Clause,
    Kind,
    NumberRange,
    Objects,
    Pattern,
    Strings,
    Subschema,
    Words,
)
from guardwrap.constraints.verdicts import Verdict
from guardwrap.support.time_limits import check_deadline

VIOLATED, UNDECIDED, SATISFIED = (int(verdict) for verdict in Verdict)  # plain integers compare faster
Verdicts = tuple[int, ...]
LITERALS: dict[Kind, Any] = {"null": None, "true": True, "false": False}


class Children(NamedTuple):
    """The subschemas that apply to a child of an object or array: a property's value, an item or a key."""

    nodes: tuple[Subschema, ...]  # the subschemas that apply to the child
    # for each of them, the indices of the container's subschemas that are violated if it is violated
    asked: tuple[tuple[int, ...], ...]
    # for each of them, the indices of the container's subschemas that count it for ``contains``
    counted: tuple[tuple[int, ...], ...]
    never: tuple[int, ...]  # the indices of the container's subschemas that do not allow this child at all


class Closed(NamedTuple):
    """The allowed keys of an object that must not have others."""

    words: Words
    patterns: tuple[Pattern, ...]
    rules: Objects

    def may_become(self, prefix: str, seen: Collection[str]) -> bool:
        """Whether a key that begins with the prefix can be an allowed one that may follow the keys in ``seen``."""
        barred = self.rules.barred(seen)
        return self.words.may_become(prefix, barred) or any(each.may_be_found(prefix, -1) for each in self.patterns)


class Applicators:
    """The subschemas that apply to one value of one kind.

    ``roots``: the subschemas that apply to the value. ``nodes`` also holds those that they apply to the same value in
    turn.
    """

    def __init__(self, roots: Sequence[Subschema], kind: Kind) -> None:
        indices, demanded = _closure(roots, kind)
        self.nodes = tuple(indices)
        self.roots = tuple(indices[root] for root in roots)
        clauses = [tuple(_indexed(clause, i, indices) for clause in each) for i, each in enumerate(demanded)]
        self._clauses = clauses if any(clauses) else None
        self.dependent = {clause.key for each in clauses for clause in each if clause.demand == "key"}
        """Keys whose presence makes another subschema apply to the object (``dependentSchemas``)."""
        self.local = tuple(_at_start(node, kind) for node in self.nodes)
        self.total = self.totals(self.local, (), finished=kind in LITERALS)
        self.pending = tuple((i, self.nodes[i]) for i, verdict in enumerate(self.local) if verdict == UNDECIDED)
        """The subschemas that the kind of the value alone does not decide, with their indices."""
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
            if self._clauses is not None and rules.settled_by is not None and not self.nodes[i].asked
        )
        self._named = {key for _, rules in self.objects for key in rules.properties}
        self._all_named = not any(rules.patterns for _, rules in self.objects)
        self._longest = max((len(rules.prefix) for _, rules in self.arrays), default=0)
        self._children: dict[str | int | None, Children] = {}

    def totals(self, local: Verdicts, seen: Collection[str], *, finished: bool) -> Verdicts:
        """Return the total verdicts, by index."""
        if self._clauses is None:
            return local
        total = [UNDECIDED] * (len(local) + 1)  # the last one is for index -1
        for i, (verdict, clauses) in enumerate(zip(local, self._clauses, strict=True)):
            if clauses and verdict != VIOLATED:
                check_deadline()
                for clause in clauses:
                    verdict = min(verdict, _combined(clause, total, seen, finished=finished))
            total[i] = verdict
        return tuple(total[:-1])

    def alive(self, roots: Iterable[int], total: Verdicts) -> set[int]:
        """Return the indices of the subschemas through which a root may still be satisfied."""
        alive: set[int] = set()
        todo = [*roots]
        while todo:
            i = todo.pop()
            if i is None or i < 0 or i in alive or total[i] == VIOLATED:
                continue
            alive.add(i)
            for clause in self._clauses[i] if self._clauses is not None else ():
                if clause.demand != "none":
                    todo += clause.members[clause.demand == "if" :]  # a condition is only a test
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
    users: dict[Subschema, tuple[list[int], list[int]]] = {}
    never: list[int] = []
    for inner, i in asked:
        if inner is not None and inner.never:
            never.append(i)
        elif inner is not None and not inner.trivial:
            users.setdefault(inner, ([], []))[0].append(i)
    for inner, i in counted:
        if inner is not None:
            users.setdefault(inner, ([], []))[1].append(i)
    asking, counting = zip(*users.values(), strict=True) if users else ((), ())
    return Children(tuple(users), tuple(map(tuple, asking)), tuple(map(tuple, counting)), tuple(never))


def _closed(rules: Objects) -> Closed | None:
    if rules.additional is None or not rules.additional.never:
        return None
    words = Words([key for key, inner in rules.properties.items() if not inner.never])
    return Closed(words, tuple(pattern for pattern, inner in rules.patterns if not inner.never), rules)


def _closure(roots: Sequence[Subschema], kind: Kind) -> tuple[dict[Subschema, int], list[tuple[Clause, ...]]]:
    """Return the indices of all subschemas that apply to the value, and the clauses of each.

    A subschema comes after those that it applies, except where these form a cycle.
    """
    indices: dict[Subschema, int] = {}
    demanded: list[tuple[Clause, ...]] = []
    entered: set[Subschema] = set()
    todo: list[tuple[Subschema, tuple[Clause, ...], Iterator[Subschema]]] = []

    def enter(node: Subschema) -> None:
        check_deadline()
        entered.add(node)
        clauses = _clauses(node.loaded(), kind)
        todo.append((node, clauses, (each for clause in clauses for each in clause.members if each is not None)))

    for root in roots:
        if root not in entered:
            enter(root)
        while todo:
            node, clauses, members = todo[-1]
            following = next((each for each in members if each not in entered), None)
            if following is not None:
                enter(following)
                continue
            todo.pop()
            indices[node] = len(indices)
            demanded.append(clauses)
    return indices, demanded


def _indexed(clause: Clause, parent: int, indices: dict[Subschema, int]) -> Clause:
    """Return a clause with the indices of its members; of those that come later, which means a cycle, -1."""
    members = (None if each is None else indices[each] for each in clause.members)
    return clause._replace(members=tuple(None if i is None else i if i < parent else -1 for i in members))


def _clauses(node: Subschema, kind: Kind) -> tuple[Clause, ...]:
    """Return what a subschema demands of others for a value of a kind."""
    if node.kinds is not None and kind not in node.kinds:
        return ()  # the node is violated by its type alone
    clauses = node.clauses
    if kind in ("object", "array"):
        # Of ``const`` and ``enum``, the value must equal one of those of its kind.
        groups = (tuple(each for each in group if each.schema["type"] == kind) for group in node.containers)
        clauses += tuple(Clause("any", group) for group in groups)
    return clauses if kind == "object" else tuple(clause for clause in clauses if clause.demand != "key")


def _combined(clause: Clause, total: Sequence[int], seen: Collection[str], *, finished: bool) -> int:
    """Return the verdict of a clause, whose members are indices, by their total verdicts."""
    verdicts = [SATISFIED if i is None else total[i] for i in clause.members]
    match clause.demand:
        case "all":
            return min(verdicts)
        case "any":
            return max(verdicts, default=VIOLATED)
        case "one":
            satisfied, undecided = verdicts.count(SATISFIED), verdicts.count(UNDECIDED)
            if satisfied > 1 or not (satisfied or undecided):
                return VIOLATED
            return UNDECIDED if undecided else SATISFIED
        case "none":
            return -verdicts[0]
        case "if":
            met, if_met, if_not = verdicts
            return if_met if if_met == if_not else min(max(-met, if_met), max(met, if_not))
    if clause.key in seen:
        return verdicts[0]
    return SATISFIED if finished else max(UNDECIDED, verdicts[0])


def _at_start(node: Subschema, kind: Kind) -> int:
    """Return the local verdict when only the kind of the value is known."""
    if node.kinds is not None and kind not in node.kinds:
        return VIOLATED
    undecided: Any = node.asked
    if kind in LITERALS:
        if not all(kind in each for each in node.literals):
            return VIOLATED
        answers = [node.asks(keyword, LITERALS[kind]) for keyword in node.asked]
        if False in answers:
            return VIOLATED
        undecided = None in answers
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
