"""The decoding loop: attempts of any prompts side by side, one model call a token."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from guardwrap.engine.prepare import Settings
from guardwrap.engine.randomness import uniforms
from guardwrap.engine.rows import Ids, Rows
from guardwrap.engine.tokens import argmax, inverse_cdf, warped
from guardwrap.errors import ModelError

logger = logging.getLogger("guardwrap")

__all__ = ["Decoded", "Decoder", "Launch", "draw_tokens", "halved", "stream_of"]


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt about to be drawn.

    Parameters
    ----------
    settings
        Of its prompt; launches that share the object share one prefill.
    seed, prompt, attempt
        What its randomness belongs to.
    deadline
        ``time.monotonic()`` at which it is abandoned, or None.
    """

    settings: Settings
    seed: int
    prompt: int
    attempt: int
    deadline: float | None = None


@dataclass(slots=True)
class Decoded:
    """An attempt on its way, or as the loop left it.

    Parameters
    ----------
    launch
        What was asked.
    token_ids
        The new tokens, the end-of-sequence token included.
    log_probability
        log a' of ``token_ids`` in nats, summed in float64.
    status
        ``"running"``, ``"finished"`` (ended by itself), ``"cut"`` (token limit, or ``max_time``), ``"aborted"``
        (verdict VIOLATED), ``"abandoned"`` (deadline) or ``"cancelled"`` (not needed any more).
    blame
        Which part of the constraint aborted it.
    stream
        Its uniforms.
    began
        ``time.monotonic()`` of its launch.
    """

    launch: Launch
    token_ids: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    status: str = "running"
    blame: str | None = None
    stream: Iterator[float] = field(default_factory=lambda: iter(()), repr=False)
    began: float = field(default_factory=lambda: time.monotonic())

    @property
    def prefix(self) -> Ids:
        """Prompt and tokens so far."""
        return (*self.launch.settings.ids, *self.token_ids)


Watch = Callable[[Sequence[int]], str | None]
"""From the token ids so far to the part of the constraint that they violate for good, or None."""


SHARED = math.log(128)
"""Prefixes of at least this probability, 1 in 128, are kept for attempts to come."""


class Decoder:
    """Draws attempts side by side.

    Attempts with the same tokens so far are one row: one of them computes what comes next, the others wait for it. What
    was computed for likely prefixes is kept, and attempts launched later begin where it ends.

    Parameters
    ----------
    make_rows
        Makes empty rows, where attempts keep their states.
    size
        How many at once, at most. Halved when memory runs out: what was running begins again, and as its randomness
        is its own it draws the same tokens.
    watch
        Judges the tokens of a running attempt; a title aborts it. None judges nothing.

    Attributes
    ----------
    row_steps : int
        Rows × model calls so far, prefills not counted.
    """

    def __init__(self, make_rows: Callable[[], Rows], size: int, watch: Watch | None = None) -> None:
        self._make_rows = make_rows
        self._rows = make_rows()
        self._size = size
        self._again: list[Launch] = []  # to begin again, after memory ran out
        self._watch = watch
        self._running: list[Decoded] = []  # one a row
        self._waiting: list[Decoded] = []  # for a row that has the same tokens
        self._tokens = torch.empty(0)  # the newest of each running attempt
        self.row_steps = 0

    @property
    def room(self) -> int:
        """How many attempts can be launched now."""
        free = self._size - self.running
        return max(0, free) if self._rows.refills or not self._running else 0

    @property
    def running(self) -> int:
        """How many attempts are on their way."""
        return len(self._running) + len(self._waiting) + len(self._again)

    def lengths(self) -> dict[int, list[int]]:
        """How many tokens the attempts on their way have, by prompt."""
        found: dict[int, list[int]] = {}
        for attempt in (*self._running, *self._waiting):
            found.setdefault(attempt.launch.prompt, []).append(len(attempt.token_ids))
        for launch in self._again:
            found.setdefault(launch.prompt, []).append(0)
        return found

    @torch.no_grad()
    def launch(self, launches: Sequence[Launch]) -> list[Decoded]:
        """Draw the first tokens of new attempts.

        Parameters
        ----------
        launches
            At most ``room`` of them, of one call: they share the warpers.

        Returns
        -------
        list of Decoded
            Those that ended with them.
        """
        return self._begin([Decoded(launch, stream=stream_of(launch)) for launch in launches])

    @torch.no_grad()
    def advance(self) -> list[Decoded]:
        """Draw one token for each running attempt; return those that ended with it."""
        if self._again and (self._rows.refills or not self._running):
            count = self._size - len(self._running) - len(self._waiting)
            again, self._again = self._again[:count], self._again[count:]
            if again:
                return self.launch(again)
        try:
            self._seat_orphans()
            logits = self._rows.forward(self._tokens, self._memorable())
        except torch.OutOfMemoryError as error:
            self._halve((), error)
            return []
        self.row_steps += len(self._running)
        self._tokens = _draw(logits, self._running, self._watch)
        ended = self._take_ended()
        waiting, self._waiting = self._waiting, []
        return ended + self._begin(waiting) if waiting else ended

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[Decoded]:
        """Stop the running attempts that are not needed any more and return them."""
        self._again = [launch for launch in self._again if not unneeded(launch)]
        for attempt in (*self._running, *self._waiting):
            if unneeded(attempt.launch):
                attempt.status = "cancelled"
        gone = [attempt for attempt in self._waiting if attempt.status == "cancelled"]
        self._waiting = [attempt for attempt in self._waiting if attempt.status == "running"]
        return self._take_ended() + gone

    def _begin(self, attempts: Sequence[Decoded]) -> list[Decoded]:
        """Draw for attempts without a row while what comes next is known; return those that ended.

        The others get a row, or wait for the one that has the same tokens.
        """
        ended: list[Decoded] = []
        computed = set(self._memorable().values())
        while attempts:
            try:
                logits = self._rows.add([attempt.prefix for attempt in attempts])
            except torch.OutOfMemoryError as error:
                self._halve(attempts, error)
                return ended
            first = len(self._running)
            tokens = _draw(logits, attempts, self._watch)
            further, seated = [], list(range(first))
            for row, attempt in enumerate(attempts, start=first):
                if attempt.status != "running":
                    ended.append(attempt)
                elif not self._is_shared(attempt):
                    seated.append(row)
                elif self._rows.knows(prefix := attempt.prefix):
                    further.append(attempt)
                elif prefix in computed:
                    self._waiting.append(attempt)
                else:
                    computed.add(prefix)
                    seated.append(row)
            self._seat([*self._running, *attempts], torch.cat([self._tokens.to(tokens), tokens]), seated)
            attempts = further
        return ended

    def _seat(self, attempts: Sequence[Decoded], tokens: torch.Tensor, rows: Sequence[int]) -> None:
        """Keep these rows only."""
        order = self._rows.keep(rows) if len(rows) < len(attempts) else list(rows)
        self._running = [attempts[row] for row in order]
        self._tokens = tokens[torch.tensor(order, dtype=torch.long, device=tokens.device)]

    def _take_ended(self) -> list[Decoded]:
        keep = [row for row, attempt in enumerate(self._running) if attempt.status == "running"]
        ended = [attempt for attempt in self._running if attempt.status != "running"]
        if ended:
            self._seat(self._running, self._tokens, keep)
        return ended

    def _is_shared(self, attempt: Decoded) -> bool:
        """Whether others are likely to have the same tokens."""
        # Asked of every attempt at every token: what is cheap and mostly says no comes first.
        likely = attempt.log_probability >= -SHARED
        return likely and self._rows.shares and (attempt.launch.attempt > 0 or attempt.launch.settings.count > 1)

    def _memorable(self) -> dict[int, Ids]:
        """Rows from which others begin, or may begin."""
        return {row: attempt.prefix for row, attempt in enumerate(self._running) if self._is_shared(attempt)}

    def _seat_orphans(self) -> None:
        """Give a row to those that wait for one that is gone: its attempt was stopped."""
        if not self._waiting:
            return
        computed = set(self._memorable().values())
        for attempt in list(self._waiting):
            if attempt.prefix not in computed:
                self._rows.add([attempt.prefix[:-1]])
                computed.add(attempt.prefix)
                self._waiting.remove(attempt)
                self._running.append(attempt)
                self._tokens = torch.cat([self._tokens, self._tokens.new_tensor([attempt.token_ids[-1]])])

    def _halve(self, attempts: Sequence[Decoded], error: torch.OutOfMemoryError) -> None:
        """Go on with half as many attempts at once; those on their way begin again."""
        self._size = halved(self._size, error)
        begun = [attempt.launch for attempt in (*self._running, *self._waiting, *attempts)]
        self._again = sorted([*begun, *self._again], key=lambda launch: (launch.prompt, launch.attempt))
        self._running, self._waiting, self._tokens = [], [], torch.empty(0)
        self._rows = self._make_rows()
        torch.cuda.empty_cache()


def stream_of(launch: Launch) -> Iterator[float]:
    """Return the uniforms of an attempt, from its first token on."""
    return uniforms(launch.seed, launch.prompt, launch.attempt)


def halved(size: int, error: torch.OutOfMemoryError) -> int:
    """Return half as many attempts at once, because memory ran out.

    Raises
    ------
    ModelError
        If it ran out with one.
    """
    if size == 1:
        raise ModelError("out of memory with one attempt at a time; shorten the prompt or max_new_tokens") from error
    logger.warning("out of memory: going on with %d attempts at once", size // 2)
    return size // 2


def draw_tokens(
    scores: torch.Tensor, attempts: Sequence[Decoded], candidates: torch.Tensor | None = None
) -> torch.Tensor:
    """Draw a token for each attempt, of one call, and note it with its log-probability.

    Parameters
    ----------
    scores
        After all processors and warpers; ``[attempts, columns]``.
    attempts
        Their uniforms are used, and their tokens grow.
    candidates
        Which token each column stands for, ``[attempts, columns]``; None where columns are tokens.

    Returns
    -------
    torch.Tensor
        The tokens, ``[attempts]``.
    """
    uniform = torch.tensor([next(attempt.stream) for attempt in attempts], dtype=torch.float64, device=scores.device)
    choose = inverse_cdf if attempts[0].launch.settings.mode == "sample" else argmax
    tokens, log_probabilities = choose(scores, uniform)
    if candidates is not None:
        tokens = candidates.gather(1, tokens[:, None]).squeeze(1)
    for attempt, token, value in zip(attempts, tokens.tolist(), log_probabilities.tolist(), strict=True):
        attempt.token_ids.append(token)
        attempt.log_probability += value
    return tokens


def _draw(logits: torch.Tensor, attempts: Sequence[Decoded], watch: Watch | None) -> torch.Tensor:
    """Draw a token for each attempt, note it, and set the status of those that end with it."""
    # The warpers come from the call's own settings, so they are the same for every prompt.
    scores, candidates = warped(_process(logits, attempts), attempts[0].launch.settings.warpers)
    tokens = draw_tokens(scores, attempts, candidates)
    _settle(attempts, watch)
    return tokens


def _groups(attempts: Sequence[Decoded]) -> Iterator[tuple[Settings, list[int], torch.Tensor]]:
    """For attempts of one prompt and length: settings, rows, and token ids, prompt included and without padding."""
    groups: dict[tuple[int, int], list[int]] = {}
    for row, attempt in enumerate(attempts):
        groups.setdefault((id(attempt.launch.settings), len(attempt.token_ids)), []).append(row)
    for rows in groups.values():
        settings = attempts[rows[0]].launch.settings
        new = torch.tensor([attempts[row].token_ids for row in rows], dtype=torch.long)
        prompt = settings.prompt_ids.expand(len(rows), -1)
        yield settings, rows, torch.cat([prompt, new.to(prompt.device)], dim=1)


def _process(logits: torch.Tensor, attempts: Sequence[Decoded]) -> torch.Tensor:
    """Apply the logits processors, to each prompt's rows as if they were alone."""
    if not attempts[0].launch.settings.processors:
        return logits
    groups = list(_groups(attempts))
    scores = logits
    for settings, rows, ids in groups:
        if len(groups) == 1:
            scores = settings.processors(ids.to(logits.device), logits)
        else:
            scores = logits.clone() if scores is logits else scores
            scores[rows] = settings.processors(ids.to(logits.device), logits[rows])
    return scores


def _settle(attempts: Sequence[Decoded], watch: Watch | None) -> None:
    """Set the status of the attempts that end with their newest token."""
    now = time.monotonic()
    if attempts[0].launch.settings.criteria:
        for settings, rows, ids in _groups(attempts):
            done = settings.criteria(ids, None).tolist()
            for row, stop in zip(rows, done, strict=True):
                if stop:
                    attempts[row].status = "finished"
    for attempt in attempts:
        settings = attempt.launch.settings
        if attempt.status == "finished" or attempt.token_ids[-1] in settings.end_ids:
            attempt.status = "finished"
        elif _at_limit(attempt, now):
            attempt.status = "cut"
        elif watch and (blame := watch(attempt.token_ids)):
            attempt.status, attempt.blame = "aborted", blame
        elif attempt.launch.deadline is not None and now >= attempt.launch.deadline:
            attempt.status = "abandoned"


def _at_limit(attempt: Decoded, now: float) -> bool:
    settings = attempt.launch.settings
    late = settings.max_time is not None and now - attempt.began >= settings.max_time
    return late or len(settings.prompt_ids) + len(attempt.token_ids) >= settings.max_length
