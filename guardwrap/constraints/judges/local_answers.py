"""How probable each of some short answers to a question is, by the next-token probabilities of a local model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import regex

from guardwrap.constraints.kinds.classifier import loaded
from guardwrap.documents.inputs import readable
from guardwrap.environment.model_loading import computing
from guardwrap.environment.threads import cached_property
from guardwrap.errors import ConstraintError, ModelError

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
    """Asks a causal language model of transformers."""

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

    def masses(self, question: Sequence[Piece]) -> list[float]:
        """Return the probability that the next token begins each answer.

        Questions are asked one by one, without padding: in half precision, numbers would otherwise depend on the batch.
        """
        import torch

        from guardwrap.environment.transformers_internals import tokenizer_lock

        with tokenizer_lock(self.pipeline.tokenizer):
            ids = self._ids(question)
        model = self.pipeline.model
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and len(ids) > most:
            raise ModelError(
                f"the question to the judge has {len(ids)} tokens, and its context {most}; judge a shorter view, such "
                "as on='last_sentence'"
            )
        with computing(), torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1]
        shares = logits.float().softmax(-1)
        return [float(shares[tokens].sum()) for tokens in self._tokens]

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
        if any(asked.count(slot) != 1 for slot in slots):
            raise ModelError("the judge's chat template repeats or changes a message; use a tokenizer with another one")
        for slot, text in zip(slots, texts, strict=True):
            frame, _, asked = asked.partition(slot)
            ids += self._encoded(frame)
            for piece in self._plain(text):
                ids += self._encoded(piece)
        return ids + self._encoded(asked)

    def _encoded(self, text: str) -> list[int]:
        return list(self.pipeline.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _plain(self, text: str) -> list[str]:
        """Cut a judged text within each added token, special or not, so that it is read as plain text."""
        text = readable(text)
        places = [0, *(match.start() + 1 for match in self._added.finditer(text, overlapped=True)), len(text)]
        return [text[start:end] for start, end in pairwise(places)]

    @cached_property
    def _added(self) -> regex.Pattern[str]:
        added = [*self.pipeline.tokenizer.get_added_vocab(), *self.pipeline.tokenizer.all_special_tokens]
        words = sorted({token for token in added if token}, key=len, reverse=True)
        return regex.compile("|".join(map(regex.escape, words)) or "(?!)", regex.VERSION0)
