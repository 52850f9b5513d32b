"""``--dtype``, the data type in which the model of a command computes."""

import pytest
import torch

from guardwrap.cli import generate_request, shared
from tests.cli.fixtures_commands import assert_one_line, generate, records, run

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.fixture
def loaded(monkeypatch):
    """The wrappers that commands load."""
    wrappers = []

    def load(*args, **options):
        wrappers.append(shared.load_generator(*args, **options))
        return wrappers[-1]

    monkeypatch.setattr(generate_request, "load_generator", load)
    return wrappers


@pytest.mark.parametrize(
    ("dtype", "expected"), [pytest.param(None, torch.float32, marks=pytest.mark.slow), ("bfloat16", torch.bfloat16)]
)
def test_the_model_computes_in_this_type(model, has_a, loaded, dtype, expected):
    options = () if dtype is None else ("--dtype", dtype)
    result = generate(model, "ab", "-c", has_a, "--seed", 1, *options)
    assert result.exit_code == 0, result.output
    (record,) = records(result.stdout)
    assert record["report"]["settings"].get("dtype") == dtype
    assert run("plan", "ab", "-c", has_a, "--model", model, "--pilot", 8, *options).exit_code == 0
    assert [wrapper.model.dtype for wrapper in loaded] == [expected] * 2


def test_a_run_is_resumed_in_the_same_type(model, has_a, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "cd"}\n')
    options = ("--jsonl", "in.jsonl", "-c", has_a, "--seed", 1, "-o", "out.jsonl")
    assert generate(model, *options, "--dtype", "bfloat16").exit_code == 0
    assert_one_line(generate(model, *options, "--resume"), "dtype", "resume with the same settings")
    assert generate(model, *options, "--resume", "--dtype", "bfloat16").exit_code == 0


@pytest.mark.parametrize("command", ["generate", "plan"])
def test_mistakes(command, has_a):
    unknown = run(command, "ab", "-c", has_a, "--dtype", "float61")
    assert_one_line(unknown, "--dtype 'float61' is not one of float32, bfloat16, float16 (did you mean 'float16'?)")
    served = ("--endpoint", "http://localhost:1/v1", "--model", "m", "--dtype", "bfloat16")
    assert_one_line(run(command, "ab", "-c", has_a, *served), "--dtype does not work with --endpoint")
