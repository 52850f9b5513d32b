"""A request of OpenAI's protocol as what ``GuardedGenerator.arun`` takes. What would change a text is never ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.constraints.kinds.text import Length
from guardwrap.documents.yaml_nodes import reading
from guardwrap.errors import GuardwrapError, nearest
from guardwrap.proposals import merge_proposals, only_masks
from guardwrap.serve.error_responses import ErrorResponse, bad, in_field
from guardwrap.serve.fields import flag, number_field, require_known, whole
from guardwrap.serve.request_policy import (
    RequestPolicy,
    budget_of,
    constraints_of,
    drawn_from,
    require_mapping,
    sampler_of,
)
from guardwrap.serve.stop_strings import StopAt
from guardwrap.serve.structured_output import structured
from guardwrap.serve.time_limited import TimeLimited

__all__ = ["ANYTHING", "ParsedRequest", "parse_request"]

ANYTHING = Length(min=0, name="nothing was asked")
"""What holds of every text."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_OF_MESSAGES = ("role", "content", "name", "refusal", "audio", "tool_calls", "function_call", "annotations")
_MOST_STOPS, _LONGEST_STOP = 4, 64  # what finds them is made anew for other ones, of all tokens


@dataclass(frozen=True)
class ParsedRequest:
    """What a request asks for.

    Parameters
    ----------
    model
        The name by which it asked for the model.
    prompts
        Strings, or one chat, as ``arun`` takes them.
    options
        Of ``arun``.
    n
        Texts for each prompt.
    stops
        Stop strings: a text leaves without them.
    stream
        Whether it is answered by server-sent events.
    usage
        Whether these end with the number of tokens.
    length_given
        Whether it says how long a text may be.
    """

    model: str
    prompts: list[Any]
    options: dict[str, Any]
    n: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    length_given: bool = False


def parse_request(fields: Mapping[str, Any], menu: RequestPolicy, *, chat: bool) -> ParsedRequest:
    """Read the body of a request.

    Parameters
    ----------
    fields
        As JSON has them.
    menu
        What may be asked for.
    chat
        Whether it came to ``/v1/chat/completions``, not to ``/v1/completions``.

    Raises
    ------
    Refused
        For a field that cannot be heeded; names it.
    """
    said = require_known(fields, chat=chat)
    model = said.get("model")
    if not isinstance(model, str) or model not in menu.models:
        problem = f"there is no model {model!r}{nearest(model, menu.models)}; here it is {menu.models[0]!r}"
        raise ErrorResponse(404, f"model: {problem}"[:300], param="model", code="model_not_found")
    prompts = [_chat(said.get("messages"))] if chat else _texts(said.get("prompt"))
    n = whole(said, "n", 1, menu.limits.n) or 1
    if n * len(prompts) > menu.limits.n:
        raise bad("n", f"{len(prompts)} prompts of {n} texts are more than {menu.limits.n}", code="above_the_limit")
    stops = _stops(said.get("stop"))
    stream, usage = _streaming(said)
    options = {"num_return_sequences": n, **_law(said, menu), **_ours(said, menu, stops)}
    if stops:
        options["stop_strings"] = list(stops)
    if (seed := whole(said, "seed", 0, 2**63 - 1)) is not None:
        options["seed"] = seed
    length_given = "max_tokens" in said or "max_completion_tokens" in said
    return ParsedRequest(model, prompts, options, n, stops, stream, usage, length_given)


def _law(said: Mapping[str, Any], menu: RequestPolicy) -> dict[str, Any]:
    """Return the settings of the model's law; what is left out is the model's own."""
    most = menu.limits.max_new_tokens
    lengths = {whole(said, name, 1, most) for name in ("max_tokens", "max_completion_tokens") if name in said}
    if len(lengths) > 1:
        raise bad("max_tokens", "max_completion_tokens is the same, and says something else; give one of them")
    law: dict[str, Any] = {"max_new_tokens": next(iter(lengths), None) or min(256, most)}
    temperature = number_field(said, "temperature", 0.01, 100, zero=True)
    top_p, top_k = number_field(said, "top_p", 1e-6, 1), whole(said, "top_k", -1)
    if temperature == 0:
        return {**law, "do_sample": False}
    if temperature is not None:
        law |= {"do_sample": True, "temperature": temperature}
    if top_p is not None:
        law["top_p"] = top_p
    if top_k is not None:
        law["top_k"] = max(0, top_k)  # vLLM says "all" with -1, transformers with 0
    return law


def _ours(said: Mapping[str, Any], menu: RequestPolicy, stops: tuple[str, ...]) -> dict[str, Any]:
    """Return guardwrap's own options."""
    given = require_mapping(said.get("guardwrap", {}))
    try:
        with reading("the request"):
            files = [*menu.always, *map(ConstraintFile, structured(said, menu.limits)), *constraints_of(given, menu)]
            file = as_constraint_file(files) if files else ConstraintFile(ANYTHING)
            sampler, said_of = sampler_of(given), drawn_from(given, menu)
            proposal, adapter = merge_proposals(said_of, (file.proposal, file.adapter))
            if adapter is None and proposal not in (None, False) and not only_masks(proposal):
                adapter = False  # the server's own, which does not go with it
            budget = budget_of(given, file.budget, menu.limits)
            constraint = _guarded(file.constraint, stops, menu)
            constraint.digest, constraint.parts  # noqa: B018  # what takes time is done here, within the limit
    except GuardwrapError as error:
        raise in_field("guardwrap" if given else "response_format", error) from None
    whole_file = dataclasses.replace(file, constraint=constraint, proposal=None, adapter=None, budget=None)
    options: dict[str, Any] = {"constraints": whole_file, "budget": budget, "sampler": sampler}
    return options | {"proposal": proposal, "adapter": adapter}


def _guarded(constraint: Constraint, stops: tuple[str, ...], menu: RequestPolicy) -> Constraint:
    """Return the constraint, judged on the texts that leave, and the server's own functions within a time limit."""

    def wrapped(part: Constraint) -> Constraint:
        part = TimeLimited(part, menu.limits.checker_seconds) if runs_code(part) else part
        return StopAt(part, stops) if stops else part

    if not stops and not runs_code(constraint):
        return constraint
    parts = [wrapped(part) for part in constraint.parts]
    return parts[0] if len(parts) == 1 else All(parts)


def _streaming(said: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = flag(said, "stream")
    options = said.get("stream_options", {})
    if "stream_options" in said and not stream:
        raise bad("stream_options", "goes with stream: true only")
    if not isinstance(options, dict):
        raise bad("stream_options", "give an object")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation"):
            raise bad("stream_options", f"unknown field {name[:60]!r}{nearest(name, ['include_usage'])}")
        if name == "include_obfuscation" and value not in (None, False):
            raise bad("stream_options.include_obfuscation", "is not supported; leave it out")
    given = {name: value for name, value in options.items() if value is not None}
    return stream, flag(given, "include_usage")


def _stops(given: Any) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(several, list) or not all(isinstance(stop, str) and stop for stop in several):
        raise bad("stop", "give a string that is not empty, or a list of such")
    if len(several) > _MOST_STOPS or any(len(stop) > _LONGEST_STOP for stop in several):
        raise bad("stop", f"give at most {_MOST_STOPS} strings of at most {_LONGEST_STOP} characters")
    return tuple(dict.fromkeys(several))


def _texts(given: Any) -> list[str]:
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or not several or not all(isinstance(text, str) for text in several):
        raise bad("prompt", "give a string, or a list of strings")
    if not all(several):
        raise bad("prompt", "is empty; give it text")
    return several


def _chat(given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise bad("messages", "give a list of messages, each with a role and a content")
    return [_message(message, f"messages.{i}") for i, message in enumerate(given)]


def _message(given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise bad(where, "give an object with a role and a content")
    for name, value in given.items():
        if name not in _OF_MESSAGES:
            raise bad(where, f"unknown field {name[:60]!r}{nearest(name, _OF_MESSAGES)}")
        if name not in ("role", "content") and value not in (None, []):
            raise bad(f"{where}.{name}", "is not supported; leave it out")
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role", f"is not one of {', '.join(_ROLES)}{nearest(role, _ROLES)}")
    if isinstance(content, list):
        content = "\n".join(_part(part, f"{where}.content.{i}") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise bad(f"{where}.content", "give a string, or a list of parts of type text")
    return {"role": _ROLES[role], "content": content}


def _part(given: Any, where: str) -> str:
    if not isinstance(given, dict) or given.get("type") != "text" or not isinstance(given.get("text"), str):
        raise bad(where, "only parts of type text are supported: {'type': 'text', 'text': '...'}")
    if extra := sorted(set(given) - {"type", "text"}):
        raise bad(where, f"unknown field {extra[0][:60]!r}")
    return str(given["text"])
