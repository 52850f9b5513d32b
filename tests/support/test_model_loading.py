"""A model that is loaded changes nothing for models that are computing, nor for another one that is loaded."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from guardwrap import GuardedGenerator, Regex
from guardwrap.engine import forward_passes
from guardwrap.support import model_loading
from guardwrap.support.model_loading import computing, loading_model
from guardwrap.testing import llama_world

SECONDS = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in bfloat16."""
    world = llama_world()
    world.model.to(torch.bfloat16).save_pretrained(tmp_path)
    world.tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events: transformers builds the modules of a model, and it may continue."""
    begun, released, build = threading.Event(), threading.Event(), LlamaForCausalLM.__init__

    def slowly(self: Any, config: Any) -> None:
        build(self, config)
        if torch.get_default_dtype() == torch.bfloat16:
            begun.set()
            released.wait(0.5)

    monkeypatch.setattr(LlamaForCausalLM, "__init__", slowly)
    yield begun, released
    released.set()


def dtypes_while_loading(folder: Path, begun: threading.Event, monkeypatch: pytest.MonkeyPatch) -> set[torch.dtype]:
    """Return the default data types in which a model computes while another one is built in another thread."""
    seen: set[torch.dtype] = set()
    guarded = GuardedGenerator(llama_world().pipeline(), Regex("a"))
    forward = LlamaForCausalLM.forward

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.add(torch.get_default_dtype())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", noted)
    with ThreadPoolExecutor() as pool:
        loading = pool.submit(GuardedGenerator, str(folder), Regex("a"))
        assert begun.wait(SECONDS)
        drawing = pool.submit(guarded.run, ["ab"], seed=1)
        drawing.result(SECONDS)
        loading.result(SECONDS)
    return seen


def test_a_model_that_draws_keeps_its_default_data_type(folder, building, monkeypatch):
    assert dtypes_while_loading(folder, building[0], monkeypatch) == {torch.float32}
    assert torch.get_default_dtype() == torch.float32


def test_negative_control_without_the_lock_it_changes(folder, building, monkeypatch):
    monkeypatch.setattr(forward_passes, "computing", nullcontext)
    assert torch.bfloat16 in dtypes_while_loading(folder, building[0], monkeypatch)


@pytest.mark.slow
def test_two_models_are_not_loaded_at_once(folder):
    """Otherwise the second one would put back a method that the first one has replaced."""
    before = PreTrainedModel.tie_weights, vars(PreTrainedModel)["get_init_context"]
    with ThreadPoolExecutor(4) as pool:
        names = [str(folder)] * 8
        loaded = list(pool.map(lambda name: GuardedGenerator(name, Regex("a")), names))
    assert len({id(each.model) for each in loaded}) == 8
    assert (PreTrainedModel.tie_weights, vars(PreTrainedModel)["get_init_context"]) == before


def test_a_thread_that_computes_may_load(folder):
    """A classifier is loaded when it is first used, which may be within a step; another thread loads meanwhile."""

    def load(_: int) -> Any:
        with computing(), computing(), loading_model(), loading_model():
            return AutoModelForCausalLM.from_pretrained(folder).dtype

    with ThreadPoolExecutor(4) as pool:
        assert [each.result(SECONDS) for each in [pool.submit(load, i) for i in range(8)]] == [torch.bfloat16] * 8


def test_a_change_waits_for_readers_and_holds_back_new_ones():
    lock, order = model_loading._DefaultDtype(), []
    read, end = threading.Event(), threading.Event()

    def note(context: Callable[[], Any], name: str) -> None:
        with context():
            order.append(name)

    with ThreadPoolExecutor() as pool:

        def first() -> None:
            with lock.reading():
                read.set()
                end.wait(SECONDS)
                order.append("first")

        reading = pool.submit(first)
        assert read.wait(SECONDS)
        changing = pool.submit(note, lock.changing, "change")
        while not lock._writers:
            pass
        later = pool.submit(note, lock.reading, "later")
        end.set()
        for each in (reading, changing, later):
            each.result(SECONDS)
    assert order == ["first", "change", "later"]


def test_an_error_leaves_nothing_locked(folder):
    (folder / "config.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(Exception, match="cannot load the model"):
            GuardedGenerator(str(folder), Regex("a"))
    with computing():
        pass
