"""Users' functions: what they may return, what they may raise, and what errors reveal."""

from __future__ import annotations

import functools
import subprocess
import sys
import traceback
from typing import Any

import numpy as np
import pytest

from guardwrap.constraints import All, Constraint, Keyword, Python, TextConstraint, Verdict, constraint
from guardwrap.constraints.checking import judge, run_check, run_verdict
from guardwrap.constraints.files.constraint_file import as_constraint_file
from guardwrap.constraints.views import Part
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.outcomes import Draw

SECRET = "the text that must not leak"
DRAW = Draw(prompt="prompt", token_ids=(), text=SECRET)


def is_upper(text):
    return text.isupper()


def upper_prefix(prefix):
    return Verdict.VIOLATED if any(char.islower() for char in prefix) else Verdict.UNDECIDED


@constraint
def decorated(text):
    return text == text[::-1]


@constraint(batched=True, name="same length", on="lines")
def batched(texts):
    return np.array([len(text) == 3 for text in texts])


def test_decorator():
    assert isinstance(decorated, Python)
    assert decorated.accepts("level")
    assert not decorated.accepts("levels")
    assert decorated.title == "decorated"
    assert not decorated.in_memory
    assert batched.title == "same length"
    assert batched.check([Draw("", (), text) for text in ("abc\nabc", "abc\na", "")]) == [True, False, False]


def test_names():
    assert Python(is_upper) == Python(f"{__name__}:is_upper")
    assert Python(is_upper).digest == Python(is_upper, name="shouting").digest
    assert Python(is_upper) != Python(is_upper, prefix=upper_prefix)
    assert Python(is_upper, prefix=upper_prefix) == Python(is_upper, prefix=f"{__name__}:upper_prefix")
    assert decorated == Python(f"{__name__}:decorated")
    assert Python(f"{__name__}:decorated").accepts("level")


class Judge:
    def __call__(self, text):
        return text.isupper()

    def method(self, text):
        return text.isupper()

    @staticmethod
    def static(text):
        return text.isupper()


@pytest.mark.parametrize(
    "function", [lambda text: True, Judge(), Judge().method, functools.partial(is_upper), Judge().__call__]
)
def test_objects_in_memory(function):
    made = Python(function)
    assert made.in_memory
    assert made.digest == made.digest
    assert made != Python(function)
    assert made.accepts("A")


def test_static_methods_have_names():
    assert not Python(Judge.static).in_memory
    assert Python(f"{__name__}:Judge.static").accepts("A")


def test_prefix_function():
    made = Python(is_upper, prefix=upper_prefix)
    assert made.verdict("Ab") is Verdict.VIOLATED
    assert made.verdict("AB") is Verdict.UNDECIDED
    assert Python(is_upper).verdict("Ab") is Verdict.UNDECIDED
    with pytest.raises(ConstraintError, match="requires on='completion'"):
        Python(is_upper, prefix=upper_prefix, on="lines")
    with pytest.raises(ConstraintError, match="batched must be true or false"):
        Python(is_upper, batched="no")  # type: ignore[arg-type]


def test_batched_gets_one_list():
    calls = []

    def function(texts):
        calls.append(texts)
        return [True] * len(texts)

    Python(function, batched=True, on="lines").check([Draw("", (), "a\nb"), Draw("", (), "c"), Draw("", (), "")])
    assert calls == [["a", "b", "c", ""]]


def test_batched_gets_no_empty_list():
    """Many functions fail on one; texts that lack the part are rejected without a call."""
    rule = Python(lambda texts: list(np.stack([len(text) > 0 for text in texts])), batched=True, on=Part(after="A:"))
    assert run_check(rule, [DRAW]) == [False]
    assert run_check(rule, [DRAW, Draw("", (), "A: b")]) == [False, True]


@pytest.mark.parametrize("value", [True, False, np.True_, np.bool_(False)])
def test_bools(value):
    (result,) = run_check(Python(lambda text: value), [DRAW])
    assert type(result) is bool
    assert result == value


@pytest.mark.parametrize(
    "value", [None, 1, 0, "yes", "", 1.0, [True], np.array([True, False]), object(), Verdict.SATISFIED]
)
def test_what_is_no_bool(value):
    for made in (Python(lambda text: value), Python(lambda texts: [value] * len(texts), batched=True)):
        with pytest.raises(CheckFailed, match=f"returned {type(value).__name__} instead of bool"):
            run_check(made, [DRAW])


@pytest.mark.parametrize("length", [0, 1, 3])
def test_wrong_number_of_results(length):
    with pytest.raises(CheckFailed, match=f"returned {length} results for 2 texts"):
        run_check(Python(lambda texts: [True] * length, batched=True), [DRAW, DRAW])


@pytest.mark.parametrize("value", [None, True, 5])
def test_batched_that_returns_no_list(value):
    with pytest.raises(CheckFailed, match="raised TypeError"):
        run_check(Python(lambda texts: value, batched=True), [DRAW])


@pytest.mark.parametrize("value", [None, -1, True, "VIOLATED"])
def test_prefix_function_that_returns_no_verdict(value):
    made = Python(is_upper, prefix=lambda prefix: value)
    for around in (made, ~made, made | Keyword("x"), All([made, Keyword("x")])):
        with pytest.raises(CheckFailed, match="instead of Verdict"):
            run_verdict(around, SECRET)


def crash(text):
    try:
        raise KeyError(text)
    except KeyError as error:
        raise RuntimeError(f"cannot judge {text!r}") from error


def batched_crash(texts):
    return [crash(text) for text in texts]


class Crashing(TextConstraint):
    on = "completion"
    title = "crashing"

    def holds(self, text):
        return crash(text)

    def prefix_verdict(self, prefix):
        return crash(prefix)


CRASHES = [
    *(Python(crash), Python(crash, on="lines"), Python(lambda text: crash(text), name="λ"), Crashing()),
    *(Python(batched_crash, batched=True), Python(lambda text: text + 1)),
]


@pytest.mark.parametrize("made", CRASHES)
@pytest.mark.parametrize(
    "wrap", [lambda c: c, lambda c: ~c, lambda c: All([c, Keyword("the")]), lambda c: c | Keyword("x")]
)
def test_a_crash_tells_nothing_of_the_text(made, wrap):
    around = wrap(made)
    ways = [lambda: run_check(around, [DRAW]), lambda: around.accepts(SECRET), lambda: judge(around, [DRAW])]
    ways += [lambda: run_verdict(around, SECRET)] if isinstance(made, Crashing) else []
    for way in ways:
        with pytest.raises(CheckFailed, match="raised") as caught:
            way()
        assert type(caught.value.original) in (RuntimeError, TypeError)
        assert made.title in str(caught.value)
        shown = "".join(traceback.format_exception(caught.value))
        assert SECRET not in shown
        assert "cannot judge" not in shown
        assert "KeyError" not in shown
        assert SECRET not in repr(caught.value)


def test_a_crash_is_no_rejection_for_any_and_not():
    with pytest.raises(CheckFailed):
        run_check(Keyword("absent") | Python(crash), [DRAW])
    with pytest.raises(CheckFailed):
        run_check(~Python(crash), [DRAW])
    # The expensive part is not asked about draws that are already decided.
    assert run_check(Keyword("text") | Python(crash), [DRAW]) == [True]
    assert run_check(Keyword("absent") & Python(crash), [DRAW]) == [False]


def test_what_is_not_an_error_passes():
    def stop(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_check(Python(stop), [DRAW])


class Short(Constraint):
    title = "short"

    def check(self, draws):
        return [True]


def test_a_constraint_that_returns_too_few():
    with pytest.raises(CheckFailed, match="returned 1 results for 2 texts"):
        run_check(Short(), [DRAW, DRAW])
    assert run_check(Short(), []) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_anywhere:f", "cannot find"),
        (f"{__name__}:no_such_function", "cannot find"),
        (f"{__name__}:SECRET", "is not a function"),
        ("os", "not of the form"),
        (":f", "cannot find"),
        ("os:", "not of the form"),
        (".os:f", "cannot find"),
    ],
)
def test_functions_that_do_not_exist(name, message):
    with pytest.raises(ConstraintError, match=message):
        Python(name).accepts("a")


@pytest.mark.parametrize("function", [None, 5, [], b"os:f"])
def test_what_is_no_function(function):
    with pytest.raises(ConstraintError, match="is not a function"):
        Python(function)


def test_a_plain_function_is_told_the_way():
    with pytest.raises(ConstraintError, match=r"write constraint\(function\)"):
        as_constraint_file([is_upper])
    with pytest.raises(ConstraintError, match=r"Keyword is not a constraint.*create a constraint with Keyword\(...\)"):
        as_constraint_file(Keyword)


def test_spelling_a_function_imports_nothing():
    code = (
        "import sys; from guardwrap.constraints import Python; c = Python('antigravity:f');"
        "c.digest, c.in_memory, repr(c);"
        "assert 'antigravity' not in sys.modules and 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_function_of_prompt_and_text() -> None:
    @constraint
    def quotes(prompt: str, text: str) -> bool:
        return text in prompt

    @constraint(batched=True)
    def all_quote(prompts: list[str], texts: list[str]) -> list[bool]:
        return [text in prompt for prompt, text in zip(prompts, texts, strict=True)]

    draws = [Draw("abc", (), text) for text in ("b", "d")]
    for rule in (quotes, all_quote):
        assert rule.check(draws) == [True, False]


@pytest.mark.parametrize("function", [lambda: True, lambda a, b, c: True, lambda text, *, other: True])
def test_a_function_that_cannot_be_called_with_a_text_is_refused(function: Any) -> None:
    with pytest.raises(ConstraintError, match="takes the text, or the prompt and the text"):
        constraint(function)
    assert constraint(lambda text, other=1: True).accepts("a")
    assert constraint(lambda *texts: len(texts) == 1).accepts("a")
