"""Invalid trainings raise errors with a reason before anything is drawn."""

import copy

import pytest
from peft import LoraConfig
from pydantic import ValidationError

from guardwrap import GuardedGenerator, Length, Prompt, Regex, constraint
from guardwrap.adapters import attach
from guardwrap.constraints import Share
from guardwrap.errors import GuardwrapError, ModelError, UsageError
from guardwrap.testing import llama_world
from guardwrap.training import train
from guardwrap.training.trainer import Trainer
from tests.fixtures_models import t5
from tests.training.fixtures_training import guarded_of, settings_of, trainer_of


@pytest.fixture(scope="module")
def small():
    return llama_world()


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({}, "top_k, here 50, keeps the proposal from texts that the model can give"),  # the pipeline's default
        ({"top_k": 3}, "pass top_k=0 as generation settings"),
        ({"top_k": 0, "top_p": 0.9}, "pass top_p=None as generation settings"),
        ({"top_k": 0, "min_p": 0.1}, "pass min_p=None"),
        ({"do_sample": False}, "greedy search draws nothing that could be weighed; pass do_sample=True"),
        ({"num_beams": 2, "do_sample": False}, "beam search draws nothing that could be weighed"),
        ({"top_k": 0, "tpo_p": 1}, "tpo_p"),
    ],
)
def test_settings_under_which_nothing_can_be_weighed(tmp_path, small, generation, message):
    with pytest.raises(GuardwrapError, match=message) as raised:
        trainer_of(tmp_path, small, generation={"max_new_tokens": 4, **generation})
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_rules_that_training_would_leave_out(tmp_path, small):
    share = Share(Regex("^a"), 0.5)
    with pytest.raises(UsageError, match="leave shares out"):
        trainer_of(tmp_path, small, constraint=[Regex("aa|bb"), share])
    unfollowed = constraint(lambda text: "aa" in text)
    with pytest.raises(UsageError, match=r"no automaton follows .*; give masked instead of twisted"):
        trainer_of(tmp_path, small, constraint=unfollowed, hints=["twisted"], warm_samples=100)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hints": ["say aa"]}, "needs {prompt}"),
        ({"hints": ["b{prompt}", "b{prompt}"], "warm_samples": 100}, "occurs twice"),
        ({"method": "ppo"}, "'replay', 'dpg' or 'sft'"),
        ({"hints": ["b{prompt}"], "warm_samples": 500}, "more than the whole budget"),
        ({"hints": ["b{prompt}"], "warm_samples": 0}, "less than one per prompt and hint"),
        ({"prompts": []}, "at least 1 item"),
        ({"prompts": ["a", "b", "a"], "samples": 2}, "samples=2 is less than one per prompt"),
        ({"generation": {"batch_size": 3}}, "batch_size is not a generation setting"),
        ({"samples": 0}, "greater than or equal to 1"),
        ({"learning_rate": 0.0}, "greater than 0"),
        ({"epoch": 3}, "Extra inputs"),
    ],
)
def test_settings_that_make_no_sense(small, fields, message):
    with pytest.raises(ValidationError, match=message):
        settings_of(small, **fields)


def test_sft_needs_no_warm_samples(small):
    assert settings_of(small, method="sft", hints=["b{prompt}"], warm_samples=500).samples == 400


def test_an_encoder_decoder(tmp_path, small):
    model, tokenizer = t5("ab")
    guarded = GuardedGenerator(model, Length(min=1, unit="characters"), tokenizer=tokenizer)
    with pytest.raises(UsageError, match="has an encoder and a decoder"):
        Trainer(guarded, settings_of(small), tmp_path)


def test_a_model_that_has_an_adapter(tmp_path, small):
    adapted = attach(small.model, LoraConfig(r=2, target_modules="all-linear"))
    guarded = GuardedGenerator(adapted, "catalogue:no-profanity", tokenizer=small.tokenizer)
    with pytest.raises(UsageError, match="the model already has an adapter"):
        Trainer(guarded, settings_of(small), tmp_path)


def test_a_wrapper_that_draws_from_something_else(tmp_path, small):
    guarded = guarded_of(small, proposal=Prompt("b{prompt}"))
    with pytest.raises(UsageError, match="pass a wrapper without a proposal"):
        Trainer(guarded, settings_of(small), tmp_path)


def test_quantised_weights_trained_in_full(tmp_path, small, monkeypatch):
    monkeypatch.setattr("guardwrap.training.policy.is_quantised", lambda model: True)
    with pytest.raises(UsageError, match="quantized weights cannot be trained; train an adapter"):
        trainer_of(tmp_path, small, full=True)


@pytest.mark.parametrize("method", ["replay", "dpg", "sft"])
def test_without_a_satisfying_sample_it_says_so(tmp_path, small, method, caplog):
    impossible = guarded_of(small, Length(min=100, unit="characters"))
    before = copy.deepcopy(small.model.state_dict())
    trained = train(impossible, settings_of(small, method=method, gold_attempts=100), tmp_path)
    assert all("there is nothing to learn from" in row.warnings[0] for row in trained.curve)
    assert "none of these attempts satisfies the constraint (acceptance rate below 0.0" in caplog.text
    assert "warning: nothing was learned: the adapter has no effect" in trained.notes
    assert any(note.startswith("KL is unknown") for note in trained.notes)
    assert trained.figures["acceptance_after"].value == 0
    again = train(impossible, settings_of(small, method=method, gold_attempts=100), tmp_path)  # from its checkpoint
    assert again.notes == trained.notes
    assert all((small.model.state_dict()[name] == tensor).all() for name, tensor in before.items())


@pytest.mark.parametrize("samples", [6, 12, 18, 24])
def test_a_handful_of_samples(tmp_path, small, samples):
    """With at most two accepted samples there is nothing to hold out, or nothing to learn from."""
    trained = train(guarded_of(small), settings_of(small, samples=samples, rounds=2, updates=5), tmp_path)
    assert trained.samples <= samples
    assert all(figure.value == figure.value for figure in trained.figures.values())


@pytest.mark.parametrize("method", ["dpg", "sft"])
def test_a_training_that_diverges_ends_by_name(tmp_path, small, method):
    trainer = trainer_of(tmp_path, small, method=method, learning_rate=1e30)
    with pytest.raises(ModelError, match=r"lower learning_rate|float32") as raised:
        trainer.run()
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_replay_that_diverges_goes_back_to_its_best(tmp_path, small):
    trainer = trainer_of(tmp_path, small, learning_rate=1e30)
    before = trainer.policy.digest()
    trainer.run()
    assert trainer.policy.digest() == before
    assert [row.updates for row in trainer.state.curve] == [0, 0, 0, 0]
