"""The shapes of requests: pydantic models of their objects, and fields of other servers that change nothing.

A field that is null is left out. A field that would change a text is never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator

from guardwrap.errors import nearest
from guardwrap.serve.error_responses import ErrorResponse, bad, in_field
from guardwrap.support.validation import Invalid, validated
from guardwrap.support.yaml_nodes import short

_T = TypeVar("_T")
Neutral = Mapping[str, tuple[tuple[Any, ...], str]]
"""Fields of other servers: the values that have no effect, besides None, and the reason why others are rejected."""

_MOST_STOPS, _LONGEST_STOP = 4, 64  # transformers preprocesses the whole vocabulary for each new set of stop strings


class RequestObject(BaseModel):
    """An object in a request."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _of_a_known_type(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = get_args(cls.model_fields["type"].annotation) if "type" in cls.model_fields else ()
        if known and (kind := data.get("type")) is not None and kind not in known:  # its other fields are no mistakes
            raise Invalid(("type",), f"{short(kind)} is not one of {', '.join(known)}{nearest(kind, known)}")
        return {name: value for name, value in data.items() if value is not None}


def read_field(kind: Any, value: Any, where: str = "") -> Any:
    """Validate a value of a request as a type. The error names its place, below the field ``where``."""
    try:
        return validated(value, _adapter(kind))
    except Invalid as error:
        raise in_field(where, error) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def require_size(where: str, size: int, most: int) -> None:
    """Raise ErrorResponse if a value has too many characters."""
    if size > most:
        raise bad(where, f"has {size} characters; this server accepts at most {most}", code="above_the_limit")


def require_at_most(where: str, value: int, most: int) -> None:
    """Raise ErrorResponse if a number is above a limit of the server."""
    if value > most:
        raise bad(where, f"this server accepts at most {most}", code="above_the_limit")


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _zero_or(least: float, most: float) -> Callable[[float], float]:
    def checked(value: float) -> float:
        if value != 0 and not (math.isfinite(value) and least <= value <= most):
            raise ValueError(f"give 0, or a number from {least:g} to {most:g}")
        return value

    return checked


def _stops(value: Any) -> tuple[str, ...]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list) or not all(isinstance(stop, str) and stop for stop in several):
        raise ValueError("give a non-empty string, or a list of them")
    if len(several) > _MOST_STOPS or any(len(stop) > _LONGEST_STOP for stop in several):
        raise ValueError(f"give at most {_MOST_STOPS} strings of at most {_LONGEST_STOP} characters")
    return tuple(dict.fromkeys(several))


def _prompts(value: Any) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list) or not several or not all(isinstance(text, str) for text in several):
        raise ValueError("give a string, a list of strings, or token ids")
    if not all(several):
        raise ValueError("is empty; give some text")
    return several


def _schema(value: Any) -> Any:
    if not isinstance(value, dict | bool):
        raise ValueError("give a JSON Schema: an object, true or false")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Schema = Annotated[Any, AfterValidator(_schema)]
Marks = Any  # what another server caches, which changes no text


class Image(RequestObject):
    """An image, as a data URL."""

    url: str
    detail: str = "auto"

    @model_validator(mode="after")
    def _as_it_is(self) -> Self:
        if self.detail != "auto":
            problem = "is not supported; send the image in the size that the model should see"
            raise Invalid(("detail",), problem)
        return self


class MessagePart(RequestObject):
    """A part of a message. The field with its content has the name of its type."""

    type: Literal["text", "refusal", "image_url"]
    text: str | None = None
    refusal: str | None = None
    image_url: Image | str | None = None
    cache_control: Marks = None
    prompt_cache_breakpoint: Marks = None

    @model_validator(mode="after")
    def _content_of_its_type(self) -> Self:
        if {name for name in ("text", "refusal", "image_url") if getattr(self, name) is not None} != {self.type}:
            raise ValueError(f"give its content in the field {self.type!r} alone: {{'type': 'text', 'text': '...'}}")
        return self


class Function(RequestObject, extra="ignore"):
    """The function of a replayed call, whose arguments may be invalid, or the function that a choice names."""

    name: str
    arguments: Any = None


class Call(RequestObject, extra="ignore"):
    """A replayed call of a tool, or a choice of one."""

    type: Literal["function"] = "function"
    id: str | None = None
    function: Function


class Message(RequestObject):
    """A message of a chat. OpenAI's client adds ``parsed`` to replies, and sends it with them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[MessagePart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] = []
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    annotations: Any = None
    parsed: Any = None
    cache_control: Marks = None
    prompt_cache_breakpoint: Marks = None

    @model_validator(mode="after")
    def _parts_of_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise Invalid(("tool_calls",), "belong to messages of the assistant")
        if self.content is self.refusal is None and not self.tool_calls and self.role != "tool":
            raise Invalid(("content",), "give a string, or a list of parts of type text")
        return self


class AllowedTools(RequestObject):
    """The tools that a message may call, or must call one of."""

    mode: Literal["auto", "required"]
    tools: list[Call] = Field(min_length=1)


class NamedSchema(RequestObject):
    """A JSON Schema with its name."""

    schema_: Schema = Field(alias="schema")
    name: Any = None
    strict: Any = None
    description: Any = None


class ResponseFormat(RequestObject):
    """The format of a text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema = Field(None, alias="schema")

    @model_validator(mode="after")
    def _fields_of_its_type(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise Invalid(("json_schema",), "give {'schema': ...} there, with the type 'json_schema'")
        if self.schema_ is not None and self.type != "json_object":
            raise Invalid(("schema",), "give it in json_schema")
        return self


class StructuredOutputs(RequestObject):
    """Rules for a text in vLLM's API, of which a request gives one."""

    json_: Any = Field(None, alias="json")
    regex: str | None = Field(None, min_length=1)
    choice: list[str] | None = Field(None, min_length=1)
    grammar: str | None = Field(None, min_length=1)
    json_object: Literal[True] | None = None
    disable_any_whitespace: bool = False


class StreamOptions(RequestObject):
    """Options of a stream."""

    include_usage: bool = False


class RuleFields(RequestObject):
    """The rules that a request names, and the values of their fields."""

    constraint: Any = None
    constraints: Any = None
    fields: dict[str, Any] = {}

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.constraint is not None and self.constraints is not None:
            raise Invalid(("constraints",), "give either constraint or constraints, not both")
        return self


class GuardwrapFields(RuleFields):
    """The field ``guardwrap`` of a request."""

    sampler: Any = None
    proposal: Any = None
    adapter: Any = None
    budget: dict[str, Any] = {}
    repair: Any = None
    fallback: str | None = None


class TextFields(RequestObject):
    """The fields of all requests for texts."""

    model: str
    n: Whole = Field(1, ge=1)
    seed: Whole | None = Field(None, ge=0, le=2**63 - 1)
    temperature: Annotated[float, AfterValidator(_zero_or(0.001, 100))] | None = None
    top_p: Annotated[float, AfterValidator(_zero_or(1e-6, 1))] | None = None
    top_k: Whole | None = Field(None, ge=-1)
    max_tokens: Whole | None = Field(None, ge=1)
    stop: Annotated[Any, AfterValidator(_stops)] = ()
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = Field(None, min_length=1)
    guided_choice: list[str] | None = Field(None, min_length=1)
    guided_grammar: str | None = Field(None, min_length=1)
    guardwrap: GuardwrapFields = GuardwrapFields()

    @property
    def lengths(self) -> dict[str, int]:
        """The maximum length of a text, by the field that sets it."""
        names = ("max_tokens", "max_completion_tokens")
        return {name: value for name in names if (value := getattr(self, name, None)) is not None}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise Invalid(("stream_options",), "requires stream: true")
        if len({*self.lengths.values()}) > 1:
            problem = "differs from max_completion_tokens, which means the same; give one of them"
            raise Invalid(("max_tokens",), problem)
        return self


class PromptFields(TextFields):
    """The fields of a request to ``/v1/completions``."""

    prompt: Annotated[Any, AfterValidator(_prompts)]


class ChatFields(TextFields):
    """The fields of a request to ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Whole | None = Field(None, ge=1)
    tools: list[dict[str, Any]] = []  # validated with the rule for their calls
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, str | bool | int | float] = Field({}, max_length=20)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] = "none"


LABELS = (
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "request_id", "service_tier", "store", "prediction",
)  # fmt: skip
"""Fields that change no text, only how other servers bill, cache, store or speed it up: accepted, without effect."""

_LOGPROBS = "log-probabilities are known for whole texts only, under the model without the constraint"
_TOOLS = "this is the old form; give tools"
_LAW = "this server does not apply it to the model's distribution"
_AUDIO = "this server returns only text"

NEUTRAL: Neutral = {
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
    "structural_tag": ((), "give tools, or a grammar"),
}


def known_fields(*, chat: bool) -> tuple[str, ...]:
    """Return the names of the fields that a request may have."""
    return (*(ChatFields if chat else PromptFields).model_fields, *LABELS, *NEUTRAL)


def read_request(fields: Mapping[str, Any], *, chat: bool) -> Any:
    """Return the fields of a request that have an effect, as ``ChatFields`` or ``PromptFields``."""
    kind, other, where = ChatFields, PromptFields, "/v1/completions"
    if not chat:
        kind, other, where = PromptFields, ChatFields, "/v1/chat/completions"  # type: ignore[assignment]
    elsewhere = dict.fromkeys({*other.model_fields} - {*kind.model_fields}, f"is a field of {where}")
    effective = effective_fields(fields, known_fields(chat=chat), elsewhere, NEUTRAL)
    if isinstance(options := effective.get("stream_options"), dict):
        neutral: Neutral = {"include_obfuscation": ((False,), "pieces are sent as they are")}
        effective["stream_options"] = without_neutral(options, neutral, "stream_options")
    return read_field(kind, effective)


def effective_fields(
    fields: Mapping[str, Any], known: tuple[str, ...], elsewhere: Mapping[str, str], neutral: Neutral
) -> dict[str, Any]:
    """Return the fields of a request that have an effect: without None, labels and neutral values."""
    for name in fields:
        if name in elsewhere:
            raise bad(name, elsewhere[name])
        if name not in known:
            problem = f"unknown field{nearest(name, known)}; leave it out"
            raise ErrorResponse(400, f"{short(name)}: {problem}", param=name[:60], code="unknown_field")
    return without_neutral({name: value for name, value in fields.items() if name not in LABELS}, neutral)


def without_neutral(fields: Mapping[str, Any], neutral: Neutral, where: str = "") -> dict[str, Any]:
    """Return the fields of an object without those that change nothing."""
    effective = {name: value for name, value in fields.items() if value is not None}
    for name, (values, reason) in neutral.items():
        if name in effective and not any(_is_same(effective[name], value) for value in values):
            problem = f"is not supported: {reason}; leave it out"
            raise bad(f"{where}.{name}" if where else name, problem, code="unsupported_field")
        effective.pop(name, None)
    return effective


def _is_same(value: Any, neutral: Any) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
