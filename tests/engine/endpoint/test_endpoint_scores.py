"""Weights come from the server's log-probabilities; if it does not return them, the call ends with a one-line error."""

import math
from dataclasses import replace
from typing import Any

import pytest

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
