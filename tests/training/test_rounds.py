"""The plan of rounds, and trainings that start from an adapter for a weaker constraint."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Regex
from guardwrap.adapters import Card
from guardwrap.errors import AdapterMismatch, UsageError
from guardwrap.testing import llama_world
from guardwrap.training import TrainingSettings, read_settings, train
from guardwrap.training.mixture import Mixture
from guardwrap.training.rounds import BASE, POLICY, continued, rounds
from guardwrap.training.trainer import Trainer
from tests.training.fixtures_training import guarded_of, kl, settings_of, trainer_of

HINTS = ["Think of a dragon. {prompt}", "A tale of dragons: {prompt}", "{prompt} and dragons"]


@st.composite
def settings(draw):
    prompts, hints = draw(st.integers(1, 7)), HINTS[: draw(st.integers(0, 3))]
    samples = draw(st.integers(prompts * (1 + 2 * len(hints)), 5000))
    return TrainingSettings(
        constraint="x",
        prompts=[str(number) for number in range(prompts)],
        method=draw(st.sampled_from(["replay", "dpg", "sft"])),
        hints=hints,
        warm_samples=draw(st.integers(min(samples, 2 * prompts * len(hints)), samples)),
        samples=samples,
        base_share=draw(st.sampled_from([0.0, 0.05, 0.5])),
        rounds=draw(st.integers(1, 8)),
        samples_per_step=draw(st.integers(1, 6000)),
    )


def total(planned):
    return sum(count for part in planned for _, count in part.draws)


@given(settings())
def test_all_samples_are_drawn_and_none_more(told):
    planned = rounds(told)
    # The remainders, of hints and of the rest, cannot be divided equally among prompts.
    assert told.samples - 2 * len(told.prompts) < total(planned) * len(told.prompts) <= told.samples
    assert all(count > 0 for part in planned for _, count in part.draws)
    laws = {law for part in planned for law, _ in part.draws}
    assert laws <= {BASE, POLICY, *told.hints}
    if told.method == "dpg":
        steps = [part for part in planned if part.learn == "dpg"]
        assert all(part.draws[0][0] == POLICY and len(part.draws) == 1 for part in steps)
        sizes = [part.draws[0][1] for part in steps]
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(settings(), st.integers(0, 12), st.integers(1, 8000))
def test_another_number_of_samples_keeps_what_has_begun(told, begun, samples):
    kept = rounds(told)[:begun]
    planned = continued(kept, told.model_copy(update={"samples": samples}), total(kept) * len(told.prompts))
    assert planned[: len(kept)] == kept
    prompts = len(told.prompts)
    assert total(planned) * prompts <= max(samples, total(kept) * prompts)
    assert planned == kept or total(planned) * prompts > samples - 2 * prompts
    if told.method != "sft":  # the warm start is not repeated
        assert all(law not in told.hints for part in planned[len(kept) :] for law, _ in part.draws)


@given(st.integers(1, 200), st.integers(1, 8))
def test_the_model_itself_has_its_share_of_few_attempts_too(attempts, several):
    """The weights have no bound if no attempt at their prompt is of the model itself."""
    settings = TrainingSettings(constraint="x", prompts=["a", "b"], start="x", samples=2 * attempts + 1, rounds=several)
    drawn = of_model = 0
    for part in rounds(settings):
        size, base = sum(count for _, count in part.draws), dict(part.draws).get(BASE, 0)
        drawn, of_model = drawn + size, of_model + base
        assert drawn <= 14 * of_model  # of 14 attempts a tenth is rounded to 1
        assert base == round(0.1 * size) or size <= 5
    first = rounds(settings)[:1]
    halved = continued(first, settings.model_copy(update={"samples": 40}), 2 * total(first))
    assert total(halved) == 20 or total(halved) == total(first) > 20


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
        Mixture,
        "log_law",
        lambda self, law, *drawn: log_law(self, BASE if law.startswith(POLICY) else law, *drawn),
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
