"""Descriptions of adapters in reports: figures of the card, and how a call differs from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor

from guardwrap import GuardedGenerator, Masked, Regex, Twisted
from guardwrap.adapters import Card, Figures, describe, save_adapter
from guardwrap.adapters.card import CardPrompts, readme
from guardwrap.calls.pilot import card_figures
from guardwrap.calls.sessions import LocalSession
from guardwrap.constraints import load
from guardwrap.support.files import content
from guardwrap.testing import World
from tests.fixtures_adapters import CONSTRAINT, KL, card_of, guarded_of, trained, world_of

KNOWN = "KL(g‖g') = 0.61 [0.5, 0.72] nats, measured on its card's prompts"
NONE, PERHAPS = ", of which this is none", ", of which this is perhaps none"
OTHER = ", under other generation settings"
CHAT = [{"role": "user", "content": "a"}]


def folder_of(world: World, folder: Path, **others: Any) -> Path:
    save_adapter(folder, trained(world.model), card_of(world).model_copy(update=others))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(world_of(), tmp_path / "small")


def test_under_the_cards_settings_and_prompts_its_figure_stands_alone(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    for same in (
        {},
        {"top_p": 1.0, "repetition_penalty": 1.0, "num_return_sequences": 2, "use_cache": False},
        {"temperature": None, "generation_config": GenerationConfig(**world.settings)},
        {"return_full_text": False},
    ):
        options = {**world.settings, **same}
        options = {"generation_config": options["generation_config"]} if "generation_config" in options else options
        (outcome,) = guarded.run(world.prompt, **options)
        assert f"({KNOWN})" in outcome.report.drawn_from
        assert outcome.report.notes == ()


class Once(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": 1.0}, "temperature=0.8 (here 1.0)"),
        ({"top_k": 2, "temperature": 0.5}, "temperature=0.8 (here 0.5), top_k=0 (here 2)"),
        ({"max_new_tokens": 3}, "max_new_tokens=4 (here 3)"),
        ({"repetition_penalty": 1.3}, "repetition_penalty=1.0 (here 1.3)"),
        ({"logits_processor": [Once()]}, "logits_processor=None (here [<"),
    ],
)
def test_other_settings_are_said_and_named(folder: Path, change: dict[str, Any], said: str) -> None:
    world = world_of()
    (outcome,) = guarded_of(world, folder).run(world.prompt, **{**world.settings, **change})
    assert f"({KNOWN}{OTHER})" in str(outcome.report.proposal)
    note = outcome.report.notes[0]
    assert note.startswith(f"the adapter's card is for other generation settings: {said}")
    # A card has no figures for the model itself.
    (plain,) = guarded_of(world, folder).run(world.prompt, adapter=False, **{**world.settings, **change})
    assert not any("card" in note for note in plain.report.notes)


def test_settings_of_the_pipelines_own_and_of_a_bare_generate(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    (outcome,) = guarded.run(world.prompt, max_new_tokens=4)  # the pipeline's settings differ
    assert OTHER in outcome.report.drawn_from
    ids = torch.tensor([world.tokenizer(world.prompt)["input_ids"]], device=world.model.device)
    for options, notes in ((world.settings, 0), ({**world.settings, "temperature": 0.5}, 1)):
        assert isinstance(guarded.session, LocalSession)
        job, *_ = guarded.session.tensor_job(ids, options)
        assert len(job.source.notes) == notes


def test_other_prompts_are_said(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    outcomes = guarded.run([world.prompt, f"{world.prompt}b"], **world.settings)
    assert f"({KNOWN})" in outcomes[0].report.drawn_from
    assert f"({KNOWN}{NONE})" in outcomes[1].report.drawn_from
    (both,) = guarded.run(f"{world.prompt}b", **{**world.settings, "temperature": 1.0})
    assert f"({KNOWN}{NONE}{OTHER})" in both.report.drawn_from


@pytest.mark.parametrize(("proposal", "changed"), [(Masked(), "masked"), (Twisted(), "twisted")])
def test_a_distance_without_a_mask_is_not_that_with_one(folder: Path, proposal: Any, changed: str) -> None:
    world = world_of()
    (outcome,) = guarded_of(world, folder, proposal=proposal).run(world.prompt, **world.settings)
    assert f"({KNOWN}, where nothing was {changed}), {changed} (g')" in outcome.report.drawn_from


def test_a_plan_may_use_the_figures_of_a_card_only_for_its_prompt_and_settings(tmp_path: Path) -> None:
    world = world_of()
    folder = folder_of(world, tmp_path / "small")
    guarded = guarded_of(world, folder)
    assert guarded.adapter is not None
    assert guarded.adapter.card is not None

    def figures(prompts: Any, options: Any, of: GuardedGenerator = guarded) -> Any:
        return card_figures(of.session.job({**options, "seed": 0}), prompts)

    assert figures([world.prompt], world.settings) == guarded.adapter.card.figures
    for other in ([f"{world.prompt}b"], [world.prompt, "b"]):
        assert figures(other, world.settings) is None
    for more in (
        {"temperature": 0.5},
        {"adapter": False},
        {"proposal": Masked()},
        {"constraints": CONSTRAINT & Regex("a")},
    ):
        assert figures([world.prompt], {**world.settings, **more}) is None
    assert figures([world.prompt], {**world.settings, "constraint_each": [Regex("a")]}) is None
    several = folder_of(world, tmp_path / "several", prompts=CardPrompts.of([world.prompt, "b"]))
    assert figures([world.prompt], world.settings, guarded_of(world, several)) is None


def test_of_many_prompts_a_card_spells_a_few_and_knows_the_digests_of_all(tmp_path: Path) -> None:
    world = world_of()
    prompts = CardPrompts.of([world.prompt, "b", "ab", "bb"])
    for known, where in ((prompts, ("", NONE)), (prompts.model_copy(update={"digests": ""}), (PERHAPS, PERHAPS))):
        guarded = guarded_of(world, folder_of(world, tmp_path / "small", prompts=known))
        first, last, other = guarded.run([world.prompt, "bb", "bab"], **world.settings)
        assert f"({KNOWN})" in first.report.drawn_from
        for outcome, said in zip((last, other), where, strict=True):
            assert f"({KNOWN}{said})" in outcome.report.drawn_from


def test_of_a_family_the_rule_decides_too_whether_it_was_trained_on(tmp_path: Path) -> None:
    """The same prompt is on both sides of the training, with different rules."""
    (tmp_path / "family.yaml").write_text("guardwrap: 1\nfields: [it]\nconstraint: {kind: keyword, words: '{it}'}\n")
    world, family = world_of(), load(tmp_path / "family.yaml").constraint
    card = describe(
        world.model, family, [world.prompt, "b"], name="tiny/llama", settings=world.settings, method="none", seed=0,
        samples=100, held_out=1, rules=[{"it": "a"}, {"it": "aa"}],
        figures=Figures(kl_gold_guarded=KL, unseen_kl_gold_guarded=KL.model_copy(update={"value": 0.7})),
    )  # fmt: skip
    (tmp_path / "small").mkdir()
    save_adapter(tmp_path / "small", trained(world.model), card)
    guarded = GuardedGenerator(world.pipeline(), family, adapter=tmp_path / "small", seed=1)
    rules: list[Mapping[str, Any]] = [{"it": "a"}, {"it": "b"}, {"it": "a"}]
    texts = guarded.run([world.prompt, world.prompt, "bb"], fields=rules, **world.settings)
    one = "the prompts and rules that it was trained on, of which this is one"
    seen = f"(KL(g‖g') = 0.61 [0.5, 0.72] nats, measured on {one})"
    like = "prompts and rules like those that it was trained on, of which this is none"
    unseen = f"(KL(g‖g') = 0.7 [0.5, 0.72] nats, measured on {like})"
    assert [str(each.report.proposal).split(" ", 3)[-1] for each in texts] == [seen, unseen, unseen]
    older = card.prompts.model_copy(update={"rules": ""})
    assert (card.prompts.has_rule({"it": "b"}), older.has_rule({"it": "a"})) == (False, None)


@pytest.mark.parametrize(
    ("prompts", "prompt", "known"),
    [
        (["a"], "a", True),
        (["a"], "b", False),
        (["a" * 9_000], "a" * 9_000, True),  # by its digest
        (["a" * 9_000], "b", False),
        (["a" * 9_000, "b"], "c", False),
        (["a" * 9_000, "b"], "a" * 9_000, True),
        ([CHAT, "b"], CHAT, True),
        ([CHAT, "b"], "a", False),
        (["a"], [1, 2], None),
    ],
)
def test_whether_a_prompt_is_one_of_a_cards(prompts: list[Any], prompt: Any, known: bool | None) -> None:
    assert CardPrompts.of(prompts).has(prompt) is known


def test_a_card_may_say_anything_of_settings(tmp_path: Path) -> None:
    world = world_of()
    settings = {"custom_generate": "someone/code", "trust_remote_code": True, "prefix": 3, "no_such": [1]}
    guarded = guarded_of(world, folder_of(world, tmp_path / "small", settings=settings))
    (outcome,) = guarded.run(world.prompt, **world.settings)
    assert OTHER in outcome.report.drawn_from
    assert all(len(note.splitlines()) == 1 for note in outcome.report.notes)


def test_the_readme_passes_the_cards_settings_in_its_example() -> None:
    world = world_of()
    text = readme(card_of(world), "small")
    (call,) = [line for line in text.splitlines() if line.startswith("guarded(")]
    asked: dict[str, Any] = {}

    def guarded(prompt: str, **options: Any) -> None:
        asked.update(options, prompt=prompt)

    exec(call, {"guarded": guarded})
    assert asked == {"prompt": world.prompt, **world.settings}
    card = Card.read(content("adapters") / "json-object" / "card.yaml")
    assert "temperature=1.0, top_k=0, max_new_tokens=64)" in readme(card, "json-object")
