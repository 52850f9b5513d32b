"""Results of a training: an adapter with a correct card however it ended, an unchanged model, and warnings."""

import copy
import json
import math
import shutil
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from guardwrap import Budget, GuardedGenerator
from guardwrap.adapters import Card, Figures
from guardwrap.adapters.adapter_folder import WEIGHTS
from guardwrap.adapters.card import Figure
from guardwrap.metrics import pareto_k
from guardwrap.outcomes import Estimate
from guardwrap.support.files import CARD
from guardwrap.testing import goodness_of_fit, llama_world
from guardwrap.training import rounds, train
from guardwrap.training.learning_curve import Row, Stage, summarise, warnings_of
from guardwrap.training.policy import update
from guardwrap.training.rounds import Gold
from guardwrap.training.task import Sample
from guardwrap.training.train import _tail
from guardwrap.training.trainer import Trainer
from tests.training.fixtures_training import DOUBLED, guarded_of, kl, settings_of, trainer_of


@pytest.fixture
def small():
    return llama_world()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of an uninterrupted training."""
    folder, world = tmp_path_factory.mktemp("whole"), llama_world()
    train(guarded_of(world), settings_of(world), folder)
    return folder


def card_in(folder):
    return Card.read(folder / "adapter" / CARD)


def usable(world, folder):
    """Return whether the adapter of a training loads and gives texts that satisfy the constraint."""
    guarded = guarded_of(world, adapter=folder / "adapter", budget=Budget(max_attempts=None), seed=1)
    outcome = guarded.run(world.prompt, num_return_sequences=10, **world.settings)[0]
    return outcome.ok and all(DOUBLED.accepts(text) for text in outcome.texts)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replay", "dpg", "sft"])
def test_the_card_says_what_it_cost(tmp_path, small, method):
    hints = {"hints": ["b{prompt}"], "warm_samples": 50} if method == "dpg" else {}
    trained = train(guarded_of(small), settings_of(small, method=method, gold_attempts=300, **hints), tmp_path)
    card = card_in(tmp_path)
    assert (card.samples, card.tokens, card.seed) == (trained.samples, trained.tokens, 0)
    assert trained.samples == trained.curve[-1].samples <= 400
    assert card.constraint_digest == DOUBLED.digest
    assert card.figures.acceptance_after.estimate == trained.figures["acceptance_after"]
    assert card.figures.pareto_k == Figure.of(trained.figures.get("pareto_k"))
    z = sum(p for ids, p in small.law().items() if DOUBLED.accepts(small.draw(ids).text))
    assert card.figures.acceptance_before.low < z < card.figures.acceptance_before.high
    assert not [note for note in card.notes if "warning" in note]
    assert usable(small, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [{"tokens": 200}, {"seconds": 1e-9}, {"samples": 50}])
@pytest.mark.parametrize("method", ["replay", "dpg"])
def test_a_budget_ends_it_and_what_is_trained_is_saved(tmp_path, small, monkeypatch, method, budget):
    monkeypatch.setattr(rounds, "CHUNK", 20)
    trained = train(guarded_of(small), settings_of(small, method=method, **budget), tmp_path)
    card = card_in(tmp_path)
    assert card.samples == trained.samples < 400
    if "tokens" in budget:
        # A chunk that begins within the budget is finished.
        assert 200 <= trained.tokens < 200 + 20 * small.max_new_tokens
    if "seconds" in budget:
        assert (trained.samples, trained.curve) == (0, ())
        assert any("nothing was learned" in note for note in card.notes)
    assert usable(small, tmp_path)


def test_a_budget_that_ends_before_the_model_s_own_attempts(tmp_path, small, monkeypatch):
    """There is nothing to branch at then; it was a division by zero."""
    monkeypatch.setattr(rounds, "CHUNK", 20)
    hints = {"hints": ["b{prompt}"], "warm_samples": 200, "tokens": 150}
    trained = train(guarded_of(small), settings_of(small, **hints), tmp_path)
    assert trained.samples < 100
    assert usable(small, tmp_path)


def test_seconds_end_learning_too(tmp_path, small, monkeypatch):
    trainer = trainer_of(tmp_path, small, seconds=1000.0)
    looks = iter([False] * 3 + [True] * 100)  # the time limit is reached during learning
    monkeypatch.setattr(trainer, "_late", lambda: next(looks))
    trainer.run()
    (row,) = trainer.state.curve
    assert row.updates <= 10
    assert trainer.policy.digest() != trainer_of(tmp_path / "new", small).policy.digest()


@pytest.mark.slow
def test_what_is_drawn_to_measure_is_apart_from_the_budget(tmp_path, small):
    trainer = trainer_of(tmp_path, small, gold_attempts=500, samples=100, tokens=1000, seconds=500.0)
    trainer.find_gold()
    trainer._began -= 1000  # as if that had taken 1000 seconds
    trainer.run()
    assert trainer.state.samples == 100
    assert trainer.state.seconds < 500


@pytest.mark.slow
def test_who_follows_it_hears_of_each_part(tmp_path, small):
    stages: list[Stage] = []
    made: list[int] = []
    settings = settings_of(small, gold_attempts=300)
    train(guarded_of(small), settings, tmp_path, made=made.append, follow=stages.append)
    assert list(dict.fromkeys(stage.name for stage in stages)) == ["gold", "samples", "final"]
    for name, total in (("gold", 300), ("samples", 400), ("final", 100)):
        counts = [stage.done for stage in stages if stage.name == name]
        assert (counts[0], counts[-1]) == (0, total)
        assert counts == sorted(counts)
        assert {(stage.total, stage.kept) for stage in stages if stage.name == name} == {(total, 0)}
    assert sum(made) == 400
    again: list[Stage] = []
    train(guarded_of(small), settings, tmp_path, made=made.append, follow=again.append)
    assert {stage.name: (stage.done, stage.kept) for stage in again} == {
        "gold": (300, 300),
        "samples": (400, 400),
        "final": (100, 100),
    }
    assert sum(made) == 400


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["drawing", "learning", "measuring"])
def test_an_interruption_saves_too(tmp_path, small, whole, monkeypatch, moment):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    calls = 0

    def later(*args, **options):
        nonlocal calls
        calls += 1
        return interrupted() if calls == 8 else update(*args, **options)

    with monkeypatch.context() as patched:
        if moment == "drawing":
            patched.setattr(Trainer, "_absorb", interrupted)
        elif moment == "learning":
            patched.setattr("guardwrap.training.trainer.update", later)
        else:
            patched.setattr(sys.modules["guardwrap.training.train"], "_measured", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(guarded_of(small), settings_of(small), tmp_path)
    card = card_in(tmp_path)
    assert card.notes == ["interrupted: nothing was measured"]
    assert card.figures.acceptance_after is None
    assert card.samples == {"drawing": 86, "learning": 100, "measuring": 400}[moment]
    assert usable(small, tmp_path)
    trained = train(guarded_of(small), settings_of(small), tmp_path)
    assert trained.samples == 400
    weights = [(folder / "adapter" / WEIGHTS).read_bytes() for folder in (tmp_path, whole)]
    assert weights[0] == weights[1]


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["gold", "measuring"])
def test_an_interrupted_rerun_keeps_the_figures_of_the_same_weights(tmp_path, small, whole, monkeypatch, moment):
    folder = shutil.copytree(whole, tmp_path / "again")
    before = card_in(folder)
    assert before.figures.acceptance_after is not None
    place = (Gold, "draw") if moment == "gold" else (sys.modules["guardwrap.training.train"], "_measured")
    with monkeypatch.context() as patched:
        patched.setattr(*place, stopped)
        with pytest.raises(KeyboardInterrupt):
            train(guarded_of(small), settings_of(small, gold_attempts=100), folder)
    after = card_in(folder)
    assert (after.figures, after.notes) == (before.figures, before.notes)
    assert usable(small, folder)


def test_negative_control_figures_of_other_weights_are_not_kept(tmp_path, small, whole, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "again")
    monkeypatch.setattr(sys.modules["guardwrap.training.train"], "_measured", stopped)
    with pytest.raises(KeyboardInterrupt):  # after more updates
        train(guarded_of(small), settings_of(small, samples=600), folder)
    card = card_in(folder)
    assert card.files[WEIGHTS] != card_in(whole).files[WEIGHTS]
    assert card.figures == Figures()
    assert card.notes == ["interrupted: nothing was measured"]


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_the_model_stays_as_it_is(tmp_path, small, full):
    model = small.model
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modules = [type(module) for module in model.modules()]
    train(guarded_of(small), settings_of(small, full=full, samples=100), tmp_path)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [type(module) for module in model.modules()] == modules
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_all_weights_can_be_trained(tmp_path, small):
    settings = settings_of(small, full=True, learning_rate=5e-3, gold_attempts=500)
    trained = train(guarded_of(small), settings, tmp_path)
    assert trained.figures["acceptance_after"].low > trained.figures["acceptance_before"].high
    guarded = guarded_of(small, adapter=tmp_path / "model", budget=Budget(max_attempts=None), seed=1)
    assert guarded.run(small.prompt, **small.settings)[0].ok


@pytest.mark.slow
def test_others_generate_while_it_trains(tmp_path, small):
    pipe = small.pipeline()
    trained, failed = [], []

    def training():
        try:
            trainer = Trainer(GuardedGenerator(pipe, DOUBLED, batch_size=64), settings_of(small), tmp_path)
            trainer.run()
            trained.append(trainer.policy.digest())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=training)
    thread.start()
    texts: list[tuple[int, ...]] = []
    guarded = GuardedGenerator(pipe, DOUBLED, batch_size=64, budget=Budget(max_attempts=None), seed=3)
    while thread.is_alive() or len(texts) < 1000:
        outcome = guarded.run(small.prompt, num_return_sequences=200, **small.settings)[0]
        texts += [draw.token_ids for draw in outcome.draws]
    thread.join()
    assert not failed
    assert goodness_of_fit(texts, small.gold(DOUBLED)) > 1e-3
    alone = trainer_of(tmp_path / "alone", small)
    alone.run()
    assert trained == [alone.policy.digest()]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replay", "dpg"])
def test_a_bfloat16_model_trains_an_adapter_in_float32(tmp_path, method):
    world = llama_world()
    world.model.to(torch.bfloat16)
    trainer = trainer_of(tmp_path, world, method=method)
    before = kl(trainer, world)
    trainer.run()
    assert {tensor.dtype for tensor in trainer.policy.parameters.values()} == {torch.float32}
    assert {tensor.dtype for tensor in world.model.parameters()} == {torch.bfloat16}
    assert kl(trainer, world) < before - 0.05


def test_gradients_that_the_caller_has_turned_off(tmp_path, small):
    trainer = trainer_of(tmp_path, small, samples=100, rounds=1, updates=2)
    before = trainer.policy.digest()
    with torch.no_grad():
        trainer.run()
    assert trainer.policy.digest() != before


def two_prompts():
    """Return a world whose two prompts have different Z."""
    return llama_world(seed=3), ["a", "ba"]


@pytest.mark.slow
def test_each_prompt_has_a_z_of_its_own(tmp_path):
    world, prompts = two_prompts()
    trainer = trainer_of(tmp_path, world, prompts=prompts, samples=3000, rounds=2, updates=20)
    laws = [replace(world, prompt=prompt).law() for prompt in prompts]
    z = np.array([sum(p for ids, p in law.items() if DOUBLED.accepts(world.draw(ids).text)) for law in laws])
    assert z.max() > 1.3 * z.min()
    trainer.run()
    buffer = trainer.state.buffer
    assert trainer.state.samples == 3000
    drawn = dict(zip(trainer.state.laws, buffer.drawn, strict=True))
    branches = sum(origin == trainer.state.laws.index("branches") for origin in buffer.origin)
    stand_for = drawn.pop("branches")
    assert 3000 - branches > sum(map(sum, drawn.values())) > 0.9 * 3000
    assert sum(stand_for) > branches
    # Unbiased: within five standard errors of the mean of the weights.
    weights, which = np.exp(buffer.log_weights()), np.array([sample.prompt for sample in buffer.samples])
    for prompt, (estimate, exact) in enumerate(zip(buffer.partition(), z, strict=True)):
        error = math.sqrt((weights[which == prompt] ** 2).sum()) / 1500
        assert abs(estimate - exact) < 5 * error
        assert error < 0.1 * exact
    shares = buffer.shares(held_out=False)
    assert [shares[which == prompt].sum() for prompt in (0, 1)] == pytest.approx([0.5, 0.5], abs=0.01)
    for prompt, each in enumerate(prompts):
        assert kl(trainer, replace(world, prompt=each), prompt) < -math.log(z[prompt])


def test_more_prompts_than_samples_of_a_step(tmp_path, small):
    trainer = trainer_of(tmp_path, small, prompts=["a", "b", "ab"], method="dpg", samples=10, samples_per_step=2)
    trainer.run()
    assert trainer.state.samples == 9  # three for each prompt
    assert [row.samples for row in trainer.state.curve] == [3, 6, 9]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replay", "dpg"])
def test_chats(tmp_path, small, method):
    small.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    options = {"chat": True, "method": method, "hints": ["b{prompt}"], "warm_samples": 100}
    trained = train(guarded_of(small), settings_of(small, **options), tmp_path)
    assert trained.samples == 400
    assert card_in(tmp_path).prompts.first == [[{"role": "user", "content": "a"}]]


@pytest.mark.slow
def test_gold_kl_is_of_the_policy(tmp_path, small):
    trainer = trainer_of(tmp_path, small, gold_attempts=4000)
    trainer.find_gold()
    trainer.run()
    estimate = trainer.kl_on_gold()
    assert estimate is not None
    assert estimate.low < kl(trainer, small) < estimate.high


# Warnings


def weighed(trainer, samples=400, seed=0):
    """Return the row for new draws of the current policy."""
    drawn = rounds.draw_round(
        trainer.task, trainer.policy.source(), samples, seed=(seed, "test"), digest="test", folder=trainer.folder / "t"
    )
    base = trainer.task.log_probabilities(trainer.task.model, drawn.samples)
    rate = len(base) / samples
    row = Row(0, "policy", samples, drawn.tokens, 0.0, Estimate(rate, rate, rate), len(base))
    summarise(row, drawn.log_weights([a - b for a, b in zip(base, drawn.log_seen, strict=True)]))
    return row


def weights(accepted, attempts):
    """Return log-weights of the attempts of one prompt, of which the rest was rejected."""
    return [np.array([*accepted, *[-math.inf] * (attempts - len(accepted))])]


def taught(trainer, world, keep):
    """Train the policy on a part of g."""
    gold = {ids: p for ids, p in world.gold(DOUBLED).items() if keep(ids)}
    samples = [Sample(0, ids, len(ids)) for ids in gold]
    optimizer = trainer.policy.adam(0.05)
    for _ in range(150):
        update(trainer.policy, optimizer, trainer.task, samples, list(gold.values()), exact_ends=False, clip=1.0)


def rare(ids):
    """Return whether a text is in the ninth of g that begins with "ba"."""
    return ids[:2] == (2, 1)


@pytest.mark.slow
def test_a_policy_that_has_lost_part_of_g_is_warned_of(tmp_path, small):
    trainer = trainer_of(tmp_path, small, full=True)
    taught(trainer, small, rare)
    assert kl(trainer, small) > 20
    row = weighed(trainer)
    assert row.acceptance.value == 1  # these figures look good although part of g is missing
    assert row.effective.value > 399
    assert row.kl.value < 5
    trainer.gold = Gold.draw(trainer.task, 2000, tmp_path / "gold")
    (warning,) = warnings_of(row, trainer.gold.drawn.acceptance)
    assert "is far below the model's acceptance rate" in warning
    assert "these draws miss part of g" in warning
    row.mixture = trainer.gold.drawn.acceptance.value  # the estimate of replay and dpg without draws of g
    (warning,) = warnings_of(row, None)
    assert "is far below Ẑ of all draws so far" in warning


@pytest.mark.slow
def test_a_healthy_policy_is_not_warned_of(tmp_path, small):
    trainer = trainer_of(tmp_path, small, rank=8)
    taught(trainer, small, lambda ids: True)
    row = weighed(trainer)
    row.mixture = row.partition
    trainer.gold = Gold.draw(trainer.task, 2000, tmp_path / "gold")
    assert warnings_of(row, trainer.gold.drawn.acceptance) == warnings_of(row, None) == []


def test_chance_alone_gives_no_warning():
    # Of 2 000 attempts of the model itself 4 satisfy the constraint on average, so a step may have 0 or 1.
    chance = np.random.default_rng(0)
    for accepted in chance.binomial(2000, 0.002, size=200):
        row = Row(0, "policy", 2000, 0, 0.0, Estimate(0.002, 0.0, 0.01), int(accepted), mixture=0.002)
        summarise(row, weights([0.0] * accepted, 2000))
        assert not [warning for warning in warnings_of(row, Estimate(0.002, 0.0018, 0.0022)) if "lost" in warning]


def test_a_card_says_how_heavy_the_tail_is():
    """Of several prompts, k is that of the heaviest tail, and the note counts those that are too heavy."""
    uniform = (np.arange(400) + 0.5) / 400
    violating = np.full(100, -math.inf)
    light, heavy = (np.concatenate([-k * np.log1p(-uniform), violating]) for k in (0.1, 1.0))
    worst, note = _tail([light, heavy])
    assert worst == pareto_k(heavy)
    said = (
        f"the weights' tail is too heavy (Pareto k {worst.value:.3g}) for 1 of 2 prompts: distances to g from weights"
    )
    assert (note or "").startswith(said)
    assert _tail([light, light]) == (pareto_k(light), None), "the note is not always there"
    assert _tail([np.zeros(25), violating]) == (None, None), "equal weights have no tail"
    assert (_tail([np.zeros(5)])[1] or "").startswith("too few texts"), "unless they are few"
    worst, note = _tail([heavy[:400:20]])
    assert worst is None
    assert (note or "").startswith("too few texts to tell how heavy the weights' tail is: distances")


def test_a_tiny_effective_sample_size_is_warned_of():
    row = Row(0, "hint", 1000, 0, 0.0, Estimate(0.9, 0.88, 0.92), 900, mixture=0.001)
    summarise(row, weights([-9.0] * 899 + [0.5], 1000))  # one draw has almost all weight
    (warning,) = warnings_of(row, None)
    assert "900 accepted draws are worth only 1.1 draws of g" in warning


@pytest.mark.slow
def test_what_sft_has_lost_is_warned_of_in_the_end(tmp_path, small, monkeypatch, caplog):
    # Its rounds compute no weights; only the final draws have them.
    def learn(self, number, *_):
        self.state.fit.step = 1
        taught(self, small, rare)

    monkeypatch.setattr(Trainer, "_learn", learn)
    settings = settings_of(small, method="sft", full=True, rounds=1, gold_attempts=1000)
    trained = train(guarded_of(small), settings, tmp_path)
    assert not any(row.warnings for row in trained.curve)
    assert any(note.startswith("warning: Ẑ") and "these draws miss part of g" in note for note in trained.notes)
    assert "these draws miss part of g" in caplog.text


def test_a_row_reads_back_with_bounds_that_there_are_not():
    rate = Estimate(0.1, 0.0, 0.3)
    row = Row(0, "base", 10, 20, 1.0, rate, 1, kl=Estimate(1.0, -math.inf, math.inf), kl_gold=rate)
    assert Row.from_dict(json.loads(json.dumps(row.to_dict(), allow_nan=False))) == row
