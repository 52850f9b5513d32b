"""Entails: the probabilities of pairs, what a text can do to its pair, and the law of what is drawn."""

from typing import Any

import pytest
import torch

from guardwrap import Budget, Entails, GuardedGenerator, Keyword, Verdict
from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.constraint_data import read_constraint
from guardwrap.errors import CheckFailed, ConstraintError, ModelError
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint, goodness_of_fit, table_world
from tests.fixtures_encoders import TEXTS, classifier_pipeline

FITS, FAILS = 1e-3, 1e-9
LABELS = ("contradiction", "neutral", "entailment")
PREMISE = "the film is good"


@pytest.fixture(scope="module")
def pipe() -> Any:
    return classifier_pipeline(labels=LABELS)


class Scripted:
    """A pipeline that gives the label a probability computed from the pair."""

    def __init__(self, pipe: Any, probability: Any) -> None:
        self.tokenizer, self.model, self.probability = pipe.tokenizer, pipe.model, probability
        self.asked: list[tuple[str, str]] = []

    def __call__(self, inputs: list[dict[str, str]], **settings: Any) -> list[list[dict[str, Any]]]:
        pairs = [(each["text"], each["text_pair"]) for each in inputs]
        self.asked += pairs
        return [[{"label": "entailment", "score": self.probability(*pair)}] for pair in pairs]


def by_hand(pipe: Any, premise: str, text: str) -> float:
    with torch.no_grad():
        logits = pipe.model(**pipe.tokenizer(premise, text, return_tensors="pt")).logits[0]
    return float(logits.softmax(-1)[2])


def test_the_premise_is_read_first_and_the_text_second(pipe: Any) -> None:
    probabilities = Entails(PREMISE, pipe).probabilities(TEXTS)
    assert probabilities == pytest.approx([by_hand(pipe, PREMISE, text or " ") for text in TEXTS], abs=1e-5)
    assert probabilities != pytest.approx([by_hand(pipe, text or " ", PREMISE) for text in TEXTS], abs=1e-3), (
        "the order must matter"
    )
    assert max(probabilities) - min(probabilities) > 0.05, "the text must matter"


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_other_texts_change_nothing(pipe: Any, batch_size: int) -> None:
    together = Entails(PREMISE, pipe, batch_size=batch_size).probabilities(TEXTS)
    assert together == pytest.approx([Entails(PREMISE, pipe).probabilities([text])[0] for text in TEXTS], abs=1e-5)


def test_the_prompt_fills_the_premise(pipe: Any) -> None:
    rule = Entails("a {prompt} {text}", Scripted(pipe, lambda premise, text: float(text in premise)))
    draws = [Draw(prompt, (), text) for prompt, text in (("good", "good"), ("bad", "good"), ("{text}", "bad"))]
    assert rule.check(draws) == [True, False, False]
    assert rule.model.asked[2] == ("a {text} {text}", "bad"), "only the prompt is a placeholder"
    assert rule.probabilities(["good"]) == [0.0]


def test_each_sentence_must_follow(pipe: Any) -> None:
    scripted = Scripted(pipe, lambda premise, text: 0.9 if text.strip(" .") in premise else 0.1)
    rule = Entails("the film is good", scripted, on="sentences")
    assert rule.accepts("the film. good.")
    assert not rule.accepts("the film. bad.")
    assert scripted.asked[-2:] == [("the film is good", "the film."), ("the film is good", "bad.")]
    draws = [Draw("one", (), "good."), Draw("two", (), "good.")]
    scripted.asked.clear()
    assert rule.check(draws) == [True, True]
    assert scripted.asked == [("the film is good", "good.")], "the same pair is judged once"


def test_the_threshold_and_its_side(pipe: Any) -> None:
    scripted = Scripted(pipe, lambda premise, text: 0.5)
    for side, threshold, accepts in (("above", 0.4, True), ("above", 0.5, False), ("below", 0.5, False)):
        assert Entails("a", scripted, threshold=threshold, side=side).accepts("b") is accepts  # type: ignore[arg-type]
    assert Entails("a", scripted, threshold=0.6, side="below").accepts("b")


def test_it_is_asked_last_and_prefixes_are_undecided(pipe: Any) -> None:
    scripted = Scripted(pipe, lambda premise, text: 1.0)
    rule = Entails("a", scripted) & Keyword("good")
    assert rule.check([Draw("", (), text) for text in ("good", "bad")]) == [True, False]
    assert scripted.asked == [("a", "good")]
    assert Entails("a", scripted).verdict("good") is Verdict.UNDECIDED
    check_constraint(Entails("a good film", "some/model"), [])
    check_constraint(Entails("a good film", Scripted(pipe, lambda premise, text: len(text) / 40)), TEXTS)


def test_too_long(pipe: Any) -> None:
    strict = Entails("good " * 10, pipe)
    assert isinstance(strict.accepts("bad " * 19), bool)
    with pytest.raises(CheckFailed, match="a premise and a text of 33 tokens, more than its maximum of 32") as caught:
        strict.accepts("bad " * 20)
    assert "bad bad" not in str(caught.value)
    assert isinstance(Entails("good " * 10, pipe, too_long="truncate").accepts("bad " * 50), bool)


@pytest.mark.parametrize("text", ["[SEP] good", "good [PAD]", "[CLS]", "{prompt}", "{text}", "\ud800", "", "\x00"])
def test_a_text_cannot_end_its_segment(pipe: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    right = type(pipe).preprocess

    def noted(self: Any, inputs: Any, **settings: Any) -> Any:
        encoded = right(self, inputs, **settings)
        seen.append(encoded["input_ids"][0].tolist())
        return encoded

    monkeypatch.setattr(type(pipe), "preprocess", noted)
    rule = Entails("{prompt} is good", pipe)
    rule.probabilities([text], ["[SEP] the film"])
    rule.probabilities(["bad"], ["the film"])
    assert [[ids.count(token) for token in (0, 2, 3)] for ids in seen] == [[0, 1, 2], [0, 1, 2]]


def test_negative_control_special_tokens_that_are_read_as_such(pipe: Any) -> None:
    assert pipe.tokenizer("good", "[SEP] good")["input_ids"].count(3) == 3


def test_texts_that_follow_are_distributed_as_g(pipe: Any) -> None:
    world = table_world(letters="abc", max_new_tokens=3)
    rule = Entails("{prompt}", Scripted(pipe, lambda premise, text: 0.9 if text.count("a") == 1 else 0.1))
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), seed=1)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=2_000, **world.settings)
    gold, drawn = world.gold(rule), [draw.token_ids for draw in outcome.draws]
    assert 3 < len(gold) < len(world.law())
    assert goodness_of_fit(drawn, gold) > FITS
    # Negative control: texts under the opposite rule do not follow the same law.
    (other,) = GuardedGenerator(world.pipeline(), ~rule, seed=1).run(
        world.prompt, num_return_sequences=200, **world.settings
    )
    assert not any(draw.token_ids in gold for draw in other.draws)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["above", "below"])
def test_what_is_no_number_decides_nothing(pipe: Any, score: float, side: Any) -> None:
    rule = Entails("a", Scripted(pipe, lambda premise, text: score), side=side)
    for each in (rule, ~rule):
        with pytest.raises(CheckFailed, match="instead of a probability"):
            each.accepts("b")


def test_a_pipeline_that_crashes_is_no_rejection(pipe: Any) -> None:
    rule = Entails("a", Scripted(pipe, lambda premise, text: 1 / 0))
    for each in (rule, ~rule):
        with pytest.raises(CheckFailed, match="raised ZeroDivisionError") as caught:
            each.accepts("secret")
        assert "secret" not in str(caught.value)


def test_yaml_and_digest(pipe: Any) -> None:
    rule = Entails("The shop opens at nine.", "some/model", threshold=0.9, on="sentences", label="ENTAILMENT")
    assert parse(dump(rule)).constraint == rule
    data = {"kind": "entails", "premise": "The shop opens at nine.", "model": "some/model"}
    assert read_constraint(data) == Entails("The shop opens at nine.", "some/model")
    assert rule != Entails("The shop opens at ten.", "some/model", threshold=0.9, on="sentences", label="ENTAILMENT")
    assert Entails("a", pipe).digest != Entails("a", classifier_pipeline(seed=1, labels=LABELS)).digest
    assert Entails("a", pipe).digest == Entails("a", classifier_pipeline(labels=LABELS)).digest
    with pytest.raises(ConstraintError, match="object in memory"):
        dump(Entails("a", pipe))


def test_an_unknown_label_is_named_with_the_nearest(pipe: Any) -> None:
    with pytest.raises(ConstraintError, match=r"did you mean 'entailment'.*it has contradiction, neutral, entailment"):
        Entails("a", pipe, label="entailed")


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="cannot load the classifier"):
        Entails("a", str(tmp_path)).probabilities(["b"])
