"""Incoming requests: bodies of limited size within a limited time, and API keys."""

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
    """Require an API key whose SHA-256 is among the digests. Without digests, no key is required.

    Raises
    ------
    ErrorResponse
        HTTP 401. The time that the comparison takes does not depend on the keys.
    """
    if not digests:
        return
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
    matches = [hmac.compare_digest(digest, each) for each in digests]  # always all, so that the time is constant
    if scheme.lower() != "bearer" or not any(matches):
        message = "give an API key of this server: Authorization: Bearer KEY"
        raise ErrorResponse(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def require_json(request: Request) -> None:
    """Require a JSON body. Browsers send one to another site only after a preflight request, which fails here.

    Raises
    ------
    ErrorResponse
        HTTP 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ErrorResponse(415, "send the request as Content-Type: application/json", code="unsupported_media_type")


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """Read a body, chunked or not.

    Raises
    ------
    ErrorResponse
        HTTP 413 if it is too large, 408 if it takes too long.
    ClientDisconnect
        If the client disconnects before the end of the body.
    """
    most = limits.body_bytes
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
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
    """Read and discard the rest of a rejected request: a client that is still sending would miss the reply."""
    size = _UNREAD_BYTES if getattr(request.state, "read", False) else 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_UNREAD_SECONDS):
            while size < _UNREAD_BYTES:
                message = await request.receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


async def gone(request: Request) -> None:
    """Wait until the client disconnects. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
