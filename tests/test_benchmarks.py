"""The benchmark script runs, and what it counts adds up. What it times is no matter for tests."""

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adapter
import comma
import engine
import knowable
import masks
import matrix
import numpy as np
import plan_forecasts
import pytest
import schema_suite
import structured
import tails
import torch
import yaml
from transformers.utils import logging

from guardwrap import Keyword
from guardwrap.constraints.json.subschemas import NumberRange
from guardwrap.outcomes import estimate_of
from guardwrap.testing import llama_world, table_world
from tests.test_paper import classifier

Run = Callable[..., dict[str, Any]]
BATCH = 4  # of --quick
TIMED, COUNTED, BUSY = "no comma, 32 texts", "no comma, 32 texts: row-steps", "1 000 prompts"
ONE_TOKEN = "30 tokens from bos, batch 32"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model on disk, that takes chats and writes commas."""
    world = llama_world(letters="abcdefghijklmnopqrstuvwxyz ,.")
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"
    world.tokenizer.bos_token = "a"  # a prompt of one token
    folder = tmp_path_factory.mktemp("tiny")
    world.model.save_pretrained(folder)
    world.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    """The scripts are quieter than the tests."""
    verbosity = logging.get_verbosity()
    yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


@pytest.fixture
def run(tiny: str, tmp_path: Path) -> Run:
    """Run the command with --quick; the JSON that it wrote."""

    def command(*arguments: str) -> dict[str, Any]:
        engine.main(["--quick", "--chat", tiny, "--model", tiny, "--out", str(tmp_path / "made"), *arguments])
        written: dict[str, Any] = json.loads((tmp_path / "made.json").read_text())
        return written

    return command


def of(written: dict[str, Any], part: str) -> dict[str, Any]:
    """The first case with this in its name."""
    found: dict[str, Any] = next(case for name, case in written["cases"].items() if part in name)
    return found


@pytest.mark.slow
def test_counts_add_up(run: Run, tmp_path: Path) -> None:
    written = run("--repeats", "2", "--case", TIMED, "--case", BUSY, "--case", ONE_TOKEN)
    timed, counted, busy, one = (of(written, part) for part in (TIMED, COUNTED, BUSY, ONE_TOKEN))
    ours, retry, cached = (timed["runs"][loop] for loop in ("ours", "retry", "cached"))
    for made in (*ours, *counted["runs"]["ours"], *one["runs"]["ours"], *busy["runs"]["stream"]):
        assert made["accepted"] <= made["attempts"]
        # A token is one step, but for an attempt's first and those drawn where another attempt has been.
        tokens = made["tokens"] + made["surplus_tokens"] - made["attempts"] - made["surplus_attempts"]
        assert 0 < made["row_steps"] <= made["attempt_steps"] <= tokens
        assert made["mode"] == "refill"
    assert all(made["drawn"] >= made["row_steps"] for made in counted["runs"]["ours"])
    assert all(made["accepted"] == 2 for made in ours)
    length = ours[0]["prompt_tokens"]
    assert length > 10
    for made in retry:
        assert made["attempts"] % BATCH == 0
        assert made["prompt_tokens"] == length * made["attempts"]
    assert all(made["prompt_tokens"] == length - 1 for made in cached)
    # The prompt is read once for the attempts, and once to find out why none of them satisfies the constraint.
    assert all(made["accepted"] == 0 for made in one["runs"]["ours"])
    assert [made["prompt_tokens"] for made in one["runs"]["ours"]] == [2, 2]

    assert timed["figures"][0]["what"] == "retry / ours, CPU s"
    assert timed["figures"][0]["target"] == "≥ 15"
    ratios = [theirs["cpu_s"] / mine["cpu_s"] for theirs, mine in zip(retry, ours, strict=True)]
    assert timed["figures"][0]["values"] == pytest.approx(ratios, abs=1e-4)
    assert timed["figures"][0]["median"] == pytest.approx(statistics.median(ratios), abs=1e-4)
    for made, value in zip(counted["runs"]["ours"], counted["figures"][0]["values"], strict=True):
        assert value == pytest.approx(made["row_steps"] / made["least"], abs=1e-4)
    for made in busy["runs"]["stream"]:
        assert 1 < made["calls_before_tail"] < made["calls"]
        assert made["row_steps"] <= BATCH * made["calls"]
        assert 0 < made["busy_rows"] <= made["busy_attempts"] <= 1

    assert "/" not in written["settings"]["chat"], "results are for others: no paths of this machine"
    markdown = (tmp_path / "made.md").read_text().splitlines()
    figures = sum(len(case["figures"]) for case in written["cases"].values())
    loops = sum(len(case["runs"]) for case in written["cases"].values())
    assert sum(line.startswith("| ") for line in markdown) == figures + loops + 4  # and two heads of two lines
    (row,) = (line for line in markdown if line.startswith(f"| {TIMED} | retry / ours"))
    assert "≥ 15" in row


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run("--case", TIMED)
    for kind in engine.MEASURE:
        if kind.__name__ != "Busy":
            monkeypatch.setitem(engine.MEASURE, kind, lambda *_: pytest.fail("measured again"))
    after = run("--case", TIMED, "--case", BUSY, "--resume")
    assert len(after["cases"]) == len(before["cases"]) + 1
    assert {name: after["cases"][name] for name in before["cases"]} == before["cases"]
    with pytest.raises(SystemExit):
        run("--case", TIMED, "--resume", "--repeats", "3")


def test_without_a_base_model_its_cases_are_left_out(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.main(["--quick", "--chat", tiny, "--case", BUSY, "--out", str(tmp_path / "made")])
    assert "left out" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_profile_tells_operations_and_waits_and_writes_nothing(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", tiny, "--case", ONE_TOKEN, "--profile", "ours", "--out", str(tmp_path / "made")]
    engine.main(["--quick", *options])
    printed = capsys.readouterr().out
    assert "aten::addmm" in printed or "aten::mm" in printed
    assert re.search(r"waits for the device in each of \d+ passes: aten::_local_scalar_dense \d+\.\d\d", printed)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_peak_memory_is_that_of_processes_of_their_own(run: Run) -> None:
    case = of(run("--case", "no comma, chat prompt"), "peak memory")
    assert set(case["runs"]) == {"ours", "generate"}
    for (made,) in case["runs"].values():
        assert made["peak_mb"] > made["above_mb"] > 0
        assert made["accepted"] == 2
    (mine,), (theirs,) = case["runs"]["ours"], case["runs"]["generate"]
    assert case["figures"][0]["median"] == pytest.approx(mine["peak_mb"] / theirs["peak_mb"], abs=1e-4)


@pytest.mark.slow
def test_the_adapter_is_compared_with_the_model(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "STEPS", 16)
    for dtype in ("float32", "bfloat16"):
        out = str(tmp_path / "made")
        adapter.main(["--quick", "--model", tiny, "--dtype", dtype, "--strength", "0.1", "--out", out])
        written = json.loads((tmp_path / "made.json").read_text())
        for runs in written["runs"].values():
            assert [0 < run["row_steps"] <= BATCH * 15 for run in runs] == [True]  # the first token is the prompt's
        assert written["merged"]["median"] == pytest.approx(
            written["runs"]["merged"][0]["cpu_s_per_row_step"] / written["runs"]["model"][0]["cpu_s_per_row_step"],
            abs=1e-4,
        )
        rounding = written["rounding"]
        assert rounding["adapter against model"] > 0.1
        assert (rounding["merged against unmerged"] > 1e-3) == (dtype == "bfloat16")


def test_what_can_be_known_of_a_verdict() -> None:
    chance = np.random.default_rng(0)
    features = torch.from_numpy(chance.normal(size=(4000, 8))).float()
    parts = np.split(chance.permutation(4000), [2800, 3200])
    at_odds = 1 / (1 + np.exp(-features[:, 0].double().numpy()))
    told = {
        "by the features": (features[:, 0].numpy() > 1).astype(float),
        "partly": (chance.random(4000) < at_odds).astype(float),
        "by chance": (chance.random(4000) < 0.2).astype(float),
    }
    shares = {name: knowable.known(features, verdicts, parts) for name, verdicts in told.items()}
    assert shares["by the features"]["low"] > 0.8
    entropy = -np.mean(at_odds * np.log(at_odds) + (1 - at_odds) * np.log(1 - at_odds))
    assert shares["partly"]["low"] < 1 - entropy / np.log(2) < shares["partly"]["high"]
    assert shares["by chance"]["high"] < 0.02


@pytest.mark.slow
def test_a_classifiers_verdicts_are_probed(tiny: str, tmp_path: Path) -> None:
    training = {
        "model": tiny, "prompts": ["ab", "ba"], "generation": {"max_new_tokens": 8, "do_sample": True, "top_k": 0},
        "constraint": {"kind": "classifier", "model": "named", "label": "P", "threshold": 0.5},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(training))
    named = ["--model", tiny, "--classifier", str(classifier(tmp_path / "classifier"))]
    command = [str(tmp_path / "config.yaml"), *named, "--attempts", "100", "--out", str(tmp_path / "k"), "--thresholds"]
    with pytest.raises(SystemExit):
        knowable.main([*command, "0.999999"])
    knowable.main([*command, "0.004"])
    written = json.loads((tmp_path / "k.json").read_text())
    assert written["settings"]["texts"] == 200
    found = written["known"]["0.004"]
    assert 0 < found["acceptance rate"] < 1
    assert found["last hidden state"]["value"] <= 1
    assert found["tokens of the view"]["value"] <= 1


def test_the_official_suite_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tests" / "draft2020-12"
    (folder / "optional" / "format").mkdir(parents=True)
    (tmp_path / "tests" / "draft4").mkdir()
    both = ["--suite", str(tmp_path), "--only", "draft4", "draft2020-12"]

    def group(schema: Any, *cases: tuple[Any, bool]) -> dict[str, Any]:
        tests = [{"description": str(data), "data": data, "valid": valid} for data, valid in cases]
        return {"description": "a group", "schema": schema, "tests": tests}

    day = group({"format": "date"}, ("2024-01-32", True))
    (folder / "a.json").write_text(json.dumps([group({"minimum": 1}, (1, True), (0, False)), day]))
    (folder / "b.json").write_text(json.dumps([group({"$ref": "http://a/b"}, (1, True), (2, True))]))
    (folder / "optional" / "format" / "date.json").write_text(json.dumps([group({"format": "date"}, ("a", False))]))
    (folder / "optional" / "content.json").write_text(json.dumps([group({}, (1, False))]))
    integers = group({"type": "integer"}, (1, True), (1.0, False))
    (tmp_path / "tests" / "draft4" / "a.json").write_text(json.dumps([integers, group({"const": 1}, (2, True))]))
    assert schema_suite.main([*both, "--verbose"]) == 0
    printed = capsys.readouterr().out
    assert "draft4, required: 3 agreed, 0 refused, 0 wrong\n" in printed
    assert "draft2020-12, required: 3 agreed, 2 refused, 0 wrong\n" in printed
    assert "draft2020-12, optional: 0 agreed, 0 refused, 0 wrong\n" in printed
    assert "draft2020-12, formats: 1 agreed, 0 refused, 0 wrong\n" in printed
    assert "b.json: a group: 1: refused: schema refers to 'http://a/b', another document" in printed
    (folder / "c.json").write_text(json.dumps([group({"minimum": 1}, (1, False))]))
    assert schema_suite.main(both) == 1
    assert "c.json: a group: 1: wrong: the whole text\n" in capsys.readouterr().out
    (folder / "c.json").unlink()
    with monkeypatch.context() as patch:  # negative control: a verdict on a prefix that its text does not have
        patch.setattr(NumberRange, "may_hold", lambda limits, digits: False)
        assert schema_suite.main(both) == 1
    assert "a.json: a group: 1: wrong: VIOLATED after 1 characters\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        schema_suite.main(["--suite", str(folder)])


@pytest.fixture
def bench(local: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[structured.Bench]:
    """With the embedded model of all tests."""
    monkeypatch.setattr(structured, "load_local", lambda: local)
    bench = structured.Bench()
    yield bench
    bench.hook.remove()


@pytest.mark.slow
def test_structured_output_is_measured(
    bench: structured.Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(structured, "Bench", lambda: bench)
    out = tmp_path / "structured.json"
    few = ["--seeds", "1", "--gold", "5", "--drawn", "16", "--masked", "40", "--out", str(out)]
    structured.main(["--only", "yes or no", "--engines", "llguidance", *few])
    written = json.loads(out.read_text())
    (task,) = written["tasks"].values()
    assert set(task["runs"]) == {
        f"{name}, {texts}" for name in [*structured.WAYS, "llguidance"] for texts in (structured.EIGHT, 1)
    }
    for name, (run,) in task["runs"].items():
        assert run["texts"] == int(name.rsplit(", ")[-1])
        assert run["valid"] == run["texts"]
        assert 1 < run["length"] / run["texts"] < 5
        if "llguidance" in name:
            assert run["computed_tokens"] == (run["passes"] - 1) * run["texts"]
        else:
            assert run["attempts"] >= run["texts"]
            assert 0 < run["computed_tokens"] < 4 * run["attempts"]
    exact, other = task["distance"]["Masked"], task["distance"]["llguidance"]
    assert estimate_of(exact["kl"]).low < estimate_of(other["kl"]).high
    assert other["kl"]["high"] is None, "16 texts have too few weights for an upper end"
    assert other["masks of g"]["low"] == other["masks of g"]["value"] == 0
    assert other["tvd"]["value"] < 0.3


def tokenised(text: str, vocabulary: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """In every way."""
    if not text:
        yield ()
    for size in range(1, len(text) + 1):
        if text[:size] in vocabulary:
            for rest in tokenised(text[size:], vocabulary):
                yield (vocabulary[text[:size]], *rest)


@pytest.mark.slow
def test_what_engines_are_scored_with_is_a_law(bench: structured.Bench) -> None:
    """Over all texts, in whatever tokens, the probabilities under a mask add up to 1; a's do not."""
    task = next(task for task in structured.TASKS if task.name == "yes or no")
    make = masks.llguidance(bench.model, bench.tokenizer)(task.rule)
    prompt, end = bench.ids(task)["input_ids"], bench.tokenizer.eos_token_id
    texts = [
        (*tokens, end)
        for word in ("yes", "no", "Yes", "No")
        for stop in ("", ".")
        for tokens in tokenised(word + stop, bench.tokenizer.get_vocab())
    ]
    scored = [masks.log_probabilities(bench.model, prompt, text, structured.SETTINGS, make()) for text in texts]
    of_model, masked = np.exp(scored).sum(axis=0)
    assert masked == pytest.approx(1, abs=1e-4)
    assert of_model < 0.6
    forbidden = (*bench.tokenizer("maybe")["input_ids"], end)
    assert masks.log_probabilities(bench.model, prompt, forbidden, structured.SETTINGS, make())[1] == -np.inf


@pytest.mark.slow
def test_the_comma_case_is_measured(
    local: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comma, "load_local", lambda: local)
    monkeypatch.setattr(comma, "SETTINGS", {**comma.SETTINGS, "max_new_tokens": 3})
    comma.main(["--texts", "1", "--repeats", "1"])
    written = json.loads(capsys.readouterr().out)
    assert written["modes"] == ["refill"]
    assert written["times ours"]["loop"] == pytest.approx(
        written["cpu_s"]["loop"][0] / written["cpu_s"]["ours"][0], 0.2
    )
    comma.main(["--texts", "1", "--repeats", "1", "--modes"])
    written = json.loads(capsys.readouterr().out)
    assert written["modes"] == ["evict-only", "plain", "refill"]
    assert set(written["times refill"]) == {"evict-only", "plain"}


def test_the_releases_of_the_matrix() -> None:
    assert matrix.wanted("oldest").startswith("transformers==5.")
    assert matrix.wanted("locked").startswith("transformers==5.")
    assert matrix.wanted("newest") == f"{matrix.wanted('oldest').replace('==', '>=')},<6"


def test_the_table_of_the_matrix() -> None:
    log = "...\n2 failed, 71 passed, 3 skipped, 1 error in 35.30s (0:00:35)\n"
    assert matrix.counted(log) == {"failed": 2, "passed": 71, "skipped": 3, "error": 1}
    assert matrix.counted("no tests") == {"error": 1}
    versions = {"transformers": "5.24.0", "tokenizers": "0.23", "peft": "0.21", "torch": "2.13"}
    fine = {"tests": {"passed": 9}, "versions": versions, "modes": ["refill"], "times ours": {"loop": 3.5}}
    assert matrix.table({"locked, newest": fine}).endswith(
        "| locked, newest | 5.24.0 | 0.23 | 0.21 | 2.13 | 9 passed | refill | 3.5 |"
    )
    assert matrix.is_fine(fine)
    assert not matrix.is_fine(fine | {"modes": ["plain"]})
    assert not matrix.is_fine(fine | {"tests": {"passed": 8, "failed": 1}})


@pytest.mark.slow
def test_intervals_with_heavy_tails_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("uniform, as of a mask", "Pareto, k = 0.9", "a text of 0.01 % with 30 % of g")
    monkeypatch.setattr(tails, "WORLDS", {name: tails.WORLDS[name] for name in names})
    tails.main(["--pilots", "80", "--out", str(tmp_path / "made")])
    written = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    light, heavy, unseen = (written["worlds"][name]["100"] for name in names)
    assert light["without_end"] <= 1, "bounded weights have a light tail"
    assert light["true_with_rule"] > 0.9 * light["stated"]
    assert heavy["true_distance"] > 4 * written["settings"]["target"], "the pilot's target is missed by far"
    assert heavy["true_as_seen"] < 0.75 * heavy["stated"] < heavy["true_with_rule"]
    assert heavy["too_low_with_rule"] < 0.7 * heavy["too_low_as_seen"]
    assert unseen["true_with_rule"] < 0.1 * unseen["stated"], "no tail shows a text that was never drawn"
    recorded = json.loads(Path("benchmarks/results/tails.json").read_text(encoding="utf-8"))
    assert recorded["worlds"].keys() > written["worlds"].keys()
    shown = ("limit", "true_distance")
    for name in names:
        of, then = written["worlds"][name]["100"], recorded["worlds"][name]["100"]
        assert [of[key] for key in shown] == pytest.approx([then[key] for key in shown], rel=0.1)


def test_distances_in_worlds_of_weights() -> None:
    """A β above all weights gives g, and a β of 0 gives g'."""
    world = tails.one_rare_text(0.01, 0.3)
    gold = world.guarded * np.exp(world.log_weights)
    assert gold[-1] / gold.sum() == pytest.approx(0.3)
    assert world.tvd(float(world.log_weights.max())) == pytest.approx(0, abs=1e-12)
    rejection = float(np.abs(gold / gold.sum() - world.guarded).sum() / 2)
    assert world.tvd(-math.inf) == pytest.approx(rejection) == pytest.approx(world.tvd(-50.0))
    assert rejection > 0.29


def test_plans_are_compared_with_exact_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = table_world(2, letters="abc", max_new_tokens=4)
    rule = Keyword("ab", whole_words=False)
    law = world.law()
    exact = sum(law[ids] for ids in world.gold(rule))
    assert plan_forecasts.rate_in(world, rule) == pytest.approx(exact)
    lines = [
        json.loads(line) for line in Path("benchmarks/results/plan-forecasts.jsonl").read_text("utf-8").splitlines()
    ]
    assert sum(line["covered"] for line in lines) >= 0.9 * len(lines) == 54
    assert "60 forecasts: 59 intervals contain Z" in plan_forecasts.summary(lines)
