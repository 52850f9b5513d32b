"""The ``Classifier`` constraint: a threshold for the probability that a text classifier returns."""

from __future__ import annotations

import copy
import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.field_checks import require, require_choice
from guardwrap.constraints.views import View, read_view, view
from guardwrap.errors import (
    CheckFailed,
    ConstraintError,
    ModelError,
    UsageError,
    first_line,
    is_count,
    is_number,
    nearest,
)
from guardwrap.outcomes import Draw
from guardwrap.support.limits import readable
from guardwrap.support.model_loading import computing, loading_model
from guardwrap.support.network import cached_or_online
from guardwrap.support.threads import cached_property


class ScoringConstraint(Constraint):
    """A constraint for which a model gives texts a number, to be compared with a threshold."""

    model: Any
    threshold: float
    side: Literal["above", "below"]
    on: View
    _weights: Any

    def _shown(self) -> Constraint:
        """Return the constraint for its label, with the last part of a model's path: folders say nothing there."""
        if not isinstance(self.model, str) or not Path(self.model).is_dir():
            return self
        shown = copy.copy(self)
        object.__setattr__(shown, "model", Path(self.model).name)
        return shown

    def require_threshold(self) -> None:
        """Check the threshold, a probability, and its side."""
        require(is_number(self.threshold) and 0 <= self.threshold <= 1, "threshold must be a probability")
        self.require_side()

    def require_side(self) -> None:
        """Check the side, and make the threshold a float."""
        object.__setattr__(self, "threshold", float(self.threshold))
        require_choice(self.side, ("above", "below"), "side")

    def require_model(self, task: str) -> None:
        """Check that the model is a name, or looks like a pipeline for this task whose numbers do not vary."""
        require(
            (isinstance(self.model, str) and bool(self.model)) or hasattr(self.model, "tokenizer"),
            f"model must be a Hub id, a path or a {task} pipeline, not {type(self.model).__name__}",
        )
        training = getattr(getattr(self.model, "model", None), "training", False) is True
        require(not training, "model is in training mode, so dropout changes its numbers; call model.eval()")

    def is_right(self, score: float) -> bool:
        """Whether a number is on the right side of the threshold."""
        return score > self.threshold if self.side == "above" else score < self.threshold

    def model_input(self, draw: Draw, text: str) -> tuple[str, ...]:
        """Return all that the number of one string of a draw depends on."""
        return (text,)

    @abstractmethod
    def scores(self, inputs: Sequence[tuple[str, ...]]) -> list[float]:
        """Return the number for each of several different inputs."""

    def scores_of(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[float]:
        """Return the number for each text, after its prompt; None for empty prompts."""
        pairs = zip(texts, prompts or [""] * len(texts), strict=True)
        inputs = [self.model_input(Draw(prompt, (), text), text) for text, prompt in pairs]
        return self.scores(inputs) if inputs else []

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Score the strings of each draw's view; all of them must be on the right side of the threshold."""
        views = [view(draw, self.on) for draw in draws]
        pairs = zip(draws, views, strict=True)
        inputs = [[self.model_input(draw, text) for text in texts or ()] for draw, texts in pairs]
        unique = list(dict.fromkeys(each for group in inputs for each in group))
        scores = dict(zip(unique, self.scores(unique) if unique else (), strict=True))
        right = [all(self.is_right(scores[each]) for each in group) for group in inputs]
        return [texts is not None and each for texts, each in zip(views, right, strict=True)]

    def spec(self) -> dict[str, Any]:
        """Return the canonical form. A pipeline appears as its model's name and a hash of its weights."""
        spec = super().spec()
        if not isinstance(self.model, str):
            spec["model"] = f"{self.model.model.config.name_or_path}#{self._weights}"
        return spec

    def sources(self) -> dict[str, str]:
        """Return the model, if it is given by its name; the canonical form has a hash of a pipeline's weights."""
        return super().sources() | ({self.model: self.model} if isinstance(self.model, str) else {})

    @property
    def in_memory(self) -> bool:
        return not isinstance(self.model, str)


class LabelConstraint(ScoringConstraint):
    """A constraint on the probability of a label that a text-classification pipeline gives a text, or a pair of texts.

    Special tokens in the texts are read as plain text.
    """

    label: str
    too_long: Literal["raise", "truncate"]
    batch_size: int

    cost = 2

    def require_fields(self) -> None:
        """Check the fields that all of these constraints have."""
        self.require_model("text-classification")
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

    def probabilities(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[float]:
        """Return the label's probability for each text.

        Parameters
        ----------
        texts
            The texts.
        prompts
            The prompt of each text, for premises with ``{prompt}``; None for empty ones.

        Raises
        ------
        CheckFailed
            If an input is too long and ``too_long`` is ``"raise"``, or the classifier gives NaN or an infinite number.
        """
        return self.scores_of(texts, prompts)

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
        return most_tokens(self.pipeline)

    def scores(self, inputs: Sequence[tuple[str, ...]]) -> list[float]:
        """Return the label's probability for each input: a tuple of a text, or of two. See also ``probabilities``.

        Raises
        ------
        UsageError
            If an input is a text and not a tuple.
        CheckFailed
            If an input is too long and ``too_long`` is ``"raise"``, or the classifier gives NaN or an infinite number.
        """
        if any(isinstance(each, str) for each in inputs):
            raise UsageError("scores() takes tuples of one or two texts; pass texts to probabilities()")
        inputs = [tuple(map(readable, each)) for each in inputs]
        if self.too_long == "raise":
            require_short(self, self.pipeline, inputs, self.max_tokens, "set too_long='truncate' or ")
        pipe = self.pipeline  # loaded before ``computing``, as a load waits for models that are run
        with computing():
            results = pipe(
                [text[0] if len(text) == 1 else {"text": text[0], "text_pair": text[1]} for text in inputs],
                top_k=None,
                truncation=True,
                max_length=self.max_tokens,
                batch_size=self.batch_size,
                split_special_tokens=True,
            )
        probabilities = [next(float(row["score"]) for row in rows if row["label"] == self.label) for rows in results]
        for probability in probabilities:
            require_finite(self, probability, "probability")
        return probabilities

    @cached_property
    def _weights(self) -> str:
        labels = sorted((int(index), str(label)) for index, label in self.model.model.config.id2label.items())
        return weights_digest(self.model.model, repr(labels))


@dataclass(frozen=True, eq=False, repr=False)
class Classifier(LabelConstraint):
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

    def __post_init__(self) -> None:
        self.require_fields()


def most_tokens(pipe: Any) -> int:
    """Return the maximum input length of a pipeline in its tokens, including special tokens."""
    limits = (
        getattr(pipe.tokenizer, "model_max_length", None),
        getattr(pipe.model.config, "max_position_embeddings", None),
    )
    # A tokenizer without a limit reports 10**30, which its own truncation rejects.
    return min([10**9, *(int(limit) for limit in limits if limit)])


def require_short(
    constraint: Constraint, pipe: Any, inputs: Sequence[tuple[str, ...]], most: int, way_out: str = ""
) -> None:
    """Raise CheckFailed if a text, or a pair of texts, has more tokens than the model of a pipeline can read."""
    columns = map(list, zip(*inputs, strict=True))
    encoded = pipe.tokenizer(*columns, verbose=False, split_special_tokens=True)
    longest = max(len(ids) for ids in encoded["input_ids"])
    if longest > most:
        what = "a text" if len(inputs[0]) == 1 else "a premise and a text"
        raise CheckFailed(
            constraint.title,
            f"got {what} of {longest} tokens, more than its maximum of {most}; {way_out}judge a shorter view, e.g. "
            "on='last_sentence'",
        )


def require_finite(constraint: Constraint, number: float, what: str) -> None:
    """Raise CheckFailed for NaN and infinite numbers. They cannot count as a rejection, which passes under ``~``."""
    if not math.isfinite(number):
        kind = "NaN" if math.isnan(number) else "an infinite number"
        raise CheckFailed(
            constraint.title, f"returned {kind} instead of a {what}; load its model in float32, or use another"
        )


_ROLES = {"text-generation": "judge", "text-classification": "classifier", "feature-extraction": "encoder"}


@lru_cache(maxsize=4)
def loaded(task: str, name: str) -> Any:
    """Return a pipeline by its name. It is loaded once, as every request to a server has constraints of its own."""
    from transformers import pipeline

    try:
        source = cached_or_online(name)
        with loading_model():
            return pipeline(task, model=source)
    except Exception as error:  # the libraries raise anything for a damaged file
        what = _ROLES[task]
        raise ModelError(f"cannot load the {what} {name!r}: {first_line(error)}") from None


def weights_digest(model: Any, begun: str = "") -> str:
    """Return 16 hex digits of the SHA-256 of a text and the weights of a model."""
    digest = hashlib.sha256(begun.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]
