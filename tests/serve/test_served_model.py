"""The model of a server: its names, and requests that are read in a thread."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from guardwrap import GuardedGenerator, Masked
from guardwrap.errors import UsageError
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.routes import create_app
from guardwrap.serve.served_model import ServedModel
from guardwrap.serve.server_settings import ServerSettings
from tests.serve.fixtures_server import world

ASKED: dict[str, Any] = {"prompt": "ab", "max_tokens": 12, "seed": 1}


@pytest.fixture
def http() -> Iterator[TestClient]:
    settings = ServerSettings(name="tiny", aliases=("also-tiny",))
    with TestClient(create_app(GuardedGenerator(world().pipeline(), ANYTHING), settings)) as client:
        yield client


@pytest.mark.parametrize("name", ["other", "also-tin", "", None, ["tiny"], 1])
def test_a_model_that_is_not_there(http: TestClient, name: Any) -> None:
    reply = http.post("/v1/completions", json={**ASKED, "model": name})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"].endswith("it has 'tiny'")
    assert ("did you mean 'also-tiny'" in error["message"]) == (name == "also-tin")


def test_logs_and_metrics_have_the_name_of_the_model(http: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "guardwrap.serve")
    reply = http.post("/v1/completions", json={**ASKED, "model": "also-tiny"})
    assert reply.json()["model"] == "also-tiny"
    assert http.post("/v1/completions", json={**ASKED, "model": "someone's words"}).status_code == 404
    lines = [record.getMessage() for record in caplog.records if record.name == "guardwrap.serve"]
    assert " attempts of tiny " in lines[0]
    assert " 404 " in lines[1]
    figures = http.get("/metrics").text
    assert 'guardwrap_requests_total{model="tiny",status="200"} 1.0' in figures
    assert 'guardwrap_requests_total{model="",status="404"} 1.0' in figures
    assert "words" not in lines[1] + figures


def test_an_endpoint_is_no_model_of_a_server() -> None:
    class Guarded:
        session = object()

    with pytest.raises(UsageError, match="needs a local model"):
        ServedModel(Guarded(), RequestPolicy(("a",)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "waits"), [(60_000, True), (600, False)])
def test_long_bodies_are_parsed_in_a_thread(
    http: TestClient, size: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: ServedModel = http.app.state.service.model  # type: ignore[attr-defined]
    threads: list[Any] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        submit = loop.run_in_executor

        def noted(pool: Any, work: Any) -> Any:
            threads.append(pool)
            return submit(pool, work)

        monkeypatch.setattr(loop, "run_in_executor", noted)
        assert (await model.fields(json.dumps({"user": "u" * size}).encode()))["user"] == "u" * size

    asyncio.run(run())
    assert threads == ([model._patient] if waits else [])
    nonsense = http.post("/v1/completions", content="{" * size, headers={"content-type": "application/json"})
    assert nonsense.status_code == 400


@pytest.mark.parametrize(
    ("options", "masked"), [({}, True), ({"proposal": Masked()}, False), ({"sampler": "qrs"}, False)], ids=str
)
def test_json_is_masked_unless_the_wrapper_says_how_to_draw(options: dict[str, Any], masked: bool) -> None:
    model = ServedModel(GuardedGenerator(world().pipeline(), ANYTHING, **options), RequestPolicy(("tiny",)))
    assert model.policy.masks_json == masked


def test_json_is_not_masked_where_unfinished_texts_cannot_be_judged() -> None:
    pipe = world().pipeline()
    pipe.tokenizer.clean_up_tokenization_spaces = True
    assert not ServedModel(GuardedGenerator(pipe, ANYTHING), RequestPolicy(("tiny",))).policy.masks_json
