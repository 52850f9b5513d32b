"""One attempt as a streamed request: its text piece by piece, tried again as the same attempt after a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from guardwrap.backends.endpoint.answers import AnswerLimit, count_of, ids_of, log_probabilities_of, text_piece
from guardwrap.backends.endpoint.endpoint_law import EndpointLaw
from guardwrap.backends.endpoint.endpoint_scores import NO_IDS, NO_LOGPROBS
from guardwrap.backends.endpoint.request_faults import Broken, retried
from guardwrap.backends.endpoint.server import Endpoint, Line
from guardwrap.backends.endpoint.transfer_limits import patience
from guardwrap.errors import EndpointError

if TYPE_CHECKING:
    from openai import AsyncStream

__all__ = ["AttemptRestarted", "Ended", "Event", "Piece", "stream_attempt"]

_STATUS = {"stop": "finished", "length": "cut"}


@dataclass(frozen=True)
class Piece:
    """A piece of a text.

    Parameters
    ----------
    text
        Empty where its tokens are no whole character yet, or end the text.
    token_ids
        Its tokens, where they were asked for.
    log_probability
        Of them, in nats.
    """

    text: str
    token_ids: Sequence[int] = ()
    log_probability: float = 0.0


@dataclass(frozen=True)
class Ended:
    """A text that is whole.

    Parameters
    ----------
    status
        As ``Decoded`` has it.
    tokens
        As the server counted them, or None.
    """

    status: str
    tokens: int | None


@dataclass(frozen=True)
class AttemptRestarted:
    """An attempt that begins anew: what has come of it so far does not count."""


Event = Piece | Ended | AttemptRestarted | Exception
"""What comes of an attempt: a piece of text, its end, a new beginning, or what it fails with."""


async def stream_attempt(
    endpoint: Endpoint, line: Line, law: EndpointLaw, seed: int, put: Callable[[Event], None]
) -> None:
    """Draw an attempt.

    Parameters
    ----------
    endpoint, line
        Where from.
    law
        Under which law.
    seed
        The attempt's own, the same however often it is tried.
    put
        Takes what comes of it.
    """
    once = partial(_once, endpoint, line, law, seed, put)
    try:
        put(await retried(once, endpoint, line, law, lambda: put(AttemptRestarted())))
    except EndpointError as error:
        put(error)
    except Exception as error:  # whatever it is: the attempt has ended, and somebody waits for it
        put(EndpointError(f"a request to {endpoint.base_url} failed ({type(error).__name__})"))


async def _once(endpoint: Endpoint, line: Line, law: EndpointLaw, seed: int, put: Callable[[Event], None]) -> Ended:
    """Send the request and hand on the pieces of its text.

    Raises
    ------
    Exception
        Whatever broke it off.
    """
    import openai

    end: str | None = None
    tokens: int | None = None
    count = 0
    allowance = AnswerLimit(endpoint.base_url, law.settings.fields["max_tokens"])
    async with patience(endpoint):
        stream = await _opened(line, law, seed)
    async with stream:
        line.answered = True
        if "text/event-stream" not in stream.response.headers.get("content-type", ""):
            raise EndpointError(f"{endpoint.base_url} does not stream, which early abort needs; is base_url right?")
        try:
            # Of pieces, not of bytes: a comment now and then is no piece of the text.
            async with asyncio.timeout(endpoint.timeout) as clock:
                async for chunk in stream:
                    if chunk.usage:
                        tokens = count_of(chunk.usage.completion_tokens, allowance.tokens)
                    for choice in chunk.choices or ():
                        piece = _piece(endpoint, law, choice)
                        if piece.text or piece.token_ids:
                            allowance.take(piece.text, piece.token_ids)
                            put(piece)
                            clock.reschedule(asyncio.get_running_loop().time() + endpoint.timeout)
                        count += len(piece.token_ids)
                        end = choice.finish_reason or end
        except (openai.APIError, TimeoutError):
            if end is None or law.scored:  # else the text is whole, and only its count of tokens is lost
                raise
    if end == "content_filter":
        raise EndpointError(
            f"a filter of {endpoint.base_url} cut a text, so texts are not the model's own; draw from a server without"
        )
    if end not in _STATUS:
        raise Broken
    if law.scored and count != tokens:
        # The token that ends a text is one of those that it weighs; some servers leave it out.
        raise EndpointError(NO_IDS.format(endpoint.base_url))
    return Ended(_STATUS[end], tokens)


def _piece(endpoint: Endpoint, law: EndpointLaw, choice: Any) -> Piece:
    text = text_piece(choice.text if isinstance(law.prompt, str) else choice.delta and choice.delta.content)
    given = (getattr(choice, "token_ids", None) or ()) if law.scored else ()
    if not given:
        return Piece(text)
    ids = ids_of(given)
    if ids is None:
        raise EndpointError(NO_IDS.format(endpoint.base_url))
    found = getattr(choice.logprobs, "token_logprobs", None)
    if found is None:
        found = [each.logprob for each in getattr(choice.logprobs, "content", None) or ()]
    logprobs = log_probabilities_of(found)
    if logprobs is None or len(logprobs) != len(ids):
        raise EndpointError(NO_LOGPROBS.format(endpoint.base_url, "logprobs"))
    return Piece(text, ids, sum(logprobs))


async def _opened(line: Line, law: EndpointLaw, seed: int) -> AsyncStream[Any]:
    fields = {**law.fields, "seed": seed, "stream": True, "stream_options": {"include_usage": True}}
    stream: AsyncStream[Any] = await line.creates(law.route)(**fields, extra_body=law.extra)
    return stream
