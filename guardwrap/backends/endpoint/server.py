"""What is known of a server, and the line to it: an event loop in a thread of its own, and the official client."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from guardwrap.errors import UsageError, strict_arguments

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["Endpoint", "Line", "line_to"]

_CLOSING = 0.01
"""Seconds for sockets to be closed: the loop does that after what has asked for it."""

_NO_KEY = "none"  # the client wants one, and a server without keys takes any


@strict_arguments
class Endpoint:
    r"""A server that speaks the OpenAI protocol, as what ``GuardedGenerator`` wraps: vLLM, SGLang, llama.cpp ...

    Each attempt is one streamed request with a seed of its own. Texts are judged as they come in, and the stream of one
    that cannot satisfy the constraint any more is closed. All sampling fields are sent, so that the server's own
    defaults do not change what is drawn from.

    Parameters
    ----------
    base_url
        Where its routes begin, e.g. ``"http://localhost:8000/v1"``. Strings go to ``/completions`` below it, chats to
        ``/chat/completions``.
    model
        The model's name there.
    api_key
        The key; None takes ``OPENAI_API_KEY`` from the environment, or none.
    timeout
        Seconds to wait for the next piece of a text. There is no limit on a whole text, which would make long ones
        rarer.
    max_retries
        How often an attempt is tried again after a fault (no connection, a time-out, HTTP 408, 409, 425, 429 or 5xx, a
        stream that breaks), as the same attempt. The waits double from half a second to thirty, or are what
        ``Retry-After`` says, unless that is more than ten minutes, which ends the request; eight of them take a minute
        and a half.
    extra
        Whether the server takes ``top_k``, ``min_p`` and ``repetition_penalty``, which the protocol does not have and
        most servers do; api.openai.com does not. It is not tried out, as what is drawn from must not depend on a trial.
    repeats_seeds
        Whether the server promises the same text for the same seed, whatever else it computes beside it.

    Raises
    ------
    UsageError
        If a parameter is invalid.

    Notes
    -----
    An attempt that breaks in mid-stream is drawn again with the same seed. A server that repeats seeds gives the same
    text then, and nothing is biased. Any other gives another text, and as a long text takes longer to stream, long
    texts get rarer by as much as breaks are frequent. The report says how many attempts that was.

    Examples
    --------
    ::

        guarded = GuardedGenerator(Endpoint("http://localhost:8000/v1", model="Qwen/Qwen3-8B"), ~Regex(r"\d"))
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_retries: int = 8,
        extra: bool = True,
        repeats_seeds: bool = False,
    ) -> None:
        for name, value in (("base_url", base_url), ("model", model)):
            if not isinstance(value, str) or not value:
                raise UsageError(f"Endpoint: {name} is {type(value).__name__}; give a string that is not empty")
        self.base_url = _address(base_url)
        self.model = model
        if api_key is not None and (not isinstance(api_key, str) or not api_key.isascii() or not api_key.strip()):
            raise UsageError("Endpoint: api_key is no key, which is a string of ASCII characters")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise UsageError(f"Endpoint(timeout={timeout!r}): give seconds above 0")
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            raise UsageError(f"Endpoint(max_retries={max_retries!r}): give a whole number of at least 0")
        self.timeout = float(timeout)
        self.max_retries = max_retries
        self.extra = bool(extra)
        self.repeats_seeds = bool(repeats_seeds)
        self._key = api_key
        self._line: Line | None = None
        self._lock = threading.Lock()

    @property
    def described(self) -> str:
        """The model and where it is, in words."""
        return f"the model {self.model!r} at {self.base_url}"

    @property
    def has_key(self) -> bool:
        """Whether it was given a key of its own, which stays in this process."""
        return self._key is not None

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r}, model={self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Neither the line, which belongs to this process, nor the key, which has no place in a file.
        return {**vars(self), "_line": None, "_lock": None, "_key": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())


class Line:
    """An event loop in a thread of its own, and the client that lives there.

    Parameters
    ----------
    endpoint
        Where it leads.

    Attributes
    ----------
    loop : asyncio.AbstractEventLoop
        Where requests run.
    client : openai.AsyncOpenAI
        Sends them.
    answered : bool
        Whether the server has ever answered: one that never did is not waited for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        openai = _client_library()
        from guardwrap.backends.endpoint.transfer_limits import CONNECT, http_client

        # Retries are ours: what has streamed already must be known, and a break in mid-stream is a fault too.
        key = endpoint._key or os.environ.get("OPENAI_API_KEY") or _NO_KEY
        self.client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=key,
            timeout=openai.Timeout(endpoint.timeout, connect=min(endpoint.timeout, CONNECT)),
            max_retries=0,
            http_client=http_client(openai, endpoint.base_url),
        )
        self.secret = None if key == _NO_KEY else key
        self.answered = False
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="guardwrap-endpoint", daemon=True)
        self._thread.start()

    def creates(self, route: str) -> Callable[..., Awaitable[Any]]:
        """Return what sends a request to a route, ``/completions`` or ``/chat/completions``."""
        client: Any = self.client
        create: Callable[..., Awaitable[Any]]
        create = (client.completions if route == "/completions" else client.chat.completions).create
        return create

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _end(self) -> None:
        while left := asyncio.all_tasks() - {asyncio.current_task()}:  # some begin only now
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.sleep(_CLOSING)  # requests that were stopped let go of their connections
        try:
            await self.client.close()
        finally:
            await asyncio.sleep(_CLOSING)

    def close(self) -> None:
        """End the thread, and with it all connections."""
        if self.process != os.getpid() or self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)


def line_to(endpoint: Endpoint) -> Line:
    """Return the line to an endpoint, made when it is first used and closed with the endpoint.

    Raises
    ------
    UsageError
        If the client library is not installed.
    """
    with endpoint._lock:
        if endpoint._line is None or endpoint._line.process != os.getpid():
            endpoint._line = Line(endpoint)
            weakref.finalize(endpoint, endpoint._line.close)
        return endpoint._line


def _client_library() -> Any:
    try:
        import openai
    except ImportError:
        raise UsageError("an Endpoint needs the openai client: pip install 'guardwrap[endpoint]'") from None
    return openai


def _address(url: str) -> str:
    """Return a URL that may be shown, or raise UsageError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("Endpoint: base_url is no URL; give one like 'http://localhost:8000/v1'") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("Endpoint: base_url has more than a host and a path; a key is given as api_key=")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"Endpoint: base_url={url!r} is no URL; give one like 'http://localhost:8000/v1'")
    return url.rstrip("/")
