"""Training on worlds whose g is enumerated: gradients, and the methods' distance to the best possible policy."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from guardwrap import GuardedGenerator, Regex
from guardwrap.engine.sequence_scores import of_tokens, scored
from guardwrap.testing import World, llama_world
from guardwrap.training import TrainingSettings
from guardwrap.training.policy import Policy, update
from guardwrap.training.rounds import Drawn
from guardwrap.training.task import Sample, Task
from guardwrap.training.trainer import Trainer

CONSTRAINT = Regex("aa|bb")
CLOSE = 1e-5  # of gradients: float32 models, sums in float64


def settings(world: World, **changes: Any) -> TrainingSettings:
    given = {"constraint": "given", "prompts": [world.prompt], "generation": world.settings, "rank": 2}
    return TrainingSettings.model_validate({**given, **changes})


def moved(world: World) -> tuple[Task, Policy]:
    """Return a policy whose adapter has an effect."""
    task = Task(GuardedGenerator(world.pipeline(), CONSTRAINT), [world.prompt], world.settings)
    policy = Policy(task.model, 2, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return task, policy


def kl(policy: Policy, world: World) -> torch.Tensor:
    """Return KL(g‖π) by enumeration, with gradients, from the model alone."""
    gold = world.gold(CONSTRAINT)
    (prompt,) = world.tokenizer(world.prompt, return_tensors="pt")["input_ids"]
    total = torch.zeros((), dtype=torch.float64)
    for ids, share in gold.items():
        new = torch.tensor(ids)
        whole = torch.cat([prompt, new])[None].to(policy.model.device)
        logits = policy.model(whole).logits[0, len(prompt) - 1 : -1].cpu()
        law = (logits.double() / world.temperature).log_softmax(-1)
        total = total + share * (math.log(share) - law.gather(1, new[:, None]).sum())
    return total


def gradient(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.double().flatten() for p in policy.parameters.values() if p.grad is not None])


def enumerated(policy: Policy, world: World) -> torch.Tensor:
    for parameter in policy.parameters.values():
        parameter.grad = None
    kl(policy, world).backward()
    return gradient(policy).clone()


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_expected_step_of_dpg_is_the_gradient_of_kl(tmp_path: Path, temperature: float) -> None:
    world = llama_world(temperature=temperature)
    task, policy = moved(world)
    exact = enumerated(policy, world)
    law, gold = world.law(), world.gold(CONSTRAINT)
    samples = [Sample(0, ids, len(ids)) for ids in gold]
    log_policy = task.log_probabilities(policy.model, samples)
    z = sum(law[ids] for ids in gold)
    trainer = Trainer(GuardedGenerator(world.pipeline(), CONSTRAINT), settings(world, method="dpg"), tmp_path)
    trainer.policy.load_state_dict(policy.state_dict())
    trainer._optimizer = torch.optim.SGD(trainer.policy.parameters.values(), lr=0.0)
    trainer.state.counted, trainer.state.partition = 1000, [1000 * z]
    # Every text occurs as often as expected, attempts × π(y) times, so its weight P/(π Z attempts) becomes P/Z.
    ratios = [
        math.log(law[sample.token_ids]) - log + math.log(500) + log
        for sample, log in zip(samples, log_policy, strict=True)
    ]
    trainer._dpg(Drawn(500, 0, samples, log_policy), ratios)
    assert apart(gradient(trainer.policy), exact) < CLOSE


def test_tokens_that_are_decided_may_count_with_their_expectation() -> None:
    world = llama_world()
    task, policy = moved(world)
    exact = enumerated(policy, world)
    gold = world.gold(CONSTRAINT)
    samples = [Sample(0, ids, task._decided(0, ids)) for ids in gold]
    assert any(sample.decided < len(sample.token_ids) for sample in samples)
    still = torch.optim.SGD(policy.parameters.values(), lr=0.0)
    loss = update(policy, still, task, samples, list(gold.values()))
    assert apart(gradient(policy), exact) < CLOSE
    divergence = float(kl(policy, world).detach())
    policy.load_state_dict(policy.towards_base(policy.state_dict(), 0.0))  # where KL(g‖π) = -log Z
    z = sum(world.law()[ids] for ids in gold)
    assert loss - update(policy, still, task, samples, list(gold.values())) - math.log(z) == pytest.approx(
        divergence, abs=1e-5
    )


def test_the_model_itself_computes_only_for_texts_that_are_decided_early(monkeypatch: pytest.MonkeyPatch) -> None:
    world = llama_world()
    task, policy = moved(world)
    samples = [Sample(0, ids, task._decided(0, ids)) for ids in world.gold(CONSTRAINT)]
    computed: list[int] = []

    def counted(model: Any, texts: Any) -> Any:
        for batch in scored(model, texts):
            computed.extend(i for i, _ in batch if model is task.model)
            yield batch

    monkeypatch.setattr("guardwrap.training.policy.scored", counted)
    still = torch.optim.SGD(policy.parameters.values(), lr=0.0)
    update(policy, still, task, samples, [1.0] * len(samples))
    assert len(computed) == sum(sample.decided < len(sample.token_ids) for sample in samples) < len(samples)


def test_equal_samples_are_computed_once_and_count_as_often_as_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    world = llama_world()
    task, policy = moved(world)
    gold = world.gold(CONSTRAINT)
    samples = [Sample(0, ids, task._decided(0, ids)) for ids in gold]
    often = [1 + i % 3 for i in range(len(samples))]
    again = [sample for sample, count in zip(samples, often, strict=True) for _ in range(count)]
    still = torch.optim.SGD(policy.parameters.values(), lr=0.0)
    loss = update(policy, still, task, samples, often)
    expected = gradient(policy)
    computed: list[Sample] = []
    texts = Task.texts

    def noted(task: Task, these: Any, *more: Any) -> Any:
        computed.extend(these)
        return texts(task, these, *more)

    monkeypatch.setattr(Task, "texts", noted)
    assert update(policy, still, task, again, [1.0] * len(again)) == pytest.approx(loss)
    assert apart(gradient(policy), expected) < CLOSE
    assert task.log_probabilities(policy.model, again) == [
        p for p, count in zip(task.log_probabilities(policy.model, samples), often, strict=True) for _ in range(count)
    ]
    assert len(computed) == 3 * len(samples) < 3 * len(again)
    # Negative control: with each text once, the sum differs.
    update(policy, still, task, samples, [1.0] * len(samples))
    assert apart(gradient(policy), expected) > 0.01


def test_negative_control_a_token_too_early_is_another_objective() -> None:
    world = llama_world()
    task, policy = moved(world)
    exact = enumerated(policy, world)
    gold = world.gold(CONSTRAINT)
    early = [Sample(0, ids, task._decided(0, ids) - 1) for ids in gold]
    update(policy, torch.optim.SGD(policy.parameters.values(), lr=0.0), task, early, list(gold.values()))
    assert apart(gradient(policy), exact) > 0.01


def test_negative_control_the_end_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = llama_world()
    task, policy = moved(world)
    exact = enumerated(policy, world)
    gold = world.gold(CONSTRAINT)
    samples = [Sample(0, ids[:-1] if ids[-1] == 0 else ids, len(ids)) for ids in gold]
    still = torch.optim.SGD(policy.parameters.values(), lr=0.0)
    update(policy, still, task, samples, list(gold.values()), exact_ends=False)
    assert apart(gradient(policy), exact) > 0.01


@pytest.fixture(scope="module")
def best() -> float:
    """Return the lowest KL(g‖π) over all adapters of rank 2 on the world's model."""
    world = llama_world()
    task = Task(GuardedGenerator(world.pipeline(), CONSTRAINT), [world.prompt], world.settings)
    policy = Policy(task.model, 2, seed=0)
    gold = world.gold(CONSTRAINT)
    texts = task.texts([Sample(0, ids, len(ids)) for ids in gold])
    shares, entropy = list(gold.values()), -sum(p * math.log(p) for p in gold.values())
    steps = 300  # 600 steps lower it by 0.03 %
    optimizer = torch.optim.Adam(policy.parameters.values(), lr=2e-2)
    for step in range(steps):
        optimizer.zero_grad()
        terms = [
            -shares[i] * of_tokens(scores, texts[i][1]).sum()
            for part in scored(policy.model, texts)
            for i, scores in part
        ]
        loss = torch.stack(terms).sum()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 2e-2 * (1 - step / steps)
    assert float(loss.detach()) - entropy == pytest.approx(float(kl(policy, world).detach()), abs=1e-3)
    return float(kl(policy, world).detach())


METHODS: dict[str, dict[str, Any]] = {
    "replay": {"samples": 4_000, "rounds": 3, "learning_rate": 5e-3, "batch_size": 64, "updates": 120},
    "dpg": {"samples": 50_000, "samples_per_step": 500, "learning_rate": 3e-2},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_both_objectives_come_near_the_best_of_the_family(tmp_path: Path, best: float, method: str) -> None:
    world = llama_world()
    guarded = GuardedGenerator(world.pipeline(), CONSTRAINT, batch_size=256)
    trainer = Trainer(guarded, settings(world, method=method, **METHODS[method]), tmp_path)
    before = float(kl(trainer.policy, world).detach())
    trainer.run()
    assert before > 2 * best
    assert float(kl(trainer.policy, world).detach()) <= 1.05 * best
