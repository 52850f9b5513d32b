"""Options of the model: ``--dtype`` and ``--endpoint``."""

import pytest
import torch

from guardwrap.cli import generate_request, shared
from tests.cli.fixtures_commands import assert_one_line, generate, records, run
from tests.engine.endpoint.fixtures_server import Server

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


def text_with_an_a(prompt, chance):
    return [f"{prompt}a", chance.choice("bc")], "stop", 3


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-7")
    with Server(text_with_an_a, key="sk-very-secret-7").running() as running:
        yield running


def test_texts_of_an_endpoint(server, has_a, tmp_path):
    """Chats work as well, because the server has a chat template."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "x"}\n{"messages": [{"role": "user", "content": "y"}]}\n')
    given = ["--endpoint", server.url, "--model", "table", "-c", has_a, "--seed", 1, "--max-new-tokens", 7]
    result = run("generate", *given, "--jsonl", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 0, result.output
    first, second = records((tmp_path / "out.jsonl").read_text())
    assert first["texts"][0].startswith("xa")
    assert second["texts"][0].startswith("ya")
    assert first["report"]["settings"]["endpoint"] == server.url
    assert "sk-very" not in (tmp_path / "out.jsonl").read_text()
    assert {asked["max_tokens"] for asked in server.seen} == {7}
    elsewhere = run("generate", *given[2:], "--jsonl", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--resume")
    assert_one_line(elsewhere, "resume with the same settings")


def test_what_is_wrong_with_an_endpoint_is_one_line(server, has_a, monkeypatch):
    assert_one_line(run("generate", "x", "-c", has_a, "--endpoint", server.url), "--endpoint needs --model")
    given = ["generate", "x", "-c", has_a, "--endpoint", server.url, "--model"]
    assert_one_line(run(*given, "tabel"), "did you mean 'table'?")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another-secret")
    assert_one_line(run(*given, "table"), "rejects the key")
    assert_one_line(run(*given, "table", "--masked"), "structured_outputs supports")


def test_plan_of_an_endpoint(server, has_a):
    result = run("plan", "x", "--endpoint", server.url, "--model", "table", "-c", has_a, "--pilot", 8)
    assert result.exit_code == 0, result.output
    assert "  the model itself, rejection: " in result.stdout


def test_adapters_by_their_names_there(server, has_a, tmp_path):
    """A resumed run does not look for the adapter among local files."""
    server.model = None
    given = ["--endpoint", server.url, "--model", "table", "-c", has_a, "--seed", 1, "-o", tmp_path / "out.jsonl"]
    asked = ["generate", "x", *given, "--adapter", "small"]
    assert run(*asked).exit_code == 0
    assert {each["model"] for each in server.seen} == {"small"}
    (record,) = records((tmp_path / "out.jsonl").read_text())
    assert (
        record["report"]["drawn_from"]
        == "not your model's own distribution: attempts came from the server's adapter 'small' (g')"
    )
    assert run(*asked, "--resume").exit_code == 0
    assert_one_line(run("generate", "x", *given, "--adapter", "other", "--resume"), "resume")
    plan = run("plan", "x", *given[:6], "--adapter", "small", "--pilot", 4)
    assert plan.exit_code == 0, plan.output
