"""The objects and arrays that are open, one within the other, and how verdicts rise from the inner to the outer ones.

Nothing here changes: what is read next makes new frames, which share what lies below and beside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rpds import HashTrieSet

from guardwrap.constraints.json.applicators import SATISFIED, UNDECIDED, VIOLATED, Applicators, Children, Verdicts
from guardwrap.constraints.json.keywords import canonical
from guardwrap.constraints.json.subschemas import Objects, Subschema
from guardwrap.documents.time_limits import check_deadline

__all__ = ["Dead", "Frame", "closed", "ended", "named", "naming", "promised", "raised"]

_NO_KEYS: HashTrieSet[str] = HashTrieSet()
_NO_ITEMS: HashTrieSet[_Own] = HashTrieSet()
_NOTHING = Children((), (), (), ())


class Dead(Exception):
    """No text that begins like this satisfies the schema."""


class _Own:
    """An item in canonical form. ``rpds`` wants a plain bool of each comparison, and 1 == "a" has none at first."""

    __slots__ = ("form", "hash")

    def __init__(self, form: Any) -> None:
        self.form = form
        self.hash = hash(form)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and bool(self.form == other.form)


class Frame:
    """An object or array that is open.

    Parameters
    ----------
    above
        The one that it stands in.
    plan
        What is applied to it.
    is_object
        Whether it is an object.
    keeps
        Whether its value is needed once it is finished.
    """

    def __init__(self, above: Frame | None, plan: Applicators, *, is_object: bool, keeps: bool) -> None:
        self.above = above
        self.plan = plan
        self.is_object = is_object
        self.keeps = keeps
        self.local = plan.local
        self.total = plan.total
        self.unsure = 0  # a bit for each subschema of which something finished without a verdict
        self.count = 0  # of items or properties that have begun
        self.seen = _NO_KEYS
        self.key = ""  # of the value that is read
        self.child = _NOTHING  # what is asked of the value that is read
        self.hits = ((0, 0),) * len(plan.counting)  # items that surely, and that perhaps satisfy ``contains``
        self.items: Any = None  # what it has so far: (the others, the last) or (the others, (key, the last))
        self.unique: HashTrieSet[_Own] = _NO_ITEMS

    def but(self, **changes: Any) -> Frame:
        """Return one that differs in this."""
        made = Frame.__new__(Frame)
        made.__dict__.update(self.__dict__, **changes)
        return made


def raised(frame: Frame | None, plan: Applicators, before: Verdicts | None, total: Verdicts) -> Frame | None:
    """Tell the frame around a value what is newly violated of it.

    Parameters
    ----------
    frame
        The frame; None around the whole.
    plan
        That of the value.
    before, total
        Its total verdicts; None for none before.

    Raises
    ------
    Dead
        If the whole is violated.
    """
    failed = [
        root
        for root, place in enumerate(plan.roots)
        if total[place] == VIOLATED and (before is None or before[place] != VIOLATED)
    ]
    if not failed:
        return frame
    if frame is None:
        raise Dead
    return decided(frame, {i: VIOLATED for root in failed for i in frame.child.asked[root]})


def decided(frame: Frame, changes: dict[int, int], *, again: bool = False) -> Frame:
    """Return a frame some of whose subschemas have a local verdict now; what follows of it rises as far as it goes.

    Parameters
    ----------
    frame
        The frame so far.
    changes
        The verdicts, by place.
    again
        Whether something else may follow even where there are no changes.
    """
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
        failed = [
            root for root, place in enumerate(plan.roots) if total[place] == VIOLATED and frame.total[place] != VIOLATED
        ]
        if not failed:
            frame = frame.above  # type: ignore[assignment]  # as it was
            break
        if frame.above is None:
            raise Dead
        frame = frame.above
        changes = {i: VIOLATED for root in failed for i in frame.child.asked[root]}
    for inner, local, total in reversed(path):
        frame = inner.but(above=frame, local=local, total=total)
    return frame


def _never(frame: Frame, places: Iterable[int]) -> Frame:
    """Return a frame of which these subschemas are violated."""
    changes = dict.fromkeys(places, VIOLATED)
    return decided(frame, changes) if changes else frame


def promised(frame: Frame) -> Frame:
    """Return a frame in which one more property or item must follow."""
    count = frame.count + 1
    plan = frame.plan
    places = [i for i, most in plan.most if count > most]
    child = plan.names if frame.is_object else plan.of_item(frame.count)
    places += child.never
    places += [i for i, keys in plan.closed if not keys.may_become("", frame.seen)]
    return _never(frame.but(count=count, child=child), places)


def naming(frame: Frame, prefix: str) -> Frame:
    """Return a frame in which a key begins like this."""
    return _never(frame, [i for i, keys in frame.plan.closed if not keys.may_become(prefix, frame.seen)])


def named(frame: Frame, plan: Applicators, before: Verdicts, total: Verdicts, key: str) -> Frame:
    """Return a frame that has read a key.

    Parameters
    ----------
    frame
        The frame so far.
    plan
        Of the key, as a string.
    before, total
        Its total verdicts before it was finished, and now.
    key
        The key.

    Raises
    ------
    Dead
        If it was there before.
    """
    if key in frame.seen:
        raise Dead
    frame = _told(frame, plan, before, total)
    child = frame.plan.of_key(key)
    seen = frame.seen.insert(key)
    # So many are there, and so many must come.
    places = [
        i
        for i, rules in frame.plan.objects
        if rules.most < float("inf") and frame.count + sum(needed not in seen for needed in rules.required) > rules.most
    ]
    changes = dict.fromkeys((*child.never, *places), VIOLATED)
    again = key in frame.plan.dependent
    frame = frame.but(seen=seen, key=key, child=child)
    return decided(frame, changes, again=again) if changes or again else frame


def ended(frame: Frame | None, plan: Applicators, before: Verdicts | None, total: Verdicts, value: Any) -> Frame | None:
    """Return the frame around a value that is finished.

    Parameters
    ----------
    frame
        The frame so far; None around the whole.
    plan
        That of the value.
    before, total
        Its total verdicts before it was finished, and now.
    value
        The value, where the frame needs it.
    """
    if frame is None:
        return raised(frame, plan, before, total)
    frame = _kept(_told(frame, plan, before, total), value)
    hits, changes = list(frame.hits), {}
    for root, place in enumerate(plan.roots):
        for i in frame.child.counted[root]:
            n = next(n for n, (counting, _) in enumerate(frame.plan.counting) if counting == i)
            surely, perhaps = hits[n]
            hits[n] = (surely + (total[place] == SATISFIED), perhaps + (total[place] != VIOLATED))
            if hits[n][0] > frame.plan.counting[n][1].most_contained:
                changes[i] = VIOLATED
    for i, keys in frame.plan.settled_by:
        if frame.local[i] == UNDECIDED and not frame.unsure >> i & 1 and all(key in frame.seen for key in keys):
            changes[i] = SATISFIED
    if hits:
        frame = frame.but(hits=tuple(hits))
    return decided(frame, changes) if changes else frame


def _told(frame: Frame, plan: Applicators, before: Verdicts | None, total: Verdicts) -> Frame:
    """Return a frame that knows what became of a value or key that is finished."""
    unsure = frame.unsure
    for root, place in enumerate(plan.roots):
        if total[place] == UNDECIDED:
            for i in frame.child.asked[root]:
                unsure |= 1 << i
    if unsure != frame.unsure:
        frame = frame.but(unsure=unsure)
    told = raised(frame, plan, before, total)
    assert told is not None
    return told


def _kept(frame: Frame, value: Any) -> Frame:
    if frame.keeps:
        frame = frame.but(items=(frame.items, (frame.key, value) if frame.is_object else value))
    if not frame.plan.wants_items:
        return frame
    own = _Own(canonical(value))
    if own in frame.unique:
        return _never(frame, [i for i, rules in frame.plan.arrays if rules.unique])
    return frame.but(unique=frame.unique.insert(own))


def closed(frame: Frame) -> Frame | None:
    """Return the frame around one whose bracket is closed."""
    value = _value(frame) if frame.keeps else None
    plan, local = frame.plan, list(frame.local)
    for i, node in plan.pending:
        if local[i] == UNDECIDED:
            local[i] = _at_end(frame, i, node, value)
    total = plan.totals(tuple(local), frame.seen, finished=True)
    return ended(frame.above, plan, frame.total, total, value)


def _value(frame: Frame) -> Any:
    items, found = frame.items, []
    while items is not None:
        check_deadline()
        items, last = items
        found.append(last)
    found.reverse()
    return dict(found) if frame.is_object else found


def _at_end(frame: Frame, i: int, node: Subschema, value: Any) -> int:
    """Return the local verdict on an object or array that is finished."""
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
    return UNDECIDED if None in answers or node.opaque or frame.unsure >> i & 1 else SATISFIED


def _complete(frame: Frame, rules: Objects) -> bool:
    """Whether an object has the properties that it must have."""
    return (
        rules.least <= frame.count
        and all(key in frame.seen for key in rules.required)
        and all(key in frame.seen for has, keys in rules.dependent.items() if has in frame.seen for key in keys)
    )
