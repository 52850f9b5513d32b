"""Similar: embeddings and their cosines, several texts, and the law of what is drawn."""

from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import Budget, GuardedGenerator, Similar, Verdict
from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.constraint_data import read_constraint
from guardwrap.errors import CheckFailed, ConstraintError, ModelError
from guardwrap.metrics.texts import encode
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint, goodness_of_fit, table_world
from tests.fixtures_encoders import TEXTS, classifier_pipeline, encoder_pipeline

FITS = 1e-3
SOURCES = ["the film is good", "a b c"]


@pytest.fixture(scope="module")
def pipe() -> Any:
    return encoder_pipeline()


class Scripted:
    """A pipeline that gives each letter of a text a vector."""

    task = "feature-extraction"

    def __init__(self, pipe: Any, vectors: Any = None) -> None:
        self.tokenizer, self.model, self.vectors = pipe.tokenizer, pipe.model, vectors
        self.asked: list[str] = []

    def __call__(self, text: str, **settings: Any) -> Any:
        self.asked.append(text)
        rows = self.vectors(text) if self.vectors else [[each == letter for letter in "abc"] for each in text]
        return torch.tensor(rows, dtype=torch.float32).reshape(1, -1, 3)


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_it_is_the_cosine_of_means_that_ignore_padding(pipe: Any, tmp_path: Any) -> None:
    """Texts of different lengths, padded and masked in one batch by other code, have the same embeddings."""
    pipe.save_pretrained(tmp_path)
    of_texts, of_sources = encode(TEXTS, str(tmp_path)), encode(SOURCES, str(tmp_path))
    expected = [max(cosine(text, source) for source in of_sources) for text in of_texts]
    for model in (pipe, str(tmp_path)):
        cosines = Similar(SOURCES, model, threshold=0).similarities(TEXTS)
        assert cosines == pytest.approx(expected, abs=1e-5)
    assert max(cosines) - min(cosines) > 0.1


def test_the_first_token(pipe: Any) -> None:
    with torch.no_grad():
        text, source = (
            pipe.model(**pipe.tokenizer(each, return_tensors="pt")).last_hidden_state[0, 0].numpy()
            for each in (TEXTS[0], "bad !")
        )
    (found,) = Similar("bad !", pipe, threshold=0, pooling="cls").similarities([TEXTS[0]])
    assert found == pytest.approx(cosine(text, source), abs=1e-5)
    assert found != pytest.approx(Similar("bad !", pipe, threshold=0).similarities([TEXTS[0]])[0], abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_texts_change_nothing(dtype: torch.dtype) -> None:
    pipe = encoder_pipeline()
    pipe.model.to(dtype)
    rule = Similar(SOURCES, pipe, threshold=0)
    assert rule.similarities(TEXTS) == [rule.similarities([text])[0] for text in TEXTS]
    assert rule.similarities(TEXTS[::-1]) == rule.similarities(TEXTS)[::-1]


def test_a_text_is_similar_to_itself(pipe: Any) -> None:
    assert Similar(TEXTS[0], pipe, threshold=0).similarities([TEXTS[0]]) == pytest.approx([1.0])


def test_above_one_of_them_below_all_of_them(pipe: Any) -> None:
    scripted = Scripted(pipe)
    assert Similar(["a", "b"], scripted, threshold=0.9).accepts("b")
    assert not Similar(["a", "b"], scripted, threshold=0.9).accepts("c")
    assert not Similar(["a", "b"], scripted, threshold=0.9).accepts("ab")
    assert Similar(["a", "b"], scripted, threshold=0.9, side="below").accepts("ab")
    assert not Similar(["a", "b"], scripted, threshold=0.9, side="below").accepts("b")
    assert not Similar("a", scripted, threshold=1.0).accepts("a"), "thresholds are strict"


def test_texts_to_compare_with_are_embedded_once(pipe: Any) -> None:
    scripted = Scripted(pipe)
    rule = Similar(["a", "b"], scripted, threshold=0.5, on="lines")
    assert rule.check([Draw("", (), text) for text in ("a\nb", "c", "a")]) == [True, False, True]
    assert rule.accepts("b")
    assert sorted(scripted.asked) == sorted("ab" + "abc" + "b"), "in one call, the same text is embedded once"


def test_the_prompt(pipe: Any) -> None:
    rule = Similar(None, Scripted(pipe), threshold=0.9)
    draws = [Draw(prompt, (), text) for prompt, text in (("a", "aa"), ("b", "aa"), ("b", "b"))]
    assert rule.check(draws) == [True, False, True]
    assert rule.similarities(["a", "a"], ["a", "b"]) == [1.0, 0.0]


def test_a_text_without_tokens_is_similar_to_nothing(pipe: Any) -> None:
    rule = Similar("a", Scripted(pipe), threshold=0.5)
    assert rule.similarities([""]) == [0.0]
    assert Similar(None, Scripted(pipe), threshold=0.5).similarities(["a"]) == [0.0]


def test_verdicts(pipe: Any) -> None:
    rule = Similar("abc", Scripted(pipe), threshold=0.7)
    assert rule.verdict("a") is Verdict.UNDECIDED
    check_constraint(rule, ["a", "ab", "abc", "", "b c"])
    check_constraint(Similar("good", "some/model", threshold=0.7), [])


def test_similar_texts_are_distributed_as_g(pipe: Any) -> None:
    world = table_world(letters="abc", max_new_tokens=3)
    rule = Similar("ab", Scripted(pipe), threshold=0.8)
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), seed=1)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=2_000, **world.settings)
    gold = world.gold(rule)
    assert 3 < len(gold) < len(world.law())
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], gold) > FITS


def test_negative_control_similarities_that_depend_on_the_batch(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = table_world(letters="abc", max_new_tokens=3)
    rule = Similar("ab", Scripted(pipe), threshold=0.8)
    gold, right = world.gold(rule), Similar.scores

    def shifted(self: Any, inputs: Any) -> list[float]:
        scores = right(self, inputs)
        return scores[-1:] + scores[:-1]

    monkeypatch.setattr(Similar, "scores", shifted)
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), seed=1)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=500, **world.settings)
    assert any(draw.token_ids not in gold for draw in outcome.draws)


def test_too_long(pipe: Any) -> None:
    rule = Similar("good", pipe, threshold=0.5)
    with pytest.raises(CheckFailed, match="a text of 42 tokens, more than its maximum of 32; set too_long") as caught:
        rule.accepts("bad " * 40)
    assert "bad bad" not in str(caught.value)
    cut = Similar("good", pipe, threshold=0.5, too_long="truncate")
    assert cut.similarities(["bad " * 40]) == pytest.approx(rule.similarities(["bad " * 30]), abs=1e-6)
    with pytest.raises(CheckFailed, match="shorten the texts"):
        Similar("good " * 40, pipe, threshold=0.5).accepts("bad")


@pytest.mark.parametrize("text", ["[SEP] good", "[PAD]", "\ud800", "\x00", "{prompt}", "🏴" * 5, "\u202e"])
def test_any_text_has_a_similarity(pipe: Any, text: str) -> None:
    (found,) = Similar("good", pipe, threshold=0.5).similarities([text])
    assert -1 <= found <= 1.000001
    plain = text.replace("[SEP]", "SEP").replace("\ud800", "\ufffd")
    assert isinstance(Similar("good", pipe, threshold=0.5).accepts(plain), bool)


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_decides_nothing(pipe: Any, number: float, side: Any) -> None:
    rule = Similar("a", Scripted(pipe, lambda text: [[number, 0, 0]]), threshold=0.5, side=side)
    for each in (rule, ~rule):
        with pytest.raises(CheckFailed, match="instead of a similarity"):
            each.accepts("b")


def test_a_model_that_does_not_encode_is_no_rejection(pipe: Any) -> None:
    class Flat(Scripted):
        def __call__(self, text: str, **settings: Any) -> Any:
            return torch.zeros(1, 3)

    rule = Similar("a", Flat(pipe), threshold=0.5, side="below")
    for each in (rule, ~rule):
        with pytest.raises(CheckFailed, match="no vector for each token"):
            each.accepts("b")


def test_yaml_and_digest(pipe: Any) -> None:
    rule = Similar(["a", "b"], "some/model", threshold=0.7, side="below", pooling="cls", on="sentences")
    assert parse(dump(rule)).constraint == rule
    data = {"kind": "similar", "texts": "a", "model": "some/model", "threshold": 1}
    assert read_constraint(data) == Similar(["a"], "some/model", threshold=1.0)
    assert read_constraint({**data, "texts": None}) == Similar(None, "some/model", threshold=1)
    assert Similar("a", "m", threshold=0.5) != Similar("a", "m", threshold=0.5, pooling="cls")
    assert Similar("a", pipe, threshold=0.5).digest == Similar("a", encoder_pipeline(), threshold=0.5).digest
    assert Similar("a", pipe, threshold=0.5).digest != Similar("a", encoder_pipeline(1), threshold=0.5).digest
    with pytest.raises(ConstraintError, match="object in memory"):
        dump(Similar("a", pipe, threshold=0.5))


def test_a_pipeline_for_something_else_is_refused() -> None:
    with pytest.raises(ConstraintError, match="not one for text-classification"):
        Similar("a", classifier_pipeline(), threshold=0.5)


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="cannot load the encoder"):
        Similar("a", str(tmp_path), threshold=0.5).similarities(["b"])
