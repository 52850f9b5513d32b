"""The rules of each model are read when the server starts, and belong to it alone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from guardwrap.constraints.kinds.function import Python
from guardwrap.errors import SpecError, UsageError
from guardwrap.serve.models.model_policy import policies_of, require_files
from guardwrap.serve.server_settings import ServerSettings, read_server_settings
from guardwrap.testing import llama_world
from tests.serve.models.fixtures_models import App, run, settings_of, write_rule


def test_the_same_name_is_another_rule_in_each_model(tmp_path: Path) -> None:
    write_rule(tmp_path / "a", "letter", "a")
    write_rule(tmp_path / "b", "letter", "b")
    write_rule(tmp_path / "b", "other", "c")
    a, b = ({"constraints": str(tmp_path / name)} for name in ("a", "b"))
    app = App(settings_of(a=a, b={**b, "always": ["other"]}))

    async def test() -> None:
        rule = {"guardwrap": {"constraint": "letter"}, "n": 8}
        texts = {}
        for name in ("a", "b"):
            reply = await app.ask(name, **rule)
            texts[name] = [choice["text"] for choice in reply.json()["choices"]]
        assert all("a" in text for text in texts["a"])
        assert not all("b" in text for text in texts["a"])
        assert all("b" in text and "c" in text for text in texts["b"])
        assert not all("a" in text for text in texts["b"])
        for name, status in (("a", 400), ("b", 200)):
            reply = await app.ask(name, guardwrap={"constraint": "other"})
            assert reply.status_code == status
        assert (await app.ask("a", guardwrap={"constraint": "other"})).json()["error"]["param"] == (
            "guardwrap.constraint"
        )
        about = (await app.http.get("/v1/guardwrap/about")).json()["models"]
        assert [[each["name"] for each in model["constraints"]] for model in about] == [["letter"], ["letter", "other"]]

    run(test)


def test_models_that_use_the_same_folder_share_no_constraint(tmp_path: Path) -> None:
    """A function that hangs is counted by the constraint that runs it, so it fails the requests of one model."""
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'os.path:isabs'}\n")
    folder: dict[str, Any] = {"constraints": str(tmp_path), "allow_code": True, "always": ["code"]}
    policies = policies_of(settings_of(a=folder, b=folder))
    rules = [policy.named["code"].constraint for policy in policies.values()]
    assert all(isinstance(rule, Python) for rule in rules)
    assert rules[0] is not rules[1]
    assert policies["a"].always[0].constraint is not policies["b"].always[0].constraint


def test_adapters_proposals_and_limits_belong_to_a_model() -> None:
    app = App(
        settings_of(
            a={"proposals": {"hint": {"prompt": "ab{prompt}"}}, "limits": {"n": 1, "attempts": 5}, "batch_size": 3},
            b={},
            limits={"n": 4},
        )
    )

    async def test() -> None:
        hinted = {"guardwrap": {"proposal": "hint"}}
        replies = await asyncio.gather(*(app.ask(name, **hinted) for name in ("a", "b")))
        assert [reply.status_code for reply in replies] == [200, 400]
        replies = await asyncio.gather(*(app.ask(name, n=4) for name in ("a", "b")))
        assert [reply.status_code for reply in replies] == [400, 200]
        impossible = await app.ask(
            "a", guided_regex="z{9}", guardwrap={"constraint": {"kind": "keyword", "words": "q"}}
        )
        assert impossible.status_code == 422
        about = (await app.http.get("/v1/guardwrap/about")).json()["models"]
        assert [(each["batch_size"], each["limits"]["n"], each["limits"]["attempts"]) for each in about] == [
            (3, 1, 5),
            (32, 4, 10**9),
        ]

    run(test)


def saved(folder: Path) -> Path:
    world = llama_world()
    world.model.save_pretrained(folder)
    world.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": "{}/missing"}, "models: m: cannot load the model '.*missing'"),
        ({"model": "{}/empty"}, "models: m: cannot load the model '.*empty'"),
        ({"adapter": "{}/empty"}, "models: m: .*empty' has no adapter_config.json"),
        ({"adapters": {"x": "{}/empty"}}, "models: m: .*empty' has no adapter_config.json"),
        ({"proposals": {"x": {"twisted": {"learned": "{}/none.npz"}}}}, "models: m: there is no file '.*none.npz'"),
    ],
)
def test_files_are_required_at_the_start_and_not_at_first_use(tmp_path: Path, fields: Any, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    text = json.dumps({"models": {"m": fields}}).replace("{}", str(tmp_path))
    settings = ServerSettings.model_validate_json(text)
    policies = policies_of(settings)
    with pytest.raises(UsageError, match=problem) as caught:
        require_files("m", settings.models["m"], policies["m"])
    assert "\n" not in str(caught.value)


def test_files_that_are_there_are_enough(tmp_path: Path) -> None:
    settings = settings_of(a={"model": str(saved(tmp_path)), "adapter": str(tmp_path)}, b={})
    for name, policy in policies_of(settings).items():
        require_files(name, settings.models[name], policy)


def test_a_rule_that_is_missing_is_reported_with_its_model(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("models: {a: {}, b: {always: [te], constraints: rules}}\n")
    write_rule(tmp_path / "rules", "tea", "a")
    with pytest.raises(
        SpecError, match=r"models: b: always: there is no constraint file 'te' \(did you mean 'tea'\?\)"
    ):
        policies_of(read_server_settings(tmp_path / "serve.yaml"))
