"""How probable each of some short answers to a question is, by the next-token probabilities of a local model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from guardwrap.constraints.kinds.classifier import loaded
from guardwrap.errors import ConstraintError, ModelError

__all__ = ["LocalAnswers", "Piece", "pieces_of"]

Piece = tuple[str, bool]
"""A piece of a question, and whether special tokens in it are meant as such; in judged texts they are not."""

_SLOT = "\ue000{}\ue001"
"""Stands for a judged text while the chat template is applied; characters of the private use area."""


def pieces_of(question: str, filled: Mapping[str, str]) -> list[Piece]:
    """Split a question at its placeholders, ``{text}`` and ``{prompt}``, and fill them in.

    Nothing in a filled-in text is read as a placeholder.
    """
    pieces: list[Piece] = [(question, True)]
    for name, value in filled.items():
        mark = f"{{{name}}}"
        split: list[Piece] = []
        for text, ours in pieces:
            if not ours:
                split.append((text, ours))
                continue
            for number, part in enumerate(text.split(mark)):
                split += [(value, False)] * (number > 0) + [(part, True)]
        pieces = split
    return [piece for piece in pieces if piece[0]]


class LocalAnswers:
    """Asks a causal language model of transformers.

    Parameters
    ----------
    model
        A ``text-generation`` pipeline, or the Hub id or path of a model.
    answers
        The answers.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    ConstraintError
        If the first token of an answer does not tell it from the others.
    """

    def __init__(self, model: Any, answers: Sequence[str]) -> None:
        self._model = model
        self._answers = tuple(answers)
        self._tokens  # noqa: B018  # so that answers that begin alike are noticed now

    @cached_property
    def pipeline(self) -> Any:
        """The loaded pipeline."""
        return loaded("text-generation", self._model) if isinstance(self._model, str) else self._model

    @cached_property
    def _tokens(self) -> list[list[int]]:
        """The tokens that each answer may begin with: in any case, with or without a space before it."""
        tokenizer, found = self.pipeline.tokenizer, []
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
        begun = [text.strip().casefold() for text in texts]
        folded = [answer.strip().casefold() for answer in self._answers]
        for answer in folded:
            others = [other for other in folded if other != answer]
            found.append(
                [
                    token
                    for token, text in enumerate(begun)
                    if text and answer.startswith(text) and not any(other.startswith(text) for other in others)
                ]
            )
        for answer, tokens in zip(self._answers, found, strict=True):
            if not tokens:
                raise ConstraintError(
                    f"the judge's tokenizer has no token that only {answer!r} begins with; use other answers"
                )
        return found

    def probabilities(self, questions: Sequence[Sequence[Piece]]) -> list[list[float]]:
        """Return the probability of each answer to each question; those of one question sum to 1.

        Parameters
        ----------
        questions
            The pieces of each question.

        Raises
        ------
        ModelError
            If a question is longer than the model's context.
        """
        rows = [self._ids(question) for question in questions]
        longest = max(map(len, rows))
        most = getattr(self.pipeline.model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and longest + 1 > most:
            raise ModelError(
                f"the question to the judge has {longest} tokens, and its context {most}; judge a shorter view, such "
                "as on='last_sentence'"
            )
        shares = self._next_tokens(rows, longest)
        sums = [[float(row[tokens].sum()) for tokens in self._tokens] for row in shares]
        return [[value / max(sum(row), 1e-38) for value in row] for row in sums]

    def _next_tokens(self, rows: Sequence[list[int]], longest: int) -> Any:
        """Return the probabilities of the next token after each row, ``[rows, vocabulary]``, float32."""
        import torch

        model = self.pipeline.model
        # Padding is on the left, where the mask hides it.
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=model.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
        settings = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, "pad_token_id": 0}
        generated = model.generate(
            input_ids=ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **settings
        )
        return generated.logits[0].float().softmax(-1)

    def _ids(self, question: Sequence[Piece]) -> list[int]:
        tokenizer = self.pipeline.tokenizer
        texts = [text for text, ours in question if not ours]
        slots = [_SLOT.format(number) for number in range(len(texts))]
        remaining = iter(slots)
        asked = "".join(text if ours else next(remaining) for text, ours in question)
        if getattr(tokenizer, "chat_template", None) is not None:
            chat = [{"role": "user", "content": asked}]
            asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids: list[int] = []
        else:
            asked += "\nAnswer:"
            ids = [token for token in tokenizer("")["input_ids"] if token != tokenizer.eos_token_id]
        for slot, text in zip(slots, texts, strict=True):
            frame, _, asked = asked.partition(slot)
            ids += self._encoded(frame, special=True) + self._encoded(text, special=False)
        return ids + self._encoded(asked, special=True)

    def _encoded(self, text: str, *, special: bool) -> list[int]:
        encoded = self.pipeline.tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return list(encoded["input_ids"])
