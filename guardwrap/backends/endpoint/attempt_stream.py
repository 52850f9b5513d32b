"""One attempt as a streamed request: its text arrives in pieces, and after faults it is retried with the same seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from guardwrap.backends.endpoint.answers import AnswerLimit, count_of, ids_of, log_probabilities_of, text_piece
from guardwrap.backends.endpoint.endpoint_law import EndpointLaw
from guardwrap.backends.endpoint.endpoint_scores import NO_IDS, NO_LOGPROBS
from guardwrap.backends.endpoint.message_deltas import DeltaReader, delta_line, reasoning_in
from guardwrap.backends.endpoint.request_faults import Broken, retried
from guardwrap.backends.endpoint.server import Endpoint, Line
from guardwrap.backends.endpoint.transfer_limits import patience
from guardwrap.errors import EndpointError

if TYPE_CHECKING:
    from openai import AsyncStream

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
    except EndpointError as error:
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
    async with stream:
        line.answered = True
        if "text/event-stream" not in stream.response.headers.get("content-type", ""):
            raise EndpointError(
                f"{endpoint.base_url} does not stream its answers, which early abort requires; check base_url"
            )
        try:
            # The timeout is for pieces of the text, not for bytes: a server may send comments to keep the stream open.
            async with asyncio.timeout(endpoint.timeout) as clock:
                async for chunk in stream:
                    if chunk.usage:
                        tokens = count_of(chunk.usage.completion_tokens, allowance.tokens)
                    for choice in chunk.choices or ():
                        piece, written = _piece(endpoint, law, choice, deltas)
                        if piece.text or piece.token_ids or piece.remarks:
                            allowance.take(written, piece.token_ids)
                            put(piece)
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


async def _opened(line: Line, law: EndpointLaw, seed: int) -> AsyncStream[Any]:
    fields = {**law.fields, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    stream: AsyncStream[Any] = await line.send(law.route, fields, law.extra, law.traced)
    return stream
