"""``guardwrap check``: test constraint files with their examples and with texts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from guardwrap.calls.prompts import lines
from guardwrap.calls.records import Audit, WrittenRecord, audited, has_failed, is_written, model_digest, read_json
from guardwrap.cli.options import AllowCode
from guardwrap.cli.shared import fail, in_one_line, read_constraints
from guardwrap.constraints.base import EXPENSIVE, Constraint, walk
from guardwrap.constraints.explanation import Explanation, counts_tokens, explain_draws
from guardwrap.constraints.files.constraint_data import catalogue_names
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.files.file_fields import adapter_misfit, read_message
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.schema_notes import bans_as_written, further_keys, misspelt, unheeded
from guardwrap.constraints.kinds.classifier import ScoringConstraint
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.constraints.kinds.keyword import Keyword, unlikely_words
from guardwrap.constraints.views import judged_part
from guardwrap.errors import ForeignFile, GuardwrapError, PromptError, UsageError, nearest, quoted
from guardwrap.models.parsed_message import written_message
from guardwrap.outcomes import Draw
from guardwrap.support.files import PREFIX
from guardwrap.support.process import quieten_transformers
from guardwrap.support.validation import Invalid

UNEXPECTED, INVALID = 1, 2
"""Exit codes."""

_SUFFIXES = (".yaml", ".yml")
_EXPECTED = {"pass": True, "fail": False, True: True, False: False}


@dataclass(frozen=True, slots=True)
class ExpectedText:
    """A text or a message, and whether it should be accepted."""

    text: str | Mapping[str, Any]  # the text, or the parts of the message
    expected: bool = True  # whether it should be accepted
    rule: str | None = None  # the constraint file that it is for; None for every file
    where: str = field(default="", compare=False)  # where it comes from, such as ``texts.jsonl:2``


@dataclass(frozen=True, slots=True)
class CheckedText:
    """A text and the result of its check."""

    expected: bool  # whether the text should be accepted
    explanation: Explanation  # the text, and the parts that reject it

    @property
    def right(self) -> bool:
        """Whether the result is as expected."""
        return self.expected == self.explanation.accepted

    def to_dict(self) -> dict[str, Any]:
        """Return the text and the result as plain JSON types."""
        rejections = self.explanation.rejections
        return {
            "text": self.explanation.text,
            "expected": self.expected,
            "accepted": self.explanation.accepted,
            "failed": [each.part for each in rejections],
            "reasons": [each.detail for each in rejections if each.detail],
        }


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The results of one constraint file."""

    name: str  # the path, or ``catalogue:NAME``
    # the contents; None if they are invalid, or if a text cannot be checked with them
    file: ConstraintFile | None = None
    examples: tuple[CheckedText, ...] = ()  # the file's own examples, and the texts of the command line
    texts: tuple[CheckedText, ...] = ()
    audit: Audit | None = None  # the records of the command line, compared with the file; None without any
    error: str | None = None  # why the file is invalid, or why a text cannot be checked with it; None otherwise
    is_valid: bool = True  # whether the error, if any, is not in the file but in a text

    @property
    def code(self) -> int:
        """The exit code."""
        if self.file is None:
            return INVALID
        right = all(item.right for item in (*self.examples, *self.texts))
        return 0 if right and (self.audit is None or not self.audit.violations) else UNEXPECTED

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain JSON types."""
        if self.file is None:
            return {"file": self.name, "ok": False, "error": self.error}
        return {
            "file": self.name,
            "name": self.file.name,
            "digest": self.file.constraint.digest,
            "parts": [part.title for part in self.file.constraint.parts],
            "ok": self.code == 0,
            "notes": _notes(self.name, self.file),
            "examples": [item.to_dict() for item in self.examples],
            "texts": [item.to_dict() for item in self.texts],
            **({} if self.audit is None else {"records": self.audit.to_dict()}),
        }


def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_NAME...",
            show_default=False,
            help="Constraint files, catalogue:NAME, or folders: all .yaml and .yml files below them.",
        ),
    ],
    texts: Annotated[
        list[str] | None, typer.Option("--text", metavar="TEXT", help="A text to check. May be repeated.")
    ] = None,
    from_files: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            help='A file with one text per line; - is stdin. In a .jsonl file, each line is a string or {"text": ..., '
            '"expected": "pass" or "fail"}, or has "message": {"content": ...} instead; "rule": "NAME.yaml" checks it '
            "with this file only. Lines that guardwrap generate wrote are compared with the rules: texts, digests "
            "and limits. May be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            show_default=False,
            help="The model that lines of guardwrap generate must come from: a Hub id, a folder, or 'local'. Its files "
            "are compared.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", min=1, metavar="N", show_default=False, help="The number of texts of each line of guardwrap generate."
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help='Print a JSON object; for several files or a folder {"ok": ..., "files": [...]}.'),
    ] = False,
    digest: Annotated[
        bool, typer.Option("--digest", help="Print only the digest of the constraint; for several files, of each.")
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Validate constraint files, run their examples and check texts.

    Every text is checked with every file, or with its "rule", as a complete, finished answer. Exit code 0: all examples
    and texts are as expected; 1: some are not; 2: a file is invalid, or a text cannot be checked. All files are
    checked, and the highest code counts.

    Of a line of guardwrap generate, each text is judged again. The digests of the rules, of the files behind them and
    of the model must be those that the line names, the line must be as it was written, and the numbers of texts and
    attempts within its limits and those of the rules. That the model drew a text is not proven.
    """
    several = len(targets) > 1 or any(map(os.path.isdir, targets))  # a folder is a list, even if it holds one file
    user_texts, records = texts_to_check(texts or [], from_files or [])
    if not records and (model is not None or count is not None):
        raise UsageError("--model and -n are about lines of guardwrap generate; give a .jsonl file of them with --file")
    made_with = None if model is None else model_digest(model)
    if model is not None and made_with is None:
        raise UsageError(f"--model {model!r}: there is no such folder, and its version on the Hub is not known")
    audit = partial(audited, records, model=made_with, count=count) if records else None
    files = list(constraint_files(targets))
    require_rules(user_texts, [name for name, _ in files])
    results: list[CheckedFile] = []
    for name, missing in files:
        if missing is not None:
            result = CheckedFile(name, error=str(missing), is_valid=False)
        else:
            its_texts = texts_for(name, user_texts)
            result = _checked(name, its_texts, audit, digest=digest, allow_code=allow_code, several=several)
        results.append(result)
        if result.error is not None:
            fail(result.error, INVALID)
        elif result.file is not None and digest:
            typer.echo(result.file.constraint.digest + (f"  {result.name}" if several else ""))
        elif not as_json:
            _print(result)
    code = max(result.code for result in results)
    if as_json and not digest:
        _print_json(results, several=several)
    elif several and not digest:
        _print_summary(results)
    raise typer.Exit(code)


def _checked(
    name: str,
    user_texts: Sequence[ExpectedText],
    audit: Callable[..., Audit] | None,
    *,
    digest: bool,
    allow_code: bool,
    several: bool,
) -> CheckedFile:
    """Check one file; an error becomes part of the result."""
    try:
        read = read_constraints([name], allow_code=allow_code)
        if read.sampler is not None:
            from guardwrap.samplers import sampler_named  # imports scipy

            sampler_named(read.sampler, read.source)
        if digest:
            return CheckedFile(name, read)
        checked = _with_texts(name, read, user_texts)
        # With several files, each is only a part of the rules of a record.
        return replace(checked, audit=None if audit is None else audit(read, whole=not several))
    except GuardwrapError as error:
        message = str(error) if name in str(error) else f"{name}: {error}"
        way_out = "; keep other YAML files out of the folder, or name the constraint files" if several else ""
        message = f"{message}{way_out if isinstance(error, ForeignFile) else ''}"
        return CheckedFile(name, error=message, is_valid=isinstance(error, PromptError))


def _with_texts(name: str, read: ConstraintFile, user_texts: Sequence[ExpectedText]) -> CheckedFile:
    if (
        read.adapter is not None
        and read.source is not None
        and (other := adapter_misfit(read.adapter, read.constraint))
    ):
        way_out = "use the matching one, or, if you mean it, {source: ..., allow_mismatch: true}"
        raise read.source.error(("adapter",), f"{other}; {way_out}")
    if any(isinstance(part, ScoringConstraint) for part in walk(read.constraint)):
        quieten_transformers()
    if read.sample:
        read = read.filled(read.sample)
    elif user_texts and read.fields:
        names = ", ".join(map(quoted, read.fields))
        raise UsageError(f"{name}: to check texts, give values for the fields {names} under examples: fields:")
    examples = [ExpectedText(text) for text in read.accepts]
    examples += [ExpectedText(message) for message in read.accepted_messages]
    examples += [ExpectedText(text, False) for text in read.rejects]
    examples += [ExpectedText(message, False) for message in read.rejected_messages]
    checked_examples, checked_texts = (check_texts(read.constraint, texts) for texts in (examples, user_texts))
    return CheckedFile(name, read, tuple(checked_examples), tuple(checked_texts))


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
    is_folder = not folder or os.path.isdir(folder)
    beside = [entry for entry in os.listdir(folder or ".") if entry.endswith(_SUFFIXES)] if is_folder else []
    meant = f" (did you mean {PREFIX}{name}?)" if target in catalogue_names() else nearest(name, beside)
    return UsageError(f"there is no file or folder {target!r}{meant}; pass a text to check with --text")


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
            elif is_written(value := read_json(where, line)) or has_failed(value):
                records.append(WrittenRecord(path, where, value))
            else:
                expected.append(_of_json(where, value))
    return expected, records


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


def check_texts(constraint: Constraint, texts: Sequence[ExpectedText]) -> list[CheckedText]:
    """Check texts with every part of a constraint, not only up to the first one that rejects."""
    draws = [_draw(item.text) for item in texts]
    part = _message_part(constraint)
    for item, draw in zip(texts, draws, strict=True):
        if part is not None and draw.parts is None:
            if item.where:
                raise PromptError(_NO_MESSAGE.format(part, item.where))
            raise UsageError(_MESSAGES.format(part))
    explanations = explain_draws(constraint, draws, tokens_known=False)
    return [CheckedText(item.expected, each) for item, each in zip(texts, explanations, strict=True)]


def _draw(example: str | Mapping[str, Any]) -> Draw:
    return Draw(prompt="", token_ids=(), text=example) if isinstance(example, str) else written_message(example)


def _message_part(constraint: Constraint) -> str | None:
    """Return a part of messages that a rule judges; None if all judge texts."""
    return next((part for part in map(judged_part, walk(constraint)) if part is not None), None)


_A_MESSAGE = (
    '{{"message": {{"content": "...", "reasoning": "...", "tool_calls": [{{"name": "...", "arguments": {{}}}}]}}}}'
)
_MESSAGES = (
    "a rule judges a part of messages ({}), and a text under examples: is no message: give messages there, such as "
    f"{_A_MESSAGE}"
)
_NO_MESSAGE = (
    "a rule judges a part of messages ({}), and the text of {} is no message: in a .jsonl file for --file, give "
    f'"rule" with the file that the text is for, or a message instead of the text: {_A_MESSAGE}'
)


def _passes_empty(file: ConstraintFile) -> bool:
    """Return whether the empty text passes, without being an example. Rules with code or a model are not asked."""
    constraint = file.constraint
    if file.fields or runs_code(constraint) or constraint.cost >= EXPENSIVE or _message_part(constraint) is not None:
        return False
    return "" not in file.accepts and check_texts(constraint, [ExpectedText("")])[0].right


_EMPTY = (
    "the empty text passes; if it should not, add {kind: length, min: 1, unit: words}, or list '' under accepts: to "
    "say that it may"
)


def _notes(name: str, file: ConstraintFile) -> list[str]:
    """Return notes about parts that are valid but perhaps not intended, and about parts that are not checked here."""
    constraint = file.constraint
    notes = [
        f"{quoted(part.title)} counts tokens, which are known for generated texts only; it is not checked here"
        for part in constraint.parts
        if counts_tokens(part)
    ]
    notes += [] if file.source is None else file.source.notes
    notes += further_keys(constraint) + bans_as_written(constraint)
    for part in walk(constraint):
        if isinstance(part, JSONSchema):
            for name, meant in sorted(misspelt(part.schema).items()):
                called = f"{quoted(name)} in {quoted(part.title)}"
                notes.append(f"{called} is not a JSON Schema keyword and has no effect (did you mean {quoted(meant)}?)")
            for name, reason in sorted(unheeded(part.schema).items()):
                notes.append(f"{quoted(name)} in {quoted(part.title)} has no effect: it {reason}")
        elif isinstance(part, Keyword):
            notes += unlikely_words(part)
        for called, pattern in _patterns(part):
            if pattern.endswith("\n") and "verbose" not in getattr(part, "flags", ()):
                where = f"{called} of {quoted(part.title)}"
                notes.append(f"{where} ends with a line break, which the text must have too; write |- instead of |")
    if not name.startswith(PREFIX) and _passes_empty(file):
        notes.append(_EMPTY)
    return notes


def _patterns(part: Constraint) -> Iterator[tuple[str, str]]:
    """Yield the regular expressions of a part, with the names of their fields."""
    selected = getattr(part, "on", None)
    for called, pattern in (
        ("pattern", getattr(part, "pattern", None)),
        ("on.match", getattr(selected, "match", None)),
    ):
        if isinstance(pattern, str):
            yield called, pattern


def _print(result: CheckedFile) -> None:
    if result.file is None:
        return
    parts = len(result.file.constraint.parts)
    typer.echo(f"{result.name}: valid, {parts} part{'s' * (parts != 1)}")
    for note in _notes(result.name, result.file):
        typer.secho(f"note: {note}", fg="yellow")
    wrong = [item for item in result.examples if not item.right]
    if result.examples:
        typer.echo(f"{len(result.examples) - len(wrong)} of {len(result.examples)} examples as expected")
    else:
        typer.echo("no examples; a file can list texts under examples: accepts: and rejects:")
    for item in wrong:
        listed, outcome = ("accepts", _verdict(item)) if item.expected else ("rejects", "accepted by every part")
        text = in_one_line(item.explanation.text)
        typer.secho(f"  listed under {listed}, but {outcome}: {text}", fg="red")
    for number, item in enumerate(result.texts, start=1):
        typer.secho(_text_line(number, item), fg="green" if item.right else "red")
    for line in [] if result.audit is None else result.audit.lines():
        typer.echo(line)
    if len(result.texts) > 1:
        wrong = [item for item in result.texts if not item.right]
        count = f"{len(result.texts) - len(wrong)} of {len(result.texts)} texts as expected"
        typer.echo(f"{count}; the others are marked with !" if wrong else count)


def _text_line(number: int, item: CheckedText) -> str:
    """Return the line of a text, which begins with ! if the verdict is not the expected one."""
    expected = f", but expected to {'pass' if item.expected else 'fail'}"
    as_hoped = expected if not item.right else "" if item.expected else ", as expected"
    mark = "" if item.right else "! "
    return f"{mark}text {number} {_verdict(item)}{as_hoped}: {in_one_line(item.explanation.text)}"


def _print_json(results: Sequence[CheckedFile], *, several: bool) -> None:
    if several:
        data = {"ok": all(result.code == 0 for result in results), "files": [result.to_dict() for result in results]}
    elif results[0].file is None:  # the error is on stderr
        return
    else:
        data = results[0].to_dict()
    typer.echo(json.dumps(data, ensure_ascii=False, indent=2))


def _print_summary(results: Sequence[CheckedFile]) -> None:
    kinds = Counter((result.code, result.is_valid) for result in results)
    words = {
        (0, True): "as expected",
        (UNEXPECTED, True): "with unexpected results",
        (INVALID, True): "with a text that is no message",
        (INVALID, False): "invalid",
    }
    counts = ", ".join(f"{kinds[kind]} {word}" for kind, word in words.items() if kinds[kind])
    files = f"{len(results)} file{'s' * (len(results) != 1)}"
    typer.secho(f"{files}: {counts}", fg="green" if set(kinds) == {(0, True)} else "red")


def _verdict(item: CheckedText) -> str:
    rejections = item.explanation.rejections
    return f"rejected by {', '.join(map(str, rejections))}" if rejections else "accepted"
