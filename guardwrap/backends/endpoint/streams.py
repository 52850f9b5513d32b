"""One attempt as a streamed request: its text piece by piece, tried again as the same attempt after a fault."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guardwrap.backends.endpoint.faults import Broken, fault_of, waiting
from guardwrap.backends.endpoint.law import EndpointLaw
from guardwrap.backends.endpoint.server import Endpoint, Line
from guardwrap.errors import EndpointError

if TYPE_CHECKING:
    from openai import AsyncStream

__all__ = ["Again", "Ended", "Event", "drawn"]

logger = logging.getLogger("guardwrap")

_STATUS = {"stop": "finished", "length": "cut"}


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
class Again:
    """An attempt that begins anew: what has come of it so far does not count."""


Event = str | Ended | Again | Exception
"""What comes of an attempt: a piece of text, its end, a new beginning, or what it fails with."""


async def drawn(endpoint: Endpoint, line: Line, law: EndpointLaw, seed: int, put: Callable[[Event], None]) -> None:
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
    route = "/completions" if isinstance(law.prompt, str) else "/chat/completions"
    for tries in itertools.count(1):
        try:
            put(await _once(endpoint, line, law, seed, put))
            return
        except Exception as error:
            fault = await fault_of(error, endpoint, line, route)
        if not fault.again or tries > endpoint.max_retries:
            put(fault.error(tries))
            return
        seconds = waiting(fault, tries)
        logger.info("%s; trying again in %.1f s", fault.words, seconds)
        put(Again())
        await asyncio.sleep(seconds)


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
    async with await _opened(endpoint, line, law, seed) as stream:
        line.answered = True
        if "text/event-stream" not in stream.response.headers.get("content-type", ""):
            raise EndpointError(f"{endpoint.base_url} does not stream, which early abort needs; is base_url right?")
        try:
            async for chunk in stream:
                tokens = (chunk.usage and chunk.usage.completion_tokens) or tokens
                for choice in chunk.choices or ():
                    piece = choice.text if isinstance(law.prompt, str) else choice.delta and choice.delta.content
                    if piece:
                        put(str(piece))
                    end = choice.finish_reason or end
        except openai.APIError:
            if end is None:  # else the text is whole, and only its count of tokens is lost
                raise
    if end == "content_filter":
        raise EndpointError(
            f"a filter of {endpoint.base_url} cut a text, so texts are not the model's own; draw from a server without"
        )
    if end not in _STATUS:
        raise Broken
    return Ended(_STATUS[end], tokens)


async def _opened(endpoint: Endpoint, line: Line, law: EndpointLaw, seed: int) -> AsyncStream[Any]:
    client: Any = line.client
    fields = {
        "model": endpoint.model,
        **law.settings.fields,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_body": dict(law.settings.extra),
    }
    if isinstance(law.prompt, str):
        stream: AsyncStream[Any] = await client.completions.create(prompt=law.prompt, **fields)
    else:
        stream = await client.chat.completions.create(messages=list(law.prompt), **fields)
    return stream
