"""A server's address and options, and the connection to it: an event loop in a thread, with the official client."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from guardwrap.engine.endpoint.request_faults import CONNECT, http_client
from guardwrap.errors import EndpointError, UsageError, strict_arguments
from guardwrap.support.files import PREFIX
from guardwrap.support.network import environment_key, plain_address
from guardwrap.support.opentelemetry_api import attached, trace_headers

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_CLOSING = 0.01
"""Seconds to wait for sockets to close, which the loop does some time after they are asked to."""

_NO_KEY = "none"  # the client requires a key; a server without keys ignores it

_SEEDS = (
    "the same seed may give other texts: the server does not promise to repeat them (if it does, pass "
    "Endpoint(repeats_seeds=True))"
)
_DEFAULTS = "top_k, min_p and repetition_penalty are the server's defaults, because of Endpoint(extra=False)"


@strict_arguments
class Endpoint:
    r"""A server with the OpenAI protocol for ``GuardedGenerator`` to wrap: vLLM, SGLang, llama.cpp ...

    Each attempt is one streamed request with its own seed. Texts are judged while they arrive, and the stream of a text
    that can no longer satisfy the constraint is closed. All sampling fields are sent, so that the server's defaults do
    not change the distribution.

    Parameters
    ----------
    base_url
        The URL below which the server's routes are, e.g. ``"http://localhost:8000/v1"``. Strings are sent to its route
        ``/completions``, chats to ``/chat/completions``.
    model
        The server's name for the model.
    api_key
        The API key. None means the environment variable ``OPENAI_API_KEY``, or no key without it.
    timeout
        Seconds to wait for the next piece of a text. There is no limit on a whole text, which would make long texts
        rarer.
    max_retries
        Maximum number of retries of an attempt, with the same seed, after a fault: a lost connection, a timeout, HTTP
        408, 409, 425, 429 or 5xx except 501, or a stream that breaks off. A server that has never answered is not
        retried. The waits double from half a second to 30 seconds; eight of them take a minute and a half. A
        ``Retry-After`` replaces them; one of more than ten minutes ends the request.
    extra
        Whether the server supports ``top_k``, ``min_p`` and ``repetition_penalty``. They are not part of the protocol,
        but most servers support them; api.openai.com does not. This is not detected, because the distribution must not
        depend on the result of a probe.
    repeats_seeds
        Whether the server promises the same text for the same seed, whatever other requests it computes.

    Raises
    ------
    UsageError
        If a parameter is invalid.

    Notes
    -----
    An attempt that breaks off in mid-stream is drawn again with the same seed. If the server repeats seeds, it gives
    the same text, and the distribution is unchanged. If not, it gives another text. Long texts take longer to stream
    and so break off more often, which makes them rarer. The report says how many attempts were affected.

    Examples
    --------
    ::

        guarded = GuardedGenerator(Endpoint("http://localhost:8000/v1", model="Qwen/Qwen3-8B"), ~Regex(r"\d"))
    """

    parallel: ClassVar[int | None] = None
    """The most attempts in parallel, if a call does not say; None for the usual number."""

    parses: ClassVar[bool] = True
    """Whether the parts of messages arrive in separate fields."""

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
        self.base_url: str = plain_address(base_url, "Endpoint")
        self.model = model
        if api_key is not None and (not isinstance(api_key, str) or not api_key.isascii() or not api_key.strip()):
            raise UsageError("Endpoint: api_key is not a valid key; give a string of ASCII characters")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise UsageError(f"Endpoint(timeout={timeout!r}): give seconds above 0")
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            raise UsageError(f"Endpoint(max_retries={max_retries!r}): give a whole number of at least 0")
        self.timeout: float = float(timeout)
        self.max_retries = max_retries
        self.extra: bool = bool(extra)
        self.repeats_seeds: bool = bool(repeats_seeds)
        self._key = api_key
        self._line: Line | None = None
        self._lock = threading.Lock()

    @property
    def described(self) -> str:
        """A description of the model and its server, for messages."""
        return f"the model {self.model!r} at {self.base_url}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the options make unknown, for reports."""
        return (*(() if self.extra else (_DEFAULTS,)), *(() if self.repeats_seeds else (_SEEDS,)))

    def connected(self) -> Line:
        """Return a new connection."""
        return ServerLine(self)

    def adapter_name(self, given: Any) -> str:
        """Return what requests name an adapter by; raise UsageError for a folder or another object."""
        if not isinstance(given, str) or not given or given.startswith(PREFIX):
            raise UsageError(
                "with an endpoint, adapter= is the name of an adapter on the server; load the folder there (vLLM: "
                "--enable-lora --lora-modules NAME=FOLDER), and pass adapter='NAME'"
            )
        return given

    @property
    def has_key(self) -> bool:
        """Whether ``api_key`` was passed. The key is not pickled, so it stays in this process."""
        return self._key is not None

    def key(self) -> str | None:
        """Return the key that requests are sent with: the passed one, or that of ``OPENAI_API_KEY``; None without."""
        return self._key or environment_key()

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r}, model={self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Without the connection, which belongs to this process, and without the key, which must not get into files.
        return {**vars(self), "_line": None, "_lock": None, "_key": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())


class Line(ABC):
    """A connection to what draws the texts: an event loop in a separate thread, in which requests are sent."""

    secret: str | None = None  # the key, which messages must not contain

    def __init__(self) -> None:
        self.answered = False
        self.process: int = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="guardwrap-endpoint", daemon=True)
        self._thread.start()

    @abstractmethod
    async def send(self, route: str, fields: Mapping[str, Any], extra: Mapping[str, Any], traced: Any) -> Any:
        """Send a request, and return the answer, or a context whose value yields the chunks of one.

        Answers and chunks have the attributes of OpenAI's. ``traced``: OpenTelemetry's context of the call, whose span
        the server's trace joins; None if nothing is traced.
        """

    @abstractmethod
    async def models(self) -> list[Any]:
        """Return the names of the models that requests may have."""

    def require_context(self, prompt: int, max_tokens: int, *, scored: bool) -> None:  # noqa: B027  # of a server unknown
        """Raise ContextExceeded if a text may outgrow the context.

        ``prompt``: the prompt's tokens; ``scored``: whether texts are sent again for their log-probabilities.
        """

    async def closing(self) -> None:  # noqa: B027  # nothing has to be closed unless a class says so
        """Close what the requests used, after they are cancelled."""

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _end(self) -> None:
        while left := asyncio.all_tasks() - {asyncio.current_task()}:  # cancelling may start further tasks
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.sleep(_CLOSING)  # lets cancelled requests release their connections
        await self.closing()

    def close(self) -> None:
        """Stop the thread and close all connections."""
        if self.process != os.getpid() or self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)


class ServerLine(Line):
    """A connection to a server, through the official client."""

    def __init__(self, endpoint: Endpoint) -> None:
        openai = client_library()
        # Retries are done in ``request_faults`` instead: a retry must discard the text so far, and a stream that breaks
        # off is a fault too.
        key = endpoint.key() or _NO_KEY
        self.secret = None if key == _NO_KEY else key
        self._where = endpoint.base_url
        self.client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=key,
            timeout=openai.Timeout(endpoint.timeout, connect=min(endpoint.timeout, CONNECT)),
            max_retries=0,
            http_client=http_client(openai, endpoint.base_url),
        )
        super().__init__()

    async def send(self, route: str, fields: Mapping[str, Any], extra: Mapping[str, Any], traced: Any) -> Any:
        """Send a request over HTTP."""
        client: Any = self.client
        create = (client.completions if route == "/completions" else client.chat.completions).create
        if "messages" in fields:
            fields = {**fields, "messages": [with_arguments(turn, _as_string) for turn in fields["messages"]]}
        with attached(traced):
            answer = await create(**fields, extra_body=extra, extra_headers=trace_headers(traced))
        if fields.get("stream") and "text/event-stream" not in answer.response.headers.get("content-type", ""):
            self.answered = True
            await answer.close()
            raise EndpointError(
                f"{self._where} does not stream its answers, which early abort requires; check base_url"
            )
        return answer

    async def models(self) -> list[Any]:
        """Ask the server for its models."""
        return [model.id async for model in self.client.models.list()]

    async def closing(self) -> None:
        """Close the client."""
        try:
            await self.client.close()
        finally:
            await asyncio.sleep(_CLOSING)


def with_arguments(turn: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a message of a chat whose calls have changed arguments.

    Chat templates read them as objects, and OpenAI's protocol has strings.
    """

    def changed(call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        return {**call, "function": {**function, "arguments": change(function["arguments"])}}

    calls = turn.get("tool_calls")
    return {**turn, "tool_calls": [changed(call) for call in calls]} if isinstance(calls, list) else dict(turn)


def _as_string(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def line_to(endpoint: Endpoint) -> Line:
    """Return the connection to an endpoint, created at first use and closed when the endpoint is deleted."""
    with endpoint._lock:
        if endpoint._line is None or endpoint._line.process != os.getpid():
            endpoint._line = endpoint.connected()
            weakref.finalize(endpoint, endpoint._line.close)
        return endpoint._line


def client_library() -> Any:
    """Return the openai library, which only endpoints need."""
    try:
        import openai
    except ImportError:
        raise UsageError("an Endpoint needs the openai client: pip install 'guardwrap[endpoint]'") from None
    return openai
