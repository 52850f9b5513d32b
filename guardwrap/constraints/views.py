"""Views: the part of a text that a constraint judges, such as its sentences, or what follows a marker."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

import regex
from pydantic import Discriminator, Tag

from guardwrap.constraints.escapes import json_strings
from guardwrap.constraints.field_checks import about, require
from guardwrap.constraints.json_paths import Step, read_path, settled_values, values_at
from guardwrap.constraints.regex_analysis import compile_pattern
from guardwrap.constraints.sentences import sentences, settled_words, words_of
from guardwrap.constraints.verdicts import Monitor, Verdict, holds_or_raises_later
from guardwrap.errors import ConstraintError, UsageError, nearest
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import check_deadline, within

MESSAGE = ("answer", "reasoning", "tool_calls")
"""Parts of messages."""

_UNITS = ("line", "sentence", "paragraph")
"""Parts that have a number, and words of their own."""

Split = Callable[[str], list[str]]


@dataclass(frozen=True, kw_only=True)
class Part:
    r"""A part of the new text, without the white space around it.

    Give exactly one of the parameters but ``missing``. Two go with others: ``word`` with ``line``, ``sentence``,
    ``paragraph`` or ``each``, and ``json`` with any.

    Parameters
    ----------
    after
        Marker: the part is the text after its first occurrence.
    between
        Two markers: each text from the first to the next second one is a part. The last one may lack its end.
    match
        Regular expression: the part is the first group of its first match, or the whole match if it has no group.
    message
        Part of a message that the pipeline parses from the answer to a chat: ``"answer"``, ``"reasoning"``, or each of
        its ``"tool_calls"``, as JSON. Needs a tokenizer with a ``response_template``.
    line, sentence, paragraph
        Number of a line, sentence or paragraph that is not empty: 1 is the first one, -1 the last. A paragraph ends at
        an empty line.
    word
        Number of a word: letters, digits and ``_``, with apostrophes and hyphens between them; in Chinese and Japanese,
        a Han character, a Hiragana or a run of Katakana. With one of the above, a word of that part.
    each
        ``"line"``, ``"sentence"`` or ``"paragraph"``, with ``word``: that word of each one which has so many.
    json
        Path of values in a JSON text, as in RFC 9535 without filters: ``$.name``, ``$.items[0]``, ``$.items[*].price``,
        ``$["a key"]``. Each is a part: a string as it is, another value as JSON. With one of the above, a path in it.
        A text that is not JSON lacks the part.
    missing
        Decision about texts without the part: ``"fail"`` rejects them, ``"pass"`` accepts them.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or not exactly one selects the part.

    Examples
    --------
    ::

        JSONSchema(schema, on=Part(after="</think>"))
        Regex("^[A-D]$", on={"match": "(?s)Answer: (.*)"})
        Length(max=20, unit="words", on=Part(message="answer", json="$.summary"))
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    after: str | None = None
    between: tuple[str, str] | None = None
    match: str | None = None
    message: Literal["answer", "reasoning", "tool_calls"] | None = None
    line: int | None = None
    sentence: int | None = None
    paragraph: int | None = None
    word: int | None = None
    each: Literal["line", "sentence", "paragraph"] | None = None
    json: str | None = None
    missing: Literal["fail", "pass"] = "fail"

    def __post_init__(self) -> None:
        chosen = [
            field.name for field in fields(self) if field.name not in ("json", "missing") and self._has(field.name)
        ]
        outer = [name for name in chosen if name in (*_UNITS, "each")] if "word" in chosen else []
        one = len(set(chosen) - {*outer[:1]}) == 1 and chosen != ["each"]
        if not one and (chosen or self.json is None):
            names = "after, between, match, message, line, sentence, paragraph, word or json"
            raise ConstraintError(f"select a part by exactly one of {names}, not {' and '.join(chosen) or 'none'}")
        if self.message not in (None, *MESSAGE):
            raise ConstraintError(f"message={self.message!r} is not one of {', '.join(MESSAGE)}")
        if self.missing not in ("fail", "pass"):
            raise ConstraintError(f"missing={self.missing!r} is neither 'fail' nor 'pass'")
        if self.between is not None:
            object.__setattr__(self, "between", tuple(self.between))
            if len(self.between) != 2:
                raise ConstraintError("between needs two markers")
        for marker in (self.after, *(self.between or ())):
            if marker is not None and not (isinstance(marker, str) and marker.strip()):
                raise ConstraintError(f"a marker must be a string that is not blank, not {marker!r}")
        if self.each not in (None, *_UNITS):
            raise ConstraintError(f"each={self.each!r} is not one of {', '.join(_UNITS)}")
        for name in (*_UNITS, "word"):
            number = getattr(self, name)
            least = "give a whole number of at least 1, or of at most -1"
            require(number is None or (type(number) is int and number != 0), f"{name}={number!r}: {least}")
        if self.json is not None:
            self.json_steps  # noqa: B018  # so that an invalid path is noticed now
        if self.match is not None:
            if not isinstance(self.match, str):
                raise ConstraintError(f"match is not a regular expression: {self.match!r}")
            with about("match"):
                self.compiled  # noqa: B018  # so that an invalid expression is noticed now

    @cached_property
    def compiled(self) -> Any:
        """The compiled expression of ``match``."""
        return compile_pattern(str(self.match))

    @cached_property
    def json_steps(self) -> tuple[Step, ...]:
        """The steps of ``json``."""
        return read_path(str(self.json))

    @property
    def has_markers(self) -> bool:
        """Whether markers select the part, so that a monitor can read it alone."""
        return self.json is None and (self.after is not None or self.between is not None)

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None

    def __repr__(self) -> str:
        return repr(self.spec())

    def spec(self) -> dict[str, Any]:
        """Return the mapping of a constraint file, without default values."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if self._has(field.name)}
        named = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
        return {name: value for name, value in named.items() if (name, value) != ("missing", "fail")}


def in_json(on: object) -> bool:
    """Whether a view selects values in a JSON text."""
    return isinstance(on, Part) and on.json is not None


def selected(text: str, part: Part) -> list[str] | None:
    """Return the parts of a whole text; None if it lacks one and so must be rejected."""
    return values_within([piece.strip() for piece in _pieces(text, part)] or None, part)


def values_within(pieces: list[str] | None, part: Part) -> list[str] | None:
    """Return the parts within pieces of a text, which are None if the text lacks them, after the path in JSON."""
    if pieces is not None and part.json is not None:
        pieces = [value.strip() for piece in pieces for value in values_at(piece, part.json_steps)] or None
    return pieces if pieces is not None or part.missing == "fail" else []


def _pieces(text: str, part: Part) -> list[str]:
    if part.after is not None:
        rest = _behind(text, part.after)
        return [] if rest is None else [rest]
    if part.between is not None:
        return _spans(text, *part.between)
    if part.match is not None:
        match = within(part.compiled.search, text)
        return [] if match is None else [(match[1] if match.re.groups else match[0]) or ""]
    pieces = _outer(_SPLIT, text, part)
    return pieces if part.word is None else _words(words_of, pieces, part.word)


def settled(prefix: str, part: Part) -> list[str]:
    """Return the numbered parts of a prefix that no continuation can change."""
    names = [name for name in (*_UNITS, "word", "each") if getattr(part, name) is not None]
    if part.json is not None:
        # A text that will not be JSON lacks the part, and passes with missing="pass".
        alone = part.spec().keys() == {"json"}
        return [value.strip() for value in settled_values(prefix, part.json_steps)] if alone else []
    if not names:  # the others have no piece that is settled early
        return []
    if any(getattr(part, name) < 0 for name in names if name not in ("each", "word")):
        return []
    if part.word is None:
        return [piece.strip() for piece in _outer(_SETTLED, prefix, part)]
    if names == ["word"]:
        return _nth(settled_words(prefix), part.word) if part.word > 0 else []
    done = _outer(_SETTLED, prefix, part)
    settled = _words(words_of, done, part.word)
    # The part that still grows has settled words, too, and stays where it is in the order of parts. Splitting may have
    # removed the white space behind it, which settles its last word.
    behind = " " if prefix[-1:].isspace() else ""
    growing = [piece + behind for piece in _outer(_SPLIT, prefix, part)[len(done) :][-1:]] if part.word > 0 else []
    return settled + _words(settled_words, growing, part.word)


def _outer(split: Mapping[str, Split], text: str, part: Part) -> list[str]:
    """Return the lines, sentences or paragraphs that a part selects, or whose words it selects; or the whole text."""
    if part.each is not None:
        return split[part.each](text)
    for name in _UNITS:
        if (number := getattr(part, name)) is not None:
            return _nth(split[name](text), number)
    return [text]


def _words(split: Split, pieces: Sequence[str], number: int) -> list[str]:
    return [word for piece in pieces for word in _nth(split(piece), number)]


def _nth(pieces: list[str], number: int) -> list[str]:
    place = number - 1 if number > 0 else number
    return [pieces[place]] if -len(pieces) <= place < len(pieces) else []


def _spans(text: str, opening: str, closing: str) -> list[str]:
    spans = []
    _, begun, rest = text.partition(opening)
    while begun:
        check_deadline()
        span, _, rest = rest.partition(closing)
        spans.append(span)
        _, begun, rest = rest.partition(opening)
    return spans


@dataclass(frozen=True)
class PartMonitor(Monitor):
    """Monitor of a constraint on the text after a marker, or on each text between two markers.

    Outside of parts it only looks for the marker. Characters that may belong to the closing marker, and white space,
    are held back until later text shows that they belong to the part.
    """

    part: Part  # the selection, by ``after`` or ``between``
    start: Monitor  # the constraint's monitor before it has read anything
    holds: Callable[[str], bool]  # judges a whole part
    inner: Monitor | None = None  # the monitor of the part that is being read; None outside
    held: str = ""  # text that has not been read yet
    span: str = ""  # what the part has read so far, without the white space before it
    dead: bool = False  # whether a whole part has failed

    @property
    def verdict(self) -> Verdict:
        """VIOLATED as soon as one part is; after a marker without an end, what the part's monitor says."""
        if self.dead:
            return Verdict.VIOLATED
        if self.inner is None:
            return Verdict.UNDECIDED
        verdict = self.inner.verdict
        final = self.part.after is not None or verdict is Verdict.VIOLATED
        return verdict if final else Verdict.UNDECIDED

    @property
    def violated_at(self) -> str | None:
        """The place in the part that is being read; None if a whole part has failed."""
        return None if self.inner is None else self.inner.violated_at

    @property
    def rereads(self) -> bool:
        return self.inner is not None and self.inner.rereads

    def read(self, text: str, /) -> Monitor:
        opening, closing = (str(self.part.after), "") if self.part.between is None else self.part.between
        text, inner, span, dead = self.held + text, self.inner, self.span, self.dead
        while not dead:
            check_deadline()
            if inner is None:
                rest = _behind(text, opening)
                if rest is None:
                    return self._after(None, text[len(text) - begun_length(text, [opening]) :])
                inner, span, text = self.start, "", rest
            whole, marker, rest = text.partition(closing) if closing else (text, "", "")
            if not marker:
                return self._within_part(inner, span, text, closing)
            dead = not holds_or_raises_later(self.holds, (span + whole).strip())
            inner, text = None, rest
        return self._after(None, "", dead=True)

    def _within_part(self, inner: Monitor, span: str, text: str, closing: str) -> PartMonitor:
        """Read what is certain to belong to a part that has not ended."""
        kept = begun_length(text, [closing]) if closing else 0
        ready = text[: len(text) - kept].rstrip()
        new = ready if span else ready.lstrip()
        # Only a part that ends is judged whole; of another it matters only that it has begun.
        span = span + new if closing else span or new
        return self._after(inner.read(new) if new else inner, text[len(ready) :], span)

    def _after(self, inner: Monitor | None, held: str, span: str = "", *, dead: bool = False) -> PartMonitor:
        return PartMonitor(self.part, self.start, self.holds, inner, held, span, dead)

    @property
    def key(self) -> Hashable | None:
        """Outside of parts the text that is held back; after a marker also the part's key; None in between."""
        if self.inner is None:
            return ("outside", self.dead, self.held)
        key = self.inner.key if self.part.after is not None else None
        return None if key is None else ("inside", bool(self.span), self.held, key)

    def may_begin(self, partial: bytes, /) -> bool:
        """Ask the part's monitor, except where a marker may come."""
        if self.inner is None or self.held:
            return not self.dead
        closing = self.part.between[1].encode() if self.part.between else b""
        return self.inner.may_begin(partial) or closing.startswith(partial)


def _behind(text: str, marker: str) -> str | None:
    """Return the text behind the first occurrence of a marker, or None without one."""
    _, found, rest = text.partition(marker)
    return rest if found else None


def begun_length(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest end of a text that is the beginning of a marker, and not a whole one."""
    longest = min(len(text), max(map(len, markers)) - 1)
    sizes = range(longest, 0, -1)
    return next((size for size in sizes if any(marker.startswith(text[-size:]) for marker in markers)), 0)


def read_part(value: Mapping[str, Any], names: Sequence[str]) -> Part:
    """Make a part of a mapping."""
    known = {field.name for field in fields(Part)}
    if unknown := [name for name in value if name not in known]:
        raise ConstraintError(
            f"unknown field {unknown[0]!r} of a part; give one of {', '.join(sorted(known))}, or a name: "
            f"{', '.join(names)}"
        )
    return Part(**value)


Name = Literal[
    "completion",
    "full",
    "first_sentence",
    "last_sentence",
    "sentences",
    "first_line",
    "last_line",
    "lines",
    "paragraphs",
    "first_word",
    "last_word",
    "words",
    "json_strings",
    "message",
    "answer",
    "reasoning",
    "tool_calls",
]
"""``completion`` (the new text), ``full`` (prompt and new text), ``message`` (the new text after the assistant message
that it continues), one sentence, line or word, every sentence, line, paragraph or word, the decoded strings of JSON in
the text, one below the other, or a part of a message."""

NO_MESSAGE = (
    "on={!r} judges the messages that are parsed from answers to chats; {}. "
    "To select a part of plain text, write on=Part(after='</think>')"
)

PLAIN_TEXT = "here the answer is plain text, so pass a chat: a list of messages, or --chat on the command line"
"""Why a rule on a part of a message cannot judge an answer."""

VIEWS: tuple[str, ...] = get_args(Name)
TEXT_VIEWS = tuple(name for name in VIEWS if name not in MESSAGE)

View = Annotated[
    Annotated[Name, Tag("name")] | Annotated[Part, Tag("part")],
    Discriminator(lambda value: "part" if isinstance(value, dict | Part) else "name"),
]
"""What a constraint judges: a view by its name, or a ``Part``."""

_EMPTY_LINES = regex.compile(r"(?<!\s)\s*\n\s*\n\s*")


def paragraphs(text: str) -> list[str]:
    """Split a text into paragraphs, at empty lines. Text that is added at the end never moves a boundary."""
    return [paragraph for paragraph in within(_EMPTY_LINES.split, text) if paragraph.strip()]


def filled_lines(text: str) -> list[str]:
    """Split a text into its lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def read_view(on: Any) -> Any:
    """Return a constraint's view as it is kept: a mapping becomes a ``Part``."""
    if isinstance(on, dict):
        return read_part(on, VIEWS)
    if isinstance(on, Part) or on in VIEWS:
        return on
    raise ConstraintError(f"on={on!r} is not one of {', '.join(VIEWS)}{nearest(on, VIEWS)}")


def view(draw: Draw, on: View) -> list[str] | None:
    """Return the strings of a draw that a constraint with this view judges, each of which must hold.

    None if the draw lacks the part and so is rejected; an empty list if it lacks the part and is accepted.
    """
    text = draw.text
    if on == "completion":
        return [text]
    if on == "full":
        return [draw.prompt + text if draw.full is None else draw.full]
    if on == "message":
        return [draw.begun + text]
    if on == "json_strings":  # as one text, so that a ban holds if no string has what is banned
        return ["\n".join(json_strings(text))]
    part = message_part(on)
    if part is not None:
        strings = _of_message(draw, part)
        return values_within(strings, on) if isinstance(on, Part) else strings
    if isinstance(on, Part):
        return selected(text, on)
    end, _, unit = on.rpartition("_")
    pieces = _SPLIT[unit.removesuffix("s")](text) or [""]
    return pieces[:1] if end == "first" else pieces[-1:] if end == "last" else pieces


def message_part(on: View) -> str | None:
    """Return the part of a message that a view selects, or None if it selects something else."""
    name = on.message if isinstance(on, Part) else on
    return name if name in MESSAGE else None


def judged_part(rule: Any) -> str | None:
    """Return the part of a message that a constraint itself, apart from its parts, judges; None for texts."""
    part: str | None = message_part(rule.on) if hasattr(rule, "on") else getattr(rule, "reads_message", None)
    return part


def _of_message(draw: Draw, part: str) -> list[str] | None:
    if draw.parts is None:
        raise UsageError(NO_MESSAGE.format(part, PLAIN_TEXT))
    strings = dict(draw.parts).get(part)
    return None if strings is None else [*strings]


def settled_parts(prefix: str, on: View) -> list[str]:
    """Return the parts of a view that no continuation of the prefix can change."""
    if isinstance(on, Part):
        return settled(prefix, on)
    end, _, unit = on.rpartition("_")
    if end == "last" or unit.removesuffix("s") not in _SETTLED:
        return []
    whole = _SETTLED[unit.removesuffix("s")](prefix)
    return whole[:1] if end == "first" else whole


def _settled_lines(prefix: str) -> list[str]:
    # \r may still become \r\n, which changes no line's text.
    whole = prefix.splitlines()
    if whole and prefix.endswith(whole[-1]):  # no line break after it
        whole.pop()
    return [line for line in whole if line.strip()]


_SPLIT: dict[str, Split] = {
    "sentence": sentences,
    "line": filled_lines,
    "paragraph": paragraphs,
    "word": words_of,
}
_SETTLED: dict[str, Split] = {
    "sentence": lambda prefix: sentences(prefix)[:-1],
    "line": _settled_lines,
    "paragraph": lambda prefix: paragraphs(prefix)[:-1],
    "word": settled_words,
}
