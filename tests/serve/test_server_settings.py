"""Settings of a server, from a file and from options."""

import re
from pathlib import Path

import pytest

from guardwrap import Keyword, Masked, Prompt, Twisted
from guardwrap.constraints.files.file_fields import MESSAGE
from guardwrap.errors import ConstraintError, SpecError, UsageError
from guardwrap.serve.request_policy import policy_of
from guardwrap.serve.server_settings import ServerLimits, ServerSettings, read_keys, read_named, read_server_settings

RULE = "guardwrap: 1\nconstraint: {kind: keyword, words: tea}\n"
CODE = "guardwrap: 1\nconstraint: {kind: python, function: 'os.path:%s'}\n"


@pytest.fixture
def write(tmp_path):
    def put(text, name="serve.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return put


def test_the_defaults():
    assert read_server_settings() == ServerSettings()
    assert (ServerSettings().host, ServerSettings().port, ServerSettings().keys) == ("127.0.0.1", 8000, None)
    assert ServerSettings().served_name == "local"


def test_a_file_and_the_options_that_replace_it(write):
    path = write(
        "model: gpt2\nname: small\naliases: [tiny]\nport: 1\nlimits: {running: 3}\nproposals: {m: masked, t: twisted}\n"
        "repair: 2\n"
    )
    found = read_server_settings(path)
    assert (found.model, found.served_name, found.aliases, found.port) == ("gpt2", "small", ("tiny",), 1)
    assert found.limits == ServerLimits(running=3)
    assert found.proposals == {"m": Masked(), "t": Twisted()}
    assert found.repair == {"max_turns": 2, "message": MESSAGE}
    changed = read_server_settings(path, changes={"port": 2, "model": "other"})
    assert (changed.port, changed.model, changed.limits) == (2, "other", ServerLimits(running=3))


def test_a_removed_field_says_what_to_do_instead(write):
    with pytest.raises(SpecError, match=r"unknown field 'cache' .*keep the outcomes yourself"):
        read_server_settings(write("cache: answers.sqlite\n"))


def test_what_it_names_stands_beside_it(write, monkeypatch, tmp_path):
    path = write("constraints: rules\nkeys: {file: keys.txt}\nproposals: {p: {prompt: 'Tea. {prompt}'}}\n")
    write(RULE, "rules/tea.yaml")
    write("one\n\n two \n", "keys.txt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = read_server_settings(path)
    assert read_keys(found) == ("one", "two")
    assert {name: file.constraint for name, file in read_named(found).items()} == {"tea": Keyword("tea")}
    assert found.proposals == {"p": Prompt("Tea. {prompt}")}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("modle: x", ["serve.yaml:1: modle", "did you mean 'model'"]),
        ("model: x\nlimits: {runing: 3}", ["serve.yaml:2: limits.runing", "did you mean 'running'"]),
        ("limits: {running: 0}", ["limits.running", "must be at least 1, not 0"]),
        ("port: 70000", ["port", "65535"]),
        ("port: '1'", ["port"]),
        ("keys: secret", ["keys"]),
        ("keys: {}", ["give either file or environment"]),
        ("keys: [secret]", ["keys"]),
        ("dtype: float8", ["float8", "float16"]),
        ("proposals: {p: {prompt: no place}}", ["{prompt}"]),
        ("- a", ["mapping with the fields"]),
        ("port: 1\nmodels: {a: {}, b: {}}", ["serve.yaml:2: models", "run one server per model, behind a proxy"]),
    ],
)
def test_what_is_wrong_is_one_line(write, text, parts):
    with pytest.raises(SpecError) as caught:
        read_server_settings(write(text))
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_options_are_held_to_the_same_rules():
    with pytest.raises(UsageError, match="dtype"):
        read_server_settings(changes={"dtype": "float8"})


def test_constraint_files(write, tmp_path):
    folder = write(RULE, "rules/tea.yaml").parent
    found = read_named(ServerSettings(constraints=str(folder)))
    assert list(found) == ["tea"]
    assert list(read_named(ServerSettings(constraints=str(folder / "tea.yaml")))) == ["tea"]
    settings = ServerSettings(constraints=str(folder), always=("tea", "catalogue:no-urls"))
    policy = policy_of(settings)
    assert policy.always[0] == found["tea"]
    with pytest.raises(SpecError, match="did you mean 'tea'"):
        policy_of(ServerSettings(constraints=str(folder), always=("te",)))
    with pytest.raises(UsageError, match="no folder"):
        read_named(ServerSettings(constraints=str(tmp_path / "missing")))
    write(RULE, "rules/tea.yml")
    with pytest.raises(UsageError, match=r"two files .* 'tea'"):
        read_named(ServerSettings(constraints=str(folder)))


def test_code_only_where_it_is_allowed_and_there(write):
    folder = str(write(CODE % "isabs", "rules/code.yaml").parent)
    with pytest.raises(SpecError, match="--allow-code or set allow_code: true"):
        read_named(ServerSettings(constraints=folder))
    assert list(read_named(ServerSettings(constraints=folder, allow_code=True))) == ["code"]
    write(CODE % "isabsent", "rules/code.yaml")
    with pytest.raises(ConstraintError, match="isabsent"):
        read_named(ServerSettings(constraints=folder, allow_code=True))


def test_keys(write, monkeypatch):
    read = read_server_settings(write("keys: {environment: SERVE_KEYS}\n"))
    with pytest.raises(UsageError, match="SERVE_KEYS has no API key"):
        read_keys(read)
    monkeypatch.setenv("SERVE_KEYS", "one, two")
    assert read_keys(read) == ("one", "two")
    assert read_keys(ServerSettings()) == ()
    empty = read_server_settings(write("keys: {file: keys.txt}\n"))
    with pytest.raises(SpecError, match="No such file"):
        read_keys(empty)
    write("\n", "keys.txt")
    with pytest.raises(UsageError, match="has no API key"):
        read_keys(read_server_settings(write("keys: {file: keys.txt}\n")))


def test_the_settings_in_the_docs_are_valid(write):
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    one, *_ = [block for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.S) if block.startswith("model")]
    assert read_server_settings(write(one)).served_name == "local"
