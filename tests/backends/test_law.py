"""Stopping criteria: each attempt ends by its own tokens, whatever shape the answer has."""

from typing import Any

import pytest
import torch
from transformers import StoppingCriteria

from guardwrap import GuardedGenerator, Length
from guardwrap.backends.law import ended_by
from tests.tiny import t5

IDS = torch.tensor([[1, 2], [1, 3], [3, 2]])


class FirstRow(StoppingCriteria):
    """As those of LangChain and LlamaIndex: one answer, read off the first row."""

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return any(input_ids[0][-1] == stop for stop in (2,))


@pytest.mark.parametrize(
    "criterion",
    [
        FirstRow(),
        lambda ids, scores: ids[:, -1] == 2,
        lambda ids, scores: ids[0, -1] == 2,
        lambda ids, scores: ids[:1, -1] == 2,
    ],
)
def test_each_row_ends_by_its_own_tokens(criterion: Any) -> None:
    assert ended_by(criterion, IDS, None).tolist() == [True, False, True]
    assert ended_by(criterion, IDS[1:2], None).tolist() == [False]


def test_of_encoder_decoder_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = t5()
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer)
    options: dict[str, Any] = {"do_sample": True, "num_beams": 1, "max_new_tokens": 6, "num_return_sequences": 30}

    def texts() -> tuple[str, ...]:
        return guarded.run("abc", seed=1, batch_size=10, stopping_criteria=[FirstRow()], **options)[0].texts

    def too_late(found: tuple[str, ...]) -> int:
        """Texts that go on after a `b`."""
        return sum("b" in text[:-1] for text in found)

    assert any("b" in text for text in texts())
    assert too_late(texts()) == 0
    monkeypatch.setattr("guardwrap.backends.generate.ended_by", lambda ends, *given, **more: ends(*given, **more))
    assert too_late(texts()) > 0  # the negative control: asked once for all rows
