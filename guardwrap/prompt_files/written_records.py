"""Records that were written before: whether they are whole, and whether their texts satisfy the constraint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from guardwrap.budget import Budget
from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import Unknown, draw_without
from guardwrap.constraints.explanation import Rejection, explain_draws
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.environment.network import source_digest
from guardwrap.errors import UsageError, quoted
from guardwrap.formatting import counted
from guardwrap.outcomes import plain
from guardwrap.prompt_files.overrides import ReadOwn, constraint_of, own_of
from guardwrap.prompt_files.records import AGAIN, CHECKSUM, DIGESTS, MADE, checksum_of, rule_digests


def is_written(data: Any) -> bool:
    """Return whether a value has the form of a record."""
    if not isinstance(data, dict) or not isinstance(data.get("report"), dict):
        return False
    texts, report = data.get("texts"), data["report"]
    return (
        isinstance(texts, list)
        and all(isinstance(text, str) for text in texts)
        and isinstance(data.get("ok"), bool)
        and type(report.get("seed")) is int
        and isinstance(report.get("constraint"), str)
        and isinstance(report.get("settings"), dict)
    )


def is_unchanged(record: Mapping[str, Any]) -> bool:
    """Return whether a record is as it was written: it has its checksum."""
    return bool(record["report"].get(CHECKSUM) == checksum_of(record))


def require_unchanged(where: str, record: Mapping[str, Any], constraint: Constraint) -> None:
    """Raise UsageError if a record was changed after it was written, or the constraint rejects one of its texts.

    Rules that run a model are not asked again.
    """
    if not is_unchanged(record):
        raise UsageError(f"{where}: was changed after it was written; restore it, or write to another --output")
    rejected, _ = judged_again(record, constraint, expensive=False)
    for number, rejections in enumerate(rejected, start=1):
        if rejections:
            raise UsageError(
                f"{where}: text {number} is rejected by {', '.join(quoted(each.part) for each in rejections)}; "
                "restore the line, or write to another --output"
            )


def judged_again(
    record: Mapping[str, Any], constraint: Constraint, *, expensive: bool = True
) -> tuple[list[tuple[Rejection, ...]], tuple[str, ...]]:
    """Return for each text of a record the parts that reject it, and the titles of parts that read what it lacks."""
    is_chat = "messages" in record or bool(record["report"]["settings"].get("chat"))
    kind, prompt = (_OfChat, "") if is_chat else (_RecordedText, str(record.get("prompt", "")))
    draws = [kind(prompt, (), text, begun=_begun(record)) for text in record["texts"]]
    rejections: list[tuple[Rejection, ...]] = [()] * len(draws)
    unjudged = []
    for part in constraint.parts:
        if part.cost >= EXPENSIVE and not expensive:
            continue
        try:
            explanations = explain_draws(part, draws, tokens_known=True)
        except Unknown:
            unjudged.append(part.title)
            continue
        rejections = [(*before, *each.rejections) for before, each in zip(rejections, explanations, strict=True)]
    return rejections, tuple(unjudged)


@dataclass(frozen=True)
class WrittenRecord:
    """A record of an output file."""

    path: str  # the file
    where: str  # its place, such as ``"out.jsonl:3"``
    data: Mapping[str, Any]  # the record


@dataclass(frozen=True)
class Audit:
    """What records say, compared with rules."""

    records: int  # number of records, and of their texts
    texts: int
    violations: tuple[tuple[str, str], ...] = ()  # places, each with what is wrong there
    short: int = 0  # number of records with fewer texts than were requested
    # for rules that read what records lack, the number of records that they could not judge
    unjudged: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON types."""
        violations = [{"where": where, "problem": problem} for where, problem in self.violations]
        data = {"records": self.records, "texts": self.texts, "short": self.short, "not_judged": dict(self.unjudged)}
        return {"ok": not violations, **data, "violations": violations}

    def lines(self) -> list[str]:
        """Return one line for each violation and each note, and a summary."""
        lines = [f"{where}: {problem}" for where, problem in self.violations]
        lines += [
            f"note: {quoted(title)} reads what no record has, so it judged none of the texts of {counted(n, 'record')}"
            for title, n in self.unjudged.items()
        ]
        lines += [f"note: {counted(self.short, 'record')} with fewer texts than requested"] if self.short else []
        wrong = len({where for where, _ in self.violations})
        total = f"{counted(self.records, 'record')} with {counted(self.texts, 'text')}"
        return [*lines, f"{total}: {counted(wrong, 'record')} with violations" if wrong else f"{total}: all hold"]


def audited(
    records: Iterable[WrittenRecord],
    rules: ConstraintFile,
    *,
    whole: bool = True,
    model: str | None = None,
    count: int | None = None,
) -> Audit:
    """Judge the texts of records again, and compare the records with rules."""
    readers: dict[str, ReadOwn] = {}
    digest_of = cache(source_digest)
    violations: list[tuple[str, str]] = []
    unjudged: Counter[str] = Counter()
    number = texts = short = 0
    for record in records:
        data = record.data
        number += 1
        texts += len(data["texts"])
        short += not data["ok"]
        if "report" not in data:  # a row of Ray that ended with an error, without a text
            continue
        if record.path not in readers:
            readers[record.path] = own_of(record.path, rules.constraint, rules.budget or Budget())
        own = readers[record.path](record.where, {name: data[name] for name in data if name not in MADE})
        constraint = constraint_of(rules.constraint, own)
        problems = list(_faults_of_texts(data, constraint, unjudged))
        retried = AGAIN in data["report"]["settings"]  # with limits of the command line instead of the line's own
        problems += _faults_of_report(data, None if retried else own.budget or rules.budget, count)
        if whole:
            problems += _faults_of_digests(data["report"], constraint, digest_of)
        if model is not None and data["report"]["settings"].get(DIGESTS, {}).get("model") != model:
            problems.append("was made with other files of the model, or which ones is not known")
        violations += [(record.where, problem) for problem in problems]
    return Audit(number, texts, tuple(violations), short, unjudged)


def _faults_of_texts(data: Mapping[str, Any], constraint: Constraint, unjudged: Counter[str]) -> Iterator[str]:
    if not is_unchanged(data):
        yield "was changed after it was written"
    rejected, titles = judged_again(data, constraint)
    unjudged.update(titles)
    for number, rejections in enumerate(rejected, start=1):
        if rejections:
            yield f"text {number} is rejected by {', '.join(map(str, rejections))}"


def _faults_of_digests(
    report: Mapping[str, Any], constraint: Constraint, digest_of: Callable[[str], str | None]
) -> Iterator[str]:
    if report["constraint"] != constraint.digest:
        yield f"was made with other rules (digest {report['constraint'][:12]}, not {constraint.digest[:12]})"
    recorded = report["settings"].get(DIGESTS, {})
    for name, digest in rule_digests(constraint, digest_of).items():
        if digest is None or recorded.get(name) != digest:
            yield f"was made with other files of the {name}, or which ones is not known"


def _faults_of_report(data: Mapping[str, Any], budget: Budget | None, count: int | None) -> Iterator[str]:
    report, texts = data["report"], len(data["texts"])
    requested, accepted = report.get("requested"), report.get("accepted")
    if type(requested) is not int or type(accepted) is not int:
        yield "does not say how many texts were requested and accepted"
        return
    if count is not None and not texts == requested == count:
        yield f"has {counted(texts, 'text')} of {requested} requested, not {count}"
    if texts > requested or (texts != accepted and not report.get("fallback")):
        yield f"has {counted(texts, 'text')}, and its report {accepted} of {requested}"
    if data["ok"] is not (accepted >= requested):
        yield f"says ok: {str(data['ok']).lower()}, with {accepted} of {requested} texts"
    kept = report.get("budget") if isinstance(report.get("budget"), dict) else {}
    for name, limit in plain(budget).items() if budget is not None else ():
        if limit is not None and (kept.get(name) is None or kept[name] > limit):
            yield f"was made with {name} {kept.get(name) or 'unlimited'}, above the limit of {limit:g}"
    most, usage = kept.get("max_attempts"), report.get("usage")
    attempts = usage.get("attempts") if isinstance(usage, dict) else None
    if most is not None and (not isinstance(attempts, int) or attempts > most):
        yield f"took {attempts} attempts, above its limit of {most}"


_UNKNOWN = ("token_ids", "finished", "full", "parts")
_RecordedText = draw_without(*_UNKNOWN)
_OfChat = draw_without(*_UNKNOWN, "prompt")  # a chat's prompt as text depends on the chat template


def _begun(record: Mapping[str, Any]) -> str:
    """Return the text of the assistant message that the texts continue."""
    messages = record.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, Mapping) and last.get("role") == "assistant" else None
    return content if isinstance(content, str) else ""
