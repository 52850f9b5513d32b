"""HTTP routes of the server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
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

from guardwrap.constraints.files.constraint_data import catalogue_descriptions
from guardwrap.constraints.files.file_fields import NAMED
from guardwrap.outcomes import Outcome
from guardwrap.samplers.sampler_registry import sampler_names
from guardwrap.serve.checked_texts import check_texts, guard_for_litellm
from guardwrap.serve.error_responses import ErrorResponse, no_model, refusal_of
from guardwrap.serve.incoming_requests import RequestContext, parsed, read_body, require_json, require_key, unread
from guardwrap.serve.parsed_request import ParsedRequest, model_of, parse_request
from guardwrap.serve.replies import Reply, ResponsesReply, require_complete
from guardwrap.serve.request_handling import AnyReply, Gate, Gone, Stream, as_json, closing, served, streamed
from guardwrap.serve.request_policy import RequestPolicy, policy_of
from guardwrap.serve.responses_request import parse_responses
from guardwrap.serve.served_model import LONG, Parse, ServedModel
from guardwrap.serve.server_metrics import ServerMetrics
from guardwrap.serve.server_settings import ServerSettings, read_keys
from guardwrap.support.files import PREFIX

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

log = logging.getLogger("guardwrap.serve")

GONE = 499
"""Status in logs and metrics of a request whose client disconnected before the reply."""

_PAGE = Path(__file__).with_name("page.html")
_NO_PAGE = b"<!doctype html><title>guardwrap</title><p>guardwrap serves OpenAI's API under <code>/v1</code>."
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(eq=False)
class Service:
    """State that the routes share."""

    policy: RequestPolicy
    settings: ServerSettings
    model: ServedModel | None  # None: texts are only checked

    def __post_init__(self) -> None:
        policy, limits, model = self.policy, self.policy.limits, self.model
        self.gate = gate = Gate(limits.running, limits.queue)
        self.keys = [hashlib.sha256(key.encode()).digest() for key in read_keys(self.settings)]
        live: dict[str, Callable[[], float]] = {
            "running": lambda: gate.running,
            "queued": lambda: gate.queued,
            "rows_busy": lambda: 0 if model is None else model.session.rows,
        }
        rules = {part.title for file in policy.files for part in file.constraint.parts}
        self.figures = ServerMetrics(policy.models[0], live, limits, rules)
        self.begun = int(time.time())
        self.checkers = ThreadPoolExecutor(limits.running, "guardwrap-checking")

    def about(self) -> dict[str, Any]:
        """Describe the model, and what requests to it may name, for the server's page."""
        policy = self.policy
        described = {name: file.description for name, file in policy.named.items()}
        ready_made = {PREFIX + name: about for name, about in catalogue_descriptions().items()}
        return {
            "guardwrap": version("guardwrap"),
            "model": policy.models[0],
            "aliases": list(policy.models[1:]),
            "always": list(self.settings.always),
            "constraints": [{"name": name, "description": text} for name, text in described.items()],
            "catalogue": [{"name": name, "description": text} for name, text in ready_made.items()],
            "samplers": sampler_names(),
            "proposals": [*NAMED, *policy.proposals],
            "adapters": list(policy.adapters),
            "classifiers": list(policy.classifiers),
            "batch_size": None if self.model is None else self.model.guarded.batch_size,
            "limits": policy.limits.model_dump(),
            "figures": self.figures.now(),
        }


def create_app(
    guarded: GuardedGenerator | None, settings: ServerSettings, policy: RequestPolicy | None = None
) -> FastAPI:
    """Create the application. ``app.state.service`` holds the state that its routes share.

    The model's own constraint is ignored: those of the request and of ``always`` apply. Without a model, texts are only
    checked. ``policy``: what ``policy_of`` has read from the files that the settings name; None to read them now.
    """
    policy = policy or policy_of(settings)
    model = None if guarded is None else ServedModel(guarded, policy)
    service = Service(policy if model is None else model.policy, settings, model)
    # FastAPI's own spans and logs would have paths and messages, which may contain texts.
    app = FastAPI(openapi_url=None, title="guardwrap", telemetry={"tracing": False, "logs": False})
    app.add_middleware(RequestContext)
    app.state.service = service
    posts: dict[str, _Handler] = {
        "/v1/check": partial(_checked, service, check_texts),
        "/beta/litellm_basic_guardrail_api": partial(_checked, service, guard_for_litellm),
    }
    facts: dict[str, Callable[[Request], Response]] = {
        "/metrics": lambda _: Response(service.figures.exposition(), media_type=_PROMETHEUS),
    }
    if model is not None:
        texts: dict[str, tuple[Parse, Callable[[ParsedRequest], AnyReply]]] = {
            "/v1/chat/completions": (partial(parse_request, chat=True), Reply),
            "/v1/responses": (parse_responses, partial(ResponsesReply, count_tokens=model.count_tokens)),
            "/v1/completions": (partial(parse_request, chat=False), partial(Reply, chat=False)),
        }
        posts |= {path: partial(_completion, service, model, *functions) for path, functions in texts.items()}
        facts |= {
            "/v1/models": lambda _: as_json({"object": "list", "data": _models(service)}),
            "/v1/models/{name:path}": lambda request: as_json(_model(service, request.path_params["name"])),
            "/v1/guardwrap/about": lambda _: as_json(service.about()),
        }
    for path, handle in posts.items():
        app.add_api_route(path, _endpoint(service, handle), methods=["POST"])
    for path, shown in facts.items():
        app.add_api_route(path, _endpoint(service, partial(_shown, shown)), methods=["GET", "HEAD"])

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        if service.gate.draining:
            return as_json(closing().body(), 503, {"Connection": "close"})
        return as_json({"status": "ok"})

    @app.api_route("/", methods=["GET", "HEAD"])
    async def page() -> Response:
        content = _PAGE.read_bytes() if model is not None and _PAGE.exists() else _NO_PAGE
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


_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def _endpoint(service: Service, handle: _Handler) -> _Handler:
    async def endpoint(request: Request) -> Response:
        return await _answered(service, request, handle)

    return endpoint


async def _shown(shown: Callable[[Request], Response], request: Request) -> Response:
    return shown(request)


async def _answered(service: Service, request: Request, handle: _Handler) -> Response:
    """Answer a request, and log its result without texts, prompts and keys."""
    began = time.monotonic()
    note = partial(_note, service, request, began)
    try:
        require_key(request, service.keys)
        response = await handle(request)
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
        note(response.status_code, getattr(request.state, "attempts", 0))
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


def _models(service: Service) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "model", "created": service.begun, "owned_by": "guardwrap"}
        for name in service.policy.models
    ]


def _model(service: Service, name: str) -> dict[str, Any]:
    entry = next((each for each in _models(service) if each["id"] == name), None)
    if entry is None:
        raise no_model(name, service.policy.models)
    return entry


async def _received(service: Service, request: Request) -> bytes:
    """Return the body of a request, unless it is refused."""
    if service.gate.draining:
        raise closing()
    require_json(request)
    return await read_body(request, service.settings.limits)


async def _checked(
    service: Service, check: Callable[[Mapping[str, Any], RequestPolicy], dict[str, Any]], request: Request
) -> Response:
    """Answer a request to check texts. Threads that check do not wait for the batch."""
    raw = await _received(service, request)
    request.state.model = service.policy.models[0]
    with service.gate.place():
        work = service.checkers.submit(lambda: check(parsed(raw), service.policy))
        return as_json(await asyncio.wrap_future(work))


async def _completion(
    service: Service,
    model: ServedModel,
    parse: Parse,
    reply_to: Callable[[ParsedRequest], AnyReply],
    request: Request,
) -> Response:
    """Answer a request for texts."""
    called = time.monotonic()
    gate = service.gate
    raw = await _received(service, request)
    fields = await model.fields(raw)
    model_of(fields, model.policy)
    request.state.model = model.policy.models[0]
    with ExitStack() as place:
        place.enter_context(gate.place())
        parsed_request, tokens = await model.read(fields, parse, long=len(raw) > LONG)
        items = served(model.guarded, gate, request, parsed_request, model.options(parsed_request), called)
        reply, drawn = reply_to(parsed_request), partial(_drawn, service)
        if parsed_request.stream:
            events = streamed(items, reply, tokens, drawn)
            first = await anext(events)  # an error before the first event still gets its own HTTP status
            return Stream(first, events, place.pop_all(), reply.failed)
        async with aclosing(items):  # if an outcome raises, its drawing ends now, not when it is collected as garbage
            outcomes = [drawn(item) async for item in items if isinstance(item, Outcome)]
        request.state.attempts = attempts = sum(outcome.report.usage.attempts for outcome in outcomes)
        try:
            complete = [require_complete(outcome, parsed_request) for outcome in outcomes]
        except ErrorResponse as error:
            error.attempts = attempts  # those of all prompts
            raise
        return as_json(reply.whole(complete, tokens))


def _drawn(service: Service, outcome: Outcome) -> Outcome:
    service.figures.drawn(outcome)
    return outcome
