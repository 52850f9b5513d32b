"""Models for tests of lines that name one: they judge by single words, so that texts can be written for them."""

from types import SimpleNamespace
from typing import Any

import regex
import torch

ENCODED = ["tea", "time", "coffee", "opens"]
KIND, RUDE, WRONG = {"lovely", "thanks"}, {"stupid"}, {"ten"}


def words(text: str) -> list[str]:
    return regex.findall(r"\w+", text.casefold())


class StandIn:
    """A pipeline of transformers."""

    def __init__(self, task: str) -> None:
        self.task = task
        labels = ["positive", "entailment", "contradiction"]
        self.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(labels))))

    def tokenizer(self, *columns: list[str], **options: Any) -> dict[str, Any]:
        return {"input_ids": [words(" ".join(texts)) for texts in zip(*columns, strict=True)]}

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if self.task == "feature-extraction":
            vectors = [[float(word == each) for each in ENCODED] for word in words(inputs)]
            return torch.tensor(vectors or [[0.0] * len(ENCODED)])[None]
        return [self._scores(each) for each in inputs]

    def _scores(self, each: Any) -> list[dict[str, Any]]:
        text = set(words(each if isinstance(each, str) else each["text_pair"]))
        premise = set() if isinstance(each, str) else set(words(each["text"]))
        truths = {"positive": text & KIND, "entailment": text <= premise, "contradiction": (text - premise) & WRONG}
        return [{"label": label, "score": 0.99 if true else 0.01} for label, true in truths.items()]


class StandInAnswers:
    """Answers questions about texts: yes to those without a rude word."""

    def masses(self, question: Any) -> list[float]:
        polite = not any(set(words(text)) & RUDE for text, ours in question if not ours)
        return [0.9, 0.1] if polite else [0.1, 0.9]


def use_stand_ins(monkeypatch: Any) -> None:
    """Let names of models stand for these models."""
    monkeypatch.setattr("guardwrap.constraints.kinds.classifier.loaded", lambda task, name: StandIn(task))
    monkeypatch.setattr("guardwrap.rules.meaning.loaded", lambda task, name: StandIn(task))
    monkeypatch.setattr("guardwrap.rules.judge._named", lambda model, answers: StandInAnswers())
