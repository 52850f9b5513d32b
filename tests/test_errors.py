"""Errors go from one process to another as themselves, and leave behind what must not get out."""

import concurrent.futures
import copy
import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from guardwrap import Constraint, GuardedGenerator, Regex, errors
from guardwrap.budget import Budget
from guardwrap.outcomes import EXACT, Draw, Estimate, Outcome, Report, Usage

SECRET = "a text that was not checked"

OUTCOME = Outcome(
    prompt=[{"role": "user", "content": "Hi"}],
    texts=("yes",),
    draws=(Draw("Hi", (1, 2), "yes", log_proposal=-1.5),),
    report=Report(
        distribution=EXACT,
        sampler="rejection",
        seed=1,
        requested=2,
        accepted=1,
        ended="max_attempts",
        usage=Usage(attempts=5),
        budget=Budget(max_attempts=5),
        acceptance=Estimate(0.2, 0.1, 0.4),
        rejected={"short": 4},
        constraint="0" * 64,
    ),
)


def pickled(error: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))


WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
WAYS += [partial(pickled, protocol=n) for n in range(pickle.HIGHEST_PROTOCOL + 1)]

# Those that are not made of one message.
ARGUMENTS: dict[type[errors.GuardwrapError], tuple[Any, ...]] = {
    errors.UnknownName: ("sampler", "qsr", ["imh", "qrs"]),
    errors.NoAcceptance: (7,),
    errors.CheckFailed: ("short", "raised ValueError", ValueError(SECRET)),
    errors.GenerationFailed: ("it ended", [OUTCOME]),
    errors.Deterministic: ("greedy", [OUTCOME]),
    errors.BudgetExhausted: ([OUTCOME],),
}


def tree(kind: type[errors.GuardwrapError] = errors.GuardwrapError) -> list[type[errors.GuardwrapError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]


def raised(kind: type[errors.GuardwrapError]) -> errors.GuardwrapError:
    """An error as it is caught: raised while another one, which quotes a text, was handled."""
    try:
        try:
            raise ValueError(SECRET)
        except ValueError:
            raise kind(*ARGUMENTS.get(kind, ("what happened",))) from None
    except errors.GuardwrapError as error:
        error.outcomes = (OUTCOME, *error.outcomes)
        error.add_note("said by the caller")
        return error


def known(error: errors.GuardwrapError) -> dict[str, Any]:
    return {"str": str(error), "args": error.args} | {k: v for k, v in vars(error).items() if k not in {"original"}}


def throw(kind: type[errors.GuardwrapError]) -> None:
    raise raised(kind)


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_an_error_is_copied_as_itself_without_unchecked_text(kind: type[errors.GuardwrapError]) -> None:
    error = raised(kind)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert SECRET.encode() not in pickle.dumps(error, protocol)
    for way in WAYS:
        other = way(error)
        assert type(other) is kind
        assert known(other) == known(error)
        assert getattr(other, "original", None) is None
        assert other.__context__ is None
        assert other.__cause__ is None
        assert other.outcomes == error.outcomes


def test_the_original_is_there_until_it_is_copied() -> None:
    assert isinstance(raised(errors.CheckFailed).original, ValueError)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_pool_of_processes_gives_errors_back() -> None:
    """A pool that cannot read what a worker raised is broken: it raises BrokenProcessPool, or hangs."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        for kind in tree():
            with pytest.raises(kind) as caught:
                pool.submit(throw, kind).result(timeout=60)
            assert type(caught.value) is kind
            assert known(caught.value) == known(raised(kind))
            assert SECRET not in str(caught.value.__cause__)  # the worker's traceback


def test_only_arguments_that_have_no_place_are_refused() -> None:
    @errors.strict_arguments
    def exact(a: int, /, b: int = 2, *, c: int = 3) -> tuple[int, ...]:
        return a, b, c

    @errors.strict_arguments
    def any_number(*given: int, **options: int) -> tuple[int, ...]:
        return (*given, *options.values())

    class Words(Constraint):
        def __init__(self, *words: str) -> None:
            self.words = words

        def check(self, draws: Sequence[Draw], /) -> list[bool]:
            return [draw.text in self.words for draw in draws]

    assert exact(1, 5, c=4) == (1, 5, 4)
    assert any_number(1, 2, 3, x=4) == (1, 2, 3, 4)
    assert Words("a", "b", "c").words == ("a", "b", "c")
    given: list[int] = [1, 2, 3]
    with pytest.raises(errors.UsageError, match=r"exact takes 2 .* not 3; write .*exact\(a, b, c=...\)$"):
        exact(*given)
    with pytest.raises(errors.UsageError, match=r"takes no argument without a name, not 3; leave them out$"):
        errors.strict_arguments(lambda: None)(*given)


def test_a_removed_option_says_what_to_do_instead() -> None:
    with pytest.raises(errors.UsageError, match=r"no option 'cache' .*keep the outcomes yourself"):
        GuardedGenerator("local", ~Regex("a"), cache="answers.sqlite")  # type: ignore[call-arg]
