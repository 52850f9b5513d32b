"""Adapters and other models as proposals, drawn by the engine: figures compared with those of enumerated worlds."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from guardwrap import GuardedGenerator
from guardwrap.adapters import save_adapter
from guardwrap.calls import choice
from guardwrap.errors import AdapterError, AdapterMismatch, UsageError
from guardwrap.evaluation.evaluation_run import _law_of, evaluate
from guardwrap.evaluation.evaluation_settings import EvaluationSettings
from guardwrap.testing import World
from tests.evaluation.fixtures_recordings import undrawn
from tests.fixtures_adapters import CONSTRAINT, card_of, trained, world_of

ATTEMPTS = 2000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    undrawn(monkeypatch)
    for place in ("figures", "tradeoff"):  # Self-BLEU does not matter here
        monkeypatch.setattr(f"guardwrap.evaluation.{place}.diversity", lambda texts: {})


def evaluated(folder: Path, world: World, proposals: dict[str, Any], attempts: int = ATTEMPTS) -> Any:
    settings = EvaluationSettings(
        constraint="x",
        prompts=[world.prompt],
        proposals=proposals,
        generation=world.settings,
        attempts=attempts,
        steps=[1],
        texts=50,
        seed=2,
    )
    source = GuardedGenerator(world.pipeline(), CONSTRAINT, batch_size=64)
    choose = partial(choice.chosen_source, source.session)
    return evaluate(source, settings, CONSTRAINT, folder, choose=choose).prompts[0].proposals


def misses(figures: Any, world: World, other: World) -> list[str]:
    """Return names of figures whose interval does not contain the value computed from both distributions."""
    gold, law = world.gold(CONSTRAINT), other.law()
    accepted = sum(law[ids] for ids in gold)
    kl = sum(p * math.log(p * accepted / law[ids]) for ids, p in gold.items())
    truth = {
        "acceptance_rate": accepted,
        "partition": sum(world.law()[ids] for ids in gold),
        "kl_gold_guarded": kl,
        "kl_gold_proposal": kl - math.log(accepted),
    }
    return [name for name, value in truth.items() if not figures[name].low <= value <= figures[name].high]


@pytest.fixture
def worlds(tmp_path: Path) -> dict[str, World]:
    """A model and two proposals, saved in folders of the same names."""
    world, other = world_of(), world_of()
    adapted = trained(world.model, strength=0.12)
    with torch.no_grad():
        other.model.lm_head.weight.mul_(0.8)
    save_adapter(tmp_path / "adapter", adapted, card_of(world))
    for part in (other.model, other.tokenizer):
        part.save_pretrained(tmp_path / "model")
    return {"world": world, "adapter": dataclasses.replace(world, model=adapted.get_base_model()), "model": other}


@pytest.mark.slow
def test_figures_cover_the_truth(tmp_path: Path, worlds: dict[str, World]) -> None:
    kinds = ("adapter", "model")
    found = evaluated(tmp_path / "out", worlds["world"], {kind: {kind: str(tmp_path / kind)} for kind in kinds})
    for kind in kinds:
        assert misses(found[kind].figures, worlds["world"], worlds[kind]) == []
        assert misses(found[kind].figures, worlds["world"], worlds["world"]) != [], "the laws are too much alike"


def test_negative_control_attempts_of_the_model_itself(
    tmp_path: Path, worlds: dict[str, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardwrap.evaluation.evaluation_run._drawn_from", lambda given, load: {})
    found = evaluated(tmp_path / "out", worlds["world"], {"adapter": {"adapter": str(tmp_path / "adapter")}})
    assert misses(found["adapter"].figures, worlds["world"], worlds["adapter"]) != []


SHAPED: dict[str, Any] = {"masked": "masked", "twisted": {"twisted": {"attempts": 64}}, "auto": "auto"}


def test_masks_twists_and_auto_are_weighed_by_what_was_drawn(tmp_path: Path, worlds: dict[str, World]) -> None:
    """Whatever attempts are drawn from, their weights give the model's own partition and no more than all of g."""
    world = worlds["world"]
    found = evaluated(tmp_path / "out", world, SHAPED)
    gold = world.gold(CONSTRAINT)
    partition = sum(world.law()[ids] for ids in gold)
    for name in SHAPED:
        figures = found[name].figures
        assert figures["partition"].low - 1e-5 <= partition <= figures["partition"].high + 1e-5, name
        assert figures["kl_gold_guarded"].high >= 0
    assert found["masked"].figures["acceptance_rate"].value > partition, "a mask leaves out what cannot pass"
    (note,) = [note for note in found["auto"].notes if "sampler='auto' chose" in note]
    assert note.startswith("sampler='auto' chose to draw from the model itself")
    assert not any("chose" in note for note in found["masked"].notes)


def test_what_auto_chose_is_kept_and_not_planned_again(
    tmp_path: Path, worlds: dict[str, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"auto": "auto"}
    first = evaluated(tmp_path / "out", worlds["world"], chosen, 200)["auto"]
    monkeypatch.setattr(choice, "chosen_source", lambda *_: pytest.fail("planned again"))
    again = evaluated(tmp_path / "out", worlds["world"], chosen, 200)["auto"]
    assert again.figures == first.figures
    assert again.notes == first.notes


def test_another_learned_file_is_another_proposal(tmp_path: Path, worlds: dict[str, World]) -> None:
    files = [tmp_path / name for name in ("a.npz", "b.npz", "c.npz")]
    for path, content in zip(files, ("x", "y", "x"), strict=True):
        path.write_text(content)
    laws = [_law_of({"twisted": {"learned": str(path)}}) for path in files]
    assert laws[0] == laws[2] != laws[1]
    with pytest.raises(UsageError, match="cannot read"):
        _law_of({"twisted": {"learned": str(tmp_path / "d.npz")}})


def test_what_cannot_be_drawn_from(tmp_path: Path, worlds: dict[str, World]) -> None:
    with pytest.raises(AdapterError, match="there is no folder"):
        evaluated(tmp_path / "out", worlds["world"], {"x": {"adapter": str(tmp_path / "nowhere")}}, 10)
    with pytest.raises(AdapterMismatch, match="was trained on"):
        evaluated(tmp_path / "out", worlds["model"], {"x": {"adapter": str(tmp_path / "adapter")}}, 10)
