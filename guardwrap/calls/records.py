"""Output records: how they are written, what identifies the run that made them, and whether they are as written."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guardwrap import __version__
from guardwrap.budget import Budget
from guardwrap.calls.prompts import ReadOwn, constraint_of, own_of
from guardwrap.constraints.base import EXPENSIVE, Constraint, walk
from guardwrap.constraints.checking import Unknown, draw_without
from guardwrap.constraints.explanation import Rejection, explain_draws
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.kinds.share import shares_of
from guardwrap.errors import PromptError, UsageError, first_line, quoted
from guardwrap.outcomes import Outcome, plain
from guardwrap.proposals import Adapter
from guardwrap.support import lexical
from guardwrap.support.files import CONFIG
from guardwrap.support.formatting import counted, digits
from guardwrap.support.network import source_digest

AGAIN = "drawn_again"
"""Setting in a record: how often its prompt was retried."""


NUMBER = "number"
"""Field of a report in a record of ``guardwrap generate``: the number of the prompt in the input, from 1."""

REJECTED = "rejected"
"""Field of a record of ``guardwrap generate``: rejected texts, if they were asked for."""

MADE = ("texts", "ok", "report", "reason", REJECTED)
"""Fields of a record in addition to those of its prompt."""

CHECKSUM = "checksum"
"""Field of a report in a record: the ``checksum_of`` the record when it was written."""

_CHECKED = ("prompt", "messages", "texts", "ok", "report", REJECTED)


def record_of(
    fields: Mapping[str, Any],
    outcome: Outcome,
    settings: Mapping[str, Any],
    number: int | None = None,
    rejected: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the record of one prompt: the fields of the input, the texts, and the report with the run's settings.

    ``rejected``: rejected texts to keep; None for none.
    """
    report = outcome.report.to_dict() | {"settings": dict(settings)}
    if number is not None:
        report[NUMBER] = number
    kept = {} if rejected is None else {REJECTED: list(rejected)}
    record = {**fields, "texts": list(outcome.texts), **kept, "ok": outcome.ok, "report": report}
    report[CHECKSUM] = checksum_of(record)
    return record


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's prompt, texts and report, without its checksum.

    It shows that a record was changed by accident. It is no signature: whoever forges a record can compute it.
    """
    checked = {name: record[name] for name in _CHECKED if name in record}
    if isinstance(checked.get("report"), Mapping):
        checked["report"] = {name: value for name, value in checked["report"].items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(checked, sort_keys=True).encode()).hexdigest()


def to_bytes(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    # Half a surrogate pair is possible in JSON but not in UTF-8, so it is escaped, as it was in the input.
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def why_short(outcome: Outcome) -> str:
    """Return why there are fewer texts than requested, and what helps."""
    if outcome.report.ended == "deterministic":
        return "this model's settings are greedy or beam search, which would give the same text again"
    obstacle = outcome.report.obstacle
    why = "" if obstacle is None else f": {obstacle}"
    return f"ended by {outcome.report.ended}{why}; {outcome.report.advice()}"


DIGESTS, VERSIONS = "digests", "versions"
"""The settings in a record that no option shows."""

_LIBRARIES = ("torch", "transformers", "tokenizers")


@cache  # every record has them
def versions() -> Mapping[str, str]:
    """Return the versions of the libraries that determine a distribution."""
    return {"guardwrap": __version__, **{name: version(name) for name in _LIBRARIES}}


def model_digest(model: str) -> str | None:
    """Return what identifies the files of a model; None if it is not known.

    ``model``: a Hub id, a folder, or ``"local"``. A folder may hold an adapter, whose base model counts too.
    """
    if model == "local":
        from guardwrap.models.embedded_model import local_digest  # imports torch

        return local_digest()
    digest, base = source_digest(model), None
    with suppress(OSError, ValueError, AttributeError):  # the loader explains what is wrong with the file
        base = json.loads((Path(model) / CONFIG).read_bytes()).get("base_model_name_or_path")
    if not isinstance(base, str) or digest is None:
        return digest
    of_base = source_digest(base)
    return None if of_base is None else f"{digest}+{of_base}"


def run_digests(
    model: str | None, proposal: Any, adapter: Any, constraint: Constraint, digest_of: Callable[[str], str | None]
) -> dict[str, str | None]:
    """Return what identifies the files that a run uses: model, adapter, learned twist, and what its rules read."""
    digests = rule_digests(constraint, digest_of)
    if model is not None:
        digests["model"] = model_digest(model)
        if isinstance(adapter, str | Path):
            digests["adapter"] = digest_of(str(adapter))
        elif isinstance(adapter, Adapter):
            digests["adapter"] = source_digest(str(adapter.source), adapter.revision)
    learned = getattr(proposal, "learned", None)
    if learned is not None:
        digests["learned twist"] = digest_of(str(learned))
    return digests


def rule_digests(constraint: Constraint, digest_of: Callable[[str], str | None]) -> dict[str, str | None]:
    """Return what identifies the files that judgements depend on, by name; see ``source_digest``."""
    named = {name: source for part in walk(constraint) for name, source in part.sources().items()}
    return {f"rule: {name}": digest_of(source) for name, source in sorted(named.items())}


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return how the settings of an earlier run differ from those of this one, as a clause; None if they are the same.

    Files whose digest is not known are never the same.
    """
    for name in sorted({*was, *now} - {DIGESTS, VERSIONS}):
        if was.get(name) != now.get(name):
            return _made_with(name, was.get(name))
    then, today = was.get(VERSIONS), now[VERSIONS]
    for library, installed in today.items():
        before = then.get(library) if isinstance(then, dict) else None
        if before != installed:
            return f"was made with {library} {before or 'of another version'}, and {installed} is installed"
    then, today = was.get(DIGESTS), now[DIGESTS]
    then = then if isinstance(then, dict) else {}
    for name in sorted({*then, *today}):
        if then.get(name) != today.get(name):
            return f"was made with other files of the {name}"
        if today.get(name) is None:
            return f"was made with files of the {name} whose version is not known"
    return None


def _made_with(name: str, was: Any) -> str:
    option = "--" + name.replace("_", "-")
    if was is None or was is False:
        return f"was made without {option}"
    return f"was made with {option}" + ("" if isinstance(was, bool) else f" {was}")  # a flag has no value


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


def read_json(where: str, line: str) -> Any:
    """Read a line of JSON, or raise PromptError."""
    try:
        return lexical.load_json(line)
    except (ValueError, OverflowError, RecursionError) as error:
        raise PromptError(f"{where}: not JSON: {first_line(error)}") from None


def has_failed(data: Any) -> bool:
    """Return whether a value is the record of a row of Ray that ended with an error: without a text, and a report."""
    return isinstance(data, dict) and data.get("texts") == [] and data.get("ok") is False and "report" not in data


@dataclass(frozen=True)
class Audit:
    """What records say, compared with rules."""

    records: int  # number of records, and of their texts
    texts: int
    violations: tuple[tuple[str, str], ...] = ()  # places, each with what is wrong there
    short: int = 0  # number of records with fewer texts than were requested
    # for rules that read what records lack, the number of records that they could not judge
    unjudged: Mapping[str, int] = field(default_factory=dict)
    repeated: int = 0  # number of texts that are equal to an earlier one
    shares: Mapping[str, float] = field(default_factory=dict)  # shares of the texts in which rules hold, by title

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON types."""
        violations = [{"where": where, "problem": problem} for where, problem in self.violations]
        data = {"records": self.records, "texts": self.texts, "short": self.short, "not_judged": dict(self.unjudged)}
        of_all = {"repeated": self.repeated, "shares": dict(self.shares)}
        return {"ok": not violations, **data, **of_all, "violations": violations}

    def lines(self) -> list[str]:
        """Return one line for each violation and each note, and a summary."""
        lines = [f"{where}: {problem}" for where, problem in self.violations]
        lines += [
            f"note: {quoted(title)} reads what no record has, so it judged none of the texts of {counted(n, 'record')}"
            for title, n in self.unjudged.items()
        ]
        lines += [f"note: {counted(self.short, 'record')} with fewer texts than requested"] if self.short else []
        lines += [f"note: {counted(self.repeated, 'text')} repeated from earlier ones"] if self.repeated else []
        lines += [
            f"note: {quoted(title)} holds in {digits(share)} of the texts" for title, share in self.shares.items()
        ]
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
    different, judged, holding = set[bytes](), Counter[str](), Counter[str]()
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
        different.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in data["texts"])
        for share in shares_of(constraint):
            rejected, unknown = judged_again(data, share.of)
            judged[share.title] += len(rejected)
            holding[share.title] += sum(not rejections for rejections in rejected)
            unjudged.update([share.title] * bool(unknown))
        problems = list(_faults_of_texts(data, constraint, unjudged))
        retried = AGAIN in data["report"]["settings"]  # with limits of the command line instead of the line's own
        problems += _faults_of_report(data, None if retried else own.budget or rules.budget, count)
        if whole:
            problems += _faults_of_digests(data["report"], constraint, digest_of)
        if model is not None and data["report"]["settings"].get(DIGESTS, {}).get("model") != model:
            problems.append("was made with other files of the model, or which ones is not known")
        violations += [(record.where, problem) for problem in problems]
    reached = {title: holding[title] / count for title, count in judged.items() if count and title not in unjudged}
    return Audit(number, texts, tuple(violations), short, unjudged, texts - len(different), reached)


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
