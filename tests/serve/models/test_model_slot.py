"""Models of one server are loaded when they are needed, unloaded when they are not, and do not disturb each other.

Covers ``serve/models/model_loader.py`` and ``serve/models/served_model.py`` too.
"""

import asyncio
import gc
import json
import threading
import weakref
from typing import Any

import pytest

from guardwrap.errors import ModelError, UsageError
from guardwrap.serve.models import model_loader, model_slot
from guardwrap.serve.models.model_loader import ModelLoader
from guardwrap.serve.models.model_slot import ModelSlot
from guardwrap.serve.models.served_model import ServedModel
from guardwrap.serve.request_policy import RequestPolicy
from tests.serve.models.fixtures_models import NEVER, SECONDS, App, Models, run, settings_of, until


@pytest.fixture
def models():
    made = Models()
    yield made
    made.released.set()


def two(models: Models, **fields: Any) -> App:
    return App(settings_of(a=fields, b={}), models)


def test_a_model_is_loaded_once_when_it_is_first_needed(models):
    app = two(models)

    async def test() -> None:
        assert await app.loaded() == {"a": False, "b": False}
        replies = await asyncio.gather(*(app.ask(name) for name in ("a", "also-a", "a", "a")))
        assert [reply.status_code for reply in replies] == [200] * 4
        assert len({reply.json()["choices"][0]["text"] for reply in replies}) == 1
        assert [reply.json()["model"] for reply in replies] == ["a", "also-a", "a", "a"]
        assert models.loads == ["also-a"]
        assert await app.loaded() == {"a": True, "b": False}
        assert (await app.ask("b")).status_code == 200
        assert models.loads == ["also-a", "also-b"]

    run(test)


def test_a_load_delays_no_other_model(models):
    models.held = {"also-a"}
    app = two(models)

    async def test() -> None:
        await app.ask("b")
        waiting = [asyncio.create_task(app.ask("a")) for _ in range(3)]
        await until(lambda: "also-a" in models.loads)
        assert (await app.ask("b")).status_code == 200
        assert (await app.http.get("/health")).status_code == 200
        assert (await app.http.get("/v1/models")).status_code == 200
        assert not any(task.done() for task in waiting)
        models.released.set()
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 3
        assert models.loads == ["also-b", "also-a"]

    run(test)


def test_negative_control_a_load_in_the_event_loop_delays_all(models, monkeypatch):
    models.held = {"also-a"}
    app = two(models)
    monkeypatch.setattr(ModelLoader, "run", lambda self, work: asyncio.sleep(0, work()))
    threading.Timer(0.5, models.released.set).start()

    async def test() -> None:
        waiting = asyncio.create_task(app.ask("a"))
        await until(lambda: "also-a" in models.loads)
        assert models.released.is_set(), "the event loop stood still until the load was over"
        await waiting

    run(test)


@pytest.mark.parametrize("error", [ModelError("cannot load /srv/secret"), MemoryError("no memory"), SystemExit(3)])
def test_a_load_that_fails_hurts_only_its_requests_and_is_tried_again(models, error, caplog, monkeypatch):
    models.broken, models.held = {"also-a": error}, {"also-a"}
    app, waiting, right = two(models), [], ModelSlot.loaded

    async def loaded(self: ModelSlot) -> ServedModel:
        waiting.append(self.name)
        return await right(self)

    monkeypatch.setattr(ModelSlot, "loaded", loaded)

    async def test() -> None:
        asking = asyncio.gather(app.ask("a"), app.ask("a"), app.ask("b"), app.ask("a", stream=True))
        await until(lambda: waiting.count("a") == 3)
        models.released.set()
        replies = await asking
        assert [reply.status_code for reply in replies] == [503, 503, 200, 503]
        told = replies[0].json()["error"]
        assert told["message"] == (
            "the model 'a' could not be loaded, and the server's log has the reason; try again later"
        )
        assert (told["code"], told["type"], told["param"]) == ("model_not_loaded", "server_error", "model")
        assert len({reply.json()["error"]["request_id"] for reply in (replies[0], replies[1])}) == 2
        assert "secret" not in replies[0].text
        assert "could not load a: " in caplog.text
        assert models.loads.count("also-a") == 1
        models.broken = {}
        assert (await app.ask("a")).status_code == 200
        assert models.loads.count("also-a") == 2
        lines = (await app.http.get("/metrics")).text.splitlines()
        assert 'guardwrap_failed_loads_total{model="a"} 1.0' in lines
        assert 'guardwrap_loads_total{model="a"} 1.0' in lines
        assert 'guardwrap_requests_total{model="a",status="503"} 3.0' in lines
        assert 'guardwrap_loaded{model="a"} 1.0' in lines

    run(test)


def test_memory_is_released_and_the_model_comes_back(models):
    app, before = two(models), set(threading.enumerate())
    slot = app.shelf.slots[0]

    async def test() -> None:
        first = await app.ask("a", guided_regex="a", guardwrap={"proposal": "masked"})
        twisted = {"constraint": {"kind": "keyword", "words": "fa", "whole_words": False}, "proposal": "twisted"}
        assert (await app.ask("a", top_k=-1, guardwrap={**twisted, "sampler": "qrs"})).status_code == 200
        assert (await app.ask("a", stream=True)).status_code == 200
        assert slot.model is not None
        weights = slot.model.guarded.model.get_input_embeddings().weight
        refs = [weakref.ref(each) for each in (slot.model, slot.model.guarded, slot.model.guarded.model, weights)]
        del weights
        threads = [each for each in threading.enumerate() if each not in before and each.name.startswith("guardwrap-")]
        slot.unload()
        for _ in range(100):  # the batch's thread may be about to end
            await slot._loader.run(model_loader.free_memory)
            if not any(ref() for ref in refs):
                break
            await asyncio.sleep(0.02)
        assert [ref() for ref in refs] == [None] * 4
        ended = [each for each in threads if not each.name.startswith(("guardwrap-loading", "guardwrap-parsing"))]
        assert {each.name.rpartition("_")[0] for each in ended} >= {"guardwrap-reading", "guardwrap-learner"}
        for each in ended:
            each.join(SECONDS)
        assert not any(each.is_alive() for each in ended)
        again = await app.ask("a", guided_regex="a", guardwrap={"proposal": "masked"})
        assert again.json()["choices"] == first.json()["choices"]
        assert models.loads == ["also-a", "also-a"]

    run(test)


def test_negative_control_a_model_that_is_kept_is_not_released(models):
    app = two(models)
    slot = app.shelf.slots[0]

    async def test() -> None:
        await app.ask("a")
        kept = slot.model
        assert kept is not None
        ref = weakref.ref(kept)
        slot.unload()
        gc.collect()
        assert ref() is kept

    run(test)


def test_a_request_that_comes_while_the_model_is_unloaded_waits(models, monkeypatch):
    app = two(models)
    slot, freeing, freed = app.shelf.slots[0], threading.Event(), threading.Event()

    def slowly() -> None:
        freeing.set()
        freed.wait(SECONDS)

    monkeypatch.setattr(model_loader, "free_memory", slowly)

    async def test() -> None:
        await app.ask("a")
        slot.unload()
        await asyncio.to_thread(freeing.wait, SECONDS)
        waiting = asyncio.create_task(app.ask("a"))
        await until(lambda: slot.gate.inside == 1)
        assert models.loads == ["also-a"], "two models at once would need memory for both"
        freed.set()
        assert (await waiting).status_code == 200
        assert models.loads == ["also-a", "also-a"]

    run(test)


def test_it_is_unloaded_when_it_is_idle_and_not_while_a_request_runs(models):
    app = two(models, idle_seconds=0.02)
    slot = app.shelf.slots[0]

    async def test() -> None:
        request, leave = app.send("a", NEVER)
        await until(lambda: slot.gate.running == 1)
        slot.unload()
        await asyncio.sleep(0.1)
        assert slot.model is not None
        leave.set()
        await request
        await until(lambda: slot.model is None)
        assert (await app.ask("a")).status_code == 200
        assert models.loads == ["also-a", "also-a"]
        await until(lambda: slot.model is None)

    run(test)


def test_negative_control_without_the_check_a_running_request_loses_its_model(models, monkeypatch):
    app = two(models, idle_seconds=0.02)
    slot = app.shelf.slots[0]

    def unload(self: ModelSlot) -> None:
        self.model = None

    monkeypatch.setattr(ModelSlot, "unload", unload)

    async def test() -> None:
        request, leave = app.send("a", NEVER)
        await until(lambda: slot.gate.running == 1)
        slot.unload()
        assert slot.model is None
        leave.set()
        await request

    run(test)


def test_a_client_that_leaves_during_the_load_frees_its_place(models):
    models.held = {"also-a"}
    app = two(models, idle_seconds=0.02)
    slot = app.shelf.slots[0]

    async def test() -> None:
        request, leave = app.send("a", NEVER)
        await until(lambda: "also-a" in models.loads)
        assert (slot.gate.inside, slot.gate.running, slot.gate.queued) == (1, 0, 1)
        leave.set()
        await request
        assert slot.gate.inside == 0
        models.released.set()
        await until(lambda: slot.model is not None or slot._loading is None)
        await until(lambda: slot.model is None)  # nobody uses it, so it is unloaded as if a request had ended
        assert (await app.ask("a")).status_code == 200

    run(test)


def test_a_client_that_leaves_during_the_load_ends_it_for_nobody_else(models):
    models.held = {"also-a"}
    app = two(models)

    async def test() -> None:
        request, leave = app.send("a", NEVER)
        await until(lambda: "also-a" in models.loads)
        other = asyncio.create_task(app.ask("a"))
        await until(lambda: app.shelf.slots[0].gate.inside == 2)
        leave.set()
        await request
        models.released.set()
        assert (await other).status_code == 200
        assert models.loads == ["also-a"]

    run(test)


def test_a_server_that_ends_does_not_wait_for_a_load(models):
    models.held = {"also-a"}
    app = two(models)

    async def test() -> None:
        request = asyncio.create_task(app.ask("a"))
        await until(lambda: "also-a" in models.loads)
        app.shelf.shutdown.draining = True
        assert (await app.ask("b")).json()["error"]["code"] == "shutting_down"
        app.shelf.shutdown.over.set()
        reply = await request
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert not app.shelf.close(0.01), "the thread is loading"
        models.released.set()
        assert app.shelf.close(SECONDS)

    run(test)


def test_a_busy_model_leaves_the_places_of_others(models):
    app = App(settings_of(a={"limits": {"running": 1, "queue": 1}}, b={}, limits={"running": 3}), models)
    a, b = app.shelf.slots

    async def test() -> None:
        requests = [app.send("a", NEVER) for _ in range(2)]
        await until(lambda: (a.gate.running, a.gate.queued) == (1, 1))
        full = await app.ask("a")
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert [reply.status_code for reply in await asyncio.gather(*(app.ask("b") for _ in range(3)))] == [200] * 3
        assert (a.policy.limits.running, b.policy.limits.running, app.shelf.places) == (1, 3, 2 + 3 + 256)
        for task, leave in requests:
            leave.set()
            await task
        assert app.shelf.inside == 0

    run(test)


def test_the_timer_counts_from_the_last_request(models, monkeypatch):
    """Only the timer of the last request is left."""
    app = two(models, idle_seconds=100.0)
    slot = app.shelf.slots[0]

    async def test() -> None:
        await app.ask("a")
        first = slot._timer
        await app.ask("a")
        assert first is not None
        assert slot._timer is not None
        assert (first.cancelled(), slot._timer.cancelled()) == (True, False)
        assert slot._timer.when() > first.when()

    run(test)


def test_what_is_loaded_at_the_start_is_watched_from_the_start(models):
    app = App(settings_of(a={"load": "start", "idle_seconds": 0.02}, b={"idle_seconds": None}), models)
    app.shelf.load_at_start()
    assert models.loads == ["also-a"]
    a, b = app.shelf.slots

    async def test() -> None:
        app.shelf.watch()
        await app.ask("b")
        assert b._timer is None
        await until(lambda: a.model is None)
        assert b.model is not None

    run(test)


def test_logs_name_the_model(models, caplog):
    caplog.set_level("INFO", model_slot.log.name)
    app = two(models)

    async def test() -> None:
        await app.ask("also-a")
        await app.ask("someone's words")
        app.shelf.slots[0].unload()

    run(test)
    lines = [record.getMessage() for record in caplog.records if record.name == model_slot.log.name]
    assert lines[0].startswith("loaded a in ")
    assert lines[1].startswith("POST /v1/completions 200")
    assert " attempts of a " in lines[1]
    assert " 404 " in lines[2]
    assert "words" not in lines[2]
    assert lines[3] == "unloaded a after 600 s without a request"


def test_an_endpoint_is_no_model_of_a_server():
    class Guarded:
        session = object()

    with pytest.raises(UsageError, match="needs a local model"):
        ServedModel(Guarded(), RequestPolicy(("a",)))  # type: ignore[arg-type]


def test_long_bodies_are_parsed_in_a_thread(models):
    app = two(models)

    async def test() -> None:
        body = json.dumps({"model": "a", "prompt": "ab", "user": "u" * 60_000})
        reply = await app.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 200, reply.text
        nonsense = await app.http.post(
            "/v1/completions", content="{" * 60_000, headers={"content-type": "application/json"}
        )
        assert nonsense.status_code == 400

    run(test)
