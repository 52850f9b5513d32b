"""Parsed requests: every field is supported, or rejected with an error that names it."""

import dataclasses
import json
from typing import Any
from unittest.mock import patch

import openai
import pytest

from guardwrap import Budget, Keyword, Masked, Prompt, Regex, Twisted
from guardwrap.constraints.files import constraint_data
from guardwrap.constraints.files.constraint_data import client_kinds, kinds
from guardwrap.constraints.files.constraint_file import ConstraintFile, parse
from guardwrap.constraints.files.file_fields import MESSAGE
from guardwrap.proposals import Adapter
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.incoming_requests import parsed
from guardwrap.serve.parsed_request import ANYTHING, VALID, has_token_ids, parse_request, texts_of_ids
from guardwrap.serve.request_models import known_fields
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.server_settings import ServerLimits
from guardwrap.testing import llama_world

CODE = "guardwrap: 1\nconstraint: {kind: python, function: 'os.path:isabs'}\n"
ROW = 'guardwrap: 1\nfields: [word]\nconstraint: {kind: keyword, words: "{word}"}\n'
MENU = RequestPolicy(
    models=("tiny", "gpt-tiny"),
    named={
        "polite": ConstraintFile(Regex("please"), budget=Budget(max_attempts=7), sampler="imh"),
        "code": parse(CODE, allow_code=True),
        "row": parse(ROW, path="row.yaml"),
        "trained": ConstraintFile(Regex("t"), adapter=Adapter("/secret/folder")),
    },
    adapters={"dragon": Adapter("/secret/folder")},
    proposals={"careful": Prompt("Be careful. {prompt}")},
    classifiers=("mood",),
    limits=ServerLimits(
        n=4, max_new_tokens=300, attempts=500, seconds=20, constraint_characters=900, pattern_characters=90
    ),
)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}


def request_of(chat: bool = True, **fields: Any) -> Any:
    return parse_request({**(CHAT if chat else TEXT), **fields}, MENU, chat=chat)


def constraint_of(**fields: Any) -> Any:
    return request_of(**fields).options["constraints"].constraint


def refused(chat: bool = True, **fields: Any) -> ErrorResponse:
    with pytest.raises(ErrorResponse) as caught:
        request_of(chat, **fields)
    assert "\n" not in caught.value.message
    return caught.value


def test_what_is_left_out_is_the_models_own():
    options = request_of().options
    assert options.pop("constraints").constraint == ANYTHING
    nothing = dict.fromkeys(("sampler", "proposal", "adapter"))
    assert options == {
        "num_return_sequences": 1,
        "max_new_tokens": 300,
        "budget": Budget(max_attempts=500, max_seconds=20),
        **nothing,
    }


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"n": 3}, {"num_return_sequences": 3}),
        ({"seed": 5}, {"seed": 5}),
        ({"temperature": 0.5}, {"temperature": 0.5, "do_sample": True}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 3}, {"do_sample": False, "top_p": None, "top_k": None}),
        ({"top_p": 0.9}, {"top_p": 0.9}),
        ({"top_p": 0}, {"top_p": 1e-6}),
        ({"top_k": 20}, {"top_k": 20}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"max_tokens": 12}, {"max_new_tokens": 12}),
        ({"max_completion_tokens": 12}, {"max_new_tokens": 12}),
        ({"max_completion_tokens": 12, "max_tokens": 12}, {"max_new_tokens": 12}),
        ({"stop": "x"}, {"stop_strings": ["x"]}),
        ({"stop": ["x", "y", "x"]}, {"stop_strings": ["x", "y"]}),
        ({"stop": []}, {"stop_strings": None}),
        ({"guardwrap": {"proposal": "masked"}}, {"proposal": Masked()}),
        ({"guardwrap": {"proposal": "twisted"}}, {"proposal": Twisted()}),
        ({"guardwrap": {"proposal": {"twisted": {"strength": 0.5}}}}, {"proposal": Twisted(strength=0.5)}),
        ({"guardwrap": {"proposal": {"prompt": "a {prompt}"}}}, {"proposal": Prompt("a {prompt}"), "adapter": False}),
        ({"guardwrap": {"proposal": "careful"}}, {"proposal": Prompt("Be careful. {prompt}"), "adapter": False}),
        ({"guardwrap": {"proposal": False}}, {"proposal": False}),
        ({"guardwrap": {"adapter": "dragon"}}, {"adapter": Adapter("/secret/folder")}),
        ({"guardwrap": {"adapter": False}}, {"adapter": False}),
        ({"guardwrap": {"budget": {"max_attempts": 3}}}, {"budget": Budget(max_attempts=3, max_seconds=20)}),
        ({"guardwrap": {"budget": {"max_attempts": 10**9}}}, {"budget": Budget(max_attempts=500, max_seconds=20)}),
        ({"guardwrap": {"budget": {"max_attempts": None}}}, {"budget": Budget(max_attempts=500, max_seconds=20)}),
        ({"guardwrap": {"budget": {"max_seconds": 1e9}}}, {"budget": Budget(max_attempts=500, max_seconds=20)}),
        ({"guardwrap": {"constraint": "polite"}}, {"budget": Budget(max_attempts=7, max_seconds=20)}),
        ({"guardwrap": {"constraint": "trained"}}, {"adapter": Adapter("/secret/folder")}),
    ],
    ids=str,
)
def test_fields_that_are_heeded(fields, options):
    found = request_of(**fields).options
    assert {name: found.get(name) for name in options} == options


REPAIRING = dataclasses.replace(MENU, repair={"max_turns": 2, "message": MESSAGE})


def repair_turns(fields: dict[str, Any], policy: RequestPolicy = MENU, *, chat: bool = True) -> tuple[int, Any]:
    """Return the number of repair turns of a request, and its budget for each of them and the first answer."""
    body = {**(CHAT if chat else TEXT), **({"guardwrap": fields} if fields else {})}
    options = parse_request(body, policy, chat=chat).options
    repair = options["constraints"].repair
    return (0 if repair is None else repair["max_turns"]), options["budget"]


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("budget", [{}, {"max_attempts": 5, "max_seconds": 1}, {"max_attempts": None}])
def test_repair_turns_stay_within_the_limits_of_a_request(turns, budget):
    number, each = repair_turns({"repair": turns, "budget": budget})
    assert number == turns
    assert (turns + 1) * each.max_attempts <= MENU.limits.attempts
    assert (turns + 1) * each.max_seconds <= MENU.limits.seconds
    assert each.max_attempts == (budget.get("max_attempts") or 500 // (turns + 1))


def test_where_repair_turns_come_from():
    """The request, then its files, then the server; those of files and of the server are for chats only."""
    file = ConstraintFile(Regex("a"), repair={"max_turns": 1, "message": "no: {reasons}"})
    policy = dataclasses.replace(REPAIRING, named={**MENU.named, "repairing": file})
    assert repair_turns({})[0] == 0
    assert repair_turns({}, policy)[0] == 2
    assert repair_turns({"constraint": "repairing"}, policy)[0] == 1
    assert repair_turns({"constraint": "repairing", "repair": 3}, policy)[0] == 3
    assert repair_turns({"constraint": "repairing", "repair": 0}, policy)[0] == 0
    assert repair_turns({"constraint": "repairing"}, policy, chat=False)[0] == 0
    few = dataclasses.replace(policy, limits=ServerLimits(attempts=2))
    assert repair_turns({}, few) == (1, Budget(max_attempts=1, max_seconds=60))
    assert repair_turns({}, dataclasses.replace(policy, limits=ServerLimits(attempts=1)))[0] == 0
    body = {**CHAT, "guardwrap": {"repair": {"message": "no: {reasons}"}}}
    repair = parse_request(body, policy, chat=True).options["constraints"].repair
    assert repair == {"max_turns": 1, "message": "no: {reasons}"}


def test_a_server_can_allow_no_repair_turns():
    policy = dataclasses.replace(REPAIRING, limits=ServerLimits(repair_turns=0))
    assert repair_turns({}, policy)[0] == 2
    with pytest.raises(ErrorResponse, match="at most 0 turns"):
        repair_turns({"repair": 1}, policy)


def test_repair_turns_continue_a_chat():
    error = refused(chat=False, guardwrap={"repair": 1})
    assert (error.param, error.status) == ("guardwrap.repair", 400)
    assert "continues a chat, and this request has none" in error.message


def test_token_ids_stand_for_text_or_are_refused():
    tokenizer = llama_world(letters="ab").tokenizer
    ids = tokenizer("ab", add_special_tokens=False)["input_ids"]
    for prompt, texts in (([ids, ids[:1]], ["ab", "a"]), (ids, ["ab"])):
        assert has_token_ids({"prompt": prompt})
        assert texts_of_ids(prompt, tokenizer) == texts
    for text in ("ab", ["ab"], None, [True], [[1], "ab"]):
        assert not has_token_ids({"prompt": text})
    with patch.object(type(tokenizer), "decode", lambda *_, **__: "ba"), pytest.raises(ErrorResponse, match="send the"):
        texts_of_ids(ids, tokenizer)


def test_samplers():
    assert request_of(guardwrap={"sampler": "qrs"}).options["sampler"].name == "qrs"
    assert request_of(guardwrap={"sampler": {"imh": {"steps": 3}}}).options["sampler"].name == "imh"
    assert request_of(guardwrap={"constraint": "polite"}).options["constraints"].sampler == "imh"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}


def some_of(mode: str) -> Any:
    """Return the choice of some of the tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}


@pytest.mark.parametrize("choice", ["required", NAMED, some_of("required")], ids=str)
def test_what_requires_a_call_is_masked_unless_the_request_says_how_to_draw(choice):
    def drawn(**own):
        policy = dataclasses.replace(MENU, parses="tools")
        options = parse_request({**CHAT, "tools": [TOOL], "tool_choice": choice, "guardwrap": own}, policy, chat=True)
        return options.options["sampler"], options.options["proposal"]

    sampler, proposal = drawn()
    assert (sampler.name, proposal) == ("rejection", Masked(beyond_truncation=True))
    assert drawn(sampler="qrs")[1] is None
    assert drawn(proposal="careful")[1] == Prompt("Be careful. {prompt}")
    assert drawn(proposal={"masked": {}})[1] == Masked()
    assert drawn(constraint="trained")[1] is not VALID
    assert drawn(constraint="polite") == (None, None)  # this file names a sampler


@pytest.mark.parametrize("choice", ["auto", "none", some_of("auto")], ids=str)
def test_what_requires_no_call_is_the_models_own(choice):
    policy = dataclasses.replace(MENU, parses="tools")
    options = parse_request({**CHAT, "tools": [TOOL], "tool_choice": choice}, policy, chat=True).options
    assert (options["sampler"], options["proposal"]) == (None, None)


JSON: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
    {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
    {"structured_outputs": {"json": {"type": "object"}}},
    {"structured_outputs": {"json_object": True}},
    {"guided_json": {"type": "object"}},
]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("fields", JSON, ids=str)
def test_json_is_masked_unless_the_request_or_the_server_says_how_to_draw(fields, chat):
    def drawn(policy=MENU, **own):
        body = {**(CHAT if chat else TEXT), **fields, "guardwrap": own}
        options = parse_request(body, policy, chat=chat).options
        return options["sampler"], options["proposal"], options["adapter"]

    sampler, *others = drawn()
    assert (sampler.name, *others) == ("rejection", VALID, None)
    assert drawn(constraint={"kind": "regex", "pattern": "a"})[1] == VALID
    for name in ("rejection", "qrs", "imh"):
        sampler, *others = drawn(sampler=name)
        assert (sampler.name, *others) == (name, None, None)
    assert drawn(proposal=False) == (None, False, None)
    assert drawn(proposal="masked")[1] == Masked()
    assert drawn(adapter="dragon") == (None, None, MENU.adapters["dragon"])
    assert drawn(constraint="trained")[1] is None  # this file of the server names an adapter, and this one a sampler
    assert drawn(constraint="polite") == (None, None, None)
    assert drawn(dataclasses.replace(MENU, always=(MENU.named["polite"],))) == (None, None, None)
    assert drawn(dataclasses.replace(MENU, masks_json=False)) == (None, None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"regex": "a"}},
        {"guided_choice": ["a"]},
        {"guided_grammar": 'start: "a"'},
        {"guardwrap": {"constraint": {"kind": "json_schema", "schema": {"type": "object"}}}},
        {**JSON[0], "tools": [TOOL]},
    ],
    ids=str,
)
def test_what_asks_for_no_json_alone_is_the_models_own(fields):
    policy = dataclasses.replace(MENU, parses="tools")
    options = parse_request({**CHAT, **fields}, policy, chat=True).options
    assert (options["sampler"], options["proposal"]) == (None, None)


SCHEMA = {"type": "object", "properties": {"file": {"type": "string"}, "kind": {"const": "python"}}}
FULL = {"kind": "python", "file": "x"}


@pytest.mark.parametrize(
    ("fields", "accepts", "rejects"),
    [
        ({"response_format": {"type": "text"}}, "any", None),
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[]"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "{}", "[]"),
        ({"structured_outputs": {"json": SCHEMA}}, json.dumps(FULL), '{"file": 1}'),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "{}", "[]"),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, "[1, 2]", "[1,\n2]"),
        ({"structured_outputs": {"regex": "a|b+"}}, "bb", "bba"),
        ({"structured_outputs": {"choice": ["a.c", "d"]}}, "a.c", "abc"),
        ({"structured_outputs": {"choice": ["a", "ab"]}}, "ab", "b"),
        ({"structured_outputs": {"grammar": 'start: "a"+'}}, "aa", "ab"),
        ({"structured_outputs": {"json_object": True, "regex": None}}, "{}", "1"),
        ({"guided_json": {"type": "integer"}}, "1", "1.5"),
        ({"guided_regex": "a"}, "a", "aa"),
        ({"guided_choice": ["yes", "no"]}, "no", "nope"),
        ({"guided_grammar": 'start: "a" | "b"'}, "b", "ab"),
        ({"guardwrap": {"constraint": {"kind": "regex", "pattern": "a"}}}, "bab", "b"),
        ({"guardwrap": {"constraint": "catalogue:no-urls"}}, "a", "https://example.com"),
        ({"guardwrap": {"constraint": {"kind": "not", "of": "catalogue:no-urls"}}}, "https://example.com", "a"),
        ({"guardwrap": {"constraint": "polite"}}, "please", "a"),
        ({"guardwrap": {"constraints": ["polite", {"kind": "length", "max": 9}]}}, "please", "please, please"),
        ({"guardwrap": {"constraint": {"kind": "json_schema", "schema": SCHEMA}}}, json.dumps(FULL), "1"),
        ({"guided_regex": "a.", "guardwrap": {"constraint": {"kind": "regex", "pattern": "b"}}}, "ab", "ac"),
        ({"stop": "b", "guided_regex": "a"}, "ab", "b"),
    ],
    ids=str,
)
def test_constraints(fields, accepts, rejects):
    found = constraint_of(**fields)
    assert found.accepts(accepts)
    assert rejects is None or not found.accepts(rejects)


def test_what_must_always_hold_is_joined_to_every_request():
    always = RequestPolicy(models=("tiny",), always=(ConstraintFile(~Regex("b")),))
    for fields in ({}, {"guided_regex": "a|b"}, {"stop": "x"}):
        found = parse_request({**CHAT, **fields}, always, chat=True).options["constraints"].constraint
        assert found.accepts("a")
        assert not found.accepts("b")


UNSUPPORTED = {
    "frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.1, "length_penalty": 2,
    "logit_bias": {"50": 10}, "min_p": 0.1, "min_tokens": 3, "bad_words": ["a"], "allowed_token_ids": [1],
    "stop_token_ids": [1], "ignore_eos": True, "include_stop_str_in_output": True, "use_beam_search": True,
    "best_of": 2, "logprobs": True, "top_logprobs": 3, "prompt_logprobs": 1, "functions": [{}],
    "function_call": {"name": "f"}, "modalities": ["audio"], "audio": {}, "web_search_options": {},
    "verbosity": "low", "priority": 1, "moderation": {"model": "x"}, "echo": True, "suffix": "x",
    "add_generation_prompt": False, "continue_final_message": True, "chat_template": "x",
    "documents": [{}], "skip_special_tokens": False,
    "spaces_between_special_tokens": False, "truncate_prompt_tokens": 3, "return_token_ids": True,
    "return_tokens_as_token_ids": True, "guided_json_object": True, "guided_decoding_backend": "outlines",
    "guided_whitespace_pattern": " ", "structural_tag": "x",
}  # fmt: skip
HEEDED = {
    "model", "messages", "prompt", "n", "seed", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens",
    "stop", "stream", "stream_options", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "guardwrap", "tools", "tool_choice", "parallel_tool_calls",
    "chat_template_kwargs", "reasoning_effort",
}  # fmt: skip
LABELS = {
    "user": "me", "metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "x", "request_id": "x",
    "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}, "store": True, "service_tier": "priority",
    "prediction": {"type": "content", "content": "x"},
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_heeded_is_refused_by_name(name):
    for chat in (True, False):
        found = refused(chat, **{name: UNSUPPORTED[name]})
        assert (found.status, found.param, found.code) == (400, name, "unsupported_field")
        assert found.message.startswith(f"{name}: is not supported: ")
        assert request_of(chat, **{name: None})


@pytest.mark.parametrize("chat", [True, False])
def test_every_field_of_openais_client_is_known(chat):
    params = openai.types.chat.completion_create_params if chat else openai.types.completion_create_params
    fields = {*params.CompletionCreateParamsBase.__annotations__, "stream"}
    assert fields - {*known_fields(chat=chat)} == set()


def test_a_larger_length_is_lowered_where_the_server_clamps():
    clamping = dataclasses.replace(MENU, limits=MENU.limits.model_copy(update={"clamp": True}))
    most = MENU.limits.max_new_tokens
    for asked, granted in ((most + 1, most), (10**9, most), (most - 1, most - 1), (None, most)):
        for name in ("max_tokens", "max_completion_tokens"):
            fields = {**CHAT, name: asked}
            assert parse_request(fields, clamping, chat=True).options["max_new_tokens"] == granted
    assert refused(max_tokens=most + 1).code == "above_the_limit"


def test_every_known_field_is_heeded_or_refused_or_a_label():
    known = {*known_fields(chat=True), *known_fields(chat=False)}
    assert known == {*HEEDED, *UNSUPPORTED, *LABELS}


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "logprobs": False},
        {"logit_bias": {}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "function_call": "none", "top_logprobs": 0},
        {"modalities": ["text"], "store": False, "service_tier": "auto", "best_of": 1, "echo": False},
        *({"service_tier": tier} for tier in ("default", "flex", "scale", "fast")),
        LABELS,
    ],
)  # fmt: skip
def test_neutral_values_and_labels_change_nothing(fields):
    assert request_of(**fields) == request_of()


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"x\ny": 1}, "x\ny", "unknown field"),
        ({"prompt": "x"}, "prompt", "/v1/completions"),
        ({"temperature": -1}, "temperature", "0, or a number"),
        ({"temperature": 1e-300}, "temperature", "0, or a number"),
        ({"temperature": True}, "temperature", "number"),
        ({"temperature": "1"}, "temperature", "number"),
        ({"top_p": -1}, "top_p", "number"),
        ({"top_p": 2}, "top_p", "number"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"seed": 2**64}, "seed", "at most"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"n": 0}, "n", "at least 1"),
        ({"n": 5}, "n", "at most 4"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 301}, "max_tokens", "at most 300"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "give one of them"),
        ({"stop": ""}, "stop", "non-empty"),
        ({"stop": [1]}, "stop", "string"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"stop": "x" * 65}, "stop", "64 characters"),
        ({"stream": 1}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "known: include_usage"),
        ({"response_format": "json"}, "response_format", "a mapping of fields"),
        ({"response_format": {"type": "json"}}, "response_format.type", "is not one of text, json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type", "json_object"),
        ({"structured_outputs": {}}, "structured_outputs", "give one of"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "give one of"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "did you mean 'json'"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1 item"),
        ({"structured_outputs": {"json": {"type": "objekt"}}}, "structured_outputs.json", "objekt"),
        ({"structured_outputs": {"grammar": "root ::= \"a\""}}, "structured_outputs.grammar", "GBNF"),
        ({"guided_regex": "("}, "guided_regex", "missing )"),
        ({"guided_regex": "a" * 91}, "guided_regex", "at most 90"),
        ({"guided_choice": ["a" * 91]}, "guided_choice", "at most 90"),
        ({"guided_json": {"description": "x" * 900}}, "guided_json", "at most 900"),
        ({"guided_json": {"$ref": "file:///etc/passwd"}}, "guided_json", "file:///etc/passwd"),
        ({"guardwrap": []}, "guardwrap", "a mapping of fields"),
        ({"guardwrap": {"constrain": {}}}, "guardwrap.constrain", "did you mean 'constraint'"),
        ({"guardwrap": {"constraint": "polit"}}, "guardwrap.constraint", "did you mean 'polite'"),
        ({"guardwrap": {"constraint": "no-urls"}}, "guardwrap.constraint", "catalogue:no-urls"),
        ({"guardwrap": {"constraint": "rules/polite.yaml"}}, "guardwrap.constraint", "this server has no constraint"),
        ({"guardwrap": {"constraint": "/etc/passwd"}}, "guardwrap.constraint", "this server has no constraint"),
        ({"guardwrap": {"constraint": "catalogue:../../x"}}, "guardwrap.constraint", "this server has no constraint"),
        ({"guardwrap": {"constraint": {"file": "/etc/passwd"}}}, "guardwrap.constraint.file", "name files"),
        ({"guardwrap": {"constraint": {"kind": "json_schema", "file": "x"}}}, "guardwrap.constraint.file", "files"),
        ({"guardwrap": {"constraint": {"kind": "grammar", "file": "x"}}}, "guardwrap.constraint.file", "name files"),
        ({"guardwrap": {"constraint": {"kind": "not", "of": {"file": "x"}}}}, "guardwrap.constraint.of.file", "files"),
        ({"guardwrap": {"constraint": {"kind": "not", "of": "polite"}}}, "guardwrap.constraint.of", "not inside"),
        (
            {"guardwrap": {"constraint": {"kind": "all", "of": [{"kind": "any", "of": [{"file": "x"}]}]}}},
            "guardwrap.constraint.of.0.of.0.file",
            "cannot name files",
        ),
        ({"guardwrap": {"constraint": {"kind": "python", "function": "os:system"}}}, "guardwrap.constraint", "code"),
        (
            {"guardwrap": {"constraint": {"kind": "not", "of": {"kind": "python", "function": "os:system"}}}},
            "guardwrap.constraint.of",
            "cannot contain code",
        ),
        ({"guardwrap": {"constraint": {"kind": "regx"}}}, "guardwrap.constraint.kind", "did you mean 'regex'"),
        ({"guardwrap": {"constraint": {"kind": "regex"}}}, "guardwrap.constraint", "pattern"),
        ({"guardwrap": {"constraint": {"kind": "regex", "pattern": "a", "flag": 1}}}, "guardwrap.constraint.flag", ""),
        (
            {"guardwrap": {"constraint": {"kind": "classifier", "model": "/etc", "label": "x", "threshold": 0.5}}},
            "guardwrap.constraint.model",
            "known: mood",
        ),
        (
            {"guardwrap": {"constraint": {"kind": "entails", "premise": "a", "model": "/etc"}}},
            "guardwrap.constraint.model",
            "known: mood",
        ),
        (
            {"guardwrap": {"constraint": {"kind": "similar", "texts": "a", "model": "/etc", "threshold": 0.5}}},
            "guardwrap.constraint.model",
            "known: mood",
        ),
        (
            {"guardwrap": {"constraint": {"kind": "judge", "question": "{text}", "model": "x@http://evil.example/v1"}}},
            "guardwrap.constraint.model",
            "no classifier",
        ),
        (
            {"guardwrap": {"constraint": {"kind": "judge", "question": "{text}", "model": {"base_url": "http://e"}}}},
            "guardwrap.constraint.model",
            "no classifier",
        ),
        ({"guardwrap": {"constraint": "catalogue:positive-ending"}}, "guardwrap.constraint.model", "no classifier"),
        ({"guardwrap": {"constraints": []}}, "guardwrap.constraints", "at least one"),
        ({"guardwrap": {"constraint": {}, "constraints": []}}, "guardwrap.constraints", "not both"),
        ({"guardwrap": {"constraint": 5}}, "guardwrap.constraint", "give an object"),
        ({"guardwrap": {"sampler": "qrss"}}, "guardwrap.sampler", "did you mean 'qrs'"),
        ({"guardwrap": {"sampler": {"imh": {"step": 1}}}}, "guardwrap.sampler.imh.step", "steps"),
        ({"guardwrap": {"sampler": {"imh": {"chains": 10**9}}}}, "guardwrap.sampler", "up to 10000"),
        ({"guardwrap": {"proposal": "/models/other"}}, "guardwrap.proposal", "no proposal"),
        ({"guardwrap": {"proposal": {"prompt": "no place"}}}, "guardwrap.proposal.prompt", "{prompt}"),
        ({"guardwrap": {"proposal": {"model": "gpt2"}}}, "guardwrap.proposal.model", "unknown field"),
        (
            {"guardwrap": {"proposal": {"twisted": {"attempts": 10**9}}}},
            "guardwrap.proposal.twisted.attempts",
            "at most 768 attempts",
        ),
        (
            {"guardwrap": {"proposal": {"twisted": {"learned": "/etc/hosts"}}}},
            "guardwrap.proposal.twisted.learned",
            "a request cannot name a file of the server",
        ),
        ({"guardwrap": {"repair": 4}}, "guardwrap.repair", "at most 3 turns"),
        ({"guardwrap": {"repair": True}}, "guardwrap.repair", "must be a whole number"),
        ({"guardwrap": {"repair": -1}}, "guardwrap.repair", "must be at least 1"),
        ({"guardwrap": {"repair": {"turns": 1}}}, "guardwrap.repair.turns", "unknown field"),
        ({"guardwrap": {"repair": {"message": "no"}}}, "guardwrap.repair.message", "needs {reasons}"),
        ({"guardwrap": {"repair": {"message": "{reasons}" * 2}}}, "guardwrap.repair.message", "more than once"),
        ({"guardwrap": {"repair": {"message": "{reasons}" + "a" * 900}}}, "guardwrap.repair", "at most 900"),
        ({"guardwrap": {"adapter": "/etc"}}, "guardwrap.adapter", "known: dragon"),
        ({"guardwrap": {"adapter": {"source": "/etc"}}}, "guardwrap.adapter", "no adapter"),
        ({"guardwrap": {"adapter": "dragon", "proposal": "careful"}}, "guardwrap", "not both"),
        ({"guardwrap": {"budget": {"max_attempt": 1}}}, "guardwrap.budget.max_attempt", "max_attempts"),
        ({"guardwrap": {"budget": {"max_attempts": 0}}}, "guardwrap.budget.max_attempts", "at least 1"),
        (
            {"guided_regex": "a", "guardwrap": {"constraint": {"kind": "length", "min": 3, "max": 2}}},
            "guardwrap.constraint",
            "exceeds",
        ),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"n": 2, "temperature": 0}, "n", "gives one text"),
        ({"messages": None}, None, "needs a field 'messages'"),
        ({"messages": "hi"}, "messages", "must be a list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "is not one of"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "give a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages.0.content.0",
            "take images",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages.0.name", "must be a string"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages.0.contents", "did you mean 'content'"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(fields, param, part):
    found = refused(**fields)
    assert (found.status, found.param) == (400, param)
    assert part in found.message
    error = found.body()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert error["type"] == "invalid_request_error"


def test_an_unknown_model():
    found = refused(model="gpt-5")
    assert (found.status, found.code, found.param) == (404, "model_not_found", "model")
    assert request_of(model="gpt-tiny").model == "gpt-tiny"


def test_prompts():
    assert request_of(chat=False).prompts == ["hi"]
    assert request_of(chat=False, prompt=["a", "b"], n=2).prompts == ["a", "b"]
    assert refused(chat=False, prompt=["a", "b"], n=3).code == "above_the_limit"
    for wrong in ("", [], [1, 2], [[1]], ["a", ""], 5):
        assert refused(chat=False, prompt=wrong).param == "prompt"
    assert "needs a field 'prompt'" in refused(chat=False, prompt=None).message
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    several = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    expected = [{"role": "system", "content": "x"}, {"role": "user", "content": "a\nb"}]
    assert request_of(messages=several).prompts == [expected]


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "not JSON"),
        (b"\xff{}", "not JSON"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"1" * 5000, "not JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deep"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "too deep"),
    ],
)
def test_bodies_that_cannot_be_read(raw, part):
    with pytest.raises(ErrorResponse, match=part) as caught:
        parsed(raw)
    assert caught.value.status == 400


def test_negative_control_without_the_look_at_it_a_request_would_read_the_disk(monkeypatch, tmp_path):
    """Without the check for files in requests, the rejected request would read the file."""
    (tmp_path / "secret.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: secret}\n")
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"guardwrap": {"constraint": {"kind": "not", "of": {"file": "secret.yaml"}}}}
    assert refused(**asked).param == "guardwrap.constraint.of.file"
    each: dict[str, Any] = {"guardwrap": {"constraint": {"kind": "split", "by": "*", "each": {"file": "secret.yaml"}}}}
    assert refused(**each).param == "guardwrap.constraint.each.file"
    monkeypatch.setattr("guardwrap.serve.request_policy._require_own", lambda *_: None)
    assert not constraint_of(**asked).accepts("secret")


def test_fields_fill_the_servers_files():
    fields = {"word": "{word} .*"}
    assert constraint_of(guardwrap={"constraint": "row", "fields": fields}) == Keyword("{word} .*")
    both = constraint_of(guardwrap={"constraints": ["row", "polite"], "fields": {"word": "tea"}})
    assert both == Keyword("tea") & Regex("please")
    for own, says in [
        ({"constraint": "row"}, "has no field 'word', which row.yaml requires"),
        ({"constraint": "row", "fields": {"word": "a", "x": 1}}, "unknown field 'x'"),
        ({"constraint": "polite", "fields": {"word": "a"}}, "the constraints of this request have none"),
        ({"constraint": "row", "fields": ["a"]}, "a mapping of fields"),
        ({"constraint": "row", "fields": {"word": {"kind": "regex"}}}, "'word' must be a text"),
        ({"constraint": "row", "fields": {"word": "a" * 2000}}, "at most 900"),
        ({"constraint": {"kind": "keyword", "words": "{word}"}, "fields": {"word": "a"}}, "have none"),
    ]:
        assert says in refused(guardwrap=own).message


class Elsewhere(Regex):
    """A kind of another package."""


@pytest.mark.parametrize("kind", ["python", "plugged"])
def test_kinds_that_run_code_or_are_of_other_packages_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_data, "kinds", lambda: {**kinds(), "plugged": Elsewhere})
    assert client_kinds() == sorted(kinds().keys() - {"python"})
    error = refused(guardwrap={"constraint": {"kind": kind, "pattern": "a", "function": "os:system"}})
    assert error.status == 400
    assert kind == "python" or "unknown kind 'plugged'" in error.message
    monkeypatch.setattr(Elsewhere, "__module__", "guardwrap.constraints.kinds.text")  # negative control
    assert "plugged" in client_kinds()


def test_a_kind_says_itself_whether_clients_may_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"constraint": {"kind": "regex", "pattern": "a"}}
    request_of(guardwrap=rule)
    monkeypatch.setattr(Regex, "open_to_clients", classmethod(lambda cls: False))
    assert "unknown kind 'regex'" in refused(guardwrap=rule).message
