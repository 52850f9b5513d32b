"""A model whose texts are sometimes JSON, and checks that the tests of all integrations share."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Length, Regex
from guardwrap.testing import World, llama_world

NO_VOWEL = ~Regex("[ae]")
DIGIT = {"enum": [0, 1]}
PROMPTS = ["b", "c", "d", "f"] * 5


def small_world() -> World:
    made = llama_world(letters="abcdef .01\n", max_new_tokens=4)
    made.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"
    return made


def guarded(world: World, constraint: Any = NO_VOWEL, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), constraint, **options)


def hopeless(world: World) -> GuardedGenerator:
    return guarded(world, Length(min=100), budget=Budget(max_attempts=2))


def unchecked(world: World) -> GuardedGenerator:
    """Deliberate fault: a wrapper without its check."""
    made = guarded(world)
    made.session.spec = replace(made.session.spec, constraint=Length(min=0))
    return made


def require_all(texts: Iterable[str]) -> None:
    """Assert that many texts satisfy the constraint."""
    texts = list(texts)
    assert len(texts) >= 20
    assert all(map(NO_VOWEL.accepts, texts)), "a text that violates the constraint got through"


def count_runs(made: GuardedGenerator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each further call of the wrapper appends its number of prompts."""
    runs: list[int] = []
    run = made.run

    def counted(prompts: Any, **options: Any) -> Any:
        runs.append(len(prompts))
        return run(prompts, **options)

    monkeypatch.setattr(made, "run", counted, raising=False)
    return runs
