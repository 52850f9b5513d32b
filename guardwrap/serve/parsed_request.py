"""Parsing of a request to OpenAI's API. A field that would change a text is never ignored."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import regex

from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import NO_CALLS, ToolCalls
from guardwrap.constraints.kinds.text import Length, Regex
from guardwrap.constraints.stop_strings import stopped
from guardwrap.constraints.views import Part, View
from guardwrap.errors import GuardwrapError
from guardwrap.models.parsed_message import CalledTool, chat_turn
from guardwrap.proposals import Masked, merge_proposals, only_masks
from guardwrap.samplers.sampler_registry import read_sampler
from guardwrap.serve.error_responses import bad, in_field, no_model
from guardwrap.serve.request_models import (
    AllowedTools,
    ChatFields,
    Image,
    Message,
    MessagePart,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    TextFields,
    read_field,
    read_request,
    require_at_most,
    require_size,
)
from guardwrap.serve.request_policy import (
    RequestPolicy,
    adapter_of,
    budget_of,
    constraints_of,
    fallback_of,
    field_values,
    proposal_of,
    repair_of,
    sampler_of,
    time_limited,
)
from guardwrap.serve.server_settings import ServerLimits
from guardwrap.support.lexical import load_json
from guardwrap.support.yaml_nodes import reading

ANYTHING = Length(min=0, name="no constraint")
"""A constraint that every text satisfies."""

VALID = Masked(beyond_truncation=True)
"""What requests for JSON, or for a call, are drawn from, unless they or the server's settings say how to draw.

Clients of OpenAI's API expect valid JSON or a call, and models often write neither by themselves."""


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


def parse_request(body: Mapping[str, Any], policy: RequestPolicy, *, chat: bool) -> ParsedRequest:
    """Validate the body of a request."""
    model_of(body, policy)
    fields = read_request(body, chat=chat)
    prompts = [chat_of(fields.messages, images=policy.images)] if chat else fields.prompt
    tools = tools_of(fields, policy) if chat else None
    require_at_most("n", fields.n, policy.limits.n)
    if fields.n * len(prompts) > policy.limits.n:
        problem = (
            f"{len(prompts)} prompts with {fields.n} texts each are more than the limit of {policy.limits.n} texts"
        )
        raise bad("n", problem, code="above_the_limit")
    if fields.n > 1 and fields.temperature == 0:
        raise bad("n", "temperature: 0 gives one text; leave n out, or raise the temperature")
    parses = chat and (policy.parses == "always" or tools is not None)
    options = {"num_return_sequences": fields.n, **_law(fields, policy), **_ours(fields, policy, tools, parses=parses)}
    options |= _shown(fields, tools) if chat else {}
    if parses:
        options["parse_messages"] = True
    if fields.stop:
        options["stop_strings"] = list(fields.stop)
    if fields.seed is not None:
        options["seed"] = fields.seed
    return ParsedRequest(
        fields.model,
        prompts,
        options,
        fields.n,
        fields.stop,
        fields.stream,
        fields.stream_options is not None and fields.stream_options.include_usage,
        prompt_field="messages" if chat else "prompt",
        length_field=next(iter(fields.lengths), None),
        most_tokens=policy.limits.max_new_tokens,
    )


def _law(fields: TextFields, policy: RequestPolicy) -> dict[str, Any]:
    """Return the generation settings of a request. Those that it leaves out are the model's own."""
    most = policy.limits.max_new_tokens
    for name, length in fields.lengths.items() if not policy.limits.clamp else ():
        require_at_most(name, length, most)
    law: dict[str, Any] = {"max_new_tokens": min(most, *fields.lengths.values()) if fields.lengths else most}
    if fields.temperature == 0:
        return {**law, "do_sample": False}
    if fields.temperature is not None:
        law |= {"do_sample": True, "temperature": fields.temperature}
    if fields.top_p is not None:
        law["top_p"] = fields.top_p or 1e-6  # 0 means the most probable token alone
    if fields.top_k is not None:
        law["top_k"] = max(0, fields.top_k)  # all tokens: -1 in vLLM, 0 in transformers
    return law


def _shown(fields: ChatFields, tools: ToolCalls | None) -> dict[str, Any]:
    """Return what the chat template shows to the model besides the messages."""
    options: dict[str, Any] = {}
    if tools is not None and tools.choice != "none":
        options["tools"] = tools.definitions
    if variables := template_options(fields):
        options["tokenizer_encode_kwargs"] = variables
    return options


def _ours(fields: TextFields, policy: RequestPolicy, tools: ToolCalls | None, *, parses: bool) -> dict[str, Any]:
    """Return the constraint, budget, sampler, proposal, adapter and repair turns of a request."""
    # A message that calls a tool does not require an answer.
    missing: Any = "fail" if tools is None or tools.choice == "none" else "pass"
    answer: View = Part(message="answer", missing=missing) if parses else "completion"
    ours = fields.guardwrap
    try:
        with reading("the request"):
            structures = [replace(structure, on=answer) for structure in structures_of(fields, policy.limits)]
            calls = [NO_CALLS if tools is None else tools] if parses else []
            rules = map(ConstraintFile, [*structures, *calls])
            files = [*policy.always, *rules, *constraints_of(ours, policy)]
            file = as_constraint_file(files) if files else ConstraintFile(ANYTHING)
            file = file.filled(field_values(ours, file, policy))
            sampler, requested = (
                sampler_of(ours),
                (proposal_of(ours.proposal, policy), adapter_of(ours.adapter, policy)),
            )
            proposal, adapter = merge_proposals(requested, (file.proposal, file.adapter))
            if sampler is proposal is adapter is file.sampler is None and _is_masked(structures, tools, policy):
                sampler, proposal = read_sampler("rejection"), VALID
            if adapter is None and proposal not in (None, False) and not only_masks(proposal):
                adapter = False  # without this, the server's own adapter would conflict with the proposal
            repair = repair_of(ours.repair, file.repair, policy, chat=isinstance(fields, ChatFields))
            turns = 0 if repair is None else repair["max_turns"]
            budget = budget_of(ours.budget, file.budget, policy.limits, turns=turns)
            constraint = stopped(time_limited(file.constraint, policy), fields.stop)
            fallback = fallback_of(ours.fallback, replace(file, constraint=constraint), policy.limits)
            constraint.digest, constraint.parts  # noqa: B018  # computed here, within the time limit for reading
    except GuardwrapError as error:
        raise in_field("guardwrap" if ours.model_fields_set else "response_format", error) from None
    whole_file = replace(
        file, constraint=constraint, proposal=None, adapter=None, budget=None, repair=repair, fallback=fallback
    )
    options: dict[str, Any] = {"constraints": whole_file, "budget": budget, "sampler": sampler}
    return options | {"proposal": proposal, "adapter": adapter}


def _is_masked(structures: Sequence[_Structure], tools: ToolCalls | None, policy: RequestPolicy) -> bool:
    """Return whether tokens are masked for a request that does not say how to draw: for a call, or for JSON alone."""
    if tools is not None and tools.choice != "none":
        return tools.least > 0
    return policy.masks_json and any(isinstance(structure, JSONSchema) for structure in structures)


_Structure = JSONSchema | Regex | Grammar
_MEANINGS = ("json", "regex", "choice", "grammar", "json_object")


def structures_of(fields: TextFields, limits: ServerLimits) -> Iterator[_Structure]:
    """Yield the constraints of a request's structured output fields. A text must satisfy all of them."""
    if fields.response_format is not None:
        yield from _of_format(fields.response_format, limits)
    if fields.structured_outputs is not None:
        yield _of_outputs(fields.structured_outputs, limits)
    for meaning in _MEANINGS[:-1]:
        if (value := getattr(fields, f"guided_{meaning}")) is not None:
            yield _structure(f"guided_{meaning}", meaning, value, limits)


def _of_format(form: ResponseFormat, limits: ServerLimits) -> Iterator[_Structure]:
    if form.json_schema is not None:
        yield _structure("response_format.json_schema.schema", "json", form.json_schema.schema_, limits)
    elif form.schema_ is not None:
        yield _structure("response_format.schema", "json", form.schema_, limits)
    elif form.type == "json_object":
        yield _structure("response_format", "json_object", True, limits)


def _of_outputs(outputs: StructuredOutputs, limits: ServerLimits) -> _Structure:
    where = "structured_outputs"
    values = {name: getattr(outputs, "json_" if name == "json" else name) for name in _MEANINGS}
    given = {name: value for name, value in values.items() if value is not None}
    if len(given) != 1:
        raise bad(where, f"give one of {', '.join(_MEANINGS)}")
    ((meaning, value),) = given.items()
    return _structure(f"{where}.{meaning}", meaning, value, limits, compact=outputs.disable_any_whitespace)


def _structure(where: str, meaning: str, value: Any, limits: ServerLimits, *, compact: bool = False) -> _Structure:
    """Return the constraint for one type of structured output, within the size limits."""
    whitespace: Literal["any", "compact"] = "compact" if compact else "any"
    try:
        if meaning == "json":
            return JSONSchema(_schema(where, value, limits), whitespace=whitespace, name="the JSON Schema")
        if meaning == "json_object":
            return JSONSchema({"type": "object"}, whitespace=whitespace, name="a JSON object")
        size = len(value) if isinstance(value, str) else sum(map(len, value))
        require_size(where, size, limits.pattern_characters)
        if meaning == "choice":
            choices = "|".join(map(regex.escape, value))
            return Regex(f"(?:{choices})", match="fullmatch", name="one of the choices")
        if meaning == "regex":
            return Regex(value, match="fullmatch", name="the regular expression")
        if "::=" in value:
            raise bad(where, "this is GBNF or EBNF (rules with ::=); write the grammar in Lark's EBNF: start: ...")
        return Grammar(value, name="the grammar")
    except GuardwrapError as error:
        raise in_field(where, error) from None


def _schema(where: str, value: Any, limits: ServerLimits) -> Any:
    if isinstance(value, str):  # vLLM accepts JSON text as well
        require_size(where, len(value), limits.constraint_characters)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad(where, "this string is not JSON; give the schema as an object") from None
    schema = read_field(Schema, value, where)
    require_size(where, len(json.dumps(schema)), limits.constraint_characters)
    return schema


INVALID_ARGUMENTS = "invalid_arguments"
"""Argument with the text of a replayed call's arguments that are no JSON object. Templates only take objects."""

_IMAGE = "data:image/"
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # Pillow starts a program for PostScript
_PIXELS = 20_000_000
"""Most pixels of an image. A small file can hold a huge image, which would take all memory."""


def chat_of(messages: Sequence[Message], *, images: bool = False) -> list[dict[str, Any]]:
    """Return the messages of a request, as chat templates expect them."""
    return [_turn(message, f"messages.{i}", images=images) for i, message in enumerate(messages)]


def _turn(message: Message, where: str, *, images: bool) -> dict[str, Any]:
    content: Any = message.content
    if content is None:
        content = message.refusal or ""
    if isinstance(content, str) and images:
        content = [MessagePart(type="text", text=content)]
    if not isinstance(content, str):
        parts = [_shown_part(part, f"{where}.content.{i}", images=images) for i, part in enumerate(content)]
        content = parts if images else "\n".join(part["text"] for part in parts)
    return chat_turn(
        message.role,
        content,
        calls=[
            CalledTool(call.id, call.function.name, _arguments(call.function.arguments)) for call in message.tool_calls
        ],
        reasoning=message.reasoning if message.reasoning_content is None else message.reasoning_content,
        name=message.name,
        tool_call_id=message.tool_call_id,
    )


def _shown_part(part: MessagePart, where: str, *, images: bool) -> dict[str, Any]:
    if part.image_url is None:
        return {"type": "text", "text": part.text if part.refusal is None else part.refusal}
    if not images:
        raise bad(where, "this model does not take images; for one that does, write images: true into the settings")
    url = part.image_url.url if isinstance(part.image_url, Image) else part.image_url
    return {"type": "image", "image": _decoded(url, f"{where}.image_url.url")}


def _decoded(url: str, where: str) -> Any:
    """Return an image from its data URL."""
    from PIL import Image as Pillow

    if not url.startswith(_IMAGE) or ";base64," not in url:
        raise bad(where, "this server fetches nothing; send the image itself: 'data:image/png;base64,...'")
    try:
        data = base64.b64decode(url.partition(";base64,")[2], validate=True)
        image = Pillow.open(io.BytesIO(data), formats=_FORMATS)
        size = image.size[0] * image.size[1]
        if size <= _PIXELS:
            return image.convert("RGB")
    except Exception:  # decoders raise anything
        raise bad(where, "is not an image in a known format, such as PNG or JPEG") from None
    raise bad(where, f"has {size} pixels; this server accepts at most {_PIXELS}", code="above_the_limit")


def _arguments(value: Any) -> dict[str, Any]:
    """Return a replayed call's arguments. Agents replay the calls of other models as they were, valid or not."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    try:
        arguments = load_json(value) if isinstance(value, str) else value
    except (ValueError, OverflowError, RecursionError):
        arguments = value
    return arguments if isinstance(arguments, dict) else {INVALID_ARGUMENTS: arguments}


def tools_of(fields: ChatFields, policy: RequestPolicy) -> ToolCalls | None:
    """Return the rule for tool calls; None without tools.

    Every call names one of the tools, and its arguments satisfy the tool's schema, whether or not it is ``strict``.
    """
    choice = fields.tool_choice
    if not fields.tools:
        if choice not in ("auto", "none"):
            raise bad("tool_choice", "requires tools")
        return None
    if policy.parses == "never":
        raise bad("tools", "this model's calls cannot be parsed: its chat template has the markers of no known family")
    require_size("tools", len(json.dumps(fields.tools)), policy.limits.constraint_characters)
    for i, tool in enumerate(fields.tools):
        if tool.get("type", "function") != "function":
            raise bad(f"tools.{i}", "only tools of type function are supported")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = read_field(AllowedTools, choice.get("allowed_tools"), "tool_choice.allowed_tools")
        choice = {"mode": allowed.mode, "names": [tool.function.name for tool in allowed.tools]}
    try:
        with reading("the request"):
            return ToolCalls(fields.tools, choice=choice, parallel=fields.parallel_tool_calls, name="the tools")
    except GuardwrapError as error:
        where = "tool_choice" if error.location == ("choice",) else ".".join(map(str, error.location))
        raise in_field(where or "tools", error) from None


def template_options(fields: ChatFields) -> dict[str, Any]:
    """Return the variables that a request sets in the chat template, such as ``enable_thinking``."""
    for name in fields.chat_template_kwargs:
        if name in _OF_THE_CALL:
            raise bad(f"chat_template_kwargs.{name}", "is no variable of the chat template; leave it out")
    effort = {} if fields.reasoning_effort == "none" else {"reasoning_effort": fields.reasoning_effort}
    return {**effort, **fields.chat_template_kwargs}


_OF_THE_CALL = (
    "add_generation_prompt", "add_special_tokens", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors",
    "tokenize", "tokenizer_kwargs", "tools", "truncation",
)  # fmt: skip
"""Arguments of ``apply_chat_template``, which are no variables of the template."""
