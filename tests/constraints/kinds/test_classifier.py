"""``Classifier``, with a random network of 16 dimensions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from guardwrap.constraints import All, Classifier, Keyword, Verdict, dump, parse  # noqa: E402
from guardwrap.constraints.checking import run_check  # noqa: E402
from guardwrap.constraints.views import TEXT_VIEWS, view  # noqa: E402
from guardwrap.errors import CheckFailed, ConstraintError, ModelError  # noqa: E402
from guardwrap.outcomes import Draw  # noqa: E402
from tests.fixtures_encoders import TEXTS, classifier_pipeline  # noqa: E402


@pytest.fixture(scope="module")
def pipe():
    return classifier_pipeline()


def draws(texts, prompt=""):
    return [Draw(prompt=prompt, token_ids=(), text=text) for text in texts]


def test_the_network_tells_texts_apart(pipe):
    scores = Classifier(pipe, "positive", 0.5).probabilities(TEXTS)
    assert max(scores) - min(scores) > 0.1


def test_the_label_has_no_folders(tmp_path):
    (tmp_path / "reviews").mkdir()
    rule = Classifier(str(tmp_path / "reviews"), "positive", 0.5)
    assert rule.title.startswith("Classifier(model='reviews', label='positive'")
    assert str(tmp_path) in repr(rule)
    assert Classifier("someone/reviews", "positive", 0.5).title.startswith("Classifier(model='someone/reviews'")
    assert Classifier(str(tmp_path / "reviews"), "positive", 0.5, name="kind").title == "kind"


@pytest.mark.parametrize("batch_size", [1, 2, 3, 32])
def test_batched_equals_one_by_one(pipe, batch_size):
    together = Classifier(pipe, "positive", 0.5, batch_size=batch_size).probabilities(TEXTS)
    alone = [Classifier(pipe, "positive", 0.5).probabilities([text])[0] for text in TEXTS]
    assert together == pytest.approx(alone, abs=1e-5)


def test_probabilities_are_those_of_the_label(pipe):
    positive = Classifier(pipe, "positive", 0.5).probabilities(TEXTS)
    negative = Classifier(pipe, "negative", 0.5).probabilities(TEXTS)
    assert [p + n for p, n in zip(positive, negative, strict=True)] == pytest.approx([1.0] * len(TEXTS), abs=1e-5)
    with torch.no_grad():
        inputs = pipe.tokenizer(TEXTS[0], return_tensors="pt")
        logits = pipe.model(**inputs).logits[0]
    assert positive[0] == pytest.approx(logits.softmax(-1)[1].item(), abs=1e-5)


@pytest.mark.parametrize("on", [on for on in TEXT_VIEWS if on != "json_strings"])  # these texts have no JSON
@pytest.mark.parametrize("side", ["above", "below"])
def test_sides_and_views(pipe, on, side):
    drawn = draws(TEXTS, prompt="bad ! ")
    scores = {
        text: score
        for draw in drawn
        for text in view(draw, on) or ()
        for score in Classifier(pipe, "positive", 0.5).probabilities([text])
    }
    # Halfway between the two middle scores, so that rounding does not matter.
    middle = sorted(set(scores.values()))
    threshold = (middle[len(middle) // 2] + middle[len(middle) // 2 - 1]) / 2
    expected = [
        all(
            (scores[text] > threshold) if side == "above" else (scores[text] < threshold)
            for text in view(draw, on) or ()
        )
        for draw in drawn
    ]
    found = run_check(Classifier(pipe, "positive", threshold, side=side, on=on), drawn)
    assert found == expected
    assert set(found) == {True, False}


def test_no_draws(pipe):
    assert Classifier(pipe, "positive", 0.5).check([]) == []


def test_thresholds_are_strict(pipe):
    assert not Classifier(pipe, "positive", 1).accepts("good")
    assert not Classifier(pipe, "positive", 0, side="below").accepts("good")
    assert Classifier(pipe, "positive", 0).accepts("good")


def test_prefixes_are_undecided(pipe):
    assert Classifier(pipe, "positive", 0.5).verdict("the film") is Verdict.UNDECIDED


def test_it_is_asked_last(pipe):
    class Spy:
        tokenizer, model = pipe.tokenizer, pipe.model

        def __init__(self):
            self.seen = []

        def __call__(self, texts, **settings):
            self.seen += texts
            return pipe(texts, **settings)

    spy = Spy()
    All([Classifier(spy, "positive", 0.5), Keyword("good")]).check(draws(["good", "bad", "a good film"]))
    assert spy.seen == ["good", "a good film"]
    spy.seen.clear()
    Classifier(spy, "positive", 0.5, on="lines").check(draws(["good\nbad", "bad"]))
    assert spy.seen == ["good", "bad"], "the same text is judged once"


def test_too_long(pipe):
    long = "good " * 31
    fits = "good " * 30
    strict = Classifier(pipe, "positive", 0.5)
    assert isinstance(strict.accepts(fits), bool)
    with pytest.raises(CheckFailed, match="33 tokens, more than its maximum of 32") as caught:
        strict.accepts(long)
    assert "good good" not in str(caught.value)
    assert isinstance(Classifier(pipe, "positive", 0.5, on="first_sentence").accepts("bad.\n" + long), bool)
    cut = Classifier(pipe, "positive", 0.5, too_long="truncate")
    assert cut.probabilities([long]) == pytest.approx(strict.probabilities([fits]), abs=1e-5)


def test_a_tokenizer_without_a_limit(pipe):
    limitless = classifier_pipeline()
    limitless.model.config.max_position_embeddings = 10**30
    rule = Classifier(limitless, "positive", 0.5)
    assert rule.max_tokens <= 10**9
    assert rule.probabilities(["good"]) == pytest.approx(Classifier(pipe, "positive", 0.5).probabilities(["good"]))


def test_unknown_label(pipe):
    with pytest.raises(ConstraintError, match=r"did you mean 'positive'.*it has negative, positive"):
        Classifier(pipe, "positve", 0.5)
    with pytest.raises(ConstraintError, match="it has negative, positive"):
        Classifier(pipe, "POSITIVE", 0.5)


def test_digest(pipe):
    made = Classifier(pipe, "positive", 0.5)
    assert made == Classifier(classifier_pipeline(), "positive", 0.5)
    assert made == Classifier(pipe, "positive", 0.5, name="nice")
    assert made != Classifier(classifier_pipeline(seed=1), "positive", 0.5)
    assert made != Classifier(classifier_pipeline(labels=("positive", "negative")), "positive", 0.5)
    assert made != Classifier(pipe, "negative", 0.5)
    assert made != Classifier(pipe, "positive", 0.6)
    assert made != Classifier(pipe, "positive", 0.5, side="below")
    assert Classifier("m", "positive", 1) == Classifier("m", "positive", 1.0)


def test_yaml():
    made = Classifier("some/model", "positive", 0.98, on="last_sentence", too_long="truncate")
    again = parse(dump(made)).constraint
    assert again == made
    assert repr(again) == repr(made)


def test_yaml_has_no_name_for_a_loaded_pipeline(pipe):
    for made in (Classifier(pipe, "positive", 0.5), ~Classifier(pipe, "positive", 0.5) | Keyword("a")):
        with pytest.raises(ConstraintError, match="object in memory"):
            dump(made)


def test_from_a_folder(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    made = Classifier(str(tmp_path), "positive", 0.5)
    assert made.probabilities(TEXTS) == pytest.approx(Classifier(pipe, "positive", 0.5).probabilities(TEXTS), abs=1e-5)
    with pytest.raises(ConstraintError, match="it has negative, positive"):
        Classifier(str(tmp_path), "neutral", 0.5).accepts("good")


def test_special_tokens_in_a_text_are_plain_text(pipe, monkeypatch):
    """Otherwise a text could end its own segment, or hide behind padding."""
    seen = []
    right = type(pipe).preprocess

    def noted(self, inputs, **settings):
        encoded = right(self, inputs, **settings)
        seen.append(encoded["input_ids"][0].tolist())
        return encoded

    monkeypatch.setattr(type(pipe), "preprocess", noted)
    Classifier(pipe, "positive", 0.5).probabilities(["good [SEP] [PAD] bad"])
    assert [seen[0].count(token) for token in (0, 2, 3)] == [0, 1, 1]


def test_a_model_in_training_mode_is_refused():
    noisy = classifier_pipeline()
    noisy.model.train()
    with pytest.raises(ConstraintError, match="training mode"):
        Classifier(noisy, "positive", 0.5)


def test_half_of_a_surrogate_pair_is_a_replacement_character(pipe):
    rule = Classifier(pipe, "positive", 0.5)
    assert rule.probabilities(["good \ud800"]) == rule.probabilities(["good \ufffd"])


def test_a_model_that_is_not_there(tmp_path):
    missing = tmp_path / "missing"
    missing.mkdir()
    with pytest.raises(ModelError, match="cannot load the classifier"):
        Classifier(str(missing), "positive", 0.5).accepts("good")


@pytest.mark.parametrize("side", ["above", "below"])
def test_what_is_no_number_is_on_neither_side(side):
    """NaN is not above a threshold, so under ``~`` it would pass."""
    pipe = classifier_pipeline()
    with torch.no_grad():
        pipe.model.classifier.bias += float("nan")
    sure = Classifier(pipe, "positive", 0.5, side=side, name="sure")
    for constraint in (sure, ~sure, sure | ~sure, ~(sure & Keyword("good"))):
        with pytest.raises(CheckFailed, match="'sure' returned NaN instead of a probability; load") as caught:
            constraint.accepts("the film is good .")
        assert "film" not in str(caught.value)


def test_an_infinite_score_is_no_probability(pipe, monkeypatch):
    sure = Classifier(pipe, "positive", 0.5)
    monkeypatch.setattr(type(pipe), "__call__", lambda self, texts, **_: [[{"label": "positive", "score": 1e999}]])
    with pytest.raises(CheckFailed, match="returned an infinite number"):
        sure.accepts("good")
