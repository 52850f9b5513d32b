"""``guardwrap serve``: errors are reported before a model is loaded. Other tests are in tests/serve."""

import pytest

from guardwrap.cli.commands import serve_command as module
from tests.cli.fixtures_commands import HAS_A, assert_one_line, run

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--config", "missing.yaml"], ["missing.yaml", "No such file"]),
        (["--config", "wrong.yaml"], ["wrong.yaml:1: modle", "did you mean 'model'"]),
        (["--config", "several.yaml"], ["several.yaml:1: models: a server has one model; run one server per model"]),
        (["--constraints", "missing"], ["no folder 'missing'"]),
        (["--constraints", "rules"], ["rules/code.yaml:2", "--allow-code"]),
        (["--always", "tea"], ["always: there is no constraint file 'tea'"]),
        (["--dtype", "float8"], ["dtype", "float8"]),
        (["--port", "70000"], ["--port"]),
        (["--host", "192.0.2.1", "--port", "0"], ["cannot listen on 192.0.2.1", "--host"]),
        (["--prot", "1"], ["No such option", "--port"]),
    ],
)
def test_bad_input_is_one_line(tmp_path, args, parts):
    (tmp_path / "wrong.yaml").write_text("modle: x\n")
    (tmp_path / "several.yaml").write_text("models: {a: {}, b: {}}\n")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "has-a.yaml").write_text(HAS_A)
    (tmp_path / "rules" / "code.yaml").write_text(
        "guardwrap: 1\nconstraint: {kind: python, function: 'os.path:isabs'}\n"
    )
    assert_one_line(run("serve", "--model", "no-model", *args), *parts)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert_one_line(run("serve"), "needs fastapi", "pip install 'guardwrap[serve]'")


def test_its_help_names_every_option():
    told = run("serve", "--help")
    assert told.exit_code == 0
    for option in ("--config", "--model", "--constraints", "--always", "--host", "--port", "--keys", "--allow-code"):
        assert option in told.output
