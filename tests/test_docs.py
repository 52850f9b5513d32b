"""The documentation: its code runs as written, its pictures show what is so, and it builds without a warning."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from peft import LoraConfig

import guardwrap
from guardwrap import Keyword, adapters, metrics, samplers, testing, training
from guardwrap.adapters import attach, describe, save_adapter
from guardwrap.cli.commands.demo_command import SCENES
from guardwrap.cli.typer_app import app
from guardwrap.constraints import ConstraintFile, load, parse
from tests.cli.fixtures_commands import run
from tests.engine.endpoint.fixtures_server import Server
from tests.fixtures_models import storyteller
from tests.test_examples import LOCAL_PAGES, RUN_HERE, needs_more

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for pages in ("*.md", "measurements/*.md") for path in DOCS.glob(pages))

# What a reader of training.md has after reading it; smaller here, so that a second is enough.
TRAINING = {
    "samples": 600, "warm_samples": 300, "gold_attempts": 300, "final_attempts": 100, "rounds": 1, "updates": 10,
    "look": 5, "rank": 2,
}  # fmt: skip
EVALUATION = {"attempts": 200, "base_attempts": 200, "steps": [1, 2], "texts": 20}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def command_lines(page: str) -> list[str]:
    return re.findall(r"^    guardwrap (.*?)(?:  +#.*)?$", (DOCS / page).read_text(), re.M)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A tiny model with its tokenizer, which is "local" as well, and kept in a folder ``model``."""
    model, tokenizer = storyteller()
    for place in ("models.embedded_model", "models.loading"):
        monkeypatch.setattr(f"guardwrap.{place}.load_local", lambda: (model, tokenizer))
    monkeypatch.setattr("guardwrap.models.embedded_model.local_digest", lambda: "sha256:tiny")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return model, tokenizer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server, which every address leads to. It calls a tool when asked about the weather."""
    call = {"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]}

    def text(prompt: str, _: Any) -> Any:
        return ([call], "tool_calls", 5) if "weather" in prompt else ([" a cup of tea", "."], "stop", 5)

    with Server(text, model=None).running() as running:
        monkeypatch.setattr("guardwrap.engine.endpoint.server.plain_address", lambda url, whose: running.url)
        yield running


@pytest.fixture
def given(model: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts beside a page what its reader has: the files it shows, and those it tells of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rules", raising=False)

    def put(page: str) -> None:
        shown = [data for block in blocks(page, "yaml") if isinstance(data := yaml.safe_load(block), dict)]
        trained = next((each for each in shown if "prompts" in each), None)
        # Where a page trains, rules with fields are those of a reward.
        files = (each for each in shown if "guardwrap" in each and not (trained and "fields" in each))
        rules = next(files, None)
        if rules is None:
            rules = {
                "guardwrap": 1,
                "constraint": (trained or {}).get("constraint", {"kind": "keyword", "words": "tea"}),
            }
        Path("rules.yaml").write_text(yaml.safe_dump(rules))
        Path("dragon-rule.yaml").write_text(yaml.safe_dump(rules))
        if trained is not None:
            Path("dragon.yaml").write_text(yaml.safe_dump({**trained, **TRAINING, "model": "model"}))
        python = [block for block in blocks(page, "python") if "def " in block]
        Path("rules.py").write_text("from guardwrap import Verdict, constraint\n" + "\n".join(python[2:3]))
        shutil.copytree(ROOT / "examples/training/words", "examples/training/words", dirs_exist_ok=True)
        pairs = combinations(("tea", "dragon", "castle"), 2)  # words that the tiny model says
        members = [{"prompt": f"Words: {a}, {b}.", "words": [a, b]} for a, b in pairs]
        Path("examples/training/words/prompts.jsonl").write_text("\n".join(map(json.dumps, members)))
        for example in (ROOT / "examples").glob("*/*.yaml"):
            small = TRAINING if example.parent.name == "training" else EVALUATION
            path = example.relative_to(ROOT)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump({**yaml.safe_load(example.read_text()), **small}))
        if page == "declare.md":
            Path("house").mkdir(exist_ok=True)
            (promises,) = (block for block in blocks(page, "yaml") if "catalogue:no-urls" in block)
            Path("house/promises.yaml").write_text(promises)
        if page == "training.md":
            put_adapters(model, load("rules.yaml"))

    return put


def put_adapters(model: Any, rules: ConstraintFile) -> None:
    """Save two adapters, as if they had been trained for the rules."""
    for name in ("dragon", "castle"):
        adapted = attach(model[0], LoraConfig(r=2, target_modules="all-linear"), trainable=False)
        card = describe(
            model[0], rules.constraint, ["One day"], name="tiny", settings={}, method="none", seed=0, samples=1
        )
        save_adapter(Path("adapters") / name, adapted, card)


def run_python(page: str, source: str, model: Any) -> None:
    """Run the blocks of a page one after the other, as a reader would; training.md goes on from a pipeline."""
    from transformers import pipeline

    namespace: dict[str, Any] = {"__name__": "page"}
    if page == "training.md":
        pipe = pipeline("text-generation", model=model[0], tokenizer=model[1])
        namespace |= {"GuardedGenerator": guardwrap.GuardedGenerator, "pipe": pipe, "prompt": "One day"}
    with pytest.MonkeyPatch.context() as patch:
        if page == "production.md":  # its provider would be that of all later tests
            pytest.importorskip("opentelemetry.sdk")
            trace = import_module("opentelemetry.trace")
            provided = lambda provider: patch.setattr(trace, "get_tracer_provider", lambda: provider)  # noqa: E731
            patch.setattr(trace, "set_tracer_provider", provided)
        exec(compile(source, page, "exec"), namespace)
        if "provider" in namespace:
            namespace["provider"].shutdown()


def run_command(line: str) -> Any:
    """Run a line, on the tiny model and a small budget."""
    arguments = shlex.split(line)
    if "--model" in arguments:
        arguments[arguments.index("--model") + 1] = "model"
    if arguments[0] == "report" and not Path(arguments[1]).exists():  # of a run that is there already
        run_command(f"evaluate examples/samplers/appendix-g.yaml --model model --out {arguments[1]}")
    if arguments[0] == "generate":
        arguments += ["--max-attempts", "200"]
    return run(*arguments)


SERVED = "serve.md"  # what it shows needs a server: it is run in tests/serve/test_page.py
AGENTS = "agents.md"  # this needs one too, and the agents: it is run in tests/serve/test_agents.py
# What the tiny model cannot do is run in test_examples.py: JSON, and answers to questions.
BEYOND = {f"{page}.md" for page in RUN_HERE}
# The commands of these are run in test_examples.py too, as their reader runs them.
RUN_ELSEWHERE = {SERVED, AGENTS, *(Path(page).name for page in LOCAL_PAGES)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page not in {*BEYOND, SERVED, AGENTS}]
)
def test_python_blocks_run(page: str, model: Any, given: Any) -> None:
    given(page)
    run_python(page, "\n".join(block for block in blocks(page, "python") if not needs_more(block)), model)


def test_the_telemetry_of_the_page_is_as_it_says(model: Any, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    monkeypatch.setattr(export, "ConsoleSpanExporter", lambda: exporter)
    given("production.md")
    run_python("production.md", "\n".join(blocks("production.md", "python")), model)
    (span,) = exporter.get_finished_spans()
    named = set(re.findall(r"`((?:gen_ai|guardwrap)\.[\w.]+)`", (DOCS / "production.md").read_text()))
    metrics = {"guardwrap.exhausted", "gen_ai.client.operation.duration"}
    seldom = {"guardwrap.acceptance_rate", "guardwrap.rejected_most_by", "guardwrap.rejected_most"}
    other_spans = {"guardwrap.plan", "guardwrap.pilot", "guardwrap.learn_twist"}
    assert len(named) > 15
    assert set(span.attributes) >= named - metrics - seldom - other_spans


def test_negative_control_a_block_with_a_wrong_name_fails(model: Any, given: Any) -> None:
    given("wrap.md")
    right = "\n".join(blocks("wrap.md", "python"))
    assert "max_new_tokens" in right
    with pytest.raises(NameError):
        run_python("wrap.md", right.replace("Keyword(", "Keywrd("), model)
    with pytest.raises(guardwrap.GuardwrapError):
        run_python("wrap.md", right.replace('"seed": 1', '"sed": 1'), model)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page) and page not in RUN_ELSEWHERE])
def test_commands_run(page: str, given: Any) -> None:
    given(page)
    for line in command_lines(page):
        done = run_command(line)
        assert done.exit_code == 0, f"guardwrap {line}: {done.output}"


def test_negative_control_a_wrong_command_fails(given: Any) -> None:
    given("declare.md")
    assert run_command("chek rules.yaml").exit_code == 2
    assert run_command("check rules.yaml --text 'A glass of water.'").exit_code == 1


def test_constraint_files_are_valid_and_their_examples_hold(given: Any) -> None:
    found = [(page, block) for page in PAGES for block in blocks(page, "yaml") if "guardwrap:" in block]
    assert len(found) >= 2
    for page, block in found:
        given(page)
        file = parse(block, allow_code=True)
        file = file.filled(file.sample)
        assert all(map(file.constraint.accepts, file.accepts))
        assert not any(map(file.constraint.accepts, file.rejects))


def test_what_own_constraint_says_of_an_unsound_verdict_is_so(model: Any, given: Any) -> None:
    given("own-constraint.md")
    source = "\n".join(blocks("own-constraint.md", "python"))
    assert source.count(".split()[:-1]") == 1
    with pytest.raises(AssertionError, match="unsound"):
        run_python("own-constraint.md", source.replace(".split()[:-1]", ".split()"), model)


def module_of(name: str) -> Any:
    """Return a script of the docs as a module; dataclasses look theirs up by its name."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pictures() -> Any:
    yield module_of("pictures")
    del sys.modules["pictures"]


@pytest.mark.slow
def test_what_the_page_says_of_order_is_so(pictures: Any) -> None:
    found, page = pictures.order(prompts=600), (DOCS / "exactness.md").read_text()
    assert found.gold == pytest.approx(0.5, abs=1e-6)
    assert f"{found.finishing_exactly:.0%}".replace("%", " %") == "69 %"
    assert "their share is 69 % instead of 50 %" in page
    launch, finish, before, during = found.shares.values()
    assert launch.low < 0.5 < launch.high
    assert before.low < 0.5 < before.high
    assert finish.low < found.finishing_exactly < finish.high
    assert finish.low > 0.5
    assert during.low > 0.5


def test_what_the_page_says_of_masking_is_so(pictures: Any) -> None:
    found, page = pictures.masking(draws=2000), " ".join((DOCS / "exactness.md").read_text().split())
    assert all(each.low < g < each.high for each, g in zip(found.rejection, found.gold, strict=True))
    assert found.masking[0].high < found.gold[0]
    assert all(each.low > g for each, g in zip(found.masking[-2:], found.gold[-2:], strict=True))
    assert f"{found.gold[0]:.0%}".replace("%", " %") == "33 %"
    assert "23 % instead of 33 %" in page


def test_verdicts_and_seeds_are_as_pictured(pictures: Any) -> None:
    ends = [pictures.verdicts(judged, text).index for judged, text in pictures.GROWING]
    assert ends[0](-1) == len("Call 555-0199")  # the character after the number
    with pytest.raises(ValueError, match="not in list"):
        ends[1](-1)
    assert ends[2](1) == len("One cup of tea")
    assert ends[3](-1) == len("One cup of ")
    one, three, sixteen, other = ([each.draw.text for each in run] for run in pictures.seeds())
    assert one == three == sixteen != other


def test_pictures_are_there_small_and_described() -> None:
    pages = [*PAGES, "../README.md"]
    pictures = r"(?<!\[)!\[(.*?)\]\((.*?)\)"  # a badge is a picture within a link
    used = [(page, *found) for page in pages for found in re.findall(pictures, read(page), re.S)]
    assert len(used) >= 5
    for page, alt, name in used:
        path = (DOCS / page).parent / name
        assert len(alt) > 60, f"{page}: {name} needs a text for those who cannot see it"
        assert path.stat().st_size <= (60_000 if page == "exactness.md" else 100_000)
        if path.suffix == ".svg":
            ElementTree.parse(path)
    assert {Path(name).name for *_, name in used} == {path.name for path in (DOCS / "images").iterdir()}


def test_the_recording_is_of_the_demo_and_needs_nothing_from_elsewhere() -> None:
    drawn = ElementTree.parse(DOCS / "images" / "demo.svg")
    shown = " ".join(
        "".join(each.itertext()).replace("\xa0", " ") for each in drawn.iter() if each.tag.endswith("}text")
    )
    assert all(words in shown for scene in SCENES[:2] for words in (scene.title, scene.prompt))
    assert SCENES[2].title not in shown
    assert not re.search(r"url\([\"']?http|href|@import", (DOCS / "images" / "demo.svg").read_text())


def test_the_recording_is_what_was_written() -> None:
    recording = module_of("recording")
    written = "Loading\n\n\x1b[1m1. A\x1b[0m\nx < 3\n\n\x1b[1m2. B\x1b[0m\ny\n\n\x1b[1m3. C\x1b[0m\n"
    drawn = recording.picture(recording.first_screens(written, 2))
    assert "x&#160;&lt;&#160;3" in drawn
    assert "2.&#160;B" in drawn
    assert "3.&#160;C" not in drawn
    assert "http" not in drawn.replace("https://www.textualize.io", "").replace("http://www.w3.org", "")


def read(page: str) -> str:
    return (DOCS / page).read_text()


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-c", str(DOCS), str(source), str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_it_builds_and_the_reference_has_every_public_name(tmp_path: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    done = build(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    names = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in names.data.values() for name in kind}
    others = [import_module(f"guardwrap.integrations.{name}") for name in ("langchain", "llamaindex")]
    for module in (guardwrap, metrics, samplers, training, adapters, testing, *others):
        assert {f"{module.__name__}.{name}" for name in module.__all__} <= documented
    page = (tmp_path / "reference" / "cli.html").read_text()
    assert all(
        f'id="guardwrap-{command.name or getattr(command.callback, "__name__", None)}"' in page
        for command in app.registered_commands
    )
    assert "https://" not in "".join(re.findall(r"<(?:link|script|img)[^>]*>", (tmp_path / "index.html").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[there](missing.md)", "[here](#no-such-heading)"])
def test_negative_control_a_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text(f"# Page\n\n{link}\n")
    (tmp_path / "_static").mkdir()
    assert "missing" in build(tmp_path, tmp_path / "out").stderr
    (tmp_path / "index.md").write_text("# Page\n\n[here](#page)\n")
    assert build(tmp_path, tmp_path / "out2").returncode == 0


def test_all_constraints_of_the_examples_can_be_met_by_the_tiny_model(model: Any) -> None:
    """Or the tests above would wait for what never comes."""
    words = set(model[1].get_vocab())
    assert {"tea", "dragon", "Lily"} <= words
    assert Keyword("tea").accepts(model[1].decode(model[1]("One tea , Lily")["input_ids"], skip_special_tokens=True))
