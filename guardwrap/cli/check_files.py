"""Arguments of ``guardwrap check``: constraint files, catalogue names and folders, and the texts to check."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guardwrap.constraints.files.catalogue_files import catalogue_names
from guardwrap.constraints.files.message_example import read_message
from guardwrap.documents import lexical
from guardwrap.documents.validation import Invalid
from guardwrap.environment.files import PREFIX
from guardwrap.errors import PromptError, UsageError, first_line, nearest
from guardwrap.prompt_files.prompts import lines
from guardwrap.prompt_files.written_records import WrittenRecord, is_written

_SUFFIXES = (".yaml", ".yml")
_EXPECTED = {"pass": True, "fail": False, True: True, False: False}


@dataclass(frozen=True, slots=True)
class ExpectedText:
    """A text or a message, and whether it should be accepted."""

    text: str | Mapping[str, Any]  # the text, or the parts of the message
    expected: bool = True  # whether it should be accepted
    rule: str | None = None  # the constraint file that it is for; None for every file
    where: str = field(default="", compare=False)  # where it comes from, such as ``texts.jsonl:2``


def is_several(targets: Sequence[str]) -> bool:
    """Return whether the arguments stand for a list of files; a folder is a list, even if it holds one file."""
    return len(targets) > 1 or any(map(os.path.isdir, targets))


def constraint_files(targets: Sequence[str]) -> Iterator[tuple[str, UsageError | None]]:
    """Yield the constraint files that arguments name, each once. An argument that names none comes with an error.

    ``targets``: paths of files or folders, or ``catalogue:NAME``. A folder stands for all YAML files below it,
    sorted.
    """
    seen: set[str] = set()
    for target in targets:
        for name, error in _files(target):
            if name not in seen:
                seen.add(name)
                yield name, error


def _files(target: str) -> list[tuple[str, UsageError | None]]:
    if target.startswith(PREFIX):
        return [(target, None)]
    if not os.path.isdir(target):  # unlike Path.exists, os.path raises nothing for a long text
        return [(target, None if os.path.exists(target) else _no_file(target))]
    files = sorted(str(path) for path in Path(target).rglob("*") if path.suffix in _SUFFIXES and not path.is_dir())
    none = UsageError(f"there is no .yaml or .yml file in the folder {target!r}; name a constraint file")
    return [(name, None) for name in files] or [(target, none)]


def _no_file(target: str) -> UsageError:
    folder, name = os.path.split(target)
    beside = [entry for entry in os.listdir(folder or ".") if entry.endswith(_SUFFIXES)] if _is_folder(folder) else []
    meant = f" (did you mean {PREFIX}{name}?)" if target in catalogue_names() else nearest(name, beside)
    return UsageError(f"there is no file or folder {target!r}{meant}; pass a text to check with --text")


def _is_folder(folder: str) -> bool:
    return not folder or os.path.isdir(folder)


def texts_to_check(texts: Sequence[str], paths: Sequence[str]) -> tuple[list[ExpectedText], list[WrittenRecord]]:
    """Return the texts of the command line, then those of files, and the records of ``guardwrap generate`` in files.

    ``paths``: files with one text per line, or, if a name ends in ``.jsonl``, JSON Lines; ``-`` is stdin. A line of
    JSON is a string, or an object with "text" or "message", "expected" ("pass", "fail", true or false; default:
    "pass") and "rule" (the constraint file that it is for; default: every file); or a record.
    """
    expected = [ExpectedText(text, where="--text") for text in texts]
    records: list[WrittenRecord] = []
    for path in paths:
        for where, line in lines(path):
            if not path.endswith(".jsonl"):
                expected.append(ExpectedText(line, where=where))
            elif is_written(value := _json(where, line)):
                records.append(WrittenRecord(path, where, value))
            else:
                expected.append(_of_json(where, value))
    return expected, records


def read_records(paths: Sequence[str]) -> Iterator[WrittenRecord]:
    """Yield the records of output files of ``guardwrap generate``; ``-`` is stdin."""
    for path in paths:
        for where, line in lines(path):
            data = _json(where, line)
            if not is_written(data) and not _has_failed(data):
                raise PromptError(f"{where}: not a line of guardwrap generate; check other texts with guardwrap check")
            yield WrittenRecord(path, where, data)


def require_rules(texts: Sequence[ExpectedText], names: Sequence[str]) -> None:
    """Require that each constraint file that a text is for is one of those to check."""
    for text in texts:
        if text.rule is not None and not any(_is_named(name, text.rule) for name in names):
            paths = [Path(name.removeprefix(PREFIX)) for name in names]
            meant = nearest(text.rule, [*names, *(path.name for path in paths), *(path.stem for path in paths)])
            raise PromptError(f'{text.where}: "rule" names no file that is checked: {text.rule!r}{meant}')


def texts_for(name: str, texts: Sequence[ExpectedText]) -> list[ExpectedText]:
    """Return the texts that a constraint file is checked with: those for this file, and those for every file."""
    return [text for text in texts if text.rule is None or _is_named(name, text.rule)]


def _is_named(name: str, rule: str) -> bool:
    """Return whether a rule is the end of a file's path, with or without the extension, or a catalogue name."""
    path, end = Path(name.removeprefix(PREFIX)), Path(rule.removeprefix(PREFIX)).parts
    if not path.name or not end:
        return False
    return end in (path.parts[-len(end) :], path.with_suffix("").parts[-len(end) :])


def _has_failed(data: Any) -> bool:
    """Return whether a value is the record of a row of Ray that ended with an error: without a text, and a report."""
    return isinstance(data, dict) and data.get("texts") == [] and data.get("ok") is False and "report" not in data


def _json(where: str, line: str) -> Any:
    try:
        return lexical.load_json(line)
    except (ValueError, OverflowError, RecursionError) as error:
        raise PromptError(f"{where}: not JSON: {first_line(error)}") from None


def _of_json(where: str, value: Any) -> ExpectedText:
    fields: dict[str, Any] = {"text": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or isinstance(fields.get("text"), str) == ("message" in fields):
        raise PromptError(f'{where}: give a string, or an object with "text" (a string) or "message", and "expected"')
    absent = [name for name in ("expected", "rule") if name not in fields]
    for name in fields:  # other fields are allowed, but a misspelled one would change the result
        if name != "role" and (meant := nearest(name, absent)):
            raise PromptError(f"{where}: unknown field {name!r}{meant}")
    expected, rule = fields.get("expected", True), fields.get("rule")
    if not isinstance(expected, str | bool) or expected not in _EXPECTED:
        raise PromptError(f'{where}: "expected" must be "pass" or "fail"')
    if "rule" in fields and not (isinstance(rule, str) and rule):
        raise PromptError(f'{where}: "rule" must be the name of a constraint file')
    try:
        text = read_message(fields["message"]) if "message" in fields else fields["text"]
    except Invalid as invalid:
        raise PromptError(f"{where}: message: {invalid}") from None
    return ExpectedText(text, _EXPECTED[expected], rule, where)
