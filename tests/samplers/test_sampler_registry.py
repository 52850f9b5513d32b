"""Samplers selected by name, with or without options, in Python, in files and on the command line."""

import json
from typing import Any

import pytest

from guardwrap import GuardedGenerator, Regex, imh, qrs
from guardwrap.constraints import dump, parse
from guardwrap.errors import SpecError, UnknownName, UsageError
from guardwrap.outcomes import Draw
from guardwrap.samplers import Attempt, Sampler, rejection, sampler_named
from guardwrap.support.validation import read_option
from guardwrap.testing import table_world


def decisions(sampler: Sampler) -> list[bool]:
    """Return a sampler's decisions on forty fixed attempts."""
    state, taken = sampler.init(), []
    for i in range(40):
        attempt = Attempt(Draw("", (i,), ""), True, (i % 7) / 2 - 2.0, (i * 7 % 10) / 10)
        state, draw = sampler.step(state, attempt)
        taken.append(draw is not None)
    return taken


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("rejection", rejection),
        ("qrs", qrs()),
        ({"qrs": None}, qrs()),
        ({"qrs": {}}, qrs()),
        ({"qrs": {"beta": 1}}, qrs(1.0)),
        ({"qrs": {"target_tvd": 0.3, "pilot": 5}}, qrs(target_tvd=0.3, pilot=5)),
        ({"qrs": {"target_acceptance": 0.5, "pilot": 5}}, qrs(target_acceptance=0.5, pilot=5)),
        ({"imh": {"steps": 3, "thinning": 2, "move": "raw"}}, imh(3, thinning=2, move="raw")),
        ({"imh": {"steps": 2, "chains": None}}, imh(2)),
    ],
)
def test_options_are_those_of_python(given: Any, made: Sampler) -> None:
    found = sampler_named(given)
    assert (found.name, found.weighs) == (made.name, made.weighs)
    assert decisions(found) == decisions(made)
    assert sampler_named(made) is made


def test_negative_control_options_tell_samplers_apart() -> None:
    told = [sampler_named({"qrs": {"beta": beta}}) for beta in (0.1, 1.0, 5.0)]
    assert len({tuple(decisions(each)) for each in told}) == 3


WRONG = [
    ({"qrs": {"target_tdv": 0.1}}, "qrs.target_tdv: unknown field 'target_tdv' (did you mean 'target_tvd'?); known: b"),
    ({"qrs": {"target_tvd": "0.1"}}, "qrs.target_tvd: must be a number, not"),
    ({"qrs": {"beta": True}}, "qrs.beta: must be a number, not"),
    ({"qrs": {"pilot": 2.5}}, "qrs.pilot: must be a whole number, not"),
    ({"qrs": {"target_tvd": 3}}, "qrs: target_tvd=3.0: give a number between 0 and 1"),
    ({"qrs": {"beta": 1, "target_tvd": 0.1}}, "qrs: qrs takes only one of beta, target_tvd and target_acceptance"),
    ({"imh": {"move": "rwa"}}, "imh.move: 'rwa' is not one of accepted, raw (did you mean 'raw'?)"),
    ({"rejection": {"beta": 1}}, "rejection: this sampler does not accept options; give 'rejection' alone"),
    ({"qrs": [1]}, "{'qrs': [1]} is not a sampler; give a name, or one name with options, as in {qrs: {target_tvd"),
    ({"qrs": {}, "imh": {}}, "{'qrs': {}, 'imh': {}} is not a sampler; give a name"),
]


@pytest.mark.parametrize(("given", "says"), WRONG)
def test_options_that_cannot_be(given: Any, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        sampler_named(given)
    join = ": " if says.startswith("{") else "."
    assert str(raised.value).startswith(f"sampler{join}{says}")
    assert "\n" not in str(raised.value)
    file = parse(f"guardwrap: 1\nconstraint: {{kind: finished}}\n\nsampler: {json.dumps(given)}\n", path="r.yaml")
    with pytest.raises(SpecError) as in_file:
        sampler_named(file.sampler or "", file.source)
    assert str(in_file.value) == f"r.yaml:4: {raised.value}"
    on_the_line = read_option(json.dumps(given), "--sampler")
    with pytest.raises(UsageError) as in_option:
        sampler_named(on_the_line)
    assert str(in_option.value) == str(raised.value)


def test_an_error_has_the_line_of_the_option() -> None:
    text = "guardwrap: 1\nconstraint: {kind: finished}\nsampler:\n  qrs:\n    pilot: 10\n    target_tvd: near\n"
    file = parse(text, path="r.yaml")
    with pytest.raises(SpecError, match=r"^r\.yaml:6: sampler\.qrs\.target_tvd: must be a number, not"):
        sampler_named(file.sampler or "", file.source)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(UnknownName, match=r"^unknown sampler 'qsr' \(did you mean 'qrs'\?\); known: auto, imh, "):
        sampler_named({"qsr": {}})
    file = parse("guardwrap: 1\nconstraint: {kind: finished}\nsampler: qsr\n", path="r.yaml")
    with pytest.raises(SpecError, match=r"^r\.yaml:3: sampler: unknown sampler 'qsr' \(did you mean 'qrs'\?\)"):
        sampler_named(file.sampler or "", file.source)


def test_what_stands_on_the_command_line() -> None:
    assert read_option("qrs", "--sampler") == "qrs"
    assert read_option("", "--sampler") == ""
    assert read_option("qrs: {target_tvd: 0.05}", "--sampler") == {"qrs": {"target_tvd": 0.05}}
    assert read_option("{imh: {steps: 3}}", "--sampler") == {"imh": {"steps": 3}}
    for broken in ("qrs: {", "qrs: !!python/name:os.system", "a: 1\na: 2"):
        with pytest.raises(SpecError, match=r"^--sampler") as raised:
            read_option(broken, "--sampler")
        assert "\n" not in str(raised.value)


def test_a_constraint_files_sampler_is_used_and_written_back(tmp_path: Any) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: a}\nsampler: {qrs: {beta: 0.25}}\n")
    world = table_world(0, letters="abc", max_new_tokens=4)
    guarded = GuardedGenerator(world.pipeline(), path, seed=1)
    options = {**world.settings, "num_return_sequences": 20}
    (outcome,) = guarded.run(world.prompt, **options)
    assert outcome.report.evidence["beta"] == 0.25
    plain = GuardedGenerator(world.pipeline(), Regex("a"), seed=1, sampler=qrs(0.25)).run(world.prompt, **options)
    assert outcome.texts == plain[0].texts
    other = GuardedGenerator(world.pipeline(), path, seed=1, sampler="rejection").run(world.prompt, **options)
    assert other[0].report.sampler == "rejection", "what the caller says goes first"
    (again,) = guarded.run(world.prompt, constraints=[path, Regex("b")], **{**options, "num_return_sequences": 1})
    assert again.report.evidence["beta"] == 0.25
    file = parse(path.read_text())
    assert parse(dump(file)).sampler == file.sampler == {"qrs": {"beta": 0.25}}


def test_a_constraint_files_wrong_sampler_is_told_with_its_line(tmp_path: Any) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: a}\nsampler: {qrs: {bta: 0.25}}\n")
    world = table_world(0, letters="abc", max_new_tokens=4)
    for given in (path, [path, Regex("b")]):
        with pytest.raises(SpecError, match=r"r\.yaml:3: sampler\.qrs\.bta: unknown field 'bta' \(did you mean 'beta"):
            GuardedGenerator(world.pipeline(), given)
    guarded = GuardedGenerator(world.pipeline(), Regex("a"))
    with pytest.raises(SpecError, match=r"r\.yaml:3: sampler\.qrs\.bta: "):
        guarded.run(world.prompt, constraints=path, **world.settings)
