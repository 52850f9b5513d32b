"""HTTP routes of the server."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from guardwrap.constraints.files.catalogue_files import catalogue_descriptions
from guardwrap.constraints.files.coerce import catalogue
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.files.proposal_fields import NAMED
from guardwrap.environment.package_data import PREFIX
from guardwrap.environment.transformers_internals import tokenizer_lock
from guardwrap.errors import GuardwrapError, SpecError, UsageError, nearest
from guardwrap.messages.templates import family_of, writes_parts
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.media import VisionCall
from guardwrap.pipelines.prepare import require_context
from guardwrap.pipelines.prompt_forms import what_is_wrong
from guardwrap.proposals import Masked, Prompt, Twisted
from guardwrap.samplers.sampler_registry import sampler_names
from guardwrap.serve.admission import Gate, closing
from guardwrap.serve.error_responses import ErrorResponse, bad, refusal_of
from guardwrap.serve.fields import parsed
from guardwrap.serve.incoming_requests import RequestContext, read_body, require_json, require_key, unread
from guardwrap.serve.parsed_request import ParsedRequest, has_token_ids, parse_request, texts_of_ids
from guardwrap.serve.replies import Reply, require_complete
from guardwrap.serve.request_handling import AnyReply, Gone, Stream, as_json, served, streamed
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.responses_reply import ResponsesReply
from guardwrap.serve.responses_request import parse_responses
from guardwrap.serve.server_metrics import ServerMetrics
from guardwrap.serve.server_settings import ServerSettings, read_keys, read_named
from guardwrap.session.local_session import LocalSession

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

__all__ = ["Service", "create_app", "policy_of"]

log = logging.getLogger("guardwrap.serve")

GONE = 499
"""Status in logs and metrics of a request whose client disconnected before the reply."""

REST, MOST_REST = 4, 2.0
"""After parsing a long request, its thread sleeps ``REST`` times the parsing time, at most ``MOST_REST`` seconds."""

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


_Parse = Callable[[Mapping[str, Any], RequestPolicy], ParsedRequest]

_OF_THE_PROMPT = ("tools", "tokenizer_encode_kwargs", "add_special_tokens")
"""Options of a request that change the tokens of its prompts."""


def _parses(tokenizer: Any) -> Literal["never", "tools", "always"]:
    """Return when answers to chats are parsed into messages."""
    if writes_parts(tokenizer):
        return "always"
    return "never" if family_of(tokenizer) is None else "tools"


def policy_of(settings: ServerSettings) -> RequestPolicy:
    """Read the files that the settings name, and return the policy for requests.

    Raises
    ------
    GuardwrapError
        If a file cannot be read.
    """
    named = read_named(settings)
    always = []
    for name in settings.always:
        if name not in named and not name.startswith(PREFIX):
            raise SpecError(f"always: there is no constraint file {name!r}{nearest(name, named)} in the folder")
        always.append(named[name] if name in named else catalogue(name.removeprefix(PREFIX)))
    return RequestPolicy(
        models=(settings.served_name, *settings.aliases),
        named=named,
        always=tuple(always),
        adapters=settings.adapters,
        proposals=settings.proposals,
        classifiers=settings.classifiers,
        limits=settings.limits,
    )


@dataclass(eq=False)
class Service:
    """State that the routes share.

    Parameters
    ----------
    guarded
        Generates the texts.
    settings
        Settings of the server.
    policy
        Names and limits that apply to requests.
    """

    guarded: GuardedGenerator
    settings: ServerSettings
    policy: RequestPolicy

    def __post_init__(self) -> None:
        if not isinstance(self.guarded.session, LocalSession):
            raise UsageError("a server needs a local model, not an endpoint; give a Hub id, a folder or a pipeline")
        self.session = self.guarded.session
        images = issubclass(self.session.call_class, VisionCall)
        self.policy = dataclasses.replace(self.policy, parses=_parses(self.session.tokenizer), images=images)
        limits = self.settings.limits
        self.gate = Gate(limits.running, limits.queue)
        self.keys = [hashlib.sha256(key.encode()).digest() for key in read_keys(self.settings)]
        gate, session = self.gate, self.session
        self.figures = ServerMetrics(
            running=lambda: gate.running,
            queued=lambda: gate.queued,
            rows=lambda: session.rows,
            most_running=limits.running,
            most_queued=limits.queue,
            rules={part.title for file in self._files() for part in file.constraint.parts},
        )
        self.session.model_name = self.policy.models[0]  # in telemetry: clients know the model by this name
        self.begun = int(time.time())
        self.about = self._about()
        self._adapters = self._loaded()
        # Parsing does not use asyncio.to_thread, whose threads the wrapper needs. A long prompt takes seconds, so long
        # requests share one thread with its own copy of the tokenizer: they delay only each other.
        self._readers = ThreadPoolExecutor(2, "guardwrap-reading")
        self._patient = ThreadPoolExecutor(1, "guardwrap-reading-long")
        self._own = copy.copy(self.session.pipe)
        self._own.tokenizer = copy.deepcopy(self.session.tokenizer)
        if self.session.call_class.causal:  # built now, so that the first masked request does not delay the others
            self.session.stable_prefix(self.session.call_class.read(self.session.pipe, {})).vocabulary  # noqa: B018

    def _loaded(self) -> dict[Any, Any]:
        """Load the adapters that requests may name: requests share a batch only if they share the loaded adapter."""
        from guardwrap.session.resolve import adapter_of

        asked = [*self.policy.adapters.values(), *(file.adapter for file in self._files() if file.adapter is not None)]
        return {adapter: adapter_of(self.guarded.session.pipe, adapter) for adapter in dict.fromkeys(asked)}

    def _files(self) -> list[ConstraintFile]:
        """Return the constraint files of the settings."""
        return [*self.policy.named.values(), *self.policy.always]

    def options(self, parsed_request: ParsedRequest) -> dict[str, Any]:
        """Return the arguments of ``astream`` for a request, with loaded adapters."""
        adapter = parsed_request.options["adapter"]
        return {**parsed_request.options, "adapter": self._adapters.get(adapter, adapter)}

    async def read(self, raw: bytes, parse: _Parse) -> tuple[ParsedRequest, int]:
        """Parse a request and count its prompt tokens in a thread, so that it blocks neither event loop nor batch.

        Parameters
        ----------
        raw
            The body of the request.
        parse
            Validates its JSON object.

        Raises
        ------
        ErrorResponse
            If the request is invalid, or does not fit into the model's context.
        PromptError
            If a prompt alone does not fit into it.
        """
        short = len(raw) <= LONG
        pipe, readers = (self.session.pipe, self._readers) if short else (self._own, self._patient)

        def read() -> tuple[ParsedRequest, int]:
            fields = parsed(raw)
            if by_ids := has_token_ids(fields):
                with tokenizer_lock(pipe.tokenizer):
                    fields["prompt"] = texts_of_ids(fields["prompt"], pipe.tokenizer)
            request = parse(fields, self.policy)
            if by_ids:
                request.options["add_special_tokens"] = False  # the ids are the whole prompt
            try:
                shown = {name: request.options[name] for name in _OF_THE_PROMPT if name in request.options}
                lengths = self._lengths(request.prompts, pipe, shown)
                return self._fitting(request, lengths, pipe, shown), sum(lengths)
            except (GuardwrapError, ErrorResponse):
                raise
            except Exception as error:  # the code of a chat template may raise anything
                raise bad(request.prompt_field, what_is_wrong(request.prompts, error)) from None

        def read_patiently() -> tuple[ParsedRequest, int]:
            began = time.monotonic()
            try:
                return read()
            finally:  # parsing holds the GIL, so the pause leaves the batch time during a flood of long requests
                time.sleep(min(REST * (time.monotonic() - began), MOST_REST))

        return await asyncio.get_running_loop().run_in_executor(readers, read if short else read_patiently)

    def _lengths(self, prompts: Sequence[Any], pipe: Any, shown: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each prompt, as the model reads it; ``shown`` holds tools and the like."""
        session = self.session
        call = session.call_class.read(pipe, shown)
        lengths = []
        for prompt in session.call_class.read_prompts(prompts).prompts:
            lengths.append(int(call.encoded(prompt)["input_ids"].shape[1]))
            require_context(session.model, lengths[-1])
        return lengths

    def _fitting(
        self, request: ParsedRequest, lengths: Sequence[int], pipe: Any, shown: Mapping[str, Any]
    ) -> ParsedRequest:
        """Return the request with a ``max_new_tokens`` that fits into the context, or reject the one that it sets.

        The proposal's prompts must fit as well. Some models fail beyond their context, and with them the whole batch.
        """
        context = getattr(self.guarded.model.config.get_text_config(), "max_position_embeddings", None)
        if context is None:
            return request
        proposal = request.options["proposal"]
        proposal = proposal.proposal if isinstance(proposal, Masked | Twisted) else proposal
        proposed = [proposal.apply(prompt) for prompt in request.prompts] if isinstance(proposal, Prompt) else []
        longest, wanted = max([*lengths, *self._lengths(proposed, pipe, shown)]), request.options["max_new_tokens"]
        if longest + wanted <= context:
            return request
        if request.length_field is not None:
            problem = f"{longest} prompt tokens and {wanted} new ones exceed the model's context of {context}; lower it"
            raise bad(request.length_field, f"{problem}, or shorten the prompt", code="context_length_exceeded")
        return dataclasses.replace(request, options={**request.options, "max_new_tokens": max(1, context - longest)})

    def _about(self) -> dict[str, Any]:
        described = {name: file.description for name, file in self.policy.named.items()}
        ready_made = {PREFIX + name: about for name, about in catalogue_descriptions().items()}
        return {
            "guardwrap": version("guardwrap"),
            "model": self.policy.models[0],
            "aliases": list(self.policy.models[1:]),
            "always": list(self.settings.always),
            "constraints": [{"name": name, "description": text} for name, text in described.items()],
            "catalogue": [{"name": name, "description": text} for name, text in ready_made.items()],
            "samplers": sampler_names(),
            "proposals": [*NAMED, *self.policy.proposals],
            "adapters": list(self.policy.adapters),
            "classifiers": list(self.policy.classifiers),
            "batch_size": self.guarded.batch_size,
            "limits": self.settings.limits.model_dump(),
        }


def create_app(guarded: GuardedGenerator, settings: ServerSettings, policy: RequestPolicy | None = None) -> FastAPI:
    """Create the application. ``app.state.service`` holds the state that its routes share.

    Parameters
    ----------
    guarded
        Generates the texts. Its constraint is ignored: those of the request and of ``always`` apply.
    settings
        Settings of the server.
    policy
        Names and limits that apply to requests; None reads them from the settings.

    Raises
    ------
    GuardwrapError
        If a file that the settings name cannot be read.
    """
    service = Service(guarded, settings, policy_of(settings) if policy is None else policy)
    # FastAPI's own spans and logs would have paths and messages, which may contain texts.
    app = FastAPI(openapi_url=None, title="guardwrap", telemetry={"tracing": False, "logs": False})
    app.add_middleware(RequestContext)
    app.state.service = service
    answer = partial(_answered, service)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer(request, partial(_completion, service, partial(parse_request, chat=True), Reply))

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        reply_to = partial(ResponsesReply, tokenizer=service.session.tokenizer)
        return await answer(request, partial(_completion, service, parse_responses, reply_to))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        parse, reply_to = partial(parse_request, chat=False), partial(Reply, chat=False)
        return await answer(request, partial(_completion, service, parse, reply_to))

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        return await answer(request, partial(_plain, lambda: {"object": "list", "data": _models(service)}))

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        return await answer(request, partial(_plain, lambda: _model(service, name)))

    @app.get("/v1/guardwrap/about")
    async def about(request: Request) -> Response:
        return await answer(request, partial(_plain, lambda: {**service.about, "figures": service.figures.now()}))

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        return await answer(request, partial(_metrics, service))

    @app.get("/health")
    async def health() -> Response:
        if service.gate.draining:
            return as_json(closing().body(), 503, {"Connection": "close"})
        return as_json({"status": "ok"})

    @app.get("/")
    async def page() -> Response:
        content = _PAGE.read_bytes() if _PAGE.exists() else _NO_PAGE
        return Response(content, media_type="text/html; charset=utf-8", headers=_SAFE)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        message = f"{error.detail}: this server has no such route" if error.status_code == 404 else str(error.detail)
        refused = refusal_of(ErrorResponse(error.status_code, message, code="no_route"), request.state.request_id)
        return as_json(refused.body(), refused.status)

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
        note(refused.status, _attempts_in(refused))
        return as_json(refused.body(), refused.status, refused.headers)
    if isinstance(response, Stream):
        response.note = note
    else:
        note(response.status_code, attempts)
    return response


def _note(service: Service, request: Request, began: float, status: int, attempts: int = 0) -> None:
    seconds = time.monotonic() - began
    if request.method == "POST":
        service.figures.served(status, seconds)
    request.state.status = status
    path = request.scope["route"].path  # the pattern of the route: the path that the client sent is not logged
    facts = {"status": status, "seconds": seconds, "attempts": attempts, "request_id": request.state.request_id}
    log.info("%s %s %d %.2f s %d attempts %s", request.method, path, *facts.values(), extra=facts)


def _attempts_in(refused: ErrorResponse) -> int:
    return int(refused.report["usage"]["attempts"]) if isinstance(refused.report, Mapping) else 0


async def _plain(make: Callable[[], Any], request: Request) -> tuple[Response, int]:
    return as_json(make()), 0


async def _metrics(service: Service, request: Request) -> tuple[Response, int]:
    return Response(service.figures.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8"), 0


def _models(service: Service) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "model", "created": service.begun, "owned_by": "guardwrap"}
        for name in service.policy.models
    ]


def _model(service: Service, name: str) -> dict[str, Any]:
    entry = next((each for each in _models(service) if each["id"] == name), None)
    if entry is None:
        raise ErrorResponse(404, f"this server has no model {name[:60]!r}", param="model", code="model_not_found")
    return entry


async def _completion(
    service: Service, parse: _Parse, reply_to: Callable[[ParsedRequest], AnyReply], request: Request
) -> tuple[Response, int]:
    """Answer a request for texts."""
    if service.gate.draining:
        raise closing()
    require_json(request)
    raw = await read_body(request, service.settings.limits)
    with ExitStack() as place:
        place.enter_context(service.gate.place())
        parsed_request, tokens = await service.read(raw, parse)
        items = served(service.guarded, service.gate, request, parsed_request, service.options(parsed_request))
        reply = reply_to(parsed_request)
        if parsed_request.stream:
            events = streamed(items, reply, tokens, partial(_drawn, service))
            first = await anext(events)  # an error before the first event still gets its own HTTP status
            return Stream(first, events, place.pop_all(), reply.failed), 0
        async with aclosing(items):  # if an outcome raises, its drawing ends now, not when it is collected as garbage
            outcomes = [_drawn(service, item) async for item in items if isinstance(item, Outcome)]
        complete = [require_complete(outcome, parsed_request) for outcome in outcomes]
        attempts = sum(outcome.report.usage.attempts for outcome in complete)
        return as_json(reply.whole(complete, tokens)), attempts


def _drawn(service: Service, outcome: Outcome) -> Outcome:
    service.figures.drawn(outcome)
    return outcome
