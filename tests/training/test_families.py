"""Adapters for a family of constraints, filled from one file with the fields of each prompt."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guardwrap import GuardedGenerator, Keyword, Length
from guardwrap.adapters import Card
from guardwrap.constraints import load
from guardwrap.constraints.files.file_fields import demands
from guardwrap.constraints.files.template import ConstraintTemplate
from guardwrap.errors import AdapterMismatch, UsageError
from guardwrap.support.files import CARD
from guardwrap.testing import World, llama_world
from guardwrap.training import read_settings, train
from guardwrap.training.task import Sample
from guardwrap.training.train import _save
from guardwrap.training.trainer import Trainer
from tests.training.fixtures_training import guarded_of, settings_of

FAMILY = "guardwrap: 1\nfields: [double]\nconstraint: {kind: regex, pattern: '{double}'}\n"
ROWS = [(prompt, double) for double in ("aa", "bb", "ab") for prompt in ("a", "b", "ba")]
"""Prompts, and what must be in a text. The digest of its fields holds out "ab"."""


def written(folder: Path) -> Path:
    (folder / "family.yaml").write_text(FAMILY)
    lines = [json.dumps({"prompt": prompt, "double": double, "id": i}) for i, (prompt, double) in enumerate(ROWS)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (folder / "train.yaml").write_text("model: x\nconstraint: family.yaml\nprompts: prompts.jsonl\nheld_out: 0.1\n")
    return folder / "train.yaml"


def trainer_of(folder: Path, world: World, **others: Any) -> Trainer:
    settings, constraint = read_settings(written(folder))
    small = settings_of(world, prompts=settings.prompts, fields=settings.fields, held_out=0.1, **others)
    return Trainer(guarded_of(world, constraint), small, folder / "results")


def kl(trainer: Trainer, world: World, number: int) -> float:
    """Return KL(g‖π) of a prompt in nats, summed over all texts."""
    prompt, double = ROWS[number]
    family: Any = trainer.task.guarded.constraint
    gold = replace(world, prompt=prompt).gold(family.filled({"double": double}))
    samples = [Sample(number, ids, len(ids)) for ids in gold]
    log_policy = trainer.task.log_probabilities(trainer.policy.model, samples)
    return sum(p * (math.log(p) - log) for p, log in zip(gold.values(), log_policy, strict=True))


def test_a_file_of_prompts_has_the_fields(tmp_path: Path) -> None:
    settings, constraint = read_settings(written(tmp_path))
    assert settings.prompts == [prompt for prompt, _ in ROWS]
    settings = settings.of_constraint(constraint)
    assert settings.fields == [{"double": double} for _, double in ROWS]
    assert settings.held_out_prompts == [double == "ab" for _, double in ROWS], "whole constraints are held out"
    (tmp_path / "family.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: aa}\n")
    settings, constraint = read_settings(tmp_path / "train.yaml", changes={"held_out": 0.999999})
    with pytest.raises(UsageError, match="holds out all of 3 prompts"):
        Trainer(guarded_of(llama_world(), constraint), settings, tmp_path / "none")
    assert settings.of_constraint(constraint).fields is None, "a constraint without fields takes none"
    (tmp_path / "family.yaml").write_text(FAMILY)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}')
    (tmp_path / "train.yaml").write_text("model: x\nconstraint: family.yaml\nprompts: prompts.jsonl\n")
    settings, constraint = read_settings(tmp_path / "train.yaml")
    with pytest.raises(UsageError, match="has no field 'double'"):
        Trainer(guarded_of(llama_world(), constraint), settings, tmp_path / "none")


def test_columns_that_no_rule_uses_hold_nothing_out(tmp_path: Path) -> None:
    """Settings made in Python have all columns of the file, and a column such as "id" differs in each line."""
    world, (_, family) = llama_world(), read_settings(written(tmp_path))
    settings = settings_of(world, prompts=str(tmp_path / "prompts.jsonl"), held_out=0.45)
    trainer = Trainer(guarded_of(world, family), settings, tmp_path / "family")
    assert trainer.held_out == [double in ("bb", "ab") for _, double in ROWS]
    trainer = Trainer(guarded_of(world), settings, tmp_path / "plain")
    assert trainer.settings.fields is None
    assert trainer.held_out == [prompt == "ba" for prompt, _ in ROWS]


def test_rules_are_counted_by_default_and_in_words(tmp_path: Path) -> None:
    few = [{"double": "aa"}] * 60
    settings = settings_of(llama_world(), prompts=[f"p{i}" for i in range(60)], fields=few)
    assert settings.held_out_share == 0.0, "one rule is no population, in however many prompts it occurs"
    many = settings.model_copy(update={"fields": [{"double": f"a{i}"} for i in range(60)]})
    assert many.held_out_share == 0.2
    one = settings.model_copy(update={"held_out": 0.2})
    assert one.one_side == "held_out=0.2 holds out none of 1 rule; give more, or 0"


def test_a_twist_for_several_rules_is_refused(tmp_path: Path) -> None:
    """A twist is learned for one rule: of several, the samples silently came from a mask."""
    with pytest.raises(UsageError, match=r"hints: twisted is for one rule, .*; give masked instead$"):
        trainer_of(tmp_path, llama_world(), hints=["twisted"])
    trainer_of(tmp_path, llama_world(), hints=["masked"])


def test_each_prompt_has_the_g_of_its_own_constraint(tmp_path: Path) -> None:
    """Weighted samples give each text of each prompt its share of g, and learning from them lowers KL(g‖π)."""
    world = llama_world()
    trainer = trainer_of(tmp_path, world, samples=9_000, warm_samples=9_000, updates=40, base_share=0.9)
    before = [kl(trainer, world, number) for number in range(len(ROWS))]
    trainer.run()
    buffer = trainer.state.buffer
    weights, attempts = np.exp(buffer.log_weights()), np.array(buffer.drawn).sum(axis=0)
    errors = []
    for number, (prompt, double) in enumerate(ROWS):
        law = replace(world, prompt=prompt).law()
        texts = {ids: world.draw(ids).text for ids in law}
        own = {sample.token_ids for sample in buffer.samples if sample.prompt == number}
        assert own
        assert all(double in texts[ids] for ids in own)
        passing = sum(law[ids] for ids in law if double in texts[ids])
        mine = [sample.prompt == number for sample in buffer.samples]
        share, spread = weights[mine].sum() / attempts[number], np.sqrt((weights[mine] ** 2).sum()) / attempts[number]
        errors.append(abs(share - passing) / spread)
    assert max(errors) < 4.5
    after = [kl(trainer, world, number) for number in range(len(ROWS))]
    learned = [number for number, held in enumerate(trainer.held_out) if not held]
    assert sum(after[number] for number in learned) < 0.8 * sum(before[number] for number in learned)
    assert len(learned) == 6


def test_its_adapter_is_for_each_member(tmp_path: Path) -> None:
    world, path = llama_world(), written(tmp_path)
    settings, constraint = read_settings(path)
    small = settings_of(world, prompts=settings.prompts, fields=settings.fields, held_out=0.1, rounds=1)
    trained = train(guarded_of(world, constraint), small, tmp_path / "results")
    card = Card.read(trained.folder / CARD)
    assert (card.fields, card.constraint_digest) == (["double"], constraint.digest)
    assert [card.prompts.has_rule({"double": each}) for each in ("aa", "bb", "ab")] == [True, True, False]
    (fewest,) = (note for note in trained.remarks if "fewest accepted texts" in note)
    assert all(f"for {prompt!r} (double='ab')" in fewest for prompt in ("a", "b", "ba"))
    rules = [{"double": "aa"}, {"double": "bb"}]
    leak = settings_of(world, prompts=["b", "ab"], fields=rules, held_out=0.2, start=str(trained.folder))
    with pytest.raises(UsageError, match="trained on 1 of the 1 held-out prompts"):
        Trainer(guarded_of(world, constraint), leak, tmp_path / "leak")
    text = (trained.folder / "README.md").read_text()
    assert '"{double}"' in card.constraint_description
    assert any(note.startswith("on 3 prompts whose rules were not trained on: ") for note in trained.remarks)
    assert "fields:\n- double\n" in text
    assert "fields={'double': '...'}" in text
    one_rule = card.figures.unseen_acceptance_after
    assert one_rule is not None
    assert (one_rule.low, one_rule.high) == (0.0, 1.0), "three prompts of one rule say nothing of other rules"
    options: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": world.max_new_tokens, "seed": 1}
    guarded = GuardedGenerator(world.model, tmp_path / "family.yaml", tokenizer=world.tokenizer, adapter=trained.folder)
    outcomes = guarded.run(["a", "b"], fields=[{"double": "ba"}, {"double": "bb"}], **options)
    assert ["ba" in outcomes[0].texts[0], "bb" in outcomes[1].texts[0]] == [True, True]
    assert "the adapter" in outcomes[0].report.drawn_from
    assert "another constraint" not in outcomes[0].report.drawn_from
    member = load(tmp_path / "family.yaml").filled({"double": "ba"}).constraint & Keyword("nowhere", match="none")
    stricter = GuardedGenerator(world.model, member, tokenizer=world.tokenizer, adapter=trained.folder)
    assert "a weaker constraint" in stricter.run("a", **options)[0].report.drawn_from
    (tmp_path / "other.yaml").write_text(FAMILY.replace("kind: regex", "kind: regex, match: fullmatch"))
    other = load(tmp_path / "other.yaml").filled({"double": "ba"})
    for wrong in (other, tmp_path / "other.yaml", Keyword("ba")):
        with pytest.raises(AdapterMismatch, match="another constraint"):
            GuardedGenerator(world.model, wrong, tokenizer=world.tokenizer, adapter=trained.folder)


def test_its_adapter_is_for_members_of_several_rules(tmp_path: Path) -> None:
    """A member of two rules is merged with a third one, and rules beside a family's file are part of the family."""
    world = llama_world()
    (tmp_path / "family.yaml").write_text(FAMILY)
    pair = "guardwrap: 1\nfields: [double]\nconstraint: [{kind: regex, pattern: '{double}'}, {kind: length, max: 90}]\n"
    (tmp_path / "pair.yaml").write_text(pair)
    two, listed = load(tmp_path / "pair.yaml").constraint, [tmp_path / "family.yaml", Length(max=50)]
    options: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": world.max_new_tokens, "seed": 1}
    known, stricter = "is not known: its card does not say", "a weaker constraint"
    cases = [(two, two, known), (two, [two, Length(max=50)], stricter), (listed, listed, known)]
    for i, (trained_for, rules, said) in enumerate(cases):
        settings = settings_of(world, fields=[{"double": "aa"}])
        folder = _save(Trainer(guarded_of(world, trained_for), settings, tmp_path / "none"), tmp_path / str(i))
        assert Card.read(folder / CARD).fields == ["double"]
        guarded = GuardedGenerator(world.model, rules, tokenizer=world.tokenizer, adapter=folder)
        assert said in guarded.run("a", fields={"double": "bb"}, **options)[0].report.drawn_from
    assert isinstance(two, ConstraintTemplate)
    assert demands(two.filled({"double": "aa"}) & Length(max=50) & Length(min=1), two.digest)
    assert not demands(two.filled({"double": "aa"}) | Length(max=50), two.digest)
