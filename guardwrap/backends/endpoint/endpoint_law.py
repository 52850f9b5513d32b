"""What defines a(y) of a server's texts: one prompt, and the fields of its request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from guardwrap.backends.endpoint.server import Endpoint
from guardwrap.errors import UsageError, is_number, nearest, require_whole

__all__ = ["EndpointLaw", "EndpointSettings", "read_endpoint_settings", "require_weighable_endpoint"]

_THEIRS = {"max_tokens": "max_new_tokens", "n": "num_return_sequences", "stop": "stop_strings"}
_EXTRA = ("top_k", "min_p", "repetition_penalty")
_RAW = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What is sent where a token is drawn from the model's own probabilities: a server gives those and no others."""


@dataclass(frozen=True)
class EndpointSettings:
    """The settings of a call.

    Parameters
    ----------
    fields
        Of the protocol, as they are sent.
    extra
        Beyond it, as they are sent.
    count
        Texts asked for, for each prompt.
    mode
        How a token follows from scores.
    words
        What a is under them, in words.
    """

    fields: Mapping[str, Any]
    extra: Mapping[str, Any]
    count: int
    mode: Literal["sample", "greedy"]
    words: str


@dataclass(frozen=True, eq=False)
class EndpointLaw:
    """One prompt under the settings of a call.

    Parameters
    ----------
    prompt
        A string, or messages.
    settings
        The settings.
    model
        The name that the server has for the model, or for an adapter on it.
    mask
        What the server is to keep its tokens to: its field ``structured_outputs``.
    scored
        Whether token ids and their log-probabilities are asked for.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    settings: EndpointSettings
    model: str
    mask: Mapping[str, Any] | None = None
    scored: bool = False
    max_time: float | None = field(default=None, init=False)
    beam_results: None = field(default=None, init=False)

    @property
    def count(self) -> int:
        """Texts asked for."""
        return self.settings.count

    @property
    def route(self) -> str:
        """Where its requests go, below the endpoint's address."""
        return "/completions" if isinstance(self.prompt, str) else "/chat/completions"

    @property
    def extra(self) -> dict[str, Any]:
        """Fields of a request that the protocol does not have."""
        more: dict[str, Any] = dict(self.settings.extra)
        if self.mask is not None:
            more["structured_outputs"] = self.mask
        if self.scored:
            more["return_token_ids"] = True
        return more

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a request that the protocol has, all but its seed and how it is answered."""
        found: dict[str, Any] = {"model": self.model, **self.settings.fields}
        found |= {"prompt": self.prompt} if isinstance(self.prompt, str) else {"messages": list(self.prompt)}
        if self.scored:
            found |= {"logprobs": 0} if isinstance(self.prompt, str) else {"logprobs": True, "top_logprobs": 0}
        return found

    @property
    def mode(self) -> Literal["sample", "greedy", "beam"]:
        """How a token follows from scores."""
        return self.settings.mode


def read_endpoint_settings(endpoint: Endpoint, options: Mapping[str, Any]) -> EndpointSettings:
    """Read the generation options of a call, which have the names that transformers gives them.

    Every field is sent, also one that was not asked for, so that the server's defaults do not count.

    Parameters
    ----------
    endpoint
        For which server.
    options
        As the user gave them; None says nothing.

    Raises
    ------
    UsageError
        If one is unknown, invalid, or not to be had over this endpoint.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in _READ:
            hint = f" (did you mean {_THEIRS[name]!r}?)" if name in _THEIRS else nearest(name, _READ)
            raise UsageError(f"an endpoint has no option {name!r}{hint}; it has {', '.join(_READ)}")
        if name in _EXTRA and not endpoint.extra:
            raise UsageError(
                f"{name} is not of the OpenAI protocol, and the endpoint was made with extra=False; leave it out"
            )
    read = {name: _READ[name](name, given[name]) if name in given else default for name, default in _DEFAULTS.items()}
    greedy = not read["do_sample"]
    if greedy and read["num_return_sequences"] > 1:
        raise UsageError("greedy search has one text for a prompt; pass do_sample=True, or num_return_sequences=1")
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
        # Of all tokens: -1 to every server that has top_k, 0 to some.
        extra = {"top_k": -1 if greedy else read["top_k"] or -1, "min_p": 0.0 if greedy else read["min_p"]}
        extra["repetition_penalty"] = read["repetition_penalty"]
    shown = {"temperature": fields["temperature"], "top_p": fields["top_p"]}
    shown |= {"top_k": read["top_k"], "min_p": extra["min_p"]} if extra and not greedy else {}
    shown |= {name: extra[name] for name in ("repetition_penalty",) if name in extra}
    shown["max_new_tokens"] = fields["max_tokens"]
    words = "greedy search" if greedy else ", ".join(f"{name}={value:g}" for name, value in shown.items())
    if "stop" in fields:
        words += f", up to one of {len(fields['stop'])} stop strings"
    return EndpointSettings(fields, extra, read["num_return_sequences"], "greedy" if greedy else "sample", words)


def require_weighable_endpoint(endpoint: Endpoint, settings: EndpointSettings) -> None:
    """Require that a server's log-probabilities are those that tokens are drawn with.

    Raises
    ------
    UsageError
        Where they are not: names the option.
    """
    else_ = "or sampler='rejection'"
    if settings.mode != "sample":
        raise UsageError(f"greedy search draws nothing that could be weighed; pass do_sample=True, {else_}")
    if not endpoint.extra:
        raise UsageError(
            "the endpoint was made with extra=False, so top_k, min_p and repetition_penalty are the server's own and "
            f"its texts cannot be weighed; pass Endpoint(extra=True), {else_}"
        )
    if "stop" in settings.fields:
        raise UsageError(f"a text that stop_strings cut cannot be weighed over an endpoint; leave them out, {else_}")
    for name, needed in _RAW.items():
        given = {**settings.fields, **settings.extra}[name]
        if given != needed:
            raise UsageError(
                f"{name}={given:g}: a server says what texts weigh under the model's own probabilities only; pass "
                f"{name}={max(needed, 0):g}, {else_}"
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
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) and each for each in given):
        raise UsageError(f"{name}: give a string or a list of strings, none of them empty")
    return list(given)


_READ: dict[str, Callable[[str, Any], Any]] = {
    "do_sample": _flag,
    "max_new_tokens": _whole(1),
    "min_p": _number(0.0, 1.0),
    "num_return_sequences": _whole(1),
    "repetition_penalty": _number(0.0, math.inf, open_=True),
    "stop_strings": _strings,
    "temperature": _number(0.01, math.inf),  # vLLM takes less for this, and says nothing
    "top_k": _whole(0),
    "top_p": _number(0.0, 1.0, open_=True),
}

_DEFAULTS: dict[str, Any] = {
    "do_sample": True,
    "max_new_tokens": 256,  # this and the temperature as of the text-generation pipeline
    "min_p": 0.0,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "stop_strings": [],
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
}
