"""Adapters on 8-bit and 4-bit weights."""

import pytest
import torch

from guardwrap.errors import UsageError
from guardwrap.models.proposal_draws import QUANTISED
from guardwrap.training import train
from guardwrap.training.policy import update
from guardwrap.training.task import Sample
from tests.fixtures_quantized import EIGHT, FOUR, in_bits, larger
from tests.training.fixtures_training import DOUBLED, guarded_of, settings_of, trainer_of


@pytest.fixture(scope="module")
def plain():
    return larger()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replay", "dpg"])
def test_an_adapter_is_trained_on_8_bits(tmp_path, plain, method):
    world = in_bits(plain, EIGHT, tmp_path)
    guarded_of(world).attempts(world.prompt, 10, weigh=False, **world.settings)  # which moves the scales
    before = {name: tensor.clone() for name, tensor in world.model.state_dict().items()}
    budget = {"gold_attempts": 500, "samples": 300, "rounds": 2, "updates": 10, "final_attempts": 300}
    trained = train(guarded_of(world), settings_of(world, method=method, **budget), tmp_path)
    assert sum(row.updates for row in trained.curve) > 2
    assert trained.figures["acceptance_after"].value > trained.figures["acceptance_before"].value
    assert any(QUANTISED in note for note in trained.notes)
    after = world.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def gradients(world, folder):
    """Return the whole gradient of one update as a vector."""
    trainer = trainer_of(folder, world, rank=2)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in trainer.policy.parameters.values():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=chance))
    samples = [Sample(0, ids, len(ids)) for ids in world.gold(DOUBLED)]
    update(trainer.policy, trainer.policy.adam(0.0), trainer.task, samples, [1 / len(samples)] * len(samples))
    return torch.cat([tensor.grad.flatten() for tensor in trainer.policy.parameters.values()])


def test_gradients_through_8_bits_are_those_of_the_model(tmp_path, plain):
    exact = gradients(plain, tmp_path / "plain")
    rounded = gradients(in_bits(plain, EIGHT, tmp_path), tmp_path / "rounded")
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.99


def test_4_bits_are_trained_where_gradients_are_right_and_else_refused(tmp_path, plain):
    world = in_bits(plain, FOUR, tmp_path)
    fast = any(getattr(module, "support_avx512bf16_for_cpu", False) for module in world.model.modules())
    if fast:
        with pytest.raises(UsageError, match="the fast CPU kernel for 4-bit weights does not propagate gradients"):
            trainer_of(tmp_path / "run", world)
        return
    exact = gradients(plain, tmp_path / "plain")
    assert torch.cosine_similarity(exact, gradients(world, tmp_path / "run"), dim=0) > 0.9


def test_negative_control_4_bits_on_a_fast_cpu(tmp_path, plain, monkeypatch):
    world = in_bits(plain, FOUR, tmp_path)
    if not any(getattr(module, "support_avx512bf16_for_cpu", False) for module in world.model.modules()):
        pytest.skip("this CPU has no AVX512 with bfloat16, and so no such kernel")
    monkeypatch.setattr("guardwrap.training.policy._packed", lambda module: False)
    world.law()  # a forward pass packs them
    exact = gradients(plain, tmp_path / "plain")
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        wrong = gradients(world, tmp_path / "run")
    assert torch.cosine_similarity(exact, wrong, dim=0) < 0.9


def test_quantised_weights_themselves_are_not_trained(tmp_path, plain):
    with pytest.raises(UsageError, match="quantized weights cannot be trained; train an adapter"):
        trainer_of(tmp_path / "run", in_bits(plain, EIGHT, tmp_path), full=True)
