"""Prompts that are held out: chosen by their digests, never learned from, measured apart, and named in reports."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guardwrap.adapters import Card, Figure
from guardwrap.adapters.card import CardPrompts
from guardwrap.errors import SpecError, UsageError
from guardwrap.metrics import kl_gold_proposal_from_gold
from guardwrap.metrics.intervals import rate_over
from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Table
from guardwrap.support.files import CARD
from guardwrap.testing import llama_world
from guardwrap.training import TrainingSettings, read_settings, train, trainer
from guardwrap.training.learning_curve import Row, summarise
from guardwrap.training.policy import update
from guardwrap.training.task import Sample
from guardwrap.training.train import _figures, _save
from guardwrap.training.trainer import _require_held_out
from guardwrap.training.training_report import Training, pages_of, read_training, training_charts
from guardwrap.training.training_state import Buffer
from tests.training.fixtures_training import DOUBLED, guarded_of, kl, settings_of, trainer_of

PROMPTS = ["a", "b", "ab", "ba", "aab", "bba", "abab", "baba"]
SETTINGS = {"prompts": PROMPTS, "held_out": 0.4, "final_attempts": 400, "samples": 1600, "rounds": 1}


def split(prompts, **others):
    settings = TrainingSettings(constraint="x", prompts=prompts, **others)
    return dict(zip(prompts, settings.held_out_prompts, strict=True))


def test_the_prompt_alone_decides():
    prompts = [f"Write about {i}." for i in range(2000)]
    whole = split(prompts, held_out=0.25)
    assert sum(whole.values()) == pytest.approx(500, abs=100)  # five standard deviations
    shuffled = random.Random(0).sample(prompts, 700)
    assert all(whole[prompt] == held for prompt, held in split(shuffled, held_out=0.25).items())
    more = split(prompts, held_out=0.5)
    assert all(more[prompt] for prompt in prompts if whole[prompt]), "a larger share holds out the same and others"
    assert split(prompts, chat=True, held_out=0.25) != whole, "a chat is another prompt than its text"


def test_the_default_holds_out_a_fifth_of_many_prompts():
    prompts = [f"p{i}" for i in range(300)]
    assert split(prompts) == split(prompts, held_out=0.2)
    assert not any(split(prompts[:49]).values())
    assert not any(split(prompts, held_out=0.0).values())


@pytest.mark.parametrize(("prompts", "share", "which"), [(["a"], 0.2, "none"), (["a", "b"], 0.999999, "all")])
def test_neither_side_may_be_empty(prompts, share, which):
    with pytest.raises(ValueError, match=f"holds out {which} of {len(prompts)} prompt"):
        TrainingSettings(constraint="x", prompts=prompts, held_out=share)


def learned_from(monkeypatch, folder, **others):
    """Return the prompts that a training learns from, and the trainer."""
    seen: set[int] = set()

    def watched(policy, optimizer, task, samples, *args, **options):
        seen.update(sample.prompt for sample in samples)
        return update(policy, optimizer, task, samples, *args, **options)

    monkeypatch.setattr(trainer, "update", watched)
    training = trainer_of(folder, **{**SETTINGS, **others})
    training.run()
    return {PROMPTS[i] for i in seen}, training


@pytest.mark.parametrize("method", ["replay", "dpg", "sft"])
def test_nothing_is_learned_from_held_out_prompts(tmp_path, monkeypatch, method):
    held_out = {prompt for prompt, held in split(PROMPTS, held_out=0.4).items() if held}
    assert 1 < len(held_out) < 6
    seen, training = learned_from(monkeypatch, tmp_path, method=method)
    assert seen == {*PROMPTS} - held_out
    row = training.state.curve[-1]
    assert row.unseen_acceptance is not None
    assert (row.held_out is not None) == (method == "replay")
    assert Row.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_negative_control_a_leak_is_seen(tmp_path, monkeypatch):
    """If the split is by sample, as without held-out prompts, all prompts are learned from."""
    shares = Buffer.shares

    def leaky(self, *, held_out):
        return shares(replace(self, held_out=[]), held_out=held_out)

    monkeypatch.setattr(Buffer, "shares", leaky)
    seen, _ = learned_from(monkeypatch, tmp_path)
    assert seen == {*PROMPTS}


@pytest.mark.slow
def test_both_halves_are_measured(tmp_path):
    world = llama_world()
    trained = train(guarded_of(world), settings_of(world, **SETTINGS), tmp_path)
    training = trainer_of(tmp_path, world, **SETTINGS)  # as the training ended
    policy = replace(world, model=training.policy.model)
    for side, name in enumerate(("", "unseen_")):
        rates, kls, zs = [], [], []
        for i, prompt in enumerate(PROMPTS):
            if training.held_out[i] == bool(side):
                law, own = (replace(each, prompt=prompt).law() for each in (policy, world))
                passing = [ids for ids in law if DOUBLED.accepts(world.draw(ids).text)]
                rates.append(sum(law[ids] for ids in passing))
                zs.append(sum(own[ids] for ids in passing))
                kls.append(kl(training, replace(world, prompt=prompt), i) + math.log(rates[-1]))
        for figure, exact in (
            ("acceptance_after", rates),
            ("acceptance_before", zs),
            ("kl_gold_guarded", kls),
        ):
            found = trained.figures[name + figure]
            assert found.low < np.mean(exact) < found.high, (name, figure)
    card = Card.read(tmp_path / "adapter" / CARD)
    assert (card.prompts.count, card.prompts.held_out) == (training.held_out.count(False), sum(training.held_out))
    assert card.figures.unseen_acceptance_after == Figure.of(trained.figures["unseen_acceptance_after"])
    assert any(note.startswith("of these, the fewest accepted texts of 50: ") for note in card.notes)
    assert "| acceptance rate with it, prompts not trained on |" in (tmp_path / "adapter" / "README.md").read_text()

    (page,) = pages_of([read_training(tmp_path, "mine")])
    table = next(block for block in page.sections[0].blocks if isinstance(block, Table) and "AR" in block.columns)
    names = ("acceptance_before", "acceptance_after")
    assert [(row[0], *row[3:5]) for row in table.rows] == [
        (name, *(trained.figures[side + each] for each in names))
        for name, side in (("mine", ""), ("mine, held-out prompts", "unseen_"))
    ]
    curves = training_charts([read_training(tmp_path, "mine")])["acceptance"].series
    assert [curve.name for curve in curves] == ["mine", "mine, held-out prompts"]

    guarded = guarded_of(world, adapter=tmp_path / "adapter", seed=0)
    for i, prompt in enumerate(PROMPTS):
        (outcome,) = guarded.run(prompt, **world.settings)
        distance = trained.figures["unseen_kl_gold_guarded" if training.held_out[i] else "kl_gold_guarded"]
        where = (
            "prompts like those that it was trained on, of which this is none"
            if training.held_out[i]
            else "the prompts that it was trained on, of which this is one"
        )
        assert f"(KL(g‖g') = {distance} nats, measured on {where})" in str(outcome.report.proposal)


def test_an_adapter_that_knows_held_out_prompts_is_no_start(tmp_path):
    """Otherwise figures of the held-out side would be of prompts that the adapter was trained on."""
    world = llama_world()
    small: dict[str, Any] = {"samples": 200, "rounds": 1, "updates": 1, "look": 1, "final_attempts": 8}
    whole = train(guarded_of(world), settings_of(world, prompts=PROMPTS, **small), tmp_path / "whole").folder
    with pytest.raises(
        UsageError, match=r"start: .* trained on 3 of the 3 held-out .*; give held_out as in its training, or 0$"
    ):
        trainer_of(tmp_path / "leak", prompts=PROMPTS, held_out=0.4, start=str(whole))
    some = settings_of(world, prompts=["b", "bb"], start=str(whole), **small)
    card = Card.read(train(guarded_of(world), some, tmp_path / "some").folder / CARD)
    assert [card.prompts.has(prompt) for prompt in ("bb", "abab", "bbb")] == [True, True, False]
    part = trainer_of(tmp_path / "part", prompts=PROMPTS, held_out=0.4, **small)
    _save(part, tmp_path / "part")
    same = trainer_of(tmp_path / "same", prompts=PROMPTS, held_out=0.4, start=str(tmp_path / "part" / "adapter"))
    assert CardPrompts.of(part.sides(PROMPTS)[0], 3, same.start_prompts).start is None, (
        "these prompts are known already"
    )


def test_the_example_that_starts_from_a_shipped_adapter_holds_out_what_it_did():
    folder = Path(__file__).parents[2] / "examples" / "training"
    settings, _ = read_settings(folder / "json-many.yaml")
    _require_held_out(settings, Card.read(Path(str(settings.start)) / CARD).prompts)
    assert 0 < sum(settings.held_out_prompts) < 100


def test_a_prompt_with_few_accepted_draws_has_no_kl():
    """From a single accepted draw KL(g‖g') would be 0, and over many prompts with a narrow interval."""
    few = [np.array([-1.0 - i, *[-math.inf] * 7]) for i in range(50)]
    figures, notes = _figures(few, (), [f"{i}" for i in range(50)], ())
    assert figures.keys() == {"acceptance_after"}
    assert notes == ["KL is unknown: no prompt has 8 accepted draws among 8; raise final_attempts"]
    rng = np.random.default_rng(0)
    figures, notes = _figures([*few, *rng.normal(-3.0, 0.8, (40, 8))], (), [f"{i}" for i in range(90)], ())
    assert notes[0] == "KL is a mean over the 40 of 90 prompts with 8 accepted draws or more"
    assert figures["kl_gold_guarded"].low < 0.32 < figures["kl_gold_guarded"].high
    assert figures["acceptance_after"].low < (50 / 8 + 40) / 90 < figures["acceptance_after"].high
    row = Row(0, "policy", 0, 0, 0.0, figures["acceptance_after"], 0)
    summarise(row, few, few, [[f"{i}" for i in range(50)]] * 2)
    assert (row.kl, row.unseen_kl) == (None, None)


@pytest.mark.parametrize(("rules", "prompts"), [(20, 10), (10, 20)])
def test_the_prompts_of_one_rule_are_not_independent(rules, prompts):
    """Of whole rules that are held out, the interval is for rules like these; negative control: for prompts."""
    rng, covered = np.random.default_rng(1), np.zeros(2)
    of_rules = np.repeat(np.arange(rules), prompts)
    for _ in range(400):
        rates = rng.beta(1, 1, rules)[of_rules]  # mean 0.5 over all rules
        accepted = rng.binomial(10, rates).tolist()
        intervals = rate_over(accepted, 10, of_rules.tolist()), rate_over(accepted, 10, range(len(accepted)))
        covered += [each.low <= 0.5 <= each.high for each in intervals]
    assert covered[0] >= 0.91 * 400
    assert covered[1] < 0.6 * 400
    row: Any = Row(0, "policy", 0, 0, 0.0, intervals[0], 0)
    kls = [rng.normal(-1.0, spread, 20) for spread in (0.1, 0.1, 1.0, 1.0)]
    summarise(row, kls, kls, [["a", "a", "b", "b"], ["a", "a", "a", "a"]])
    assert row.kl.high > row.kl.value + 1, "two rules"
    assert (row.unseen_kl.low, row.unseen_kl.high) == (0.0, math.inf), "one rule says nothing of others"


def counted(accepted: int, attempts: int) -> np.ndarray:
    """Return the log-weights of a proposal that is the model itself."""
    return np.repeat([0.0, -math.inf], [accepted, attempts - accepted])


@pytest.mark.parametrize("units", [None, [f"{i}" for i in range(200)]])
def test_a_mean_over_prompts_is_of_estimates_that_may_be_negative(units):
    """The proposal is the model, so that KL is 0; with each prompt's estimate clipped at 0 the mean is 0.12."""
    rng, attempts = np.random.default_rng(1), 40
    own, base = rng.binomial(attempts, 0.4, (2, 200))
    ratios = [(np.zeros(count), (count, attempts)) for count in base.tolist()]
    weights = [counted(count, attempts) for count in own.tolist()]
    figures, _ = _figures(weights, ratios, units, ())
    assert 0 <= figures["kl_gold_guarded"].value < 0.04
    assert figures["kl_gold_guarded"].low == 0
    assert figures["kl_gold_guarded"].high > 0.01, "two prompts below 0 leave no doubt otherwise"


def test_a_prompt_that_nothing_is_accepted_for_is_named():
    figures, notes = _figures([counted(5, 50), counted(0, 50)], (), None, ("'a'", "'b'"))
    assert "kl_gold_guarded" not in figures
    assert notes == [
        "KL is unknown: none of 50 draws is accepted for 'b'; raise final_attempts, or leave that prompt out"
    ]


def test_rates_of_few_units_stay_rates():
    one = [np.array([-2.0, -1.0, *[-math.inf] * 6])] * 8
    figures, _ = _figures([np.zeros(8), *one], (), ["a"] * 9, ())
    assert (figures["acceptance_before"].low, figures["acceptance_before"].high) == (0.0, 1.0)


def test_samples_that_hardly_weigh_anything_hardly_count_in_the_held_out_kl(tmp_path):
    """A mean of log Z over the prompts had half of the -100 nats of the second one."""
    trainer, passing = trainer_of(tmp_path, prompts=["a", "b"]), [*llama_world().gold(DOUBLED)][:10]
    values = []
    for weight in (0.0, -100.0):
        buffer = Buffer(2, log_laws=[[]], drawn=[[10, 10]])
        for prompt, log in ((0, 0.0), (1, weight)):
            samples = [Sample(prompt, ids, len(ids)) for ids in passing]
            buffer.extend(samples, 0, [log - 3.0] * 10, [[-3.0] * 10])
        trainer.state.buffer = buffer
        values.append(trainer._held_out_kl(buffer.shares(held_out=True)))
    assert abs(values[1] - values[0]) < 1


def test_held_out_prompts_without_a_text_do_not_stop_learning():
    """A part of the others' samples is held out instead; before, a round ended at its first look."""
    buffer = Buffer(2, [False, True], log_laws=[[]], drawn=[[20, 20]])
    buffer.extend([Sample(0, (number,), 1) for number in range(20)], 0, [0.0] * 20, [[0.0] * 20])
    assert [(buffer.shares(held_out=side) > 0).sum() for side in (False, True)] == [16, 4]
    buffer.extend([Sample(1, (1,), 1)], 0, [0.0], [[0.0]])
    assert [(buffer.shares(held_out=side) > 0).sum() for side in (False, True)] == [20, 1]


def test_each_curve_of_kl_is_of_one_side(tmp_path):
    """On draws of g of the prompts that are trained on, and by weights of each side."""
    training: Any = trainer_of(tmp_path, prompts=PROMPTS, held_out=0.4, gold_attempts=1600)
    training.find_gold()
    log_policy = training.task.log_probabilities(training.policy.model, training.gold.drawn.samples)
    seen = training.sides(training.gold.log_ratios(log_policy))[0]
    mean = np.mean([kl_gold_proposal_from_gold(*each).value for each in seen])
    assert training.kl_on_gold().value == pytest.approx(mean)
    low, high = Estimate(1.0, 0.5, 1.5), Estimate(2.0, 1.5, 2.5)
    row = Row(0, "policy", 100, 100, 1.0, Estimate(0.5, 0.4, 0.6), 50, kl=low, unseen_kl=high)
    curves = {
        curve.name: curve.points[0].y for curve in training_charts([Training("mine", [row], None)])["curve"].series
    }
    assert curves == {"mine (by weights)": low, "mine, held-out prompts (by weights)": high}


FILES = [
    ("p.txt", "One\nTwo, and more\n", ["One", "Two, and more"]),
    ("p.jsonl", '{"prompt": ""}\n{"prompt": "Two\\nlines", "topic": "x"}\n', ["", "Two\nlines"]),
]


@pytest.mark.parametrize(("name", "content", "prompts"), FILES)
def test_prompts_from_a_file_beside_the_settings(tmp_path, name, content, prompts):
    (tmp_path / name).write_text(content)
    (tmp_path / "t.yaml").write_text(f"constraint: {{kind: regex, pattern: a}}\nprompts: {name}\nsamples: 100\n")
    assert read_settings(tmp_path / "t.yaml")[0].prompts == prompts
    assert read_settings(tmp_path / "t.yaml", changes={"samples": 50})[0].prompts == prompts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", None, "t.yaml:2: prompts: cannot read 'p.txt'"),
        ("p.txt", "One\n\n", "p.txt:2: empty line"),
        ("p.txt", "", "prompts: List should have at least 1 item|at least 1 item"),
        ("p.jsonl", '{"prompt": "a", "constraint": "catalogue:tea"}\n', "p.jsonl:1: 'constraint' is not supported"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n', "p.jsonl:1: 'messages' is not supported"),
    ],
)
def test_files_of_prompts_that_cannot_be_used(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    (tmp_path / "t.yaml").write_text(f"constraint: {{kind: regex, pattern: a}}\nprompts: {name}\n")
    with pytest.raises((SpecError, UsageError), match=message):
        read_settings(tmp_path / "t.yaml")
