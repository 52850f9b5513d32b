"""Requests as they come in: bodies of limited size and in limited time, and keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from contextlib import suppress

from fastapi import Request

from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.server_settings import ServerLimits

__all__ = ["gone", "read_body", "require_json", "require_key", "unread"]

_UNREAD_BYTES = 32_000_000
_UNREAD_SECONDS = 5.0


def require_key(request: Request, digests: Sequence[bytes]) -> None:
    """Require one of the keys, of which the SHA-256 are given; none are required where there are none.

    Raises
    ------
    Refused
        HTTP 401. The time it takes says nothing of the keys.
    """
    if not digests:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
    right = [hmac.compare_digest(digest, each) for each in digests]  # all of them, whichever it is
    if scheme.lower() != "bearer" or not any(right):
        message = "give an API key of this server: Authorization: Bearer KEY"
        raise ErrorResponse(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def require_json(request: Request) -> None:
    """Require a body of JSON. A page of another site cannot send one unasked, so no visitor of it spends our time.

    Raises
    ------
    Refused
        HTTP 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ErrorResponse(415, "send the request as Content-Type: application/json", code="unsupported_media_type")


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """Read a body, chunked or not.

    Raises
    ------
    Refused
        If it is too large, HTTP 413, or takes too long, 408.
    ClientDisconnect
        If the client goes before its end.
    """
    most = limits.body_bytes
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told[:20]) > most:
        raise _too_large(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
    except TimeoutError:
        message = f"the request did not arrive within {limits.body_seconds:g} s"
        raise ErrorResponse(408, message, code="too_slow", headers={"Connection": "close"}) from None
    request.state.read = True
    return b"".join(parts)


def _too_large(most: int) -> ErrorResponse:
    message = f"the request is larger than {most} bytes"
    return ErrorResponse(413, message, code="too_large", headers={"Connection": "close"})


async def unread(request: Request) -> None:
    """Take what is left of a refused request and forget it: a client that still sends would miss the reply."""
    size = _UNREAD_BYTES if getattr(request.state, "read", False) else 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_UNREAD_SECONDS):
            while size < _UNREAD_BYTES:
                message = await request.receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


async def gone(request: Request) -> None:
    """Wait until the client has gone; of a request that was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
