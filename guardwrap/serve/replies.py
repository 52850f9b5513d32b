"""Outcomes as objects and events of OpenAI's APIs. They contain exactly the texts that were checked and accepted."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

from guardwrap.constraints.stop_strings import GrowingCut, cut
from guardwrap.models.parsed_message import answer_message, finish_reason
from guardwrap.outcomes import Draw, Outcome, Remedy, Report, report_blame
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.support.formatting import digits

WAITING = b": waiting\n\n"
"""A comment in the stream of server-sent events, so that proxies keep the connection open."""


def event(data: Mapping[str, Any]) -> bytes:
    """Return a server-sent event. If the data has a ``type``, it is the event's name."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data, allow_nan=False)}\n\n".encode()


def report_json(report: Report) -> dict[str, Any]:
    """Return a report as plain JSON types, with its text under ``said``."""
    return {**report.to_dict(), "said": str(report)}


def require_complete(outcome: Outcome, request: ParsedRequest) -> Outcome:
    """Return the outcome if it has all of its texts, with fallbacks as draws."""
    report = outcome.report
    if outcome.ok and len(outcome.draws) == report.requested:
        return outcome
    if report.fallback:
        return replace(outcome, draws=(*outcome.draws, *outcome.fallbacks))
    changes = ", ".join(_changes(report, request))
    message = f"{report.headline()}; {report_blame(report)}what helps in this request: {changes}"
    raise ErrorResponse(422, message, code=report.ended, report=report_json(report))


_OFF = {"top_k": '"top_k": -1', "top_p": '"top_p": 1'}
"""The fields of a request that turn off a setting that leaves out tokens."""


def _changes(report: Report, request: ParsedRequest) -> list[str]:
    """Return what to change in the fields of a request that got too few texts, what helps most first."""
    tokens, most = request.options.get("max_new_tokens"), request.most_tokens
    length = request.length_field or ("max_output_tokens" if request.prompt_field == "input" else "max_tokens")
    longer = [f"a {length} above {tokens}"] if most is None or (tokens is not None and tokens < most) else []
    turned_off = {**{name: [field] for name, field in _OFF.items()}, "max_new_tokens": longer}
    names = () if report.obstacle is None else report.obstacle.names
    limit = getattr(report.budget, report.ended, None) if Remedy.TIME in report.remedies else None
    changes = {
        Remedy.TIME: [f'"guardwrap": {{"budget": {{"{report.ended}": {digits(2 * limit)}}}}}'] if limit else [],
        Remedy.SAMPLING: ['"temperature" above 0'],
        Remedy.SETTINGS: [field for name in names for field in turned_off.get(name, [])],
        Remedy.TEXTS: [_OFF["top_k"]],
        Remedy.LENGTH: longer,
        Remedy.CALLS: ["no guardwrap.sampler, so that tokens are masked until there is a call"],
        Remedy.BEYOND: ['"guardwrap": {"proposal": {"masked": {"beyond_truncation": true}}}'],
        Remedy.MASK: ['"guardwrap": {"proposal": "masked"}'],
    }
    fields = [field for remedy in report.remedies for field in changes.get(remedy, [])]
    weaker = "a weaker constraint" + (", or a prompt that describes it" if Remedy.PROMPT in report.remedies else "")
    return fields if fields and report.ended != "impossible" else [*fields, weaker]


@dataclass(frozen=True)
class Reply:
    """The reply to one request."""

    request: ParsedRequest  # the parsed request
    chat: bool = True  # whether the request came to ``/v1/chat/completions``
    # id of the reply, and its time as a Unix timestamp in seconds
    ident: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    _growing: dict[int, GrowingCut] = field(default_factory=dict, init=False, repr=False)

    done: ClassVar[bytes] = b"data: [DONE]\n\n"
    """The end of a stream without errors."""

    def whole(self, outcomes: Sequence[Outcome], prompt_tokens: int) -> dict[str, Any]:
        """Return the complete reply, for a request that does not stream."""
        choices = [self._choice(draw, index) for index, draw in self._numbered(outcomes)]
        reports = [report_json(outcome.report) for outcome in outcomes]
        head = self._head("chat.completion" if self.chat else "text_completion")
        usage = _usage(outcomes, prompt_tokens)
        return head | {"choices": choices, "usage": usage, "guardwrap": reports[0] if len(reports) == 1 else reports}

    def begins(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks before the first text: none."""
        yield from ()

    def piece(self, text: str, prompt: int, number: int) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a piece of a text. What may become a stop string is held back."""
        index = prompt * self.request.n + number
        if index not in self._growing:
            self._growing[index] = GrowingCut(self.request.stops)
            if self.chat:
                yield self._begin(index)
        if new := self._growing[index].read(text):
            yield self._more(index, new)

    def text(self, draw: Draw, prompt: int, number: int) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an accepted text, without the pieces that were sent before."""
        index = prompt * self.request.n + number
        if (growing := self._growing.pop(index, None)) is not None:
            if rest := self._text(draw)[growing.settled :]:
                yield self._more(index, rest)
            return
        if not self.chat:
            yield self._more(index, self._text(draw))
            return
        yield self._begin(index)
        message = self._message(draw)
        for name in ("reasoning_content", "content"):
            if message.get(name):
                yield self._chunk(index, {"delta": {name: message[name]}}, None)
        for place, call in enumerate(message.get("tool_calls", ())):
            yield self._chunk(index, {"delta": {"tool_calls": [{"index": place, **call}]}}, None)

    def ends(self, outcome: Outcome, prompt: int) -> Iterator[dict[str, Any]]:
        """Yield the chunks that end a prompt's texts, each with the report."""
        report = report_json(outcome.report)
        for index, draw in enumerate(outcome.draws, start=prompt * self.request.n):
            nothing: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
            yield self._chunk(index, nothing, self._reason(draw)) | {"guardwrap": report}

    def last(self, outcomes: Sequence[Outcome], prompt_tokens: int) -> Iterator[dict[str, Any]]:
        """Yield the last chunk, which has the number of tokens, if the request asks for it."""
        if self.request.usage:
            yield self._head(self._of_chunks) | {"choices": [], "usage": _usage(outcomes, prompt_tokens)}

    def failed(self, refused: ErrorResponse) -> dict[str, Any]:
        """Return the last chunk of a stream that an error ends."""
        return refused.body()

    def _begin(self, index: int) -> dict[str, Any]:
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def _more(self, index: int, text: str) -> dict[str, Any]:
        return self._chunk(index, {"delta": {"content": text}} if self.chat else {"text": text}, None)

    @property
    def _of_chunks(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        ident = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.ident}"
        head = {"id": ident, "object": kind, "created": self.created, "model": self.request.model}
        return head | {"system_fingerprint": None}

    def _chunk(self, index: int, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        chunk = self._head(self._of_chunks) | {"choices": [choice]}
        return chunk | {"usage": None} if self.request.usage else chunk

    def _choice(self, draw: Draw, index: int) -> dict[str, Any]:
        content: dict[str, Any] = {"text": self._text(draw)}
        if self.chat:
            content = {"message": {"role": "assistant", **self._message(draw), "refusal": None}}
        return {"index": index, **content, "logprobs": None, "finish_reason": self._reason(draw)}

    def _numbered(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[int, Draw]]:
        for number, outcome in enumerate(outcomes):
            yield from enumerate(outcome.draws, start=number * self.request.n)

    def _text(self, draw: Draw) -> str:
        return cut(draw.text, self.request.stops)

    def _message(self, draw: Draw) -> dict[str, Any]:
        return answer_message(draw, self.request.stops)

    def _reason(self, draw: Draw) -> str:
        return finish_reason(draw, self.request.stops)


def _usage(outcomes: Sequence[Outcome], prompt_tokens: int) -> dict[str, int]:
    """Count the tokens of the prompts and of the returned texts. The reports count those of all attempts."""
    new = sum(len(draw.token_ids) for outcome in outcomes for draw in outcome.draws)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": new, "total_tokens": prompt_tokens + new}


@dataclass(eq=False)
class ResponsesReply:
    """The reply to one request to ``/v1/responses``, which has one prompt and one text."""

    request: ParsedRequest  # the parsed request
    count_tokens: Callable[[str], int]  # returns the number of tokens of the reasoning
    # id of the reply, and its time as a Unix timestamp in seconds
    ident: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    done: ClassVar[bytes] = b""
    """The end of a stream without errors, after the last event."""

    def __post_init__(self) -> None:
        self._numbers = count()
        self._output: list[dict[str, Any]] = []
        self._growing: tuple[dict[str, Any], GrowingCut] | None = None  # the message that is being sent in pieces

    def whole(self, outcomes: Sequence[Outcome], prompt_tokens: int) -> dict[str, Any]:
        """Return the complete response, for a request that does not stream."""
        self._output = self._output or self._items(outcomes[0].draws[0])
        return self._ended(outcomes[0], prompt_tokens)

    def begins(self) -> Iterator[dict[str, Any]]:
        """Yield the events before the text."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def piece(self, text: str, prompt: int, number: int) -> Iterator[dict[str, Any]]:
        """Yield the events of a piece of the text. What may become a stop string is held back."""
        if self._growing is None:
            item = _message("", "in_progress")
            self._growing = item, GrowingCut(self.request.stops)
            yield self._added(item, 0)
            yield from self._part_begins(item["content"][0], _inside(item, 0))
        item, growing = self._growing
        if new := growing.read(text):
            yield self._delta(item["content"][0], _inside(item, 0), new)

    def text(self, draw: Draw, prompt: int, number: int) -> Iterator[dict[str, Any]]:
        """Yield the events of the accepted text, without the pieces that were sent before.

        ``prompt`` and ``number`` are 0, because it is the only one.
        """
        if self._growing is not None:
            (begun, growing), (item,) = self._growing, self._items(draw)
            item["id"], part = begun["id"], item["content"][0]
            if rest := part["text"][growing.settled :]:
                yield self._delta(part, _inside(item, 0), rest)
            yield from self._part_ends(part, _inside(item, 0))
            yield self._event("response.output_item.done", output_index=0, item=item)
            self._output.append(item)
            return
        for index, item in enumerate(self._items(draw)):
            yield from self._item_events(item, index)
            self._output.append(item)

    def ends(self, outcome: Outcome, prompt: int) -> Iterator[dict[str, Any]]:
        """Yield the events between the text and the last event: none."""
        yield from ()

    def last(self, outcomes: Sequence[Outcome], prompt_tokens: int) -> Iterator[dict[str, Any]]:
        """Yield the last event, which has the complete response."""
        response = self.whole(outcomes, prompt_tokens)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, refused: ErrorResponse) -> dict[str, Any]:
        """Return the last event of a stream that an error ends."""
        return self._event("response.failed", response=self._response("failed", error=refused.body()["error"]))

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self.ident}",
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self.request.model,
            "output": [*self._output],
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "top_logprobs": 0,
            "truncation": "disabled",
            "usage": None,
            **self.request.echo,
            **fields,
        }

    def _ended(self, outcome: Outcome, prompt_tokens: int) -> dict[str, Any]:
        (draw,) = outcome.draws
        usage, report = self._usage(draw, prompt_tokens), report_json(outcome.report)
        if self._is_cut_off(draw):
            details = {"reason": "max_output_tokens"}
            return self._response("incomplete", incomplete_details=details, usage=usage, guardwrap=report)
        return self._response("completed", completed_at=int(time.time()), usage=usage, guardwrap=report)

    def _is_cut_off(self, draw: Draw) -> bool:
        return finish_reason(draw, self.request.stops) == "length"

    def _items(self, draw: Draw) -> list[dict[str, Any]]:
        """Return the output items of a text: reasoning, message and calls."""
        message = answer_message(draw, self.request.stops)
        items: list[dict[str, Any]] = []
        if thoughts := message.get("reasoning_content"):
            content = [{"type": "reasoning_text", "text": thoughts}]
            items.append(_item("rs", "reasoning") | {"summary": [], "content": content, "encrypted_content": None})
        if message["content"] is not None:
            items.append(_message(message["content"], "incomplete" if self._is_cut_off(draw) else "completed"))
        calls = message.get("tool_calls", ())
        return items + [_item("fc", "function_call") | {"call_id": call["id"], **call["function"]} for call in calls]

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _item_events(self, item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
        """Yield the events of one output item: its beginning, its text, and its end."""
        yield self._added(item, index)
        if item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": index}
            kind, arguments = "response.function_call_arguments", item["arguments"]
            yield self._event(f"{kind}.delta", **place, delta=arguments)
            yield self._event(f"{kind}.done", **place, name=item["name"], arguments=arguments)
        for content_index, part in enumerate(item.get("content", ())):
            inside = _inside(item, index, content_index)
            yield from self._part_begins(part, inside)
            yield self._delta(part, inside, part["text"])
            yield from self._part_ends(part, inside)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _added(self, item: dict[str, Any], index: int) -> dict[str, Any]:
        empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        begun = {**item, **empty, "status": "in_progress"}
        return self._event("response.output_item.added", output_index=index, item=begun)

    def _part_begins(self, part: dict[str, Any], inside: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield self._event("response.content_part.added", **inside, part={**part, "text": ""})

    def _delta(self, part: dict[str, Any], inside: dict[str, Any], text: str) -> dict[str, Any]:
        return self._event(f"response.{part['type']}.delta", **inside, delta=text, **_logprobs(part))

    def _part_ends(self, part: dict[str, Any], inside: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield self._event(f"response.{part['type']}.done", **inside, text=part["text"], **_logprobs(part))
        yield self._event("response.content_part.done", **inside, part=part)

    def _usage(self, draw: Draw, prompt_tokens: int) -> dict[str, Any]:
        """Count the tokens of the prompt and of the returned text. The report counts those of all attempts."""
        thoughts = "".join(item["content"][0]["text"] for item in self._output if item["type"] == "reasoning")
        new = len(draw.token_ids)
        reasoning = self.count_tokens(thoughts) if thoughts else 0
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": new,
            "output_tokens_details": {"reasoning_tokens": min(reasoning, new)},
            "total_tokens": prompt_tokens + new,
        }


def _item(prefix: str, kind: str, status: str = "completed") -> dict[str, Any]:
    return {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": status}


def _message(text: str, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return _item("msg", "message", status) | {"role": "assistant", "content": [part]}


def _inside(item: dict[str, Any], index: int, content_index: int = 0) -> dict[str, Any]:
    """Return the fields that say where a part of an output item is."""
    return {"item_id": item["id"], "output_index": index, "content_index": content_index}


def _logprobs(part: dict[str, Any]) -> dict[str, Any]:
    return {"logprobs": []} if part["type"] == "output_text" else {}
