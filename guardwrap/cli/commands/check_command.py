"""``guardwrap check``: test a constraint file with its examples and with texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from guardwrap.cli.shared import AllowCode, in_one_line, read_constraints
from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.files.proposal_fields import adapter_misfit
from guardwrap.constraints.files.template import require_filled
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.schema_notes import further_keys, misspelt, unheeded
from guardwrap.constraints.kinds.classifier import ScoringConstraint
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.keyword_notes import unlikely_words
from guardwrap.constraints.kinds.text import Length, TextConstraint
from guardwrap.documents.time_limits import judging
from guardwrap.environment.process import quieten_transformers
from guardwrap.errors import quoted
from guardwrap.outcomes import Draw
from guardwrap.prompt_files.prompts import lines

__all__ = ["check"]


@dataclass(frozen=True)
class CheckedText:
    """A text and the result of its check.

    Parameters
    ----------
    text
        The text.
    expected
        Whether it should be accepted.
    failed
        Titles of all parts that reject it.
    reasons
        For each of these parts, what is wrong with the text; "" where the title says it all.
    """

    text: str
    expected: bool
    failed: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the result is as expected."""
        return self.expected == (not self.failed)


def check(
    file: Annotated[
        str, typer.Argument(metavar="FILE_OR_NAME", show_default=False, help="A constraint file, or catalogue:NAME.")
    ],
    texts: Annotated[list[str] | None, typer.Argument(show_default=False, help="Texts to check.")] = None,
    from_file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="A file with one text per line; - is stdin.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    digest: Annotated[bool, typer.Option("--digest", help="Print only the digest of the constraint.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Validate a constraint file, run its examples and check texts.

    Each text is checked as a complete, finished answer. Exit code 0: all examples are as expected, and all texts are
    accepted; 1: some are not; 2: the file is invalid.
    """
    read = read_constraints([file], allow_code=allow_code)
    if read.sampler is not None:
        with ends_at_once():
            from guardwrap.samplers import sampler_named  # imports scipy

        sampler_named(read.sampler, read.source)
    if digest:
        typer.echo(read.constraint.digest)
        return
    if (
        read.adapter is not None
        and read.source is not None
        and (other := adapter_misfit(read.adapter, read.constraint))
    ):
        way_out = "use the matching one, or, if you mean it, {source: ..., allow_mismatch: true}"
        raise read.source.error(("adapter",), f"{other}; {way_out}")
    user_texts = [*(texts or []), *(line for _, line in (lines(from_file) if from_file else ()))]
    if any(isinstance(part, ScoringConstraint) for part in walk(read.constraint)):
        quieten_transformers()
    expected = [True] * len(read.accepts) + [False] * len(read.rejects)
    if read.sample:
        read = read.filled(read.sample)
    elif user_texts:
        require_filled(read.constraint)
    examples = check_texts(read.constraint, [*read.accepts, *read.rejects], expected)
    results = check_texts(read.constraint, user_texts, [True] * len(user_texts))
    ok = all(item.right for item in (*examples, *results))
    if as_json:
        typer.echo(json.dumps(_as_dict(file, read, examples, results, ok), ensure_ascii=False, indent=2))
    else:
        _print(file, read, examples, results)
    raise typer.Exit(0 if ok else 1)


def check_texts(constraint: Constraint, texts: Sequence[str], expected: Sequence[bool]) -> list[CheckedText]:
    """Check texts with every part of a constraint, not only up to the first one that rejects.

    Parameters
    ----------
    constraint
        The constraint.
    texts
        Finished texts.
    expected
        For each text, whether it should be accepted.
    """
    draws = [Draw(prompt="", token_ids=(), text=text) for text in texts]
    items = [CheckedText(text, want, (), ()) for text, want in zip(texts, expected, strict=True)]
    with judging():
        for part in constraint.parts:
            if _counts_tokens(part):
                continue
            for number, passed in enumerate(run_check(part, draws)):
                if not passed:
                    item = items[number]
                    reason = part.fault_of(draws[number]) if isinstance(part, TextConstraint) else ""
                    items[number] = replace(item, failed=(*item.failed, part.title), reasons=(*item.reasons, reason))
    return items


def _counts_tokens(part: Constraint) -> bool:
    return any(isinstance(inner, Length) and inner.unit == "tokens" for inner in walk(part))


def _notes(constraint: Constraint) -> list[str]:
    """Return notes about parts that are valid but perhaps not intended, and about parts that are not checked here."""
    notes = [
        f"{quoted(part.title)} counts tokens, which are known for generated texts only; it is not checked here"
        for part in constraint.parts
        if _counts_tokens(part)
    ]
    notes += further_keys(constraint)
    for part in walk(constraint):
        if isinstance(part, JSONSchema):
            for name, meant in sorted(misspelt(part.schema).items()):
                called = f"{quoted(name)} in {quoted(part.title)}"
                notes.append(f"{called} is not a JSON Schema keyword and has no effect (did you mean {quoted(meant)}?)")
            for name, reason in sorted(unheeded(part.schema).items()):
                notes.append(f"{quoted(name)} in {quoted(part.title)} has no effect: it {reason}")
        elif isinstance(part, Keyword):
            notes += unlikely_words(part)
    return notes


def _print(file: str, read: ConstraintFile, examples: Sequence[CheckedText], results: Sequence[CheckedText]) -> None:
    parts = len(read.constraint.parts)
    typer.echo(f"{file}: valid, {parts} part{'s' * (parts != 1)}")
    for note in _notes(read.constraint):
        typer.secho(f"note: {note}", fg="yellow")
    wrong = [item for item in examples if not item.right]
    if examples:
        typer.echo(f"{len(examples) - len(wrong)} of {len(examples)} examples as expected")
    else:
        typer.echo("no examples; a file can list texts under examples: accepts: and rejects:")
    for item in wrong:
        listed, result = ("accepts", _verdict(item)) if item.expected else ("rejects", "accepted by every part")
        typer.secho(f"  listed under {listed}, but {result}: {in_one_line(item.text)}", fg="red")
    for number, item in enumerate(results, start=1):
        color = "green" if item.right else "red"
        typer.secho(f"text {number} {_verdict(item)}: {in_one_line(item.text)}", fg=color)


def _verdict(item: CheckedText) -> str:
    parts = zip(map(quoted, item.failed), item.reasons, strict=True)
    named = (f"{title} ({reason})" if reason else title for title, reason in parts)
    return f"rejected by {', '.join(named)}" if item.failed else "accepted"


def _as_dict(
    file: str, read: ConstraintFile, examples: Sequence[CheckedText], results: Sequence[CheckedText], ok: bool
) -> dict[str, Any]:
    return {
        "file": file,
        "name": read.name,
        "digest": read.constraint.digest,
        "parts": [part.title for part in read.constraint.parts],
        "ok": ok,
        "notes": _notes(read.constraint),
        "examples": [{**asdict(item), "accepted": not item.failed} for item in examples],
        "texts": [
            {"text": item.text, "accepted": not item.failed, "failed": item.failed, "reasons": item.reasons}
            for item in results
        ],
    }
