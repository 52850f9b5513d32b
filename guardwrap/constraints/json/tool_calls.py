"""Tool calls: which tools a message may call, how often, and with which arguments."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.field_checks import about, require, require_booleans, shortened, shown
from guardwrap.constraints.json.drafts import UNDECLARED, draft_of
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json_paths import shown_place
from guardwrap.constraints.verdicts import (
    Context,
    Event,
    Monitor,
    RegionMonitor,
    Undecided,
    Verdict,
    holds_or_raises_later,
)
from guardwrap.constraints.views import PLAIN_TEXT
from guardwrap.errors import CheckFailed, ConstraintError, UsageError, first_line, is_count, nearest
from guardwrap.outcomes import NO_CALL, Draw
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import CHECK_SECONDS, TimeLimit, charged


def _in_python_only(value: Any) -> Any:
    if callable(value) or isinstance(value, type):
        raise ValueError("a file cannot name a Python function or type; give the tool's name and parameters")
    return value


@dataclass(frozen=True, eq=False, repr=False)
class ToolCalls(Constraint):
    """Every tool call of a message names one of the tools, and its arguments satisfy the tool's schema.

    Calls are parsed from the answer to a chat. The text outside of calls is not judged: add further constraints with
    ``&``. Pass ``tools=rule.definitions`` to the call as well, so that the chat template shows the tools to the model.

    Parameters
    ----------
    tools
        The tools: Python functions with type hints and a docstring, as transformers' ``get_json_schema`` reads them;
        pydantic models of the arguments; or mappings in the format of OpenAI (with or without ``"type": "function"``)
        or of MCP. May be empty with ``choice="none"``.
    choice
        ``"auto"``: any number of calls; ``"required"``: at least one; ``"none"``: no call; ``{"name": NAME}``: at
        least one, and only of this tool; ``{"mode": "auto", "names": [NAME]}`` or ``{"mode": "required", "names":
        [NAME]}``: as with the mode alone, and only of these tools.
    parallel
        Whether a message may have several calls.
    max_calls
        The most calls of a message; None for any number.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a tool or a parameter is invalid.

    Notes
    -----
    Arguments are judged as the message has them: parsed by the response template. Templates whose calls are not JSON
    give strings, unless ``tools=`` is passed to the call, by whose schemas transformers converts them.

    Examples
    --------
    ::

        rule = ToolCalls([get_weather], choice="required")
        guarded = GuardedGenerator("Qwen/Qwen3-4B", rule)
        (outcome,) = guarded.run(chat, tools=rule.definitions, max_new_tokens=200)
        outcome.tool_calls
    """

    tools: Annotated[Sequence[Annotated[Any, BeforeValidator(_in_python_only)]], "tools"]
    choice: Annotated[Any, "choice"] = field(default="auto", kw_only=True)
    parallel: bool = field(default=True, kw_only=True)
    max_calls: int | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["tool_calls"] = field(default="tool_calls", kw_only=True)

    reads_message: ClassVar[str] = "tool_calls"
    """The part of messages that is judged."""

    def __post_init__(self) -> None:
        require(isinstance(self.tools, Iterable) and not isinstance(self.tools, str | Mapping), _A_LIST)
        definitions = []
        for number, tool in enumerate(self.tools):
            with about("tools"), about(number):
                definitions.append(_definition(tool))
        names = [tool["name"] for tool in definitions]
        require(bool(names) or self.choice == "none", "ToolCalls needs at least one tool, or choice='none'")
        require(len({*names}) == len(names), "two tools have the same name")
        object.__setattr__(self, "tools", tuple(definitions))
        with about("choice"):
            object.__setattr__(self, "choice", _choice(self.choice, names))
        require_booleans(self, "parallel")
        most = self.max_calls
        require(most is None or (is_count(most) and most > 0), f"max_calls={most!r}: give a whole number of at least 1")
        self.arguments, self.call  # noqa: B018  # so that an invalid schema is noticed now

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's format, for ``tools=`` of a call."""
        return [{"type": "function", "function": tool} for tool in self.tools]

    @cached_property
    def allowed(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that may be called."""
        if self.choice == "none":
            return ()
        if not isinstance(self.choice, dict):
            return tuple(self.tools)
        names = self.choice["names"] if "names" in self.choice else [self.choice["name"]]
        return tuple(tool for tool in self.tools if tool["name"] in names)

    @cached_property
    def arguments(self) -> dict[str, JSONSchema]:
        """The schema of each tool's arguments."""
        schemas = {}
        for number, tool in enumerate(self.tools):
            with about("tools"), about(number), about("parameters", inside=False):
                try:
                    schemas[tool["name"]] = JSONSchema(tool["parameters"])
                except ConstraintError as error:
                    raise ConstraintError(f"the parameters of {tool['name']}: {error}") from None
        return schemas

    @cached_property
    def call(self) -> JSONSchema:
        """The schema of a whole call, with its name and arguments."""
        choices = [
            {
                "type": "object",
                "properties": {"name": {"const": tool["name"]}, "arguments": own_resource(tool["parameters"], number)},
                "required": ["name", "arguments"],
            }
            for number, tool in enumerate(self.allowed)
        ]
        return JSONSchema({"anyOf": choices} if choices else False)

    @property
    def most(self) -> int | None:
        """The most calls of a message; None for any number."""
        if not self.allowed:
            return 0
        return self.max_calls if self.parallel else 1

    @property
    def least(self) -> int:
        """The fewest calls of a message."""
        mode = self.choice.get("mode", "required") if isinstance(self.choice, dict) else self.choice
        return int(mode == "required")

    @cached_property
    def title(self) -> str:
        names = ", ".join(tool["name"] for tool in self.tools)
        return self.name or f"ToolCalls({names if len(names) <= 45 else names[:42] + '...'})"

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return [not self.fault_of(draw) for draw in draws]

    def fault_of(self, draw: Draw) -> str:
        """Return what is wrong with the calls of a message; "" if nothing is. It may quote the message."""
        if draw.parts is None:
            raise UsageError(f"{self.title} judges the calls of messages; {PLAIN_TEXT}")
        calls = dict(draw.parts).get("tool_calls", ())
        if len(calls) < self.least:
            return "calls no tool"
        if self.most is not None and len(calls) > self.most:
            return f"has {len(calls)} calls, more than {self.most}"
        try:
            with charged(draw):
                for number, call in enumerate(calls):
                    if fault := self.fault_of_call(call):
                        return f"tool_calls[{number}]: {fault}"
        except TimeLimit:
            reason = f"took more than {CHECK_SECONDS:g} s on the calls of one message; simplify the tools' schemas"
            raise CheckFailed(self.title, reason) from None
        return ""

    def fault_of_call(self, text: str) -> str:
        """Return what is wrong with one call, given as JSON; "" if nothing is. It may quote the call."""
        call = _function_in(text)
        written = json.dumps(call, ensure_ascii=False)
        if self.call.holds(written):
            return ""
        name = call.get("name") if isinstance(call, dict) else None
        names = [tool["name"] for tool in self.allowed]
        if not isinstance(name, str) or name not in names:
            return f"{name!r} is not one of the tools that may be called: {', '.join(names) or 'none'}"
        fault = self.arguments[name].fault(json.dumps(call.get("arguments"), ensure_ascii=False))
        return f"{name}: {fault}" if fault else "is invalid"

    def place_in(self, draw: Draw, /) -> str | None:
        calls = dict(draw.parts or ()).get("tool_calls", ())
        if len(calls) < self.least:
            return NO_CALL
        if self.most is not None and len(calls) > self.most:
            return "wrong number of calls"
        try:
            with charged(draw):
                return next((place for call in calls if (place := self.place_in_call(call)) is not None), None)
        except TimeLimit:
            return None

    def place_in_call(self, text: str) -> str | None:
        """Return the first place in a call, as JSON, that is invalid; None if there is none."""
        call = _function_in(text)
        name = call.get("name") if isinstance(call, dict) else None
        allowed = next((tool["name"] for tool in self.allowed if tool["name"] == name), None)
        if allowed is None:
            return "$.name"
        arguments = Draw("", (), json.dumps(call.get("arguments"), ensure_ascii=False))
        return _place_in_tool(allowed, self.arguments[allowed].place_in(arguments))

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "tools": [dict(tool) for tool in self.tools]}

    def monitor_in(self, context: Context, /) -> Monitor:
        if context.message is None:
            return Undecided()
        regions, before = context.message
        return _CallMonitor(part="tool_calls", regions=regions, rule=self).after(before)


_A_LIST = "tools must be a list of functions, pydantic models or mappings"

_SCHEMAS = "parameters", "inputSchema", "input_schema"
"""Where mappings have the JSON Schema of their arguments: OpenAI's, MCP's and Anthropic's."""


def _definition(tool: Any) -> dict[str, Any]:
    """Return a tool as a mapping with ``name``, ``parameters`` and, if it has one, ``description``."""
    if inspect.isclass(tool) and issubclass(tool, BaseModel):
        schema = tool.model_json_schema()
        schema.pop("title", None)
        about_it = schema.pop("description", None)
        return {"name": tool.__name__, **({"description": about_it} if about_it else {}), "parameters": schema}
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        tool = _schema_of(tool)
    if not isinstance(tool, Mapping):
        raise ConstraintError(f"a tool is a function, a pydantic model or a mapping, not {shown(tool)}")
    inner = tool.get("function", tool)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise ConstraintError("a tool needs a name")
    none: Any = {"type": "object", "properties": {}}
    schema = next((inner[key] for key in _SCHEMAS if inner.get(key)), none)
    for key in () if any(key in inner for key in _SCHEMAS) else inner:
        if close := get_close_matches(str(key), _SCHEMAS, n=1):
            raise ConstraintError(f"{inner['name']} has the field {shortened(str(key))} (did you mean {close[0]!r}?)")
    if not isinstance(schema, Mapping):
        raise ConstraintError(f"the parameters of {inner['name']} must be a JSON Schema, not {shown(schema)}")
    description = inner.get("description")
    return {
        "name": inner["name"],
        **({"description": description} if isinstance(description, str) else {}),
        "parameters": dict(schema),
    }


def _schema_of(function: Callable[..., Any]) -> Any:
    from transformers.utils import get_json_schema

    try:
        return get_json_schema(function)
    except Exception as error:  # its own exceptions, with a message about type hints or the docstring
        raise ConstraintError(f"{function.__name__} is not a tool: {first_line(error)}") from None


def _choice(choice: Any, names: Sequence[str]) -> Any:
    """Return the choice as it is kept: a string, or a mapping with a tool's name."""
    if choice in ("auto", "required", "none"):
        return choice
    if isinstance(choice, Mapping) and "names" in choice:
        return _several(choice, names)
    wanted = choice.get("function", choice) if isinstance(choice, Mapping) else None
    wanted = wanted.get("name") if isinstance(wanted, Mapping) else None
    if not isinstance(wanted, str):
        ways = "'auto', 'required', 'none' or {'name': NAME}"
        raise ConstraintError(f"choice={shown(choice)}: give {ways}{nearest(choice, ('auto', 'required', 'none'))}")
    if wanted not in names:
        raise ConstraintError(f"choice: there is no tool {wanted!r}{nearest(wanted, names)}")
    return {"name": wanted}


def _several(choice: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the choice of several tools as it is kept."""
    mode, several = choice.get("mode"), choice["names"]
    if mode not in ("auto", "required") or not isinstance(several, list | tuple) or not several:
        raise ConstraintError(f"choice={shown(choice)}: give a mode, 'auto' or 'required', and a list of names")
    for name in several:
        if name not in names:
            raise ConstraintError(f"choice: there is no tool {name!r}{nearest(name, names)}")
    return {"mode": mode, "names": [*dict.fromkeys(several)]}


def _function_in(text: str) -> Any:
    """Return the value of a call, without the wrapper of OpenAI's format."""
    call = json.loads(text)
    return call.get("function", call) if isinstance(call, dict) else call


def _place_in_tool(name: str | None, place: str | None) -> str | None:
    """Return a place in the arguments of a call as a place in the call of a tool."""
    if place is None or name is None or not place.startswith("$"):
        return place
    return shown_place([name, "arguments"], frozenset((name, "arguments"))) + place[1:]


def own_resource(parameters: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the schema of a tool's arguments, in which references still start at its own root."""
    schema, draft = dict(parameters), draft_of(parameters, UNDECLARED)
    if draft.ref_is_alone and "$ref" in schema:  # next to it, a name would be ignored as well
        ignored = draft.keywords - {"$schema", "definitions"}
        schema = {key: value for key, value in schema.items() if key not in ignored}
        schema["allOf"] = [{"$ref": parameters["$ref"]}]
    schema.setdefault(draft.id, f"https://tool-{number}.invalid/")
    return schema


def _names(call: str, tool: str) -> bool:
    """Whether the text of a call has a key ``name`` with the name of a tool."""
    return re.search(rf'"name"\s*:\s*{re.escape(json.dumps(tool))}', call) is not None


@dataclass(frozen=True, kw_only=True)
class _CallMonitor(RegionMonitor):
    """Monitor of the calls of a message: counts them, judges whole ones, and reads the JSON of a begun one."""

    rule: ToolCalls  # the constraint
    calls: int = 0  # the number of calls that have ended
    # the monitor of the call that is being written; None outside of calls, and if it is not JSON
    inner: Monitor | None = None
    tool: str | None = None  # the name of the tool whose arguments it reads; None if it reads whole calls
    written: str = ""  # the text of the call so far, or of the whole call that has failed

    @property
    def verdict(self) -> Verdict:
        """VIOLATED once a call has failed, or there are too many."""
        failed = self.dead or (self.inner is not None and self.inner.verdict is Verdict.VIOLATED)
        return Verdict.VIOLATED if failed else Verdict.UNDECIDED

    def noted(self, event: Event) -> _CallMonitor:
        most = self.rule.most
        if event.kind == "open":
            # A region whose text is not known to be one call may turn out to be an empty list of calls.
            tool = event.texts[1] if event.texts[:1] == ("arguments",) else None
            dead = bool(event.texts) and self.calls == most
            return replace(self, inner=self._of_call(event.texts), tool=tool, written="", dead=dead)
        if event.kind == "text":
            if self.inner is None:
                return self
            return replace(self, inner=self.inner.read(event.texts[0]), written=self.written + event.texts[0])
        calls = self.calls + len(event.texts)
        failed = [call for call in event.texts if not holds_or_raises_later(self._is_valid, call)]
        dead = bool(failed) or (most is not None and calls > most)
        return replace(self, calls=calls, inner=None, written="".join(failed[:1]), dead=dead)

    def _is_valid(self, call: str) -> bool:
        return not self.rule.fault_of_call(call)

    @property
    def violated_at(self) -> str | None:
        """The place in the call that failed, below the name of its tool."""
        if self.inner is None:
            return self.rule.place_in_call(self.written) if self.written else None
        place = self.inner.violated_at
        if place is None:
            return None
        if self.tool is not None:
            allowed = self.tool in {tool["name"] for tool in self.rule.allowed}
            return _place_in_tool(self.tool, place) if allowed else "$.name"
        if not place.startswith("$.arguments"):
            return place
        # The name may also be that of a property of the arguments, but it is always a tool's.
        called = (tool["name"] for tool in self.rule.allowed if _names(self.written, tool["name"]))
        name = next(called, None)
        return place if name is None else _place_in_tool(name, f"${place.removeprefix('$.arguments')}")

    def _of_call(self, how: Sequence[str]) -> Monitor | None:
        """Return the monitor for the text of a call: its JSON, or the JSON of its arguments."""
        if how[:1] == ("call",):
            return self.rule.call.monitor()
        if how[:1] == ("arguments",):
            allowed = how[1] in {tool["name"] for tool in self.rule.allowed}
            return self.rule.arguments[how[1]].monitor() if allowed else JSONSchema(False).monitor()
        return None


NO_CALLS = ToolCalls([], choice="none", name="no call without tools")
"""The rule for callers that offer no tool, because they cannot run one that they do not know."""
