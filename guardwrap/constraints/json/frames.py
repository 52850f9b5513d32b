"""The stack of open objects and arrays in a JSON text, and how verdicts propagate from inner to outer ones.

Frames are immutable: each step returns a new frame, which shares unchanged parts with the old one. Indices are those of
subschemas in ``Applicators.nodes``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rpds import HashTrieSet

from guardwrap.constraints.json.applicators import SATISFIED, UNDECIDED, VIOLATED, Applicators, Children, Verdicts
from guardwrap.constraints.json.keywords import canonical
from guardwrap.constraints.json.subschemas import Objects, Subschema
from guardwrap.constraints.json_paths import NOT_JSON
from guardwrap.support.time_limits import check_deadline

_NO_KEYS: HashTrieSet[str] = HashTrieSet()
_NO_ITEMS: HashTrieSet[_CanonicalItem] = HashTrieSet()
_NOTHING = Children((), (), (), ())


class Dead(Exception):
    """No text that begins with the text read so far satisfies the schema.

    Its argument, if it has one, is what reports show instead of a place in the text.
    """


class _CanonicalItem:
    """An array item in canonical form, for ``uniqueItems``.

    ``rpds`` requires that a comparison returns a plain bool, which ``1 == "a"`` does only after NotImplemented.
    """

    __slots__ = ("form", "hash")

    def __init__(self, form: Any) -> None:
        self.form = form
        self.hash = hash(form)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CanonicalItem) and bool(self.form == other.form)


class Frame:
    """An open object or array."""

    def __init__(self, above: Frame | None, plan: Applicators, *, is_object: bool, keeps: bool) -> None:
        self.above = above
        self.plan = plan
        self.is_object = is_object
        self.keeps = keeps
        self.local = plan.local
        self.total = plan.total
        self.unsure = 0  # a bit for each index: set if a child was completed while the verdict on it was UNDECIDED
        self.count = 0  # items or properties that have begun
        self.seen = _NO_KEYS
        self.key = ""  # the key of the current child
        self.child = _NOTHING  # the subschemas that apply to the current child
        self.hits = ((0, 0),) * len(plan.counting)  # items that certainly, and that perhaps, satisfy ``contains``
        self.items: Any = None  # the children so far, as a linked list: (earlier ones, last item or (key, last value))
        self.unique: HashTrieSet[_CanonicalItem] = _NO_ITEMS

    def is_unsure(self, i: int) -> bool:
        """Whether the subschema at an index applies to a child that it could not judge."""
        return bool(self.unsure >> i & 1)

    def but(self, **changes: Any) -> Frame:
        """Return a copy with some attributes changed."""
        copy = Frame.__new__(Frame)
        copy.__dict__.update(self.__dict__, **changes)
        return copy


def raised(frame: Frame | None, plan: Applicators, before: Verdicts | None, total: Verdicts) -> Frame | None:
    """Return the frame around a value, updated with the subschemas that the value newly violates."""
    failed = [
        root for root, i in enumerate(plan.roots) if total[i] == VIOLATED and (before is None or before[i] != VIOLATED)
    ]
    if not failed:
        return frame
    if frame is None:
        raise Dead
    return decided(frame, {i: VIOLATED for root in failed for i in frame.child.asked[root]})


def decided(frame: Frame, changes: dict[int, int], *, again: bool = False) -> Frame:
    """Return a frame with new local verdicts for some subschemas, and propagate violations to the frames above."""
    path: list[tuple[Frame, Verdicts, Verdicts]] = []
    while True:
        check_deadline()
        local = tuple(
            changes.get(i, verdict) if verdict == UNDECIDED else verdict for i, verdict in enumerate(frame.local)
        )
        if local == frame.local and not again:
            break
        again = False
        plan, total = frame.plan, frame.plan.totals(local, frame.seen, finished=False)
        path.append((frame, local, total))
        failed = [root for root, i in enumerate(plan.roots) if total[i] == VIOLATED and frame.total[i] != VIOLATED]
        if not failed:
            frame = frame.above  # type: ignore[assignment]  # unchanged
            break
        if frame.above is None:
            raise Dead
        frame = frame.above
        changes = {i: VIOLATED for root in failed for i in frame.child.asked[root]}
    for inner, local, total in reversed(path):
        frame = inner.but(above=frame, local=local, total=total)
    return frame


def _violated(frame: Frame, indices: Iterable[int]) -> Frame:
    """Return a frame in which the subschemas at these indices are violated."""
    changes = dict.fromkeys(indices, VIOLATED)
    return decided(frame, changes) if changes else frame


def promised(frame: Frame) -> Frame:
    """Return a frame after an opening bracket or comma, when one more property or item must follow."""
    count = frame.count + 1
    plan = frame.plan
    failed = [i for i, most in plan.most if count > most]
    child = plan.names if frame.is_object else plan.of_item(frame.count)
    failed += child.never
    failed += [i for i, keys in plan.closed if not keys.may_become("", frame.seen)]
    return _violated(frame.but(count=count, child=child), failed)


def naming(frame: Frame, prefix: str) -> Frame:
    """Return a frame in which the current key begins with a prefix."""
    return _violated(frame, [i for i, keys in frame.plan.closed if not keys.may_become(prefix, frame.seen)])


def named(frame: Frame, plan: Applicators, before: Verdicts, total: Verdicts, key: str) -> Frame:
    """Return a frame after a complete key."""
    if key in frame.seen:
        raise Dead(NOT_JSON)
    frame = _with_child(frame, plan, before, total)
    child = frame.plan.of_key(key)
    seen = frame.seen.insert(key)
    # The properties so far and the required ones that are still missing must not exceed maxProperties.
    failed = [
        i
        for i, rules in frame.plan.objects
        if rules.most < float("inf") and frame.count + sum(needed not in seen for needed in rules.required) > rules.most
    ]
    failed += [i for i, rules in frame.plan.objects if rules.order is not None and key in rules.barred(frame.seen)]
    changes = dict.fromkeys((*child.never, *failed), VIOLATED)
    again = key in frame.plan.dependent
    frame = frame.but(seen=seen, key=key, child=child)
    return decided(frame, changes, again=again) if changes or again else frame


def ended(frame: Frame | None, plan: Applicators, before: Verdicts | None, total: Verdicts, value: Any) -> Frame | None:
    """Return the frame around a value that is complete."""
    if frame is None:
        return raised(frame, plan, before, total)
    frame = _kept(_with_child(frame, plan, before, total), value)
    hits, changes = list(frame.hits), {}
    for root, child in enumerate(plan.roots):
        for i in frame.child.counted[root]:
            n = next(n for n, (counting, _) in enumerate(frame.plan.counting) if counting == i)
            surely, perhaps = hits[n]
            hits[n] = (surely + (total[child] == SATISFIED), perhaps + (total[child] != VIOLATED))
            if hits[n][0] > frame.plan.counting[n][1].most_contained:
                changes[i] = VIOLATED
    for i, keys in frame.plan.settled_by:
        if frame.local[i] == UNDECIDED and not frame.is_unsure(i) and all(key in frame.seen for key in keys):
            changes[i] = SATISFIED
    if hits:
        frame = frame.but(hits=tuple(hits))
    return decided(frame, changes) if changes else frame


def _with_child(frame: Frame, plan: Applicators, before: Verdicts | None, total: Verdicts) -> Frame:
    """Return a frame with the verdicts on a complete value or key."""
    unsure = frame.unsure
    for root, child in enumerate(plan.roots):
        if total[child] == UNDECIDED:
            for i in frame.child.asked[root]:
                unsure |= 1 << i
    if unsure != frame.unsure:
        frame = frame.but(unsure=unsure)
    updated = raised(frame, plan, before, total)
    assert updated is not None
    return updated


def _kept(frame: Frame, value: Any) -> Frame:
    if frame.keeps:
        frame = frame.but(items=(frame.items, (frame.key, value) if frame.is_object else value))
    if not frame.plan.wants_items:
        return frame
    item = _CanonicalItem(canonical(value))
    if item in frame.unique:
        return _violated(frame, [i for i, rules in frame.plan.arrays if rules.unique])
    return frame.but(unique=frame.unique.insert(item))


def closed(frame: Frame) -> Frame | None:
    """Return the frame around an object or array after its closing bracket."""
    value = _value(frame) if frame.keeps else None
    plan, local = frame.plan, list(frame.local)
    for i, node in plan.pending:
        if local[i] == UNDECIDED:
            local[i] = _at_end(frame, i, node, value)
    total = plan.totals(tuple(local), frame.seen, finished=True)
    return ended(frame.above, plan, frame.total, total, value)


def missing_keys(frame: Frame) -> list[str]:
    """Return the required keys that an open object lacks, without those of branches that are already violated."""
    outward = [frame]
    while (above := outward[-1].above) is not None:
        outward.append(above)
    alive: set[int] = set()
    for inner in reversed(outward):
        roots = inner.plan.roots
        if inner.above is not None:
            asked = zip(roots, inner.above.child.asked, strict=True)
            roots = tuple(root for root, users in asked if not alive.isdisjoint(users))
        alive = inner.plan.alive(roots, inner.total)
    required = (key for i, rules in frame.plan.objects if i in alive for key in rules.required)
    return [key for key in required if key not in frame.seen]


def _value(frame: Frame) -> Any:
    items, children = frame.items, []
    while items is not None:
        check_deadline()
        items, last = items
        children.append(last)
    children.reverse()
    return dict(children) if frame.is_object else children


def _at_end(frame: Frame, i: int, node: Subschema, value: Any) -> int:
    """Return the local verdict of the subschema at index ``i`` on a complete object or array."""
    check_deadline()
    if frame.is_object:
        if node.objects is not None and not _complete(frame, node.objects):
            return VIOLATED
    elif node.arrays is not None:
        if frame.count < node.arrays.least:
            return VIOLATED
        for (counting, rules), (surely, perhaps) in zip(frame.plan.counting, frame.hits, strict=True):
            if counting == i:
                if perhaps < rules.least_contained:
                    return VIOLATED
                if surely < rules.least_contained or perhaps > rules.most_contained:
                    return UNDECIDED
    answers = [node.asks(keyword, value) for keyword in node.asked]
    if False in answers:
        return VIOLATED
    return UNDECIDED if None in answers or frame.is_unsure(i) else SATISFIED


def _complete(frame: Frame, rules: Objects) -> bool:
    """Whether an object has all required properties, and enough of them."""
    return (
        rules.least <= frame.count
        and all(key in frame.seen for key in rules.required)
        and all(key in frame.seen for has, keys in rules.dependent.items() if has in frame.seen for key in keys)
    )
