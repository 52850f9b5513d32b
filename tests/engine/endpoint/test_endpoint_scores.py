"""Weights come from the server's log-probabilities; if it does not return them, the call ends with a one-line error."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from guardwrap import Budget, GuardedGenerator, Prompt, Regex, imh, qrs
from guardwrap.engine.endpoint.endpoint_scores import EndpointWeigher
from guardwrap.errors import EndpointError
from guardwrap.testing import goodness_of_fit, table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world

WORLD, ADAPTED = (table_world(seed, letters="ab", max_new_tokens=3) for seed in (5, 7))
RULE = ~Regex("bb")
LAW: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 3}
CHAT = [{"role": "user", "content": "a"}]
TELL = Prompt("{prompt}b")


def exact(drawn):
    """QRS with the largest possible weight as β, which samples g exactly."""
    return qrs(max(p / drawn.law()[ids] for ids, p in WORLD.law().items()))


WAYS = [
    pytest.param("a", {"proposal": TELL, "sampler": exact(replace(WORLD, prompt="ab"))}, 70, id="prompt, qrs"),
    pytest.param([CHAT], {"proposal": TELL, "sampler": imh(6)}, 70, id="chat, imh"),
]


@pytest.fixture
def server():
    with Server(of_world(WORLD), worlds={"table": WORLD, "small": ADAPTED}).running() as running:
        yield running


def fit(server, count, prompt="a", **options):
    """Return the p-value of texts under g, and the report."""
    end = WORLD.tokenizer.eos_token_id
    gold = {(WORLD.draw(ids).text, ids[-1] == end): p for ids, p in WORLD.gold(RULE).items()}
    guarded = GuardedGenerator(endpoint(server), RULE, budget=Budget(max_attempts=None), seed=5)
    (outcome,) = guarded.run(prompt, num_return_sequences=count, **LAW, **options)
    assert len(outcome.draws) == count
    return goodness_of_fit([(draw.text, draw.finished) for draw in outcome.draws], gold), outcome.report


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "options", "count"), WAYS)
def test_weighed_texts_follow_g(server, prompt, options, count, monkeypatch):
    """Negative control: with equal weights the texts do not follow g."""
    server.breaks, server.fails = 0.02, 0.02
    p, report = fit(server, count, prompt, **options)
    assert p > 1e-3
    assert any("weights are the server's log-probabilities" in note for note in report.notes)
    monkeypatch.setattr(EndpointWeigher, "__call__", lambda self, attempts: [0.0] * len(attempts))
    assert fit(server, count, prompt, **options)[0] < 1e-9


@pytest.mark.parametrize("prompt", ["a", [CHAT]], ids=["string", "chat"])
@pytest.mark.parametrize(
    ("other", "its"),
    [({"proposal": TELL}, replace(WORLD, prompt="ab")), ({"adapter": "small"}, ADAPTED)],
    ids=["prompt", "adapter"],
)
def test_weights_are_those_of_the_world(server, prompt, other, its):
    guarded = GuardedGenerator(endpoint(server), RULE, seed=1, **other)
    ((*attempts,),) = guarded.attempts(prompt, 30, **LAW)
    drawn = its.law()
    for attempt in attempts:
        assert attempt.draw.log_proposal is not None or not attempt.satisfied
        if attempt.satisfied:
            ids = attempt.draw.token_ids
            weight = WORLD.law()[ids] / drawn[ids]
            assert attempt.log_weight == pytest.approx(math.log(weight))
    assert server.count["scored"] <= 2 + 2 * len(drawn)  # a repeated text is not scored again


@pytest.mark.parametrize("law", [{"temperature": 0.7, "top_k": 2}, {"temperature": 1.3, "top_k": 20}])
def test_weights_under_truncation_are_those_of_the_world(law):
    """A text that the user's own prompt cannot give, as top_k leaves out one of its tokens, has no weight."""
    worlds = [replace(world, **law | {"top_k": min(law["top_k"], 3)}) for world in (WORLD, ADAPTED)]
    with Server(of_world(worlds[0]), worlds={"table": worlds[0], "small": worlds[1]}).running() as server:
        guarded = GuardedGenerator(endpoint(server), RULE, seed=1, adapter="small", budget=Budget(100_000))
        ((*attempts,),) = guarded.attempts("a", 60, max_new_tokens=3, **law)
        a, drawn = worlds[0].law(), worlds[1].law()
        satisfied = [attempt for attempt in attempts if attempt.satisfied]
        for attempt in satisfied:
            ids = attempt.draw.token_ids
            weight = math.log(a[ids] / drawn[ids]) if ids in a else -math.inf
            assert attempt.log_weight == pytest.approx(weight)
            assert attempt.draw.log_proposal is None
        if law["top_k"] == 2:
            assert {attempt.log_weight for attempt in satisfied} > {-math.inf}
        end = WORLD.tokenizer.eos_token_id
        gold = {(WORLD.draw(ids).text, ids[-1] == end): p for ids, p in worlds[0].gold(RULE).items()}
        beta = max(p / drawn[ids] for ids, p in a.items() if ids in drawn)
        (outcome,) = guarded.run("a", num_return_sequences=150, sampler=qrs(beta), max_new_tokens=3, **law)
    reachable = {text: p for text, p in gold.items() if p > 0}
    fits = goodness_of_fit([(draw.text, draw.finished) for draw in outcome.draws], reachable)
    assert fits > 1e-3 or not all(ids in drawn for ids in a)
    assert any("lists of the likeliest tokens" in note for note in outcome.report.notes)


@pytest.mark.parametrize("settings", [{"top_p": 0.8}, {"min_p": 0.2}, {"top_p": 0.6, "min_p": 0.1}, {}])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_what_is_kept_is_what_the_library_keeps(settings, temperature):
    """Against the processors of transformers, on random distributions over 12 tokens with top_k=5."""
    chance = np.random.default_rng(0)
    sent = {"temperature": temperature, "top_k": 5, "top_p": 1.0, "min_p": 0.0} | settings
    law: Any = SimpleNamespace(settings=SimpleNamespace(sent=sent, listed=5))
    weigher = EndpointWeigher.__new__(EndpointWeigher)
    weigher._endpoint = SimpleNamespace(base_url="x")  # type: ignore[assignment]
    outside = 0
    for _ in range(200):
        raw = torch.tensor(chance.normal(size=(1, 12)) * 2).log_softmax(-1)
        scores = TemperatureLogitsWarper(temperature)(None, raw)
        scores = MinPLogitsWarper(sent["min_p"])(None, scores) if sent["min_p"] else scores
        scores = TopKLogitsWarper(5)(None, scores)
        scores = TopPLogitsWarper(sent["top_p"])(None, scores) if sent["top_p"] < 1 else scores
        expected = scores.log_softmax(-1)[0].tolist()
        likeliest = raw[0].sort(descending=True).values[:5].tolist()
        for token in range(12):
            its = raw[0, token].item()
            listed = np.array([its, *likeliest, *([its] if its < likeliest[-1] else [])])
            assert weigher._truncated(law, listed, False) == pytest.approx(expected[token])
            if expected[token] > -math.inf:
                assert weigher._truncated(law, listed, True) == pytest.approx(expected[token])
            elif its < likeliest[-1]:
                outside += 1
                with pytest.raises(EndpointError, match="draws tokens that these settings exclude"):
                    weigher._truncated(law, listed, True)
    assert outside > 100


def test_reports_say_how_it_was_weighed(server):
    _, report = fit(server, 5, adapter="small")
    assert (
        report.drawn_from == "not your model's own distribution: attempts came from the server's adapter 'small' (g')"
    )
    assert not any("weights" in note for note in report.notes)
    assert not any("return_token_ids" in asked or "prompt_logprobs" in asked for asked in server.seen)
    assert {asked["model"] for asked in server.seen} == {"small"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gives": ()}, "does not return token ids (return_token_ids)"),
        ({"gives": ("ids", "logprobs", "prompt_logprobs")}, "does not return token ids"),
        ({"usage": False}, "does not return token ids"),
        ({"gives": ("ids", "end", "prompt_logprobs")}, "does not return log-probabilities (logprobs)"),
        ({"gives": ("ids", "end", "logprobs")}, "does not return log-probabilities (prompt_logprobs)"),
        ({"skew": 0.5}, "draws tokens with other probabilities than it reports"),
    ],
)
def test_servers_that_cannot_weigh(server, given, says):
    for name, value in given.items():
        setattr(server, name, value)
    guarded = GuardedGenerator(endpoint(server), RULE, proposal=TELL, seed=1, sampler="qrs")
    with pytest.raises(EndpointError) as error:
        guarded("a", **LAW)
    assert says in str(error.value)
    assert "pass sampler='rejection'" in str(error.value)
    assert "\n" not in str(error.value)
    assert guarded.run("a", sampler="rejection", **LAW)[0].ok


def test_a_server_that_refuses_the_fields(server):
    server.refusals = [(400, {}, {"error": {"message": "Unrecognized request argument", "code": None}})]
    guarded = GuardedGenerator(endpoint(server), RULE, proposal=TELL, seed=1, sampler="qrs", batch_size=1)
    with pytest.raises(
        EndpointError, match=r"does not support return_token_ids and prompt_logprobs.*sampler='rejection'"
    ):
        guarded("a", **LAW)


def test_an_adapter_that_is_not_there(server):
    guarded = GuardedGenerator(endpoint(server), RULE, adapter="smal", seed=1)
    with pytest.raises(EndpointError, match=r"has no model 'smal' \(did you mean 'small'\?\)"):
        guarded("a", **LAW)


def test_plans_weigh_where_the_sampler_does(server):
    guarded = GuardedGenerator(endpoint(server), RULE, proposal=TELL, seed=1)
    assert [way.sampler for way in guarded.plan("a", pilot=20, **LAW).ways] == ["rejection", "rejection"]
    assert server.count["scored"] == 0
    assert guarded.plan("a", pilot=20, sampler="qrs", **LAW).ways[0].sampler != "rejection"
    assert server.count["scored"] > 0
