"""An enumerated world whose texts differ by the position of their only "a", and a source of attempts from it."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from guardwrap.outcomes import Draw
from guardwrap.samplers import Attempt
from tests.fixtures_laws import imh_law, normal, qrs_law

LENGTH = 10


def undrawn(patch: pytest.MonkeyPatch) -> None:
    """Leave out page and charts, which are slower than the figures; test_evaluation_report.py tests them."""
    patch.setattr("guardwrap.evaluation.evaluation_run.png_of", lambda *_: b"")
    patch.setattr("guardwrap.evaluation.evaluation_run.html_report", lambda *_: "")


@dataclass(frozen=True)
class Placed:
    """A model and a proposal. Texts satisfy the constraint if they contain an a."""

    texts: list[str]
    a: np.ndarray
    proposal: np.ndarray

    @property
    def satisfied(self) -> np.ndarray:
        return np.array(["a" in text for text in self.texts])

    @property
    def weights(self) -> np.ndarray:
        """P / a'."""
        return np.where(self.satisfied, self.a / self.proposal, 0.0)

    @property
    def z(self) -> float:
        return float(self.a[self.satisfied].sum())

    @property
    def gold(self) -> np.ndarray:
        return normal(self.a * self.satisfied)

    def rejection(self) -> np.ndarray:
        return normal(self.proposal * self.satisfied)

    def qrs(self, beta: float) -> np.ndarray:
        return qrs_law(self.proposal * self.satisfied, self.weights, beta)

    def imh(self, steps: int) -> np.ndarray:
        return imh_law(self.proposal * self.satisfied, self.weights, steps)

    def places(self, law: np.ndarray) -> np.ndarray:
        """Share of texts by the position of the a."""
        return np.bincount([text.find("a") % LENGTH for text in self.texts], weights=law, minlength=LENGTH)

    def projected(self, law: np.ndarray) -> float:
        """KL from g over the positions."""
        p, q = self.places(self.gold), self.places(law)
        return float((p * np.log(p / q)).sum())

    def attempts(self, count: int, seed: int, *, base: bool = False) -> list[Attempt]:
        chance = np.random.default_rng(seed)
        law = self.a if base else self.proposal
        weights = self.satisfied * 1.0 if base else self.weights
        with np.errstate(divide="ignore"):
            logs = np.log(weights)
        # One at a time, so that the first attempts do not depend on their number.
        numbers, uniforms = chance.random((count, 2)).T
        picked = np.minimum(np.searchsorted(law.cumsum(), numbers, side="right"), len(law) - 1)
        return [
            Attempt(
                Draw("p", (int(i),), self.texts[i], log_proposal=math.log(law[i])),
                bool(self.satisfied[i]),
                float(logs[i]),
                float(uniform),
            )
            for i, uniform in zip(picked, uniforms, strict=True)
        ]


def placed(slope: float = 0.45, *, letters: str = "bcde") -> Placed:
    """Return a world of 40 texts with an a, early in g and late in the proposal, and four without."""
    chance = np.random.default_rng(0)
    texts = [letter * place + "a" + letter * (LENGTH - 1 - place) for place in range(LENGTH) for letter in letters]
    place = np.arange(len(texts)) // len(letters)
    a = np.exp(-0.15 * place + 0.3 * chance.normal(size=len(texts)))
    proposal = a * np.exp(slope * place + 0.4 * chance.normal(size=len(texts)))
    without = np.full(len(letters), 1 / len(letters))
    return Placed(
        texts + [letter * LENGTH for letter in letters],
        np.concatenate([0.3 * normal(a), 0.7 * without]),
        np.concatenate([0.6 * normal(proposal), 0.4 * without]),
    )


class Source:
    """Draws attempts as a ``GuardedGenerator`` does; counts its calls."""

    def __init__(self, world: Placed) -> None:
        self.world = world
        self.session = SimpleNamespace(of_weights=())
        self.calls: list[tuple[str | None, int, int]] = []  # drawn from, attempts, seed

    def attempts(self, prompts, count, *, proposal=None, adapter=None, seed=None, on_attempt=None, **options):
        given = getattr(proposal, "template", proposal) or adapter
        self.calls.append((given, count, seed))
        for _ in range(count * len(prompts)) if on_attempt is not None else ():
            on_attempt()
        return [self.world.attempts(count, seed + i, base=given is None) for i, _ in enumerate(prompts)]
