"""The paper's experiments on a tiny model: the whole script, resumed after kills; its verdicts and its own sampler."""

import json
import math
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import judge
import numpy as np
import pytest
import run
import steps
import yaml
from experiment import Paper
from tokenizers.processors import TemplateProcessing
from transformers.utils import logging

from guardwrap import Keyword
from guardwrap.calls.task_settings import read_task_settings
from guardwrap.errors import SpecError, UsageError
from guardwrap.metrics.intervals import combine, mean_interval
from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Curves
from guardwrap.outcomes.result_files import read_page
from guardwrap.testing import World, character_tokenizer, llama_world
from guardwrap.training.task import Sample
from tests.training.fixtures_training import PRELOADED, trainer_of, undrawn

PAPER = Path(__file__).parents[1] / "examples" / "paper"

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(PRELOADED)

TINY: dict[str, Any] = {
    "title": "Tiny",
    "dtype": "float32",
    "constraint": {"kind": "keyword", "words": ["bb"], "case_sensitive": True, "whole_words": False},
    "prompts": ["a"],
    "generation": {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 5},
    "word": "bb",
    "more_words": {"aa": "a{prompt}"},
    "hints": ["bb{prompt}"],
    "caps": ["b{word}b{prompt}", "a{prompt}"],
    "budgets": [160, 240, 320],
    "warm_samples": 80,
    "gold_attempts": 400,
    "final_attempts": 50,
    "attempts": 200,
    "more_attempts": 200,
    "samples_per_step": 40,
    "updates": 4,
    "look": 2,
    "rounds": 1,
    "rank": 2,
    "texts": 20,
    "steps": [1, 2],
    "methods": {
        "SFT": {"method": "sft", "hints": [], "epochs": 1},
        "DPG": {"method": "dpg", "hints": []},
        "warm-start DPG": {"method": "dpg", "epochs": 1},
        "ours": {"method": "replay", "warm_share": 0.5},
    },
    "draw_batch_size": 64,
    "paper": {"model itself": {"acceptance_rate": 0.0023}, "forcing": {"kl": 6.06}},
}


@pytest.fixture(autouse=True)
def _loud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The script is quieter than the tests, and charts of trainings are none of its pages."""
    undrawn(monkeypatch)
    verbosity = logging.get_verbosity()
    yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(llama_world(letters="ab"), tmp_path_factory.mktemp("model"))


def saved(world: World, folder: Path) -> Path:
    world.model.save_pretrained(folder)
    world.tokenizer.save_pretrained(folder)
    return folder


def redo(config: str, model: str, out: str, function: str = "", call: int = 0) -> None:
    """Run the script in a process of its own, that kills itself in a call of one of the functions of its steps."""
    import torch

    torch.set_num_threads(1)
    undrawn(pytest.MonkeyPatch())  # for good: the process ends with the script
    if function:
        original, calls = getattr(steps, function), iter(range(call + 1))

        def dies(*args: Any, **options: Any) -> Any:
            if next(calls) < call:
                return original(*args, **options)
            if "tick" in options:  # in the middle of a training
                options["tick"] = lambda row: os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **options)
            return os.kill(os.getpid(), signal.SIGKILL)

        setattr(steps, function, dies)
    run.main(Path(config), Path(out), model=model)


def process(*arguments: Any) -> int | None:
    made = FORKED.Process(target=redo, args=tuple(x if isinstance(x, int) else str(x) for x in arguments))
    made.start()
    made.join()
    return made.exitcode


@pytest.mark.slow
def test_a_word_killed_and_resumed(tmp_path: Path, model: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(TINY))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert process(config, model, whole) == 0
    for function, call in (("train", 4), ("record", 1), ("keyword", 1), ("figures_of", 0)):
        assert process(config, model, broken, function, call) == -signal.SIGKILL
        assert not (broken / "page.json").exists()
    made = {path: path.stat().st_mtime_ns for path in (broken / "steps").iterdir()}
    assert process(config, model, broken) == 0
    assert made == {path: path.stat().st_mtime_ns for path in made}, "nothing is made twice"
    assert len(made) < len(list((broken / "steps").iterdir()))
    for name in ("results.json", "page.json"):
        assert (broken / name).read_text() == (whole / name).read_text()

    results, page = json.loads((whole / "results.json").read_text()), read_page(whole / "page.json")
    for name in ("results.json", "page.json"):
        assert str(tmp_path) not in (whole / name).read_text(), "results are for others: no paths of this machine"
    assert [section.title for section in page.sections] == [
        "What was run", "The paper's claims", "Cost and distance", "Learning", "Properties of the texts",
        "QRS and IMH", "Texts",
    ]  # fmt: skip
    for name, what in results["trainings"].items():
        assert [made["samples"] for made in what.values()] == [160, 240, 320], name
    for figures in results["proposals"].values():  # Theorem 2: all from the same draws of g and the same attempts
        cost, guarded = figures["cost"]["value"], figures["kl_gold_guarded"]["value"]
        if guarded > 0:
            assert figures["kl_gold_proposal"]["value"] == pytest.approx(guarded + cost, abs=1e-9)
    for name, anew in (("ours", True), ("warm-start DPG", False)):
        first, last = (len(results["trainings"][name][budget]["curve"]) for budget in ("160", "320"))
        assert (first == last) == anew, "one goes on, the other begins anew"
    curves = page.sections[3].blocks[0]
    assert isinstance(curves, Curves)
    ours = next(curve for curve in curves.series if curve.name == "ours")
    assert [point.x for point in ours.points] == [160, 240, 320]
    assert results["keywords"]["aa"]["training"]["samples"] == 160
    assert results["keywords"]["aa"]["texts"].keys() == {"g", "CAP", "ours"}
    assert len(results["claims"]) == 3 + 1 + 2 + 1
    for texts in results["texts"].values():
        for text in texts:
            assert {text["text"][slice(*span)] for span in text["spans"]} == {"bb"}


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.02, 0.5])  # of the second no text is accepted
def test_endings_judged_by_a_classifier(tmp_path: Path, threshold: float) -> None:
    model = saved(llama_world(letters="ab."), tmp_path / "model")
    config = tmp_path / "tiny.yaml"
    others = {"word", "more_words", "caps", "hints"}
    changed = {
        "constraint": {
            "kind": "classifier", "model": "named", "label": "P", "threshold": threshold, "on": "last_sentence",
        },
        "prompts": ["a", "b"],
        "caps": ["b{prompt}"],
        "hints": ["a.{prompt}"],
    }  # fmt: skip
    config.write_text(yaml.safe_dump({name: value for name, value in TINY.items() if name not in others} | changed))
    arguments: dict[str, Any] = {"model": str(model), "classifier": str(classifier(tmp_path / "classifier"))}
    run.main(config, tmp_path / "out", **arguments, only=["gold", "DPG"])
    assert not (tmp_path / "out" / "page.json").exists()
    assert (tmp_path / "out" / "steps" / "DPG-320.json").exists()
    run.main(config, tmp_path / "out", **arguments)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert read_page(tmp_path / "out" / "page.json").sections
    assert not any(str(tmp_path) in (tmp_path / "out" / name).read_text() for name in ("results.json", "page.json"))
    assert results["sentences"].keys() == (results["texts"].keys() if threshold < 0.5 else set())
    assert bool(results["gold"]["prompts"]) == (threshold < 0.5)
    assert results["keywords"] == {}
    assert results["samplers"] is None
    with pytest.raises(ValueError, match="there is no step 'dpg'"):
        run.main(config, tmp_path / "out", **arguments, only=["dpg"])


def test_another_classifier_takes_a_place_in_the_file(tmp_path: Path) -> None:
    others = {"word", "more_words", "caps", "hints"}
    config = tmp_path / "tiny.yaml"
    changed = {"constraint": "catalogue:positive-ending", "caps": []}
    config.write_text(yaml.safe_dump({name: value for name, value in TINY.items() if name not in others} | changed))
    with pytest.raises(UsageError, match="write the constraint in this file as a mapping"):
        run.main(config, tmp_path / "out", classifier="other")


@pytest.mark.slow
def test_no_training_sees_what_measures(tmp_path: Path, model: Path) -> None:
    found = []
    for attempts in (200, 400):
        config, out = tmp_path / "tiny.yaml", tmp_path / str(attempts)
        config.write_text(yaml.safe_dump({**TINY, "gold_attempts": attempts}))
        run.main(config, out, model=str(model), only=["ours"])
        found.append(json.loads((out / "steps" / "ours-320.json").read_text())["found"])
    assert found[0]["policy"] == found[1]["policy"]
    assert len(found[0]["log_policy"]) < len(found[1]["log_policy"])


def classifier(folder: Path) -> Path:
    """A small random BERT, on disk."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = character_tokenizer("ab.")
    begins = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 0)])  # an empty text has a token too
    tokenizer.backend_tokenizer.post_processor = begins
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        labels = {0: "N", 1: "P"}
        config = BertConfig(vocab_size=len(tokenizer), id2label=labels, initializer_range=1.0, pad_token_id=0, **small)
        BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["lexical", "sentiment"])
def test_the_files_scale(name: str) -> None:
    settings, _ = read_task_settings(PAPER / f"{name}.yaml", Paper)
    small = settings.scaled(0.05)
    assert small.budgets == [budget // 20 for budget in settings.budgets]
    assert small.gold_attempts == settings.gold_attempts // 20
    assert settings.methods.keys() >= {"SFT", "DPG", "warm-start DPG", "ours"}
    for method in settings.methods:
        for budget in small.budgets:
            training = small.training(method, budget)
            share = settings.methods[method].get("warm_share")
            assert settings.warm_samples is not None
            assert training.warm_samples is not None
            assert training.warm_samples == (
                settings.warm_samples // 20 if share is None else pytest.approx(share * budget, abs=0.5)
            )
            assert training.warm_samples < budget
    templates = settings.templates().values()
    assert len(templates) == len(settings.caps) + len(settings.hints)
    assert not any("{word}" in template or "{Word}" in template for template in templates)


@pytest.mark.parametrize(
    ("methods", "named"),
    [
        ({}, "'SFT' is missing"),
        ({**TINY["methods"], "DPG": {"method": "dgp"}}, "methods: DPG: method: Input"),
        ({**TINY["methods"], "ours": {"warm_share": "half"}}, "methods: ours: warm_share: must be a number"),
        ({**TINY["methods"], "ours": {"warm_share": 1.5}}, "methods: ours.*more than the whole budget"),
    ],
)
def test_methods_are_checked_when_the_file_is_read(tmp_path: Path, methods: Any, named: str) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "methods": methods}))
    with pytest.raises(SpecError, match=named):
        read_task_settings(tmp_path / "tiny.yaml", Paper)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(0.1, 2.0), (0.2, 1.0)], "holds"),
        ([(0.1, 2.0), (-0.2, 1.0)], "undecided"),
        ([(0.1, 2.0), (-2.0, -0.1)], "does not hold"),
        ([(-math.inf, math.inf)], "undecided"),
        ([(-2.0, 1.0), (-1.0, -0.5)], "does not hold"),
        ([], "undecided"),
    ],
)
def test_verdicts(ends: list[tuple[float, float]], expected: str) -> None:
    differences = {str(i): Estimate((low + high) / 2, low, high) for i, (low, high) in enumerate(ends)}
    assert judge.claim("", differences)["verdict"] == expected
    missing = judge.claim("", {**differences, "more": None})["verdict"]
    assert missing == ("does not hold" if expected == "does not hold" else "undecided")


def test_differences_are_paired() -> None:
    chance = np.random.default_rng(0)
    shared = [chance.normal(-40, 10, size) for size in (60, 80)]  # what is odd about a draw of g
    first = [each - 3 + chance.normal(0, 0.5, len(each)) for each in shared]
    second = [each - 2.5 + chance.normal(0, 0.5, len(each)) for each in shared]
    found = judge.kl_difference(first, second)
    assert found is not None
    assert found.low < 0.5 < found.high
    assert judge.verdict({"": found}) == "holds"
    apart = [combine((1, mean_interval(-a)), (-1, mean_interval(-b))) for a, b in zip(first, second, strict=True)]
    assert judge.verdict({str(i): each for i, each in enumerate(apart)}) == "undecided"  # not paired, it drowns
    costs = Estimate(1.0, 0.9, 1.1), Estimate(2.0, 1.9, 2.1)
    guarded = judge.guarded_difference(first, second, *costs)
    assert guarded is not None
    assert guarded.value == pytest.approx(found.value - 1 + 2)
    assert judge.guarded_difference(first, second, None, costs[0]) is None
    assert judge.kl_difference([first[0], np.zeros(0)], [second[0], np.zeros(0)]) is None


def test_qrs_is_held_against_imh_at_equal_cost() -> None:
    def point(sampler: str, cost: float, kl: float) -> dict[str, Any]:
        ends = {"value": kl, "low": kl - 0.01, "high": kl + 0.01}
        return {"sampler": sampler, "relative_cost": cost, "projected_kl": ends}

    points = [point("rejection", 1, 0.8), point("qrs", 4, 0.4), point("imh", 2, 0.7), point("imh", 9, 0.1)]
    (found,) = judge.advantages(points).values()  # at 9 times the cost there is no QRS
    assert found.value == pytest.approx(0.7 - 0.6)  # half way between 1 and 4, on a logarithmic scale
    assert judge.verdict({"": found}) == "holds"
    assert judge.advantages(points[:1]) == {}


@pytest.mark.parametrize("word", ["b", "bb"])
def test_the_sampler_that_forces_a_word(tmp_path: Path, word: str) -> None:
    world = llama_world(max_new_tokens=5)
    constraint = Keyword(word, whole_words=False)
    trainer, gold, law = trainer_of(tmp_path, world, constraint), world.gold(constraint), world.law()
    size, last = len(word), 5 - len(word)
    assert judge.usual_tokens(list(gold), word, lambda ids: world.draw(ids).text) == (2,) * size

    def log_base(texts: Sequence[tuple[int, ...]]) -> list[float]:
        return trainer.task.log_probabilities(trainer.task.model, [Sample(0, ids, len(ids)) for ids in texts])

    def ratios(forced: tuple[int, ...], longest: int = 5) -> Any:
        return judge.log_ratios_to_forcing(
            list(gold), word, forced, longest, lambda ids: world.draw(ids).text if ids else "", log_base
        )

    # s, text by text: what has no word when it looks becomes what begins alike and ends with the word.
    forcing: dict[tuple[int, ...], float] = defaultdict(float)
    for ids, p in law.items():
        stays = len(ids) <= last or word in world.draw(ids[:last]).text
        forcing[ids if stays else (*ids[:last], *(2,) * size)] += p
    assert math.fsum(forcing.values()) == pytest.approx(1)
    share = math.fsum(p for ids, p in gold.items() if forcing.get(ids))
    exact = math.fsum(p / share * math.log(p / share / forcing[ids]) for ids, p in gold.items() if forcing.get(ids))
    z = math.fsum(law[ids] for ids in gold)

    def summed(found: Any) -> float:
        """KL of the texts that s can give, summed over g as the paper's estimator averages over its draws."""
        finite = np.isfinite(found)
        weights = np.array(list(gold.values()))[finite]
        return float(weights @ found[finite] / weights.sum() - math.log(z) - math.log(weights.sum()))

    found = ratios((2,) * size)
    assert np.isfinite(found).tolist() == [ids in forcing for ids in gold]
    assert (found[np.isfinite(found)] <= 1e-6).all()
    assert summed(found) == pytest.approx(exact, abs=1e-4)
    assert 0 < exact < -math.log(z) - math.log(share)
    # Negative controls: it looks one token too late, and the word is written otherwise.
    assert abs(summed(ratios((2,) * size, 6)) - exact) > 1e-3
    assert not np.array_equal(np.isfinite(ratios((1,) * size)), np.isfinite(found))

    picked = np.random.default_rng(0).choice(len(gold), 2000, p=np.array(list(gold.values())) / sum(gold.values()))
    estimated = judge.kl_gold_forcing(found[picked], (2000, round(2000 / z)))
    kl, impossible = estimated["kl"], estimated["impossible"]
    assert kl is not None
    assert impossible is not None
    assert kl.low < exact < kl.high
    assert impossible.low <= max(0.0, 1 - share) <= impossible.high  # a sum may be above 1 by rounding
