"""Whether a server enforces what it accepts: requests on which a field that is ignored shows."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.constraints.verdicts import Verdict
from guardwrap.engine.endpoint.attempt_stream import text_piece
from guardwrap.engine.endpoint.request_faults import printable_line
from guardwrap.engine.endpoint.server import Endpoint, ServerLine, client_library
from guardwrap.errors import EndpointError
from guardwrap.support.network import is_temporary

PROMPT = "Write a short poem about the sea."
"""Asks for what no constraint below accepts, so that a model that is not constrained breaks it at once."""

TOKENS, REASONED, COUNT, STOP, MOST_LIKELY = 64, 1024, 3, "e", 5

_SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["zebra", "quartz"]}, "count": {"type": "integer", "minimum": 3, "maximum": 7}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
_NAMES = ("pick", "weigh")
_TOOLS = [{"type": "function", "function": {"name": name, "strict": True, "parameters": _SCHEMA}} for name in _NAMES]
_FORMAT = {"type": "json_schema", "json_schema": {"name": "picked", "strict": True, "schema": _SCHEMA}}
_DATE, _CHOICES, _GRAMMAR = "[0-9]{4}-[0-9]{2}-[0-9]{2}", ["zebra", "quartz"], 'start: ("ab" | "cd") "-" ("12" | "34")'
_DATED, _CHOICE = Regex(_DATE, match="fullmatch"), Regex("|".join(_CHOICES), match="fullmatch")
_FITS, _OBJECT = JSONSchema(_SCHEMA), JSONSchema({"type": "object"})


class Result(StrEnum):
    """What a server does with a field."""

    ENFORCED = "enforced"
    IGNORED = "NOT ENFORCED"
    REFUSED = "refused"  # with an error, so that nobody relies on it
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """One choice of an answer."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()  # names and arguments
    cut_off: bool = False  # whether it ended at the token limit
    top: tuple[tuple[float, ...], ...] = ()  # log-probabilities of the most likely tokens at each position
    reasoning: bool = False  # whether there is reasoning before the text


class Undecided(Exception):
    """An answer shows nothing: it was cut off before it could, or the exception says why."""


Fault = Callable[[Sequence[Answer]], str | None]
"""Says what is wrong with an answer; None if nothing is."""


@dataclass(frozen=True)
class Probe:
    """A field, the request that tries it, and what an answer must be."""

    name: str
    fields: Mapping[str, Any]
    fault: Fault
    # Each request is sent again with its seed plus this number; None for once.
    again: int | None = None
    note: Callable[[Sequence[Answer]], str] = lambda answers: ""  # what to say of an answer with which nothing is wrong


@dataclass(frozen=True)
class Finding:
    """What came out for a field."""

    name: str
    result: Result
    tries: int = 0
    detail: str = ""


def _fits(constraint: Constraint, count: int = 1) -> Fault:
    def fault(answers: Sequence[Answer]) -> str | None:
        if len(answers) != count:
            return f"{len(answers)} texts instead of {count}"
        for answer in answers:
            _require_text(answer)
            if not (constraint.accepts(answer.text) if not answer.cut_off else _may_fit(constraint, answer.text)):
                return "a text that breaks it"
        return None

    return fault


def _may_fit(constraint: Constraint, prefix: str) -> bool:
    """Return whether a text that was cut off may fit. A poem does not begin as one that does."""
    return constraint.verdict(prefix) is not Verdict.VIOLATED


def _require_text(answer: Answer) -> None:
    """Raise Undecided for an answer that was cut off before its text, for example in its reasoning."""
    if answer.cut_off and not answer.text.strip():
        raise Undecided


def _called(*names: str, arguments: bool = False) -> Fault:
    """Return a check that only these tools are called, and, on request, that their arguments fit the schema."""

    def fault(answers: Sequence[Answer]) -> str | None:
        answer = answers[0]
        if not answer.calls:
            if answer.cut_off and answer.text.lstrip()[:1] in ("", "{", "[", "<"):  # it may begin a call, or reasoning
                raise Undecided
            return "no tool was called"
        if any(name not in names for name, _ in answer.calls):
            return "another tool was called"
        wrong = arguments and not all(_FITS.accepts(written) for _, written in answer.calls)
        return "arguments that break the schema" if wrong else None

    return fault


def _fits_after_reasoning(answers: Sequence[Answer]) -> str | None:
    fault = _fits(_FITS)(answers)
    if fault is None and not answers[0].reasoning:
        raise Undecided("the model did not reason")
    return fault


def _call_or_format(answers: Sequence[Answer]) -> str | None:
    return _called(*_NAMES, arguments=True)(answers) if answers[0].calls else _fits(_FITS)(answers)


def _same(answers: Sequence[Answer]) -> str | None:
    if len({answer.text for answer in answers}) > 1:
        return "two texts instead of one"
    _require_text(answers[0])
    return None


def _stopped(answers: Sequence[Answer]) -> str | None:
    _require_text(answers[0])
    return "the stop string is in the text" if STOP in answers[0].text else None


def _sums(answers: Sequence[Answer]) -> list[float]:
    """Return the probabilities of the most likely tokens together, at each position."""
    return [math.fsum(map(math.exp, position)) for position in answers[0].top]


def _above_one(answers: Sequence[Answer]) -> str | None:
    sums = _sums(answers)
    return "no log-probabilities" if not sums else f"they sum to {max(sums):.3f}" if max(sums) > 1.001 else None


def _of_what(answers: Sequence[Answer]) -> str:
    """Say which distribution log-probabilities are of. There are as many as ``top_k`` lets the server sample."""
    least = min(_sums(answers))
    return "of what is sampled" if least > 0.999 else f"of the whole vocabulary, not of top_k: they sum to {least:.3f}"


PROBES = (
    Probe("response_format: json_schema", {"response_format": _FORMAT}, _fits(_FITS)),
    Probe("response_format: json_object", {"response_format": {"type": "json_object"}}, _fits(_OBJECT)),
    Probe("structured_outputs: json", {"structured_outputs": {"json": _SCHEMA}}, _fits(_FITS)),
    Probe("structured_outputs: regex", {"structured_outputs": {"regex": _DATE}}, _fits(_DATED)),
    Probe("structured_outputs: choice", {"structured_outputs": {"choice": _CHOICES}}, _fits(_CHOICE)),
    Probe("structured_outputs: grammar", {"structured_outputs": {"grammar": _GRAMMAR}}, _fits(Grammar(_GRAMMAR))),
    Probe("tool_choice: required", {"tools": _TOOLS, "tool_choice": "required"}, _called(*_NAMES)),
    Probe(
        "tool_choice: a tool",
        {"tools": _TOOLS, "tool_choice": {"type": "function", "function": {"name": _NAMES[1]}}},
        _called(_NAMES[1]),
    ),
    Probe("tools: strict", {"tools": _TOOLS, "tool_choice": "required"}, _called(*_NAMES, arguments=True)),
    Probe("tools with response_format", {"tools": _TOOLS, "response_format": _FORMAT}, _call_or_format),
    Probe("json_schema after reasoning", {"response_format": _FORMAT, "max_tokens": REASONED}, _fits_after_reasoning),
    Probe("stream with json_schema", {"response_format": _FORMAT, "stream": True}, _fits(_FITS)),
    Probe("n with json_schema", {"response_format": _FORMAT, "n": COUNT}, _fits(_FITS, COUNT)),
    Probe("seed", {}, _same, again=0),
    Probe("top_k", {"top_k": 1}, _same, again=1000),  # leaves one token, so that texts do not depend on the seed
    Probe("min_p", {"min_p": 1.0}, _same, again=1000),
    Probe("stop", {"stop": [STOP]}, _stopped),
    Probe("logprobs", {"logprobs": True, "top_logprobs": MOST_LIKELY, "top_k": MOST_LIKELY}, _above_one, note=_of_what),
)  # fmt: skip


class Server:
    """A server and one of its models."""

    def __init__(self, url: str, model: str | None) -> None:
        openai = client_library()
        endpoint = Endpoint(url, model=model or "unknown")
        self._failure = openai.APIError
        self._line = ServerLine(endpoint)  # which follows no redirects, and limits what is read
        weakref.finalize(self, self._line.close)
        self._client: Any = self._line.client.with_options(max_retries=1)
        try:
            self.model = model or asyncio.run_coroutine_threadsafe(self._line.models(), self._line.loop).result()[0]
        except (openai.APIError, IndexError) as error:
            raise EndpointError(
                f"{endpoint.base_url} lists no model ({type(error).__name__}); name one with --model"
            ) from None

    def answers(self, fields: Mapping[str, Any], seed: int) -> list[Answer]:
        """Send a request and return its choices; raise Undecided if there are none."""
        try:
            answers = asyncio.run_coroutine_threadsafe(self._answers(fields, seed), self._line.loop).result()
        except (AttributeError, TypeError, ValueError):  # openai does not validate what it receives
            answers = []
        if not answers:
            raise Undecided("an answer is not OpenAI protocol")
        return answers

    async def _answers(self, fields: Mapping[str, Any], seed: int) -> list[Answer]:
        stream = fields.get("stream", False)
        rest = {name: value for name, value in fields.items() if name != "stream"}
        reply = await self._client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": PROMPT}],
            stream=stream,
            extra_body={"max_tokens": TOKENS, "temperature": 1.0, "seed": seed, **rest},
        )
        if stream:
            chunks = [choice async for chunk in reply for choice in chunk.choices]
            ended = any(chunk.finish_reason == "length" for chunk in chunks)
            text = "".join(text_piece(chunk.delta.content) for chunk in chunks)
            return [Answer(text, cut_off=ended)] if chunks else []
        return [_answer(choice) for choice in reply.choices]

    def found(self, probe: Probe, tries: int) -> Finding:
        """Try a field, each time with another seed."""
        limit = f"cut off at {probe.fields.get('max_tokens', TOKENS)} tokens"
        faults, decided, cut_off, note, undecided = [], 0, 0, "", limit
        failed: Finding | None = None
        for seed in range(1, tries + 1):
            try:
                seeds = [seed] if probe.again is None else [seed, seed + probe.again]
                answers = [answer for each in seeds for answer in self.answers(probe.fields, each)]
                fault = probe.fault(answers)
                note = probe.note(answers) if fault is None else note
            except Undecided as reason:
                undecided = str(reason) or undecided
                continue
            except self._failure as error:
                failed = self._failed(probe, seed, error)
                break
            decided, cut_off = decided + 1, cut_off + any(answer.cut_off for answer in answers)
            faults += [] if fault is None else [fault]
        if faults:  # one is enough, whatever happened to the other tries
            tried = tries if failed is None else failed.tries
            return Finding(probe.name, Result.IGNORED, tried, f"{len(faults)} of {decided}: {faults[0]}")
        if failed is not None:
            return failed
        if not decided:
            return Finding(probe.name, Result.UNKNOWN, tries, undecided)
        if cut_off and probe.fault is not _same and not note:
            note = f"{cut_off} of {decided} were {limit}, and right so far"
        return Finding(probe.name, Result.ENFORCED, decided, note)

    def _failed(self, probe: Probe, seed: int, error: Any) -> Finding:
        """Return what an error says of a field; raise EndpointError if the server cannot be asked at all."""
        if isinstance(error.__cause__, EndpointError):  # openai wraps errors of the client's hooks
            raise error.__cause__ from None
        status = getattr(error, "status_code", None)
        # What the server says of its error, without openai's words around it.
        message = error.body["message"] if _says(error.body) else type(error).__name__
        message = printable_line(
            message if self._line.secret is None else message.replace(self._line.secret, "***"), 70
        )
        if status is not None and 300 <= status < 400:
            message = f"it redirects to another address (HTTP {status}), to which prompts are not sent"
        if status is None or status in (401, 403, 404) or 300 <= status < 400:
            asked = f"{self.model} at {self._client.base_url}"
            raise EndpointError(f"{asked} cannot be asked: {message}; check --endpoint and --model") from None
        result = Result.UNKNOWN if is_temporary(status) else Result.REFUSED
        return Finding(probe.name, result, seed, f"{status} {message}".rstrip())


def _says(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("message"), str)


def _answer(choice: Any) -> Answer:
    calls = [
        (text_piece(call.function.name), text_piece(call.function.arguments))
        for call in choice.message.tool_calls or ()
    ]
    positions = [] if choice.logprobs is None else choice.logprobs.content or []
    top = tuple(tuple(float(one.logprob) for one in position.top_logprobs) for position in positions)
    reasoning = any(getattr(choice.message, name, None) for name in ("reasoning", "reasoning_content"))
    return Answer(text_piece(choice.message.content), tuple(calls), choice.finish_reason == "length", top, reasoning)


def findings(url: str, model: str | None, tries: int) -> Iterator[Finding]:
    """Try each field at a server."""
    server = Server(url, model)
    for probe in PROBES:
        yield server.found(probe, tries)
