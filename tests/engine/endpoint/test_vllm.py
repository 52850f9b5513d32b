"""A real vLLM with the embedded model: its texts, weights, aborts, masks and adapters. `make test-vllm` runs these."""

import os
import time
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper
from vllm_server import ADAPTER, NAME, adapted, figures, in_process, serving

from guardwrap import Budget, Endpoint, Grammar, GuardedGenerator, JSONSchema, Masked, Prompt, Regex, ToolCalls
from guardwrap.errors import EndpointError
from guardwrap.testing import World, goodness_of_fit

GIVEN = os.environ.get("GUARDWRAP_VLLM", "")
"""vLLM's command; the address of a server that ``benchmarks/vllm_server.py`` has started; or "LLM" for vLLM in this
process."""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not GIVEN, reason="needs GUARDWRAP_VLLM, the command of a vLLM: make test-vllm"),
]

CHAT = [{"role": "user", "content": "Describe a person as JSON, with name and age."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TELL = Prompt("Tell me more. {prompt}")


@pytest.fixture(scope="module")
def vllm():
    if GIVEN == "LLM":
        with in_process() as made:
            yield made
    elif GIVEN.startswith("http"):
        yield Endpoint(GIVEN, model=NAME), ADAPTER
    else:
        with serving(GIVEN, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as (url, _):
            yield Endpoint(url, model=NAME), ADAPTER


@pytest.fixture
def at(vllm):
    """Return what is wrapped: an ``Endpoint`` or an ``LLM``."""
    return vllm[0]


@pytest.fixture
def adapter(vllm):
    return vllm[1]


@pytest.fixture
def served(at):
    if not isinstance(at, Endpoint):
        pytest.skip("is about a server")
    return at


@pytest.fixture(scope="module")
def world(local):
    """Return texts of two tokens, each among the eight likeliest."""
    model, tokenizer = local
    return World(model, tokenizer, "Tea is", 2, temperature=1.0, top_k=8)


def gold(world: World, rule: Any) -> dict[Any, float]:
    """Return g of each pair of a text and whether it ended by itself."""
    found: dict[Any, float] = defaultdict(float)
    for ids, p in world.gold(rule).items():
        draw = world.draw(ids)
        found[draw.text, draw.finished] += p
    return found


def test_texts_follow_the_law_in_process(at, world):
    """Negative control: the same texts do not have the distribution of another temperature."""
    rule = ~Regex("o")
    guarded = GuardedGenerator(at, rule, budget=Budget(max_attempts=None), seed=1)
    (outcome,) = guarded.run("Tea is", num_return_sequences=5000, temperature=1.0, top_k=8, max_new_tokens=2)
    assert outcome.report.drawn_from == "exactly your model's own distribution, given the constraint (g)"
    assert outcome.report.acceptance
    assert 0.05 < outcome.report.acceptance.value < 0.95
    draws = [(draw.text, draw.finished) for draw in outcome.draws]
    assert goodness_of_fit(draws, gold(world, rule)) > 1e-3
    assert goodness_of_fit(draws, gold(replace(world, temperature=1.2), rule)) < 1e-9


@torch.no_grad()
def log_probability(model, prompt, ids, law):
    """Return log a(y) under the settings that a user passes, by the processors of transformers."""
    scores = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double() / law["temperature"]
    scores = TopKLogitsWarper(law["top_k"])(None, scores) if law["top_k"] else scores
    scores = TopPLogitsWarper(law["top_p"])(None, scores) if law["top_p"] < 1 else scores
    return float(scores.log_softmax(-1)[range(len(ids)), list(ids)].sum())


WHOLE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
USUAL = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}


def ids_of(tokenizer, prompt):
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]


@pytest.mark.parametrize("prompt", ["Tea is", CHAT], ids=["string", "chat"])
@pytest.mark.parametrize("drawn_from", ["prompt", "adapter"])
@pytest.mark.parametrize("law", [WHOLE, USUAL], ids=["whole", "truncated"])
def test_weights_are_those_in_process(at, adapter, local, prompt, drawn_from, law):
    model, tokenizer = local
    other = {"proposal": TELL} if drawn_from == "prompt" else {"adapter": adapter}
    guarded = GuardedGenerator(at, Regex(""), sampler="qrs", seed=2, **other)
    ((*attempts,),) = guarded.attempts([prompt], 12, max_new_tokens=16, **law)
    shown = TELL.apply(prompt) if drawn_from == "prompt" else prompt
    drawing = model if drawn_from == "prompt" else adapted(model)
    for attempt in attempts:
        ids = attempt.draw.token_ids
        assert (ids[-1] == tokenizer.eos_token_id) is attempt.draw.finished
        a = log_probability(model, ids_of(tokenizer, prompt), ids, law)
        drawn = log_probability(drawing, ids_of(tokenizer, shown), ids, law)
        assert attempt.draw.log_proposal == (pytest.approx(drawn, abs=1e-3) if law is WHOLE else None)
        assert attempt.log_weight == pytest.approx(a - drawn, abs=1e-3)
    assert max(abs(attempt.log_weight or 0.0) for attempt in attempts) > 0.1  # so the comparison is not trivial


def test_reports_of_weighed_texts(at, adapter):
    guarded = GuardedGenerator(at, ~Regex("o"), sampler="qrs", adapter=adapter, seed=3)
    (outcome,) = guarded.run("Tea is", num_return_sequences=3, temperature=1.0, max_new_tokens=5)
    assert len(outcome.texts) == 3
    assert "g" in outcome.report.drawn_from
    assert any("weights are the server's log-probabilities" in note for note in outcome.report.notes)


def test_aborted_requests_end_on_the_server(at):
    """By vLLM's metrics, nothing runs any more, and hardly a token was computed for texts that were not needed."""
    before = figures(at)
    guarded = GuardedGenerator(at, Regex("zq", match="fullmatch"), budget=Budget(max_attempts=24), seed=4)
    law: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "max_new_tokens": 900}
    (outcome,) = guarded.run("Once upon a time", **law)
    assert outcome.report.usage.attempts == 24
    for _ in range(200):
        after = figures(at)
        if not after["vllm:num_requests_running"] and not after.get("vllm:num_requests_waiting"):
            break
        time.sleep(0.1)
    assert after["vllm:num_requests_running"] == 0
    computed = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert computed < 32 * 100  # of 32 * 900 if no stream were closed


def test_masks_of_the_server_are_a_proposal(at):
    """Negative control: without the mask hardly a text satisfies the constraint."""
    rule = JSONSchema(SCHEMA, whitespace="compact")
    law: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 60}
    guarded = GuardedGenerator(at, rule, budget=Budget(max_attempts=200), seed=5)
    (masked,) = guarded.run([CHAT], num_return_sequences=16, proposal=Masked(), **law)
    assert masked.report.drawn_from.startswith(
        "not your model's own distribution: tokens were masked by the server for JSONSchema"
    )
    assert len(masked.texts) == 16
    assert masked.report.acceptance
    assert masked.report.acceptance.value > 0.25
    ((*plain,),) = guarded.attempts([CHAT], 32, **law)
    assert sum(attempt.satisfied for attempt in plain) < 8


@pytest.mark.parametrize(
    "rule",
    [
        Regex(r"[A-Z][a-z]{2,6} tea\.", match="fullmatch"),
        Grammar('start: N ("+" N)* "."\nN: /[0-9]{1,3}/'),
        JSONSchema({"enum": ["yes", "no"]}),
    ],
    ids=["regex", "grammar", "enum"],
)
def test_each_kind_of_mask(at, rule):
    guarded = GuardedGenerator(at, rule & ~Regex("7"), proposal=Masked(), budget=Budget(max_attempts=400), seed=6)
    (outcome,) = guarded.run("Answer:", num_return_sequences=8, temperature=1.0, max_new_tokens=24)
    assert len(outcome.texts) == 8
    assert outcome.report.acceptance
    assert outcome.report.acceptance.value > 0.2


def test_an_adapter_by_its_name(served):
    guarded = GuardedGenerator(served, ~Regex("o"), adapter=ADAPTER, seed=7)
    (outcome,) = guarded.run("Tea is", temperature=1.0, max_new_tokens=4)
    assert (
        outcome.report.drawn_from
        == f"not your model's own distribution: attempts came from the server's adapter {ADAPTER!r} (g')"
    )
    with pytest.raises(EndpointError, match=rf"has no model 'smal' \(did you mean {ADAPTER!r}\?\)"):
        guarded.run("Tea is", adapter="smal")


@pytest.fixture(scope="module")
def parsing():
    """Return a server that sends reasoning separately. vLLM then reads calls only after reasoning."""
    if GIVEN == "LLM" or GIVEN.startswith("http"):
        pytest.skip("needs a server with other options")
    with serving(GIVEN, "--reasoning-parser", "granite") as (url, _):
        yield Endpoint(url, model=NAME)


TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"name": "add_one", "parameters": TOOL}, {"name": "double", "parameters": TOOL}]


def shots(*turns: tuple[str, str], ask: str) -> list[dict[str, str]]:
    """Return a chat whose turns show the embedded model a syntax, which it then copies."""
    roles = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return [*roles, {"role": "user", "content": ask}]


CALL = '<tool_call>\n{{"name": "add_one", "arguments": {{"a": {}}}}}\n</tool_call>'
CALLING = shots(*((f"Add one to {n}.", CALL.format(n)) for n in (3, 8, 5)), ask="Add one to any number.")
THOUGHT = "Here is my thought process: {} Here is my response: {}"
SUMS = (("2 + 2", "Two and two make four.", 4), ("1 + 1", "One and one make two.", 2))
THINKING = shots(*((asked, THOUGHT.format(*said)) for asked, *said in SUMS), ask="1 + 2")


def test_calls_of_the_servers_parser_are_judged_and_returned(served):
    """Negative control: without the rule, some messages have no call of the tool, or another argument."""
    rule = ToolCalls(TOOLS[:1], choice="required") & ~Regex('"a": 5\\b', on="tool_calls")
    law: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 48, "num_return_sequences": 12}
    guarded = GuardedGenerator(served, rule, budget=Budget(max_attempts=600), seed=6)
    (outcome,) = guarded.run([CALLING], tools=ToolCalls(TOOLS).definitions, **law)
    assert len(outcome.texts) == 12
    calls = [call["function"] for calls in outcome.tool_calls for call in calls]
    assert {call["name"] for call in calls} == {"add_one"}
    assert all(isinstance(call["arguments"]["a"], int) and call["arguments"]["a"] != 5 for call in calls)
    assert outcome.report.drawn_from.startswith("exactly")
    free = GuardedGenerator(served, Regex(""), seed=6)
    (loose,) = free.run([CALLING], parse_messages=True, tools=ToolCalls(TOOLS).definitions, **law)
    loose_calls = [call["function"]["arguments"] for calls in loose.tool_calls for call in calls]
    assert any(arguments == {"a": 5} for arguments in loose_calls)


def test_reasoning_of_the_servers_parser_is_judged_and_returned(parsing):
    """Negative control: the model thinks of the word that the rule bans."""
    law: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40, "num_return_sequences": 12}
    rule = ~Regex("(?i)make three", on="reasoning") & Regex("^[0-9]+$", on="answer")
    guarded = GuardedGenerator(parsing, rule, budget=Budget(max_attempts=600), seed=7)
    (outcome,) = guarded.run([THINKING], **law)
    assert len(outcome.texts) == 12
    for message in outcome.messages:
        assert message is not None
        assert message["content"].strip().isdigit()
        assert "make three" not in message["reasoning_content"]
    (loose,) = guarded.run([THINKING], constraints=Regex(""), parse_messages=True, **law)
    assert any("make three" in message.get("reasoning_content", "") for message in loose.messages if message)
