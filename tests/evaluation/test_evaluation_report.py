"""Files of an evaluation: recordings, JSON, plots and the page; and its command."""

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from guardwrap import GuardedGenerator, Regex
from guardwrap.errors import UsageError
from guardwrap.evaluation import tradeoff
from guardwrap.evaluation.evaluation_report import page_of, read_evaluation
from guardwrap.evaluation.evaluation_run import evaluate
from guardwrap.evaluation.evaluation_settings import EvaluationSettings
from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Bars, Curves, Points
from guardwrap.outcomes.charts import methods_of
from guardwrap.outcomes.html import html_report
from guardwrap.samplers import from_row, qrs
from guardwrap.testing import llama_world
from tests.cli.fixtures_commands import run as command
from tests.evaluation.fixtures_recordings import Source, placed
from tests.outcomes.fixtures_pages import Page

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('1')</script> & \" $x$ _"
SECRET = "eeeeeeeeee"  # a text without an a
SETTINGS = EvaluationSettings(
    constraint="x", prompts=["Tell me."], proposals={"cap": "Use an a. {prompt}"}, attempts=250, steps=[1, 3], texts=60
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(tradeoff, "diversity", lambda texts: {})
    monkeypatch.setattr("guardwrap.evaluation.figures.diversity", lambda texts: {})


def run(folder, source=None, **changes):
    return evaluate(source or Source(placed()), SETTINGS.model_copy(update=changes), Regex("a"), folder)


def test_files(tmp_path):
    found = run(tmp_path / "out")
    data = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    cap = data["prompts"][0]["proposals"]["cap"]
    estimate = found.prompts[0].proposals["cap"].figures["kl_gold_guarded"]
    assert cap["figures"]["kl_gold_guarded"] == {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    assert (data["settings"]["attempts"], data["settings"]["seed"]) == (250, 0)
    assert data["digest"] == Regex("a").digest
    assert data["versions"].keys() == {"guardwrap", "torch", "transformers", "numpy"}
    assert any(point["resampled"] for point in cap["samplers"])
    assert "with replacement" in data["how"]["resampled"]
    assert SECRET not in json.dumps(data)
    for name in ("cost", "positions", "tradeoff"):
        png = (tmp_path / "out" / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG\r\n")
        assert int.from_bytes(png[16:20], "big") > 500, "width"
        assert len(png) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("world", [placed(), replace(placed(), texts=["z" * 10 for _ in placed().texts])])
def test_what_was_written_gives_the_same_page_again(tmp_path, world):
    run(tmp_path, Source(world), prompts=["Tell me.", ""])
    again = html_report([page_of(read_evaluation(tmp_path / "evaluation.json"))])
    assert again == (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_what_there_is_to_know_of_weights_is_on_the_page(tmp_path):
    source = Source(placed())
    source.session.of_weights = ("weights come from a quantized model",)
    assert "weights come from a quantized model" in run(tmp_path / "noted", source).prompts[0].proposals["cap"].notes
    assert "cap: weights come from a quantized model." in (tmp_path / "noted" / "report.html").read_text()
    run(tmp_path / "plain")
    assert "quantized" not in (tmp_path / "plain" / "report.html").read_text()


@pytest.mark.slow
def test_a_sampler_of_its_own(tmp_path):
    usual = run(tmp_path).prompts[0].proposals["cap"]
    told = {"qrs": {"target_acceptance": 0.4, "pilot": 20}}
    found = run(tmp_path, sampler=told).prompts[0].proposals["cap"]
    *curves, own = found.samplers
    assert curves == list(usual.samplers), "the curves stay as they are"
    assert found.reach == usual.reach
    assert (own.sampler, own.setting) == ("sampler: qrs, target_acceptance = 0.4, pilot = 20", None)
    attempts = recording_of("cap", tmp_path)
    state, texts = qrs(target_acceptance=0.4, pilot=20).init(), 0
    for attempt in attempts:
        state, draws = qrs(target_acceptance=0.4, pilot=20).returned(state, attempt)
        texts += len(draws)
    assert 10 < own.texts == texts < 150
    assert own.cost.value == pytest.approx(250 / texts)
    assert own.relative_cost == pytest.approx(own.cost.value * sum(attempt.satisfied for attempt in attempts) / 250)
    assert own.projected_kl is not None
    html = (tmp_path / "report.html").read_text()
    assert own.sampler in html
    assert html_report([page_of(read_evaluation(tmp_path / "evaluation.json"))]) == html
    none = run(tmp_path, sampler={"qrs": {"pilot": 1000}}).prompts[0].proposals["cap"]
    assert none.samplers == usual.samplers
    assert "the sampler of the settings accepted none of these attempts" in none.notes
    assert not any("gave no text" in note for note in (*usual.notes, *found.notes))


@pytest.mark.slow
def test_a_projected_kl_of_a_handful_of_texts_is_not_shown_as_one(tmp_path):
    """Neither in the table of settings nor as a point of a curve, which would show it as 0."""
    found = run(tmp_path)
    (prompt,) = found.prompts
    few = [replace(point, texts=9, projected_kl=Estimate(0.0, 0.0, 68.8)) for point in prompt.proposals["cap"].samplers]
    many = [replace(point, texts=10) for point in few]
    for points, shown in ((few, False), (many, True)):
        proposals = {"cap": replace(prompt.proposals["cap"], samplers=tuple(points))}
        page = page_of(replace(found, prompts=(replace(prompt, proposals=proposals),)))
        html = html_report([page])
        assert ("68.8" in html) is shown
        assert (">unknown</td>" in html) is not shown


def test_what_keeps_a_hint_from_texts_is_named_as_the_file_has_it(tmp_path):
    guarded = GuardedGenerator(llama_world(letters="ab", max_new_tokens=3).pipeline(), Regex("a"))
    settings = SETTINGS.model_copy(update={"generation": {"top_k": 2, "max_new_tokens": 3}})
    with pytest.raises(UsageError, match=r"^generation: top_k, here 2, keeps the proposal .*; write top_k: 0$"):
        evaluate(guarded, settings, Regex("a"), tmp_path)


def recording_of(name, folder):
    """Return the recorded attempts of a proposal."""
    (path,) = (folder / "attempts").glob(f"{name}-*")
    _, *lines = path.read_text().splitlines()
    return [from_row(row) for line in lines for row in json.loads(line)["attempts"][0]]


@pytest.mark.slow
def test_the_page(tmp_path):
    world = placed()
    hostile = replace(world, texts=[text.replace("d", "<script>") for text in world.texts])
    other = f"cap {HOSTILE}"
    names = {HOSTILE: "{prompt}", other: HOSTILE + "{prompt}"}
    found = run(tmp_path, Source(hostile), prompts=[HOSTILE, "Second."], proposals=names)
    assert any("<script>" in text for text in found.prompts[0].base.samples)
    html = (tmp_path / "report.html").read_text()
    page = Page(html)
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "img", "link", "iframe", "object", "image"}
    assert "http" not in html, "nothing from elsewhere"
    assert not re.search(r"url\((?!#)|@import|\son\w+=", html)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.seen
    assert "prefers-color-scheme: dark" in html
    plots = [attributes for tag, attributes in page.seen if attributes.get("role") == "img"]
    assert 2 * len(plots) == sum(tag == "svg" for tag, _ in page.seen) == 14
    of_a_prompt = ["Position of the match", *2 * ["Cost of samplers"]]
    for attributes, start in zip(plots, ["Cost against distance", *2 * of_a_prompt], strict=True):
        label = attributes["aria-label"] or ""
        assert label.startswith(start)
        assert HOSTILE in label, "unescaped once, it is what was given"
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:url\(|href=")#([^")]*)', html)
    assert set(used) <= set(ids)
    assert used
    text = "".join(page.text)
    assert HOSTILE in text
    estimate = found.prompts[1].proposals[other].figures["acceptance_rate"]
    for word in (
        "relative position in the text",
        "Mean over 2 prompts",
        "IMH, 3 steps",
        str(estimate),
        "seed",
        "numpy",
    ):
        assert word in text
    for name in ("cost-2", "positions-2", "tradeoff-2", "tradeoff-of-2-2"):
        assert (tmp_path / f"{name}.png").exists()
    assert SECRET not in html


@pytest.mark.slow
def test_a_proposal_has_one_colour_on_its_page(tmp_path):
    """Texts of the model have the color of g, and the paper's curves those of the same samplers."""
    found = run(tmp_path, replication=True)
    blocks = [block for section in page_of(found).sections for block in section.blocks]
    charts = [block for block in blocks if isinstance(block, Points | Bars | Curves)]
    assert len(charts) == 3
    assert methods_of(charts) == ["the model itself", "cap", "QRS", "IMH"]
    names = [one.name for chart in charts for one in chart.series]
    assert {"g", "g' of cap", "QRS, in the paper"} <= set(names)


@pytest.mark.slow
def test_the_papers_figures_stand_only_beside_those_of_who_repeats_it(tmp_path):
    run(tmp_path)
    assert "in the paper" not in (tmp_path / "report.html").read_text()
    run(tmp_path, replication=True)
    assert "in the paper" in (tmp_path / "report.html").read_text()


def test_negative_control_a_page_that_escapes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("guardwrap.outcomes.html._AUTOESCAPE", False)
    run(tmp_path, prompts=["<script>alert(1)</script>"])
    assert "script" in {tag for tag, _ in Page((tmp_path / "report.html").read_text()).seen}


def test_nothing_satisfies_the_constraint(tmp_path):
    world = placed()
    run(tmp_path, Source(replace(world, texts=["z" * 10 for _ in world.texts])))
    html = (tmp_path / "report.html").read_text()
    Page(html)
    assert "<svg" not in html
    assert "nothing else can be estimated" in html


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    source = Source(placed())
    with pytest.raises(UsageError, match=r"^plots need matplotlib: pip install 'guardwrap\[plots\]'$"):
        run(tmp_path, source)
    assert source.calls == []


@pytest.mark.slow
def test_matplotlib_stays_as_it_was(tmp_path):
    import matplotlib as mpl

    def state():  # reading the backend would set one
        settings = {name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"}
        return settings, mpl.get_backend(auto_select=False), "matplotlib.pyplot" in sys.modules

    before = state()
    run(tmp_path)
    assert state() == before


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A settings file, with a generator that replaces the model."""
    made = []

    def load(model, constraint, **options):
        made.append((model, constraint, options))
        return Source(placed())

    monkeypatch.setattr(import_module("guardwrap.cli.commands.evaluate_command"), "load_generator", load)
    path = tmp_path / "config.yaml"
    path.write_text(
        "constraint: {kind: regex, pattern: a}\nprompts: [Tell me.]\nsteps: [1]\nproposals: {cap: 'An a. {prompt}'}\n"
    )
    return path, made


@pytest.mark.slow
def test_the_command(config, tmp_path):
    path, made = config
    arguments = ["evaluate", path, "--out", tmp_path / "out", "--attempts", 200, "--model", "m", "--batch-size", 8]
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    assert made == [("m", Regex("a"), {"dtype": None, "batch_size": 8})]
    lines = result.stdout.splitlines()
    assert lines[0].startswith("base: acceptance rate AR 0.")
    assert lines[1].startswith("cap: acceptance rate AR 0.")
    assert lines[-1] == str(tmp_path / "out" / "report.html")
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["settings"]["attempts"] == 200
    told = command(*arguments, "--sampler", "imh: {steps: 2}")
    assert told.exit_code == 0, told.output
    assert "sampler: imh, steps = 2" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_model_as_a_proposal(config, tmp_path, monkeypatch):
    path, made = config
    monkeypatch.setattr(Source, "pipeline", "a pipeline", raising=False)
    path.write_text(path.read_text().replace("cap: 'An a. {prompt}'", "other: {model: n}") + "dtype: float32\n")
    result = command("evaluate", path, "--out", tmp_path / "out", "--attempts", 200)
    assert result.exit_code == 0, result.output
    assert [(model, options["dtype"]) for model, _, options in made] == [("local", "float32"), ("n", "float32")]
    assert result.stdout.splitlines()[1].startswith("other: acceptance rate AR 0.")
    assert sum(line.startswith("recommended: ") for line in result.stdout.splitlines()) == 1


def test_an_interruption_says_what_is_kept(config, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Source, "attempts", interrupted)
    path, _ = config
    result = command("evaluate", path, "--out", tmp_path / "out")
    assert result.exit_code == 130
    kept = f"attempts are in {tmp_path / 'out'}, except the last ones, at most 1,000 per prompt"
    assert result.stderr == f"guardwrap: interrupted: {kept}; continue with the same command\n"


def test_errors_of_the_command(config, tmp_path, monkeypatch):
    path, made = config
    (tmp_path / "file").write_text("")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(path.read_text() + "bets: [1]\n")
    for arguments, message in (
        ([path, "--out", tmp_path / "file"], "it is not a folder"),
        ([wrong, "--out", tmp_path / "out"], "wrong.yaml:5: bets: unknown field 'bets' (did you mean 'betas'?)"),
        ([tmp_path / "none.yaml", "--out", tmp_path / "out"], "cannot read"),
        (
            [path, "--out", tmp_path / "out", "--sampler", "qsr"],
            ": sampler: unknown sampler 'qsr' (did you mean 'qrs'?)",
        ),
        (
            [path, "--out", tmp_path / "out", "--sampler", "imh: {stepz: 2}"],
            ": sampler.imh.stepz: unknown field 'stepz' (",
        ),
    ):
        result = command("evaluate", *arguments)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert message in result.stderr
    assert made == []

    for sent, code, word in ((signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")):
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # if the test runner is in the background

        def interrupt(*args, sent=sent, **options):
            os.kill(os.getpid(), sent)
            time.sleep(60)  # another thread may receive the signal; Python then handles it in this one, slightly later

        monkeypatch.setattr(Source, "attempts", interrupt)
        result = command("evaluate", path, "--out", tmp_path / "out")
        signal.signal(signal.SIGINT, handler)
        assert result.exit_code == code, (result.stderr, result.exception)
        assert f"guardwrap: {word}: attempts are in" in result.stderr
        assert "continue with the same command" in result.stderr
