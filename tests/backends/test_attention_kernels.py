import contextlib
import threading

import pytest
import torch

from guardwrap import GuardedGenerator, Keyword, Prompt
from guardwrap.backends import sequence_scores
from guardwrap.backends.attention_kernels import for_any_shape
from guardwrap.backends.refill import row_states
from guardwrap.testing import World

GPU = torch.device("cuda")


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
    with for_any_shape(torch.device("cpu")):
        assert uses_cudnn()


def test_passes_of_the_model_are_inside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the model were on a GPU: those that draw and those that weigh."""
    for module in (row_states, sequence_scores):
        monkeypatch.setattr(module, "for_any_shape", lambda device: for_any_shape(GPU))
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
