"""The examples and the code blocks of the documents run."""

import io
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from guardwrap.constraints import load, parse
from guardwrap.testing import character_tokenizer
from guardwrap.training import read_settings
from guardwrap.training.rounds import rounds
from tests.cli.fixtures_commands import run
from tests.fixtures_stand_in_models import StandIn
from tests.integrations.fixtures_tools import call_text, tools_world

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random BERT, on disk."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz ,.")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label={0: "NEGATIVE", 1: "POSITIVE"},
        initializer_range=1.0,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("classifier")
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def loaded(local: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What loads the embedded model is given the one of all tests."""
    for place in ("guardwrap", "guardwrap.models.embedded_model", "guardwrap.models.loading"):
        monkeypatch.setattr(f"{place}.load_local", lambda: local)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("loaded")
def test_example(
    path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--classifier", str(classifier), "--threshold", "0.5"] if "classifier" in path.stem else []
    monkeypatch.setattr(sys, "argv", [str(path), *options])
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 3


TOUR = ROOT / "examples" / "tour.ipynb"


def cells_of(notebook: Path) -> list[tuple[str, str]]:
    """Return each cell of code with what it printed when the notebook was saved; nothing else may have come out."""
    found = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert [out["name"] for out in cell["outputs"]] == ["stdout"], "save it again, with no warnings"
            found.append(("".join(cell["source"]), "".join(cell["outputs"][0]["text"])))
    return found


def but_for_seconds(printed: str) -> str:
    """Take out what the machine decides: how long it took."""
    return re.sub(r"(?m)[\d.]+ s\)?$|^  seconds .*$", "", printed)


@pytest.mark.slow
@pytest.mark.usefixtures("loaded")
def test_the_tour_prints_what_it_shows() -> None:
    """Same seeds, same texts, so what was saved is compared letter by letter.

    The cells run in this process, where the model is loaded already; a Jupyter kernel shows the same and takes twice
    as long. It is saved with ``TQDM_DISABLE=1 PYTHONWARNINGS=ignore jupyter execute --inplace examples/tour.ipynb``.
    """
    cells, namespace = cells_of(TOUR), {"__name__": "__main__"}
    assert len(cells) == 5
    for source, shown in cells:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, TOUR.name, "exec"), namespace)
        assert but_for_seconds(printed.getvalue()) == but_for_seconds(shown)


def test_negative_control_another_text_or_figure_in_the_tour_is_seen() -> None:
    _, shown = cells_of(TOUR)[1]
    assert but_for_seconds(shown) != shown
    assert but_for_seconds(re.sub(r"[\d.]+ s$", "9999 s", shown, flags=re.M)) == but_for_seconds(shown)
    for part in ("sea", "acceptance   0", "4 attempts"):
        assert part in shown
        assert but_for_seconds(shown.replace(part, "x")) != but_for_seconds(shown)


def test_the_examples_constraint_file_means_what_its_examples_say() -> None:
    file = load(ROOT / "examples" / "concise.yaml")
    assert all(file.constraint.accepts(text) for text in file.accepts)
    assert not any(file.constraint.accepts(text) for text in file.rejects)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "training").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_trainings_files_say_what_is_understood(path: Path) -> None:
    settings, constraint = read_settings(path)
    assert rounds(settings)
    assert constraint.digest


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


RUN_HERE = ("integrations", "report", "rules", "structured")
"""Pages of docs/ whose Python needs the embedded model; test_docs.py runs the others on a tiny one."""


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *(f"docs/{page}.md" for page in RUN_HERE)])
@pytest.mark.usefixtures("loaded")
def test_python_blocks_run(
    document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    put_files_of(document)
    monkeypatch.setattr("guardwrap.constraints.kinds.classifier.loaded", lambda task, name: StandIn(task))
    found = blocks(document, "python")
    assert found
    namespace: dict[str, Any] = {}
    if document == "docs/integrations.md":
        tool_world = tools_world(call_text("add", {"a": 1, "b": 2}))
        tool_world.model.generation_config.do_sample = True
        namespace["tool_model"] = tool_world.pipeline()
    for block in found:
        exec(compile(block, document, "exec"), namespace)
    if document == "README.md":
        assert namespace["outcome"].ok
        assert all("mug" in text.lower() for text in namespace["outcome"].texts)
        printed = capsys.readouterr().out
        assert "\n(Person(name='" in printed
        assert f"    {printed.splitlines()[0]}\n" in (ROOT / document).read_text()
    if document == "docs/report.md":
        printed = re.sub(r"[\d.]+ s$", "", capsys.readouterr().out.strip(), flags=re.M)
        shown = re.sub(r"[\d.]+ s$", "", (ROOT / document).read_text(), flags=re.M)
        assert "".join(f"    {line}\n" for line in printed.splitlines()) in shown
    if document == "docs/structured.md":
        assert [type(person) for person in namespace["outcome"].values] == [namespace["Person"]] * 2
        assert namespace["outcome"].report.usage.computed_tokens < namespace["outcome"].report.usage.tokens
        assert namespace["exact"].report.drawn_from == "exactly your model's own distribution, given the constraint (g)"
        assert namespace["masked"].report.drawn_from.startswith("not your model's own distribution: tokens were masked")
        assert namespace["exact"].ok
        assert namespace["masked"].ok
        assert all("select" in text.lower() for each in ("exact", "masked") for text in namespace[each].texts)
        compact, texts = namespace["compact"], ['{"name": "Ada", "age": 36}', '{\n  "name": "Ada",\n  "age": 36\n}']
        assert [compact.accepts(text) for text in texts] == [True, False]
    if document == "docs/rules.md":
        thanks, rude = namespace["polite"].probabilities(["Thank you so much!", "Go away."])
        assert 0 < rude < 1
        assert 0 < thanks < 1
        assert len(namespace["texts"]) == 20
        assert all(attempt.draw.text for attempt in namespace["attempts"])
    if document == "docs/integrations.md":
        said = [namespace["reply"], *namespace["replies"], namespace["answer"].message]
        assert all("mug" in each.content.lower() and "," not in each.content for each in said)
        assert type(namespace["person"]) is namespace["Person"]
        assert namespace["result"].content == "3"


def test_yaml_blocks_are_constraint_files() -> None:
    found = blocks("README.md", "yaml")
    assert found
    for block in found:
        parse(block)


LOCAL_PAGES = ["README.md", "docs/batches.md", "docs/declare.md", "docs/own-constraint.md", "docs/wrap.md"]
"""Pages whose commands use the embedded model, or none. Others need another model, a server or Ray: test_docs.py,
tests/serve and tests/integrations/ray run them."""

CPU_SECONDS = 60.0
"""The most processor seconds of a command. On two free cores none takes 20; a busy machine takes thrice as long."""


def needs_more(source: str) -> bool:
    """Say whether a command or a block needs Ray, TRL, vLLM or llama.cpp, whose own tests run it."""
    words = ("--ray", "import ray", "from trl", "load_dataset", "from vllm", "from llama_cpp", ".gguf")
    return any(word in source for word in words)


def command_lines(page: str) -> list[list[str]]:
    lines = re.findall(r"^    guardwrap (.*?)(?:  +#.*)?$", (ROOT / page).read_text(), re.M)
    return [shlex.split(line) for line in lines if not needs_more(line)]


def put_files_of(page: str) -> None:
    """Write what the reader of a page has beside it: the files that it shows, and those that it names."""
    yaml = blocks(page, "yaml")
    rules = next((block for block in yaml if "guardwrap:" in block and "fields:" not in block), None)
    Path("rules.yaml").write_text(rules or "guardwrap: 1\nconstraint: {kind: keyword, words: [tea, coffee]}\n")
    lines = [line.strip() for line in (ROOT / page).read_text().splitlines()]
    if page == "README.md":
        Path("prompts.jsonl").write_text('{"prompt": "I like a cup of"}\n{"prompt": "Each morning I drink a cup of"}\n')
        Path("results").mkdir()
        Path("results/page.json").write_text('{"title": "What was measured", "sections": []}')
    if page == "docs/batches.md":
        Path("batch.jsonl").write_text("\n".join(line for line in lines if line.startswith('{"prompt"')))
        Path("rows.jsonl").write_text("\n".join(line for line in lines if line.startswith('{"id"')))
        Path("clean.yaml").write_text("guardwrap: 1\nconstraint: {kind: length, max: 500}\n")
        Path("short.yaml").write_text("guardwrap: 1\nconstraint: {kind: length, max: 200}\n")
        Path("mention.yaml").write_text(next(block for block in yaml if "fields:" in block))
    if page == "docs/declare.md":
        Path("house").mkdir()
        Path("house/promises.yaml").write_text(next(block for block in yaml if "catalogue:no-urls" in block))
    if page == "docs/own-constraint.md":
        python = [block for block in blocks(page, "python") if "def " in block]
        Path("rules.py").write_text("from guardwrap import Verdict, constraint\n" + "\n".join(python[2:3]))


class TakesTooLong(BaseException):
    """A command has used up its processor seconds. No command catches this."""


@pytest.fixture
def limited() -> Iterator[None]:
    """End what takes more processor seconds than a command may."""

    def over(*_: object) -> None:
        raise TakesTooLong

    before = signal.signal(signal.SIGPROF, over)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def cpu_of(arguments: list[str]) -> float:
    """Run a command in this process, where the model is loaded already; return the processor seconds that it takes."""
    # again each tenth of a second: what is raised in a callback of the garbage collector is lost
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS, 0.1)
    began = time.process_time()
    try:
        done = run(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    took = time.process_time() - began
    assert done.exit_code == 0, f"guardwrap {shlex.join(arguments)}: {done.output} {done.exception!r}"
    return took


@pytest.fixture(scope="module")
def to_load(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Processor seconds that a command takes to start and to load the model, measured as a process of its own."""
    ask = ["generate", "a", "-c", "catalogue:one-line", "--max-new-tokens", "1"]
    began = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "guardwrap", *ask],
        cwd=tmp_path_factory.mktemp("loads"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    ended = os.times()
    assert done.returncode == 0, done.stderr
    return ended.children_user + ended.children_system - began.children_user - began.children_system


@pytest.mark.slow
@pytest.mark.parametrize("page", LOCAL_PAGES)
@pytest.mark.usefixtures("command_line", "loaded", "limited")
def test_commands_end_soon(page: str, to_load: float) -> None:
    """Each ``guardwrap …`` line runs as written, and with the time to load the model it ends within the limit.

    This is the only limit on time in the tests: a newcomer who tries a command that does not end tries no second one.
    """
    put_files_of(page)
    lines = command_lines(page)
    assert lines
    for arguments in lines:
        loads = arguments[0] in ("generate", "plan", "doctor")
        took = cpu_of(arguments) + (to_load if loads else 0)
        sys.stdout.write(f"{took:5.1f} s  guardwrap {shlex.join(arguments)}\n")  # shown by pytest -rP
        assert took <= CPU_SECONDS, f"guardwrap {shlex.join(arguments)} takes {took:.1f} processor seconds"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see cpu_of
@pytest.mark.usefixtures("command_line", "loaded", "limited")
def test_negative_control_a_command_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_examples.CPU_SECONDS", 0.5)
    with pytest.raises(TakesTooLong):
        cpu_of(["generate", "The lighthouse", "-c", "catalogue:single-sentence", "--max-new-tokens", "40"])
