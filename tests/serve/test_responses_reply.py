"""``/v1/responses`` as OpenAI's client uses it: texts, tools, streams, errors."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter, create_model

from guardwrap import Budget
from guardwrap.outcomes import EXACT, Closeness, Distribution, Draw, Outcome, Report, Usage
from guardwrap.serve import request_handling
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.replies import ResponsesReply
from guardwrap.serve.request_handling import Accepted, LivePiece, streamed
from tests.serve.fixtures_agents import NAME, TOOL, running_server
from tests.serve.fixtures_server import HAS_A, MASKED

FLAT: dict[str, Any] = {"type": "function", "strict": True, **TOOL["function"]}  # type: ignore[dict-item]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def agent() -> Iterator[openai.OpenAI]:
    """A client of a server whose model thinks, answers and calls ``f``."""
    with running_server() as url, openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def response_of(agent: openai.OpenAI, seed: int = 1, **fields: Any) -> Any:
    fields = {"input": "x", "max_output_tokens": 9, "tools": [FLAT], **fields}
    extra = {"seed": seed, **fields.pop("extra_body", {})}
    return agent.responses.create(model=NAME, **fields, extra_body=extra)


def chat_of(agent: openai.OpenAI, seed: int = 1, **fields: Any) -> Any:
    fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "tools": [TOOL], **fields}
    return agent.chat.completions.create(model=NAME, seed=seed, **fields)


def parts_of(output: Any) -> dict[str, Any]:
    """Return reasoning, text and calls of the items of an output."""
    joined: dict[str, Any] = {"reasoning": "", "text": "", "calls": []}
    for item in output:
        if item.type == "reasoning":
            joined["reasoning"] += "".join(part.text for part in item.content)
        elif item.type == "message":
            joined["text"] += "".join(part.text for part in item.content)
        else:
            joined["calls"].append((item.name, item.arguments))
    return joined


def parts_in_chat(message: Any) -> dict[str, Any]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return {
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "text": message.content or "",
        "calls": calls,
    }


@pytest.mark.slow
def test_one_seed_gives_the_texts_of_the_chat(agent: openai.OpenAI) -> None:
    rules: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tools": []}, {"tools": []}),
        ({"instructions": "y"}, {"messages": [{"role": "system", "content": "y"}, {"role": "user", "content": "x"}]}),
        ({"extra_body": {"guided_regex": "x+"}}, {"extra_body": {"guided_regex": "x+"}}),
        ({"max_output_tokens": 2, "tools": []}, {"max_tokens": 2, "tools": []}),
    ]
    replies = []
    for response_fields, chat_fields in rules:
        for seed in range(6):
            response = response_of(agent, seed, **response_fields)
            chat = chat_of(agent, seed, **chat_fields)
            assert parts_of(response.output) == parts_in_chat(chat.choices[0].message)
            assert (response.status == "incomplete") == (chat.choices[0].finish_reason == "length")
            usage = (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens)
            assert usage == (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens)
            assert response.guardwrap["usage"]["attempts"] == chat.guardwrap["usage"]["attempts"]
            replies.append(response)
    kinds = {item.type for response in replies for item in response.output}
    assert kinds == {"reasoning", "message", "function_call"}
    assert {response.status for response in replies} == {"completed", "incomplete"}
    assert any(response.usage.output_tokens_details.reasoning_tokens for response in replies)
    other = [parts_of(response_of(agent, seed + 1).output) for seed in range(6)]
    assert other != [parts_of(response_of(agent, seed).output) for seed in range(6)]  # so the seeds above matter


def test_a_response_has_the_fields_that_clients_read(agent: openai.OpenAI) -> None:
    response = response_of(agent, metadata={"a": "b"}, instructions="y", temperature=1.0, store=True)
    Response.model_validate(response.to_dict())
    assert (response.object, response.model, response.status, response.error) == ("response", NAME, "completed", None)
    assert response.id.startswith("resp_")
    assert response.metadata == {"a": "b"}
    assert response.instructions == "y"
    assert response.store is False
    assert response.tools[0].name == "f"
    assert response.output_text == parts_of(response.output)["text"]
    for item in response.output:
        if item.type == "message":
            assert [part.annotations for part in item.content] == [[]]
    ids = [item.id for item in response.output]
    assert len({*ids}) == len(ids)


def test_a_text_at_the_limit_is_incomplete(agent: openai.OpenAI) -> None:
    responses = [response_of(agent, seed, tools=[], max_output_tokens=1) for seed in range(9)]
    cut_off = [response for response in responses if response.status == "incomplete"]
    assert cut_off
    assert {response.incomplete_details.reason for response in cut_off} == {"max_output_tokens"}
    assert {response.output[-1].status for response in cut_off} == {"incomplete"}
    assert all(response.usage.output_tokens == 1 for response in cut_off)


def test_calls_and_their_results_are_sent_again(agent: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "x"}]
    messages: list[Any] = [{"role": "user", "content": "x"}]
    for turn in range(3):
        response = response_of(agent, turn, input=items, tool_choice="required")
        calls = [item for item in response.output if item.type == "function_call"]
        assert calls
        assert {(call.name, call.arguments) for call in calls} == {("f", '{"a": 1}')}
        chat = chat_of(agent, turn, messages=messages, tool_choice="required").choices[0].message
        assert parts_of(response.output) == parts_in_chat(chat)
        items += [
            *response.output,
            *({"type": "function_call_output", "call_id": c.call_id, "output": "2"} for c in calls),
        ]
        messages += [
            chat.model_dump(),
            *({"role": "tool", "tool_call_id": c.id, "content": "2"} for c in chat.tool_calls),
        ]
    assert response_of(agent, 9, input=items).status == "completed"


def test_choices_of_tools(agent: openai.OpenAI) -> None:
    other = {**FLAT, "name": "g"}
    for seed in range(4):
        none = response_of(agent, seed, tool_choice="none")
        assert not [item for item in none.output if item.type == "function_call"]
        named = response_of(
            agent, seed, tools=[FLAT, other], tool_choice={"type": "function", "name": "f"}, parallel_tool_calls=False
        )
        assert [item.name for item in named.output if item.type == "function_call"] == ["f"]


class Letter(BaseModel):
    a: int


@pytest.mark.slow
def test_parse_with_a_pydantic_model(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "ab", "max_output_tokens": 12}
    response = client.responses.parse(**asked, text_format=Letter, extra_body={**MASKED, "seed": 1})
    assert isinstance(response.output_parsed, Letter)
    sent_again: Any = [{"role": "user", "content": "ab"}, *response.output, {"role": "user", "content": "b"}]
    assert client.responses.create(model="tiny", input=sent_again, max_output_tokens=1).output
    form: Any = {"format": {"type": "json_object"}}
    text = client.responses.create(**asked, text=form, extra_body={**MASKED, "seed": 1}).output_text
    assert isinstance(json.loads(text), dict)


def test_parse_with_tools(agent: openai.OpenAI) -> None:
    tool: Any = openai.pydantic_function_tool(create_model("f", a=(int, ...)))
    extra = {"seed": 1}
    response = agent.responses.parse(
        model=NAME, input="x", tools=[tool], tool_choice="required", max_output_tokens=9, extra_body=extra
    )
    calls = [item for item in response.output if item.type == "function_call"]
    assert [call.parsed_arguments.a for call in calls] == [1] * len(calls)  # type: ignore[attr-defined]
    assert calls
    sent_again: Any = [{"role": "user", "content": "x"}, *response.output, {"role": "user", "content": "x"}]
    assert response_of(agent, input=sent_again).output


class Wrong(Exception):
    """The events are not in the order of OpenAI's API."""


def require(right: bool, problem: str) -> None:
    if not right:
        raise Wrong(problem)


def output_of(events: list[dict[str, Any]]) -> list[Any]:
    """Return the output items that events have in pieces, and require that the events are in their standard order."""
    require([event["sequence_number"] for event in events] == [*range(len(events))], "numbers")
    kinds = [event["type"] for event in events]
    require(kinds[:2] == ["response.created", "response.in_progress"], "beginning")
    require(kinds[-1] in ("response.completed", "response.incomplete", "response.failed"), "end")
    items: list[Any] = []
    item: Any = None
    part: Any = None
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            require(item is None and event["output_index"] == len(items), kind)
            item = json.loads(json.dumps(event["item"]))
            require(item["status"] == "in_progress", kind)
            continue
        require(item is not None and event["output_index"] == len(items), kind)
        require(event.get("item_id", item["id"]) == item["id"], kind)
        if kind == "content_part.added":
            require(part is None and event["content_index"] == len(item["content"]), kind)
            part = dict(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part["text"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            require(part["text"] == event["text"] and part["type"] in event["type"], kind)
        elif kind == "content_part.done":
            require(part == event["part"], kind)
            item["content"].append(part)
            part = None
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "function_call_arguments.done":
            require((item["arguments"], item["name"]) == (event["arguments"], event["name"]), kind)
        else:
            require(kind == "output_item.done" and part is None, kind)
            require({**item, "status": event["item"]["status"]} == event["item"], kind)
            items.append(event["item"])
            item = None
    require(item is None, "unfinished item")
    require(items == events[-1]["response"]["output"], "output")
    return items


def sent_by(agent: openai.OpenAI, seed: int, **fields: Any) -> list[dict[str, Any]]:
    return [event.to_dict() for event in response_of(agent, seed, stream=True, **fields)]


def test_a_stream_has_the_standard_events_and_the_text_of_the_response(agent: openai.OpenAI) -> None:
    kinds, ends = set(), set()
    for seed in range(8):
        for fields in ({}, {"max_output_tokens": 1, "tools": []}):
            events = sent_by(agent, seed, **fields)
            for event in events:
                EVENTS.validate_python(event)
            output_of(events)
            last = Response.model_validate(events[-1]["response"])
            whole = response_of(agent, seed, **fields)
            assert parts_of(last.output) == parts_of(whole.output)
            assert (last.status, last.usage) == (whole.status, whole.usage)
            assert events[-1]["response"]["guardwrap"]["accepted"] == 1
            kinds |= {item.type for item in last.output}
            ends.add(events[-1]["type"])
    assert kinds == {"reasoning", "message", "function_call"}
    assert ends == {"response.completed", "response.incomplete"}


def test_negative_control_other_orders_are_not_standard(agent: openai.OpenAI) -> None:
    events = sent_by(agent, 1, tool_choice="required")
    assert output_of(events)
    for place in range(len(events) - 1):
        swapped = [*events[:place], events[place + 1], events[place], *events[place + 2 :]]
        numbered = [{**event, "sequence_number": i} for i, event in enumerate(swapped)]
        with pytest.raises((Wrong, TypeError)):
            output_of(numbered)
    with pytest.raises(Wrong):
        output_of(events[:2] + events[3:])


def test_openais_helper_reads_the_stream(agent: openai.OpenAI) -> None:
    fields: Any = {"model": NAME, "input": "x", "tools": [FLAT], "max_output_tokens": 9, "extra_body": {"seed": 1}}
    with agent.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        response = stream.get_final_response()
    assert response.output_text == text
    assert parts_of(response.output) == parts_of(response_of(agent, 1).output)


def test_an_async_client_gets_the_same(agent: openai.OpenAI) -> None:
    async def output() -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=agent.base_url, api_key="any", max_retries=0) as made:
            return parts_of((await response_of(made, 1)).output)  # type: ignore[arg-type]

    assert asyncio.run(output()) == parts_of(response_of(agent, 1).output)


@pytest.mark.slow
def test_each_event_has_its_name_on_the_wire(http: Any) -> None:
    body = {"model": "tiny", "input": "ab", "max_output_tokens": 6, "seed": 1, "stream": True, **HAS_A}
    with http.stream("POST", "/v1/responses", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in data]
    assert len(lines) == 2 * len(data)
    output_of(data)


@pytest.mark.slow
def test_a_stream_that_waits_says_so_and_one_that_fails_ends_with_its_event(http: Any) -> None:
    body = {"model": "tiny", "input": "ab", "max_output_tokens": 12, "seed": 1, "stream": True}
    rule = {"guardwrap": {"constraint": "endless", "budget": {"max_seconds": 4}}}
    with http.stream("POST", "/v1/responses", json={**body, **rule}) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert ": waiting" in lines
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    failed = Response.model_construct(**events[-1]["response"])
    assert (failed.status, failed.output) == ("failed", [])
    assert events[-1]["response"]["error"]["code"] == "max_seconds"
    assert events[-1]["response"]["error"]["guardwrap"]["accepted"] == 0
    assert "DONE" not in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_spent_budget_is_an_error_with_the_report(client: openai.OpenAI, stream: bool) -> None:
    never: Any = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 5}}}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.responses.create(model="tiny", input="ab", max_output_tokens=12, stream=stream, extra_body=never)
    body: Any = caught.value.body
    assert (body["code"], body["guardwrap"]["usage"]["attempts"]) == ("max_attempts", 5)


@pytest.mark.slow
def test_errors_have_the_shape_of_the_other_routes(client: openai.OpenAI, http: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="ab", previous_response_id="resp_1")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "unsupported_field")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-5", input="ab")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    tools: Any = [FLAT]
    with pytest.raises(openai.BadRequestError, match="no known family"):
        client.responses.create(model="tiny", input="ab", tools=tools)
    assert http.post("/v1/responses", content="x", headers={"content-type": "text/plain"}).status_code == 415


@pytest.mark.slow
def test_requests_are_counted_and_logged_like_others(server: Any, http: Any) -> None:
    def counted() -> float:
        name = 'guardwrap_requests_total{model="tiny",status="200"}'
        return float(next(line.split()[-1] for line in http.get("/metrics").text.splitlines() if line.startswith(name)))

    http.post("/v1/responses", json={"model": "tiny", "input": "ab", "max_output_tokens": 1})
    before = counted()
    reply = http.post("/v1/responses", json={"model": "tiny", "input": "acbdfeacbdfe", "max_output_tokens": 1})
    assert (reply.status_code, counted()) == (200, before + 1)
    log = server.log.read_text()
    assert "POST /v1/responses 200" in log
    assert "acbdfeacbdfe" not in log


REPORT = Report(EXACT, "rejection", 1, 1, 1, "complete", Usage(5, 30), Budget(), None, {"r": 3}, "0")
SHORT = Report(
    Distribution(Closeness.NOTHING), "rejection", 1, 1, 0, "max_attempts", Usage(5, 30), Budget(), None, {"r": 5}, "0"
)
DRAW = Draw("p", (1, 2, 0), "a secret\nSTOP", True)


def reply_of(**fields: Any) -> ResponsesReply:
    return ResponsesReply(ParsedRequest(NAME, ["p"], {}, **fields), lambda text: len(text.split()), "1", 2)


def outcome_of(*draws: Draw, report: Report = REPORT) -> Outcome:
    return Outcome("p", tuple(draw.text for draw in draws), draws, report)


def wire(*items: Any, reply: ResponsesReply) -> str:
    """Return what a stream sends for accepted texts and outcomes, up to an error."""

    async def source() -> Any:
        for item in items:
            yield item

    async def sent() -> str:
        parts = []
        try:
            async for content, _ in streamed(source(), reply, 3, lambda outcome: outcome):
                parts.append(content.decode())
        except ErrorResponse as error:
            parts.append(json.dumps(reply.failed(error)))
        return "".join(parts)

    return asyncio.run(sent())


def test_texts_are_cut_before_their_stop_string() -> None:
    whole = reply_of(stops=("\nST",)).whole([outcome_of(DRAW)], 3)
    assert whole["output"][0]["content"][0]["text"] == "a secret"
    cut_off = reply_of(stops=("\nST",)).whole([outcome_of(replace(DRAW, finished=False))], 3)
    assert cut_off["status"] == "completed"
    assert reply_of().whole([outcome_of(replace(DRAW, finished=False))], 3)["status"] == "incomplete"


def test_reasoning_is_an_item_of_its_own_and_its_tokens_are_counted() -> None:
    message = json.dumps({"role": "assistant", "reasoning_content": "let me think", "content": "ok"})
    parts = (("reasoning", ("let me think",)), ("answer", ("ok",)))
    draw = Draw("p", (1, 2, 3, 4, 5, 0), "let me think ok", True, message=message, parts=parts)
    whole = reply_of().whole([outcome_of(draw)], 3)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "let me think"}]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert (whole["usage"]["output_tokens"], whole["usage"]["total_tokens"]) == (6, 9)


def test_only_accepted_texts_are_sent() -> None:
    sent = wire(Accepted(0, 0, DRAW), outcome_of(DRAW), reply=reply_of())
    assert sent.index("response.created") < sent.index("a secret") < sent.index("response.completed")
    rejected = wire(None, outcome_of(DRAW, report=SHORT), reply=reply_of())
    assert "response.failed" in rejected
    assert "a secret" not in rejected
    assert '"output": []' in rejected


def test_negative_control_an_outcome_that_is_not_required_to_be_complete_is_sent(monkeypatch: Any) -> None:
    monkeypatch.setattr(request_handling, "require_complete", lambda outcome, _: outcome)
    assert "a secret" in wire(None, outcome_of(DRAW, report=SHORT), reply=reply_of())


def test_an_error_after_the_text_keeps_what_was_sent() -> None:
    sent = wire(Accepted(0, 0, DRAW), outcome_of(report=SHORT), reply=reply_of())
    last = json.loads(sent[sent.rindex('{"type": "response.failed"') :])
    assert [item["type"] for item in last["response"]["output"]] == ["message"]
    assert last["response"]["error"]["code"] == "max_attempts"


def test_the_pieces_of_a_text_are_deltas_of_one_item() -> None:
    pieces = [LivePiece(0, 0, piece) for piece in ("a se", "cret", "\nS")]
    made = reply_of(stops=("\nSTART",))
    draw = replace(DRAW, text="a secret\nS")
    sent = wire(*pieces, Accepted(0, 0, draw), outcome_of(draw), reply=made)
    events = [json.loads(line.removeprefix("data: ")) for line in sent.splitlines() if line.startswith("data: ")]
    output_of(events)
    assert [event["delta"] for event in events if event["type"].endswith("delta")] == ["a se", "cret", "\nS"]
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == "a secret\nS"


@pytest.mark.slow
def test_pieces_of_a_real_server_are_standard_events(client: openai.OpenAI) -> None:
    most = 0
    for seed in range(6):
        fields: Any = {"model": "tiny", "input": "ab", "max_output_tokens": 12, "extra_body": {"seed": seed, **HAS_A}}
        events = [event.to_dict() for event in client.responses.create(stream=True, **fields)]
        for event in events:
            EVENTS.validate_python(event)
        (item,) = output_of(events)
        text = item["content"][0]["text"]
        assert text == client.responses.create(**fields).output_text
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == text
        most = max(most, len(deltas))
    assert most > 2
