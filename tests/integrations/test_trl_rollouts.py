"""Rollouts for GRPO: the gradient of TRL's loss is that of E_g r, compared with enumeration on a finite policy."""

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import Budget, Keyword, Regex
from guardwrap.errors import UsageError
from guardwrap.integrations.trl import reward, rollouts, weighted
from guardwrap.proposals import Masked, Prompt
from guardwrap.testing import World, goodness_of_fit, llama_world
from tests.integrations.test_trl import trained_by_page

RULE = Regex("b.*a")
HINT = Prompt("b{prompt}")
TEXTS = 1500


def policy(**options: Any) -> World:
    return llama_world(3, max_new_tokens=4, temperature=0.7, **options)


def trainer_of(world: World, **settings: Any) -> Any:
    """Return what rollouts read of a GRPOTrainer."""
    args = SimpleNamespace(generation_kwargs=None)
    accelerator = SimpleNamespace(unwrap_model=lambda model: model, state=SimpleNamespace())
    defaults: dict[str, Any] = {
        "temperature": world.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
    }
    defaults |= {"max_completion_length": world.max_new_tokens, "eos_token_ids": [world.tokenizer.eos_token_id]}
    defaults |= {"num_generations": 8, "num_generations_eval": 8}
    defaults |= {"chat_template_kwargs": {}, "tools": None, "model": world.model, "processing_class": world.tokenizer}
    return SimpleNamespace(**{"args": args, "accelerator": accelerator, **defaults, **settings})


def drawn(world, prompts, constraint=RULE, seed=0, settings=(), **options):
    torch.manual_seed(seed)
    options = {"budget": Budget(max_attempts=10**6), **options}
    settings = {"num_generations_eval": len(prompts), **dict(settings)}
    return rollouts(constraint, **options)(prompts, trainer_of(world, **settings))


def text_of(world, ids):
    return str(world.tokenizer.decode(ids, skip_special_tokens=True))


def value(world, ids):
    """Return the reward of a text: it does not depend on the rule alone."""
    return text_of(world, ids).count("a") - 0.5 * len(ids)


def log_policy(world, texts):
    """Return log a of each text under the policy, with gradients and without any part of the engine."""
    prompt = world.tokenizer(world.prompt)["input_ids"]
    results = []
    for ids in texts:
        logits = world.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        steps = (logits / world.temperature).log_softmax(-1)
        results.append(steps.gather(1, torch.tensor(ids)[:, None]).sum())
    return torch.stack(results)


def in_directions(gradients):
    """Return the gradients of all parameters along six random directions."""
    generator = torch.Generator().manual_seed(5)
    parts = [
        torch.randn(6, g.numel(), generator=generator, dtype=torch.float64) @ g.double().ravel() for g in gradients
    ]
    return np.asarray(torch.stack(parts).sum(0))


def scores_of(world, texts):
    """Return ∇ log a of each text in these directions."""
    parameters, scores = list(world.model.parameters()), {}
    for ids in sorted(set(map(tuple, texts))):
        scores[ids] = in_directions(torch.autograd.grad(log_policy(world, [ids])[0], parameters))
    return scores


def gradient_of_mean_reward(world, constraint=RULE):
    """Return ∇ E_g r in the same directions, from the enumerated texts: the derivative of a quotient."""
    law = {ids: p for ids, p in world.law().items() if constraint.accepts(text_of(world, ids))}
    scores, mass = scores_of(world, law), sum(law.values())
    mean = sum(p * value(world, ids) for ids, p in law.items()) / mass
    of_mass = sum(p * scores[ids] for ids, p in law.items())
    of_sum = sum(p * value(world, ids) * scores[ids] for ids, p in law.items())
    return np.asarray((of_sum - mean * of_mass) / mass)


def trl_gradient(world, output, rewards):
    """Return minus the gradient of TRL's loss, times the length, and its standard error, in the same directions.

    It is the loss with ``loss_type="dr_grpo", scale_rewards="none"``, on one group of texts: the mean of
    π/π_old × π_old/sampled × (r - mean of r), with π = π_old. TRL computes π_old over the whole vocabulary at its
    temperature, and takes the probabilities that were sampled from ``logprobs``.
    """
    texts = list(map(tuple, output["completion_ids"]))
    different = list(set(texts))
    scores, logs = scores_of(world, texts), dict(zip(different, log_policy(world, different).tolist(), strict=True))
    sampled = np.array([sum(one) for one in output["logprobs"]])
    ratios = np.exp(np.array([logs[ids] for ids in texts]) - sampled)
    advantages = np.array(rewards) - np.mean(rewards)
    terms = (ratios * advantages)[:, None] * np.array([scores[ids] for ids in texts])
    centered = np.array([scores[ids] for ids in texts])
    centered = advantages[:, None] * (centered - centered.mean(0))  # the mean of r is estimated, too
    return terms.mean(0), centered.std(0) / np.sqrt(len(texts))


def distance(world, output, rewards):
    """Return the largest difference from ∇ E_g r, in standard errors."""
    gradient, error = trl_gradient(world, output, rewards)
    return float(np.abs((gradient - gradient_of_mean_reward(world)) / error).max())


def rewarded(world, output, function):
    return function(prompts=["a"] * len(output["prompt_ids"]), completions=output["completion_ids"], **output)


def by_value(world):
    def function(prompts, completions, **columns):
        return [value(world, ids) for ids in completions]

    return function


@pytest.fixture(scope="module")
def world():
    return policy()


@pytest.fixture(scope="module")
def exact(world):
    return drawn(world, ["a"] * TEXTS)


@pytest.fixture(scope="module")
def hinted(world):
    return drawn(world, ["a"] * TEXTS, proposal=HINT)


def test_what_the_trainer_gets(world, exact):
    assert exact.keys() == {
        *("prompt_ids", "completion_ids", "logprobs", "env_mask"),
        *("log_a", "log_weight", "accepted", "attempts", "rollout_group"),
    }
    assert {len(column) for column in exact.values()} == {TEXTS}
    texts = list(map(tuple, exact["completion_ids"]))
    assert goodness_of_fit(texts, world.gold(RULE)) > 1e-3
    law = world.law()
    assert np.exp(exact["log_a"]) == pytest.approx([law[ids] for ids in texts])
    assert [len(logs) for logs in exact["logprobs"]] == [len(ids) for ids in texts]
    assert set(map(tuple, exact["prompt_ids"])) == {tuple(world.tokenizer("a")["input_ids"])}
    assert (set(exact["log_weight"]), set(exact["accepted"]), len(set(exact["attempts"]))) == ({0.0}, {True}, 1)
    assert exact["attempts"][0] == pytest.approx(TEXTS / sum(map(law.get, world.gold(RULE))), rel=0.1)


def test_the_gradient_is_that_of_the_mean_reward_under_g(world, exact):
    assert distance(world, exact, rewarded(world, exact, by_value(world))) < 4


def test_the_weights_correct_for_a_proposal(world, hinted):
    assert distance(world, hinted, rewarded(world, hinted, weighted(by_value(world)))) < 4
    law, hint = world.law(), World(world.model, world.tokenizer, "ba", 4, 0.7).law()
    texts = list(map(tuple, hinted["completion_ids"]))
    assert hinted["log_weight"] == pytest.approx([np.log(law[ids] / hint[ids]) for ids in texts], abs=1e-5)
    assert hinted["prompt_ids"][0] == list(world.tokenizer("a")["input_ids"])


def test_negative_control_the_weights_left_out(world, hinted):
    assert distance(world, hinted, rewarded(world, hinted, by_value(world))) > 8


def test_negative_control_other_log_probabilities(world, exact):
    """Those of the model without the temperature, and those of g, as a server that masks gives them."""
    rewards = rewarded(world, exact, by_value(world))
    plain = World(world.model, world.tokenizer, "a", 4, 1.0).law()
    gold = world.gold(RULE)
    for law in (plain, gold):
        logs = [[np.log(law[tuple(ids)])] for ids in exact["completion_ids"]]
        assert distance(world, {**exact, "logprobs": logs}, rewards) > 8


def test_the_formula_is_exact(world):
    """All pairs of texts, each with its probability: groups of n give (n - 1) / n of the gradient."""
    gold = world.gold(RULE)
    scores, total = scores_of(world, gold), np.zeros(6)
    for first, p in gold.items():
        for second, q in gold.items():
            advantage = (value(world, first) - value(world, second)) / 2
            total += p * q * advantage * (scores[first] - scores[second]) / 2
    assert total == pytest.approx(gradient_of_mean_reward(world) / 2, rel=1e-9)


def test_masks_have_weights_and_samplers_need_none(world):
    masked = drawn(world, ["a"] * 400, proposal=Masked())
    weights = np.exp(masked["log_weight"])
    assert len(set(np.round(weights, 9))) > 1
    law = world.law()
    expected = dict.fromkeys(map(tuple, masked["completion_ids"]), 0.0)
    for ids, weight in zip(map(tuple, masked["completion_ids"]), weights, strict=True):
        expected[ids] = law[ids] / weight  # a'
    assert goodness_of_fit(list(map(tuple, masked["completion_ids"])), _normal(expected)) > 1e-3
    corrected = drawn(world, ["a"] * 50, proposal=HINT, sampler="imh")
    assert set(corrected["log_weight"]) == {0.0}
    assert all(RULE.accepts(text_of(world, ids)) for ids in corrected["completion_ids"])


def _normal(weights):
    total = sum(weights.values())
    return {ids: weight / total for ids, weight in weights.items()}


def test_the_weights_of_the_policy_are_those_of_now(world):
    """The same function, before and after an update of the parameters."""
    world = policy()
    trainer, function = trainer_of(world), rollouts(RULE)
    for _ in range(2):
        output, law = function(["a"] * 30, trainer), world.law()
        assert np.exp(output["log_a"]) == pytest.approx([law[tuple(ids)] for ids in output["completion_ids"]])
        with torch.no_grad():
            for parameter in world.model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))


def test_each_prompt_gets_its_own_texts_in_order(world):
    output = drawn(world, ["a", "a", "b", "b", "b", "a", "a"])
    prompts = [text_of(world, ids) for ids in output["prompt_ids"]]
    assert prompts == ["a", "a", "b", "b", "b", "a", "a"]
    for name, prompt in (("a", slice(0, 2)), ("b", slice(2, 5))):
        law = World(world.model, world.tokenizer, name, 4, 0.7).law()
        ids = list(map(tuple, output["completion_ids"][prompt]))
        assert np.exp(output["log_a"][prompt]) == pytest.approx([law[one] for one in ids])


def test_a_group_that_the_budget_left_short(world, caplog):
    with caplog.at_level(logging.WARNING):
        output = drawn(world, ["a"] * 8, budget=Budget(max_attempts=12))
    accepted = output["accepted"]
    assert 0 < sum(accepted) < 8
    assert accepted == sorted(accepted, reverse=True)
    end = world.tokenizer.eos_token_id
    for i, text in enumerate(accepted):
        assert set(output["env_mask"][i]) == {int(text)}
        assert text or (output["completion_ids"][i], output["logprobs"][i]) == ([end], [0.0])
        assert text == (output["log_a"][i] is not None) == (output["log_weight"][i] is not None)
    texts = [text_of(world, ids) for ids in output["completion_ids"]]
    for function in (reward(Keyword("b", case_sensitive=True)), weighted(reward(RULE))):
        rewards = function(prompts=["a"] * 8, completions=texts, **output)
        assert [number is not None for number in rewards] == accepted
    assert "rollouts" in caplog.text
    assert output["attempts"] == [12] * 8


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "exactly as your model writes"), ({"proposal": HINT}, "not follow your model's own distribution")],
)
def test_the_log_names_the_distribution_of_a_short_group(world, caplog, options, words):
    """With a proposal, texts follow g' and are weighted later: the line in the log must not call them exact."""
    output = drawn(world, ["a"] * 30, budget=Budget(max_attempts=60), **options)
    assert 0 < sum(output["accepted"]) < 30
    assert words in caplog.text


def test_weighted_rewards_keep_their_mean():
    """The mean of a group is the weighted mean of its rewards."""
    function = weighted(lambda prompts, completions, **columns: [1.0, 0.0, 0.0, 2.0, None])
    logs = [float(np.log(3.0)), 0.0, None, 5.0, 5.0]
    columns = {"log_weight": logs, "rollout_group": [0, 0, 0, 1, 1]}
    result = function(prompts=["a", "a", "a", "b", "b"], completions=[""] * 5, **columns)
    assert result == pytest.approx([0.75 + 1.5 * 0.25, 0.75 - 0.5 * 0.75, None, 2.0, None])
    with pytest.raises(UsageError, match="weighted\\(\\) needs the log-weights of rollouts"):
        function(prompts=["a"], completions=[""])


def test_rows_with_equal_prompts_are_corrected_apart(world):
    """Two rows of a data set may differ in other columns: rewards that are constant in each row stay as they are."""
    output = drawn(world, ["a"] * 4, proposal=HINT, settings={"num_generations_eval": 2})
    logs = output["log_weight"]
    assert logs[0] != logs[1], "else this test shows nothing"
    assert rewarded(world, output, weighted(lambda **columns: [1.0, 1.0, 0.0, 0.0])) == pytest.approx([1, 1, 0, 0])


def test_weights_need_all_completions_of_a_prompt(world):
    """TRL may spread a prompt's completions over processes, each of which calls the functions with its part."""
    generations = {"num_generations": 4, "num_generations_eval": 2}
    parts = (["a"], ["a", "a", "a"], ["a", "b"], ["a", "b", "b", "a"])
    for prompts in parts:
        with pytest.raises(UsageError, match="a multiple of num_generations"):
            drawn(world, prompts, proposal=HINT, settings=generations)
        for options in ({}, {"proposal": HINT, "sampler": "imh"}):
            assert len(drawn(world, prompts, settings=generations, **options)["log_weight"]) == len(prompts)
    output = drawn(world, ["a", "a", "b", "b"], proposal=HINT, settings=generations)
    assert output["rollout_group"] == [0, 0, 1, 1]
    world = policy()
    world.model.train()  # so that num_generations holds, and not that of evaluations
    output = drawn(world, ["a"] * 4, proposal=HINT, settings=generations)
    assert output["rollout_group"] == [0] * 4
    with pytest.raises(UsageError, match="a multiple of num_generations"):
        drawn(world, ["a"] * 2, proposal=HINT, settings=generations)


@pytest.mark.parametrize(
    "settings",
    [{"top_p": 0.8}, {"top_k": 1}, {"min_p": 0.2}, {"repetition_penalty": 1.2}, {"args": {"no_repeat_ngram_size": 2}}],
)
def test_settings_that_the_loss_does_not_know_of(world, settings):
    """TRL's loss knows the temperature alone; its own rollouts with such settings are off without a word."""
    if "args" in settings:
        settings = {"args": SimpleNamespace(generation_kwargs=settings["args"])}
    with pytest.raises(UsageError, match="the loss of GRPOTrainer is that of texts sampled at its temperature alone"):
        drawn(world, ["a"] * 2, settings=settings)


def test_settings_that_do_not_go_with_rollouts(world, tmp_path):
    rule = tmp_path / "rule.yaml"
    rule.write_text('guardwrap: 1\nfields: [word]\nconstraint: {kind: keyword, words: "{word}"}\n')
    with pytest.raises(UsageError, match="nothing fills the field 'word'"):
        rollouts(rule)
    with pytest.raises(UsageError, match="'auto' plans each call anew"):
        rollouts(RULE, sampler="auto")
    with pytest.raises(UsageError, match="leave tools= out"):
        drawn(world, ["a"], settings={"tools": [len]})
    for sharded in (
        {"is_fsdp_enabled": True},
        {"accelerator": SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3)))},
    ):
        with pytest.raises(UsageError, match="no process has all weights"):
            drawn(world, ["a"], settings=sharded)


def test_dropout_is_off_while_texts_are_drawn_and_on_again(world):
    world = policy()
    world.model.config.attention_dropout = 0.5
    for module in world.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    world.model.train()
    output = drawn(world, ["a"] * 10)
    assert world.model.training
    law = policy().law()
    assert np.exp(output["log_a"]) == pytest.approx([law[tuple(ids)] for ids in output["completion_ids"]])


@pytest.fixture
def trl(tmp_path, monkeypatch):
    library = pytest.importorskip("trl", reason="TRL is not installed; see `make test-trl`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    return library


def saved(world):
    for part in (world.model, world.tokenizer):
        part.save_pretrained("model")
    return world


def grpo(trl, world, function, reward_funcs, prompts, generations, *, callbacks=(), peft_config=None, **settings):
    """Return a trainer, and the list of what the rollout function returns to it."""
    datasets = pytest.importorskip("datasets")
    outputs: list[dict[str, Any]] = []

    def noted(prompts, trainer):
        outputs.append(function(prompts, trainer))
        return outputs[-1]

    settings = {"max_steps": 2, "per_device_train_batch_size": generations * len(prompts), **settings}
    args = trl.GRPOConfig(
        "grpo",
        num_generations=generations,
        temperature=world.temperature,
        max_completion_length=world.max_new_tokens,
        use_cpu=True,
        report_to="none",
        logging_steps=1,
        **settings,
    )
    data = datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts])
    more = {"callbacks": list(callbacks), "peft_config": peft_config}
    return trl.GRPOTrainer("model", reward_funcs, args, train_dataset=data, rollout_func=noted, **more), outputs


@pytest.mark.slow
def test_the_script_of_the_page_trains(trl):
    """As written but for the model and the size."""
    saved(llama_world(letters="abcdefghijklmnopqrstuvwxyzW12 ", max_new_tokens=6, dtype=torch.float32))
    trainer, (first, second) = trained_by_page("rollout_func")
    assert all(0 <= line["rewards/short/mean"] <= 1 and np.isfinite(line["loss"]) for line in (first, second))
    assert not any(set("12") & set(text) for text in trainer._logs["completion"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"proposal": HINT}])
def test_the_gradient_of_the_trainer_itself(trl, options):
    """What arrives at the optimizer is ∇ E_g r: from its own loss, and as the function above computes it."""
    from transformers import TrainerCallback

    class Gradients(TrainerCallback):
        arrived: Any = None

        def on_pre_optimizer_step(self, args, state, control, *, model, **_):
            self.arrived = in_directions([parameter.grad for parameter in model.parameters()])

    world, gradients = saved(policy(dtype=torch.float32)), Gradients()

    def count(prompts, completions, completion_ids, **columns):
        return [value(world, ids) for ids in completion_ids]

    function = rollouts(RULE, budget=Budget(max_attempts=10**6), **options)
    exactly = {"loss_type": "dr_grpo", "scale_rewards": "none", "max_grad_norm": 0.0, "max_steps": 1, "bf16": False}
    trainer, outputs = grpo(trl, world, function, weighted(count), ["a"], 600, callbacks=[gradients], **exactly)
    trainer.train()
    (output,) = outputs
    rewards = rewarded(world, output, weighted(by_value(world)))
    gradient, error = trl_gradient(world, output, rewards)
    assert -world.max_new_tokens * gradients.arrived == pytest.approx(gradient, rel=1e-3, abs=1e-4)
    assert np.abs((gradient - gradient_of_mean_reward(world)) / error).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
def test_it_trains_on_chats_and_texts_with_groups_that_fell_short(trl, adapter):
    """Prompts have the trainer's tokens, log-probabilities are those of its model now, and no loss is NaN."""
    from peft import LoraConfig

    world = policy(dtype=torch.float32)
    world.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}b"
    saved(world)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear") if adapter else None
    for prompts in (["a", "b"], [[{"role": "user", "content": text}] for text in ("a", "ba")]):
        short = rollouts(RULE, budget=Budget(max_attempts=16))
        settings = {"learning_rate": 0.1, "max_steps": 3}
        scores = [reward(Regex("aa|ab$"), name="late"), reward(Regex("^.{4}"), name="long")]
        trainer, outputs = grpo(trl, world, short, scores, prompts, 4, peft_config=config, **settings)
        before = {name: tensor.clone() for name, tensor in trainer.model.named_parameters() if tensor.requires_grad}
        trainer.train()
        assert all(np.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)
        assert any((before[n] != p).any() for n, p in trainer.model.named_parameters() if p.requires_grad)
        accepted = [text for output in outputs for text in output["accepted"]]
        assert {True, False} == set(accepted)
        model = trainer.accelerator.unwrap_model(trainer.model).eval()
        output = short(sorted(prompts * 4, key=str), trainer)
        expected, _, _ = trainer._tokenize_prompts(sorted(prompts * 4, key=str))
        assert output["prompt_ids"] == expected
        for prompt, ids, log_a in zip(output["prompt_ids"], output["completion_ids"], output["log_a"], strict=True):
            if log_a is not None:
                logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
                steps = (logits.double() / 0.7).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
                assert log_a == pytest.approx(float(steps.sum()), abs=1e-4)
