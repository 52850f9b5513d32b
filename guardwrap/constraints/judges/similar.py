"""The ``Similar`` constraint: the embedding of a text is near those of other texts, or far from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import WithJsonSchema

from guardwrap.constraints.base import require
from guardwrap.constraints.kinds.classifier import (
    ScoringConstraint,
    loaded,
    most_tokens,
    require_finite,
    require_short,
    weights_digest,
)
from guardwrap.constraints.kinds.text import require_choice
from guardwrap.constraints.sources.source_texts import plain_documents
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.inputs import readable
from guardwrap.environment.model_loading import computing
from guardwrap.environment.threads import cached_property
from guardwrap.errors import CheckFailed, is_number
from guardwrap.outcomes import Draw

_MOST_TEXTS = 1000


@dataclass(frozen=True, eq=False, repr=False)
class Similar(ScoringConstraint):
    """The cosine similarity of a text to other texts is above, or below, a threshold.

    Parameters
    ----------
    texts
        One text or several; None for the prompt. The prompt of a chat is the whole conversation as text.
    model
        A Hub id, a path, or a Hugging Face feature-extraction pipeline of a model whose embeddings of texts can be
        compared.
    threshold
        Cosine between -1 and 1. Try it out with ``similarities``: models differ in what they give unrelated texts.
    side
        ``"above"``: similarity > threshold, to at least one of the texts; ``"below"``: similarity < threshold, to each
        of them.
    pooling
        How the vectors of a text's tokens become one: ``"mean"``, or ``"cls"``, that of the first token.
    too_long
        How to handle a text that exceeds the model's maximum length: ``"raise"`` CheckFailed, or ``"truncate"``.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    ModelError
        If the model cannot be loaded.

    Notes
    -----
    Models for sentence-transformers are trained with one kind of pooling, which their file ``1_Pooling/config.json``
    names. It is not read: most have ``"mean"``, some ``"cls"``. Models with further layers after pooling are not
    supported, and prefixes such as ``"query: "`` are not added.

    Texts are read one by one, without padding, so no number depends on the batch. A text without tokens has the
    similarity 0 to every text.

    Examples
    --------
    Texts that repeat none of the slogans, not even in other words::

        Similar(["Tea for everyone.", "Time for tea."], "path/or/hub-id", threshold=0.7, side="below")
    """

    texts: str | Sequence[str] | None
    model: Annotated[Any, WithJsonSchema({"type": "string"})]
    threshold: float = field(kw_only=True)
    side: Literal["above", "below"] = field(default="above", kw_only=True)
    pooling: Literal["mean", "cls"] = field(default="mean", kw_only=True)
    too_long: Literal["raise", "truncate"] = field(default="raise", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["similar"] = field(default="similar", kw_only=True)

    cost = 2

    def __post_init__(self) -> None:
        if self.texts is not None:
            several = plain_documents(self.texts, "texts")
            require(len(several) <= _MOST_TEXTS, f"{len(several)} texts are too many; give at most {_MOST_TEXTS}")
            object.__setattr__(self, "texts", several[0] if len(several) == 1 else several)
        self.require_model("feature-extraction")
        task = getattr(self.model, "task", None) or "feature-extraction"
        require(task == "feature-extraction", f"model must be a feature-extraction pipeline, not one for {task}")
        require(is_number(self.threshold) and -1 <= self.threshold <= 1, "threshold must be a cosine, from -1 to 1")
        self.require_side()
        require_choice(self.pooling, ("mean", "cls"), "pooling")
        require_choice(self.too_long, ("raise", "truncate"), "too_long")
        object.__setattr__(self, "on", read_view(self.on))

    @cached_property
    def pipeline(self) -> Any:
        """The loaded pipeline."""
        return loaded("feature-extraction", self.model) if isinstance(self.model, str) else self.model

    def similarities(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[float]:
        """Return the similarity of each text to the nearest of the constraint's texts: a cosine.

        Parameters
        ----------
        texts
            The texts.
        prompts
            The prompt of each text, if they are compared with the prompt; None for empty ones.

        Raises
        ------
        CheckFailed
            If a text is too long and ``too_long`` is ``"raise"``, or the model gives NaN or infinite numbers.
        """
        return self.scores_of(texts, prompts)

    def model_input(self, draw: Draw, text: str) -> tuple[str, ...]:
        """Return the text, and the prompt if it is compared with that."""
        return (text, draw.prompt) if self.texts is None else (text,)

    def scores(self, inputs: Sequence[tuple[str, ...]]) -> list[float]:
        """Return the similarity of each text to the nearest other text."""
        prompts = {prompt: self._embedded(prompt)[None] for prompt in {each[1] for each in inputs if each[1:]}}
        cosines = []
        for text, *prompt in inputs:
            references = prompts[prompt[0]] if prompt else self._references
            cosines.append(float((references @ self._embedded(text)).max()))
        return cosines

    @cached_property
    def _references(self) -> Any:
        """The embeddings of the constraint's texts, shape ``[texts, dimensions]``."""
        texts = (self.texts,) if isinstance(self.texts, str) else self.texts or ()
        return np.stack([self._embedded(text) for text in texts])

    def _embedded(self, text: str) -> Any:
        """Return the embedding of a text, shape ``[dimensions]``, of length 1."""
        text, pipe, most = readable(text), self.pipeline, self._max_tokens
        if self.too_long == "raise":
            require_short(self, pipe, [(text,)], most, "set too_long='truncate', shorten the texts, or ")
        options = {"truncation": True, "max_length": most, "split_special_tokens": True}
        with computing():
            vectors = pipe(text, tokenize_kwargs=options, return_tensors=True)[0].double().cpu().numpy()
        if vectors.ndim != 2:
            raise CheckFailed(self.title, "got no vector for each token; use a model that only encodes texts")
        require_finite(self, float(np.abs(vectors).max(initial=0.0)), "similarity")
        if len(vectors) == 0:
            return np.zeros(vectors.shape[1])
        vector = vectors[0] if self.pooling == "cls" else vectors.mean(axis=0)
        return vector / (np.linalg.norm(vector) or 1.0)

    @cached_property
    def _max_tokens(self) -> int:
        return most_tokens(self.pipeline)

    @cached_property
    def _weights(self) -> str:
        return weights_digest(self.model.model)
