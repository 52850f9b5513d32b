"""HTTP routes of the server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from guardwrap.outcomes import Outcome
from guardwrap.serve.admission import closing
from guardwrap.serve.error_responses import ErrorResponse, no_model, refusal_of
from guardwrap.serve.fields import parsed
from guardwrap.serve.incoming_requests import RequestContext, read_body, require_json, require_key, unread
from guardwrap.serve.models.model_shelf import ModelShelf
from guardwrap.serve.models.model_slot import ModelSlot
from guardwrap.serve.models.served_model import Parse, ServedModel, patiently
from guardwrap.serve.parsed_request import ParsedRequest, parse_request, parsed_without_model
from guardwrap.serve.replies import Reply, require_complete
from guardwrap.serve.request_handling import AnyReply, Gone, Stream, as_json, served, streamed, unless_over
from guardwrap.serve.responses_reply import ResponsesReply
from guardwrap.serve.responses_request import parse_responses
from guardwrap.serve.server_metrics import ServerMetrics, WatchedModel
from guardwrap.serve.server_settings import ServerSettings, read_keys

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

log = logging.getLogger("guardwrap.serve")

GONE = 499
"""Status in logs and metrics of a request whose client disconnected before the reply."""

LONG = 50_000
"""Requests with more bytes than this are parsed in a separate thread, so that short ones do not wait for them."""

_PAGE = Path(__file__).with_name("page.html")
_NO_PAGE = b"<!doctype html><title>guardwrap</title><p>guardwrap serves OpenAI's API under <code>/v1</code>."
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(eq=False)
class Service:
    """State that the routes share."""

    shelf: ModelShelf  # the models
    settings: ServerSettings  # settings of the server

    def __post_init__(self) -> None:
        self.keys = [hashlib.sha256(key.encode()).digest() for key in read_keys(self.settings)]
        self.figures = ServerMetrics({slot.name: _watched(slot) for slot in self.shelf.slots})
        for slot in self.shelf.slots:
            slot.on_load = partial(self.figures.loaded, slot.name)
            if slot.start_seconds is not None:
                slot.on_load(slot.start_seconds)
        self.begun = int(time.time())
        self._readers = ThreadPoolExecutor(2, "guardwrap-parsing")
        self._patient = ThreadPoolExecutor(1, "guardwrap-parsing-long")

    async def fields(self, raw: bytes) -> dict[str, Any]:
        """Parse the body of a request, a long one in a thread."""
        if len(raw) <= LONG:
            return parsed(raw)
        work = partial(patiently, partial(parsed, raw))
        fields: dict[str, Any] = await asyncio.get_running_loop().run_in_executor(self._patient, work)
        return fields

    async def require_valid(self, slot: ModelSlot, fields: dict[str, Any], parse: Parse, *, long: bool) -> None:
        """Validate a request whose model is not loaded in a thread, so that no invalid request loads one."""
        images = slot.settings.images
        check = partial(parsed_without_model, parse, fields, slot.policy, images=images)
        readers, work = (self._patient, partial(patiently, check)) if long else (self._readers, check)
        await asyncio.get_running_loop().run_in_executor(readers, work)

    def about(self) -> dict[str, Any]:
        """Describe the server for its page: the first model, and all of them in ``models``."""
        models = [slot.about() for slot in self.shelf.slots]
        figures = self.figures.now()
        return {"guardwrap": version("guardwrap"), **models[0], "models": models, "figures": figures}


def _watched(slot: ModelSlot) -> WatchedModel:
    live: dict[str, Callable[[], float]] = {
        "running": lambda: slot.gate.running,
        "queued": lambda: slot.gate.queued,
        "rows_busy": lambda: slot.rows,
        "loaded": lambda: float(slot.model is not None),
    }
    rules = {part.title for file in slot.policy.files for part in file.constraint.parts}
    return WatchedModel(live, slot.policy.limits.running, slot.policy.limits.queue, rules)


def create_app(models: GuardedGenerator | ModelShelf, settings: ServerSettings) -> FastAPI:
    """Create the application. ``app.state.service`` holds the state that its routes share.

    ``models``: the models that the settings name, or one that is loaded already. Its constraint is ignored: those of
    the request and of ``always`` apply.
    """
    if not isinstance(models, ModelShelf):
        guarded = models
        models = ModelShelf(settings, lambda _: guarded)
        models.load_at_start()
    service = Service(models, settings)
    # FastAPI's own spans and logs would have paths and messages, which may contain texts.
    app = FastAPI(openapi_url=None, title="guardwrap", telemetry={"tracing": False, "logs": False})
    app.add_middleware(RequestContext)
    app.state.service = service
    answer = partial(_answered, service)
    get = partial(app.api_route, methods=["GET", "HEAD"])

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer(request, partial(_completion, service, partial(parse_request, chat=True), _chat_reply))

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await answer(request, partial(_completion, service, parse_responses, _responses_reply))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answer(request, partial(_completion, service, partial(parse_request, chat=False), _text_reply))

    @get("/v1/models")
    async def model_list(request: Request) -> Response:
        return await answer(request, partial(_plain, lambda: {"object": "list", "data": _models(service)}))

    @get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        return await answer(request, partial(_plain, lambda: _model(service, name)))

    @get("/v1/guardwrap/about")
    async def about(request: Request) -> Response:
        return await answer(request, partial(_plain, service.about))

    @get("/metrics")
    async def metrics(request: Request) -> Response:
        return await answer(request, partial(_metrics, service))

    @get("/health")
    async def health() -> Response:
        if service.shelf.shutdown.draining:
            return as_json(closing().body(), 503, {"Connection": "close"})
        return as_json({"status": "ok"})

    @get("/")
    async def page() -> Response:
        content = _PAGE.read_bytes() if _PAGE.exists() else _NO_PAGE
        return Response(content, media_type="text/html; charset=utf-8", headers=_SAFE)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        message = f"{error.detail}: this server has no such route" if error.status_code == 404 else str(error.detail)
        if allowed := (error.headers or {}).get("Allow"):
            message = f"{message}: this route takes {allowed}"
        refusal = ErrorResponse(error.status_code, message, code="no_route", headers=error.headers)
        refused = refusal_of(refusal, request.state.request_id)
        return as_json(refused.body(), refused.status, refused.headers)

    return app


_Handler = Callable[[Request], Coroutine[Any, Any, tuple[Response, int]]]


async def _answered(service: Service, request: Request, handle: _Handler) -> Response:
    """Answer a request, and log its result without texts, prompts and keys."""
    began = time.monotonic()
    note = partial(_note, service, request, began)
    try:
        require_key(request, service.keys)
        response, attempts = await handle(request)
    except (ClientDisconnect, Gone):
        note(GONE)
        return Response(status_code=GONE)
    except Exception as error:
        refused = refusal_of(error, ident := request.state.request_id)
        if refused.status == 500:
            log.warning("unexpected %s in request %s; run with -vv to log the traceback", type(error).__name__, ident)
            log.debug("unexpected error", exc_info=error)  # its message may quote unchecked text
        if refused.status != 408:
            await unread(request)
        note(refused.status, refused.attempts)
        return as_json(refused.body(), refused.status, refused.headers)
    if isinstance(response, Stream):
        response.note = note
    else:
        note(response.status_code, attempts)
    return response


def _note(service: Service, request: Request, began: float, status: int, attempts: int = 0) -> None:
    seconds = time.monotonic() - began
    model = getattr(request.state, "model", "")  # the client's own words are no label, and are not logged
    if request.method == "POST":
        service.figures.served(model, status, seconds)
    request.state.status = status
    path = request.scope["route"].path  # the pattern of the route: the path that the client sent is not logged
    facts = {"status": status, "seconds": seconds, "attempts": attempts, "request_id": request.state.request_id}
    line = f"%s %s %d %.2f s %d attempts{' of ' if model else ''}%s %s"
    shown = request.method, path, status, seconds, attempts, model, facts["request_id"]
    log.info(line, *shown, extra={**facts, "model": model})


async def _plain(make: Callable[[], Any], request: Request) -> tuple[Response, int]:
    return as_json(make()), 0


async def _metrics(service: Service, request: Request) -> tuple[Response, int]:
    return Response(service.figures.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8"), 0


def _models(service: Service) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "model", "created": service.begun, "owned_by": "guardwrap"}
        for name in service.shelf.names
    ]


def _model(service: Service, name: str) -> dict[str, Any]:
    entry = next((each for each in _models(service) if each["id"] == name), None)
    if entry is None:
        raise no_model(name, [slot.policy.models for slot in service.shelf.slots])
    return entry


def _chat_reply(request: ParsedRequest, model: ServedModel) -> AnyReply:
    return Reply(request)


def _text_reply(request: ParsedRequest, model: ServedModel) -> AnyReply:
    return Reply(request, chat=False)


def _responses_reply(request: ParsedRequest, model: ServedModel) -> AnyReply:
    return ResponsesReply(request, tokenizer=model.session.tokenizer)


async def _completion(
    service: Service, parse: Parse, reply_to: Callable[[ParsedRequest, ServedModel], AnyReply], request: Request
) -> tuple[Response, int]:
    """Answer a request for texts."""
    called = time.monotonic()
    shutdown = service.shelf.shutdown
    if shutdown.draining:
        raise closing()
    require_json(request)
    raw = await read_body(request, service.settings.limits)
    fields = await service.fields(raw)
    slot = service.shelf.slot(fields.get("model"))
    request.state.model = slot.name
    with ExitStack() as place:
        place.enter_context(slot.place())
        model, long = slot.model, len(raw) > LONG
        if model is None:
            await unless_over(request, shutdown, service.require_valid(slot, fields, parse, long=long))
            model = await unless_over(request, shutdown, slot.loaded())
        parsed_request, tokens = await model.read(fields, parse, long=long)
        items = served(model.guarded, slot.gate, request, parsed_request, model.options(parsed_request), called)
        reply, drawn = reply_to(parsed_request, model), partial(_drawn, service, slot)
        if parsed_request.stream:
            events = streamed(items, reply, tokens, drawn)
            first = await anext(events)  # an error before the first event still gets its own HTTP status
            return Stream(first, events, place.pop_all(), reply.failed), 0
        async with aclosing(items):  # if an outcome raises, its drawing ends now, not when it is collected as garbage
            outcomes = [drawn(item) async for item in items if isinstance(item, Outcome)]
        attempts = sum(outcome.report.usage.attempts for outcome in outcomes)
        try:
            complete = [require_complete(outcome, parsed_request) for outcome in outcomes]
        except ErrorResponse as error:
            error.attempts = attempts  # those of all prompts
            raise
        return as_json(reply.whole(complete, tokens)), attempts


def _drawn(service: Service, slot: ModelSlot, outcome: Outcome) -> Outcome:
    service.figures.drawn(slot.name, outcome)
    return outcome
