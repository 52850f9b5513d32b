"""Callers in threads and event loops share one batch, and each gets the same texts as alone."""

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from guardwrap import Budget, CheckFailed, Constraint, Length, constraint
from guardwrap.engine.scheduling.backend import AttemptState
from guardwrap.engine.scheduling.batch import Batches
from guardwrap.engine.scheduling.randomness import uniforms
from guardwrap.engine.scheduling.request import Request, RequestStream
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import ModelError
from guardwrap.outcomes import Draw, Outcome
from tests.engine.scheduling import fixtures_table_backend
from tests.engine.scheduling.fixtures_table_backend import TableBackend, random_law
from tests.engine.scheduling.test_scheduler import changed, facts, request_of, run_to_the_end, served

pytestmark = pytest.mark.usefixtures("watchdog")


class Made:
    """Creates backends, and records them."""

    def __init__(self, size: int = 8) -> None:
        self.backends: list[TableBackend] = []
        self.size = size

    def __call__(self) -> TableBackend:
        self.backends.append(TableBackend(self.size))
        return self.backends[-1]


def requests_of(caller: int, count: int = 3) -> list[Request]:
    return [request_of(i, random_law(i, count=4), seed=caller) for i in range(count)]


def alone(caller: int, count: int = 3) -> list[tuple[Any, ...]]:
    return [facts(outcome) for outcome in served(requests_of(caller, count))]


def endless() -> list[Request]:
    return [request_of(0, random_law(0, count=1_000_000), Length(min=99), budget=Budget(max_attempts=None))]


def got(batches: Batches, made: Callable[[], Any], requests: Any, window: int = 8) -> list[Outcome]:
    return [outcome for _, outcome in batches.serve("model", made, requests, window=window)]


async def agot(batches: Batches, made: Callable[[], Any], requests: Any, window: int = 8) -> list[Outcome]:
    return [outcome async for _, outcome in batches.aserve("model", made, requests, window=window)]


def until(true: Callable[[], Any]) -> None:
    event = threading.Event()
    while not true():
        event.wait(0.001)


@contextmanager
def kept_open(batches: Batches, made: Made) -> Iterator[None]:
    """Keep a batch busy with an endless request of another thread."""
    leaving = threading.Event()

    async def stay() -> None:
        task = asyncio.create_task(agot(batches, made, endless()))
        await asyncio.to_thread(leaving.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    thread = threading.Thread(target=lambda: asyncio.run(stay()))
    thread.start()
    until(lambda: made.backends and made.backends[0].attempts)
    try:
        yield
    finally:
        leaving.set()
        thread.join()


def test_one_caller_drives_itself() -> None:
    threads = threading.active_count()
    batches, made = Batches(), Made()
    for _, outcome in batches.serve("model", made, requests_of(1), window=8):
        assert outcome.ok
        assert threading.active_count() == threads
    assert len(made.backends) == 1
    assert batches._open == {}


def test_threads_share_a_batch_and_get_what_they_get_alone() -> None:
    batches, made = Batches(), Made()
    with kept_open(batches, made), ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda caller: got(batches, made, requests_of(caller)), range(8)))
    assert [[facts(outcome) for outcome in each] for each in results] == [alone(caller) for caller in range(8)]
    assert len(made.backends) == 1
    assert batches._open == {}


def test_whoever_drives_hands_over_to_the_batch() -> None:
    """A caller that started alone ends while another one, which joined later, is served."""
    batches, made = Batches(), Made()
    came, results = threading.Event(), []

    def slowly() -> Iterator[Request]:
        for i, request in enumerate(requests_of(1, 30)):
            if i == 5:
                thread.start()
                came.wait(5)
            yield request

    def other() -> None:
        came.set()
        results.append(got(batches, made, requests_of(2)))

    thread = threading.Thread(target=other)
    assert [facts(outcome) for outcome in got(batches, made, slowly(), window=2)] == alone(1, 30)
    thread.join()
    assert [facts(outcome) for outcome in results[0]] == alone(2)
    assert len(made.backends) == 1


def test_tasks_share_a_batch_and_get_what_they_get_alone() -> None:
    batches, made = Batches(), Made()

    async def all_of_them() -> list[list[Outcome]]:
        return await asyncio.gather(*(agot(batches, made, requests_of(caller)) for caller in range(8)))

    results = asyncio.run(all_of_them())
    assert [[facts(outcome) for outcome in each] for each in results] == [alone(caller) for caller in range(8)]
    assert len(made.backends) == 1
    assert batches._open == {}


def test_other_models_have_batches_of_their_own() -> None:
    batches, made, others = Batches(), Made(), Made()
    with kept_open(batches, made):
        outcomes = [outcome for _, outcome in batches.serve("another", others, requests_of(1), window=8)]
    assert [facts(outcome) for outcome in outcomes] == alone(1)
    assert len(others.backends) == 1


def test_a_cancelled_task_frees_its_rows_at_once() -> None:
    batches, made = Batches(), Made()

    async def run() -> list[Outcome]:
        task = asyncio.create_task(agot(batches, made, endless()))
        while not (made.backends and made.backends[0].attempts):
            await asyncio.sleep(0.001)
        other = asyncio.create_task(agot(batches, made, requests_of(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await other

    assert [facts(outcome) for outcome in asyncio.run(run())] == alone(1)
    until(lambda: not made.backends[0].attempts)
    until(lambda: not any(thread.name == "guardwrap-batch" for thread in threading.enumerate()))


@constraint
def crashes(text: str) -> bool:
    raise ZeroDivisionError(text)


def test_an_error_is_its_caller_s() -> None:
    batches, made = Batches(), Made()
    with kept_open(batches, made):
        broken = [request_of(0, random_law(0, count=2)), request_of(1, random_law(0), crashes, watched=False)]
        with ThreadPoolExecutor(2) as pool:
            failing = pool.submit(got, batches, made, broken)
            fine = pool.submit(got, batches, made, requests_of(2))
            with pytest.raises(CheckFailed) as caught:
                failing.result()
            assert [facts(outcome) for outcome in fine.result()] == alone(2)
    assert all(outcome.texts for outcome in caught.value.outcomes)


def test_a_prompt_that_cannot_be_taken_is_its_caller_s() -> None:
    def coming() -> Iterator[Request]:
        yield request_of(0, random_law(0))
        raise KeyError("of the user")

    batches, made = Batches(), Made()
    with kept_open(batches, made):
        mine = batches.serve("model", made, coming(), window=4)
        assert next(mine)[1].ok
        with pytest.raises(KeyError, match="of the user"):
            next(mine)


def test_a_backend_that_breaks_ends_whom_it_served_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, made = Batches(), Made()

    async def run() -> None:
        victim = asyncio.create_task(agot(batches, made, endless()))
        while not (made.backends and made.backends[0].attempts):
            await asyncio.sleep(0.001)
        with monkeypatch.context() as patch:

            def gone(self: TableBackend) -> int:
                raise ModelError("gone")

            patch.setattr(TableBackend, "advance", gone)
            with pytest.raises(ModelError, match="gone"):
                await victim

    asyncio.run(run())
    assert [facts(outcome) for outcome in got(batches, made, requests_of(2))] == alone(2)


def test_an_interrupt_is_its_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that joins while another one is interrupted gets all its texts."""
    batches, made, expected = Batches(), Made(), alone(2)
    advance, results = TableBackend.advance, list[Any]()
    thread = threading.Thread(target=lambda: results.append(got(batches, made, requests_of(2))))

    def interrupted(self: TableBackend) -> list[AttemptState]:
        if threading.current_thread() is threading.main_thread():
            thread.start()
            until(lambda: len(batches._open["model"]._calls) == 2)
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(TableBackend, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        got(batches, made, requests_of(1))
    thread.join()
    assert [facts(outcome) for outcome in results[0]] == expected


def test_who_fetches_nothing_takes_no_more_than_its_window() -> None:
    batches, made = Batches(), Made()
    with kept_open(batches, made):
        taken: list[Request] = []

        def coming() -> Iterator[Request]:
            for request in requests_of(1, 40):
                taken.append(request)
                yield request

        mine = batches.serve("model", made, coming(), window=4)
        next(mine)
        steps = made.backends[0].steps
        until(lambda: made.backends[0].steps > steps + 200)
        assert len(taken) <= 4 + 4
        assert len(list(mine)) == 39


def test_negative_control_noise_that_belongs_to_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [alone(caller) for caller in range(8)]
    shared = uniforms(0, 0, 0)
    monkeypatch.setattr(fixtures_table_backend, "uniforms", lambda *_: shared)
    batches, made = Batches(), Made()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda caller: got(batches, made, requests_of(caller)), range(8)))
    assert [[facts(outcome) for outcome in each] for each in results] != expected


def test_a_function_that_does_not_return_holds_up_its_own_requests_only() -> None:
    batches, made, released = Batches(), Made(), threading.Event()

    @constraint
    def hangs(text: str) -> bool:
        return released.wait(30)

    def hanging() -> list[Request]:
        return [request_of(0, random_law(0), hangs, watched=False)]

    with kept_open(batches, made), ThreadPoolExecutor(3) as pool:
        first = pool.submit(got, batches, made, hanging())
        same = pool.submit(got, batches, made, hanging())  # behind the first one, or judged with it
        fine = [pool.submit(got, batches, made, requests_of(caller)) for caller in (1, 2)]
        assert [[facts(outcome) for outcome in each.result()] for each in fine] == [alone(1), alone(2)]
        assert not first.done()
        assert not same.done()
        released.set()
        assert all(outcome.ok for each in (first, same) for outcome in each.result())


def test_others_go_on_while_a_function_judges() -> None:
    """A user's function that waits for other callers' texts gets them."""
    batches, made, others = Batches(), Made(), threading.Event()

    @constraint
    def waits(text: str) -> bool:
        assert others.wait(10)
        return "a" in text

    with kept_open(batches, made), ThreadPoolExecutor(2) as pool:
        slow = pool.submit(got, batches, made, [request_of(0, random_law(0, count=3), waits, watched=False, seed=5)])
        assert [facts(outcome) for outcome in got(batches, made, requests_of(2))] == alone(2)
        others.set()
        assert [facts(outcome) for outcome in slow.result()] == [
            facts(outcome) for outcome in served([request_of(0, random_law(0, count=3), waits, watched=False, seed=5)])
        ]


def test_who_leaves_in_the_middle_of_a_step_is_counted_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, made, told = Batches(), Made(), list[bool]()
    inside, released, advance = threading.Event(), threading.Event(), TableBackend.advance

    def slowly(self: TableBackend) -> list[AttemptState]:
        inside.set()
        released.wait()
        return advance(self)

    monkeypatch.setattr(TableBackend, "advance", slowly)

    async def run() -> None:
        served = batches.aserve("model", made, endless(), window=8, on_busy=told.append)
        task = asyncio.create_task(anext(served))
        await asyncio.to_thread(inside.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == [True], "a thread still computes for it"
        released.set()
        while len(told) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert told == [True, False]


def test_who_leaves_while_a_text_is_judged_aside_is_counted_until_its_end() -> None:
    batches, made, told = Batches(), Made(), list[bool]()
    inside, released = threading.Event(), threading.Event()

    @constraint
    def hangs(text: str) -> bool:
        inside.set()
        return released.wait(10)

    async def run() -> None:
        requests = [request_of(0, random_law(0), hangs, watched=False)]
        served = batches.aserve("model", made, requests, window=8, on_busy=told.append)
        task = asyncio.create_task(anext(served))
        await asyncio.to_thread(inside.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await agot(batches, made, requests_of(1))  # many steps
        assert told == [True], "a thread still computes for it"
        released.set()
        while len(told) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert told == [True, False]


@dataclass(frozen=True)
class Costly(Constraint):
    """Forbids b; called with many texts at once, like a classifier."""

    number: int = 0
    seen: list[int] = field(default_factory=list, kw_only=True, repr=False, compare=False)
    cost = 2

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        self.seen.append(len(draws))
        return ["b" not in draw.text for draw in draws]


def test_who_waits_for_company_does_not_wait_for_another_caller() -> None:
    """Judging does not wait for other callers' attempts, which may never end."""
    batches, made = Batches(), Made()
    with kept_open(batches, made):
        mine = got(batches, made, [request_of(0, random_law(0), Costly(), watched=False)])
    assert [facts(outcome)[:3] for outcome in mine] == [
        facts(outcome)[:3] for outcome in served([request_of(0, random_law(0), Costly(), watched=False)])
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_costly_parts_judge_the_texts_of_all_requests_together(shared: bool) -> None:
    one = Costly()
    rules = [(one if shared else Costly(i)) & Length(max=5 + i % 3) for i in range(8)]
    requests = [request_of(i, random_law(i, count=2), rule, watched=False) for i, rule in enumerate(rules)]
    expected = [facts(served([request], 1)[0]) for request in requests]
    for rule in rules:
        next(part for part in rule.parts if isinstance(part, Costly)).seen.clear()
    scheduler = Scheduler(TableBackend(64))
    for request in requests:
        scheduler.add(RequestStream([request], 1))
    ended = {each.request: facts(each.outcome) for each in run_to_the_end(scheduler)}
    assert [ended[request] for request in requests] == expected
    seen = [size for rule in rules for part in rule.parts if isinstance(part, Costly) for size in part.seen]
    assert (max(seen) >= 6) is shared


@pytest.mark.parametrize("slots", [1, 64])
def test_reports_count_the_texts_that_expensive_parts_judged(slots: int) -> None:
    class Slow(Costly):
        def check(self, draws: Sequence[Draw], /) -> list[bool]:
            time.sleep(0.001)
            return super().check(draws)

    first, second = Costly(1), Slow(2)
    rules = [first & second & Length(max=5), Length(max=5)]
    requests = [request_of(i, random_law(i, count=20), rule, watched=False) for i, rule in enumerate(rules)]
    judged, plain = (outcome.report for outcome in served(requests, slots))
    assert sum(first.seen) > sum(second.seen) >= 20
    judgements = sum(first.seen) + sum(second.seen)
    assert judged.usage.model_checks == judgements
    assert judged.usage.model_seconds > 0.001
    assert f"models judged {judgements} texts, " in str(judged)
    assert (plain.usage.model_checks, plain.usage.model_seconds) == (0, 0.0)
    assert "models judged" not in str(plain)


@pytest.mark.slow
def test_a_process_may_end_while_a_batch_runs() -> None:
    """A thread that the interpreter stops in the middle of torch's code would abort the process."""
    signal.alarm(120)  # importing torch takes long on a busy machine
    script = (
        "import threading, time\n"
        "from guardwrap import Budget, GuardedGenerator, Keyword\n"
        "from guardwrap.testing import llama_world\n"
        "import torch\n"
        "world, large = llama_world(), torch.ones(800, 800)\n"
        "world.model.register_forward_pre_hook(lambda *_: (large @ large, None)[1])\n"
        "guarded = GuardedGenerator(world.pipeline(), Keyword('a'), budget=Budget(max_attempts=None))\n"
        "call = lambda: guarded.run(world.prompt, num_return_sequences=10**6, **world.settings)\n"
        "for _ in range(2): threading.Thread(target=call, daemon=True).start()\n"
        "while not any(thread.name == 'guardwrap-batch' for thread in threading.enumerate()): time.sleep(0.01)\n"
        "time.sleep(0.2)\n"
    )
    quiet = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=quiet)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_the_end_of_a_process_waits_for_a_search(waits: bool) -> None:
    """A request may end by its timeout while a search for it runs the model. Negative control: it is not waited for."""
    signal.alarm(120)  # importing torch takes long on a busy machine
    script = (
        "import atexit, threading, time\n"
        "import torch\n"
        "from guardwrap.support.threads import wait_for_threads\n"
        "from guardwrap.engine.scheduling import judging\n"
        f"if not {waits}: atexit.unregister(wait_for_threads)\n"
        "begun, large = threading.Event(), torch.ones(500, 500)\n"
        "def look():\n"
        "    begun.set()\n"
        "    end = time.monotonic() + 2\n"
        "    while time.monotonic() < end: large @ large\n"
        "    print('complete', flush=True)\n"
        "judging.CheckerPool().search('a request', look)\n"
        "begun.wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == ("complete\n" if waits else "")
    assert not waits or (ended.returncode, ended.stderr) == (0, "")


def test_texts_are_told_when_they_are_accepted_in_their_order() -> None:
    told: list[tuple[int, Any]] = []
    made = [changed(request, on_text=lambda *text: told.append(text)) for request in requests_of(1, 3)]
    outcomes = got(Batches(), Made(), made)
    assert [facts(outcome) for outcome in outcomes] == alone(1, 3)  # the callback has no effect on them
    assert len(told) == 12
    for number, outcome in enumerate(outcomes):
        assert [draw for its, draw in told if its == number] == list(outcome.draws)


def test_a_text_is_told_before_the_others_are_there() -> None:
    batches, made = Batches(), Made()
    told = threading.Event()
    law, budget = random_law(0, count=1_000_000), Budget(max_attempts=None)
    never = request_of(0, law, budget=budget, on_text=lambda *_: told.set())

    async def until_told() -> None:
        task = asyncio.create_task(agot(batches, made, [never]))
        assert await asyncio.to_thread(told.wait, 10)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(until_told())


def test_rows_that_are_busy_are_counted() -> None:
    batches, made = Batches(), Made()
    assert batches.rows == 0
    with kept_open(batches, made):
        until(lambda: batches.rows > 0)
        assert batches.rows <= made.size
    assert batches.rows == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda batches: pickle.loads(pickle.dumps(batches))])
def test_a_copy_begins_without_callers(copied: Callable[[Batches], Batches]) -> None:
    """Wrappers are copied together with objects that contain them."""
    batches, made = Batches(), Made()
    with kept_open(batches, made):
        other = copied(batches)
        assert other.rows == 0
        assert [facts(outcome) for outcome in got(other, Made(), requests_of(1))] == alone(1)
