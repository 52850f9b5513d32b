"""The fields of a request: those that are heeded, those that say nothing, and the rest, which is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from guardwrap.documents.limits import MAX_DEPTH
from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import is_count, nearest
from guardwrap.serve.error_responses import ErrorResponse, bad

__all__ = ["flag", "known_fields", "number_field", "parsed", "require_known", "whole"]

_BOTH = (
    "model", "n", "seed", "temperature", "top_p", "top_k", "max_tokens", "stop", "stream", "stream_options",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "guardwrap",
)  # fmt: skip
_CHAT = ("messages", "max_completion_tokens")
_TEXT = ("prompt",)

_MOST_DEPTH = MAX_DEPTH + 20  # of a schema, and what it is in
_TOO_DEEP = "the request is nested too deep"

_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "request_id")
"""Said of a request for other servers' books: they change no text, and are kept nowhere."""

_LOGPROBS = "what is known of a text is the sum over its tokens, and of the model's law, not of the constrained one"
_TOOLS = "texts are drawn, not calls of functions; give the schema of the arguments as response_format"
_LAW = "it is no setting of the model's law here"
_AUDIO = "texts alone are drawn"

_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "frequency_penalty": ((0,), _LAW),
    "presence_penalty": ((0,), _LAW),
    "repetition_penalty": ((1,), _LAW),
    "length_penalty": ((1,), _LAW),
    "logit_bias": (({},), _LAW),
    "min_p": ((0,), _LAW),
    "min_tokens": ((0,), "ask for a length as a constraint"),
    "bad_words": (([],), "ask for a keyword constraint with match: none"),
    "allowed_token_ids": ((), _LAW),
    "stop_token_ids": (([],), "give strings as stop"),
    "ignore_eos": ((False,), _LAW),
    "include_stop_str_in_output": ((False,), "the text is judged without its stop string, and leaves as it was judged"),
    "use_beam_search": ((False,), "texts are drawn, not searched for"),
    "best_of": ((1,), "there is no best text; n gives several"),
    "logprobs": ((False,), _LOGPROBS),
    "top_logprobs": ((0,), _LOGPROBS),
    "prompt_logprobs": ((), _LOGPROBS),
    "tools": (([],), _TOOLS),
    "tool_choice": (("none", "auto"), _TOOLS),
    "parallel_tool_calls": ((True, False), _TOOLS),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "modalities": ((["text"],), _AUDIO),
    "audio": ((), _AUDIO),
    "prediction": ((), "texts are drawn from the model alone"),
    "web_search_options": ((), "nothing is looked up"),
    "reasoning_effort": (("none",), _LAW),
    "verbosity": (("medium",), "say in the prompt how long the text is to be, or ask for a length as a constraint"),
    "service_tier": (("auto", "default"), "all requests are served alike"),
    "priority": ((0,), "all requests are served alike"),
    "store": ((False,), "nothing is kept"),
    "echo": ((False,), "the prompt is not judged, and not returned"),
    "suffix": ((), "texts continue their prompt"),
    "add_generation_prompt": ((True,), "the chat template does it"),
    "continue_final_message": ((False,), "a last message of the assistant is continued as it is"),
    "chat_template": ((), "the model's own is used"),
    "chat_template_kwargs": (({},), "the model's own template takes none here"),
    "documents": (([],), "put them into the messages"),
    "skip_special_tokens": ((True,), "the text is judged without them"),
    "spaces_between_special_tokens": ((True,), "the text is judged without them"),
    "truncate_prompt_tokens": ((), "shorten the prompt yourself"),
    "return_token_ids": ((False,), "texts leave, not tokens"),
    "return_tokens_as_token_ids": ((False,), "texts leave, not tokens"),
    "guided_json_object": ((False,), "give response_format={'type': 'json_object'}"),
    "guided_decoding_backend": ((), "there is one way to guarantee a constraint here"),
    "guided_whitespace_pattern": ((), "give structured_outputs with disable_any_whitespace, or a regex"),
    "structural_tag": ((), "give a grammar"),
}
"""Fields that other servers know: values that say nothing, None aside, and why any other one is refused."""


def known_fields(*, chat: bool) -> tuple[str, ...]:
    """Return the fields that a request may have."""
    return (*_BOTH, *(_CHAT if chat else _TEXT), *_LABELS, *_NEUTRAL)


def parsed(raw: bytes) -> dict[str, Any]:
    """Read the body of a request.

    Raises
    ------
    Refused
        If it is no JSON object that can be read.
    """
    try:
        data = json.loads(raw, parse_constant=_no_number)
        json.dumps(data, ensure_ascii=False).encode()
        _require_shallow(data)
    except UnicodeEncodeError:
        raise bad(None, "the request has half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise bad(None, _TOO_DEEP) from None
    except ValueError as error:  # of JSON, of a number with too many digits, of bytes that are no UTF-8
        raise bad(None, f"the request is no JSON: {short(str(error))}") from None
    if not isinstance(data, dict):
        raise bad(None, "the request is no JSON object")
    return data


def _require_shallow(data: Any) -> None:
    """Hold a request to the depth of files: whatever walks through it later takes some of Python's stack."""
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
    raise ValueError(f"{name} is no number")


def require_known(fields: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    """Return the fields that say something: without None, labels and neutral values.

    Raises
    ------
    Refused
        For a field that cannot be heeded, and one that nobody knows; names the nearest one.
    """
    known = known_fields(chat=chat)
    other = _TEXT if chat else _CHAT
    said = {}
    for name, value in fields.items():
        if name in other:
            where = "/v1/completions" if chat else "/v1/chat/completions"
            raise bad(name, f"is a field of {where}")
        if name not in known:
            problem = f"unknown field{nearest(name, known)}; leave it out"
            raise ErrorResponse(400, f"{short(name)}: {problem}", param=name[:60], code="unknown_field")
        if value is None or name in _LABELS:
            continue
        if name not in _NEUTRAL:
            said[name] = value
        elif not any(_same(value, neutral) for neutral in _NEUTRAL[name][0]):
            reason = _NEUTRAL[name][1]
            raise bad(name, f"is not supported: {reason}; leave it out", code="unsupported_field")
    return said


def _same(value: Any, neutral: Any) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def whole(fields: Mapping[str, Any], name: str, least: int, most: int | None = None) -> int | None:
    """Return a whole number, or None where it is left out."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not is_count(value) or value < least:
        raise bad(name, f"give a whole number of at least {least}")
    if most is not None and value > most:
        raise bad(name, f"this server takes at most {most}", code="above_the_limit")
    return value


def number_field(
    fields: Mapping[str, Any], name: str, least: float, most: float, *, zero: bool = False
) -> float | None:
    """Return a number between two limits, or None where it is left out; ``zero`` is taken besides."""
    value = fields.get(name)
    if value is None:
        return None
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not ((zero and value == 0) or (math.isfinite(value) and least <= value <= most)):
        raise bad(name, f"give {'0, or ' if zero else ''}a number from {least:g} to {most:g}")
    return float(value)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """Return a bool; False where it is left out."""
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise bad(name, "give true or false")
    return value
