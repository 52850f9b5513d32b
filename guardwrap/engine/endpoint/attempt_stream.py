"""One attempt as a streamed request: its text arrives in pieces, and after faults it is retried with the same seed."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from guardwrap.engine.endpoint.endpoint_law import EndpointLaw
from guardwrap.engine.endpoint.request_faults import Broken, patience, retried
from guardwrap.engine.endpoint.server import Endpoint, Line
from guardwrap.errors import ContextExceeded, EndpointError, UsageError
from guardwrap.support.limits import is_text

NO_IDS = (
    "{} does not return token ids (return_token_ids), so its texts cannot be weighed; pass sampler='rejection', or use "
    "vLLM"
)
NO_LOGPROBS = (
    "{} does not return log-probabilities ({}), so its texts cannot be weighed; pass sampler='rejection', or use vLLM"
)

_PIECES, _CHARACTERS = 16, 1000
"""Maximum number of pieces and characters of a text per token. Servers send one piece per token; proxies may split
them. Most tokens have at most a dozen characters, very few over a hundred."""

_FEW = 256
"""Tokens beyond ``max_tokens`` that are tolerated, because a short text may be split into many pieces."""

_GREATEST_ID = 2**31


class AnswerLimit:
    """The maximum size of one text, so that a server that never ends a text is detected."""

    def __init__(self, where: str, max_tokens: int) -> None:
        self._where, self._max_tokens = where, max_tokens
        self._pieces = self._characters = self._ids = 0

    @property
    def tokens(self) -> int:
        """The largest token count for a text that is accepted from the server."""
        return self._max_tokens + _FEW

    def take(self, text: str, ids: Sequence[int]) -> None:
        """Count a piece of the text."""
        self._pieces += 1
        self._characters += len(text)
        self._ids += len(ids)
        most = self.tokens
        if self._pieces > _PIECES * most or self._characters > _CHARACTERS * most or self._ids > self._max_tokens:
            raise EndpointError(
                f"{self._where} ignores max_tokens={self._max_tokens}: a text is far longer; use one that respects it"
            )


def text_piece(value: Any) -> str:
    """Return a piece of text: empty for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not is_text(value):
        raise ValueError("not a string of valid Unicode")
    return value


def count_of(value: Any, most: int) -> int | None:
    """Return a token count, or None if it is not an integer from 0 to ``most``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= most else None


def ids_of(value: Any) -> list[int] | None:
    """Return token ids, or None if the value is not a list of valid ids."""
    if not isinstance(value, list | tuple):
        return None
    good = all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < _GREATEST_ID for each in value)
    return list(value) if good else None


def log_probabilities_of(values: Any) -> list[float] | None:
    """Return log-probabilities in nats, or None if the value is not a list of finite numbers."""
    if not isinstance(values, list | tuple):
        return None
    try:
        numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    except OverflowError:  # an integer too large for a float
        return None
    return numbers if len(numbers) == len(values) and all(map(math.isfinite, numbers)) else None


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


_STATUS = {"stop": "finished", "tool_calls": "finished", "length": "cut"}

_UNREAD = (
    "the server sent the reasoning of {} separately; it was neither judged nor returned (pass parse_messages=True)"
)


@dataclass(frozen=True)
class Piece:
    """A piece of a text."""

    # The characters, or pieces of a message as lines of JSON if the call parses messages. Empty if its tokens do not
    # yet complete a character, or end the text.
    text: str
    token_ids: Sequence[int] = ()  # its tokens, if they were requested
    log_probability: float = 0.0  # sum of the log-probabilities of ``token_ids``, in nats
    remarks: tuple[str, ...] = ()  # notes for the report, with ``{}`` for the number of attempts
    tokens: int | None = None  # the server's count of the text's tokens so far, or None


@dataclass(frozen=True)
class Ended:
    """The end of a text."""

    status: str  # ``"finished"`` if the text ended by itself, ``"cut"`` at the token limit
    tokens: int | None  # the server's count of the text's tokens, or None


@dataclass(frozen=True)
class AttemptRestarted:
    """A restart of the attempt: all earlier pieces must be discarded."""


Event = Piece | Ended | AttemptRestarted | Exception
"""An event of an attempt: a piece of text, its end, a restart, or the error that it fails with."""


async def stream_attempt(
    endpoint: Endpoint, line: Line, law: EndpointLaw, seed: int, put: Callable[[Event], None]
) -> None:
    """Draw an attempt. Errors are passed to ``put``, and not raised."""
    once = partial(_once, endpoint, line, law, seed, put)
    try:
        put(await retried(once, endpoint, line, law, lambda: put(AttemptRestarted())))
    except (EndpointError, UsageError) as error:
        put(error)
    except Exception as error:  # any other error also ends the attempt, which someone waits for
        put(EndpointError(f"a request to {endpoint.base_url} failed ({type(error).__name__}); check the server's log"))


async def _once(endpoint: Endpoint, line: Line, law: EndpointLaw, seed: int, put: Callable[[Event], None]) -> Ended:
    """Send the request once, and pass the pieces of its text to ``put``."""
    import openai

    end: str | None = None
    tokens: int | None = None
    count = 0
    allowance = AnswerLimit(endpoint.base_url, law.settings.fields["max_tokens"])
    deltas = DeltaReader(endpoint.base_url) if law.parses else None
    async with patience(endpoint):
        stream = await _opened(line, law, seed)
    async with stream as chunks:
        line.answered = True
        try:
            # The timeout is for pieces of the text, not for bytes: a server may send comments to keep the stream open.
            async with asyncio.timeout(endpoint.timeout) as clock:
                async for chunk in chunks:
                    if chunk.usage:
                        tokens = count_of(chunk.usage.completion_tokens, allowance.tokens)
                    for choice in chunk.choices or ():
                        piece, written = _piece(endpoint, law, choice, deltas)
                        if piece.text or piece.token_ids or piece.remarks:
                            allowance.take(written, piece.token_ids)
                            put(replace(piece, tokens=tokens))
                            clock.reschedule(asyncio.get_running_loop().time() + endpoint.timeout)
                        count += len(piece.token_ids)
                        end = choice.finish_reason or end
        except (openai.APIError, TimeoutError):
            if end is None or law.scored:  # otherwise the text is complete, and only its token count is missing
                raise
    if end == "content_filter":
        raise EndpointError(
            f"a content filter of {endpoint.base_url} cut a text, so texts are not the model's own; use a server "
            "without a filter"
        )
    if end == "tool_calls" and deltas is None:
        raise EndpointError(f"{endpoint.base_url} answers with a tool call; pass parse_messages=True")
    if end not in _STATUS:
        raise Broken
    if law.scored and count != tokens:
        # The end-of-sequence token contributes to the weight, but some servers leave it out.
        raise EndpointError(NO_IDS.format(endpoint.base_url))
    most = law.settings.fields["max_tokens"]
    if end == "length" and tokens is not None and tokens < most:
        # vLLM's server lowers max_tokens to the room that is left, and longer texts would be missing without a word.
        raise ContextExceeded(
            f"{endpoint.base_url} cut a text after {tokens} of max_new_tokens={most} tokens, as its context is full; "
            "lower max_new_tokens, or shorten the prompt"
        )
    return Ended(_STATUS[end], tokens)


def _piece(endpoint: Endpoint, law: EndpointLaw, choice: Any, deltas: DeltaReader | None) -> tuple[Piece, str]:
    """Return the piece of a text in a choice, and what the model has written in it."""
    remarks: tuple[str, ...] = ()
    if isinstance(law.prompt, str):
        text = written = text_piece(choice.text)
    elif deltas is not None:
        pieces = deltas.read(choice.delta) if choice.delta else []
        text, written = "".join(map(delta_line, pieces)), "".join(piece.name + piece.text for piece in pieces)
    else:
        text = written = text_piece(choice.delta and choice.delta.content)
        remarks = (_UNREAD,) if choice.delta and reasoning_in(choice.delta) else ()
    raw_ids = (getattr(choice, "token_ids", None) or ()) if law.scored else ()
    if not raw_ids:
        return Piece(text, remarks=remarks), written
    ids = ids_of(raw_ids)
    if ids is None:
        raise EndpointError(NO_IDS.format(endpoint.base_url))
    raw_logprobs = getattr(choice.logprobs, "token_logprobs", None)
    if raw_logprobs is None:
        raw_logprobs = [each.logprob for each in getattr(choice.logprobs, "content", None) or ()]
    logprobs = log_probabilities_of(raw_logprobs)
    if logprobs is None or len(logprobs) != len(ids):
        raise EndpointError(NO_LOGPROBS.format(endpoint.base_url, "logprobs"))
    return Piece(text, ids, sum(logprobs), remarks), written


async def _opened(line: Line, law: EndpointLaw, seed: int) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    fields = {**law.fields, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    stream: AbstractAsyncContextManager[AsyncIterator[Any]]
    stream = await line.send(law.route, fields, law.extra, law.traced)
    return stream
