"""Every backend fulfills the contract with the scheduler, and a backend that breaks it is detected."""

from collections.abc import Callable
from typing import Any

import pytest

from guardwrap import GuardedGenerator, Regex
from guardwrap.calls.source import backend_for
from guardwrap.engine.endpoint.endpoint_backend import EndpointBackend
from guardwrap.engine.scheduling.backend import AttemptState, Backend, Launch
from guardwrap.engine.scheduling.randomness import uniforms
from guardwrap.engine.transformers_loop import GenerateBackend
from guardwrap.models.task_calls import call_of
from guardwrap.testing import World, check_backend, table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world
from tests.engine.scheduling.fixtures_table_backend import TableBackend, random_law

LAWS = [random_law(seed) for seed in range(3)]


def launches_of(laws: list[Any]) -> list[Launch]:
    """Return attempts of a request for each law, in turn."""
    return [Launch(laws[i % len(laws)], 5, i % len(laws), i, request=i % len(laws)) for i in range(24)]


def test_of_a_table() -> None:
    check_backend(TableBackend, launches_of(LAWS))


@pytest.mark.parametrize("make", [backend_for, lambda _, size: GenerateBackend(size)], ids=["refill", "generate"])
def test_of_a_model(world: World, make: Callable[[Any, int], Backend]) -> None:
    options = {"do_sample": True, "max_new_tokens": 6, "temperature": 1.5}
    prompts = call_of(world.pipeline(), options).prompts(enumerate(["ab", "a", "cde"]), 1)
    check_backend(lambda size: make(world.model, size), launches_of([prompt.law for prompt in prompts]))


@pytest.mark.usefixtures("watchdog")
def test_of_an_endpoint() -> None:
    with Server(of_world(table_world(3, letters="ab", max_new_tokens=5))).running() as server:
        job = GuardedGenerator(endpoint(server), Regex("a")).session.job({"temperature": 1.0, "max_new_tokens": 5})
        launches = launches_of([request.prompt.law for request in job.requests(["a", "b"])])
        check_backend(lambda size: EndpointBackend(endpoint(server), size), launches)


class Forgets(TableBackend):
    """Loses the third attempt that ends."""

    ended = 0

    def _drawn(self, attempts: Any) -> list[AttemptState]:
        found = super()._drawn(attempts)
        self.ended += len(found)
        return found[1:] if 3 <= self.ended < 6 else found


class EndsTwice(TableBackend):
    def _drawn(self, attempts: Any) -> list[AttemptState]:
        found = super()._drawn(attempts)
        return found + found[:1]


class SharesRandomness(TableBackend):
    """Uses one stream of random numbers for the batch, instead of one per attempt."""

    def launch(self, launches: Any) -> list[AttemptState]:
        stream = uniforms(launches[0].seed, 0, 0)
        new = [AttemptState(each, stream=stream) for each in launches]
        self.attempts += new
        return self._drawn(new)


class CancelsNothing(TableBackend):
    def cancel(self, unneeded: Any) -> list[AttemptState]:
        return []


class CancelsAll(TableBackend):
    def cancel(self, unneeded: Any) -> list[AttemptState]:
        return super().cancel(lambda launch: True)


class LosesOthers(TableBackend):
    """Cancels what it should, and loses one more attempt."""

    def cancel(self, unneeded: Any) -> list[AttemptState]:
        gone = super().cancel(unneeded)
        self.attempts = self.attempts[1:]
        return gone


class AsksNoWatch(TableBackend):
    def _settle(self, attempt: AttemptState) -> None:
        watch, attempt.launch = attempt.launch, Launch(attempt.launch.law, 0, 0, 0)
        super()._settle(attempt)
        attempt.launch = watch


class BlamesNobody(TableBackend):
    def _settle(self, attempt: AttemptState) -> None:
        super()._settle(attempt)
        attempt.blame = None


class FillsUp(TableBackend):
    """Has no room after a while, although nothing runs."""

    begun = 0

    @property
    def room(self) -> int:
        return super().room if self.begun < 6 else 0

    def launch(self, launches: Any) -> list[AttemptState]:
        found = super().launch(launches)
        self.begun += len(launches)
        return found


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Forgets, "an attempt was lost, or ended twice"),
        (EndsTwice, "an attempt was lost, or ended twice"),
        (SharesRandomness, "an attempt depends on the other attempts in its batch"),
        (CancelsNothing, "a request has running attempts after they were canceled"),
        (CancelsAll, "another request's attempt was canceled"),
        (LosesOthers, "an attempt was lost when another one was canceled"),
        (AsksNoWatch, "a watch was not called"),
        (BlamesNobody, "an aborted attempt has no blame"),
        (FillsUp, "no attempt is running, and there is no room for one"),
    ],
)
def test_negative_controls(broken: type[TableBackend], law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_backend(broken, launches_of(LAWS))
