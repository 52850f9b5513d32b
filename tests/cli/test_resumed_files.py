"""What a resumed file takes for granted: files, versions and options are compared, and texts are judged again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM

from guardwrap import GuardedGenerator, Keyword, Twisted
from guardwrap.calls import records as written
from guardwrap.calls.records import checksum_of
from guardwrap.support import network
from tests.cli.fixtures_commands import HAS_A, assert_one_line, generate, records
from tests.fixtures_adapters import trained
from tests.fixtures_encoders import classifier_pipeline

pytestmark = pytest.mark.usefixtures("command_line")
OUT = Path("out.jsonl")
ANY = "guardwrap: 1\nconstraint:\n- {kind: regex, name: has an a, pattern: a}\n"


@pytest.fixture
def own(model: str) -> Path:
    """A copy of the model that a test may change."""
    return Path(shutil.copytree(model, "own"))


def begun(model: Any, *options: Any, prompts: Any = ("ab", "cd")) -> Callable[..., Any]:
    """Write the first line of a run of two prompts; return the run that resumes it."""
    OUT.unlink(missing_ok=True)
    arguments = (model, *prompts, "-c", "c.yaml", "-o", OUT, "--seed", 1, *options)
    result = generate(*arguments)
    assert result.exit_code == 0, result.output
    OUT.write_bytes(OUT.read_bytes().splitlines(keepends=True)[0])
    return lambda *more: generate(*arguments, "--resume", *more)


def refused(resume: Callable[..., Any], *says: str) -> None:
    before = OUT.read_bytes()
    assert_one_line(resume(), *says)
    assert OUT.read_bytes() == before


def change_weights(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data[0, 0] += 1e-3
    model.save_pretrained(folder)


def change_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template += " "
    tokenizer.save_pretrained(folder)


def change_settings(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": 2}))


@pytest.mark.parametrize("change", [change_weights, change_template, change_settings])
def test_a_model_whose_files_have_changed(own: Path, change: Callable[[Path], None]) -> None:
    Path("c.yaml").write_text(HAS_A)
    resume = begun(own)
    shutil.copytree(own, "kept")
    change(own)
    refused(resume, "out.jsonl:1: was made with other files of the model; resume with the same settings, or write to")
    shutil.rmtree(own)
    shutil.copytree("kept", own)
    (own / "README.md").write_text("notes change nothing")
    assert resume().exit_code == 0


def test_negative_control_a_digest_that_is_not_compared(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.yaml").write_text(HAS_A)
    monkeypatch.setattr(written, "source_digest", lambda *_: "sha256:0")
    resume = begun(own)
    change_weights(own)
    assert resume().exit_code == 0, "texts of two models in one file"


def test_an_adapter_whose_files_have_changed(model: str) -> None:
    Path("c.yaml").write_text(HAS_A)
    base = LlamaForCausalLM.from_pretrained(model)
    trained(base).save_pretrained("small")
    resume = begun(model, "--adapter", "small")
    assert resume().exit_code == 0
    resume = begun(model, "--adapter", "small")
    trained(base, seed=1).save_pretrained("small")
    refused(resume, "other files of the adapter")


def test_the_base_model_of_an_adapter(model: str, own: Path) -> None:
    """``--model`` may name an adapter, which says what it is for."""
    trained(LlamaForCausalLM.from_pretrained(own)).save_pretrained("tuned")
    config = json.loads(Path("tuned/adapter_config.json").read_text())
    Path("tuned/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(own)}))
    before = written.model_digest("tuned")
    change_weights(own)
    assert written.model_digest("tuned") != before is not None


@pytest.mark.slow
def test_a_learned_twist_whose_file_has_changed(model: str) -> None:
    rule = "guardwrap: 1\nconstraint: {kind: keyword, words: a, whole_words: false}\n"
    Path("c.yaml").write_text(f"{rule}proposal: {{twisted: {{learned: a.twist}}}}\n")
    for attempts, name in ((64, "a.twist"), (128, "b.twist")):
        proposal = Twisted(attempts=attempts)
        guarded = GuardedGenerator(model, Keyword("a", whole_words=False), proposal=proposal, seed=1)
        guarded.run("ab", max_new_tokens=8)
        guarded.save_twist(name)
    resume = begun(model)
    shutil.copy("b.twist", "a.twist")
    refused(resume, "other files of the learned twist")


@pytest.mark.slow
def test_options_of_a_proposal(model: str) -> None:
    """Reports say "masked" for both."""
    Path("c.yaml").write_text(ANY + "proposal: {masked: {unseen: 0.01}}\n")
    resume = begun(model)
    Path("c.yaml").write_text(ANY + "proposal: {masked: {unseen: 0.5}}\n")
    refused(resume, "was made with --proposal {'masked': {'unseen': 0.01}}")
    Path("c.yaml").write_text(ANY)
    resume = begun(model, "--deterministic")
    assert_one_line(resume("--temperature", 0.3), "was made without --temperature")
    OUT.write_bytes(b"")
    assert resume().exit_code == 0


@pytest.mark.parametrize("where", ["in the file", "in the line"])
def test_a_classifier_whose_files_have_changed(model: str, where: str) -> None:
    classifier_pipeline().save_pretrained("judge")
    rule = {"kind": "classifier", "model": "judge", "label": "positive", "threshold": 0.0, "too_long": "truncate"}
    lines = [{"prompt": prompt, **({"constraint": rule} if where == "in the line" else {})} for prompt in ("ab", "cd")]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("c.yaml").write_text(ANY + (f"- {json.dumps(rule)}\n" if where == "in the file" else ""))
    resume = begun(model, "--jsonl", "in.jsonl", prompts=())
    (record,) = records(OUT.read_text())
    assert record["report"]["settings"]["digests"]["rule: judge"].startswith("sha256:")
    classifier_pipeline(seed=1).save_pretrained("judge")
    refused(resume, "other files of the rule: judge")


def test_a_function_whose_file_has_changed(model: str) -> None:
    code = "def fine(text):\n    return True\n"
    Path("fine_rule.py").write_text(code)
    Path("c.yaml").write_text(ANY + "- {kind: python, function: 'fine_rule:fine'}\n")
    resume = begun(model, "--allow-code")
    Path("fine_rule.py").write_text(code + "# another one\n")
    refused(resume, "other files of the rule: fine_rule")


@pytest.mark.parametrize("library", ["guardwrap", "torch", "transformers", "tokenizers"])
def test_versions(model: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.yaml").write_text(HAS_A)
    resume = begun(model)
    versions = written.versions()
    monkeypatch.setattr("guardwrap.cli.generate_request.versions", lambda: {**versions, library: "99.1"})
    refused(resume, f"out.jsonl:1: was made with {library} {versions[library]}, and 99.1 is installed", "--output")


def test_a_commit_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, it is that of the cached copy; what is not known is never the same."""
    monkeypatch.setattr(network, "reachable", lambda: False)
    copies = {"someone/model": "cache/models--someone--model/snapshots/0123abc"}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: copies[name])
    assert network.source_digest("someone/model") == "commit:0123abc"
    assert network.source_digest("someone/other") is None
    settings = {"versions": written.versions(), "digests": {"model": None}}
    assert written.difference(settings, settings) == "was made with files of the model whose version is not known"


# Lines that someone changed


def changed(record: dict[str, Any], text: str) -> dict[str, Any]:
    return {**record, "texts": [text]}


def forged(record: dict[str, Any], text: str) -> dict[str, Any]:
    other = changed(record, text)
    return {**other, "report": {**other["report"], "checksum": checksum_of(other)}}


def test_a_line_that_was_changed_is_not_kept(model: str) -> None:
    Path("c.yaml").write_text(HAS_A)
    resume = begun(model)
    (record,) = records(OUT.read_text())
    without = {name: value for name, value in record["report"].items() if name != "checksum"}
    for other, says in [
        (changed(record, "another text with an a"), "was changed after it was written"),
        ({**record, "report": {**record["report"], "notes": []} | {"drawn_from": "exactly"}}, "was changed"),
        ({**record, "report": without}, "was changed"),
        (forged(record, "nothing"), "out.jsonl:1: text 1 is rejected by 'has an a'; restore the line"),
    ]:
        OUT.write_text(json.dumps(other) + "\n")
        refused(resume, says)
    OUT.write_text(json.dumps(record, indent=None, separators=(",", ":")) + "\n")
    assert resume().exit_code == 0, "white space changes nothing"


def test_negative_control_a_forged_line_that_is_not_judged(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.yaml").write_text(HAS_A)
    resume = begun(model)
    (record,) = records(OUT.read_text())
    OUT.write_text(json.dumps(forged(record, "nothing")) + "\n")
    monkeypatch.setattr(written, "judged_again", lambda *_, **__: ([], ()))
    assert resume().exit_code == 0
    assert records(OUT.read_text())[0]["texts"] == ["nothing"]


def test_rules_that_run_a_model_are_not_asked_again(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier_pipeline().save_pretrained("judge")
    rule = "- {kind: classifier, model: judge, label: positive, threshold: 0.0, too_long: truncate}\n"
    Path("c.yaml").write_text(ANY + rule)
    resume = begun(model)
    monkeypatch.setattr("guardwrap.constraints.kinds.classifier.Classifier.scores", None)
    result = resume()
    assert result.exit_code == 2
    assert "raised TypeError" in result.stderr, "by the second prompt, not by the first line"
    assert "1 of 2 prompts is in out.jsonl" in result.stderr
