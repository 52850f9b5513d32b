"""Pieces of a message that a server streams in separate fields: reasoning, answer and tool calls."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from guardwrap.backends.endpoint.answers import text_piece
from guardwrap.errors import EndpointError

_ORDER = "{} mixes the pieces of its tool calls, so they cannot be judged while they arrive; leave tools= out"
_NO_NAME = "{} sends a tool call without its name, or in pieces that change it; check the server's tool-call parser"


class Delta(NamedTuple):
    """A piece of a message."""

    part: str  # the part of the message that it belongs to: ``"answer"``, ``"reasoning"`` or ``"tool_calls"``
    text: str  # its text; of a call, JSON of the arguments
    call: int = 0  # the number of the call, from 0
    name: str = ""  # the tool that the call names


class DeltaReader:
    """Reads the field ``delta`` of a stream's chunks, in order."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._call, self._name = -1, ""

    def read(self, delta: Any) -> list[Delta]:
        """Return the pieces of one chunk."""
        pieces = [Delta("reasoning", reasoning_in(delta)), Delta("answer", text_piece(delta.content))]
        calls = getattr(delta, "tool_calls", None) or []
        return [*(piece for piece in pieces if piece.text), *(self._of_call(call) for call in calls)]

    def _of_call(self, call: Any) -> Delta:
        number, name = call.index, text_piece(call.function.name)
        if isinstance(number, bool) or number not in (max(self._call, 0), self._call + 1):
            raise EndpointError(_ORDER.format(self._where))
        if number > self._call:
            self._call, self._name = number, name
        if not self._name or (name and name != self._name):
            raise EndpointError(_NO_NAME.format(self._where))
        return Delta("tool_calls", text_piece(call.function.arguments), number, self._name)


def reasoning_in(delta: Any) -> str:
    """Return the reasoning in a chunk. vLLM and others have renamed the field, and some servers send both."""
    return text_piece(getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None))


def delta_line(delta: Delta) -> str:
    """Return a piece as one line of JSON, so that a growing message is a growing text."""
    return json.dumps(delta) + "\n"


def deltas_in(text: str) -> list[Delta]:
    """Return the pieces in lines that ``delta_line`` made."""
    return [Delta(*json.loads(line)) for line in text.split("\n") if line]
