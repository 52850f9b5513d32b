"""Parsing of a request to OpenAI's API. A field that would change a text is never ignored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from guardwrap.constraints.base import All, Constraint, Wrapper, walk
from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file
from guardwrap.constraints.json.tool_calls import NO_CALLS, ToolCalls
from guardwrap.constraints.kinds.function import Python, runs_code
from guardwrap.constraints.kinds.text import Length
from guardwrap.constraints.stop_strings import stopped
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import Part, View
from guardwrap.documents.yaml_nodes import reading
from guardwrap.environment.cached import cached_property
from guardwrap.environment.threads import in_thread
from guardwrap.errors import CheckFailed, GuardwrapError, nearest
from guardwrap.outcomes import Draw
from guardwrap.proposals import Masked, merge_proposals, only_masks
from guardwrap.samplers.sampler_registry import read_sampler
from guardwrap.serve.chat_messages import read_chat, read_template_options, read_tools
from guardwrap.serve.error_responses import bad, in_field, no_model
from guardwrap.serve.fields import flag, number_field, require_known, whole
from guardwrap.serve.request_policy import (
    RequestPolicy,
    budget_of,
    constraints_of,
    drawn_from,
    fallback_of,
    field_values,
    repair_of,
    require_mapping,
    sampler_of,
)
from guardwrap.serve.structured_output import Structure, structured

ANYTHING = Length(min=0, name="no constraint")
"""A constraint that every text satisfies."""

CALLS = Masked(beyond_truncation=True)
"""What requests that require a call are drawn from, unless they or the server's files name a sampler or a proposal.

Clients of OpenAI's API expect a call, and a model that is not trained for tools hardly ever writes one."""

_LENGTHS = ("max_tokens", "max_completion_tokens")

_MOST_STOPS, _LONGEST_STOP = 4, 64  # transformers preprocesses the whole vocabulary for each new set of stop strings


@dataclass(frozen=True)
class ParsedRequest:
    """A valid request, as arguments of ``GuardedGenerator.arun``."""

    model: str  # the name that the request uses for the model
    prompts: list[Any]  # strings, or one chat
    options: dict[str, Any]  # keyword arguments of ``arun``
    n: int = 1  # number of texts per prompt
    stops: tuple[str, ...] = ()  # stop strings, which are not part of the returned texts
    stream: bool = False  # whether to reply with server-sent events
    usage: bool = False  # whether the stream ends with the number of tokens
    prompt_field: str = "prompt"  # the request field with the prompts, which errors name
    length_field: str | None = None  # the request field that sets the maximum length of a text; None if there is none
    echo: Mapping[str, Any] = field(default_factory=dict)  # fields of the request that its reply repeats
    most_tokens: int | None = None  # the server's limit on ``max_new_tokens``; None for none


def has_token_ids(fields: Mapping[str, Any]) -> bool:
    """Whether the prompts of a request are token ids."""
    return all(map(_are_ids, _several(fields.get("prompt"))))


def texts_of_ids(prompts: Any, tokenizer: Any) -> list[str]:
    """Return the texts that one or several prompts of token ids stand for."""
    texts, several = [], _several(prompts)
    for i, ids in enumerate(several):
        if max(ids) >= len(tokenizer):
            raise bad("prompt", f"has a token id of {max(ids)}; this model has {len(tokenizer)} tokens")
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
            where = f"prompt.{i}" if several is prompts else "prompt"
            raise bad(where, "these token ids are not how the model's tokenizer encodes their text; send the text")
        texts.append(text)
    return texts


def _several(prompts: Any) -> list[Any]:
    return prompts if isinstance(prompts, list) and prompts and isinstance(prompts[0], list) else [prompts]


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int and each >= 0 for each in value)


def model_of(fields: Mapping[str, Any], policy: RequestPolicy) -> str:
    """Return the name that a request uses for the model."""
    name = fields.get("model")
    if not isinstance(name, str) or name not in policy.models:
        raise no_model(name, policy.models)
    return name


def parse_request(fields: Mapping[str, Any], policy: RequestPolicy, *, chat: bool) -> ParsedRequest:
    """Validate the body of a request."""
    fields = require_known(fields, chat=chat)
    model = model_of(fields, policy)
    prompts = [read_chat(fields.get("messages"), images=policy.images)] if chat else _texts(fields.get("prompt"))
    tools = read_tools(fields, policy) if chat else None
    n = whole(fields, "n", 1, policy.limits.n) or 1
    if n * len(prompts) > policy.limits.n:
        problem = f"{len(prompts)} prompts with {n} texts each are more than the limit of {policy.limits.n} texts"
        raise bad("n", problem, code="above_the_limit")
    stops = _stops(fields.get("stop"))
    stream, usage = _streaming(fields)
    parses = chat and (policy.parses == "always" or tools is not None)
    ours = _ours(fields, policy, stops, tools, chat=chat, parses=parses)
    options = {"num_return_sequences": n, **_law(fields, policy), **ours}
    options |= _shown(fields, tools) if chat else {}
    if parses:
        options["parse_messages"] = True
    if stops:
        options["stop_strings"] = list(stops)
    if (seed := whole(fields, "seed", 0, 2**63 - 1)) is not None:
        options["seed"] = seed
    prompt_field = "messages" if chat else "prompt"
    length_field = next((name for name in _LENGTHS if name in fields), None)
    most = policy.limits.max_new_tokens
    return ParsedRequest(model, prompts, options, n, stops, stream, usage, prompt_field, length_field, most_tokens=most)


def _law(fields: Mapping[str, Any], policy: RequestPolicy) -> dict[str, Any]:
    """Return the generation settings of a request. Those that it leaves out are the model's own."""
    most = policy.limits.max_new_tokens
    accepted = None if policy.limits.clamp else most
    lengths = {whole(fields, name, 1, accepted) for name in _LENGTHS if name in fields}
    if len(lengths) > 1:
        raise bad("max_tokens", "differs from max_completion_tokens, which means the same; give one of them")
    law: dict[str, Any] = {"max_new_tokens": min(next(iter(lengths), None) or most, most)}
    temperature = number_field(fields, "temperature", 0.001, 100, zero=True)
    top_p, top_k = number_field(fields, "top_p", 1e-6, 1, zero=True), whole(fields, "top_k", -1)
    if temperature == 0:
        return {**law, "do_sample": False}
    if temperature is not None:
        law |= {"do_sample": True, "temperature": temperature}
    if top_p is not None:
        law["top_p"] = top_p or 1e-6  # 0 means the most probable token alone
    if top_k is not None:
        law["top_k"] = max(0, top_k)  # all tokens: -1 in vLLM, 0 in transformers
    return law


def _shown(fields: Mapping[str, Any], tools: ToolCalls | None) -> dict[str, Any]:
    """Return what the chat template shows to the model besides the messages."""
    options: dict[str, Any] = {}
    if tools is not None and tools.choice != "none":
        options["tools"] = tools.definitions
    if variables := read_template_options(fields):
        options["tokenizer_encode_kwargs"] = variables
    return options


def _ours(
    fields: Mapping[str, Any],
    policy: RequestPolicy,
    stops: tuple[str, ...],
    tools: ToolCalls | None,
    *,
    chat: bool,
    parses: bool,
) -> dict[str, Any]:
    """Return the constraint, budget, sampler, proposal, adapter and repair turns of a request."""
    # A message that calls a tool does not require an answer.
    missing: Any = "fail" if tools is None or tools.choice == "none" else "pass"
    answer: View = Part(message="answer", missing=missing) if parses else "completion"
    own = require_mapping(fields.get("guardwrap", {}))
    try:
        with reading("the request"):
            structures = [_of_answer(each, answer) for each in structured(fields, policy.limits)]
            calls = [NO_CALLS if tools is None else tools] if parses else []
            rules = map(ConstraintFile, [*structures, *calls])
            files = [*policy.always, *rules, *constraints_of(own, policy)]
            file = as_constraint_file(files) if files else ConstraintFile(ANYTHING)
            file = file.filled(field_values(own, file, policy))
            sampler, requested = sampler_of(own), drawn_from(own, policy)
            proposal, adapter = merge_proposals(requested, (file.proposal, file.adapter))
            if tools is not None and tools.least and sampler is proposal is adapter is None:
                sampler, proposal = read_sampler("rejection"), CALLS
            if adapter is None and proposal not in (None, False) and not only_masks(proposal):
                adapter = False  # without this, the server's own adapter would conflict with the proposal
            repair = repair_of(own, file.repair, policy, chat=chat)
            turns = 0 if repair is None else repair["max_turns"]
            budget = budget_of(own, file.budget, policy.limits, turns=turns)
            constraint = _guarded(file.constraint, stops, policy)
            fallback = fallback_of(own, replace(file, constraint=constraint), policy.limits)
            constraint.digest, constraint.parts  # noqa: B018  # computed here, within the time limit for reading
    except GuardwrapError as error:
        raise in_field("guardwrap" if own else "response_format", error) from None
    whole_file = replace(
        file, constraint=constraint, proposal=None, adapter=None, budget=None, repair=repair, fallback=fallback
    )
    options: dict[str, Any] = {"constraints": whole_file, "budget": budget, "sampler": sampler}
    return options | {"proposal": proposal, "adapter": adapter}


def _of_answer(structure: Structure, answer: View) -> Constraint:
    """Return the constraint of a structured output field, for the answer alone if the message has other parts."""
    if not isinstance(structure, All):
        return replace(structure, on=answer)
    if answer != "completion":
        raise bad("response_format", "structural tags are not supported for messages with tool calls; give tools")
    return structure


def _guarded(constraint: Constraint, stops: tuple[str, ...], policy: RequestPolicy) -> Constraint:
    """Return the constraint, applied to texts without stop strings, with a time limit for functions of the server."""
    if runs_code(constraint):
        seconds = policy.limits.checker_seconds
        parts = [TimeLimited(part, seconds) if runs_code(part) else part for part in constraint.parts]
        constraint = parts[0] if len(parts) == 1 else All(parts)
    return stopped(constraint, stops)


def _streaming(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = flag(fields, "stream")
    options = fields.get("stream_options", {})
    if "stream_options" in fields and not stream:
        raise bad("stream_options", "requires stream: true")
    if not isinstance(options, dict):
        raise bad("stream_options", "give an object")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation"):
            raise bad("stream_options", f"unknown field {name[:60]!r}{nearest(name, ['include_usage'])}")
        if name == "include_obfuscation" and value not in (None, False):
            raise bad("stream_options.include_obfuscation", "is not supported; leave it out")
    options = {name: value for name, value in options.items() if value is not None}
    return stream, flag(options, "include_usage")


def _stops(value: Any) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(several, list) or not all(isinstance(stop, str) and stop for stop in several):
        raise bad("stop", "give a non-empty string, or a list of them")
    if len(several) > _MOST_STOPS or any(len(stop) > _LONGEST_STOP for stop in several):
        raise bad("stop", f"give at most {_MOST_STOPS} strings of at most {_LONGEST_STOP} characters")
    return tuple(dict.fromkeys(several))


def _texts(value: Any) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list) or not several or not all(isinstance(text, str) for text in several):
        raise bad("prompt", "give a string, a list of strings, or token ids")
    if not all(several):
        raise bad("prompt", "is empty; give some text")
    return several


_Answer = TypeVar("_Answer")

LEFT_BEHIND = 8
"""Threads of one constraint that may still run after their time limit. With more than these, calls fail at once."""

# By id(constraint). Each thread keeps its constraint alive, so the id stays unique.
_left_behind: dict[int, list[threading.Thread]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class TimeLimited(Wrapper):
    """A constraint that runs another one with a time limit for each call."""

    of: Constraint  # the constraint to run
    # Limit for one call, in seconds. A longer call raises ``CheckFailed``, but its thread cannot be stopped.
    seconds: float
    kind: Literal["timed"] = field(default="timed", kw_only=True)

    @cached_property
    def digest(self) -> str:
        """The digest of the inner constraint, because the limit changes no result."""
        return self.of.digest

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Check texts within the time limit."""
        return self._within(lambda: self.of.check(draws))

    def verdict(self, prefix: str, /) -> Verdict:
        """Return the verdict on a prefix within the time limit; undecided if the function only checks whole texts."""
        return self._within(lambda: self.of.verdict(prefix)) if self._judges_prefixes else Verdict.UNDECIDED

    @cached_property
    def _judges_prefixes(self) -> bool:
        functions = [part for part in walk(self.of) if isinstance(part, Python)]
        return len(functions) < 1 or self.of is not functions[0] or functions[0].prefix is not None

    def _within(self, call: Callable[[], _Answer]) -> _Answer:
        left = [thread for thread in _left_behind.pop(id(self.of), []) if thread.is_alive()]
        if left:
            _left_behind[id(self.of)] = left
        if len(left) >= LEFT_BEHIND:
            reason = f"is still running {len(left)} calls that took more than {self.seconds:g} s; make it faster"
            raise CheckFailed(self.title, reason)
        answer, thread = in_thread(call, self.seconds, name="guardwrap-checker")
        if not answer:
            _left_behind.setdefault(id(self.of), []).append(thread)
            raise CheckFailed(self.title, f"took more than {self.seconds:g} s; make it faster, or raise the limit")
        return answer[0]
