"""Several models behind one server: their names, and a server process that loads and unloads them."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from guardwrap.errors import ModelError, UsageError
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.models.model_shelf import ModelShelf
from tests.serve.fixtures_server import Server, figures, furnish, wait_until
from tests.serve.models.fixtures_models import App, Models, run, settings_of

SETTINGS = """\
models:
  quick:
    model: model
    aliases: [gpt-quick]
    load: start
    idle_seconds: null
    constraints: rules
    allow_code: true
  late:
    model: model
    idle_seconds: 0.2
    always: [catalogue:no-urls]
limits: {running: 2, queue: 1, grace_seconds: 4, checker_seconds: 20}
"""
SLOWLY = """\
import time
from guardwrap.serve.models import model_slot
load = model_slot._loaded
def slowly(*arguments):
    time.sleep(60)
    return load(*arguments)
model_slot._loaded = slowly
from guardwrap.cli import main
"""
ASKED: dict[str, Any] = {"prompt": "ab", "max_tokens": 12, "seed": 1}


def test_names_and_aliases() -> None:
    app = App(settings_of(a={}, b={}))

    async def test() -> None:
        listed = (await app.http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["a", "also-a", "b", "also-b"]
        for name in ("b", "also-b"):
            assert (await app.http.get(f"/v1/models/{name}")).json()["id"] == name
        unknown = [await app.http.get("/v1/models/c"), await app.ask("also-c"), await app.ask("")]
        unknown += [await app.http.post("/v1/completions", json={**ASKED, "model": each}) for each in (None, ["a"], 1)]
        for reply in unknown:
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert "it has 'a', 'b'" in error["message"]
        assert "did you mean 'also-b'" in unknown[1].json()["error"]["message"]
        assert app.models.loads == []

    run(test)


def test_a_slot_by_its_name() -> None:
    shelf = App(settings_of(a={}, b={})).shelf
    assert shelf.slot("also-b") is shelf.slots[1]
    with pytest.raises(ErrorResponse, match="no model 'c'"):
        shelf.slot("c")
    assert shelf.names == ["a", "also-a", "b", "also-b"]


def test_a_model_that_cannot_be_loaded_at_the_start_ends_it() -> None:
    models = Models()
    models.broken = {"also-b": ModelError("it is damaged")}
    shelf = ModelShelf(settings_of(a={}, b={"load": "start"}), models.load)
    with pytest.raises(ModelError, match="it is damaged"):
        shelf.load_at_start()
    assert models.loads == ["also-b"]


def test_loads_at_the_start_are_counted() -> None:
    app = App(settings_of(a={"load": "start"}, b={}, c={"load": "start"}), load=True)

    async def test() -> None:
        assert (await app.ask("a")).status_code == (await app.ask("b")).status_code == 200
        lines = (await app.http.get("/metrics")).text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("guardwrap_load"))
        assert [values[f'guardwrap_loads_total{{model="{name}"}}'] for name in "abc"] == ["1.0"] * 3
        assert all(float(values[f'guardwrap_load_seconds_total{{model="{name}"}}']) > 0 for name in "abc")

    run(test)


def test_files_are_required_when_the_shelf_is_made() -> None:
    with pytest.raises(UsageError, match=r"models: a: cannot load the model '\./missing'"):
        ModelShelf(settings_of(a={"model": "./missing"}, b={}), Models().load)


def served(folder: Path) -> Path:
    furnish(folder)
    (folder / "serve.yaml").write_text(SETTINGS)
    return folder


@pytest.mark.slow
def test_a_process_with_two_models(tmp_path: Path) -> None:
    server = Server(served(tmp_path), names="quick, late")
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor() as pool:

            def ask(model: str, **fields: Any) -> httpx.Response:
                return http.post("/v1/completions", json={**ASKED, "model": model, **fields})

            assert figures(http, "quick")["guardwrap_loaded"] == 1
            assert figures(http, "late")["guardwrap_loaded"] == 0
            endless = pool.submit(ask, "quick", guardwrap={"constraint": "endless", "budget": {"max_seconds": 5}})
            wait_until(http, "quick", running=1)
            texts = {ask("late").json()["choices"][0]["text"] for _ in range(3)}
            assert len(texts) == 1
            wait_until(http, "late", loaded=0)
            assert not endless.done()
            assert ask("late").json()["choices"][0]["text"] in texts
            assert endless.result().status_code == 422
            wait_until(http, "late", loaded=0, loads_total=2)
            assert figures(http, "quick")["guardwrap_loaded"] == 1
        log = server.log.read_text()
        assert log.count(" loaded late in ") == 2
        assert log.count("unloaded late after 0.2 s without a request") >= 2
        assert "Traceback" not in log
    finally:
        server.end()


@pytest.mark.slow
def test_sigterm_ends_a_process_that_is_loading(tmp_path: Path) -> None:
    server = Server(served(tmp_path), names="quick, late", before=SLOWLY)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor() as pool:
            fields = {**ASKED, "model": "late"}
            late = pool.submit(http.post, "/v1/completions", json=fields)
            wait_until(http, "late", queued=1)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            reply = late.result()
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - began < 30, "it did not wait for the load"
        assert json.dumps(server.log.read_text()).count("Traceback") == 0
    finally:
        server.end()
