"""``guardwrap doctor``."""

import re
import shutil
import tomllib

import pytest
import torch
from packaging.requirements import Requirement
from transformers import AutoModelForCausalLM

from guardwrap.cli.commands import doctor_command as module
from guardwrap.cli.commands.doctor_command import NEWEST, required_by_extras
from tests.cli.fixtures_commands import ROOT, run

pytestmark = pytest.mark.usefixtures("command_line")


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def _as_locked(monkeypatch):
    """Run with the versions of the lock, whatever is installed."""
    installed = module._installed
    monkeypatch.setattr(module, "_installed", lambda name: NEWEST if name == "transformers" else installed(name))
    monkeypatch.setattr(module, "TOKENS", 4)


def test_a_model_that_is_drawn_in_the_fastest_way(model):
    result = run("doctor", model)
    assert result.exit_code == 0, result.output
    assert re.search(r"^torch +\d+\.", result.stdout, re.M)
    assert re.search(r"^model +LlamaForCausalLM, .* parameters, float32$", result.stdout, re.M)
    assert re.search(r"^device +cpu, \d+ of \d+ threads$", result.stdout, re.M)
    assert "mode          'refill', the fastest for this model\n" in result.stdout
    assert re.search(
        r"^speed +\d+ tokens/s; the model's generate: \d+ tokens/s \(\d+\.\d\d times\)$", result.stdout, re.M
    )
    assert result.stdout.endswith("\nnothing to do\n")


def test_a_model_that_is_drawn_in_a_slower_mode(model, monkeypatch):
    monkeypatch.setattr("guardwrap.engine.refill.mode_selection.taken_by", lambda model: frozenset())
    result = run("doctor", model)
    assert result.exit_code == 1
    assert re.search(
        r"^mode +drawn in the slower mode 'plain': its forward does not accept a supported cache", result.stdout, re.M
    )
    assert re.search(r"^to do: the mode 'plain' takes about 9.5 times as long as 'refill'", result.stdout, re.M)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_data_type_that_the_processor_emulates(model, tmp_path, monkeypatch, dtype, capability):
    folder = shutil.copytree(model, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    loaded.save_pretrained(folder)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    warning = f"this processor emulates {dtype}, which takes about three times as long as float32; load"
    assert (warning in run("doctor", folder).stdout) == (capability == "AVX2" and dtype != "float32")


def test_a_model_that_cannot_be_loaded(tmp_path):
    result = run("doctor", tmp_path)
    assert result.exit_code == 1
    assert "\nmodel         cannot be used\n" in result.stdout
    assert "to do: cannot load the model" in result.stdout


@pytest.mark.parametrize(
    ("installed", "advice"),
    [
        ("5.1.0", "transformers 5.1.0 is not supported: pip install 'transformers"),
        ("6.0.0", "transformers 6.0.0 is not supported: pip install 'transformers"),
        ("5.99.0", "transformers 5.99.0 is newer than the tested releases"),
        (NEWEST, ""),
    ],
)
def test_releases_that_are_not_tested(installed, advice):
    words, said = module._of_transformers(installed)
    assert words.startswith(installed)
    assert said.startswith(advice)
    assert bool(said) == bool(advice)


def test_what_is_missing(model, monkeypatch):
    installed = {"transformers": NEWEST, "fastapi": "1.0", "uvicorn": "1.0"}
    monkeypatch.setattr(module, "_installed", installed.get)
    result = run("doctor", model)
    assert result.exit_code == 1
    assert "[serve]       missing prometheus-client: pip install 'guardwrap[serve]'\n" in result.stdout
    assert "to do: install torch: pip install torch\n" in result.stdout


def test_it_says_what_the_project_declares():
    declared = project()["optional-dependencies"]
    shown = required_by_extras()
    assert shown.keys() <= declared.keys()
    assert shown.keys().isdisjoint({"docs", "paper", "test", "dev"})
    for extra, packages in shown.items():
        assert sorted(packages) == sorted(Requirement(line).name for line in declared[extra])
    assert {"serve", "ray", "pii"} <= shown.keys()
    assert f"transformers=={NEWEST}" in (ROOT / "requirements.lock").read_text().splitlines()


def test_texts_are_counted_up_to_their_end():
    assert module._length([5, 6, 0, 0], [0]) == 3
    assert module._length([5, 6], [0]) == 2


def test_the_global_generator_is_left_alone(model):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    run("doctor", model)
    assert torch.equal(torch.rand(1), expected)
