"""Fields of a request: supported ones, ones that have no effect, and the rest, which is rejected with an error."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from guardwrap.documents.limits import MAX_DEPTH
from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import nearest
from guardwrap.serve.error_responses import ErrorResponse, bad

_BOTH = (
    "model", "n", "seed", "temperature", "top_p", "top_k", "max_tokens", "stop", "stream", "stream_options",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "guardwrap",
)  # fmt: skip
_CHAT = (
    "messages", "max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
    "reasoning_effort",
)  # fmt: skip
_TEXT = ("prompt",)

_MOST_DEPTH = MAX_DEPTH + 20  # a schema may be MAX_DEPTH deep, and is itself nested in the request
_TOO_DEEP = "the request is nested too deeply"

_LABELS = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "request_id", "service_tier", "store", "prediction",
)  # fmt: skip
"""Fields that change no text, only how other servers bill, cache, store or speed it up: accepted, without effect."""

_LOGPROBS = "log-probabilities are known for whole texts only, under the model without the constraint"
_TOOLS = "this is the old form; give tools"
_LAW = "this server does not apply it to the model's distribution"
_AUDIO = "this server returns only text"

NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "frequency_penalty": ((0,), _LAW),
    "presence_penalty": ((0,), _LAW),
    "repetition_penalty": ((1,), _LAW),
    "length_penalty": ((1,), _LAW),
    "logit_bias": (({},), _LAW),
    "min_p": ((0,), _LAW),
    "min_tokens": ((0,), "use a length constraint"),
    "bad_words": (([],), "use a keyword constraint with match: none"),
    "allowed_token_ids": ((), _LAW),
    "stop_token_ids": (([],), "use stop with strings"),
    "ignore_eos": ((False,), _LAW),
    "include_stop_str_in_output": ((False,), "texts are checked and returned without their stop string"),
    "use_beam_search": ((False,), "this server samples texts"),
    "best_of": ((1,), "texts are not ranked; use n for several"),
    "logprobs": ((False,), _LOGPROBS),
    "top_logprobs": ((0,), _LOGPROBS),
    "prompt_logprobs": ((), _LOGPROBS),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "modalities": ((["text"],), _AUDIO),
    "audio": ((), _AUDIO),
    "moderation": ((), "use a classifier constraint"),
    "web_search_options": ((), "this server does not search the web"),
    "verbosity": (("medium",), "say in the prompt how long the text should be, or use a length constraint"),
    "priority": ((0,), "all requests are treated alike"),
    "echo": ((False,), "the prompt is neither checked nor returned"),
    "suffix": ((), "texts always continue their prompt"),
    "add_generation_prompt": ((True,), "the chat template adds it"),
    "continue_final_message": ((False,), "a final assistant message is always continued"),
    "chat_template": ((), "the model's own template is used"),
    "documents": (([],), "put them into the messages"),
    "skip_special_tokens": ((True,), "texts are checked without special tokens"),
    "spaces_between_special_tokens": ((True,), "texts are checked without special tokens"),
    "truncate_prompt_tokens": ((), "shorten the prompt yourself"),
    "return_token_ids": ((False,), "this server returns texts, not tokens"),
    "return_tokens_as_token_ids": ((False,), "this server returns texts, not tokens"),
    "guided_json_object": ((False,), "use response_format={'type': 'json_object'}"),
    "guided_decoding_backend": ((), "this server has only one decoding backend"),
    "guided_whitespace_pattern": ((), "use structured_outputs with disable_any_whitespace, or a regex"),
    "structural_tag": ((), "give it in structured_outputs"),
}
"""Fields of other servers: the values that have no effect, besides None, and the reason why others are rejected."""


def known_fields(*, chat: bool) -> tuple[str, ...]:
    """Return the names of the fields that a request may have."""
    return (*_BOTH, *(_CHAT if chat else _TEXT), *_LABELS, *NEUTRAL)


def parsed(raw: bytes) -> dict[str, Any]:
    """Parse the body of a request."""
    try:
        data = json.loads(raw, parse_constant=_no_number)
        json.dumps(data, ensure_ascii=False).encode()
        _require_shallow(data)
    except UnicodeEncodeError:
        raise bad(None, "the request contains half of a surrogate pair, which is not a character") from None
    except RecursionError:
        raise bad(None, _TOO_DEEP) from None
    except ValueError as error:  # invalid JSON, a number with too many digits, or bytes that are not UTF-8
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


def require_known(fields: Mapping[str, Any], *, chat: bool) -> dict[str, Any]:
    """Return the fields that have an effect: without None, labels and neutral values."""
    where = "/v1/completions" if chat else "/v1/chat/completions"
    elsewhere = dict.fromkeys(_TEXT if chat else _CHAT, f"is a field of {where}")
    return effective_fields(fields, known_fields(chat=chat), elsewhere, NEUTRAL)


def effective_fields(
    fields: Mapping[str, Any],
    known: Sequence[str],
    elsewhere: Mapping[str, str],
    neutral: Mapping[str, tuple[tuple[Any, ...], str]],
) -> dict[str, Any]:
    """Return the fields that have an effect: without None, labels and neutral values."""
    effective = {}
    for name, value in fields.items():
        if name in elsewhere:
            raise bad(name, elsewhere[name])
        if name not in known:
            problem = f"unknown field{nearest(name, known)}; leave it out"
            raise ErrorResponse(400, f"{short(name)}: {problem}", param=name[:60], code="unknown_field")
        if value is None or name in _LABELS:
            continue
        if name not in neutral:
            effective[name] = value
        elif not any(_same(value, each) for each in neutral[name][0]):
            reason = neutral[name][1]
            raise bad(name, f"is not supported: {reason}; leave it out", code="unsupported_field")
    return effective


def _same(value: Any, neutral: Any) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def require_fields(names: Iterable[str], where: str, known: Collection[str]) -> None:
    """Raise ErrorResponse if an object of a request has an unknown field."""
    for name in names:
        if name not in known:
            raise bad(where, f"unknown field {short(name)}{nearest(name, known)}; known: {', '.join(known)}")


def require_size(where: str, size: int, most: int) -> None:
    """Raise ErrorResponse if a value has too many characters."""
    if size > most:
        raise bad(where, f"has {size} characters; this server accepts at most {most}", code="above_the_limit")


def whole(fields: Mapping[str, Any], name: str, least: int, most: int | None = None) -> int | None:
    """Return an integer field between ``least`` and ``most``, or None if it is missing."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad(name, f"give a whole number of at least {least}")
    if most is not None and value > most:
        raise bad(name, f"this server accepts at most {most}", code="above_the_limit")
    return value


def number_field(
    fields: Mapping[str, Any], name: str, least: float, most: float, *, zero: bool = False
) -> float | None:
    """Return a number between ``least`` and ``most``, or None if it is missing; with ``zero``, 0 is valid as well."""
    value = fields.get(name)
    if value is None:
        return None
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not ((zero and value == 0) or (math.isfinite(value) and least <= value <= most)):
        raise bad(name, f"give {'0, or ' if zero else ''}a number from {least:g} to {most:g}")
    return float(value)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """Return a boolean field, or False if it is missing."""
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise bad(name, "give true or false")
    return value
