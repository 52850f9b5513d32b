"""The backend that draws whole texts with transformers' own loop, for models with inputs other than a text's tokens.

Encoder-decoder models and models for images or speech keep states that our loop does not support. ``generate`` prepares
them, for all attempts of a prompt that are launched together, and runs its own loop; guardwrap only chooses each token.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import MaxLengthCriteria, MaxTimeCriteria

from guardwrap.engine.forward_passes import halved
from guardwrap.engine.generation_law import ended_rows
from guardwrap.engine.scheduling.backend import AttemptState, Capabilities, Diagnosis, Ids, Launch, Lookahead
from guardwrap.engine.token_sampling import choose_tokens, new_attempt, note
from guardwrap.errors import UsageError, own_error
from guardwrap.support.model_loading import computing
from guardwrap.support.transformers_internals import sampling_loop, stand_in


class GenerateBackend:
    """Draws attempts from start to end, those of one prompt concurrently.

    ``size``: maximum number of concurrent attempts. It is halved when memory runs out: the attempts then restart, and
    draw the same tokens, because their random numbers do not depend on the batch.
    """

    mode = "generate"
    can: Capabilities = Capabilities()

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: list[Launch] = []

    @property
    def room(self) -> int:
        """Number of attempts that can be launched now."""
        return max(0, self._size - len(self._queue))

    @property
    def running(self) -> int:
        """Number of attempts that wait to be drawn."""
        return len(self._queue)

    def lengths(self) -> dict[Hashable, list[int]]:
        """Return the number of tokens of each waiting attempt, by request: all are 0."""
        lengths: dict[Hashable, list[int]] = {}
        for launch in self._queue:
            lengths.setdefault(launch.request, []).append(0)
        return lengths

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        """Queue new attempts, at most ``room`` of them. Returns an empty list, as none has ended yet."""
        self._queue += launches
        return []

    def advance(self) -> list[AttemptState]:
        """Draw the queued attempts of the prompt that is first in the queue, and return them."""
        law = self._queue[0].law
        turn = [i for i, launch in enumerate(self._queue) if launch.law is law][: self._size]
        attempts = [new_attempt(self._queue[i]) for i in turn]
        try:
            _draw(attempts)
        except torch.OutOfMemoryError as error:
            self._size = halved(self._size, error)
            return []
        except BaseException as error:
            own = own_error(error)
            for attempt in attempts:
                attempt.fail(own)
        self._queue = [launch for i, launch in enumerate(self._queue) if i not in turn]
        return attempts

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[AttemptState]:
        """Remove queued attempts that are no longer needed. Returns an empty list, as none of them has started."""
        self._queue = [launch for launch in self._queue if not unneeded(launch)]
        return []

    def narrow(self, launch: Launch, lookahead: Lookahead, ended: Sequence[tuple[Ids, bool]]) -> None:
        """Return None: not supported, because texts are drawn whole."""

    def diagnose(self, launch: Launch, lookahead: Lookahead) -> Diagnosis:
        """Return an empty diagnosis: not supported, because texts are drawn whole."""
        return Diagnosis()


def _draw(attempts: Sequence[AttemptState]) -> None:
    """Draw attempts of one prompt from start to end, with one call of the model's ``generate``."""
    law = attempts[0].launch.law

    def sample(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        if attempts[0].token_ids or len(input_ids) != len(attempts):
            raise UsageError(
                f"{type(model).__name__} is not supported, because its generate does not draw each text in one round; "
                "use another model"
            )
        config = copy.copy(generation_config)
        # ``_Choice`` leaves only the token that it has drawn, which greedy search then selects.
        config.do_sample = config.return_dict_in_generate = False
        with computing():
            sampling_loop(
                model,
                input_ids,
                logits_processor=LogitsProcessorList([*logits_processor, _Choice(attempts)]),
                stopping_criteria=_Settled(stopping_criteria, attempts),
                generation_config=config,
                **model_kwargs,
            )
        return stand_in(input_ids, generation_config)

    more: dict[str, Any] = {"num_return_sequences": len(attempts)}
    if law.mode == "sample":
        # Whisper samples if there is a temperature, but without these transformers rejects several sequences.
        more |= {"do_sample": True, "num_beams": 1}
    law.generate(custom_generate=sample, **more)


def _running(attempts: Sequence[AttemptState]) -> list[int]:
    """Return rows whose attempts have not ended. ``generate`` pads the other rows until the last attempt ends."""
    return [row for row, attempt in enumerate(attempts) if attempt.status == "running"]


class _Choice(LogitsProcessor):
    """The last logits processor: draws a token for each running attempt, appends it, and excludes all others."""

    def __init__(self, attempts: Sequence[AttemptState]) -> None:
        self._attempts = attempts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = _running(self._attempts)
        if not rows:
            return scores  # on some devices transformers detects the end one step late
        chosen = [self._attempts[row] for row in rows]
        tokens = choose_tokens(scores[rows], chosen, [next(attempt.stream) for attempt in chosen])
        only = torch.full_like(scores, float("-inf"))
        only[rows, tokens] = 0.0
        return only


class _Settled(StoppingCriteriaList):
    """Stopping criteria that also set the status of each attempt."""

    def __init__(self, criteria: StoppingCriteriaList, attempts: Sequence[AttemptState]) -> None:
        super().__init__(criteria)
        self._attempts = attempts

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        finished = cut = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for criterion in self:
            stops = ended_rows(criterion, input_ids, scores, **kwargs)
            if type(criterion) in (MaxLengthCriteria, MaxTimeCriteria):
                cut = cut | stops
            else:
                finished = finished | stops
        now = time.monotonic()
        for attempt, ends, limit in zip(self._attempts, finished.tolist(), cut.tolist(), strict=True):
            if attempt.status == "running":
                note(attempt, ends, limit, now)
        return torch.tensor([attempt.status != "running" for attempt in self._attempts], device=input_ids.device)
