"""A small server with the OpenAI protocol, whose distribution is known, and which simulates network faults."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from guardwrap import Endpoint
from guardwrap.testing import World

Text = tuple[Iterable[Any], str, int]
"""Its pieces, which are strings or the deltas of a chat's message, its finish reason, and how many tokens it has."""


@dataclass
class Server:
    """The server. Everything may be changed while it runs.

    Parameters
    ----------
    text
        From a prompt and a generator of random numbers to a text.
    model, key
        What it is asked for; None takes any.
    honours_seeds
        Whether the same seed gives the same text.
    breaks
        Probability that the connection breaks before a piece.
    refusals
        Statuses of the next answers, each with its headers.
    fails
        Probability that a request is answered with 429 or 503 first.
    slow
        Seconds before each piece.
    usage
        Whether it counts tokens.
    strict
        Whether it refuses fields that are not of the protocol.
    routes
        What it has.
    ends
        Replaces the finish reason.
    worlds
        By the names of models: where token ids and log-probabilities come from.
    gives
        Which of them it gives: token ids ("ids"), the one that ends a text among them ("end"), log-probabilities of
        what is drawn ("logprobs") and of what is given ("prompt_logprobs").
    skew
        Factor of the log-probabilities of what is given.
    raw
        From a request to what is sent for it, bytes after bytes as long as the client listens; None for the usual.
    """

    text: Callable[[str, random.Random], Text]
    model: str | None = "table"
    key: str | None = None
    honours_seeds: bool = True
    breaks: float = 0.0
    refusals: list[tuple[int, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    fails: float = 0.0
    slow: float = 0.0
    usage: bool = True
    strict: bool = False
    routes: tuple[str, ...] = ("/v1/completions", "/v1/chat/completions", "/v1/models")
    ends: str | None = None
    worlds: Mapping[str, World] = field(default_factory=dict)
    gives: tuple[str, ...] = ("ids", "end", "logprobs", "prompt_logprobs")
    skew: float = 1.0
    raw: Callable[[Mapping[str, Any]], Iterable[bytes] | None] = lambda _: None
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)
    port: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(0)
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.start()
        try:
            yield self
        finally:
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.run_until_complete(_ended(self._loop))
            self._loop.close()

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        """Close all connections, including streams."""
        self._do(self._stop())

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        route = head[0].split()[1]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return _plain(writer, 401, {}, _error(f"Incorrect API key: {headers.get('authorization')}"))
        if route not in self.routes:
            return _plain(writer, 404, {}, {"detail": "Not Found"})
        if route == "/v1/models":
            names = [{"id": name, "object": "model"} for name in (self.model, *self.worlds)]
            return _plain(writer, 200, {}, {"object": "list", "data": names})
        asked = json.loads(body)
        self.seen.append(asked)
        self.headers.append(headers)
        if self.model not in (None, asked["model"]) and asked["model"] not in self.worlds:
            return _plain(writer, 404, {}, _error(f"The model `{asked['model']}` does not exist."))
        if self.strict and asked.keys() & {"top_k", "min_p", "repetition_penalty"}:
            return _plain(writer, 400, {}, _error("Unrecognized request argument supplied: top_k"))
        calls = [call for turn in asked.get("messages", ()) for call in turn.get("tool_calls", ())]
        if not all(isinstance(call["function"]["arguments"], str) for call in calls):
            return _plain(writer, 400, {}, _error("function.arguments: Input should be a valid string"))
        if self.refusals:
            return _plain(writer, *self.refusals.pop(0))
        if self._chance.random() < self.fails:
            self.count["failed"] += 1
            return _plain(writer, self._chance.choice((429, 503)), {"Retry-After": "0"}, _error("busy"))
        if (raw := self.raw(asked)) is not None:
            return await self._sent(raw, reader, writer)
        if not asked.get("stream"):
            return self._scored(asked, writer)
        return await self._streamed(asked, reader, writer)

    def _scored(self, asked: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer without streaming: with a prompt's tokens, or their log-probabilities."""
        if self._chance.random() < self.breaks:
            self.count["broken"] += 1
            return False
        self.count["scored"] += 1
        world, ids = self.worlds[asked["model"]], _prompt(asked)
        if not isinstance(ids, list):
            ids = world.tokenizer(ids)["input_ids"]
        choice: dict[str, Any] = {"index": 0, "text": "a", "finish_reason": "length"}
        found = {"id": "x", "object": "text_completion", "created": 0, "model": "table", "choices": [choice]}
        if asked.get("return_token_ids") and "ids" in self.gives:
            (found if "messages" in asked else choice)["prompt_token_ids"] = ids
        if "prompt_logprobs" in asked and "prompt_logprobs" in self.gives:
            most = asked["prompt_logprobs"]
            lists = []
            for token, step in zip(ids[1:], steps_of(world, tuple(ids)), strict=True):
                likeliest = sorted(range(len(step)), key=step.__getitem__)[-most:] if most else []
                lists.append({str(each): {"logprob": step[each] * self.skew} for each in {*likeliest, token}})
            choice["prompt_logprobs"] = [None, *lists]
        return _plain(writer, 200, {}, found)

    async def _sent(self, raw: Iterable[bytes], reader: asyncio.StreamReader, writer: Any) -> bool:
        for data in raw:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(self.slow)
            self.count["sent"] += len(data)
            if reader.at_eof() or writer.is_closing():
                self.count["closed"] += 1
                return False
        return False

    async def _streamed(self, asked: Mapping[str, Any], reader: asyncio.StreamReader, writer: Any) -> bool:
        chat = "messages" in asked
        chance = random.Random(asked["seed"]) if self.honours_seeds else self._chance
        world = self.worlds.get(asked["model"])
        draw = self.text if world is None or asked["model"] == self.model else of_world(world)
        pieces, reason, tokens = draw(_prompt(asked), chance)
        ids: list[dict[str, Any]] = []
        if world is not None and asked.get("return_token_ids"):
            ids = self._ids(chat, world, _prompt(asked), list(pieces), reason)
        self.count["begun"] += 1
        data = _HEAD
        number = -1
        for number, piece in enumerate(pieces):
            if self._chance.random() < self.breaks:
                self.count["broken"] += 1
                writer.write(data)
                if self._chance.random() < 0.5:  # otherwise the data sent before may be lost too
                    await writer.drain()
                    return False
                writer.transport.abort()
                return False
            data += _piece(chat, piece) if not ids else _choices(chat, {**_said(chat, piece), **ids[number]})
            if self.slow or number % 16 == 15:
                writer.write(data)
                data = b""
                await asyncio.sleep(self.slow)
                if reader.at_eof() or writer.is_closing():
                    self.count["closed"] += 1
                    return False
        if len(ids) > number + 1:
            data += _choices(chat, {**_said(chat, ""), **ids[-1]})
        data += _end(chat, self.ends or reason)
        if self.usage and asked["stream_options"]["include_usage"]:
            data += _usage(tokens)
        writer.write(data + _chunk(b"[DONE]") + b"0\r\n\r\n")
        await writer.drain()
        self.count["whole"] += 1
        return True

    def _ids(self, chat: bool, world: World, prompt: str, pieces: list[str], reason: str) -> list[dict[str, Any]]:
        """Return the fields sent with each piece, and with the end of a text that ends by itself."""
        if "ids" not in self.gives:
            return []
        begin = world.tokenizer(prompt)["input_ids"]
        new = [world.tokenizer(piece)["input_ids"][0] for piece in pieces]
        new += [world.tokenizer.eos_token_id] if reason == "stop" and "end" in self.gives else []
        found: list[dict[str, Any]] = []
        for token, p in zip(new, scores(world, (*begin, *new))[len(begin) - 1 :], strict=True):
            logprobs: Any = {"content": [{"token": "x", "logprob": p}]} if chat else {"token_logprobs": [p]}
            found.append({"token_ids": [token], "logprobs": logprobs if "logprobs" in self.gives else None})
        return found


def endpoint(server: Server, **options: Any) -> Endpoint:
    """Return an endpoint for a server."""
    given = {"model": server.model, "repeats_seeds": server.honours_seeds, "max_retries": 30}
    return Endpoint(server.url, **{**given, **options})


@cache
def of_world(world: World) -> Callable[[str, random.Random], Text]:
    """Return a world's texts, drawn from its enumerated distribution, with one piece per character."""
    end = world.tokenizer.eos_token_id

    @cache
    def law(prompt: str) -> tuple[list[tuple[list[str], str, int]], list[float]]:
        found = replace(world, prompt=prompt).law()
        texts = [(list(world.draw(ids).text), "stop" if ids[-1] == end else "length", len(ids)) for ids in found]
        return texts, list(accumulate(found.values()))

    def text(prompt: str, chance: random.Random) -> Text:
        texts, below = law(prompt)
        return texts[min(bisect(below, chance.random() * below[-1]), len(texts) - 1)]

    return text


def scores(world: World, ids: tuple[int, ...]) -> list[float]:
    """Return log-probabilities of all tokens except the first, in nats."""
    return [step[token] for step, token in zip(steps_of(world, ids), ids[1:], strict=True)]


@cache
@torch.no_grad()
def steps_of(world: World, ids: tuple[int, ...]) -> list[list[float]]:
    """Return log-probabilities of every token of the vocabulary after each beginning, in nats."""
    logits = world.model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    steps: list[list[float]] = logits.log_softmax(-1).tolist()
    return steps


def _prompt(asked: Mapping[str, Any]) -> Any:
    return asked["messages"][-1]["content"] if "messages" in asked else asked["prompt"]


def _said(chat: bool, piece: Any) -> dict[str, Any]:
    """Return the field with a piece of a text, or with a delta."""
    return {"delta": {"content": piece} if isinstance(piece, str) else piece} if chat else {"text": piece}


def raw_text(*choices: dict[str, Any], chat: bool = False, usage: Any = None) -> list[bytes]:
    """Return a whole stream of these choices, with a usage of whatever kind."""
    data = {"id": "x", "object": "text_completion", "created": 0, "model": "table", "choices": [], "usage": usage}
    return [
        _HEAD,
        *(_choices(chat, choice) for choice in choices),
        *([] if usage is None else [_chunk(json.dumps(data).encode())]),
        _chunk(b"[DONE]"),
        b"0\r\n\r\n",
    ]


# The server closes the connection afterwards: a client that does not know would use it again, and find it broken.
_HEAD = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _choices(chat: bool, choice: dict[str, Any]) -> bytes:
    kind = "chat.completion.chunk" if chat else "text_completion"
    data = {"id": "x", "object": kind, "created": 0, "model": "table", "choices": [{"index": 0, **choice}]}
    return _chunk(json.dumps(data).encode())


def _piece(chat: bool, piece: Any) -> bytes:
    return _choices(chat, _said(chat, piece))


@cache
def _end(chat: bool, reason: str) -> bytes:
    return _choices(chat, {**({"delta": {}} if chat else {"text": ""}), "finish_reason": reason})


@cache
def _usage(tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    data = {"id": "x", "object": "text_completion", "created": 0, "model": "table", "choices": [], "usage": usage}
    return _chunk(json.dumps(data).encode())


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None}}


def _plain(writer: Any, status: int, headers: Mapping[str, str], body: Mapping[str, Any]) -> bool:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    writer.write("\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode() + data)
    return True


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for requests that are still in progress."""
    left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
