"""Messages of a server with reasoning and tool calls in fields of their own: parsed, judged early, distributed as g."""

import json
import random
from collections import defaultdict
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Budget, GuardedGenerator, JSONSchema, Masked, Part, Regex, ToolCalls
from guardwrap.constraints.verdicts import Event
from guardwrap.engine.endpoint.attempt_stream import Delta, delta_line, deltas_in
from guardwrap.errors import EndpointError, PromptError, UsageError
from guardwrap.models.parsed_message import CUT_OFF, NO_ANSWER, UNPARSED, SentRegions, message_text, sent_message
from guardwrap.testing import goodness_of_fit
from tests.engine.endpoint.fixtures_server import Server, endpoint, raw_text

TOOLS = [
    {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "g", "parameters": {"type": "object", "properties": {}}},
]
CHAT = [{"role": "user", "content": "x"}]
LAW: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40}
NO_LIMIT = Budget(max_attempts=None)

THOUGHTS = {"": 0.4, "hm": 0.3, "key hm": 0.3}
ANSWERS = {"": 0.3, "yes": 0.2, '{"a": 1}': 0.2, "the key": 0.3}
CALLS: dict[tuple[tuple[str, str], ...], float] = {
    (): 0.3,
    (("f", '{"a": 1}'),): 0.2,
    (("f", '{"a": "x"}'),): 0.1,
    (("g", ""),): 0.1,
    (("h", "{}"),): 0.1,
    (("f", '{"a": 2}'), ("g", "{}")): 0.1,
    (("f", '{"a": '),): 0.1,
}


def deltas(thought: str, answer: str, calls: Any) -> list[dict[str, Any]]:
    """Return a message in pieces of at most two characters, as vLLM streams it."""
    pieces: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    pieces += [{"reasoning": thought[i : i + 2]} for i in range(0, len(thought), 2)]
    pieces += [{"content": answer[i : i + 2]} for i in range(0, len(answer), 2)]
    for number, (name, arguments) in enumerate(calls):
        begun = {"index": number, "id": f"x{number}", "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append({"tool_calls": [begun]})
        for i in range(0, len(arguments), 2):
            pieces.append({"tool_calls": [{"index": number, "function": {"arguments": arguments[i : i + 2]}}]})
    return pieces


def random_message(_: str, chance: random.Random) -> Any:
    thought, answer, calls = (
        chance.choices([*options], [*options.values()])[0] for options in (THOUGHTS, ANSWERS, CALLS)
    )
    pieces = deltas(thought, answer, calls)
    return pieces, "tool_calls" if calls else "stop", len(pieces)


def allowed(thought: str, answer: str, calls: Any, rule: str) -> bool:
    """Say independently whether a message satisfies a rule of the test."""
    try:
        arguments = [(name, json.loads(text or "{}")) for name, text in calls]
    except ValueError:
        return False
    if not answer and not calls:
        return False
    valid = all(name == "g" or (name == "f" and isinstance(given["a"], int)) for name, given in arguments)
    return {
        "everything": "key" not in thought + answer,
        "reasoning": "key" not in thought,
        "answer": "key" not in answer and bool(answer),
        "json": answer == '{"a": 1}',
        "calls": valid,
        "one": valid and len(calls) <= 1,
    }[rule]


RULES: dict[str, Any] = {
    "everything": ~Regex("key"),
    "reasoning": ~Regex("key", on=Part(message="reasoning", missing="pass")),
    "answer": ~Regex("key", on="answer"),
    "json": JSONSchema({"type": "object"}, on="answer"),
    "calls": ToolCalls(TOOLS),
    "one": ToolCalls(TOOLS, parallel=False),
}


def gold(rule: str) -> dict[Any, float]:
    shares: dict[Any, float] = defaultdict(float)
    for (thought, p), (answer, q), (calls, r) in product(THOUGHTS.items(), ANSWERS.items(), CALLS.items()):
        if allowed(thought, answer, calls, rule):
            shares[thought, answer, calls_of(calls)] += p * q * r
    whole = sum(shares.values())
    return {message: p / whole for message, p in shares.items()}


def calls_of(calls: Any) -> Any:
    return tuple((name, json.dumps(json.loads(text or "{}"))) for name, text in calls)


def drawn(server: Server, rule: Any, count: int) -> Any:
    guarded = GuardedGenerator(endpoint(server), rule, budget=NO_LIMIT, seed=3)
    options: dict[str, Any] = {"parse_messages": True, "batch_size": 16, "num_return_sequences": count}
    (outcome,) = guarded.run([CHAT], **LAW, **options)
    messages = []
    for message in outcome.messages:
        assert message is not None
        calls = [call["function"] for call in message.get("tool_calls", [])]
        called = tuple((call["name"], json.dumps(call["arguments"])) for call in calls)
        messages.append((message.get("reasoning_content", ""), message.get("content", ""), called))
    return messages, outcome


@pytest.fixture(scope="module")
def server():
    with Server(random_message).running() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_messages_follow_g(server, rule):
    messages, outcome = drawn(server, RULES[rule], 500)
    assert goodness_of_fit(messages, gold(rule)) > 1e-3
    assert outcome.report.drawn_from.startswith("exactly")
    assert all(draw.text for draw in outcome.draws)


@pytest.mark.slow
def test_negative_control_a_verdict_on_the_answer_while_the_model_thinks(server):
    def mixed(self: Any, text: str) -> Any:
        state, events = read(self, text)
        return state, [event._replace(part="answer") if event.part == "reasoning" else event for event in events]

    read = SentRegions.read
    with patch.object(SentRegions, "read", mixed):
        messages, _ = drawn(server, RULES["answer"], 500)
    assert goodness_of_fit(messages, gold("answer")) < 1e-9


@pytest.mark.slow
def test_negative_control_calls_that_are_not_judged(server):
    with patch.object(ToolCalls, "fault_of", lambda *_: ""), patch.object(ToolCalls, "monitor_in", _undecided):
        messages, _ = drawn(server, RULES["calls"], 500)
    assert goodness_of_fit(messages, gold("calls")) < 1e-9


def _undecided(rule: Any, context: Any) -> Any:
    return Regex("").monitor_in(context)


def test_attempts_end_as_soon_as_their_part_is_dead(server):
    """Nothing after the first forbidden word of the reasoning is waited for."""
    long = Server(lambda *_: (deltas("key", "x" * 2000, ()), "stop", 900))
    long.slow = 0.001
    with long.running():
        guarded = GuardedGenerator(endpoint(long), RULES["reasoning"], budget=Budget(max_attempts=4), seed=1)
        (outcome,) = guarded.run([CHAT], temperature=1.0, max_new_tokens=2000)
    assert not outcome.texts
    assert outcome.report.usage.tokens <= 4 * 20


def test_records_have_the_message_and_values_are_parsed(server):
    guarded = GuardedGenerator(endpoint(server), RULES["json"], budget=NO_LIMIT, seed=3)
    (outcome,) = guarded.run([CHAT], num_return_sequences=8, **LAW)
    assert outcome.values == ({"a": 1},) * 8
    records = guarded([CHAT], num_return_sequences=8, seed=3, **LAW)[0]
    assert [record["generated_text"][-1] for record in records] == [*outcome.messages]
    assert any("by the server" in note for note in outcome.report.notes)


def test_nobody_gets_or_misses_reasoning_unnoticed():
    """Without a rule on a part the reasoning is not returned, and the report says so."""
    with Server(lambda *_: (deltas("hm", "yes", ()), "stop", 5)).running() as server:
        guarded = GuardedGenerator(endpoint(server), ~Regex("hm"), seed=1)
        (outcome,) = guarded.run([CHAT], **LAW)
        assert outcome.texts == ("yes",)
        assert any("reasoning of 1 attempt separately" in note for note in outcome.report.notes)
        (outcome,) = guarded.run([CHAT], parse_messages=True, budget=Budget(max_attempts=3), **LAW)
        assert not outcome.texts


def test_tools_are_shown_to_the_model_which_decides_alone(server):
    """A server would mask tokens for any other choice, and then texts are not the model's own."""
    server.seen.clear()
    rule = ToolCalls(TOOLS, choice="required")
    options: dict[str, Any] = {"tools": rule.definitions, "chat_template_kwargs": {"enable_thinking": True}}
    (outcome,) = GuardedGenerator(endpoint(server), rule, budget=NO_LIMIT, seed=1).run([CHAT], **options, **LAW)
    assert outcome.tool_calls[0][0]["function"]["name"] in ("f", "g")
    assert not any("do not show the model the tools" in note for note in outcome.report.notes)
    sent = server.seen[-1]
    assert (sent["tools"], sent["tool_choice"]) == (rule.definitions, "auto")
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ([{"tool_calls": [{"index": 1, "function": {"name": "f", "arguments": "{}"}}]}], EndpointError, "mixes"),
        ([{"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}], EndpointError, "without its name"),
        ([{"tool_calls": [{"index": 0}]}], EndpointError, "not OpenAI protocol"),
        ([{"tool_calls": [{"index": -1, "function": {"name": "f"}}]}], EndpointError, "mixes"),
        ([{"tool_calls": 3}], EndpointError, "not OpenAI protocol"),
        ([{"reasoning": ["hm"]}], EndpointError, "not OpenAI protocol"),
        ([{"reasoning_content": "\ud800"}], EndpointError, "not OpenAI protocol"),
        (
            [
                {"tool_calls": [{"index": i, "function": {"name": name, "arguments": "{}"}}]}
                for i, name in ((0, "f"), (1, "g"), (0, None))
            ],
            EndpointError,
            "mixes",
        ),
        (
            [{"tool_calls": [{"index": 0, "function": {"name": name, "arguments": ""}}]} for name in ("f", "g")],
            EndpointError,
            "in pieces that change it",
        ),
    ],
)
def test_malformed_deltas_end_the_request_with_one_line(answer, error, words):
    choices = [{"delta": delta} for delta in answer] + [{"delta": {}, "finish_reason": "stop"}]
    with Server(random_message, raw=lambda _: raw_text(*choices, chat=True)).running() as server:
        guarded = GuardedGenerator(endpoint(server), ToolCalls(TOOLS), seed=1)
        with pytest.raises(error, match=words) as raised:
            guarded.run([CHAT], **LAW)
    assert "\n" not in str(raised.value)


def test_a_call_that_nobody_asked_for_is_an_error(server):
    calling = Server(lambda *_: (deltas("", "", (("f", "{}"),)), "tool_calls", 5))
    with calling.running(), pytest.raises(EndpointError, match="with a tool call; pass parse_messages=True"):
        GuardedGenerator(endpoint(calling), ~Regex("x"), seed=1).run([CHAT], **LAW)
    guarded = GuardedGenerator(endpoint(server), ToolCalls(TOOLS), seed=1)
    with pytest.raises(PromptError, match="is a string"):
        guarded.run("x", **LAW)
    with pytest.raises(UsageError, match="tools: give a list"):
        guarded.run([CHAT], tools={"name": "f"}, **LAW)
    with pytest.raises(UsageError, match="parse_messages=True"):
        list(GuardedGenerator(endpoint(server), ~Regex("x"), seed=1).run([CHAT], constraint_each=iter([RULES["json"]])))


def test_a_mask_of_the_answer_is_the_servers(server):
    server.seen.clear()
    guarded = GuardedGenerator(endpoint(server), RULES["json"], budget=NO_LIMIT, seed=1, proposal=Masked())
    guarded.run([CHAT], **LAW)
    assert server.seen[-1]["structured_outputs"] == {"json": {"type": "object"}}


@pytest.mark.parametrize(
    ("sent", "finished", "fault"),
    [
        ([Delta("answer", "yes")], True, None),
        ([Delta("answer", "ye")], False, None),
        ([Delta("reasoning", "hm")], True, NO_ANSWER),
        ([Delta("reasoning", "hm")], False, NO_ANSWER),
        ([Delta("answer", "yes"), Delta("reasoning", "hm")], False, CUT_OFF),
        ([], True, NO_ANSWER),
        ([Delta("answer", " \n")], True, NO_ANSWER),
        ([Delta("tool_calls", '{"a": 1}', 0, "f")], True, None),
        ([Delta("tool_calls", '{"a": 1}', 0, "f")], False, None),
        ([Delta("tool_calls", '{"a": ', 0, "f")], False, CUT_OFF),
        ([Delta("tool_calls", '{"a": ', 0, "f")], True, UNPARSED),
        ([Delta("tool_calls", '{"a": 1, "a": 2}', 0, "f")], True, UNPARSED),
        ([Delta("tool_calls", "[" * 100_000, 0, "f")], True, UNPARSED),
        ([Delta("tool_calls", "{", 0, "f"), Delta("tool_calls", "{}", 1, "g")], True, UNPARSED),
    ],
)
def test_what_is_no_message(sent, finished, fault):
    message = sent_message("".join(map(delta_line, sent)), finished=finished)
    assert message.fault == fault
    assert (message.message is None) is (fault is not None)


TEXT = st.text(alphabet='ab {}"\n\u2028\ufffd😀', max_size=6)
PIECES = st.lists(st.tuples(st.sampled_from(["answer", "reasoning", "f", "g"]), TEXT), max_size=8)


@given(PIECES, st.booleans())
def test_everything_that_is_returned_is_judged(pieces, finished):
    """Field by field: each string of the message is in the text, and in its part."""
    sent, calls = [], 0
    for part, text in pieces:
        if part in ("f", "g"):
            sent += [Delta("tool_calls", json.dumps({"a": text}), calls, part)]
            calls += 1
        else:
            sent += [Delta(part, text)]
    lines = "".join(map(delta_line, sent))
    assert deltas_in(lines) == sent
    message = sent_message(lines, finished=finished)
    if message.message is None:
        return
    fields, parts = json.loads(message.message), dict(message.parts or ())
    assert fields.pop("role") == "assistant"
    for name, part in (("content", "answer"), ("reasoning_content", "reasoning")):
        value = fields.pop(name, "")
        assert value == "".join(text for kind, text in pieces if kind == part).strip()
        assert value in message.text
        assert "".join(parts.get(part, ())) == value
    assert [json.loads(call) for call in parts.get("tool_calls", ())] == fields.pop("tool_calls", [])
    assert not fields


@given(PIECES, st.integers(0, 200))
def test_pieces_may_arrive_in_any_portions(pieces, cut):
    lines = [delta_line(Delta("answer" if part in ("f", "g") else part, text)) for part, text in pieces]
    cut = min(cut, len(lines))
    state, events = SentRegions().read("".join(lines[:cut]))
    state, more = state.read("".join(lines[cut:]))
    whole, all_at_once = SentRegions().read("".join(lines))
    assert (state, [*events, *more]) == (whole, [*all_at_once])
    assert all(isinstance(event, Event) for event in events)


@pytest.mark.slow
def test_negative_control_a_field_that_is_returned_unjudged(server):
    def without_calls(fields: Any) -> str:
        return text({name: value for name, value in fields.items() if name != "tool_calls"})

    text = message_text
    rule = ~Regex('"a": 2')
    _, outcome = drawn(server, rule, 200)
    assert not any('"a": 2' in draw.message for draw in outcome.draws)
    with patch("guardwrap.models.parsed_message.message_text", without_calls):
        _, outcome = drawn(server, rule, 200)
    assert any('"a": 2' in draw.message for draw in outcome.draws)
