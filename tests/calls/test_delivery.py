"""Delivery of outcomes: ``on_outcome`` is called as soon as a prompt ends, and outcomes are yielded in order."""

from typing import Any

import pytest

from guardwrap import Budget, Constraint, Fallback, GuardedGenerator, Part, Regex, ToolCalls
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.errors import ModelError
from guardwrap.outcomes import Outcome
from guardwrap.testing import llama_world
from tests.models.test_templates import world_of

WORLD = llama_world(max_new_tokens=3)
SETTINGS: dict[str, Any] = {**WORLD.settings, "seed": 3}
SLOW = PerPromptOptions(constraints=Regex("[0-9]"), budget=Budget(max_attempts=300))
EACH = [SLOW, None, None, None]
PROMPTS = ["a", "b", "c", "a"]


def told(**options: Any) -> tuple[list[int], dict[int, Outcome], list[Outcome]]:
    """Return the order of the ``on_outcome`` calls, their outcomes by prompt, and the outcomes yielded."""
    order: list[int] = []
    outcomes: dict[int, Outcome] = {}

    def on_outcome(number: int, outcome: Outcome) -> None:
        order.append(number)
        outcomes[number] = outcome

    guarded = GuardedGenerator(WORLD.pipeline(), Regex("[ab]"), **options)
    made = list(guarded.stream(PROMPTS, on_outcome=on_outcome, constraint_each=EACH, **SETTINGS))
    return order, outcomes, made


def test_outcomes_are_told_when_they_end_and_come_in_order() -> None:
    order, outcomes, made = told(on_exhausted="none")
    assert sorted(order) == [0, 1, 2, 3], "each prompt once"
    assert order[-1] == 0, "the slow prompt ends last"
    assert [outcome.prompt for outcome in made] == PROMPTS
    assert all(outcomes[number] is outcome for number, outcome in enumerate(made))
    guarded = GuardedGenerator(WORLD.pipeline(), Regex("[ab]"), on_exhausted="none")
    untold = list(guarded.stream(PROMPTS, constraint_each=EACH, **SETTINGS))
    assert [outcome.texts for outcome in untold] == [outcome.texts for outcome in made]


def test_a_fallback_is_asked_once() -> None:
    asked: list[str] = []

    def instead(prompt: str) -> str:
        asked.append(prompt)
        return "a 1"

    _, outcomes, made = told(on_exhausted=Fallback(instead))
    assert asked == ["a"]
    assert made[0].texts == outcomes[0].texts == ("a 1",)


@pytest.mark.parametrize(
    ("rule", "texts"),
    [
        (Regex("^fallback$", on="answer"), ("fallback",)),
        (Regex("^x", on="answer"), ()),
        (Regex("x", on="reasoning"), ()),
        (ToolCalls([{"name": "f"}], choice="required"), ()),
        (ToolCalls([{"name": "f"}]) & Regex("^fallback$", on="answer"), ("fallback",)),
    ],
)
def test_a_fallback_is_the_whole_answer_of_a_message(rule: Constraint, texts: tuple[str, ...]) -> None:
    """It is judged by rules on parts of a message like any other answer, and is not thought or called."""
    world = world_of("Qwen or Hermes")
    hopeless = rule & Regex("^fallback$", on=Part(message="answer", missing="fail"))
    budget, on_exhausted = Budget(max_attempts=2), Fallback(lambda prompt: "fallback")
    guarded = GuardedGenerator(world.pipeline(), hopeless, budget=budget, on_exhausted=on_exhausted)
    (outcome,) = guarded.run([{"role": "user", "content": "x"}], **world.settings)
    assert outcome.texts == texts
    assert outcome.report.fallback is bool(texts)


@pytest.mark.parametrize(("text", "texts"), [("bc", ()), ("cb", ("cb",))])
def test_a_fallback_is_judged_after_the_message_that_it_continues(text: str, texts: tuple[str, ...]) -> None:
    world = llama_world(letters="abc", max_new_tokens=1)
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    rule = ~Regex("ab", on="message") & Regex("..")  # the model writes one letter
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=2), on_exhausted=Fallback(text))
    chat = [{"role": "user", "content": "c"}, {"role": "assistant", "content": "a"}]
    (outcome,) = guarded.run(chat, **world.settings)
    assert outcome.texts == texts


def test_whoever_is_told_may_end_it() -> None:
    def on_outcome(number: int, outcome: Outcome) -> None:
        raise ModelError("enough")

    guarded = GuardedGenerator(WORLD.pipeline(), Regex("[ab]"))
    with pytest.raises(ModelError, match="enough"):
        list(guarded.stream(PROMPTS, on_outcome=on_outcome, **SETTINGS))
