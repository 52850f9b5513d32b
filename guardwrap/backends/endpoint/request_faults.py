"""What went wrong with a request: whether to try it again, when, and what to say of it without key or text."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from guardwrap.backends.endpoint.answers import printable_line
from guardwrap.backends.endpoint.transfer_limits import patience
from guardwrap.errors import EndpointError, nearest

if TYPE_CHECKING:
    from guardwrap.backends.endpoint.endpoint_law import EndpointLaw
    from guardwrap.backends.endpoint.server import Endpoint, Line

__all__ = ["Broken", "Fault", "request_fault", "retried", "waiting"]

logger = logging.getLogger("guardwrap")

_T = TypeVar("_T")

_AGAIN = (408, 409, 425, 429)
_FIRST, _LONGEST = 0.5, 30.0
_PATIENCE = 600.0
"""Seconds that a server may ask us to wait, at most."""
_MODELS = 1000
"""Of a server's models so many are looked at, to say which one may have been meant."""


class Broken(Exception):  # never leaves the backend
    """A stream that ended before its text did."""


@dataclass(frozen=True)
class Fault:
    """What went wrong.

    Parameters
    ----------
    words
        It in words: one line with the way out.
    again
        Whether the same request may succeed later.
    wait
        Seconds that the server asks to wait, or None.
    """

    words: str
    again: bool = False
    wait: float | None = None

    def error(self, tries: int) -> EndpointError:
        """Return it as an error, after so many tries."""
        often = f", {tries} times in a row" if self.again and tries > 1 else ""
        return EndpointError(f"{self.words}{often}{'; try again later' if self.again else ''}")


def waiting(fault: Fault, tries: int) -> float:
    """Return how many seconds to wait before an attempt is tried again: a little at random, lest all come at once."""
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
    """Return what a request gives, tried again after faults that may pass.

    Parameters
    ----------
    once
        Sends it.
    endpoint, line
        Where it goes.
    law
        What it asks for.
    again
        Called before it is tried again.

    Raises
    ------
    EndpointError
        For any other fault, and after too many tries.
    """
    for tries in itertools.count(1):
        try:
            return await once()
        except Exception as error:
            fault = await request_fault(error, endpoint, line, law)
        if not fault.again or tries > endpoint.max_retries:
            break
        seconds = waiting(fault, tries)
        logger.info("%s; trying again in %.1f s", fault.words, seconds)
        again()
        await asyncio.sleep(seconds)
    raise fault.error(tries)


async def request_fault(error: Exception, endpoint: Endpoint, line: Line, law: EndpointLaw) -> Fault:
    """Say what went wrong.

    Parameters
    ----------
    error
        What a request has raised.
    endpoint, line
        Where it went.
    law
        What it asked for.
    """
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
        return Fault(f"{where} said nothing for {endpoint.timeout:g} s (Endpoint(timeout=...))", again=True)
    if isinstance(error, openai.APIConnectionError):
        if line.answered:
            return Fault(f"the connection to {where} broke", again=True)
        return Fault(f"no server answers at {where} ({type(cause).__name__}); start it, or correct base_url")
    if isinstance(error, Broken | openai.APIError):  # the latter: an error that comes as a piece of the stream
        return Fault(f"{where} ended a stream before its text was over", again=True)
    return Fault(f"{where} answers with something else than the OpenAI protocol ({type(error).__name__})")


async def _refused(error: Any, endpoint: Endpoint, line: Line, law: EndpointLaw) -> Fault:
    where, status = endpoint.base_url, error.status_code
    if 300 <= status < 400:
        return Fault(
            f"{where} sends requests on to another address (HTTP {status}), and prompts do not follow; correct base_url"
        )
    if status in (401, 403):
        return Fault(f"{where} refuses the key (HTTP {status}); pass api_key=, or set OPENAI_API_KEY")
    if status == 404:
        return await _missing(endpoint, line, law)
    if error.code == "insufficient_quota":
        return Fault(f"{where} says that the quota of the key is used up (HTTP {status})")
    if status in _AGAIN or (status >= 500 and status != 501):
        wait = _retry_after(error.response.headers)
        if wait is not None and wait > _PATIENCE:
            return Fault(f"{where} answers HTTP {status}, and is not to be asked again for {wait:.3g} s")
        return Fault(f"{where} answers HTTP {status}", again=True, wait=wait)
    body = error.body if isinstance(error.body, dict) else {}
    # The request was refused as it is, so no text has been drawn that this could quote.
    said = body.get("message")
    said = said.replace(line.secret, "***") if isinstance(said, str) and line.secret is not None else said
    said = printable_line(said, 300)
    said = f": {said}" if said else ""
    way_out = ""
    if status in (400, 422):
        way_out = _way_out(law)
    return Fault(f"{where} refuses the request (HTTP {status}{said}){way_out}")


def _way_out(law: EndpointLaw) -> str:
    """Say what to do if it is fields that the protocol does not have which the server does not take."""
    if law.mask is not None:
        return "; if it does not take structured_outputs, which vLLM does, leave Masked() out"
    if law.scored:
        return "; if it does not take return_token_ids and prompt_logprobs, which vLLM does, pass sampler='rejection'"
    if law.settings.extra:
        return "; if it does not take top_k, min_p or repetition_penalty, pass Endpoint(extra=False)"
    return ""


async def _missing(endpoint: Endpoint, line: Line, law: EndpointLaw) -> Fault:
    """Tell a model that is not there from a route that is not."""
    where, route = endpoint.base_url, law.route
    try:
        async with patience(endpoint):
            listed = [printable_line(model.id, 200) async for model in line.client.models.list()]
        names = sorted(listed[:_MODELS])
    except Exception:  # whatever answers there knows nothing of models
        return Fault(f"{where} has no route {route} (HTTP 404); base_url mostly ends in /v1")
    if law.model in names:
        takes = "chats only; give lists of messages" if route == "/completions" else "no chats; give strings"
        return Fault(f"{where} has no route {route} (HTTP 404): it takes {takes}")
    has = ", ".join(names[:10]) + (" and others" if len(names) > 10 else "")
    return Fault(f"{where} has no model {law.model!r}{nearest(law.model, names)}; it has {has or 'none'}")


def _retry_after(headers: Any) -> float | None:
    """Return what ``Retry-After`` says, in seconds: a number, or a date."""
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
