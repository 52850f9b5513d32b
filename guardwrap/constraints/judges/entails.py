"""The ``Entails`` constraint: a model of natural-language inference says that the text follows from a premise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from guardwrap.constraints.field_checks import require, shown
from guardwrap.constraints.kinds.classifier import LabelConstraint
from guardwrap.constraints.views import View
from guardwrap.documents.limits import is_text
from guardwrap.outcomes import Draw


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
            If a pair is too long and ``too_long`` is ``"raise"``, or the classifier gives NaN or an infinite number.
        """
        return self.scores_of(texts, prompts)

    def model_input(self, draw: Draw, text: str) -> tuple[str, ...]:
        """Return the premise and the text."""
        # transformers would read a pair with an empty text as the premise alone.
        return self.premise.replace("{prompt}", draw.prompt), text or " "
