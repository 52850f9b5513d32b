"""Faults of requests: limits on answers, whether and when to retry, errors without the key and without model output."""

from __future__ import annotations

import asyncio
import email.utils
import importlib
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from guardwrap.errors import ContextExceeded, EndpointError, UsageError, nearest
from guardwrap.support.network import is_temporary

if TYPE_CHECKING:
    from guardwrap.engine.endpoint.endpoint_law import EndpointLaw
    from guardwrap.engine.endpoint.server import Endpoint, Line


CONNECT = 10.0
"""Maximum time in seconds to connect."""

_ANSWER = 64 * 2**20
"""Maximum size in bytes of an answer that is not streamed. Log-probabilities of a long prompt may take megabytes."""

_EVENT = 16 * 2**20
"""Maximum size in bytes of an event of a stream. The first one may contain the tokens of a long prompt."""

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The possible ends of an event."""


def http_client(openai: Any, where: str) -> Any:
    """Create the HTTP client for a server, which limits the size of answers and does not follow redirects.

    A redirect would send the prompt to a host that the user did not name. Compressed answers are rejected, and not
    requested, because a few bytes may decompress to more than fits into memory.
    """
    # The HTTP library that the client is built on: httpx or its successor.
    base = openai.DefaultAsyncHttpxClient.__mro__[1]
    library: Any = importlib.import_module(base.__module__.partition(".")[0])

    class Measured(library.AsyncByteStream):  # type: ignore[misc]  # the library is only known at run time
        def __init__(self, stream: Any, events: bool) -> None:
            self._stream, self._events = stream, events

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _measured(self._stream, where, self._events)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def measure(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise EndpointError(f"{where} compresses its answers, which was not requested; turn that off")
        events = response.is_success and "text/event-stream" in response.headers.get("content-type", "")
        response.stream = Measured(response.stream, events)

    return openai.DefaultAsyncHttpxClient(
        follow_redirects=False, headers={"Accept-Encoding": "identity"}, event_hooks={"response": [measure]}
    )


async def _measured(stream: AsyncIterator[bytes], where: str, events: bool) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer, and raise EndpointError if it, or one event of a stream, is too large."""
    size, last = 0, b""
    async for piece in stream:
        size += len(piece)
        if events:
            seen = last + piece
            end = max(seen.rfind(mark) for mark in _ENDS)
            size = len(seen) - end if end >= 0 else size
            last = seen[-3:]
        if size > (_EVENT if events else _ANSWER):
            raise EndpointError(f"{where} sends an answer that is too large to be valid; check base_url")
        yield piece


def patience(endpoint: Endpoint, clock: Callable[[float], Any] = asyncio.timeout) -> Any:
    """Return a context that raises TimeoutError if its body, a request without a stream, takes too long.

    The client's own timeout applies to each pause, so a byte now and then would keep it waiting forever.
    """
    return clock(endpoint.timeout + CONNECT)


logger = logging.getLogger("guardwrap")

_T = TypeVar("_T")

_FIRST, _LONGEST = 0.5, 30.0

_PATIENCE = 600.0
"""Longest ``Retry-After``, in seconds, that is waited for."""

_MODELS = 1000
"""Maximum number of the server's models to search for the nearest name."""


_TOO_LONG = ("context_length_exceeded", "input_tokens", "input_text", "exceed_context_size_error")
"""What the servers of OpenAI, vLLM and llama.cpp name as the code, field or type of a prompt that is too long."""


class Broken(Exception):  # never leaves the backend
    """A stream that ended before its text was complete."""


@dataclass(frozen=True)
class Fault:
    """A fault of a request."""

    words: str  # the message: one line, with a way out
    again: bool = False  # whether the same request may succeed later
    wait: float | None = None  # seconds to wait before a retry, as requested by the server; or None

    def error(self, tries: int) -> EndpointError:
        """Return the fault as an error, after ``tries`` tries."""
        often = f", {tries} times in a row" if self.again and tries > 1 else ""
        return EndpointError(f"{self.words}{often}{'; try again later' if self.again else ''}")


def waiting(fault: Fault, tries: int) -> float:
    """Return how many seconds to wait before a retry. Randomized, so that concurrent requests do not retry together."""
    if fault.wait is not None:
        return min(fault.wait, _PATIENCE)
    return min(_LONGEST, _FIRST * 2.0 ** min(tries - 1, 32)) * random.uniform(0.75, 1.0)


async def retried(
    once: Callable[[], Awaitable[_T]],
    endpoint: Endpoint,
    line: Line,
    law: EndpointLaw,
    again: Callable[[], None] = lambda: None,
) -> _T:
    """Send a request, retry it after temporary faults, and return its result."""
    for tries in itertools.count(1):
        try:
            return await once()
        except UsageError:
            raise
        except Exception as error:
            fault = await request_fault(error, endpoint, line, law)
        if not fault.again or tries > endpoint.max_retries:
            break
        seconds = waiting(fault, tries)
        logger.info("%s; retrying in %.1f s", fault.words, seconds)
        again()
        await asyncio.sleep(seconds)
    raise fault.error(tries)


async def request_fault(error: Exception, endpoint: Endpoint, line: Line, law: EndpointLaw) -> Fault:
    """Return the fault that an error of a request stands for."""
    import openai

    where = endpoint.base_url
    refusal = error if isinstance(error, EndpointError) else error.__cause__  # the client wraps what its hooks raise
    if isinstance(refusal, EndpointError):
        return Fault(str(refusal))
    if isinstance(error, openai.APIStatusError):
        line.answered = True
        return await _refused(error, endpoint, line, law)
    cause = error.__cause__ or error
    reached = line.answered or type(cause).__name__ != "ConnectTimeout"
    if isinstance(error, openai.APITimeoutError | TimeoutError) and reached:
        return Fault(f"{where} sent nothing for {endpoint.timeout:g} s (Endpoint(timeout=...))", again=True)
    if isinstance(error, openai.APIConnectionError):
        if line.answered:
            return Fault(f"the connection to {where} broke", again=True)
        return Fault(f"no server answers at {where} ({type(cause).__name__}); start it, or correct base_url")
    if isinstance(error, Broken | openai.APIError):  # APIError: an error sent as an event of the stream
        return Fault(f"{where} ended a stream before its text was complete", again=True)
    return Fault(f"the answer of {where} is not OpenAI protocol ({type(error).__name__}); check base_url")


async def _refused(error: Any, endpoint: Endpoint, line: Line, law: EndpointLaw) -> Fault:
    where, status = endpoint.base_url, error.status_code
    if 300 <= status < 400:
        return Fault(
            f"{where} redirects to another address (HTTP {status}), to which prompts are not sent; correct base_url"
        )
    if status in (401, 403):
        return Fault(f"{where} rejects the key (HTTP {status}); pass api_key=, or set OPENAI_API_KEY")
    if status == 404:
        return await _missing(endpoint, line, law)
    if error.code == "insufficient_quota":
        return Fault(
            f"{where} reports that the quota of the key is used up (HTTP {status}); raise it, or use another key"
        )
    if is_temporary(status):
        wait = _retry_after(error.response.headers)
        if wait is not None and wait > _PATIENCE:
            return Fault(f"{where} answers HTTP {status}; it asks to retry only after {wait:.3g} s")
        return Fault(f"{where} answers HTTP {status}", again=True, wait=wait)
    body = error.body if isinstance(error.body, dict) else {}
    # The server rejected the request before drawing a text, so its message cannot quote unchecked text.
    detail = body.get("message")
    detail = detail.replace(line.secret, "***") if isinstance(detail, str) and line.secret is not None else detail
    detail = printable_line(detail, 300)
    detail = f": {detail}" if detail else ""
    if error.code in _TOO_LONG or error.param in _TOO_LONG or error.type in _TOO_LONG:
        raise ContextExceeded(
            f"{where} rejects the request (HTTP {status}{detail}); shorten the prompt, or lower max_new_tokens"
        )
    way_out = ""
    if status in (400, 422):
        way_out = _way_out(law)
    return Fault(f"{where} rejects the request (HTTP {status}{detail}){way_out}")


def _way_out(law: EndpointLaw) -> str:
    """Return advice for the case that the server does not support fields beyond the protocol."""
    if law.mask is not None:
        return "; if it does not support structured_outputs, as vLLM does, leave Masked() out"
    if law.scored:
        return "; if it does not support return_token_ids and prompt_logprobs, as vLLM does, pass sampler='rejection'"
    if law.settings.extra:
        return "; if it does not support top_k, min_p or repetition_penalty, pass Endpoint(extra=False)"
    return ""


async def _missing(endpoint: Endpoint, line: Line, law: EndpointLaw) -> Fault:
    """Distinguish a missing model from a missing route."""
    where, route = endpoint.base_url, law.route
    try:
        async with patience(endpoint):
            listed = [printable_line(name, 200) for name in await line.models()]
        names = sorted(listed[:_MODELS])
    except Exception:  # the server cannot list its models either
        return Fault(f"{where} has no route {route} (HTTP 404); check base_url, which usually ends in /v1")
    if law.model in names:
        accepts = "accepts only chats; give" if route == "/completions" else "does not accept chats; give"
        form = "lists of messages" if route == "/completions" else "strings"
        return Fault(f"{where} has no route {route} (HTTP 404): it {accepts} {form}")
    has = ", ".join(names[:10]) + (" and others" if len(names) > 10 else "")
    return Fault(f"{where} has no model {law.model!r}{nearest(law.model, names)}; it has {has or 'none'}")


def _retry_after(headers: Any) -> float | None:
    """Return the seconds of ``Retry-After``, which may be a number or a date; None without a valid one."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name)) * unit
        except (TypeError, ValueError):
            continue
        if seconds >= 0:
            return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def printable_line(said: Any, most: int) -> str:
    """Return a server's message as one printable line of at most ``most`` characters; empty if it is not a string."""
    text = said if isinstance(said, str) else ""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 100 * most])
    return " ".join(shown.split())[:most]
