"""Incoming requests: their ids and spans, bodies of limited size within a limited time, and API keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guardwrap.serve.error_responses import ErrorResponse, bad
from guardwrap.serve.server_settings import ServerLimits
from guardwrap.support.limits import MAX_DEPTH
from guardwrap.support.opentelemetry_api import attached, remote_context, start_span
from guardwrap.support.yaml_nodes import short

REQUEST_ID = "x-request-id"
"""The header with the id of a request."""

_SANE = re.compile(r"[A-Za-z0-9._:=/+-]{1,128}")
_UNREAD_BYTES = 32_000_000
_UNREAD_SECONDS = 5.0
_MOST_DEPTH = MAX_DEPTH + 20  # a schema may be MAX_DEPTH deep, and is itself nested in the request
_TOO_DEEP = "the request is nested too deeply"


def require_key(request: Request, digests: Sequence[bytes]) -> None:
    """Require an API key whose SHA-256 is among the digests. Without digests, no key is required."""
    if not digests:
        return
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("x-api-key", "")  # where LiteLLM sends it
    digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
    matches = [hmac.compare_digest(digest, each) for each in digests]  # always all, so that the time is constant
    if not any(matches):
        message = "give an API key of this server: Authorization: Bearer KEY"
        raise ErrorResponse(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def require_json(request: Request) -> None:
    """Require a JSON body without compression.

    Browsers send JSON to another site only after a preflight request, which fails here.
    """
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        message = f"Content-Encoding {short(coding)} is not supported; send the request without compression"
        headers = {"Accept-Encoding": "identity"}
        raise ErrorResponse(415, message, code="unsupported_content_encoding", headers=headers)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ErrorResponse(415, "send the request as Content-Type: application/json", code="unsupported_media_type")


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """Read a body, chunked or not."""
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


def parsed(raw: bytes) -> dict[str, Any]:
    """Parse the body of a request."""
    try:
        data = json.loads(raw, parse_constant=_no_number)
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        _require_shallow(data)
    except UnicodeEncodeError:
        raise bad(None, "the request contains half of a surrogate pair, which is not a character") from None
    except RecursionError:
        raise bad(None, _TOO_DEEP) from None
    except ValueError as error:  # invalid JSON, too large a number, or bytes that are not UTF-8
        raise bad(None, f"the request is not JSON: {short(str(error))}") from None
    if not isinstance(data, dict):
        raise bad(None, "the request is not a JSON object")
    return data


def _require_shallow(data: Any) -> None:
    """Limit the depth of a request, because later code recurses through it."""
    level = [data]
    for _ in range(_MOST_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise bad(None, _TOO_DEEP)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


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


def request_id_of(headers: Headers) -> str:
    """Return the id in a request's header if it is safe in logs, or a new one."""
    sent = headers.getlist(REQUEST_ID)
    return sent[0] if len(sent) == 1 and _SANE.fullmatch(sent[0]) else uuid.uuid4().hex


class RequestContext:
    """Middleware that gives each request an id, as ``request.state.request_id``, and each request for texts a span.

    The response has the id in its header ``x-request-id``. The span is a child of the span that the request's
    ``traceparent`` header names, and the parent of the one that the call makes.

    ``app``: the application. It puts the status of a stream that fails after its first byte into
    ``request.state.status``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        ident = state["request_id"] = request_id_of(headers)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = ident
                state.setdefault("status", message["status"])
            await send(message)

        if scope["method"] != "POST":  # no request for texts
            await self._app(scope, receive, send_with_id)
            return
        span = _started(scope, headers, ident)
        try:
            with attached(set_span_in_context(span)):
                await self._app(scope, receive, send_with_id)
        finally:
            _end(span, scope)


def _started(scope: Scope, headers: Headers, ident: str) -> Any:
    """Start the span of a request."""
    attributes = {"http.request.method": scope["method"], "guardwrap.request_id": ident}
    context = remote_context(dict(headers))
    kind = SpanKind.INTERNAL if context is None else SpanKind.SERVER  # an instrumentation has made the server's span
    return start_span(scope["method"], context=context, kind=kind, attributes=attributes)


def _end(span: Any, scope: Scope) -> None:
    """End a span with the route and the status, which are known by then."""
    status, route = scope["state"].get("status", 500), getattr(scope.get("route"), "path", None)
    if route is not None:  # the path that the client sent is not recorded
        span.update_name(f"{scope['method']} {route}")
        span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)
    span.end()
