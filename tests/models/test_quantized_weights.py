"""Weights from 8-bit and 4-bit models: they depend only on the text, and reports say where they come from."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from guardwrap import GuardedGenerator, Masked, Prompt, Regex, qrs
from guardwrap.adapters import save_adapter
from guardwrap.calls.sessions import LocalSession
from guardwrap.engine import sequence_scores
from guardwrap.engine.model_weights import is_quantised
from guardwrap.engine.sequence_scores import log_probabilities
from guardwrap.models.proposal_draws import QUANTISED
from guardwrap.models.task_calls import call_of
from guardwrap.testing import World, llama_world
from tests.fixtures_adapters import trained
from tests.fixtures_quantized import EIGHT, FOUR, in_bits, larger

HAS_A = Regex("a")


@pytest.fixture(scope="module")
def plain() -> World:
    return larger(llama_world(letters="abcdefgh ", max_new_tokens=16))


@pytest.fixture(scope="module")
def eight(plain: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    return in_bits(plain, EIGHT, tmp_path_factory.mktemp("eight"))


@pytest.fixture(scope="module")
def four(plain: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    return in_bits(plain, FOUR, tmp_path_factory.mktemp("four"))


def guarded_of(world: World, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), HAS_A, batch_size=16, seed=1, **options)


def texts_of(world: World) -> list[Any]:
    call = call_of(world.pipeline(), world.settings)
    (prompt,) = call.prompts(enumerate(call.read_prompts([world.prompt]).prompts), 1)
    chance = torch.Generator().manual_seed(0)
    return [(prompt.law, torch.randint(1, 9, (5 + i,), generator=chance).tolist()) for i in range(8)]


def apart(world: World) -> float:
    """Return the difference in nats between log-probabilities computed together and one by one."""
    texts = texts_of(world)
    alone = [log_probabilities(world.model, [text])[0] for text in texts]
    return max(abs(a - b) for a, b in zip(log_probabilities(world.model, texts), alone, strict=True))


def test_a_log_probability_in_8_bits_is_a_function_of_the_text(eight: World) -> None:
    assert apart(eight) == 0


def test_negative_control_of_all_texts_at_once(eight: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_scores, "is_quantised", lambda model: False)
    assert apart(eight) > 1e-3


@pytest.mark.slow
def test_weights_in_8_bits_compare_like_with_like(eight: World) -> None:
    (attempts,) = guarded_of(eight, proposal=Prompt("{prompt}")).attempts(eight.prompt, 48, **eight.settings)
    weights = [attempt.log_weight for attempt in attempts if attempt.satisfied]
    assert len(weights) > 10
    assert set(weights) == {0.0}


def notes_of(guarded: GuardedGenerator, world: World, **options: Any) -> list[str]:
    options = {"sampler": qrs(2.0), **options}
    (outcome,) = guarded.run(world.prompt, **options, **world.settings)
    return [note for note in outcome.report.notes if QUANTISED in note]


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["eight", "four"])
def test_reports_say_where_weights_come_from_a_quantised_model(
    bits: str, plain: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = request.getfixturevalue(bits)
    (note,) = notes_of(guarded_of(world, proposal=Prompt("b{prompt}")), world)
    assert "each weight is computed from its text alone, and decoding drew from a law that is off by" in note
    assert "(root mean square over " in note
    save_adapter(tmp_path / "small", trained(world.model, target_modules=["q_proj"]))
    assert len(notes_of(guarded_of(world, adapter=tmp_path / "small"), world)) == 1
    assert notes_of(guarded_of(world, proposal=Masked()), world) == [QUANTISED]
    for base, other in ((plain, world), (world, plain)):  # one of the two models is enough
        assert len(notes_of(guarded_of(base, proposal=other.pipeline()), base)) == 1
    assert LocalSession(world.pipeline(), HAS_A).of_weights == (QUANTISED,)  # evaluations say so
    assert LocalSession(plain.pipeline(), HAS_A).of_weights == ()
    # No note without weights, and none without quantized models.
    assert notes_of(guarded_of(world, proposal=Prompt("b{prompt}")), world, sampler="rejection") == []
    assert notes_of(guarded_of(world), world) == []
    for proposal in (Prompt("b{prompt}"), Masked()):
        assert notes_of(guarded_of(plain, proposal=proposal), plain) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_torchs_own_quantised_layers_are_known(plain: World) -> None:
    assert not is_quantised(plain.model)
    model = copy.deepcopy(plain.model)
    model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert is_quantised(model)
