"""Whole texts at once, drawn by transformers' own loop: for models that are fed more than a text's tokens.

Encoder-decoder models and those that see or hear keep states that our loop does not know. ``generate`` prepares them,
for all attempts of a prompt that are launched together, and runs its own loop; only the choice of each token is ours.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import MaxLengthCriteria, MaxTimeCriteria

from guardwrap.engine.decode import Decoded, Launch, draw_tokens, halved, stream_of
from guardwrap.engine.prepare import Settings, stand_in
from guardwrap.errors import UsageError

__all__ = ["Whole", "WholeWatch", "draw"]

WholeWatch = Callable[[Sequence[int], Settings], str | None]
"""From the token ids so far and the prompt's settings to the part of the constraint that they violate, or None."""


class Whole:
    """Draws attempts to their end, those of one prompt side by side; has what ``serve`` uses of a Decoder.

    Parameters
    ----------
    size
        Attempts side by side, at most. Halved when memory runs out: those begin again, and as their randomness is
        their own they draw the same tokens.
    watch
        Judges the tokens of a running attempt; a title aborts it. None judges nothing.
    """

    def __init__(self, size: int, watch: WholeWatch | None = None) -> None:
        self._size = size
        self._watch = watch
        self._queue: list[Launch] = []

    @property
    def room(self) -> int:
        """How many attempts can be launched now."""
        return max(0, self._size - len(self._queue))

    @property
    def running(self) -> int:
        """How many attempts wait to be drawn."""
        return len(self._queue)

    def lengths(self) -> dict[int, list[int]]:
        """How many tokens the attempts that wait have, by prompt: none yet."""
        found: dict[int, list[int]] = {}
        for launch in self._queue:
            found.setdefault(launch.prompt, []).append(0)
        return found

    def launch(self, launches: Sequence[Launch]) -> list[Decoded]:
        """Queue new attempts, at most ``room`` of them; return those that ended at once: there are none."""
        self._queue += launches
        return []

    def advance(self) -> list[Decoded]:
        """Draw the attempts of the prompt whose turn it is, and return them."""
        settings = self._queue[0].settings
        turn = [i for i, launch in enumerate(self._queue) if launch.settings is settings][: self._size]
        try:
            ended = draw([self._queue[i] for i in turn], self._watch)
        except torch.OutOfMemoryError as error:
            self._size = halved(self._size, error)
            torch.cuda.empty_cache()
            return []
        self._queue = [launch for i, launch in enumerate(self._queue) if i not in turn]
        return ended

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[Decoded]:
        """Forget the attempts that are not needed any more; return those that had begun: there are none."""
        self._queue = [launch for launch in self._queue if not unneeded(launch)]
        return []


def draw(launches: Sequence[Launch], watch: WholeWatch | None) -> list[Decoded]:
    """Draw attempts of one prompt with one call of the model's ``generate``.

    Parameters
    ----------
    launches
        They share their settings.
    watch
        As in Whole.

    Returns
    -------
    list of Decoded
        All of them, ended.

    Raises
    ------
    UsageError
        If the model's ``generate`` draws a text in several rounds.
    """
    attempts = [Decoded(launch, stream=stream_of(launch)) for launch in launches]
    settings = launches[0].settings

    def sample(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        if attempts[0].token_ids or len(input_ids) != len(attempts):
            raise UsageError(f"{type(model).__name__} is not supported: its generate does not draw each text once")
        config = copy.copy(generation_config)
        # The choice leaves one token, which greedy search then takes.
        config.do_sample = config.return_dict_in_generate = False
        model._sample(
            input_ids,
            logits_processor=LogitsProcessorList([*logits_processor, _Choice(attempts)]),
            stopping_criteria=_Settled(stopping_criteria, attempts, watch),
            generation_config=config,
            **model_kwargs,
        )
        return stand_in(input_ids, generation_config)

    more: dict[str, Any] = {"num_return_sequences": len(launches)}
    if settings.mode == "sample":
        # Whisper samples because of a temperature, and transformers refuses several sequences without these.
        more |= {"do_sample": True, "num_beams": 1}
    settings.generate(custom_generate=sample, **more)
    return attempts


def _running(attempts: Sequence[Decoded]) -> list[int]:
    """Rows whose attempts have not ended: ``generate`` goes on with the others' padding until the last one ends."""
    return [row for row, attempt in enumerate(attempts) if attempt.status == "running"]


class _Choice(LogitsProcessor):
    """The last logits processor: draws a token for each running attempt, notes it, and leaves only that."""

    def __init__(self, attempts: Sequence[Decoded]) -> None:
        self._attempts = attempts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = _running(self._attempts)
        if not rows:
            return scores  # on some devices transformers notices the end a step late
        tokens = draw_tokens(scores[rows], [self._attempts[row] for row in rows])
        only = torch.full_like(scores, float("-inf"))
        only[rows, tokens] = 0.0
        return only


class _Settled(StoppingCriteriaList):
    """Stopping criteria that note how each attempt ended: as in ``decode``, each by its own."""

    def __init__(self, criteria: StoppingCriteriaList, attempts: Sequence[Decoded], watch: WholeWatch | None) -> None:
        super().__init__(criteria)
        self._attempts = attempts
        self._watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        finished = cut = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for criterion in self:
            stops = criterion(input_ids, scores, **kwargs)
            if isinstance(criterion, MaxLengthCriteria | MaxTimeCriteria):
                cut = cut | stops
            else:
                finished = finished | stops
        now = time.monotonic()
        for attempt, ends, limit in zip(self._attempts, finished.tolist(), cut.tolist(), strict=True):
            launch = attempt.launch
            if attempt.status != "running":
                continue
            if ends or limit:
                attempt.status = "finished" if ends else "cut"
            elif self._watch and (blame := self._watch(attempt.token_ids, launch.settings)):
                attempt.status, attempt.blame = "aborted", blame
            elif launch.deadline is not None and now >= launch.deadline:
                attempt.status = "abandoned"
        return torch.tensor([attempt.status != "running" for attempt in self._attempts], device=input_ids.device)
