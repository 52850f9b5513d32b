"""A minimal backend: texts over a few letters from a table, without a model and without torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from guardwrap.engine.scheduling.backend import AttemptState, Capabilities, Diagnosis, Ids, Launch, Lookahead
from guardwrap.engine.scheduling.randomness import uniforms
from guardwrap.outcomes import Draw

LETTERS = "-ab "  # the first one ends a text
LONGEST = 4


@dataclass(frozen=True, eq=False)
class TableLaw:
    """Probabilities of the next letter, by the length of the text and its last letter."""

    table: Mapping[tuple[int, int], tuple[float, ...]]
    count: int = 1
    mode: Literal["sample", "greedy", "beam"] = "sample"
    max_time: float | None = None
    beam_results: Sequence[tuple[Sequence[int], bool]] | None = None

    def texts(self) -> dict[tuple[int, ...], float]:
        """Return a(y) for every y."""
        done: dict[tuple[int, ...], float] = {}
        frontier: dict[tuple[int, ...], float] = {(): 1.0}
        for length in range(1, LONGEST + 1):
            grown: dict[tuple[int, ...], float] = {}
            for ids, p in frontier.items():
                for token, step in enumerate(self.following(ids)):
                    target = done if token == 0 or length == LONGEST else grown
                    target[(*ids, token)] = p * step
            frontier = grown
        return done

    def following(self, ids: Sequence[int]) -> tuple[float, ...]:
        """Return the probabilities of the next letter."""
        return self.table[len(ids), ids[-1] if ids else 1]


def random_law(seed: int, count: int = 1) -> TableLaw:
    """Return a law with probabilities drawn at random."""
    chance = uniforms(seed, 0, 0)
    table = {}
    for key in itertools.product(range(LONGEST), range(len(LETTERS))):
        weights = [0.1 + next(chance) for _ in LETTERS]
        table[key] = tuple(weight / sum(weights) for weight in weights)
    return TableLaw(table, count)


@dataclass
class TableBackend:
    """Draws attempts letter by letter, ``size`` concurrently."""

    size: int
    can: ClassVar[Capabilities] = Capabilities()
    mode: str = "table"
    steps: int = 0
    attempts: list[AttemptState] = field(default_factory=list)
    breaks: Callable[[AttemptState], Exception | None] = lambda attempt: None

    @property
    def room(self) -> int:
        return self.size - len(self.attempts)

    @property
    def running(self) -> int:
        return len(self.attempts)

    def lengths(self) -> dict[Hashable, list[int]]:
        found: dict[Hashable, list[int]] = {}
        for attempt in self.attempts:
            found.setdefault(attempt.launch.request, []).append(len(attempt.token_ids))
        return found

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        assert len(launches) <= self.room
        new = [AttemptState(each, stream=uniforms(each.seed, each.prompt, each.attempt)) for each in launches]
        self.attempts += new
        return self._drawn(new)

    def advance(self) -> list[AttemptState]:
        return self._drawn(self.attempts)

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[AttemptState]:
        gone = [attempt for attempt in self.attempts if unneeded(attempt.launch)]
        self.attempts = [attempt for attempt in self.attempts if not unneeded(attempt.launch)]
        return gone

    def narrow(self, launch: Launch, lookahead: Lookahead, ended: Sequence[tuple[Ids, bool]]) -> None:
        """Return None: not supported."""

    def diagnose(self, launch: Launch, lookahead: Lookahead) -> Diagnosis:
        """Return an empty diagnosis: not supported."""
        return Diagnosis()

    def _drawn(self, attempts: Sequence[AttemptState]) -> list[AttemptState]:
        self.steps += len(attempts)
        for attempt in attempts:
            attempt.computed += 1
            uniform = next(attempt.stream)
            below = itertools.accumulate(attempt.launch.law.following(attempt.token_ids))
            attempt.token_ids.append(min(sum(uniform >= p for p in below), len(LETTERS) - 1))
            self._settle(attempt)
        ended = [attempt for attempt in attempts if attempt.status != "running"]
        self.attempts = [attempt for attempt in self.attempts if attempt.status == "running"]
        return ended

    def _settle(self, attempt: AttemptState) -> None:
        if (error := self.breaks(attempt)) is not None:
            attempt.fail(error)
        elif attempt.token_ids[-1] == 0:
            attempt.status = "finished"
        elif len(attempt.token_ids) == LONGEST:
            attempt.status = "cut"
        elif attempt.launch.watch is not None and (blame := attempt.launch.watch(attempt.token_ids)):
            attempt.status, attempt.blame = "aborted", blame


def text_of(ids: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in ids if token)


@dataclass(frozen=True)
class TablePrompt:
    number: int
    law: TableLaw
    given: str = ""


def draw_of(prompt: TablePrompt, ids: Sequence[int], finished: bool, log_probability: float | None) -> Draw:
    return Draw(prompt.given, tuple(ids), text_of(ids), finished, log_probability)
