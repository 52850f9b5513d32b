"""Outcomes as objects and events of OpenAI's Responses API. They contain exactly the text that was accepted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from guardwrap.constraints.stop_strings import GrowingCut
from guardwrap.environment.transformers_internals import tokenizer_lock
from guardwrap.messages.parsed_message import answer_message, finish_reason
from guardwrap.outcomes import Draw, Outcome
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.replies import report_json


@dataclass(eq=False)
class ResponsesReply:
    """The reply to one request to ``/v1/responses``, which has one prompt and one text."""

    request: ParsedRequest  # the parsed request
    tokenizer: Any  # counts the tokens of the reasoning
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
        with tokenizer_lock(self.tokenizer):
            reasoning = len(self.tokenizer.encode(thoughts, add_special_tokens=False)) if thoughts else 0
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
