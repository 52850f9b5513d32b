"""Prompts from arguments, lines of text or JSON Lines, and the options that a line of JSON has for its prompt."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from guardwrap.budget import Budget
from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.files.constraint_data import kinds, read_constraint
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.constraints.files.template import fill, names_of_fields
from guardwrap.errors import GuardwrapError, PromptError, UsageError, is_count
from guardwrap.support.limits import is_text
from guardwrap.support.validation import Invalid, code_needs, validated
from guardwrap.support.yaml_nodes import reading, short

OPTIONS = ("constraint", "constraints", "sampler", "budget", "seed")
"""Fields of a line that are options, and not data."""

_OF_THE_RUN = (
    "adapter",
    "batch_size",
    "masked",
    "max_new_tokens",
    "num_return_sequences",
    "proposal",
    "temperature",
    "top_k",
    "top_p",
    "twisted",
)
"""Options of the command line that are the same for a whole run."""

_NOWHERE = ("do_sample", "max_length", "num_beams", "repetition_penalty", "stop_strings")
"""Arguments of ``generate`` that are no options of the command line."""

_NO_CODE = ", which a line of prompts cannot run; put it into a constraint file, for -c and --allow-code"
"""What errors say of code in lines of prompts, which never run it, even with ``--allow-code``."""

_LIMITS = tuple(f.name for f in dataclasses.fields(Budget) if f.name.startswith("max_"))

# Common names of columns in data sets, which are as similar to an option as a typo of it.
_WORDS = ("sample", "samples")
_CLOSE = 0.88  # reports "constrains" and "topk", but not "contains" and "constraint_id"

ReadOwn = Callable[[str, Mapping[str, Any]], PerPromptOptions]


@dataclass(frozen=True)
class Item:
    """One prompt with its fields and options."""

    where: str  # its place, for error messages, e.g. ``"in.jsonl:3"``.
    # fields to copy to the output: ``"prompt"`` or ``"messages"``, and any other field of a JSON line
    fields: dict[str, Any]
    own: PerPromptOptions = field(default_factory=PerPromptOptions)  # the options of this prompt

    @property
    def summary(self) -> str:
        """The prompt, or the last message of a chat, to show on a terminal."""
        return str(self.fields["prompt"] if "prompt" in self.fields else self.fields["messages"][-1]["content"])

    def given(self, chat: bool) -> str | list[dict[str, Any]]:
        """Return the prompt to pass to ``GuardedGenerator``. With ``chat``, a string becomes a user message."""
        if "messages" in self.fields:
            messages: list[dict[str, Any]] = self.fields["messages"]
            return messages
        prompt: str = self.fields["prompt"]
        return [{"role": "user", "content": prompt}] if chat else prompt


@dataclass(frozen=True)
class PromptSource:
    """Source of the prompts of a command."""

    arguments: tuple[str, ...] = ()  # prompts from the command line
    path: str | None = None  # path of a file of prompts, ``-`` for stdin, or None
    jsonl: bool = False  # whether the file has JSON Lines instead of one prompt per line
    parquet: bool = False  # whether it is a Parquet file, which ``guardwrap.integrations.ray`` reads
    read_own: ReadOwn = lambda *_: PerPromptOptions()  # reads the options of a JSON line

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return "the arguments" if self.path is None else "stdin" if self.path == "-" else self.path

    def items(self) -> Iterator[Item]:
        """Read the prompts one by one."""
        if self.path is None:
            for number, prompt in enumerate(self.arguments, start=1):
                if not is_text(prompt):
                    raise PromptError(f"argument {number}: not UTF-8 text")
                yield Item(f"argument {number}", {"prompt": prompt})
            return
        for where, line in lines(self.path):
            if self.jsonl:
                fields = _fields(where, line)
                yield Item(where, fields, self.read_own(where, fields))
            else:
                yield Item(where, {"prompt": _filled(where, line)})

    @property
    def streams(self) -> bool:
        """Whether the prompts are a stream, which may have no end and is read once."""
        return self.path is not None and (
            self.path == "-" or (Path(self.path).exists() and not Path(self.path).is_file())
        )

    def count(self) -> int | None:
        """Read all prompts once, so that an invalid one is reported before the work begins; None for a stream."""
        return None if self.streams else sum(1 for _ in self.items())


def prompt_source_of(
    arguments: Sequence[str], file: str | None, jsonl: str | None, parquet: str | None = None
) -> PromptSource:
    """Return the source of the prompts that the command line names."""
    if sum((bool(arguments), file is not None, jsonl is not None, parquet is not None)) > 1:
        raise UsageError("give prompts in one place only: arguments, --file, --jsonl, --parquet or stdin")
    if parquet is not None:
        return PromptSource(path=parquet, parquet=True)
    if jsonl is not None:
        return PromptSource(path=jsonl, jsonl=True)
    if file is not None or list(arguments) == ["-"]:
        return PromptSource(path=file or "-")
    if arguments:
        return PromptSource(tuple(arguments))
    if sys.stdin.isatty():
        raise UsageError("no prompts; give them as arguments, with --file or --jsonl, or on stdin")
    return PromptSource(path="-")


def lines(path: str) -> Iterator[tuple[str, str]]:
    """Yield the place and text of each line of a UTF-8 file, or of stdin for ``-``."""
    if path == "-":
        yield from _decoded("stdin", sys.stdin.buffer)
        return
    try:
        with open(path, "rb") as file:
            yield from _decoded(path, file)
    except (OSError, ValueError) as error:  # ValueError: the path contains a null character
        raise PromptError(f"cannot read {path!r}: {getattr(error, 'strerror', None) or error}") from None


def _decoded(name: str, stream: BinaryIO) -> Iterator[tuple[str, str]]:
    for number, raw in enumerate(stream, start=1):
        where = f"{name}:{number}"
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise PromptError(f"{where}: not UTF-8 text") from None
        yield where, line.rstrip("\r\n")


def _filled(where: str, line: str) -> str:
    if not line.strip():
        raise PromptError(f'{where}: empty line; remove it, or for an empty prompt use --jsonl with {{"prompt": ""}}')
    return line


def _fields(where: str, line: str) -> dict[str, Any]:
    """Read a line of JSON."""
    try:
        fields = json.loads(line, parse_constant=_number, parse_float=_number)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where}: not JSON: {getattr(error, 'msg', 'unreadable')}") from None
    return require_prompt(where, fields)


def require_prompt(where: str, fields: Any) -> dict[str, Any]:
    """Return the fields of a line, or raise PromptError unless they have a prompt."""
    if not isinstance(fields, dict) or ("prompt" in fields) == ("messages" in fields):
        raise PromptError(f'{where}: give an object with either "prompt" (a string) or "messages" (a chat)')
    if "prompt" in fields and not isinstance(fields["prompt"], str):
        raise PromptError(f'{where}: "prompt" is not a string')
    if "messages" in fields and not _is_chat(fields["messages"]):
        raise PromptError(f'{where}: "messages" is not a chat: [{{"role": "user", "content": "..."}}]')
    texts = [fields["prompt"]] if "prompt" in fields else [message["content"] for message in fields["messages"]]
    if not all(is_text(text) for text in texts if isinstance(text, str)):
        raise PromptError(f"{where}: has half of a surrogate pair, such as \\ud800, which is not a character")
    return fields


def _number(literal: str) -> float:
    """Parse a number. Reject those that Python would write as NaN or Infinity, which JSON does not have."""
    number = float(literal)
    if not math.isfinite(number):
        raise PromptError(f"{literal[:40]} is not a JSON number; write null, or a string")
    return number


def _is_chat(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in messages)
    )


def own_of(path: str, constraint: Constraint, budget: Budget, limits: Mapping[str, Any] | None = None) -> ReadOwn:
    """Return a function that reads the options of a line, given its place and its fields.

    ``constraint, budget``: constraint and budget of the run. A line's constraint applies in addition; its limits
    replace those of the run. A line must have the fields for which the constraint has placeholders.
    """
    names = names_of_fields(constraint)
    kinds()  # imports the kinds of other packages before the time limit for reading a line starts

    def read(where: str, fields: Mapping[str, Any]) -> PerPromptOptions:
        for name in fields:
            if name not in names:
                _require_no_option(where, name)
        try:
            with reading(path):
                values = {name: fields[name] for name in names if name in fields}
                own = dataclasses.replace(_own(fields, fill(constraint, values), budget), fields=values or None)
        except Invalid as invalid:
            raise PromptError(f"{where}: {invalid}") from None
        except GuardwrapError as error:
            raise PromptError(f"{where}: {error}") from None
        if own.budget is None or not limits:
            return own
        return dataclasses.replace(own, budget=dataclasses.replace(own.budget, **limits))

    return read


def constraint_of(constraint: Constraint, own: PerPromptOptions) -> Constraint:
    """Return the constraint of a prompt's texts, from that of the run and the prompt's options."""
    filled = fill(constraint, own.fields)
    return filled if own.constraints is None else All((filled, own.constraints))


def _own(fields: Mapping[str, Any], constraint: Constraint, budget: Budget) -> PerPromptOptions:
    from guardwrap.samplers.sampler_registry import read_sampler  # imports scipy

    options = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    if "constraint" in options and "constraints" in options:
        raise Invalid(("constraints",), "give either constraint or constraints, not both")
    own: Constraint | None = None
    sampler: Any = None
    replaced: Budget | None = None
    for name in ("constraint", "constraints"):
        if name in options:
            with _in_field(name), code_needs(_NO_CODE):
                own = read_constraint(options[name])
            All((constraint, own))  # raises if two parts exclude each other
    if "sampler" in options:
        with _in_field("sampler"):
            sampler = read_sampler(options["sampler"])
    seed = options.get("seed")
    if seed is not None and not is_count(seed):
        raise Invalid(("seed",), f"{short(seed)} is not a whole number of at least 0")
    if "budget" in options:
        with _in_field("budget"):
            limits = validated(options["budget"], TypeAdapter(Budget))
        replaced = dataclasses.replace(budget, **{name: getattr(limits, name) for name in options["budget"]})
    return PerPromptOptions(own, sampler, replaced, seed)


@contextmanager
def _in_field(name: str) -> Iterator[None]:
    """Add the name of a field to the location of an error in its value."""
    try:
        yield
    except Invalid as invalid:
        raise Invalid((name, *invalid.location), invalid.problem) from None


def _require_no_option(where: str, name: str) -> None:
    """Raise PromptError for a field that looks like an option but would have no effect."""
    if name in OPTIONS or name in ("prompt", "messages") or name.lower() in _WORDS:
        return
    plain = name.lower().replace("-", "_")
    known = (*OPTIONS, *_OF_THE_RUN, *_NOWHERE, *_LIMITS)
    meant = plain if plain in known else next(iter(get_close_matches(plain, known, n=1, cutoff=_CLOSE)), None)
    if meant is None:
        return
    if meant in OPTIONS:
        way_out = f'did you mean "{meant}"?'
    elif meant in _LIMITS:
        way_out = f'in a line, write "budget": {{"{meant}": ...}}'
    elif meant in _OF_THE_RUN:
        way_out = f"it is the same for all lines: give --{meant.replace('_', '-')}"
    else:
        way_out = "it is not an option of this command"
    raise PromptError(f'{where}: unknown option {short(name)}: {way_out}; put your own data under "meta"')
