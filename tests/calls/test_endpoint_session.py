"""A wrapper around an endpoint works like one around a pipeline; what a server cannot do raises UsageError."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from guardwrap import Adapter, Budget, Endpoint, Fallback, GuardedGenerator, Length, Masked, Prompt, Regex, Twisted
from guardwrap.errors import BudgetExhausted, Deterministic, PromptError, UsageError
from guardwrap.testing import table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world

WORLD = table_world(3, letters="ab", max_new_tokens=5)
RULE = Regex(r"\Aa")
LAW: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 5}
CHAT = [{"role": "user", "content": "a"}]
NOWHERE = Endpoint("http://127.0.0.1:9/v1", model="m")
WEIGHED = {"proposal": Prompt("x {prompt}"), "sampler": "qrs"}
MASKED, WORD = Masked(), Regex("ab+", match="fullmatch")


@pytest.fixture(scope="module")
def server():
    with Server(of_world(WORLD)).running() as running:
        yield running


@pytest.fixture
def guarded(server):
    return GuardedGenerator(endpoint(server), RULE, seed=3)


@pytest.mark.slow
def test_calls_give_the_pipelines_own_records(guarded):
    (record,) = guarded("a", **LAW)
    assert record["generated_text"].startswith("aa")
    two = guarded(["a", "b"], num_return_sequences=2, return_full_text=False, **LAW)
    assert [[sorted(each) for each in texts] for texts in two] == [[["generated_text"]] * 2] * 2
    assert all(each["generated_text"].startswith("a") for texts in two for each in texts)
    (record,) = guarded(CHAT, **LAW)
    assert record["generated_text"][:1] == CHAT
    assert record["generated_text"][1]["role"] == "assistant"
    lazy = guarded((prompt for prompt in ["a", "b"]), **LAW)
    assert [len(records) for records in lazy] == [1, 1]


@pytest.mark.slow
def test_all_ways_to_call_give_the_same_texts(guarded):
    prompts = ["a", "b", "ab"]
    texts = [outcome.texts for outcome in guarded.run(prompts, seed=7, **LAW)]

    async def each():
        return [outcome.texts async for outcome in guarded.astream(prompts, seed=7, **LAW)]

    assert [outcome.texts for outcome in guarded.stream(iter(prompts), seed=7, **LAW)] == texts
    assert [outcome.texts for outcome in asyncio.run(guarded.arun(prompts, seed=7, **LAW))] == texts
    assert asyncio.run(each()) == texts
    assert [outcome.texts for outcome in guarded.run(prompts, seed=7, batch_size=1, **LAW)] == texts


def test_callers_share_a_batch(guarded):
    async def all_of_them():
        return await asyncio.gather(*(guarded.arun("a", seed=i, **LAW) for i in range(8)))

    alone = [guarded.run("a", seed=i, **LAW)[0].texts for i in range(8)]
    assert [outcomes[0].texts for outcomes in asyncio.run(all_of_them())] == alone


def test_attempts_and_plan(guarded):
    ((*attempts,),) = guarded.attempts("a", 40, **LAW)
    assert len(attempts) == 40
    assert {attempt.satisfied for attempt in attempts} == {True, False}
    assert {attempt.log_weight for attempt in attempts if attempt.satisfied} == {0.0}  # a' is a
    plan = guarded.plan("a", pilot=40, **LAW)
    assert plan.forecasts[0].pilot == 40
    assert 0 < plan.forecasts[0].acceptance.value < 1


def test_samplers_that_weigh_take_texts_of_a_itself(guarded):
    assert guarded.run("a", sampler="qrs", **LAW)[0].ok


def test_reports_say_what_a_is(server, guarded):
    (outcome,) = guarded.run("a", top_k=2, **LAW)
    report = outcome.report
    assert (report.drawn_from, report.mode) == (
        "exactly your model's own distribution, given the constraint (g)",
        "endpoint",
    )
    assert report.notes[0].startswith(f"a is the model 'table' at {server.url} under temperature=1, top_p=1, top_k=2,")
    assert not any("the same seed may give other texts" in note for note in report.notes)
    other = GuardedGenerator(endpoint(server, repeats_seeds=False), RULE)
    assert any("the same seed may give other texts" in note for note in other.run("a", **LAW)[0].report.notes)


def test_a_budget_that_ends(guarded):
    few = Budget(max_attempts=5)
    with pytest.raises(BudgetExhausted):
        guarded("a", constraints=Regex("c"), budget=few, **LAW)
    filled = GuardedGenerator(guarded.model, Regex("c"), on_exhausted=Fallback("c"), budget=few)
    assert filled.run("a", **LAW)[0].texts == ("c",)


def test_greedy_that_violates_raises(guarded):
    with pytest.raises(Deterministic, match="do_sample=True"):
        guarded("a", constraints=Regex("c"), do_sample=False)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"adapter": "catalogue:dragon"}, "adapter= is the name of an adapter on the server"),
        ({"adapter": Adapter("folder")}, "load the folder there"),
        ({"adapter": "small", "proposal": Prompt("x {prompt}")}, "not both"),
        ({"proposal": Masked()}, "requires a part of the constraint that vLLM's structured_outputs supports"),
        ({"proposal": Masked(unseen=0.1)}, "has no effect on a server"),
        ({"proposal": Twisted()}, "Twisted() weighs next tokens, which a server does not let its clients do"),
        ({"proposal": "gpt2"}, "with an endpoint, proposal= is a Prompt"),
        ({"tokenizer": object()}, "leave tokenizer= out"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_wrappers_that_cannot_be_made(made, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        GuardedGenerator(NOWHERE, RULE, **made)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"adapter": Path("folder")}, "adapter= is the name of an adapter on the server"),
        ({"adapter": "small", "proposal": Prompt("x {prompt}")}, "not both"),
        ({"proposal": Masked()}, "requires a part of the constraint that vLLM's structured_outputs supports"),
        ({"proposal": Twisted()}, "wrap the model itself, or leave Twisted() out"),
        ({"proposal": MASKED, "constraints": WORD, "sampler": "qrs"}, "probability its mask removed"),
        ({"proposal": NOWHERE}, "with an endpoint, proposal= is a Prompt"),
        ({**WEIGHED}, "temperature=0.7: a server reports only the model's own probabilities"),
        ({**WEIGHED, "sampler": "imh"}, "pass temperature=1, top_k=20 or less, or sampler='rejection'"),
        ({**WEIGHED, "temperature": 1.0, "top_p": 0.5}, "top_p=0.5: a server reports"),
        ({**WEIGHED, "temperature": 1.0, "top_k": 50}, "top_k=50: a server reports"),
        ({**WEIGHED, "temperature": 1.0, "top_k": 50}, "pass top_k=0, top_k=20 or less"),
        ({**WEIGHED, "temperature": 1.0, "min_p": 0.1}, "min_p=0.1: a server reports"),
        ({**WEIGHED, "temperature": 1.0, "repetition_penalty": 1.1}, "repetition_penalty=1.1: a server reports"),
        ({**WEIGHED, "temperature": 1.0, "stop_strings": "b"}, "cut by stop_strings cannot be weighed"),
        ({**WEIGHED, "do_sample": False}, "greedy search draws nothing that could be weighed"),
        ({**WEIGHED, "proposal": None, "adapter": "small"}, "temperature=0.7"),
        ({"constraints": Length(max=5, unit="tokens")}, "counts tokens, and an endpoint gives only text"),
        ({"constraint_each": [Length(max=5, unit="tokens")]}, "counts tokens, and an endpoint gives only text"),
        ({"return_full_text": 1}, "return_full_text=1"),
        ({"num_beams": 2}, "no option 'num_beams'"),
        ({"tempreature": 2}, "did you mean 'temperature'?"),
    ],
)
def test_calls_that_cannot_be_had(options, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        GuardedGenerator(NOWHERE, RULE)("a", **options)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([[*CHAT, {"role": "assistant", "content": "b"}]], "end it with a user message"),
        ("\ud800", "half of a surrogate pair"),
        ([5], "is neither a string nor a chat"),
        (None, "there is no prompt"),
    ],
)
def test_prompts_that_cannot_be_sent(prompt, says):
    with pytest.raises(PromptError, match=says):
        GuardedGenerator(NOWHERE, RULE)(prompt)


def test_what_a_pipeline_has_and_an_endpoint_has_not():
    guarded = GuardedGenerator(NOWHERE, RULE)
    assert (guarded.model, guarded.tokenizer, guarded.adapter) == (NOWHERE, None, None)
    for use in (
        lambda: guarded.pipeline,
        lambda: guarded.task,
        lambda: guarded.device,
        guarded.as_pipeline,
        guarded.generate,
        lambda: guarded.load_adapter(Adapter("folder")),
    ):
        with pytest.raises(UsageError, match="endpoint"):
            use()


def test_adapters_come_and_go_by_name():
    guarded = GuardedGenerator(NOWHERE, RULE, adapter="small")
    assert str(guarded.adapter) == "small"
    guarded.load_adapter("other")
    assert guarded.session.job({}).source.proposal is not None
    assert guarded.session.job({"adapter": False}).source.proposal is None
    guarded.unload_adapter()
    assert guarded.adapter is None
    with pytest.raises(UsageError, match="the wrapper has a proposal"):
        GuardedGenerator(NOWHERE, RULE, proposal=Prompt("x {prompt}")).load_adapter("small")


def test_settings_that_are_not_sent_are_not_weighed():
    plain = Endpoint(NOWHERE.base_url, model="m", extra=False)
    with pytest.raises(UsageError, match=r"pass Endpoint\(extra=True\), or sampler='rejection'"):
        GuardedGenerator(plain, RULE)("a", temperature=1.0, **WEIGHED)


def test_each_text_is_told_as_it_is_accepted(server):
    told = []

    async def run():
        guarded = GuardedGenerator(endpoint(server), RULE, seed=1)
        stream = guarded.astream("a", num_return_sequences=3, on_text=lambda _, draw: told.append(draw.text), **LAW)
        return [outcome async for outcome in stream]

    (outcome,) = asyncio.run(run())
    assert tuple(told) == outcome.texts
