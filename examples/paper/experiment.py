"""The settings of an experiment: one YAML file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError, model_validator

from guardwrap.evaluation.evaluation_settings import STEPS
from guardwrap.training import TrainingSettings

SCALED = ("warm_samples", "samples_per_step", "updates", "gold_attempts", "final_attempts", "attempts",
          "more_attempts", "texts")  # fmt: skip

ITSELF, NAMES = "model itself", ("SFT", "DPG", "warm-start DPG", "ours")
SFT, DPG, WARM, OURS = NAMES


class Paper(TrainingSettings):
    """The settings of the trainings, and of the comparison.

    Parameters
    ----------
    title
        Title of the page.
    budgets
        Numbers of samples, ascending. A training is planned for the first and continues to the next.
    methods
        For each training, by name, the settings that differ from the others: the names in ``NAMES``, and more. With
        ``warm_share``, the share of each budget used for the warm start, each budget is trained from scratch, because
        a longer training does not begin like a shorter one.
    caps
        Constraint-aware prompts to compare, in addition to the hints; ``{word}`` and ``{Word}`` are the keyword.
    word
        The keyword; None for another kind of constraint.
    more_words
        Other keywords, with a constraint-aware prompt for each. Ours is trained for each, on the smallest budget.
    attempts
        Attempts of each proposal, over all prompts.
    more_attempts
        Attempts of the model itself for each of the other keywords, to measure on.
    texts, steps
        Number of IMH's texts and its numbers of steps, as in an evaluation.
    paper
        The paper's own figures, by method.
    """

    title: str
    budgets: list[int] = Field(min_length=3)
    methods: dict[str, dict[str, Any]]
    caps: list[str]
    word: str | None = None
    more_words: dict[str, str] = Field(default_factory=dict)
    attempts: int = Field(default=4000, ge=2)
    more_attempts: int = Field(default=10_000, ge=2)
    texts: int = Field(default=1000, ge=1)
    steps: list[int] = Field(default=list(STEPS), min_length=1)
    paper: dict[str, dict[str, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _trainings(self) -> Paper:
        if self.more_words and not isinstance(self.constraint, dict):
            raise ValueError("more_words: write the constraint in this file as a mapping, to replace its words")
        if missing := [name for name in NAMES if name not in self.methods]:
            raise ValueError(f"methods: {missing[0]!r} is missing; give all of {', '.join(NAMES)}")
        for name, changes in self.methods.items():
            if not isinstance(changes.get("warm_share", 0.0), float):
                raise ValueError(f"methods: {name}: warm_share: must be a number between 0 and 1, such as 0.5")
            try:
                self.training(name, min(self.budgets))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ValueError(f"methods: {name}: {where}: {first['msg']}") from None
        return self

    def scaled(self, factor: float) -> Paper:
        """Multiply every number of samples and updates, and keep at least one per prompt and hint."""
        least = len(self.prompts) * (len(self.hints) + 1)

        def size(number: int) -> int:
            return max(least, round(number * factor))

        numbers = {name: getattr(self, name) for name in SCALED}
        changed: dict[str, Any] = {name: size(number) for name, number in numbers.items() if number is not None}
        changed |= {"budgets": sorted(map(size, self.budgets)), "look": min(self.look, -(-changed["updates"] // 2))}
        return Paper.model_validate({**self.model_dump(), **changed})

    def training(self, method: str, samples: int) -> TrainingSettings:
        """Return the settings of one training."""
        own = {name: getattr(self, name) for name in TrainingSettings.model_fields}
        changes = dict(self.methods.get(method, {}))
        if self.anew(method):
            changes["warm_samples"] = round(changes.pop("warm_share") * samples)
        return TrainingSettings.model_validate({**own, **changes, "samples": samples})

    def anew(self, method: str) -> bool:
        """Whether each budget of a method is trained from scratch."""
        return "warm_share" in self.methods.get(method, {})

    def templates(self) -> dict[str, str]:
        """Return every constraint-aware prompt, by name."""
        word = self.word or ""
        filled = [cap.replace("{word}", word).replace("{Word}", word.capitalize()) for cap in self.caps]
        return {f"CAP {i}": text for i, text in enumerate(dict.fromkeys([*filled, *self.hints]), start=1)}
