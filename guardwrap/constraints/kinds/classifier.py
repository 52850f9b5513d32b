"""The ``Classifier`` constraint: a threshold for the probability that a text classifier returns."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from guardwrap.constraints.base import Constraint, require
from guardwrap.constraints.kinds.text import require_choice
from guardwrap.constraints.views import View, read_view, view
from guardwrap.environment.hub import cached_or_online
from guardwrap.errors import CheckFailed, ConstraintError, ModelError, first_line, is_count, is_number, nearest
from guardwrap.outcomes import Draw

__all__ = ["Classifier", "ScoringConstraint", "loaded", "weights_digest"]


class ScoringConstraint(Constraint):
    """A constraint for which a model gives texts a probability, to be compared with a threshold."""

    model: Any
    threshold: float
    side: Literal["above", "below"]
    _weights: Any

    def require_threshold(self) -> None:
        """Check the threshold and its side."""
        require(is_number(self.threshold) and 0 <= self.threshold <= 1, "threshold must be a probability")
        object.__setattr__(self, "threshold", float(self.threshold))
        require_choice(self.side, ("above", "below"), "side")

    def is_right(self, probability: float) -> bool:
        """Whether a probability is on the right side of the threshold."""
        return probability > self.threshold if self.side == "above" else probability < self.threshold

    def spec(self) -> dict[str, Any]:
        """Return the canonical form. A pipeline appears as its model's name and a hash of its weights."""
        spec = super().spec()
        if not isinstance(self.model, str):
            spec["model"] = f"{self.model.model.config.name_or_path}#{self._weights}"
        return spec

    @property
    def in_memory(self) -> bool:
        """Whether the model is a pipeline object, not a name."""
        return not isinstance(self.model, str)


@dataclass(frozen=True, eq=False, repr=False)
class Classifier(ScoringConstraint):
    """A text classifier gives a label a probability above, or below, a threshold.

    Parameters
    ----------
    model
        A Hub id, a path, or a Hugging Face text-classification pipeline.
    label
        The label whose probability counts, as in the model's ``id2label``.
    threshold
        Probability between 0 and 1.
    side
        ``"above"``: probability > threshold; ``"below"``: probability < threshold.
    too_long
        How to handle a text that exceeds the classifier's maximum length: ``"raise"`` CheckFailed, or ``"truncate"``.
    batch_size
        Texts per forward pass.
    on
        The view of the text that is judged.
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
    The paper's positive ending, on any sentiment model::

        Classifier("path/or/hub-id", "positive", 0.98, on="last_sentence")
    """

    model: Annotated[Any, WithJsonSchema({"type": "string"})]
    label: str
    threshold: float
    side: Literal["above", "below"] = field(default="above", kw_only=True)
    too_long: Literal["raise", "truncate"] = field(default="raise", kw_only=True)
    batch_size: int = field(default=32, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["classifier"] = field(default="classifier", kw_only=True)

    cost = 2

    def __post_init__(self) -> None:
        require(
            (isinstance(self.model, str) and bool(self.model)) or hasattr(self.model, "tokenizer"),
            f"model must be a Hub id, a path or a text-classification pipeline, not {type(self.model).__name__}",
        )
        require(isinstance(self.label, str) and bool(self.label), "label must be a non-empty string")
        self.require_threshold()
        require_choice(self.too_long, ("raise", "truncate"), "too_long")
        require(
            is_count(self.batch_size) and self.batch_size > 0,
            "batch_size must be a whole number of at least 1",
        )
        object.__setattr__(self, "on", read_view(self.on))
        if not isinstance(self.model, str):
            self.pipeline  # noqa: B018  # report an unknown label now, not at the first text

    @cached_property
    def pipeline(self) -> Any:
        """The loaded pipeline, its labels checked."""
        pipe = loaded("text-classification", self.model) if isinstance(self.model, str) else self.model
        labels = [str(name) for name in pipe.model.config.id2label.values()]
        if self.label not in labels:
            raise ConstraintError(
                f"the classifier has no label {self.label!r}{nearest(self.label, labels)}; it has {', '.join(labels)}"
            )
        return pipe

    @cached_property
    def max_tokens(self) -> int:
        """The classifier's maximum input length in its own tokens, including special tokens."""
        limits = (
            getattr(self.pipeline.tokenizer, "model_max_length", None),
            getattr(self.pipeline.model.config, "max_position_embeddings", None),
        )
        # A tokenizer without a limit reports 10**30, which its own truncation rejects.
        return min(10**9, *(int(limit) for limit in limits if limit))

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """Return the label's probability for each text.

        Raises
        ------
        CheckFailed
            If a text is too long and ``too_long`` is ``"raise"``, or the classifier gives NaN or an infinite number.
        """
        if not texts:
            return []
        if self.too_long == "raise":
            longest = max(len(ids) for ids in self.pipeline.tokenizer(list(texts), verbose=False)["input_ids"])
            if longest > self.max_tokens:
                raise CheckFailed(
                    self.title,
                    f"got a text of {longest} tokens, more than its maximum of {self.max_tokens}; set "
                    "too_long='truncate' or judge a shorter view, e.g. on='last_sentence'",
                )
        results = self.pipeline(
            list(texts), top_k=None, truncation=True, max_length=self.max_tokens, batch_size=self.batch_size
        )
        probabilities = [next(float(row["score"]) for row in rows if row["label"] == self.label) for rows in results]
        for probability in probabilities:
            # This cannot count as a rejection, because under ~ it would count as a pass.
            if not math.isfinite(probability):
                what = "NaN" if math.isnan(probability) else "an infinite number"
                raise CheckFailed(
                    self.title, f"returned {what} instead of a probability; load its model in float32, or use another"
                )
        return probabilities

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Score the strings of each draw's view; all of them must be on the right side of the threshold."""
        texts = [view(draw, self.on) for draw in draws]
        unique = list(dict.fromkeys(text for group in texts for text in group or ()))
        scores = dict(zip(unique, self.probabilities(unique), strict=True))
        return [group is not None and all(self.is_right(scores[text]) for text in group) for group in texts]

    @cached_property
    def _weights(self) -> str:
        labels = sorted((int(index), str(label)) for index, label in self.model.model.config.id2label.items())
        return weights_digest(self.model.model, repr(labels))


@lru_cache(maxsize=4)
def loaded(task: str, name: str) -> Any:
    """Return a pipeline by its name. It is loaded once, as every request to a server has constraints of its own.

    Raises
    ------
    ModelError
        If it cannot be loaded.
    """
    from transformers import pipeline

    try:
        return pipeline(task, model=cached_or_online(name))
    except Exception as error:  # the libraries raise anything for a damaged file
        what = "judge" if task == "text-generation" else "classifier"
        raise ModelError(f"cannot load the {what} {name!r}: {first_line(error)}") from None


def weights_digest(model: Any, begun: str = "") -> str:
    """Return 16 hex digits of the SHA-256 of a text and the weights of a model."""
    digest = hashlib.sha256(begun.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]
