"""Adapters with a mask or a twist: log a of the model itself, minus log a' of the adapted model with its mask."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guardwrap import Masked, Twisted
from guardwrap.adapters import save_adapter
from guardwrap.calls import sessions
from guardwrap.models.proposal_draws import Weigher
from guardwrap.samplers import qrs
from guardwrap.testing import World, goodness_of_fit
from tests.fixtures_adapters import CONSTRAINT, guarded_of, trained, world_of

FITS, FAILS = 1e-3, 1e-9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("adapters") / "strong"
    save_adapter(place, trained(world_of().model, strength=0.25))
    return place


def drawn(world: World, folder: Path, proposal: Any, sampler: Any = "rejection", count: int = 4_000) -> list[Any]:
    guarded = guarded_of(world, folder, proposal=proposal, sampler=sampler)
    return [draw.token_ids for draw in guarded.run(world.prompt, num_return_sequences=count, **world.settings)[0].draws]


def largest_weight(world: World, folder: Path, proposal: Any) -> float:
    attempts = guarded_of(world, folder, proposal=proposal).attempts(world.prompt, 4_000, **world.settings)[0]
    return max(math.exp(attempt.log_weight) for attempt in attempts if attempt.log_weight is not None)


@pytest.mark.parametrize("proposal", [Masked(unseen=0.0), Twisted()])
def test_weights_lead_to_the_model_itself(folder: Path, proposal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: weights relative to the adapted model lead to that model, given the constraint."""
    world = world_of()
    gold = world.gold(CONSTRAINT)
    adapted = replace(world, model=trained(world.model, strength=0.25).get_base_model())
    assert goodness_of_fit(drawn(world, folder, proposal), gold) < FAILS
    exact = qrs(largest_weight(world, folder, proposal))
    assert goodness_of_fit(drawn(world, folder, proposal, exact), gold) > FITS

    monkeypatch.setattr(sessions, "Weigher", lambda _, proposal, **options: Weigher(proposal, proposal, **options))
    wrong = drawn(world, folder, proposal, qrs(largest_weight(world, folder, proposal)))
    assert goodness_of_fit(wrong, gold) < FAILS
    assert goodness_of_fit(wrong, adapted.gold(CONSTRAINT)) > FITS
