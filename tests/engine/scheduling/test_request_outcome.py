"""The outcomes of requests: notes, and the places of violations."""

import json
from functools import cache

import pytest

from guardwrap import Budget, Constraint, GuardedGenerator, JSONSchema, Length, Regex
from guardwrap.samplers import qrs, rejection
from guardwrap.testing import World
from tests.fixtures_models import byte_tokenizer, byte_world
from tests.outcomes.fixtures_weights import HEAVY, LIGHT, qrs_report


def test_a_sampler_without_a_proposal_says_what_rejection_would_take(world: World) -> None:
    for sampler, much in ((qrs(target_tvd=0.3, pilot=5), "fewer"), (qrs(1.0), "no more")):
        guarded = GuardedGenerator(world.pipeline(), Length(min=0), seed=3, sampler=sampler)
        few, note = guarded.run("ab")[0].report.notes
        assert "draws from your model's own distribution (g), too few to estimate the distance to it: draw more" in few
        assert note.endswith(
            f"sampler='rejection' gives exactly your model's own distribution (g) with {much} attempts"
        )


@pytest.mark.parametrize(("weights", "why"), [(HEAVY, "tail is too heavy (Pareto k 0.818)"), (LIGHT, None)])
def test_a_note_says_what_a_heavy_tail_means(world: World, weights: list[float], why: str | None) -> None:
    sampler = rejection._replace(report=lambda _: qrs_report(weights, beta=1.0))
    (outcome,) = GuardedGenerator(world.pipeline(), Length(min=0), seed=3, sampler=sampler).run("ab")
    notes = [note for note in outcome.report.notes if "far larger than estimated" in note]
    assert len(notes) == (why is not None)
    assert not notes or notes[0].startswith(f"the weights' {why}, so the distance to your model's own distribution (g)")


PLACES = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@cache
def json_world() -> World:
    """A finite world of objects: right, wrong in several places, and cut off."""
    return byte_world(byte_tokenizer(["a", " }", '{"a": true', '{"secret": ', "11", '{"a": 1']), max_new_tokens=2)


@pytest.mark.parametrize(
    "rule",
    [
        JSONSchema(PLACES, name="it"),
        JSONSchema(PLACES, name="it", where="fenced"),
        Regex("(?s).*") & JSONSchema(PLACES, name="it"),
    ],
    ids=["aborted early", "judged as a whole", "of two parts"],
)
def test_reports_count_the_places_of_violations(rule: Constraint) -> None:
    world, reports = json_world(), []
    for batch_size in (1, 16):
        guarded = GuardedGenerator(
            world.pipeline(), rule, batch_size=batch_size, seed=1, budget=Budget(max_attempts=400)
        )
        (outcome,) = guarded.run(world.prompt, num_return_sequences=400, **world.settings)
        reports.append(outcome.report)
    report = reports[0]
    assert dict(reports[1].places) == dict(report.places)
    counts = report.places["it"]
    assert sum(counts.values()) == report.rejections["it"] > 100
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert "secret" not in json.dumps(report.to_dict()) + str(report) + report.advice()
    most = max(counts, key=counts.__getitem__)
    assert f"{most}: {counts[most]} of {report.rejections['it']}" in str(report)
    if getattr(rule, "where", "text") == "text":
        assert counts.keys() == {"$.a", "$.*", "not JSON", "incomplete JSON"}
        assert f"'it' rejected {report.rejections['it']} of 400 ({counts[most]} " in report.advice()
    else:
        assert counts.keys() == {"0 fenced blocks"}
