"""``Entails`` and ``Similar``: a model compares what a text means with a premise, or with other texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import WithJsonSchema

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.classifier import (
    LabelConstraint,
    ScoringConstraint,
    loaded,
    most_tokens,
    require_finite,
    require_short,
    weights_digest,
)
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import CheckFailed, is_number
from guardwrap.outcomes import Draw
from guardwrap.rules.copies import plain_documents
from guardwrap.support.limits import is_text, readable
from guardwrap.support.model_loading import computing
from guardwrap.support.threads import cached_property


@dataclass(frozen=True, eq=False, repr=False)
class Entails(LabelConstraint):
    """A text follows from a premise, says a classifier of pairs (natural-language inference).

    The classifier reads the premise and then the text, and its probability for the label is above, or below, a
    threshold.

    Parameters
    ----------
    premise
        What the text must follow from, such as a document. ``{prompt}`` in it is replaced by the prompt.
    model
        A Hub id, a path, or a Hugging Face text-classification pipeline of a model for natural-language inference.
    label
        The label whose probability counts, as in the model's ``id2label``. Models differ in its spelling and case.
    threshold
        Probability between 0 and 1.
    side
        ``"above"``: probability > threshold; ``"below"``: probability < threshold, as for ``label="contradiction"``.
    too_long
        How to handle a premise and text that together exceed the classifier's maximum length: ``"raise"`` CheckFailed,
        or ``"truncate"`` the longer one.
    batch_size
        Pairs per forward pass.
    on
        The view of the text that is judged. With ``"sentences"``, each of them must follow.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or the model has no such label. A pipeline is checked at once, a model that is given
        by name when it is first used.
    ModelError
        If the model cannot be loaded.

    Examples
    --------
    ::

        Entails("The shop opens at nine.", "path/or/hub-id", threshold=0.9, on="sentences")
    """

    premise: str
    model: Annotated[Any, WithJsonSchema({"type": "string"})]
    label: str = field(default="entailment", kw_only=True)
    threshold: float = field(default=0.5, kw_only=True)
    side: Literal["above", "below"] = field(default="above", kw_only=True)
    too_long: Literal["raise", "truncate"] = field(default="raise", kw_only=True)
    batch_size: int = field(default=32, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["entails"] = field(default="entails", kw_only=True)

    def __post_init__(self) -> None:
        valid = isinstance(self.premise, str) and is_text(self.premise) and self.premise.strip() != ""
        require(valid, f"premise must be a text that is not blank, such as '{{prompt}}', not {shown(self.premise)}")
        self.require_fields()

    def model_input(self, draw: Draw, text: str) -> tuple[str, ...]:
        # transformers would read a pair with an empty text as the premise alone.
        return self.premise.replace("{prompt}", draw.prompt), text or " "


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
            object.__setattr__(self, "texts", plain_documents(self.texts, "texts"))
            several = not isinstance(self.texts, str) and len(self.texts) > _MOST_TEXTS
            require(not several, f"{len(self.texts)} texts are too many; give at most {_MOST_TEXTS}")
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
        return (text, draw.prompt) if self.texts is None else (text,)

    def scores(self, inputs: Sequence[tuple[str, ...]]) -> list[float]:
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
