"""The distribution a(y) of a server's texts, defined by one prompt and the fields of its request."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.constraints.views import in_json, message_part
from guardwrap.engine.endpoint.server import Endpoint
from guardwrap.errors import UsageError, is_number, nearest, require_whole

_THEIRS = {"max_tokens": "max_new_tokens", "n": "num_return_sequences", "stop": "stop_strings"}

_EXTRA = ("top_k", "min_p", "repetition_penalty", "chat_template_kwargs")

_RAW = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""The fields with which tokens are drawn from the model's own probabilities, which a server reports."""

MOST_LISTED = 20
"""The largest ``top_k`` under which texts can be weighed: a server lists so many of the likeliest tokens (vLLM's
``--max-logprobs`` by default), and whatever else truncates keeps some of them."""


@dataclass(frozen=True)
class EndpointSettings:
    """The generation settings of a call."""

    fields: Mapping[str, Any]  # request fields of the OpenAI protocol
    extra: Mapping[str, Any]  # request fields beyond the protocol
    count: int  # number of texts per prompt
    mode: Literal["sample", "greedy"]  # how tokens are chosen from scores
    words: str  # a description of the settings, for reports
    chat: Mapping[str, Any] = field(default_factory=dict)  # the same for chats only
    chat_extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sent(self) -> Mapping[str, Any]:
        """The request fields."""
        return {**self.fields, **self.extra}

    @property
    def listed(self) -> int:
        """How many of the likeliest tokens of a step a server has to list for weights; 0 if all can be drawn."""
        top_k = int(self.sent.get("top_k", -1))
        return top_k if 0 < top_k <= MOST_LISTED else 0


@dataclass(frozen=True, eq=False)
class EndpointLaw:
    """One prompt under the settings of a call."""

    prompt: str | Sequence[Mapping[str, Any]]  # a string, or a list of messages
    settings: EndpointSettings  # the generation settings
    model: str  # the server's name for the model, or for an adapter on it
    # the request field ``structured_outputs``, which restricts the server's tokens; None for no restriction
    mask: Mapping[str, Any] | None = None
    scored: bool = False  # whether token ids and their log-probabilities are requested
    # whether the message that the server sends in separate fields is read, with its reasoning and tool calls
    parses: bool = False
    # OpenTelemetry's context of the call, whose span its requests belong to; None if nothing is traced
    traced: Any = None
    max_time: float | None = field(default=None, init=False)
    beam_results: None = field(default=None, init=False)

    @property
    def count(self) -> int:
        """Number of texts requested: ``num_return_sequences``."""
        return self.settings.count

    @property
    def route(self) -> str:
        """The route of its requests, below the endpoint's ``base_url``."""
        return "/completions" if isinstance(self.prompt, str) else "/chat/completions"

    @property
    def extra(self) -> dict[str, Any]:
        """Request fields beyond the OpenAI protocol."""
        more: dict[str, Any] = dict(self.settings.extra)
        if not isinstance(self.prompt, str):
            more |= self.settings.chat_extra
        if self.mask is not None:
            more["structured_outputs"] = self.mask
        if self.scored:
            more["return_token_ids"] = True
        return more

    @property
    def fields(self) -> dict[str, Any]:
        """Request fields of the OpenAI protocol, except ``seed`` and those for streaming."""
        fields: dict[str, Any] = {"model": self.model, **self.settings.fields}
        if isinstance(self.prompt, str):
            fields["prompt"] = self.prompt
        else:
            fields |= {"messages": list(self.prompt), **self.settings.chat}
        if self.scored:
            fields |= {"logprobs": 0} if isinstance(self.prompt, str) else {"logprobs": True, "top_logprobs": 0}
        return fields

    @property
    def mode(self) -> Literal["sample", "greedy", "beam"]:
        """How tokens are chosen from scores."""
        return self.settings.mode


def read_endpoint_settings(endpoint: Endpoint, options: Mapping[str, Any]) -> EndpointSettings:
    """Validate the generation options of a call, which have the names used by transformers.

    Fields for all options are sent, including those that were not passed, so that the server's defaults do not apply.
    """
    passed = {name: value for name, value in options.items() if value is not None}
    for name in passed:
        if name not in _OPTIONS:
            hint = f" (did you mean {_THEIRS[name]!r}?)" if name in _THEIRS else nearest(name, _OPTIONS)
            raise UsageError(f"an endpoint has no option {name!r}{hint}; it has {', '.join(_OPTIONS)}")
        if name in _EXTRA and not endpoint.extra:
            raise UsageError(
                f"{name} is not part of the OpenAI protocol, and the endpoint has extra=False; leave it out"
            )
    read = {
        name: validated(name, passed[name]) if name in passed else default
        for name, (default, validated) in _OPTIONS.items()
    }
    greedy = not read["do_sample"]
    if greedy and read["num_return_sequences"] > 1:
        raise UsageError("greedy search gives only one text per prompt; pass do_sample=True, or num_return_sequences=1")
    fields = {
        "max_tokens": read["max_new_tokens"],
        "temperature": 0.0 if greedy else read["temperature"],
        "top_p": 1.0 if greedy else read["top_p"],
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "n": 1,
    }
    if read["stop_strings"]:
        fields["stop"] = read["stop_strings"]
    extra: dict[str, Any] = {}
    if endpoint.extra:
        # "No limit" is -1 for every server that has top_k, and also 0 for some.
        extra = {"top_k": -1 if greedy else read["top_k"] or -1, "min_p": 0.0 if greedy else read["min_p"]}
        extra["repetition_penalty"] = read["repetition_penalty"]
    shown = {"temperature": fields["temperature"], "top_p": fields["top_p"]}
    shown |= {"top_k": read["top_k"], "min_p": extra["min_p"]} if extra and not greedy else {}
    shown |= {name: extra[name] for name in ("repetition_penalty",) if name in extra}
    shown["max_new_tokens"] = fields["max_tokens"]
    words = "greedy search" if greedy else ", ".join(f"{name}={value:g}" for name, value in shown.items())
    if "stop" in fields:
        words += f", up to one of {len(fields['stop'])} stop strings"
    # The model itself decides about a call: servers mask tokens for any other choice.
    chat = {"tools": read["tools"], "tool_choice": "auto"} if read["tools"] else {}
    variables = read["chat_template_kwargs"]
    return EndpointSettings(
        fields,
        extra,
        read["num_return_sequences"],
        "greedy" if greedy else "sample",
        words,
        chat,
        {"chat_template_kwargs": variables} if variables else {},
    )


def require_weighable_endpoint(endpoint: Endpoint, settings: EndpointSettings) -> None:
    """Check that the log-probabilities that a server reports are those that it draws tokens with."""
    else_ = "or sampler='rejection'"
    if settings.mode != "sample":
        raise UsageError(f"greedy search draws nothing that could be weighed; pass do_sample=True, {else_}")
    if not endpoint.extra:
        raise UsageError(
            "the endpoint has extra=False, so top_k, min_p and repetition_penalty are the server's own and its texts "
            f"cannot be weighed; pass Endpoint(extra=True), {else_}"
        )
    if "stop" in settings.fields:
        raise UsageError(f"texts cut by stop_strings cannot be weighed over an endpoint; leave them out, {else_}")
    for name, needed in _RAW.items():
        value = settings.sent[name]
        if value == needed or (settings.listed and name != "repetition_penalty"):
            continue
        listed = "" if name == "repetition_penalty" else f", top_k={MOST_LISTED} or less"
        raise UsageError(
            f"{name}={value:g}: a server reports only the model's own probabilities, so other texts cannot be "
            f"weighed; pass {name}={max(needed, 0):g}{listed}, {else_}"
        )


def _whole(least: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        return require_whole(name, value, least)

    return read


def _number(low: float, high: float, *, open_: bool = False) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        if not is_number(value) or not low <= value <= high or (open_ and value == low):
            way_out = "; greedy search is do_sample=False" if name == "temperature" else ""
            between = f"above {low:g}" if open_ else f"of at least {low:g}"
            upper = f" and at most {high:g}" if math.isfinite(high) else ""
            raise UsageError(f"{name}={value!r}: give a number {between}{upper}{way_out}")
        return float(value)

    return read


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: give True or False")
    return value


def _strings(name: str, value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(each, str) and each for each in strings):
        raise UsageError(f"{name}: give a string or a list of strings, none of them empty")
    return list(strings)


def _tools(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple) or not all(isinstance(tool, Mapping) for tool in value):
        raise UsageError(f"{name}: give a list of tools in OpenAI's format, such as ToolCalls(...).definitions")
    return [dict(tool) for tool in value]


def _variables(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name}: give a dict with variables of the server's chat template")
    return dict(value)


_OPTIONS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "chat_template_kwargs": ({}, _variables),
    "do_sample": (True, _flag),
    "max_new_tokens": (256, _whole(1)),  # this and the temperature are the defaults of the text-generation pipeline
    "min_p": (0.0, _number(0.0, 1.0)),
    "num_return_sequences": (1, _whole(1)),
    "repetition_penalty": (1.0, _number(0.0, math.inf, open_=True)),
    "stop_strings": ([], _strings),
    "temperature": (0.7, _number(0.01, math.inf)),  # vLLM silently raises smaller values to this
    "tools": ([], _tools),
    "top_k": (0, _whole(0)),
    "top_p": (1.0, _number(0.0, 1.0, open_=True)),
}
"""The options of a call: their defaults, and the functions that validate them."""

# Only syntax that has the same meaning in all regular expression engines: letters, escaped punctuation, classes of
# these, groups, alternatives and greedy repetitions. Not `.`, `\d`, `\w` and `\s`, which some engines limit to ASCII,
# or to a line.
_LITERAL = r"[^\\.\[\](){}*+?|^$\n]|\\[.\\\[\](){}*+?|^$/-]"

_ITEM = r"[^\\\[\]^\n&~|:-]|\\[.\\\[\](){}*+?|^$/-]"

_CLASS = rf"\[\^?(?:(?:{_ITEM})(?:-(?:{_ITEM}))?)+\]"

_REPEAT = r"(?:[*+?]|\{\d+(?:,\d*)?\})(?![*+?{])"

_PLAIN = re.compile(rf"(?:(?:(?:{_LITERAL}|{_CLASS}|\))(?:{_REPEAT})?)|\((?:\?:)?(?![?*+{{])|\|)*")


def masking(constraint: Constraint) -> tuple[Constraint, dict[str, Any]]:
    """Return the first part of a constraint that ``structured_outputs`` can express, and the field's value for it."""
    for part in _conjuncts(constraint):
        field = _in_words(part)
        if field is not None:
            return part, field
    raise UsageError(
        "over an endpoint, Masked() requires a part of the constraint that vLLM's structured_outputs supports: a "
        "JSONSchema of the whole text or answer, a Regex with match='fullmatch' of letters, classes, groups and "
        "repetitions, or a Grammar without % lines, aliases and ?rules; use one, or leave Masked() out"
    )


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    if isinstance(constraint, All):
        for part in constraint.of:
            yield from _conjuncts(part)
    else:
        yield constraint


def _in_words(part: Constraint) -> dict[str, Any] | None:
    on = getattr(part, "on", None)
    if on is None or in_json(on) or (on != "completion" and message_part(on) != "answer"):  # only answers are masked
        return None
    if isinstance(part, JSONSchema) and part.where == "text" and isinstance(part.schema, dict) and part.schema:
        compact = {"disable_any_whitespace": True} if part.whitespace == "compact" else {}
        return {"json": part.schema, **compact}
    if isinstance(part, Regex) and part.match == "fullmatch" and not part.flags and _PLAIN.fullmatch(part.pattern):
        return {"regex": part.pattern}
    if isinstance(part, Grammar) and part.start == "start" and _plain_lark(str(part.grammar)):
        return {"grammar": part.grammar}
    return None


def _plain_lark(grammar: str) -> bool:
    """Return whether a grammar contains only rules and terminals, which all servers interpret alike."""
    return not re.search(r"^\s*[%?!]|->|\bfrom\b", grammar, re.MULTILINE)
