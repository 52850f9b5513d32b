import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from guardwrap import GuardedGenerator, Keyword, Length, Prompt
from guardwrap.engine import forward_passes
from guardwrap.engine.forward_passes import for_any_shape
from guardwrap.errors import UsageError
from guardwrap.testing import World, llama_world


class On:
    """A model as far as its device goes."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


GPU = On("cuda")


def uses_cudnn() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("before", [True, False])
def test_the_setting_of_the_process_is_restored(before: bool) -> None:
    kept = uses_cudnn()
    try:
        torch.backends.cuda.enable_cudnn_sdp(before)
        with contextlib.suppress(KeyError), for_any_shape(GPU):
            assert not uses_cudnn()
            raise KeyError
        assert uses_cudnn() is before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(kept)


def test_the_last_thread_restores_it() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with for_any_shape(GPU):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with for_any_shape(GPU):
        thread.start()
        entered.wait(60)
    assert not uses_cudnn()  # still used by the other thread
    leave.set()
    thread.join()
    assert uses_cudnn()


def test_a_processor_changes_nothing() -> None:
    with for_any_shape(On("cpu")):
        assert uses_cudnn()


def test_passes_of_the_model_are_inside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the model were on a GPU: those that draw and those that weigh."""
    monkeypatch.setattr(forward_passes, "for_any_shape", lambda model: for_any_shape(GPU))
    guarded = GuardedGenerator(world.pipeline(), Keyword("a", whole_words=False), proposal=Prompt("b{prompt}"))
    guarded.attempts(world.prompt, 1, seed=0, **world.settings)  # with its self-test, which compares with generate()
    seen: set[bool] = set()
    hook = world.model.register_forward_pre_hook(lambda *_: seen.add(uses_cudnn()))
    try:
        guarded.attempts(world.prompt, 4, seed=1, **world.settings)
    finally:
        hook.remove()
    assert seen == {False}
    assert uses_cudnn()


def compiled_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    return model


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager", fullgraph=True)
    return model


def compiled_layers(model: Any) -> Any:
    for layer in model.model.layers:
        layer.compile(backend="eager", fullgraph=True)
    return model


def forwarding(model: Any) -> Any:
    """Of a class that hides the arguments of the class that it extends."""

    class Forwarding(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    model.__class__ = Forwarding
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.compile(model, backend="eager"),
        lambda model: torch.compile(model, backend="eager", fullgraph=True),
        compiled_forward,
        compiled_in_place,
        compiled_layers,
        forwarding,
    ],
)
@pytest.mark.parametrize("in_pipeline", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_drawn_in_the_fast_mode(wrap: Callable[[Any], Any], in_pipeline: bool) -> None:
    """With the texts of the model itself: more shapes of batches than torch compiles for."""

    def texts(world: World, model: Any) -> list[tuple[str, ...]]:
        if in_pipeline:
            pipe = world.pipeline()
            pipe.model = model
            guarded = GuardedGenerator(pipe, Length(min=0), proposal=Prompt("{prompt}"))
        else:
            guarded = GuardedGenerator(model, Length(min=0), tokenizer=world.tokenizer, proposal=Prompt("{prompt}"))
        settings: dict[str, Any] = {"max_new_tokens": 12, "num_return_sequences": 6, "top_k": 0, "progress": False}
        outcomes = guarded.run(["ab", "a", "cdefa"], seed=1, **settings)
        assert outcomes[0].report.mode == "refill"
        return [outcome.texts for outcome in outcomes]

    usual, other = (llama_world(letters="abcdefghij", max_new_tokens=8) for _ in range(2))
    try:
        assert texts(other, wrap(other.model)) == texts(usual, usual.model)
    finally:
        torch._dynamo.reset()


@pytest.mark.slow
def test_torch_compiles_again_after_a_call() -> None:
    world = llama_world(letters="ab", max_new_tokens=4)
    runs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        runs.append(1)
        return graph.forward

    model: Any = torch.compile(world.model, backend=backend)
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=world.tokenizer)
    guarded("ab", seed=1, max_new_tokens=3)
    before = len(runs)
    with torch.no_grad():
        model(torch.tensor([[1, 2]]))
    torch._dynamo.reset()
    assert before == 0
    assert runs


def test_a_model_that_cannot_generate_says_what_to_give() -> None:
    world = llama_world(letters="ab", max_new_tokens=4)
    with pytest.raises(UsageError, match=r"DataParallel, which cannot generate texts; give its \.module"):
        GuardedGenerator(torch.nn.DataParallel(world.model), Length(min=0), tokenizer=world.tokenizer)
