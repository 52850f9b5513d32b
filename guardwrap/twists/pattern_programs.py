"""Regular expressions as programs whose steps read one character each (Pike's virtual machine; Thompson 1968)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from re import _constants as op  # type: ignore[attr-defined, unused-ignore]  # as in regex_analysis
from typing import Any, NamedTuple

import regex

from guardwrap.constraints.regex_analysis import parse_pattern, set_source
from guardwrap.documents.time_limits import check_deadline
from guardwrap.twists.automata import TooManyStates
from guardwrap.twists.character_classes import CharacterClasses, Kind

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
                stack += [thread._replace(step=after) for after in reversed(step.after)]
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
