"""What a request may do in one step while others wait, measured with a simulated clock."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from guardwrap import Budget, CheckFailed, JSONSchema, Regex, Verdict, constraint
from guardwrap.constraints.checking import judge, run_check
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.engine.scheduling import all_rejected
from guardwrap.engine.scheduling.batch import Batches
from guardwrap.engine.scheduling.step_allowance import (
    EACH_STEP,
    SAVED,
    SHARE,
    AllowedMask,
    StepAllowance,
    allowed_watch,
)
from guardwrap.outcomes import Draw
from guardwrap.support import time_limits
from guardwrap.support.time_limits import CHECK_SECONDS, StepOver, check_deadline, step_limit
from tests.engine.scheduling.fixtures_table_backend import random_law
from tests.engine.scheduling.test_batch import Made, alone, got, kept_open, requests_of
from tests.engine.scheduling.test_isolation import MadeMasking
from tests.engine.scheduling.test_scheduler import facts, request_of, served

pytestmark = pytest.mark.usefixtures("watchdog")


@dataclass
class Cpu(threading.local):
    """The processor seconds of each thread."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Cpu:
    made = Cpu()
    monkeypatch.setattr(time_limits, "now", made)
    return made


@dataclass(frozen=True, eq=False, repr=False)
class Slow(TextConstraint):
    """Takes a given time per text, and checks the clock now and then, like guardwrap's own constraints."""

    cpu: Cpu
    seconds: float = 1.9
    threads: list[str] = field(default_factory=list)
    on = "completion"
    _looks = True

    def spec(self) -> dict[str, Any]:
        return {"kind": "slow", "id": id(self)}

    def holds(self, text: str) -> bool:
        self.threads.append(threading.current_thread().name)
        for _ in range(100):
            self.cpu.now += self.seconds / 100
            check_deadline()
        return True


class LooksAtEach:
    """A mask that judges each candidate as a whole text, almost up to the time limit of one text."""

    impossible = False
    beyond = False
    dead_end = None
    notes = ()

    def __init__(self, rule: Slow) -> None:
        self.rule = rule

    def left_out(self, token_ids: Sequence[int], tokens: Any, shares: Any, *, beyond: bool = False) -> Any:
        return np.array(self.dead(token_ids, tokens.tolist()))

    def close(self, token_ids: Sequence[int]) -> None:
        pass

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        return [not each.satisfied for each in judge(self.rule, [Draw("", (i,), str(i)) for i in candidates])]


def test_a_mask_that_judges_a_thousand_candidates_is_given_up_in_one_step(cpu: Cpu) -> None:
    rule, allowance = Slow(cpu), StepAllowance()
    mask = AllowedMask(LooksAtEach(rule), allowance)
    allowance.begin(0.0, limited=True)
    began = cpu.now
    for _ in range(32):  # as often as there are attempts, each with all of its next tokens
        assert not mask.left_out([], np.arange(1_000), np.full(1_000, 1e-3)).any()
    assert cpu.now - began <= EACH_STEP + SAVED + rule.seconds / 100
    assert len(rule.threads) == 1
    assert allowance.given_up == 32


def test_alone_a_mask_has_its_time(cpu: Cpu) -> None:
    """The negative control too: this is what a step took beside others."""
    rule, allowance = Slow(cpu), StepAllowance()
    allowance.begin(0.0, limited=False)
    AllowedMask(LooksAtEach(rule), allowance).left_out([], np.arange(32), np.full(32, 1 / 32))
    assert len(rule.threads) == 32
    assert cpu.now >= 32 * 1.9 - 1e-6
    assert allowance.given_up == 0


def test_what_is_saved_is_used_once_and_grows_with_time(cpu: Cpu) -> None:
    allowance = StepAllowance()
    allowance.begin(0.0, limited=True)
    assert allowance.left == pytest.approx(EACH_STEP + SAVED)
    with allowance.spent():
        cpu.now += SAVED
    assert allowance.left == pytest.approx(EACH_STEP)
    allowance.begin(0.5, limited=True)
    assert allowance.left == pytest.approx(EACH_STEP + EACH_STEP + SHARE * 0.5)
    allowance.begin(100.0, limited=True)
    assert allowance.left == pytest.approx(EACH_STEP + SAVED)
    with allowance.spent():
        cpu.now += 9
    allowance.begin(100.0, limited=True)
    assert allowance.left == pytest.approx(EACH_STEP)  # time used beyond the allowance is not carried over as a debt
    with allowance.spent():
        cpu.now += EACH_STEP
    with pytest.raises(StepOver):
        allowance.spent()


def test_a_watch_is_undecided_where_nothing_is_left(cpu: Cpu) -> None:
    asked: list[Any] = []

    def watch(grown: Any) -> str:
        asked.append(grown)
        cpu.now += 1.0
        check_deadline()
        return "violated"

    allowance = StepAllowance()
    watched = allowed_watch(watch, allowance)
    allowance.begin(0.0, limited=True)
    assert [watched(i) for i in range(5)] == [None] * 5
    assert asked == [0]
    allowance.begin(0.0, limited=False)
    assert watched(5) == "violated"


def test_the_limit_of_a_text_is_no_way_around_that_of_a_step(cpu: Cpu) -> None:
    rule = Slow(cpu)
    with step_limit(0.1), pytest.raises(StepOver):
        run_check(rule, [Draw("", (), "")])
    assert cpu.now < 0.2
    with pytest.raises(CheckFailed, match=r"took more than|was running when"):  # over its own limit
        run_check(Slow(cpu, CHECK_SECONDS + 1), [Draw("", (), "")])


def test_a_slow_judgement_goes_aside_and_others_go_on(cpu: Cpu) -> None:
    batches, made = Batches(), Made()
    rule = Slow(cpu)
    requests = [request_of(0, random_law(0, count=3), rule, watched=False, seed=4)]
    with kept_open(batches, made), ThreadPoolExecutor(1) as pool:
        slow = pool.submit(got, batches, made, requests)
        assert [facts(outcome) for outcome in got(batches, made, requests_of(1))] == alone(1)
        outcomes = slow.result()
    assert rule.threads.count("guardwrap-batch") == 1, "it was judged between two steps again"
    assert rule.threads.count("guardwrap-judge") >= 3
    alike = served([request_of(0, random_law(0, count=3), Slow(cpu), watched=False, seed=4)])
    assert [outcome.texts for outcome in outcomes] == [outcome.texts for outcome in alike]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_prefix_function_that_hangs_is_undecided_and_has_one_thread(held: threading.Event) -> None:
    calls: list[str] = []

    def prefix(text: str) -> Verdict:
        calls.append(text)
        held.wait(10)
        return Verdict.VIOLATED

    @constraint(prefix=prefix)
    def rule(text: str) -> bool:
        return True

    reader = PrefixReader(rule)
    for _ in range(5):
        with step_limit(0.02):
            assert reader.read(reader.start, "a").blame is None
            assert reader.violated(reader.start, ["b", "c"]) == [False, False]
    assert len(calls) == 1
    held.set()
    while any(thread.name == "guardwrap-apart" for thread in threading.enumerate()):
        time.sleep(0.001)
    with step_limit(10):
        assert reader.read(reader.start, "a").blame == "rule"
    assert reader.read(reader.start, "a").blame == "rule"  # and in the caller's own thread, where it is alone


def test_a_prefix_function_that_hangs_holds_no_lock_of_others(held: threading.Event) -> None:
    def hanging(text: str) -> Verdict:
        held.wait(10)
        return Verdict.UNDECIDED

    @constraint(prefix=hanging)
    def hangs(text: str) -> bool:
        return True

    @constraint(prefix=lambda text: Verdict.VIOLATED)
    def other(text: str) -> bool:
        return True

    for rule in (hangs, hangs & hangs, hangs | hangs):
        with step_limit(0.02):
            PrefixReader(rule).read(PrefixReader(rule).start, "a")
    for rule in (other, other | other):
        assert PrefixReader(rule).read(PrefixReader(rule).start, "a").blame is not None


def test_pydantic_validators_are_judged_aside() -> None:
    """They count as the user's code wherever in a rule they are."""
    typed, plain = JSONSchema(list[int]), JSONSchema({"type": "array"})
    for rule in (typed, ~typed, typed | Regex("a")):
        assert request_of(0, random_law(0), rule).runs_code
    assert not request_of(0, random_law(0), plain | Regex("a")).runs_code


def test_what_may_be_skipped_is_looked_for_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rejected, "FIRST", 8)
    threads: list[str] = []

    class Noted:
        unseen = 0.0

        def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
            threads.append(threading.current_thread().name)
            return [False] * len(candidates)

    never = Regex("zzz")
    batches, made = Batches(), MadeMasking()
    budget = Budget(max_attempts=30)
    with kept_open(batches, made):
        got(batches, made, [request_of(0, random_law(0), never, watched=False, lookahead=Noted(), budget=budget)])
    assert set(threads) == {"guardwrap-judge"}


def test_a_match_that_regex_ends_early_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`regex` counts the time of all threads, so a text could exceed the limit only because others compute."""
    timeouts: list[float] = []
    monkeypatch.setattr(time, "process_time", lambda: sum(timeouts))  # another thread computes in the meantime

    def match(text: str, timeout: float) -> str:
        timeouts.append(timeout)
        if len(timeouts) < 3:
            raise TimeoutError
        return "matched"

    assert time_limits.within(match, "a", most=1.0) == "matched"
    assert timeouts == [1.0, 2.0, 4.0]


def test_a_match_that_takes_too_long_itself_does_not(cpu: Cpu) -> None:
    def match(text: str, timeout: float) -> str:
        cpu.now += 1.0
        raise TimeoutError

    with pytest.raises(time_limits.TimeLimit):
        time_limits.within(match, "a", most=1.0)
    assert cpu.now == 1.0
