"""The examples and the code blocks of the documents run.

Covers ``__main__.py`` too.
"""

import io
import json
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from guardwrap.constraints import load, parse
from guardwrap.testing import World, character_tokenizer
from guardwrap.training import read_settings
from guardwrap.training.rounds import rounds
from tests.cli.fixtures_commands import run
from tests.fixtures_stand_in_models import StandIn
from tests.integrations.fixtures_tools import call_text, tools_world

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.xdist_group("local")


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
    for place in ("guardwrap", "guardwrap.pipelines.embedded_model", "guardwrap.pipelines.loading"):
        monkeypatch.setattr(f"{place}.load_local", lambda: local)


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


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "docs/structured.md", "docs/integrations.md", "docs/judges.md"]
)
@pytest.mark.usefixtures("loaded")
def test_python_blocks_run(document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert "\n(Person(name='" in capsys.readouterr().out
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
    if document == "docs/judges.md":
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


@pytest.mark.usefixtures("command_line")
def test_commands_of_the_readme(tmp_path: Path, world: World) -> None:
    """Each `guardwrap …` line runs as written, on a small model."""
    model = tmp_path / "model"
    world.model.save_pretrained(model)
    world.tokenizer.save_pretrained(model)
    (tmp_path / "rules.yaml").write_text(blocks("README.md", "yaml")[0])
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "ab"}\n')
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "page.json").write_text('{"title": "What was measured", "sections": []}')
    lines = re.findall(r"^    guardwrap (.*?)(?:  +#.*)?$", (ROOT / "README.md").read_text(), re.M)
    assert len(lines) >= 4
    for line in lines:
        arguments = re.findall(r"\"[^\"]*\"|\S+", line)
        arguments = [argument.strip('"') for argument in arguments]
        if arguments[0] in ("generate", "plan"):
            arguments += ["--model", str(model), "--max-attempts", "3"]
        done = run(*arguments)
        assert done.exit_code in (0, 3), done.output


def test_the_command_is_there() -> None:
    """As a process of its own, once: the lines of the README run in this one."""
    done = subprocess.run([sys.executable, "-m", "guardwrap", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "catalogue" in done.stdout
