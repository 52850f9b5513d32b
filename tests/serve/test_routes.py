"""A server in a separate process, called by OpenAI's client."""

import asyncio
import contextlib
import json
import re
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from guardwrap import JSONSchema, Masked, Regex
from tests.serve.fixtures_server import ASKED, HAS_A, LETTERS, MASKED, MESSAGES


def test_a_chat_is_what_the_wrapper_gives_in_process(client, guarded):
    reply = client.chat.completions.create(**ASKED, n=2, extra_body=HAS_A)
    law = {"num_return_sequences": 2, "max_new_tokens": 12, "seed": 1}
    (expected,) = guarded.run([MESSAGES], constraints=Regex("a"), **law)
    assert [choice.message.content for choice in reply.choices] == list(expected.texts)
    assert [choice.index for choice in reply.choices] == [0, 1]
    ended = ["stop" if draw.finished else "length" for draw in expected.draws]
    assert [choice.finish_reason for choice in reply.choices] == ended
    assert reply.usage.prompt_tokens == 2
    assert reply.usage.completion_tokens == sum(len(draw.token_ids) for draw in expected.draws)
    assert reply.guardwrap["usage"]["attempts"] == expected.report.usage.attempts
    assert reply.guardwrap["drawn_from"] == "exactly your model's own distribution, given the constraint (g)"
    assert (reply.object, reply.model) == ("chat.completion", "tiny")


def test_plain_completions_of_several_prompts(client, guarded):
    reply = client.completions.create(
        model="gpt-tiny", prompt=["ab", "cd"], n=2, seed=3, max_tokens=6, temperature=1.5, top_p=0.9, extra_body=HAS_A
    )
    law = {"num_return_sequences": 2, "max_new_tokens": 6, "temperature": 1.5, "top_p": 0.9, "seed": 3}
    expected = guarded.run(["ab", "cd"], constraints=Regex("a"), **law)
    assert [choice.text for choice in reply.choices] == [text for outcome in expected for text in outcome.texts]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [report["accepted"] for report in reply.guardwrap] == [2, 2]


def test_token_ids_are_a_prompt(client, guarded):
    """Ids that no text stands for are refused: the tokenizer would read their text as other ids."""
    ids = guarded.tokenizer(["ab", "cd"], add_special_tokens=False)["input_ids"]
    options = {"model": "tiny", "seed": 3, "max_tokens": 6, "extra_body": HAS_A}
    as_text = client.completions.create(prompt=["ab", "cd"], **options)
    as_ids = client.completions.create(prompt=ids, **options)
    assert [choice.text for choice in as_ids.choices] == [choice.text for choice in as_text.choices]
    assert as_ids.usage.prompt_tokens == 4
    assert client.completions.create(prompt=ids[0], **options).choices[0].text == as_text.choices[0].text
    for wrong, problem in (([*ids[0], 10**6], "a token id of 1000000"), ([-1], "give a string"), ([], "give a string")):
        with pytest.raises(openai.BadRequestError, match=problem):
            client.completions.create(prompt=wrong, **options)


def test_greedy_search(client, guarded):
    reply = client.completions.create(model="tiny", prompt="ab", max_tokens=6, temperature=0, top_p=0.5)
    (expected,) = guarded.run(["ab"], max_new_tokens=6, do_sample=False)
    assert reply.choices[0].text == expected.texts[0]


def test_calls_side_by_side_get_the_texts_that_they_get_alone(server, client):
    def alone(seed):
        return client.chat.completions.create(**{**ASKED, "seed": seed}, extra_body=HAS_A).choices[0].message.content

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=5) as made:
            calls = (made.chat.completions.create(**{**ASKED, "seed": seed}, extra_body=HAS_A) for seed in range(3))
            return [reply.choices[0].message.content for reply in await asyncio.gather(*calls)]

    assert asyncio.run(together()) == [alone(seed) for seed in range(3)]


def test_a_stream_has_the_text_of_the_reply(client):
    whole = client.chat.completions.create(**ASKED, n=2, extra_body=HAS_A)
    chunks = list(
        client.chat.completions.create(
            **ASKED, n=2, extra_body=HAS_A, stream=True, stream_options={"include_usage": True}
        )
    )
    for choice in whole.choices:
        its = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == choice.index]
        assert [each.delta.role for each in its] == ["assistant", *[None] * (len(its) - 1)]
        assert "".join(each.delta.content or "" for each in its) == choice.message.content
        assert [each.finish_reason for each in its] == [*[None] * (len(its) - 1), choice.finish_reason]
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert [chunk.guardwrap["accepted"] for chunk in chunks if hasattr(chunk, "guardwrap")] == [2, 2]
    texts = list(client.completions.create(model="tiny", prompt="ab", seed=1, max_tokens=6, stream=True))
    plain = client.completions.create(model="tiny", prompt="ab", seed=1, max_tokens=6)
    assert "".join(chunk.choices[0].text for chunk in texts) == plain.choices[0].text


def test_a_stream_has_pieces_of_the_text_once_it_is_certain(client):
    """Stop strings are held back, and the report says from which token on the text was streamed."""
    most = 0
    for seed in range(6):
        asked = {**ASKED, "seed": seed, "stop": ["cd", "f"], "extra_body": HAS_A}
        chunks = list(client.chat.completions.create(**asked, stream=True))
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        whole = client.chat.completions.create(**asked)
        assert "".join(pieces) == whole.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert chunks[-1].guardwrap["notes"][-1].startswith("streamed")
        assert not [note for note in whole.guardwrap["notes"] if "streamed" in note]
        most = max(most, len(pieces))
    assert most > 2


@pytest.mark.slow
def test_repair_turns_send_only_what_is_certain(client):
    """A stream has the text of the reply, and nothing of the answers that were rejected before it."""
    rule = {"kind": "regex", "name": "ab", "pattern": "^[ef]"}
    turns = {"repair": {"max_turns": 3, "message": "{reasons}"}, "budget": {"max_attempts": 1}}
    live, repaired = 0, 0
    for seed in (0, 3, 4, 7):
        asked = {**ASKED, "seed": seed, "extra_body": {"guardwrap": {"constraint": rule, **turns}}}
        try:
            whole = client.chat.completions.create(**asked)
        except openai.UnprocessableEntityError:
            chunks = []
            with pytest.raises(openai.APIError):
                chunks.extend(client.chat.completions.create(**asked, stream=True))
            assert not chunks
            continue
        chunks = list(client.chat.completions.create(**asked, stream=True))
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        assert "".join(pieces) == whole.choices[0].message.content
        assert whole.choices[0].message.content[0] in "ef"
        if whole.guardwrap["usage"]["attempts"] > 1:
            assert "repair turn" in whole.guardwrap["drawn_from"]
            repaired += 1
            live += len(pieces) > 1
    assert repaired == 3
    assert live > 1


def test_a_server_repairs_chats_only(client):
    rule = {"kind": "regex", "name": "ab", "pattern": "^z"}
    never = {"guardwrap": {"constraint": rule, "repair": {"max_turns": 2, "message": "{reasons}"}}}
    with pytest.raises(openai.BadRequestError, match="continues a chat, and this request has none"):
        client.completions.create(model="tiny", prompt="ab", max_tokens=6, extra_body=never)
    never["guardwrap"]["budget"] = {"max_attempts": 2}
    for create, prompt in ((client.chat.completions.create, "messages"), (client.responses.create, "input")):
        limit = {"max_tokens" if prompt == "messages" else "max_output_tokens": 6}
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            create(model="tiny", **{prompt: MESSAGES}, **limit, extra_body=never)
        report = caught.value.response.json()["error"]["guardwrap"]
        assert report["usage"]["attempts"] == 6
        assert len([note for note in report["notes"] if "a repair turn followed" in note]) == 2


def test_pieces_of_several_texts_have_their_indices(client):
    several = {"model": "tiny", "prompt": ["ab", "cd"], "n": 2, "max_tokens": 9, "seed": 3, "extra_body": HAS_A}
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**several, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [*texts.values()] == [choice.text for choice in client.completions.create(**several).choices]


def test_a_stream_as_it_goes_over_the_wire(http):
    body = {**ASKED, "stream": True, **HAS_A}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len([line for line in lines if line.startswith("data: {")]) == 3


@pytest.mark.slow
def test_a_stream_that_waits_says_so_and_one_that_fails_ends_with_an_error(server, http):
    budget = {"guardwrap": {"constraint": "endless", "budget": {"max_seconds": 4}}}
    with http.stream("POST", "/v1/chat/completions", json={**ASKED, **budget, "stream": True}) as response:
        assert response.status_code == 200
        first, *others = [line for line in response.iter_lines() if line]
    assert first == ": waiting"
    error = json.loads(others[-1].removeprefix("data: "))["error"]
    assert error["code"] == "max_seconds"
    assert error["guardwrap"]["accepted"] == 0
    assert not [line for line in others if "choices" in line or "DONE" in line]
    attempts = error["guardwrap"]["usage"]["attempts"]
    assert attempts > 0
    server.log_with(rf" {attempts} attempts of tiny {response.headers['x-request-id']}")


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_counts_the_attempts_of_all_prompts_of_a_request_that_fails(server, http, stream):
    """The first prompt gets its text at once, and no text of the second one can pass."""
    only = {"constraint": {"kind": "regex", "pattern": "^a", "on": "full"}, "budget": {"max_attempts": 5}}
    body = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 4, "seed": 3, "stream": stream}
    reply = http.post("/v1/completions", json={**body, "guardwrap": only})
    assert "max_attempts" in reply.text
    server.log_with(rf" 6 attempts of tiny {reply.headers['x-request-id']}")


def test_a_text_is_sent_when_it_is_accepted_and_not_when_all_are_there(http):
    """One text is accepted, and a second one never is."""
    asked = {**ASKED, "n": 2, "guardwrap": {"constraint": "once", "budget": {"max_seconds": 1}}, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=asked) as response:
        assert response.status_code == 200
        *texts, error = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert [chunk["choices"][0]["index"] for chunk in texts] == [0, 0]
    assert [chunk["choices"][0]["finish_reason"] for chunk in texts] == [None, None]  # the texts have not ended
    assert (error["error"]["code"], error["error"]["guardwrap"]["accepted"]) == ("max_seconds", 1)


def test_a_stream_that_fails_at_once_has_its_status(client):
    never = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 1}}}
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(**ASKED, stream=True, extra_body=never)


class Letter(BaseModel):
    a: int


def test_parse_with_a_pydantic_model(client):
    reply = client.chat.completions.parse(**ASKED, response_format=Letter, extra_body=MASKED)
    assert isinstance(reply.choices[0].message.parsed, Letter)
    assert reply.guardwrap["proposal"].endswith("masked")


AN_OBJECT = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": AN_OBJECT}}
ONCE: Any = {"top_k": 2, "guardwrap": {"budget": {"max_attempts": 4}}}


def test_json_takes_one_attempt_and_the_report_says_that_it_is_masked(client, guarded):
    """Two of the tokens are rarely those that JSON needs next, so the model itself draws no text in four attempts."""
    reply = client.chat.completions.create(**ASKED, n=4, response_format=FORMAT, extra_body=ONCE)
    texts = [choice.message.content for choice in reply.choices]
    assert [json.loads(text) for text in texts] == [{"a": 1}] * 4
    report = reply.guardwrap
    assert (report["usage"]["attempts"], report["proposal"]) == (4, "the model itself, masked")
    assert report["drawn_from"].startswith("not your model's own distribution")
    own: Any = {"proposal": Masked(beyond_truncation=True), "sampler": "rejection", "num_return_sequences": 4}
    settings: Any = {"max_new_tokens": 12, "top_k": 2, "seed": 1}
    (expected,) = guarded.run([MESSAGES], constraints=JSONSchema(AN_OBJECT), **own, **settings)
    assert texts == list(expected.texts)


@pytest.mark.parametrize("own", [{"sampler": "rejection"}, {"proposal": False}], ids=str)
def test_a_request_that_names_a_distribution_gets_it(client, own):
    asked = {**ONCE, "guardwrap": {**ONCE["guardwrap"], **own}}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**ASKED, response_format=FORMAT, extra_body=asked)
    body: Any = caught.value.body
    assert body["guardwrap"]["proposal"] is None  # the model itself


def test_json_of_a_greedy_request_is_masked_too(client):
    reply = client.chat.completions.create(**ASKED, temperature=0, response_format=FORMAT)
    assert json.loads(reply.choices[0].message.content) == {"a": 1}


@pytest.mark.slow
def test_a_twist(client):
    rule = {"kind": "keyword", "words": "fa", "whole_words": False}
    own = {"proposal": "twisted", "sampler": "qrs", "constraint": rule}
    reply = client.chat.completions.create(**ASKED, extra_body={"guardwrap": own, "top_k": -1})
    assert "fa" in reply.choices[0].message.content
    assert reply.guardwrap["proposal"] == "the model itself, twisted"
    assert any("the twist was learned from" in note for note in reply.guardwrap["notes"])
    regex = {**own, "constraint": {"kind": "regex", "pattern": r"(a)\1"}}
    regex |= {"sampler": "rejection"}
    masked = client.chat.completions.create(**ASKED, extra_body={"guardwrap": regex, "top_k": -1})
    assert masked.guardwrap["proposal"] == "the model itself, masked"


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"structured_outputs": {"choice": ["ab", "c"]}}, Regex("ab|c", match="fullmatch")),
        ({"structured_outputs": {"regex": "[ab]{1,3}"}}, Regex("[ab]{1,3}", match="fullmatch")),
        ({"structured_outputs": {"grammar": 'start: "a"+ | "b"'}}, Regex("a+|b", match="fullmatch")),
        ({"structured_outputs": {"json": {"type": "integer"}}}, JSONSchema({"type": "integer"})),
        ({"guided_choice": ["ab", "c"]}, Regex("ab|c", match="fullmatch")),
        ({"guided_regex": "[ab]{1,3}"}, Regex("[ab]{1,3}", match="fullmatch")),
        ({"guided_grammar": 'start: "a"+ | "b"'}, Regex("a+|b", match="fullmatch")),
        ({"guided_json": {"type": "integer"}}, JSONSchema({"type": "integer"})),
        ({"response_format": {"type": "json_object"}}, JSONSchema({"type": "object"})),
    ],
    ids=str,
)
def test_structured_output(client, guarded, fields, constraint):
    reply = client.chat.completions.create(**ASKED, extra_body={**MASKED, **fields})
    text = reply.choices[0].message.content
    assert constraint.accepts(text)
    (expected,) = guarded.run([MESSAGES], constraints=constraint, proposal=Masked(), max_new_tokens=12, seed=1)
    assert text == expected.texts[0]


def test_a_text_ends_before_its_stop_string(client, guarded):
    own = {"guardwrap": {"constraint": {"kind": "regex", "pattern": "^[^b]{2,4}$"}}}
    reply = client.chat.completions.create(**ASKED, n=3, stop=["b"], extra_body=own)
    for choice in reply.choices:
        assert re.fullmatch("[^b]{2,4}", choice.message.content)
    assert "stop" in {choice.finish_reason for choice in reply.choices}
    # Generated as by the pipeline with stop strings, and checked without them.
    (expected,) = guarded.run([MESSAGES], constraints=Regex("^[^b]{2,4}b?$"), stop_strings=["b"], max_new_tokens=12,
                              num_return_sequences=3, seed=1)  # fmt: skip
    assert [c.message.content for c in reply.choices] == [text.removesuffix("b") for text in expected.texts]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fallback_replaces_the_text_that_is_missing(client, http, stream):
    never = {"constraint": {"kind": "regex", "pattern": "z"}, "budget": {"max_attempts": 3}, "fallback": "z then"}
    body = {**ASKED, "guardwrap": never, "stream": stream, "n": 2}
    if not stream:
        reply = http.post("/v1/chat/completions", json=body).json()
        assert [each["message"]["content"] for each in reply["choices"]] == ["z then"] * 2
        assert [each["finish_reason"] for each in reply["choices"]] == ["stop"] * 2
        assert reply["guardwrap"]["fallback"] is True
        reply = http.post("/v1/responses", json={"model": "tiny", "input": "ab", "guardwrap": never}).json()
        assert (reply["status"], reply["output"][0]["content"][0]["text"]) == ("completed", "z then")
        return
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    texts = ["", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == ["z then"] * 2
    with http.stream(
        "POST", "/v1/responses", json={"model": "tiny", "input": "ab", "guardwrap": never, "stream": True}
    ) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert events[-1]["type"] == "response.completed"
    assert "z then" in [event.get("delta") for event in events]


@pytest.mark.parametrize("fallback", ["no", 5, "z" * 100_000, "z\ud800"])
def test_a_fallback_that_breaks_a_rule_is_refused(http, fallback):
    own = {"constraint": {"kind": "regex", "pattern": "z"}, "fallback": fallback}
    reply = http.post(
        "/v1/chat/completions",
        content=json.dumps({**ASKED, "guardwrap": own}),
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 400
    if fallback != "z\ud800":  # which is no request
        assert reply.json()["error"]["param"] == "guardwrap.fallback"


def test_a_spent_budget_is_an_error_with_the_report(client):
    never = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 5}}}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**ASKED, extra_body=never)
    body: Any = caught.value.body
    assert (body["code"], body["guardwrap"]["usage"]["attempts"]) == ("max_attempts", 5)
    assert "has a z" in body["message"]
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**ASKED, temperature=0, extra_body={"guided_regex": "z"})
    assert caught.value.body["code"] == "deterministic"  # type: ignore[index]


BEYOND = '"guardwrap": {"proposal": {"masked": {"beyond_truncation": true}}}, '


@pytest.mark.parametrize(("more", "mask"), [({}, ""), (MASKED, BEYOND)])
def test_settings_that_rule_all_texts_out_are_named(client, guarded, more, mask):
    ids = guarded.tokenizer(MESSAGES[0]["content"], return_tensors="pt")["input_ids"]
    shares = guarded.model(input_ids=ids).logits[0, -1].detach().double().softmax(-1)
    letter = min("abcdef", key=lambda each: shares[guarded.tokenizer.convert_tokens_to_ids(each)])
    asked = {"guided_regex": f"{letter}+", "top_k": 3, **more}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**ASKED, temperature=1.0, extra_body=asked)
    body: Any = caught.value.body
    assert body["code"] == "impossible"
    share = float(shares[guarded.tokenizer.convert_tokens_to_ids(letter)])
    reason = f"top_k=3 leaves out all possible first tokens, which have probability {share:.3g} without it; "
    assert f"no text that these settings allow satisfies the constraint: {reason}" in body["message"]
    helps = f'"top_k": -1, {mask}a weaker constraint, or a prompt that describes it'
    assert body["message"].endswith(f"; what helps in this request: {helps}")
    assert body["guardwrap"]["obstacle"]["probability"] == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize("field", [{"tools": [{}]}, {"logprobs": True}, {"temprature": 1}, {"guided_regex": "("}])
def test_what_is_refused(client, field):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, extra_body=field)
    assert caught.value.param == next(iter(field))


def test_what_is_served(client, http):
    assert [model.id for model in client.models.list()] == ["tiny", "gpt-tiny"]
    assert client.models.retrieve("tiny").owned_by == "guardwrap"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**ASKED, "model": "gpt-5"})
    client.chat.completions.create(**ASKED)
    about = http.get("/v1/guardwrap/about").json()
    assert {"name": "has-a", "description": "It has an a."} in about["constraints"]
    assert "catalogue:no-urls" in {each["name"] for each in about["catalogue"]}
    assert about["limits"]["queue"] == 1
    assert about["figures"]["accepted"] > 0
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/").headers["content-type"].startswith("text/html")
    for path in ("/docs", "/openapi.json", "/v1/embeddings"):
        reply = http.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_route")


def test_a_page_of_another_site_cannot_ask(http):
    """A browser sends text/plain without a preflight request; before JSON it sends one, which fails."""
    reply = http.post("/v1/chat/completions", content=json.dumps(ASKED), headers={"content-type": "text/plain"})
    assert reply.status_code == 415
    asked = {"origin": "https://example.com", "access-control-request-method": "POST"}
    assert http.options("/v1/chat/completions", headers=asked).status_code == 405
    assert "access-control-allow-origin" not in http.get("/health", headers=asked).headers


def test_the_log_has_no_text_and_no_prompt(server, http):
    secret = "acbdfeacbdfe"
    reply = http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": secret, "max_tokens": 12, "seed": 2, "user": "someone"},
        headers={"authorization": "Bearer hidden"},
    )
    text = reply.json()["choices"][0]["text"]
    http.get("/v1/" + secret)
    log = server.log.read_text()
    assert "POST /v1/completions 200" in log
    assert all(hidden not in log for hidden in (secret, text, "hidden", "someone"))
    assert "Traceback" not in log
    assert len(text) > 5
    assert set(text) <= set(LETTERS)
    with contextlib.suppress(StopIteration):
        line = next(line for line in log.splitlines() if "completions 200" in line)
        assert re.search(r" POST /v1/\S+ 200 \d+\.\d\d s \d+ attempts of tiny [0-9a-f]{32}$", line)


def test_a_request_may_ask_for_shares(client):
    half = {"kind": "share", "of": {"kind": "regex", "pattern": "a"}, "share": 0.5, "exact": True}
    body = {"guardwrap": {"constraint": half}}
    reply = client.completions.create(model="tiny", prompt="cd", n=6, seed=3, max_tokens=6, extra_body=body)
    assert sum("a" in choice.text for choice in reply.choices) == 3
    never = {**half, "of": {"kind": "regex", "pattern": "z"}}
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(
            model="tiny", prompt="cd", n=6, seed=3, max_tokens=6, extra_body={"guardwrap": {"constraint": never}}
        )
    assert refused.value.status_code == 422
    with pytest.raises(openai.BadRequestError, match="ask for more texts"):
        client.completions.create(model="tiny", prompt="cd", n=1, seed=3, max_tokens=6, extra_body=body)


def test_shares_hold_before_stop_strings(client):
    half = {"kind": "share", "of": {"kind": "regex", "pattern": "a"}, "share": 0.5, "exact": True}
    body = {"guardwrap": {"constraint": half}}
    reply = client.completions.create(model="tiny", prompt="cd", n=6, seed=3, max_tokens=6, stop=["b"], extra_body=body)
    assert sum("a" in choice.text for choice in reply.choices) == 3
    assert not any("b" in choice.text for choice in reply.choices)
