"""Checks of texts that others have written, by rules, over HTTP and as LiteLLM asks for them."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from guardwrap import JSONSchema, Keyword, Length, constraint
from guardwrap.cli.commands import serve_command
from guardwrap.cli.typer_app import app
from guardwrap.constraints.files.constraint_file import ConstraintFile, parse
from guardwrap.errors import UsageError
from guardwrap.serve import checked_texts, lifecycle
from guardwrap.serve.checked_texts import check_texts, guard_for_litellm
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import Keys, ServerLimits, ServerSettings, read_server_settings

SCHEMA = {"properties": {"items": {"items": {"properties": {"name": {"type": "string"}}}}}}
FIELDS = "guardwrap: 1\nfields: [word]\nconstraint: {kind: keyword, name: the word, words: '{word}'}\n"


@constraint
def crashes_on_b(text: str) -> bool:
    if "b" in text:
        raise KeyError(text)
    return "a" in text


@constraint
def hangs(text: str) -> bool:
    time.sleep(2 * ("b" in text))
    return True


RULES = {
    "polite": ConstraintFile(~Keyword(["idiot"]) & Length(max=5, unit="words")),
    "schema": ConstraintFile(JSONSchema(SCHEMA, name="the schema")),
    "answer": ConstraintFile(Keyword("tea", on="answer")),
    "reasoning": ConstraintFile(Keyword("tea", on="reasoning")),
    "tokens": ConstraintFile(Length(max=5, unit="tokens")),
    "prompt": ConstraintFile(Keyword("tea", on="full")),
    "crashes": ConstraintFile(crashes_on_b),
    "hangs": ConstraintFile(hangs),
    "fields": parse(FIELDS),
}
POLICY = RequestPolicy(models=("checks",), named=RULES, limits=ServerLimits(checker_seconds=0.2))


def results(value, rule, **more):
    return check_texts({"input": value, "constraint": rule, **more}, POLICY)["results"]


def verdicts(value, rule, **more):
    return [result["accepted"] for result in results(value, rule, **more)]


def litellm(texts, rule="polite", **more):
    params = {"additional_provider_specific_params": {"constraint": rule}}
    return guard_for_litellm({"input_type": "response", "texts": texts, **params, **more}, POLICY)


def test_each_text_has_its_verdict_and_the_rules_that_reject_it():
    first, second, third = results(["a nice text", "an idiot", "you idiot, and so many more words"], "polite")
    assert first == {"accepted": True, "rejections": []}
    assert second["accepted"] is third["accepted"] is False
    assert [len(each["rejections"]) for each in (second, third)] == [1, 2]
    assert second["rejections"][0]["rule"] == (~Keyword(["idiot"])).title
    assert "'idiot'" in second["rejections"][0]["reason"]


def test_where_a_text_breaks_a_schema():
    ((rejection,),) = (each["rejections"] for each in results('{"items": [{"name": "a"}, {"name": 1}]}', "schema"))
    assert (rejection["rule"], rejection["path"]) == ("the schema", "$.items[1].name")


def test_texts_are_answers_and_messages_have_parts():
    message = {"role": "assistant", "content": "No.", "reasoning_content": "Is tea a drink?"}
    assert verdicts(["tea", message, "no"], "answer") == [True, False, False]
    assert verdicts(["tea", message, "no"], "reasoning") == [False, True, False]
    assert verdicts([{"content": ""}], "polite") == [False]  # no answer


def test_fields_are_filled():
    assert verdicts(["a dog", "a cat"], "fields", fields={"word": "dog"}) == [True, False]
    with pytest.raises(ErrorResponse, match=r"^fields: has no field 'word'"):
        verdicts("a dog", "fields")


def test_a_crash_is_an_error_in_one_answer():
    first, second, third = results(["a", "b secret", "c"], "crashes")
    assert (first["accepted"], second["accepted"], third["accepted"]) == (True, None, False)
    assert second["error"]["code"] == "check_failed"
    assert "secret" not in json.dumps(second)


def test_a_function_that_hangs_is_an_error_in_one_answer():
    began = time.monotonic()
    assert verdicts(["a", "b"], "hangs") == [True, None]
    assert time.monotonic() - began < 1.5


def test_texts_after_a_long_time_are_not_checked(monkeypatch):
    monkeypatch.setattr(checked_texts, "MOST_SECONDS", 0.3)
    assert verdicts(["b", "b", "b", "a"], "hangs") == [None] * 4
    *_, last = results(["b", "b", "b", "a"], "hangs")
    assert "it was not checked" in last["error"]["message"]


def test_many_slow_texts_end_in_time(monkeypatch):
    """None of them takes too long alone."""
    monkeypatch.setattr(checked_texts, "MOST_SECONDS", 0.3)
    rule = {"kind": "regex", "pattern": "(a|aa)+$"}
    began = time.thread_time()
    first, *_, last = results([f"{'a' * 24}b{i}" for i in range(100)], rule)
    assert time.thread_time() - began < 3
    assert first["accepted"] is False
    assert "it was not checked" in last["error"]["message"]


@pytest.mark.parametrize("rule", ["tokens", "prompt"])
def test_what_is_not_known_is_an_error_and_no_pass(rule):
    (result,) = results("some tea", rule)
    assert result["accepted"] is None
    assert "not known here" in result["error"]["message"]
    with pytest.raises(ErrorResponse, match="not known here"):
        litellm(["some tea"], rule)


@pytest.mark.parametrize(
    ("request_fields", "problem"),
    [
        ({"input": "a"}, r"^constraint: name a rule; known: polite, "),
        ({"input": "a", "constraint": "polit"}, r"^constraint: .*did you mean 'polite'"),
        ({"input": "a", "constraint": {"kind": "python", "function": "os:system"}}, r"cannot contain code"),
        ({"input": "a", "constraint": {"file": "/etc/passwd"}}, r"cannot name files"),
        ({"input": ["a", 3], "constraint": "polite"}, r"^input\.1: give a text or a message"),
        ({"input": {"contents": "a"}, "constraint": "polite"}, r"^input\.0\.contents"),
        ({"texts": ["a"], "constraint": "polite"}, r"^texts: unknown field"),
        ({"input": ["a"] * (checked_texts.MOST_TEXTS + 1), "constraint": "polite"}, r"^input: .*at most 1024"),
    ],
)
def test_what_is_refused(request_fields, problem):
    with pytest.raises(ErrorResponse, match=problem) as refused:
        check_texts(request_fields, POLICY)
    assert refused.value.status == 400


def test_rules_that_always_apply_need_no_name_and_cannot_be_replaced():
    policy = RequestPolicy(models=("checks",), named=RULES, always=(RULES["polite"],))
    assert check_texts({"input": "idiot"}, policy)["results"][0]["accepted"] is False
    request = {"input": "tea, idiot", "constraint": "answer"}
    assert check_texts(request, policy)["results"][0]["accepted"] is False


def test_litellm_blocks_and_passes():
    assert litellm(["a nice text", "tea"]) == {"action": "NONE"}
    blocked = litellm(["a nice text", "you idiot"])
    assert blocked == {"action": "BLOCKED", "blocked_reason": f"rejected by {(~Keyword(['idiot'])).title!r}"}
    where = litellm(['{"items": [{"name": 1}]}'], "schema")
    assert where["blocked_reason"] == "rejected by 'the schema' ($.items[0].name)"
    assert litellm([]) == litellm(None) == {"action": "NONE"}


def test_litellm_sends_calls_of_tools_beside_the_text():
    call = {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"to": "an idiot"}'}}
    assert litellm(["fine"], tool_calls=[call])["action"] == litellm([], tool_calls=[call])["action"] == "BLOCKED"
    assert litellm(["tea"], "answer", tool_calls=[call]) == {"action": "NONE"}


def test_a_call_without_arguments_is_checked():
    """Some servers send an empty string for the arguments of a tool without parameters."""
    call = {"type": "function", "function": {"name": "idiot", "arguments": ""}}
    assert litellm(["fine"], tool_calls=[call])["action"] == "BLOCKED"
    rule = {"kind": "keyword", "words": ["now"]}
    assert verdicts({"tool_calls": [{"function": {"name": "now", "arguments": " "}}]}, rule) == [True]


def test_litellm_gets_an_error_if_a_text_cannot_be_checked_and_none_is_rejected():
    with pytest.raises(ErrorResponse) as failed:
        litellm(["a", "b secret"], "crashes")
    assert (failed.value.status, "secret" in failed.value.message) == (422, False)
    assert litellm(["c", "b secret"], "crashes")["action"] == "BLOCKED"
    with pytest.raises(ErrorResponse, match=r"^additional_provider_specific_params\.constrain: unknown field"):
        guard_for_litellm({"texts": ["a"], "additional_provider_specific_params": {"constrain": "polite"}}, POLICY)


def answers(settings, *requests):
    """Return the replies of an application without a model to requests one after the other."""

    async def ask():
        transport = httpx.ASGITransport(create_app(None, settings, POLICY), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://checks") as http:
            return [await http.request(*request[:2], **request[2]) for request in requests]

    return asyncio.run(ask())


CHECK = ("POST", "/v1/check", {"json": {"input": ["tea", "idiot"], "constraint": "polite"}})


def test_a_server_without_a_model_checks_and_nothing_else():
    chat = ("POST", "/v1/chat/completions", {"json": {"model": "checks", "messages": []}})
    health: tuple[Any, ...] = ("GET", "/health", {})
    metrics: tuple[Any, ...] = ("GET", "/metrics", {})
    asked, generated, healthy, figures = answers(ServerSettings(check_only="rules"), CHECK, chat, health, metrics)
    assert [result["accepted"] for result in asked.json()["results"]] == [True, False]
    assert (generated.status_code, healthy.status_code) == (404, 200)
    assert 'guardwrap_requests_total{model="checks",status="200"} 1.0' in figures.text


def test_bodies_have_limits_and_keys_come_in_either_header(tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    settings = ServerSettings(keys=Keys(file=str(tmp_path / "keys")), limits=ServerLimits(body_bytes=200))
    long = ("POST", "/v1/check", {"json": {"input": "a" * 300}, "headers": {"x-api-key": "secret"}})
    keys = [{}, {"x-api-key": "wrong"}, {"x-api-key": "secret"}, {"authorization": "Bearer secret"}]
    keys.append({"authorization": "Basic secret"})
    replies = answers(settings, long, *((*CHECK[:2], {**CHECK[2], "headers": each}) for each in keys))
    assert [reply.status_code for reply in replies] == [413, 401, 401, 200, 200, 401]


def test_a_server_with_a_model_checks_too(http):
    reply = http.post("/v1/check", json={"input": ["abc", "bcd"], "constraint": "has-a"}).json()
    assert [result["accepted"] for result in reply["results"]] == [True, False]
    assert reply["results"][1]["rejections"][0]["rule"] == "has an a"


def test_the_command_loads_no_model(tmp_path, monkeypatch):
    (tmp_path / "polite.yaml").write_text("guardwrap: 1\nconstraint: {kind: keyword, words: tea}\n")
    served = []
    monkeypatch.setattr(serve_command, "load_generator", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr(lifecycle, "RequestLog", lambda: None)
    monkeypatch.setattr(lifecycle, "run_server", lambda app, listening, ready, log: served.append((app, listening)))
    for rules in (tmp_path, tmp_path / "polite.yaml"):
        assert CliRunner().invoke(app, ["serve", "--check-only", str(rules), "--port", "0"]).exit_code == 0
    for application, listening in served:
        listening.close()
        assert application.state.service.model is None
        assert list(application.state.service.policy.named) == ["polite"]
    assert len(served) == 2


def test_settings_name_either_rules_or_a_model(tmp_path):
    path = tmp_path / "serve.yaml"
    (tmp_path / "rules").mkdir()
    path.write_text("check_only: rules\n")
    assert read_server_settings(path).check_only == str(tmp_path / "rules")
    with pytest.raises(UsageError, match="check_only serves no model; leave out constraints"):
        read_server_settings(path, changes={"constraints": "rules", "model": "local"})
