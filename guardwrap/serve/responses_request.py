"""Requests to ``/v1/responses``, translated to those of ``/v1/chat/completions``, so that both are parsed alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from guardwrap.documents.yaml_nodes import short
from guardwrap.serve.error_responses import ErrorResponse, bad
from guardwrap.serve.fields import NEUTRAL, effective_fields, known_fields
from guardwrap.serve.parsed_request import ParsedRequest, parse_request
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.responses_input import object_of, read_items

_TRANSLATED = ("input", "instructions", "max_output_tokens", "text", "reasoning", "include")
_OF_CHATS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of a chat, and what they are called here."""

_CHAT_PLACES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "tool_choice.allowed_tools": "tool_choice",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Places in a chat that its errors name, and what they are called here."""

_STATELESS = "this server stores nothing"
_UNCOMPRESSED = ({"context_compression": "auto"}, {"context_compression": "disabled"})
_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **NEUTRAL,
    "previous_response_id": ((), f"{_STATELESS}, so send the earlier items in input"),
    "conversation": ((), f"{_STATELESS}, so send the earlier items in input"),
    "prompt": ((), f"{_STATELESS}, so send the text in instructions and input"),
    "background": ((False,), f"{_STATELESS}, so wait for the reply, or stream it"),
    "context_management": (([],), "shorten the input yourself"),
    "truncation": (("disabled",), "shorten the input yourself"),
    "access_programs": (({}, {"cyber": "standard"}), "this server has none"),
    "image": (({}, *_UNCOMPRESSED), "send the image in the size that the model should see"),
    "n": ((1,), "a response has one text; use /v1/chat/completions for several"),
}
_LABELS = ("max_tool_calls", "background_options")
"""Fields that change nothing: this server runs neither tools nor requests in the background."""

_OURS = (*known_fields(chat=True), *_TRANSLATED, *_NEUTRAL, *_LABELS)
_KNOWN = tuple(name for name in _OURS if name not in _OF_CHATS)
_REASONING: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "summary": (("auto", "detailed"), "the reasoning is returned as a whole"),
    "generate_summary": (("auto", "detailed"), "the reasoning is returned as a whole"),
    "context": (("auto",), "the chat template decides which reasoning it shows"),
    "mode": (("standard",), "the model has one mode"),
}
_INCLUDABLE = (
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip
"""Additions to items that no response of this server has, so that they change nothing."""
_TOOL = ("type", "name", "description", "parameters", "strict")
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Fields that the response repeats, with their defaults."""


def parse_responses(fields: Mapping[str, Any], policy: RequestPolicy) -> ParsedRequest:
    """Validate the body of a request to ``/v1/responses``."""
    elsewhere = {name: f"is a field of /v1/chat/completions; give {here}" for name, here in _OF_CHATS.items()}
    effective = effective_fields(fields, _KNOWN, elsewhere, _NEUTRAL)
    chat = {name: value for name, value in effective.items() if name not in (*_TRANSLATED, *_LABELS)}
    _require_includable(effective.get("include", []))
    first = _instructions(effective.get("instructions", ""))
    messages, places = read_items(effective.get("input"), len(first))
    chat |= {"messages": [*first, *messages]}
    chat |= _format(effective.get("text", {})) | _effort(effective.get("reasoning", {}))
    for name, here, translated in (
        ("tools", "tools", _tools),
        ("tool_choice", "tool_choice", _tool_choice),
        ("max_tokens", "max_output_tokens", lambda value: value),
    ):
        if here in effective:
            chat[name] = translated(effective[here])
    with _named_as_sent(places):
        request = parse_request(chat, policy, chat=True)
    length_field = None if request.length_field is None else "max_output_tokens"
    echo = {name: default if fields.get(name) is None else fields[name] for name, default in _ECHOED.items()}
    echo["text"] = {**_ECHOED["text"], **effective.get("text", {})}
    return replace(request, prompt_field="input", length_field=length_field, echo=echo)


@contextmanager
def _named_as_sent(places: Mapping[str, str]) -> Iterator[None]:
    """Let errors of the chat name the fields of the request."""
    names = {**_CHAT_PLACES, **places}
    try:
        yield
    except ErrorResponse as error:
        param = error.param or ""
        inside = [name for name in names if f"{param}.".startswith(f"{name}.")]
        if not inside:
            raise
        name = max(inside, key=len)
        sent = names[name] + param.removeprefix(name)
        message = error.message if error.problem is None else f"{sent}: {error.problem}"
        raise ErrorResponse(error.status, message, param=sent, code=error.code) from None


def _instructions(value: Any) -> list[dict[str, Any]]:
    """Return the system message with the instructions, in a list that is empty without any."""
    if not isinstance(value, str):
        raise bad("instructions", "give a string; put messages into input")
    return [{"role": "system", "content": value}] if value else []


def _require_includable(names: Any) -> None:
    if not isinstance(names, list):
        raise bad("include", "give a list of strings")
    for i, name in enumerate(names):
        if name not in _INCLUDABLE:
            raise bad(f"include.{i}", f"{short(name)} is not supported; leave it out", code="unsupported_field")


def _format(text: Any) -> dict[str, Any]:
    """Return the field of a chat for the format of the text."""
    fields = object_of(text, "text", ("format", "verbosity"))
    _require_neutral(fields, "text", {"verbosity": NEUTRAL["verbosity"]})
    form = fields.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type" and value is not None}
        form = {"type": "json_schema", "json_schema": schema}
    return {} if form is None else {"response_format": form}


def _effort(reasoning: Any) -> dict[str, Any]:
    """Return the field of a chat for the effort of the reasoning."""
    fields = object_of(reasoning, "reasoning", ("effort", *_REASONING))
    _require_neutral(fields, "reasoning", _REASONING)
    return {"reasoning_effort": fields["effort"]} if "effort" in fields else {}


def _require_neutral(fields: Mapping[str, Any], where: str, neutral: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    for name, (values, reason) in neutral.items():
        if name in fields and fields[name] not in values:
            problem = f"is not supported: {reason}; leave it out"
            raise bad(f"{where}.{name}", problem, code="unsupported_field")


def _tools(tools: Any) -> Any:
    """Return the tools in the form of a chat, which nests the fields of the function."""
    if not isinstance(tools, list):
        raise bad("tools", "give a list of tools")
    return [_tool(tool, f"tools.{i}") for i, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        problem = f"tools of type {short(kind)} are not supported" if kind is not None else "give a tool with a type"
        raise bad(where, f"{problem}; give functions: {{'type': 'function', 'name', 'parameters'}}")
    fields = object_of({**tool, "defer_loading": tool.get("defer_loading") or None}, where, _TOOL)
    return {"type": "function", "function": {name: value for name, value in fields.items() if name != "type"}}


def _tool_choice(choice: Any) -> Any:
    """Return the choice in the form of a chat."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        functions = [
            {"type": tool.get("type"), "function": {"name": tool.get("name")}} if isinstance(tool, dict) else tool
            for tool in (tools if isinstance(tools, list) else ())
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": functions}}
    if choice.get("type") != "function":
        problem = f"type {short(choice.get('type'))} is not supported"
        raise bad("tool_choice", f"{problem}; give auto, required, none, a function or allowed_tools")
    return {"type": "function", "function": {"name": choice.get("name")}}
