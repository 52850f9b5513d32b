"""Settings of a server, from a file and from options."""

import re
from pathlib import Path

import pytest

from guardwrap import Keyword, Masked, Prompt, Twisted
from guardwrap.constraints.files.repair_field import MESSAGE
from guardwrap.errors import ConstraintError, SpecError, UsageError
from guardwrap.serve.models.model_policy import policies_of
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
    policy = policies_of(settings)["local"]
    assert policy.always[0] == found["tea"]
    with pytest.raises(SpecError, match="did you mean 'tea'"):
        policies_of(ServerSettings(constraints=str(folder), always=("te",)))
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
    one, several = [block for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.S) if block.startswith("model")]
    assert list(read_server_settings(write(one)).served_models) == ["local"]
    assert list(read_server_settings(write(several)).served_models) == ["small", "large"]


def test_several_models(write, tmp_path):
    path = write(
        "models:\n"
        "  small: {model: net, aliases: [tiny], constraints: rules, batch_size: 4, limits: {running: 3, n: 2}}\n"
        "  large: {load: start, idle_seconds: null, dtype: float32}\n"
        "limits: {n: 5, queue: 7}\nport: 1\n"
    )
    write(RULE, "rules/tea.yaml")
    (tmp_path / "net").mkdir()
    settings = read_server_settings(path, changes={"port": 2})
    small, large = settings.served_models.values()
    assert (list(settings.served_models), settings.port) == (["small", "large"], 2)
    assert (small.model, small.constraints) == (str(tmp_path / "net"), str(tmp_path / "rules"))
    assert (small.load, small.idle_seconds, large.load, large.idle_seconds) == ("first_use", 600.0, "start", None)
    assert large.model == "local"
    assert settings.limits_of(small) == ServerLimits(running=3, n=2, queue=7)
    assert settings.limits_of(large) == settings.limits == ServerLimits(n=5, queue=7)
    assert list(policies_of(settings)["small"].named) == ["tea"]
    assert policies_of(settings)["small"].models == ("small", "tiny")


def test_one_model_is_loaded_at_the_start_and_kept(write):
    path = write("model: gpt2\nname: small\naliases: [tiny]\nbatch_size: 3\nproposals: {m: masked}\n")
    ((name, model),) = read_server_settings(path).served_models.items()
    assert (name, model.model, model.aliases, model.batch_size) == ("small", "gpt2", ("tiny",), 3)
    assert model.proposals == {"m": Masked()}
    assert (model.load, model.idle_seconds) == ("start", None)
    assert list(ServerSettings().served_models) == ["local"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("models: {a: {}}\nmodel: x", ["serve.yaml:2: model", "give either model, with its fields, or models"]),
        ("constraints: x\nmodels: {a: {}}", ["serve.yaml:1: constraints", "belongs to each of the models"]),
        ("name: x\nmodels: {a: {}}", ["serve.yaml:1: name", "either"]),
        ("models:\n  a: {aliases: [b]}\n  b: {}", ["serve.yaml:3: models.b", "a name of the model 'a' too"]),
        ("models:\n  a: {}\n  b: {aliases: [c, c]}", ["serve.yaml:3", "'c'"]),
        ("models: {'': {}}", ["name of a model is empty"]),
        ("models: {}", ["models"]),
        ("models:\n  a: {modle: x}", ["serve.yaml:2: models.a.modle", "did you mean 'model'"]),
        ("models: {a: {port: 1}}", ["models.a.port"]),
        ("models: {a: {name: x}}", ["models.a.name"]),
        ("models: {a: {load: never}}", ["models.a.load", "first_use"]),
        ("models: {a: {idle_seconds: 0}}", ["models.a.idle_seconds"]),
        ("models: {a: {limits: {body_bytes: 1}}}", ["models.a.limits.body_bytes"]),
        ("models: {a: {limits: {running: 0}}}", ["models.a.limits.running", "at least 1"]),
        ("models: [a]", ["models"]),
    ],
)
def test_what_is_wrong_with_several_models_is_one_line(write, text, parts):
    test_what_is_wrong_is_one_line(write, text, parts)


def test_an_option_for_one_model_does_not_fit_several(write):
    path = write("models: {a: {}, b: {}}\n")
    with pytest.raises(UsageError, match="model: give either model, with its fields, or models"):
        read_server_settings(path, changes={"model": "x"})
