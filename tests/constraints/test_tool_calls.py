"""Tool calls: what is a call, in every spelling of the tools, and the model's own shares of calls and answers."""

import copy
import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel

from guardwrap import Budget, GuardedGenerator, JSONSchema, Masked, Regex, ToolCalls, Verdict, qrs
from guardwrap.constraints import dump, parse
from guardwrap.constraints.checking import judge_parts
from guardwrap.constraints.verdicts import Context, Event, RegionMonitor
from guardwrap.errors import ConstraintError, SpecError, UsageError
from guardwrap.models.call_syntax import _Bodies
from guardwrap.models.regions import MessageRegions
from guardwrap.outcomes import Draw
from guardwrap.testing import World, goodness_of_fit
from tests import fixtures_models
from tests.models.test_parsed_message import parts_of, region_of

CHAT = [{"role": "user", "content": "a"}]


def get_weather(city: str, days: int = 1) -> str:
    """Look up the weather.

    Args:
        city: The city.
        days: The number of days.
    """
    return f"{city} {days}"


class Search(BaseModel):
    """Search the web."""

    query: str
    filters: list["Filter"] = []


class Filter(BaseModel):
    site: str


WEATHER = {
    "name": "get_weather",
    "description": "Look up the weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city."},
            "days": {"type": "integer", "description": "The number of days."},
        },
        "required": ["city"],
    },
}
MCP = {"name": "get_weather", "description": "Look up the weather.", "inputSchema": WEATHER["parameters"]}


def message(*calls: Any, answer: str = "") -> Draw:
    texts = tuple(json.dumps({"type": "function", "function": call}) for call in calls)
    parts = (("answer", (answer,)), ("tool_calls", texts)) if answer else (("tool_calls", texts),)
    return Draw("", (), answer, parts=tuple(part for part in parts if part[1]))


def call(name: str = "get_weather", **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize("tool", [get_weather, WEATHER, {"type": "function", "function": WEATHER}, MCP])
def test_tools_in_every_spelling_are_one(tool: Any) -> None:
    rule = ToolCalls([tool])
    assert rule == ToolCalls([WEATHER])
    assert parse(dump(rule)).constraint == rule
    assert rule.definitions == [{"type": "function", "function": WEATHER}]


def test_arguments_satisfy_the_schema_of_the_tool_that_is_named() -> None:
    rule = ToolCalls([get_weather, Search])
    good = [message(), message(call(city="Rome")), message(call(city="Rome", days=2), call("Search", query="x"))]
    nested = message(call("Search", query="x", filters=[{"site": "y"}]))
    assert all(rule.check([*good, nested]))
    faults = {
        "tool_calls[0]: get_weather: $: 'city' is missing": message(call()),
        "tool_calls[0]: get_weather: $.days: 'two' is not of type 'integer'": message(call(city="Rome", days="two")),
        "tool_calls[1]: 'delete' is not one of the tools": message(call(city="Rome"), call("delete")),
        "tool_calls[0]: Search: $.filters[0]": message(call("Search", query="x", filters=[{"url": "y"}])),
        "tool_calls[0]: None is not one of": message({"arguments": {}}),
        "tool_calls[0]: is invalid": message({"name": "get_weather", "arguments": '{"city": "Rome"}'}),
    }
    for fault, draw in faults.items():
        assert not rule.check([draw])[0]
        assert fault.split(":")[0] in rule.fault_of(draw)


NODE = {"type": "object", "properties": {"x": {"type": "integer"}, "n": {"$ref": "#/definitions/N"}}, "required": ["x"]}
ITSELF = {"type": "object", "properties": {"x": {"type": "integer"}, "n": {"$ref": "#"}}, "required": ["x"]}
DEFINED = {"$ref": "#/definitions/N", "definitions": {"N": NODE}}
DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))


@pytest.mark.parametrize("draft", [DRAFT_4, DRAFT_7, "https://json-schema.org/draft/2020-12/schema"])
@pytest.mark.parametrize("parameters", [ITSELF, DEFINED, {**NODE, **DEFINED, "required": ["y"]}], ids=str)
def test_references_of_a_tool_start_at_the_root_of_its_schema(draft: str, parameters: dict[str, Any]) -> None:
    parameters = {"$schema": draft, **parameters}
    rule = ToolCalls([{"name": "other", "parameters": {}}, {"name": "f", "parameters": parameters}])
    syntax = _Bodies(json_calls(), rule, casts=False).read()
    assert syntax is not None
    for arguments in ({"x": 1}, {"x": 1, "n": {"x": 2, "n": {"x": 3}}}, {"x": 1, "n": {"x": "a"}}, {"n": 1}):
        valid = JSONSchema(parameters).accepts(json.dumps(arguments))
        assert rule.check([message(call("f", **arguments))]) == [valid]
        assert syntax[1][""].accepts(json.dumps({"name": "f", "arguments": arguments})) == valid


def test_two_tools_may_give_their_definitions_the_same_names() -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        named = {"$id": "value", "$anchor": "v", "type": kind}
        return {"name": name, "parameters": {"properties": {"a": {"$ref": "value#v"}}, "$defs": {"v": named}}}

    rule = ToolCalls([tool("f", "string"), tool("g", "integer")])
    for name, value, valid in (("f", "x", True), ("f", 1, False), ("g", "x", False), ("g", 1, True)):
        assert rule.check([message(call(name, a=value))]) == [valid]


def json_calls() -> dict[str, Any]:
    """Return the field of calls of a response template, in which a call is JSON with its name and arguments."""
    return {"content": "json", "transform": {"type": "function", "function": "{content}"}}


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({}, {0, 1, 2, 3}),
        ({"choice": "required"}, {1, 2, 3}),
        ({"choice": "none"}, {0}),
        ({"parallel": False}, {0, 1}),
        ({"choice": "required", "parallel": False}, {1}),
        ({"max_calls": 2}, {0, 1, 2}),
        ({"choice": {"name": "get_weather"}}, {1, 2, 3}),
        ({"choice": {"type": "function", "function": {"name": "Search"}}}, set()),
    ],
)
def test_how_many_calls(options: dict[str, Any], numbers: set[int]) -> None:
    rule = ToolCalls([get_weather, Search], **options)
    draws = [message(*[call(city="Rome")] * number, answer="hi") for number in range(4)]
    assert {number for number, ok in enumerate(rule.check(draws)) if ok} == numbers
    assert parse(dump(rule)).constraint == rule


@pytest.mark.parametrize(
    ("tools", "options", "problem"),
    [
        ([], {}, "needs at least one tool"),
        (get_weather, {}, "must be a list"),
        (["get_weather"], {}, "a tool is a function"),
        ([{"parameters": {}}], {}, "needs a name"),
        ([lambda x: x], {}, "is not a tool"),
        ([WEATHER, MCP], {}, "the same name"),
        ([WEATHER], {"choice": "must"}, "'auto', 'required', 'none'"),
        ([WEATHER], {"choice": {"name": "get_wether"}}, "did you mean"),
        ([WEATHER], {"max_calls": 0}, "at least 1"),
        ([{"name": "f", "parameters": {"type": "nothing"}}], {}, "tools.0|nothing"),
        ([{"name": "f", "paramters": {}}], {}, "f has the field 'paramters' .did you mean 'parameters'"),
        ([{"function": {"name": "f", "schema": {}}}], {}, "did you mean 'input_schema'"),
    ],
)
def test_mistakes(tools: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem):
        ToolCalls(tools, **options)


def test_a_mistake_in_a_tool_is_reported_with_its_line_and_name() -> None:
    for parameters in ("{type: nothing}", "{properties: {a: {pattern: (}}}", "{$ref: '#/a'}"):
        tools = f"[{{name: other}}, {{name: f,\n    parameters: {parameters}}}]"
        with pytest.raises(SpecError, match=r"^<string>:3: constraint\.tools\.1\.parameters: the parameters of f: "):
            parse(f"guardwrap: 1\nconstraint: {{kind: tool_calls, tools: {tools}}}\n")
    with pytest.raises(SpecError, match=r"^<string>:3: constraint\.tools\.1: "):
        parse("guardwrap: 1\nconstraint: {kind: tool_calls, tools: [{name: other},\n    {name: 5}]}\n")


def test_a_wrong_call_is_rejected_even_if_its_fault_is_too_deep_to_be_explained() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}, "n": {"$ref": "#"}}}
    rule, inner = ToolCalls([{"name": "f", "parameters": parameters}]), dict[str, Any]()
    for _ in range(250):
        inner = {"n": inner}
    draw = message(call("f", x="two", **inner))
    assert rule.check([draw]) == [False]
    assert "is invalid" in rule.fault_of(draw)
    assert JSONSchema(parameters).fault(json.dumps({"x": "two", **inner})) == ""


def test_without_tools_only_messages_without_calls_hold() -> None:
    none = ToolCalls([], choice="none")
    assert none.definitions == []
    assert none.check([message(answer="hi"), message(call("f"), answer="hi")]) == [True, False]


def test_plain_text_has_no_calls_to_judge() -> None:
    with pytest.raises(UsageError, match="judges the calls of messages; here the answer is plain text, so pass a chat"):
        ToolCalls([WEATHER]).accepts("hi")


F, G, BAD = (json.dumps(call(name, **arguments)) for name, arguments in (("f", {"a": 1}), ("g", {}), ("f", {"a": "x"})))
TOOLS = [
    {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "g", "parameters": {"type": "object", "properties": {}}},
]


@cache
def world() -> World:
    """A finite world of answers, and of calls of two tools between brackets: right, wrong and cut off."""
    tokenizer = fixtures_models.byte_tokenizer(["a", "(", ")", "[", "]", F, G, BAD, F[:20], F[20:]])
    made = fixtures_models.byte_world(tokenizer, max_new_tokens=4)
    return fixtures_models.with_template(made)


def kind_of(ids: tuple[int, ...], *, most: int | None = None) -> str | None:
    """Return the calls of a valid message, or "an answer"; None for others. Read letter by letter."""
    raw = world().tokenizer.decode(ids)
    pieces = parts_of(raw)
    calls = [piece.strip() for piece in pieces["["]]
    said = "".join(pieces[""]).strip()
    if not (said or calls) or (ids[-1] != 0 and region_of(raw)):
        return None
    if any(each not in (F, G) for each in calls) or (most is not None and len(calls) > most):
        return None
    return "+".join(json.loads(each)["name"] for each in calls) or "an answer"


def gold(**rule: Any) -> dict[tuple[int, ...], float]:
    kept = {ids: p for ids, p in world().law().items() if kind_of(ids, **rule) is not None}
    return {ids: p / sum(kept.values()) for ids, p in kept.items()}


WAYS: dict[str, dict[str, Any]] = {
    "rejection": {},
    "mask and qrs": {"proposal": Masked(unseen=0.0), "sampler": qrs(1.0)},
    "mask": {"proposal": Masked(unseen=0.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_calls_and_answers_have_the_shares_that_the_model_gives_them(way: str) -> None:
    rule, expected = ToolCalls(TOOLS, max_calls=1), gold(most=1)
    guarded = GuardedGenerator(world().pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64, **WAYS[way])
    (outcome,) = guarded.run(CHAT, **world().settings, num_return_sequences=2000, seed=1)
    drawn = [draw.token_ids for draw in outcome.draws]
    assert {*drawn} <= {*expected}
    shares: Counter[Any] = Counter()
    for ids, p in expected.items():
        shares[kind_of(ids, most=1)] += p  # type: ignore[assignment]
    assert {*shares} == {"an answer", "f", "g"}
    kinds = [(kind_of(ids, most=1),) for ids in drawn]
    p = goodness_of_fit(kinds, {(kind,): share for kind, share in shares.items()})
    assert p < 1e-6 if way == "mask" else p > 1e-3
    if way != "mask":
        assert goodness_of_fit(drawn, expected) > 1e-3
    assert [[c["function"]["name"] for c in calls] for calls in outcome.tool_calls] == [
        [] if kind == "an answer" else [kind] for (kind,) in kinds
    ]


def test_an_attempt_ends_as_soon_as_its_call_is_wrong() -> None:
    rule = ToolCalls(TOOLS, max_calls=1) & ~Regex("b", on="answer")
    start = MessageRegions.begin(world().tokenizer, "a")
    monitor = ToolCalls(TOOLS, max_calls=1).monitor_in(Context(message=start))
    wrong = {"[" + BAD: True, '[{"name": "h"': True, "[" + F: False, f"[{F}]": False, f"[{F}][": True, "[x": True}
    for text, dead in wrong.items():
        assert (monitor.read(text).verdict is Verdict.VIOLATED) is dead
    none = ToolCalls(TOOLS, choice="none").monitor_in(Context(message=start))
    assert none.read("a").verdict is Verdict.UNDECIDED
    assert none.read("a[").verdict is Verdict.VIOLATED
    assert rule.monitor_in(Context(message=start)).read("a").verdict is Verdict.UNDECIDED


def test_the_place_of_a_wrong_call_is_below_the_name_of_its_tool() -> None:
    rule = ToolCalls([WEATHER, Search], max_calls=2)
    cases = [
        (message(call(city="Rome", days="x")), "$.get_weather.arguments.days"),
        (message(call(city="Rome"), call()), "$.get_weather.arguments.city"),
        (message(call("Search", query="", filters=[{"site": 1}])), "$.Search.arguments.filters[].site"),
        (message(call("secret", secret=1)), "$.name"),
        (message({"arguments": {}}), "$.name"),
        (message({"name": "Search"}), "$.Search.arguments"),
        (message(*[call(city="Rome")] * 3), "wrong number of calls"),
        (message(call(city="Rome")), None),
    ]
    for draw, place in cases:
        assert rule.place_in(draw) == place
        assert judge_parts([rule], [draw], with_places=True)[0].place == place


def test_the_place_in_a_call_that_is_being_written() -> None:
    def place(text: str, tool: tuple[str, ...], **options: Any) -> str | None:
        monitor = ToolCalls([WEATHER, Search], **options).monitor_in(Context(message=start))
        assert isinstance(monitor, RegionMonitor)
        events = [Event("open", "tool_calls", tool), *(Event("text", "tool_calls", (char,)) for char in text)]
        return monitor.after(events).violated_at

    start = MessageRegions.begin(world().tokenizer, "a")
    call = '{"name": "get_weather", "arguments": {"city": "name", "days": '
    assert place(call + "1", ("call",)) is None
    assert place(call + '"', ("call",)) == "$.get_weather.arguments.days"
    assert place('{"arguments": {"days": "x", "query": [', ("call",)) == "$.arguments.query"
    assert place('{"name": "secret"', ("call",)) == "$.name"
    assert place("{'name'", ("call",)) == "not JSON"
    assert place('{"city": 1', ("arguments", "get_weather")) == "$.get_weather.arguments.city"
    assert place("1", ("arguments", "secret")) == "$.name"
    assert place("1", ("arguments", "Search"), choice={"name": "get_weather"}) == "$.name"
    closed = Event("close", "tool_calls", ('{"name": "Search", "arguments": {}}',))
    monitor = ToolCalls([WEATHER, Search]).monitor_in(Context(message=start))
    assert isinstance(monitor, RegionMonitor)
    assert monitor.after([Event("open", "tool_calls"), closed]).violated_at == "$.Search.arguments.query"


def test_a_call_that_only_lenient_parsers_read_is_none() -> None:
    """The parser takes the last of two equal keys; nobody would see the first."""
    regions, _ = MessageRegions.begin(world().tokenizer, "a")
    twice = '{"name": "f", "arguments": {"a": 1, "a": 2}}'
    assert regions.read(f"[{F}]")[0].message() is not None
    assert regions.read(f"[{twice}]")[0].message() is None


@pytest.mark.parametrize(
    ("shows", "notes"),
    [(True, ("do not show the model the tools", "")), (False, ("only from the chat", "tools= has no effect"))],
)
def test_tools_that_the_prompt_does_not_show_are_noted(
    shows: bool, notes: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Without tools, and with tools that the chat template shows, or not. A warning comes before attempts are drawn."""
    pipe = world().pipeline()
    pipe.tokenizer = copy.deepcopy(pipe.tokenizer)
    pipe.tokenizer.chat_template += "{% if tools %}{% endif %}" * shows
    guarded = GuardedGenerator(pipe, ToolCalls(TOOLS), seed=1)
    ways: list[dict[str, Any]] = [{}, {"tools": ToolCalls(TOOLS).definitions}]
    for options, noted in zip(ways, notes, strict=True):
        (outcome,) = guarded.run(CHAT, **world().settings, **options)
        again = guarded.run(CHAT, **world().settings, **options)[0].report.notes
        about = [note for note in outcome.report.notes if "show" in note]
        assert [note for note in again if "show" in note] == about
        assert len(about) == bool(noted)
        assert all(noted in note and caplog.messages.count(note) == 1 for note in about)
    (outcome,) = guarded.run(CHAT, constraints=ToolCalls(TOOLS, choice="none"), **world().settings)
    assert not any("show" in note for note in outcome.report.notes)
