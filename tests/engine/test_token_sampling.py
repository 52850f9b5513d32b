"""Tokens of concurrent attempts: code of one attempt has no effect on others."""

import asyncio
import math
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper

from guardwrap import GuardedGenerator, Keyword, Masked, Twisted
from guardwrap.engine import token_sampling
from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.engine.refill import decode
from guardwrap.engine.scheduling.backend import AttemptState, Launch
from guardwrap.engine.token_sampling import draw_tokens, new_attempt
from guardwrap.testing import llama_world

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0]])


def law(**more: Any) -> GenerationLaw:
    return GenerationLaw(
        prompt_ids=torch.tensor([1, 2]),
        mode="sample",
        processors=LogitsProcessorList(more.get("processors", [])),
        warpers=LogitsProcessorList(more.get("warpers", [])),
        criteria=StoppingCriteriaList(more.get("criteria", [])),
        end_ids=frozenset(),
        max_length=10,
        pad_id=0,
        return_dict=False,
        count=1,
        max_time=None,
        beam_results=None,
        generate=lambda **_: None,
    )


class LeavesOut:
    """A mask that excludes the likeliest token."""

    impossible = False
    beyond = False
    dead_end = None
    notes = ()

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        return [token == 3 for token in candidates]

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        return tokens == 3

    def close(self, token_ids: Sequence[int]) -> None:
        pass


class Breaks(LeavesOut):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        raise self.error


def drawn(*launches: Launch) -> list[AttemptState]:
    attempts = [new_attempt(launch) for launch in launches]
    draw_tokens(LOGITS.repeat(len(attempts), 1), attempts)
    return attempts


@pytest.mark.parametrize("warpers", [[], [TemperatureLogitsWarper(1.0)], [TopKLogitsWarper(4)]])
def test_a_mask_that_breaks_leaves_the_weight_of_another_attempt_alone(warpers: list[Any]) -> None:
    shared = law(warpers=warpers)
    mine = Launch(shared, 1, 0, 0, request="mine", mask=LeavesOut())
    (alone,) = drawn(mine)
    assert alone.log_weight == pytest.approx(math.log(float(LOGITS.softmax(-1)[0, :3].sum())))
    beside, broken = drawn(mine, Launch(shared, 1, 1, 0, request="other", mask=Breaks(ValueError("of the user"))))
    assert isinstance(broken.error, ValueError)
    assert (beside.token_ids, beside.log_weight) == (alone.token_ids, alone.log_weight)


class BreaksBeyond(LeavesOut):
    """A mask that excludes every token, and raises where it is asked for tokens beyond truncation."""

    beyond = True

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        if beyond:
            raise ValueError("of the user")
        return tokens >= 0


def test_a_mask_that_breaks_beyond_truncation_leaves_the_weight_of_another_attempt_alone() -> None:
    """All masks are asked before an attempt changes, so that one which is drawn again is not weighed twice."""
    shared = law(warpers=[TopKLogitsWarper(3)])
    mine = Launch(shared, 1, 0, 0, request="mine", mask=LeavesOut())
    (alone,) = drawn(mine)
    beside, broken = drawn(mine, Launch(shared, 1, 1, 0, request="other", mask=BreaksBeyond()))
    assert isinstance(broken.error, ValueError)
    assert (beside.token_ids, beside.log_weight) == (alone.token_ids, alone.log_weight)


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("seam", ["processors", "criteria", "watch", "mask"])
def test_what_an_attempts_own_code_raises_is_its_own(seam: str, error: BaseException) -> None:
    """In the thread of a batch, an error of any type fails only its request."""
    (alone,) = drawn(Launch(law(), 1, 0, 0, request="mine"))
    hostile: dict[str, Any] = {"watch": raises(error)} if seam == "watch" else {}
    hostile |= {"mask": Breaks(error)} if seam == "mask" else {}
    own = law(**{seam: [raises(error)]}) if seam in ("processors", "criteria") else law()
    found: list[AttemptState] = []

    def run() -> None:
        found.extend(drawn(Launch(law(), 1, 0, 0, request="mine"), Launch(own, 1, 1, 0, request="other", **hostile)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    beside, broken = found
    assert (beside.token_ids, beside.status) == (alone.token_ids, "running")
    assert isinstance(broken.error, Exception)


def test_an_interrupt_of_the_main_thread_is_the_users() -> None:
    with pytest.raises(KeyboardInterrupt):
        drawn(Launch(law(), 1, 0, 0, request="mine", watch=raises(KeyboardInterrupt())))


class Copies:
    """Counts calls that wait for a GPU, because they need what it computes."""

    NAMES = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Counter[str]] = []
        self._inside = False
        for name in self.NAMES:
            monkeypatch.setattr(torch.Tensor, name, self._counted(name, getattr(torch.Tensor, name)))
        draw = token_sampling.draw_tokens

        def step(*given: Any) -> Any:
            self.steps.append(Counter())
            with monkeypatch.context() as inside:
                inside.setattr(self, "_inside", True)
                return draw(*given)

        monkeypatch.setattr(decode, "draw_tokens", step)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            if self._inside:
                # what is on the CPU already is not copied from a GPU
                self.steps[-1][name] += name != "numpy"
            return call(*given, **options)

        return counted


@pytest.mark.parametrize("top_k", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"constraints": ~Keyword("b", whole_words=False)},
        {"proposal": Masked()},
        {"proposal": Twisted()},
        {"proposal": Masked(), "sampler": "qrs"},
        {"proposal": Twisted(), "sampler": "qrs"},
    ],
    ids=["no rule", "ban", "mask", "twist", "mask, weighed", "twist, weighed"],
)
def test_a_step_waits_for_a_gpu_at_most_twice(
    options: dict[str, Any], top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all rows together. Where distributions are kept for other attempts, these are copied as well."""
    world = llama_world(letters="abcdefghijklmnopqrstuvwxyz", max_new_tokens=24)
    rule = Keyword("a", whole_words=False, min_count=0)
    guarded = GuardedGenerator(world.pipeline(), **{"constraints": rule, "seed": 1, **options})
    settings = world.settings | {"top_k": top_k, "min_new_tokens": 24}
    guarded.run(world.prompt, **settings)
    copies = Copies(monkeypatch)
    guarded.run([world.prompt, "ab", "ba"], num_return_sequences=8, **settings)
    assert len(copies.steps) >= 24
    assert max(sum(step.values()) for step in copies.steps) <= 4
    assert statistics.median(sum(step.values()) for step in copies.steps) <= 2


def test_negative_control_a_step_that_asks_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = token_sampling._chosen

    def row_by_row(proposal: Any, *given: Any) -> Any:
        assert all(row.max().item() > -math.inf for row in proposal.scores)
        return chosen(proposal, *given)

    monkeypatch.setattr(token_sampling, "_chosen", row_by_row)
    with pytest.raises(AssertionError, match="<= 4"):
        test_a_step_waits_for_a_gpu_at_most_twice({}, 0, monkeypatch)
