"""Regular expressions as programs whose steps read one character each (Pike's virtual machine; Thompson 1968).

Their automata say whether an expression matches, and how often something occurs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from re import _constants as op  # type: ignore[attr-defined, unused-ignore]  # as in regex_analysis
from typing import Any, NamedTuple

import numpy as np
import regex

from guardwrap.constraints.regex_analysis import parse_pattern, set_source
from guardwrap.constraints.verdicts import Progress
from guardwrap.support.time_limits import check_deadline
from guardwrap.twists.automata import TooManyStates

Kind = tuple[bool, ...]
"""Whether a character belongs to each class."""


@cache
def _characters() -> str:
    """Return those that kinds are looked for in. The kinds of those beyond them, rare Han characters, occur in them."""
    return "".join(chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000)


@dataclass(frozen=True)
class CharacterClasses:
    """Classes of characters, and the kinds that they divide characters into."""

    sources: Sequence[tuple[str, int]]  # an expression of one character, and its flags, for each class

    @cached_property
    def kinds(self) -> dict[Kind, str]:
        """The kinds, each with its first character."""
        characters = _characters()
        codes = np.zeros(len(characters), dtype=np.int64)
        for number, (source, flags) in enumerate(self.sources):
            check_deadline()
            runs = regex.compile(f"(?:{source})+", flags, cache_pattern=False)
            codes *= 2
            for run in runs.finditer(characters):
                codes[run.start() : run.end()] += 1
            if number % 40 == 39:  # before they exceed 64 bits; kinds are a few hundred at most
                codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        firsts = [characters[place] for place in np.unique(codes, return_index=True)[1].tolist()]
        return {self._kind(char): char for char in firsts}

    def kind_of(self, char: str) -> Kind:
        """Return the kind of a character; that of an unassigned one if it has a kind of its own."""
        kind = self._kind(char)
        return kind if kind in self.kinds else self._kind("\u0378")

    def _kind(self, char: str) -> Kind:
        return tuple(each.match(char) is not None for each in self._compiled)

    @cached_property
    def _compiled(self) -> list[Any]:
        return [regex.compile(source, flags, cache_pattern=False) for source, flags in self.sources]


# ------------------------------------------------------------------------------------------------------------- programs


MOST_STEPS, MOST_CLASSES = 5_000, 200
"""The most steps of a program, after repeats are expanded, and the most classes of characters."""


class Unsupported(Exception):
    """The expression has no program: it refers to groups, looks around by more than a character, or is atomic."""


class Consume(NamedTuple):
    """Reads a character of a class; any character if that is None, which is not part of a match."""

    char_class: int | None
    after: int


class Fork(NamedTuple):
    """Continues at several places, the preferred one first."""

    after: tuple[int, ...]


class Assertion(NamedTuple):
    """Continues if the characters before and behind the place are right."""

    # Whether they are, from their ``Program.context``; None for no character. None for a ``$`` outside of lines: the
    # end of the text may come next, or a line break and then the end.
    holds: Callable[[Kind | None, Kind | None], bool] | None
    after: int  # the next step


class Match(NamedTuple):
    """A match ends here. ``after``: the step that looks for the next one; None if one is enough."""

    after: int | None = None


class End(NamedTuple):
    """The text may end here."""


Step = Consume | Fork | Assertion | Match | End


class Thread(NamedTuple):
    """One way to have read the text so far."""

    step: int  # the number of the next step
    last: bool = False  # whether the text must end here, as a ``$`` was passed before the last character
    matches: int = 0  # how many matches it has had
    item: Any = None  # what is known of the match that it is in


@dataclass
class Program:
    """The steps of an expression."""

    steps: list[Step] = field(default_factory=list)
    start: int = 0  # the number of the first step
    context: list[int] = field(default_factory=list)  # the classes that assertions ask about
    _sources: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, step: Step) -> int:
        """Add a step and return its number."""
        check_deadline()
        if len(self.steps) == MOST_STEPS:
            raise TooManyStates
        self.steps.append(step)
        return len(self.steps) - 1

    def class_of(self, source: str, flags: int = 0) -> int:
        """Return the number of a class of characters, an expression with flags of ``regex``."""
        if len(self._sources) == MOST_CLASSES:
            raise TooManyStates
        return self._sources.setdefault((source, flags), len(self._sources))

    def asked(self, source: str, flags: int = 0) -> int:
        """Return the place in the context of a class that assertions ask about."""
        number = self.class_of(source, flags)
        if number not in self.context:
            self.context.append(number)
        return self.context.index(number)

    def classes(self) -> CharacterClasses:
        """Return the classes of characters."""
        return CharacterClasses(tuple(self._sources))

    def around(self, kind: Kind) -> Kind:
        """Return what assertions ask of a character."""
        return tuple(kind[number] for number in self.context)

    def reached(
        self,
        threads: Iterable[Thread],
        before: Kind | None,
        behind: Kind | None,
        *,
        breaks: bool = False,
        matched: Callable[[Thread], Thread] | None = None,
    ) -> Iterator[Thread]:
        """Yield where threads stand that read a character, match or end next, the preferred ones first.

        ``threads``: the threads, the preferred ones first. Of several at one step only the first continues. Those
        after which the text must end do so only there.
        """
        check_deadline()
        seen = set()
        stack = [thread for thread in threads if behind is None or not thread.last][::-1]
        while stack:
            thread = stack.pop()
            if thread[:2] in seen:
                continue
            seen.add(thread[:2])
            step = self.steps[thread.step]
            if isinstance(step, Fork):
                stack += [Thread(after, *thread[1:]) for after in reversed(step.after)]  # sooner than by _replace
            elif isinstance(step, Assertion):
                if step.holds is not None:
                    if step.holds(before, behind):
                        stack.append(thread._replace(step=step.after))
                elif behind is None or breaks:
                    stack.append(thread._replace(step=step.after, last=behind is not None))
            elif isinstance(step, Match) and step.after is not None and matched is not None:
                stack.append(matched(thread)._replace(step=step.after))
            else:
                yield thread


def program_of(pattern: str, flags: Sequence[str] = (), *, version1: bool = False, repeated: bool = False) -> Program:
    """Return the program of an expression of ``regex``.

    ``repeated``: whether to look for all matches, one after the other, and not for one. None of them may be empty.
    """
    plain, named = _named_classes(pattern)
    parsed = parse_pattern(plain, flags, as_re=version1)
    if parsed is None or (repeated and not version1 and parsed.getwidth()[0] == 0):
        raise Unsupported
    program = Program()
    version = regex.VERSION1 if version1 else regex.VERSION0
    writer = _Writer(program, named, version)
    head = program.add(End())
    start = writer.sequence(parsed, parsed.state.flags, program.add(Match(head if repeated else None)))
    if repeated:
        program.steps[head] = Fork((start, program.add(Consume(None, head)), program.add(End())))
    program.start = head if repeated else start
    return program


_CLASSES = regex.compile(r"\\[^pP]|\\[pP]\{[^{}]*\}|\[\^?\]?(?:\\.|[^\[\]\\]|\[(?:\\.|[^\[\]\\])*\])*\]", regex.DOTALL)
_FIRST = 0xE000


def _named_classes(pattern: str) -> tuple[str, dict[int, str]]:
    """Replace classes that ``re`` cannot parse by characters for private use, and return the classes of these."""
    if not re.search(r"\\[pP]\{", pattern):
        return pattern, {}
    if any(_FIRST <= ord(char) < 0xF900 for char in pattern):
        raise Unsupported
    named: dict[int, str] = {}

    def name(match: regex.Match[str]) -> str:
        if not re.search(r"\\[pP]\{", match[0]):
            return str(match[0])
        named[_FIRST + len(named)] = match[0]
        return chr(_FIRST + len(named) - 1)

    return _CLASSES.sub(name, pattern), named


class _Writer(NamedTuple):
    """Writes the steps of parsed operations, from the last one to the first."""

    program: Program
    named: dict[int, str]
    version: int

    def sequence(self, parsed: Iterable[Any], flags: int, after: int) -> int:
        """Write operations that are followed by the step ``after``, and return the number of the first step."""
        for code, argument in reversed([*parsed]):
            after = self._operation(code, argument, flags, after)
        return after

    def _operation(self, code: Any, argument: Any, flags: int, after: int) -> int:
        program = self.program
        if code in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
            return program.add(Consume(program.class_of(*self._class_of(code, argument, flags)), after))
        if code is op.BRANCH:
            return program.add(Fork(tuple(self.sequence(branch, flags, after) for branch in argument[1])))
        if code is op.SUBPATTERN:
            _, added, dropped, body = argument
            return self.sequence(body, (flags | added) & ~dropped, after)
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(code, argument, flags, after)
        if code is op.AT:
            return program.add(Assertion(self._place(argument, flags), after))
        if code in (op.ASSERT, op.ASSERT_NOT):
            return self._look(code, argument, flags, after)
        raise Unsupported

    def _repeat(self, code: Any, argument: Any, flags: int, after: int) -> int:
        least, most, body = argument

        def optional(inside: int, outside: int) -> Fork:
            return Fork((inside, outside) if code is op.MAX_REPEAT else (outside, inside))

        if most is op.MAXREPEAT:
            loop = self.program.add(End())
            self.program.steps[loop] = optional(self.sequence(body, flags, loop), after)
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self.program.add(optional(self.sequence(body, flags, after), end))
        for _ in range(least):
            before, after = after, self.sequence(body, flags, after)
            if before == after:  # the body is empty, and may be repeated without end
                break
        return after

    def _place(self, place: Any, flags: int) -> Callable[[Kind | None, Kind | None], bool] | None:
        """Return the assertion of a place in the text; None for a ``$`` outside of lines."""
        lines = flags & re.MULTILINE
        if place is op.AT_BEGINNING_STRING or (place is op.AT_BEGINNING and not lines):
            return lambda before, behind: before is None
        if place is op.AT_END_STRING:
            return lambda before, behind: behind is None
        if place is op.AT_END and not lines:
            self.program.class_of("\n")  # line breaks are of a kind of their own
            return None
        if place in (op.AT_BEGINNING, op.AT_END):
            number, begins = self.program.asked("\n"), place is op.AT_BEGINNING
            return lambda before, behind: (char := before if begins else behind) is None or char[number]
        if place in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
            number = self.program.asked(r"\w", regex.ASCII if flags & re.ASCII else 0)
            inside = place is op.AT_NON_BOUNDARY

            def holds(before: Kind | None, behind: Kind | None) -> bool:
                one, other = (char is not None and char[number] for char in (before, behind))
                return (one == other) is inside

            return holds
        raise Unsupported

    def _look(self, code: Any, argument: Any, flags: int, after: int) -> int:
        """Write a look around by one character."""
        direction, body = argument
        operations = [*body]
        if len(operations) != 1 or operations[0][0] not in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY):
            raise Unsupported
        source, bits = self._class_of(operations[0][0], operations[0][1], flags)
        number = self.program.asked(source, bits)
        wanted = code is op.ASSERT

        def holds(before: Kind | None, behind: Kind | None) -> bool:
            char = before if direction < 0 else behind
            return (char is not None and char[number]) is wanted

        return self.program.add(Assertion(holds, after))

    def _class_of(self, code: Any, argument: Any, flags: int) -> tuple[str, int]:
        names = ("IGNORECASE", "ASCII", "DOTALL")
        bits = sum((getattr(regex, name) for name in names if flags & getattr(re, name)), self.version)
        if self.named and code is op.LITERAL and argument in self.named:
            return self.named[argument], bits
        return str(set_source(code, argument)), bits & ~regex.VERSION1


# ------------------------------------------------------------------------------------------------- automata of programs


_KEPT = 1000
"""How many results are remembered: those of the few kinds of neighbors that one state has."""


def match_progress(program: Program, *, whole: bool) -> Progress:
    """Return the automaton of texts in which an expression matches; ``whole``: it must match the whole text.

    A state is the set of steps that the program's threads have reached (Thompson 1968), and what assertions have to
    know of the last character. It is True once there is a match that nothing undoes.
    """
    classes, start = program.classes(), Thread(program.start)
    line_break = classes.kind_of("\n")

    @lru_cache(_KEPT)
    def reached(state: Any, behind: Kind | None, breaks: bool) -> list[Thread]:
        threads, before = state
        begun = threads if whole else threads | {start}  # a match may begin anywhere
        return [*program.reached(begun, before, behind, breaks=breaks)]

    def step(state: Any, kind: Kind) -> Any:
        if state is True:
            return True
        after = set()
        for thread in reached(state, program.around(kind), kind == line_break):
            read = program.steps[thread.step]
            if isinstance(read, Consume) and read.char_class is not None and kind[read.char_class]:
                after.add(thread._replace(step=read.after))
            elif isinstance(read, Match) and not whole:
                if not thread.last:
                    return True
                after.add(thread)  # it counts if the text ends after this line break
        return frozenset(after), None if whole and not after else program.around(kind)

    def satisfied(state: Any, ended: bool) -> bool:
        if state is True:
            return True
        return any(isinstance(program.steps[thread.step], Match) for thread in reached(state, None, False))

    return Progress((frozenset({start}), None), tuple(classes.kinds), classes.kind_of, step, satisfied)


class CountedMatch(NamedTuple):
    """What is known of an occurrence from its characters, if not every match counts."""

    begun: Any = None  # what is known before its first character
    # returns what is known after another character, one of its kind
    read: Callable[[Any, str], Any] = lambda item, char: item
    counts: Callable[[Any], bool] = lambda item: True  # whether an occurrence counts


def count_progress(program: Program, enough: int, within: Callable[[int], bool], item: CountedMatch) -> Progress:
    """Return the automaton that counts the matches of an expression that do not overlap, as ``finditer`` yields them.

    A state has the program's threads in the order in which backtracking would try them, each with its count (Pike's
    virtual machine). The first one that can end says how many matches there are. What all of them have counted stands
    beside them, so that their steps are the same for every count, and looked up.
    """
    classes = program.classes()
    line_break = classes.kind_of("\n")

    def matched(thread: Thread) -> Thread:
        return thread._replace(matches=min(enough, thread.matches + item.counts(thread.item)), item=item.begun)

    @lru_cache(_KEPT)
    def reached(state: Any, behind: Kind | None, breaks: bool) -> list[Thread]:
        threads, before = state
        return [*program.reached(threads, before, behind, breaks=breaks, matched=matched)]

    @cache
    def moved(relative: Any, kind: Kind) -> tuple[Any, int]:
        after: dict[tuple[int, bool], Thread] = {}
        around = program.around(kind)
        for thread in reached(relative, around, kind == line_break):
            read = program.steps[thread.step]
            if not isinstance(read, Consume):
                continue
            if read.char_class is None:
                onward = thread._replace(step=read.after)
            elif kind[read.char_class]:
                onward = thread._replace(step=read.after, item=item.read(thread.item, classes.kinds[kind]))
            else:
                continue
            after.setdefault(onward[:2], onward)
        threads = tuple(after.values())
        if more := min(thread.matches for thread in threads):
            threads = tuple(thread._replace(matches=thread.matches - more) for thread in threads)
        return (threads, around), more

    def step(state: Any, kind: Kind) -> Any:
        count, relative = state
        after, more = moved(relative, kind)
        return (enough, start) if count + more >= enough else (count + more, after)

    def satisfied(state: Any, ended: bool) -> bool:
        count, relative = state
        ends = (thread for thread in reached(relative, None, False) if isinstance(program.steps[thread.step], End))
        return within(min(enough, count + next(ends).matches))

    start = ((Thread(program.start, item=item.begun),), None)
    return Progress((0, start), tuple(classes.kinds), classes.kind_of, step, satisfied)
