"""Many callers of one wrapper: threads and tasks share a batch, and each gets the texts that it would get alone."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guardwrap import Budget, Fallback, GuardedGenerator, Keyword, Masked, Prompt, Regex, qrs
from guardwrap.constraints import constraint
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.errors import CheckFailed, UsageError
from guardwrap.outcomes import Outcome
from guardwrap.testing import World

pytestmark = pytest.mark.usefixtures("watchdog")

WISHES: list[dict[str, Any]] = [
    {"constraints": Regex("b")},
    {"constraints": ~Regex("c"), "num_return_sequences": 3},
    {"constraints": Keyword("d", whole_words=False) & ~Regex("^d"), "num_return_sequences": 2},
    {"constraints": Regex("e"), "sampler": "imh"},
    {"constraints": Regex("a"), "sampler": qrs(target_tvd=0.3, pilot=20), "proposal": Prompt("a{prompt}"), "top_k": 0},
    {"constraints": Regex("f"), "proposal": Masked()},
    {"constraints": ~Regex("."), "budget": Budget(max_attempts=40)},
    {"constraints": Regex("b.*b"), "budget": Budget(max_tokens=300)},
]


def guarded_of(world: World, **options: Any) -> GuardedGenerator:
    settings = {"budget": Budget(max_attempts=20_000), "batch_size": 8, "on_exhausted": "none", **options}
    return GuardedGenerator(world.pipeline(), Regex("a"), **settings)


def asked(world: World, caller: int) -> dict[str, Any]:
    return {**world.settings, **WISHES[caller % len(WISHES)], "seed": caller}


def facts(outcomes: list[Outcome]) -> list[Any]:
    found = []
    for outcome in outcomes:
        use = outcome.report.usage
        found.append((outcome.texts, outcome.report.ended, use.attempts, use.tokens, dict(outcome.report.rejections)))
    return found


@pytest.fixture(scope="module")
def alone(world: World) -> list[list[Any]]:
    guarded = guarded_of(world)
    return [facts(guarded.run(["a", "cb"], **asked(world, caller))) for caller in range(8)]


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[RefillBackend]:
    """Collect the batches made while the test runs."""
    made: list[RefillBackend] = []
    original = RefillBackend.__init__

    def counted(self: RefillBackend, *args: Any) -> None:
        made.append(self)
        original(self, *args)

    monkeypatch.setattr(RefillBackend, "__init__", counted)
    return made


def endless(guarded: GuardedGenerator, world: World) -> asyncio.Task[Any]:
    settings = {**world.settings, "budget": Budget(max_attempts=None), "num_return_sequences": 1_000_000}
    return asyncio.create_task(guarded.arun("a", constraints=Keyword("a"), seed=0, **settings))


def beside_an_endless_call(guarded: GuardedGenerator, world: World, made: list[Any], work: Callable[[], Any]) -> Any:
    """Run blocking work in another thread while a task keeps the batch busy."""

    async def run() -> Any:
        task = endless(guarded, world)
        while not made or not made[0].running:
            await asyncio.sleep(0.001)
        result = await asyncio.to_thread(work)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return result

    return asyncio.run(run())


@pytest.mark.slow
def test_threads_share_one_batch(world: World, alone: list[Any], backends: list[RefillBackend]) -> None:
    guarded = guarded_of(world)

    def work() -> list[Any]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda caller: facts(guarded.run(["a", "cb"], **asked(world, caller))), range(8)))

    assert beside_an_endless_call(guarded, world, backends, work) == alone
    assert len(backends) == 1
    while backends[0].running:  # the thread of the batch ends after its last caller
        threading.Event().wait(0.001)


@pytest.mark.slow
def test_tasks_share_one_batch(world: World, alone: list[Any], backends: list[RefillBackend]) -> None:
    guarded = guarded_of(world)

    async def run() -> list[Any]:
        calls = (guarded.arun(["a", "cb"], **asked(world, caller)) for caller in range(8))
        return [facts(outcomes) for outcomes in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == alone
    assert len(backends) <= 2  # the first caller may be done before the last one arrives


@pytest.mark.slow
def test_negative_control_seeds_that_belong_to_the_wrapper(world: World, alone: list[Any]) -> None:
    """Without its own seed, a call's texts depend on the number of calls before it."""
    guarded = guarded_of(world, seed=1)

    async def run() -> list[Any]:
        calls = (guarded.arun(["a", "cb"], **{**asked(world, caller), "seed": None}) for caller in reversed(range(8)))
        return [facts(outcomes) for outcomes in await asyncio.gather(*calls)][::-1]

    assert asyncio.run(run()) != alone


def test_a_stream_of_outcomes_is_in_order(world: World) -> None:
    guarded = guarded_of(world)
    prompts = ["a", "b", "c", "d"] * 3
    settings = {**world.settings, "constraints": Regex("e|^a"), "seed": 4}

    async def run() -> list[Outcome]:
        return [outcome async for outcome in guarded.astream(prompts, **settings)]

    outcomes = asyncio.run(run())
    assert [outcome.prompt for outcome in outcomes] == prompts
    assert facts(outcomes) == facts(guarded.run(prompts, **settings))


def test_who_stops_listening_leaves_the_batch(world: World, backends: list[RefillBackend]) -> None:
    guarded = guarded_of(world)

    async def run() -> None:
        settings = {**world.settings, "budget": Budget(max_attempts=None)}
        stream = guarded.astream(["a"] * 1000, constraints=Regex("e"), seed=4, **settings)
        async for _ in stream:
            break
        await stream.aclose()
        while backends[0].running:
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert guarded.session.batches._open == {}


def test_an_event_loop_goes_on_meanwhile(world: World) -> None:
    guarded, ticks = guarded_of(world), 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def run() -> None:
        ticking = asyncio.create_task(tick())
        await guarded.arun(["a"] * 8, constraints=Regex("e"), seed=4, **world.settings)
        ticking.cancel()

    asyncio.run(run())
    assert ticks > 50


def test_errors_and_fallbacks_are_those_of_a_call(world: World) -> None:
    @constraint
    def breaks(text: str) -> bool:
        raise ZeroDivisionError

    guarded = guarded_of(world, on_exhausted=Fallback("abba"))

    async def run() -> None:
        fine = asyncio.create_task(guarded.arun("a", constraints=Regex("b"), seed=1, **world.settings))
        with pytest.raises(CheckFailed, match="breaks"):
            await guarded.arun(["a", "b"], constraints=breaks, **world.settings)
        with pytest.raises(UsageError, match="temperatur"):
            await guarded.arun("a", temperatur=1.0)
        with pytest.raises(UsageError, match=r"pass a list, or use stream\(\)"):
            await guarded.arun(iter(["a"]))
        (outcome,) = await guarded.arun("a", constraints=Regex("abba"), budget=Budget(max_attempts=1), **world.settings)
        assert outcome.texts == ("abba",)
        assert (await fine)[0].ok

    asyncio.run(run())


def test_prompts_of_a_generator_have_a_batch_of_their_own(world: World, backends: list[RefillBackend]) -> None:
    """Waiting for their next prompt does not block other callers."""
    guarded, came = guarded_of(world), threading.Event()

    def prompts() -> Any:
        yield "a"
        assert came.wait(10)
        yield "b"

    def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(lambda: list(guarded.stream(prompts(), constraints=Regex("b"), **world.settings)))
            assert guarded.run("a", constraints=Regex("b"), **world.settings)[0].ok
            came.set()
            assert all(outcome.ok for outcome in waits.result())

    beside_an_endless_call(guarded, world, backends, work)
    assert len(backends) == 2
