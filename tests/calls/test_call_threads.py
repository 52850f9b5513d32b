"""Each wrapper works for its calls in its own threads, so that a slow call of one wrapper delays no other wrapper."""

import asyncio
import gc
import pickle
import threading
import time
from functools import partial
from typing import Any

import pytest

from guardwrap import GuardedGenerator, Keyword, Twisted
from guardwrap.calls import job as job_module
from guardwrap.calls.choice import with_choice
from guardwrap.calls.job import CallThreads, Job
from guardwrap.testing import llama_world

SECONDS = 60.0
RULE = Keyword("ab", whole_words=False)


async def ended(slow: Any, quick: Any, begun: threading.Event, released: threading.Event) -> tuple[bool, bool]:
    """Make a call, and another one once it has begun; return whether each has ended before the first is released."""
    first = asyncio.create_task(slow())
    await asyncio.to_thread(begun.wait, SECONDS)
    second = asyncio.create_task(quick())
    await asyncio.wait({second}, timeout=SECONDS / 2)
    done = first.done(), second.done()
    released.set()
    await asyncio.gather(first, second)
    return done


def both(monkeypatch: pytest.MonkeyPatch, first: GuardedGenerator, second: GuardedGenerator) -> tuple[bool, bool]:
    """Call two wrappers while the first one's twist does not end to learn; return whether each call has ended."""
    begun, released, learn = threading.Event(), threading.Event(), Job._learned

    def slowly(self: Any, *args: Any) -> Any:
        if self.source.model is first.model:
            begun.set()
            released.wait(SECONDS)
        return learn(self, *args)

    monkeypatch.setattr(Job, "_learned", slowly)

    return asyncio.run(ended(partial(first.arun, ["a"], seed=1), partial(second.arun, ["a"], seed=1), begun, released))


def test_a_wrapper_that_learns_delays_no_other_one(monkeypatch):
    first, second = (GuardedGenerator(llama_world(seed).pipeline(), RULE, proposal=Twisted()) for seed in (0, 1))
    assert both(monkeypatch, first, second) == (False, True)


@pytest.mark.slow
def test_negative_control_one_thread_for_both(monkeypatch):
    first, second = (GuardedGenerator(llama_world(seed).pipeline(), RULE, proposal=Twisted()) for seed in (0, 1))
    second.session.threads = first.session.threads
    assert both(monkeypatch, first, second) == (False, False)


def plans(monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Plan two calls of a wrapper while the first plan does not end; return whether each call has ended."""
    guarded = GuardedGenerator(llama_world(0).pipeline(), RULE, sampler="auto")
    begun, released = threading.Event(), threading.Event()

    def slowly(session: Any, prompts: Any, options: Any, job: Any) -> Any:
        if job.spec.seed == 1:
            begun.set()
            released.wait(SECONDS)
        return with_choice(session, prompts, options, job)

    monkeypatch.setattr("guardwrap.generator.with_choice", slowly)

    return asyncio.run(
        ended(partial(guarded.arun, ["a"], seed=1), partial(guarded.arun, ["a"], seed=2), begun, released)
    )


def test_a_long_plan_delays_no_short_one(monkeypatch):
    assert plans(monkeypatch) == (False, True)


@pytest.mark.slow
def test_negative_control_one_plan_at_a_time(monkeypatch):
    monkeypatch.setattr(job_module, "PLANS", 1)
    assert plans(monkeypatch) == (False, False)


def test_the_threads_end_with_the_wrapper_and_are_not_copied():
    async def names(threads: CallThreads) -> list[str]:
        work = lambda: threading.current_thread().name  # noqa: E731
        return [await threads.run(work), await threads.learn(work, None)]

    before = set(threading.enumerate())  # wrappers of other tests may be in use
    threads = CallThreads()
    copied = pickle.loads(pickle.dumps(threads))
    assert [name.rpartition("_")[0] for name in asyncio.run(names(threads))] == ["guardwrap-call", "guardwrap-learner"]
    running = [
        thread
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith(("guardwrap-call", "guardwrap-l"))
    ]
    assert len(running) >= 2
    del threads, copied
    gc.collect()
    for thread in running:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in running)


@pytest.mark.parametrize("rounds", range(4))
def test_a_call_that_is_canceled_as_its_plan_is_complete_ends(rounds: int) -> None:
    async def call(threads: CallThreads) -> None:
        await threads.plan(lambda: None, None, 60)
        await asyncio.sleep(3)

    async def run() -> None:
        calling = asyncio.create_task(call(CallThreads()))
        await asyncio.sleep(0)
        time.sleep(0.05)  # the plan is complete, which the loop does not know yet
        for _ in range(rounds):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling], timeout=1)
        assert calling.cancelled()

    asyncio.run(run())
