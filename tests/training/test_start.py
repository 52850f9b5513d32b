"""Trainings that start from an adapter for a weaker constraint, which satisfies the stricter one more often."""

from pathlib import Path

import pytest

from guardwrap import Regex
from guardwrap.adapters import Card
from guardwrap.errors import AdapterMismatch, UsageError
from guardwrap.testing import llama_world
from guardwrap.training import read_settings, train
from guardwrap.training.mixture import Mixture
from guardwrap.training.rounds import BASE, POLICY
from guardwrap.training.trainer import Trainer
from tests.training.fixtures_training import guarded_of, kl, settings_of, trainer_of

WEAK, STRICT = Regex("aa"), Regex("aaa")


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a trained adapter for the weaker constraint."""
    world, folder = llama_world(), tmp_path_factory.mktemp("weak")
    return str(train(guarded_of(world, WEAK), settings_of(world, samples=2000, updates=60), folder).folder)


@pytest.fixture(scope="module")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an adapter that has learned next to nothing."""
    world, few = llama_world(), {"samples": 100, "rounds": 1, "updates": 1}
    return str(train(guarded_of(world, WEAK), settings_of(world, **few), tmp_path_factory.mktemp("untaught")).folder)


def started(folder: Path, weak: str) -> Trainer:
    trainer = trainer_of(folder, constraint=STRICT, start=weak, samples=4000, rounds=2, updates=60)
    trainer.run()
    return trainer


@pytest.mark.slow
def test_what_it_begins_as_is_drawn_from_at_once(tmp_path: Path, weak: str) -> None:
    world = llama_world()
    z = sum(p for ids, p in world.law().items() if ids in world.gold(STRICT))
    itself, trainer = trainer_of(tmp_path / "itself", constraint=STRICT), started(tmp_path / "started", weak)
    first = trainer.state.curve[0]
    assert [[law for law, _ in part.draws] for part in trainer.state.plan] == [[POLICY, BASE]] * 2
    assert first.law == POLICY
    assert first.acceptance.low > 1.3 * z
    assert kl(trainer, world) < kl(itself, world) / 2
    assert trainer.state.buffer.partition()[0] == pytest.approx(z, rel=0.1)


@pytest.mark.slow
def test_negative_control_of_z_draws_taken_for_those_of_a_new_adapter(
    tmp_path: Path, weak: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = llama_world()
    z = sum(p for ids, p in world.law().items() if ids in world.gold(STRICT))
    log_law = Mixture.log_law
    monkeypatch.setattr(
        Mixture, "log_law", lambda self, law, drawn: log_law(self, BASE if law.startswith(POLICY) else law, drawn)
    )
    monkeypatch.setattr("guardwrap.training.mixture.is_exact", lambda model: False)
    assert started(tmp_path, weak).state.buffer.partition()[0] > 1.2 * z


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpg", "sft"])
def test_other_methods_go_on_from_it_too(tmp_path: Path, weak: str, method: str) -> None:
    trainer = trainer_of(tmp_path, constraint=STRICT, start=weak, method=method, samples=200)
    before = kl(trainer, llama_world())
    trainer.run()
    assert before < kl(trainer_of(tmp_path / "itself", constraint=STRICT), llama_world())
    assert kl(trainer, llama_world()) != before


@pytest.mark.slow
def test_a_folder_that_began_otherwise_is_refused(tmp_path: Path, weak: str) -> None:
    trainer_of(tmp_path, constraint=STRICT, start=weak, samples=100).run()
    assert trainer_of(tmp_path, constraint=STRICT, start=weak, samples=200).state.samples == 100
    train(guarded_of(llama_world(), WEAK), settings_of(llama_world(), seed=1), tmp_path / "other")
    for other in (str(tmp_path / "other" / "adapter"), None):
        with pytest.raises(UsageError, match=r"differs in (seed, )?start;"):
            trainer_of(tmp_path, constraint=STRICT, start=other, samples=200)


@pytest.mark.slow
def test_the_card_says_what_it_began_as(tmp_path: Path, weak: str) -> None:
    world = llama_world()
    trained = train(guarded_of(world, STRICT), settings_of(world, start=weak), tmp_path)
    assert Card.read(trained.folder / "card.yaml").hyperparameters["start"] == Path(weak).name


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, untaught: str) -> None:
    with pytest.raises(AdapterMismatch, match="start: the adapter 'adapter' was trained on") as raised:
        trainer_of(tmp_path, llama_world(seed=5), start=untaught)
    assert "\n" not in str(raised.value)


def test_a_full_model_cannot_begin_as_an_adapter(untaught: str) -> None:
    with pytest.raises(ValueError, match="remove start or full"):
        settings_of(llama_world(), start=untaught, full=True)


def test_it_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "weak").mkdir()
    (tmp_path / "strict.yaml").write_text("constraint: {kind: regex, pattern: aaa}\nprompts: [a]\nstart: weak\n")
    assert read_settings(tmp_path / "strict.yaml")[0].start == str(tmp_path / "weak")
    assert read_settings(tmp_path / "strict.yaml", changes={"start": "else"})[0].start == "else"
