"""The decoding loop: concurrent attempts of any prompts, with one model call per token."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from guardwrap.engine.dead_prefixes import Candidates, WithoutDeadPrefixes, without_dead_prefixes
from guardwrap.engine.forward_passes import halved
from guardwrap.engine.prefix_cache import PrefixTree
from guardwrap.engine.refill.row_states import Rows
from guardwrap.engine.ruled_out import diagnosed
from guardwrap.engine.scheduling.backend import AttemptState, Capabilities, Diagnosis, Ids, Launch, Lookahead
from guardwrap.engine.token_sampling import candidates_of, draw_tokens, new_attempt, walk_known


class RefillBackend:
    """Draws attempts concurrently.

    An attempt first draws tokens from cached distributions (see ``prefix_cache``), and gets a row in the batch only
    when the next one is not cached. Of attempts with the same tokens, one computes the distribution of the next token,
    and the others wait for it.

    ``size``: maximum number of concurrent attempts. It is halved when memory runs out: running attempts then restart,
    and draw the same tokens, because their random numbers do not depend on the batch.
    """

    can: Capabilities = Capabilities()

    def __init__(self, make_rows: Callable[[], Rows], size: int) -> None:
        self._make_rows = make_rows
        self._rows = make_rows()
        self._size = size
        self._again: list[Launch] = []  # attempts to restart after memory ran out
        self._running: list[AttemptState] = []  # one per row, in order
        self._waiting: list[AttemptState] = []  # each waits for a row with the same tokens
        self._tree = PrefixTree()
        self._tokens = torch.empty(0, dtype=torch.long)  # the newest token of each running attempt
        self.row_steps = 0

    @property
    def mode(self) -> str:
        """The name of the way in which rows keep their states; see ``row_states``."""
        return self._rows.name

    @property
    def room(self) -> int:
        """Number of attempts that can be launched now."""
        free = self._size - self.running
        return max(0, free) if self._rows.refills or not self._running else 0

    @property
    def running(self) -> int:
        """Number of attempts in flight."""
        return len(self._running) + len(self._waiting) + len(self._again)

    def lengths(self) -> dict[Hashable, list[int]]:
        """Return the number of tokens of each attempt in flight, by request."""
        lengths: dict[Hashable, list[int]] = {}
        for attempt in (*self._running, *self._waiting):
            lengths.setdefault(attempt.launch.request, []).append(len(attempt.token_ids))
        for launch in self._again:
            lengths.setdefault(launch.request, []).append(0)
        return lengths

    @torch.no_grad()
    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        """Start new attempts, and draw their first tokens."""
        with self._emptied_by_errors():
            return self._begin([self._begun(launch) for launch in launches])

    @torch.no_grad()
    def advance(self) -> list[AttemptState]:
        """Draw one token for each running attempt; return those that ended with it."""
        with self._emptied_by_errors():
            return self._advance()

    def _advance(self) -> list[AttemptState]:
        if self._again and (self._rows.refills or not self._running):
            count = self._size - len(self._running) - len(self._waiting)
            again, self._again = self._again[:count], self._again[count:]
            if again:
                return self._begin([self._begun(launch) for launch in again])
        waiting = self._waiting
        try:
            self._seat_orphans()
            logits = self._rows.forward(self._tokens, self._memorable())
        except torch.OutOfMemoryError as error:
            self._halve(waiting, error)
            return []
        self.row_steps += len(self._running)
        for attempt in self._running:
            attempt.computed += 1
        self._tokens = draw_tokens(logits, self._running)
        self._rewind()
        ended = self._take_ended()
        waiting, self._waiting = self._waiting, []
        return ended + self._begin(waiting) if waiting else ended

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[AttemptState]:
        """Stop attempts that are no longer needed, and return those that had started."""
        self._again = [launch for launch in self._again if not unneeded(launch)]
        for attempt in (*self._running, *self._waiting):
            if unneeded(attempt.launch):
                attempt.status = "cancelled"
        gone = [attempt for attempt in self._waiting if attempt.status == "cancelled"]
        self._waiting = [attempt for attempt in self._waiting if attempt.status == "running"]
        return self._take_ended() + gone

    @torch.no_grad()
    def narrow(
        self, launch: Launch, lookahead: Lookahead, ended: Sequence[tuple[Ids, bool]]
    ) -> WithoutDeadPrefixes | None:
        """Return the distribution without attempts known to be rejected; see Backend.

        None if rows cannot start in the middle of a text, or if the law may change between attempts.
        """
        if not self._rows.shares or not launch.law.is_stateless:
            return None
        rows = self._make_rows()  # a separate batch, so that results do not depend on the attempts in flight
        computed = 0

        def law_after(prefix: Ids) -> Candidates:
            nonlocal computed
            prompt = launch.law.ids
            if prefix:
                computed += rows.join((*prompt, *prefix[:-1]), len(prompt)) + 1
                newest = torch.tensor(prefix[-1:], device=self._tokens.device)
                logits = rows.forward(newest, {0: (*prompt, *prefix)})
            else:
                logits = rows.add([prompt])
            rows.keep([])
            return candidates_of(logits, AttemptState(launch, list(prefix)))

        root = without_dead_prefixes(
            None if launch.narrowed is None else launch.narrowed.root, ended, law_after, lookahead
        )
        return WithoutDeadPrefixes(root, root.log_live, computed)

    @torch.no_grad()
    def diagnose(self, launch: Launch, lookahead: Lookahead) -> Diagnosis:
        """Find out whether a request's settings leave any text that satisfies the constraint; see Backend."""
        rows = self._make_rows()  # a separate batch, which no error can leave half written

        def logits_after(prefix: Ids) -> torch.Tensor:
            logits = rows.add([(*launch.law.ids, *prefix)])
            rows.keep([])
            return logits

        return diagnosed(launch, lookahead, logits_after)

    def _begun(self, launch: Launch) -> AttemptState:
        attempt = new_attempt(launch)
        attempt.place = self._tree.root(launch)
        return attempt

    def _begin(self, attempts: Sequence[AttemptState]) -> list[AttemptState]:
        """Draw from cached distributions, then give each attempt a row or let it wait; return attempts that ended."""
        ended: list[AttemptState] = []
        while attempts:
            alive = self._walked(attempts, ended)
            new = [attempt for attempt in alive if not attempt.token_ids]
            try:
                self._join([attempt for attempt in alive if attempt.token_ids])
                logits = self._rows.add([prefix_of(attempt) for attempt in new]) if new else None
            except torch.OutOfMemoryError as error:
                self._halve(alive, error)
                return ended
            if logits is None:
                break
            first = len(self._running)
            tokens = draw_tokens(logits, new)
            ended += [attempt for attempt in new if attempt.status != "running"]
            # The distributions of the following tokens may be cached. If rows can start anywhere, use these first.
            attempts = [each for each in new if each.status == "running" and each.place and self._rows.shares]
            again = {id(each) for each in attempts}
            seated = [row for row, each in enumerate(new, first) if each.status == "running" and id(each) not in again]
            self._seat([*self._running, *new], torch.cat([self._tokens.to(tokens), tokens]), [*range(first), *seated])
        return ended

    def _walked(self, attempts: Sequence[AttemptState], ended: list[AttemptState]) -> list[AttemptState]:
        """Let attempts draw tokens whose distributions are cached; return the attempts that did not end."""
        alive = []
        for attempt in attempts:
            walk_known(attempt)
            if attempt.status != "running":
                ended.append(attempt)
            elif attempt.token_ids and not self._rows.shares:
                alive.append(self._begun(attempt.launch))  # restarts: its row can only start with its prompt
            else:
                alive.append(attempt)
        return alive

    def _join(self, attempts: Sequence[AttemptState]) -> None:
        """Give attempts rows to run the model on their newest tokens, or let them wait for one with the same tokens."""
        newest = []
        computed = {attempt.place for attempt in self._running}
        for attempt in attempts:
            place = attempt.place
            if place is not None and place.law is None and place in computed:
                self._waiting.append(attempt)
                continue
            attempt.computed += self._rows.join(prefix_of(attempt)[:-1], len(attempt.launch.law.ids))
            self._running.append(attempt)
            computed.add(place)
            newest.append(attempt.token_ids[-1])
        if newest:
            more = torch.tensor(newest, dtype=self._tokens.dtype, device=self._tokens.device)
            self._tokens = torch.cat([self._tokens, more])

    def _seat(self, attempts: Sequence[AttemptState], tokens: torch.Tensor, rows: Sequence[int]) -> None:
        """Keep only these rows of the batch, with their attempts and newest tokens."""
        order = self._rows.keep(rows) if len(rows) < len(attempts) else list(rows)
        self._running = [attempts[row] for row in order]
        self._tokens = tokens[torch.tensor(order, dtype=torch.long, device=tokens.device)]

    def _rewind(self) -> None:
        """Drop from rows the states of tokens that were taken back; see ``TokenTwist.turned``."""
        for row, attempt in enumerate(self._running):
            if attempt.rewound:
                attempt.rewound = False
                if attempt.status == "running":
                    self._rows.rewind(row, prefix_of(attempt)[:-1], len(attempt.launch.law.ids))

    def _take_ended(self) -> list[AttemptState]:
        keep = [row for row, attempt in enumerate(self._running) if attempt.status == "running"]
        ended = [attempt for attempt in self._running if attempt.status != "running"]
        if ended:
            self._seat(self._running, self._tokens, keep)
        return ended

    def _memorable(self) -> dict[int, Ids]:
        """Return the tokens of each row whose states are to be kept, because other rows may start there."""
        if not self._rows.shares:
            return {}
        return {row: prefix_of(each) for row, each in enumerate(self._running) if each.place is not None}

    def _seat_orphans(self) -> None:
        """Give rows to waiting attempts for which no row computes the next token, because that attempt was stopped."""
        waiting, self._waiting = self._waiting, []
        self._join(waiting)

    def _halve(self, attempts: Sequence[AttemptState], error: torch.OutOfMemoryError) -> None:
        """Halve the number of concurrent attempts, and restart these and all that have or wait for a row."""
        self._size = halved(self._size, error)
        begun = {id(each.launch): each.launch for each in (*self._running, *self._waiting, *attempts)}.values()
        self._again = sorted([*begun, *self._again], key=lambda launch: (launch.prompt, launch.attempt))
        self._empty()

    def _empty(self) -> None:
        self._running, self._waiting, self._tokens = [], [], torch.empty(0, dtype=torch.long)
        self._rows = self._make_rows()

    @contextmanager
    def _emptied_by_errors(self) -> Iterator[None]:
        """Return a context that drops all attempts after an error, because rows may be partially written."""
        try:
            yield
        except BaseException:
            self._again = []
            self._empty()
            raise


def prefix_of(attempt: AttemptState) -> Ids:
    """Return the tokens of the prompt and the new tokens so far."""
    return (*attempt.launch.law.ids, *attempt.token_ids)
