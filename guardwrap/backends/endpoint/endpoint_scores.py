"""What texts weigh: log a(y) - log a'(y), both from the server's log-probabilities of given tokens."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from guardwrap.backends.endpoint.answers import ids_of, log_probabilities_of
from guardwrap.backends.endpoint.endpoint_law import EndpointLaw
from guardwrap.backends.endpoint.request_faults import retried
from guardwrap.backends.endpoint.server import Endpoint, line_to
from guardwrap.backends.endpoint.transfer_limits import patience
from guardwrap.errors import EndpointError
from guardwrap.outcomes import Draw
from guardwrap.samplers.protocol import finite_weight

__all__ = ["NO_IDS", "NO_LOGPROBS", "EndpointWeigher"]

NO_IDS = (
    "{} does not say which tokens its texts have (return_token_ids), so they cannot be weighed; pass "
    "sampler='rejection', or draw from vLLM"
)
NO_LOGPROBS = (
    "{} gives no log-probabilities of tokens ({}), so texts cannot be weighed; pass sampler='rejection', or draw from "
    "vLLM"
)
MOST = 0.25
"""Nats by which a token's log-probability may differ between drawing and weighing, root mean square. Half precision
makes a few hundredths of it; a temperature of 0.7 in the place of 1 makes more on most texts."""

MOST_KNOWN = 10_000
"""Texts whose log-probabilities are kept: short ones come again and again."""

_T = TypeVar("_T")
_Text = tuple[EndpointLaw, tuple[int, ...]]


class EndpointWeigher:
    """Computes log a(y) - log a'(y) for finished attempts, in nats.

    Both come from one pass of the server over prompt and text, so that like is compared with like. What it drew from
    is known too, token by token, and must be the same but for rounding.

    Parameters
    ----------
    endpoint
        The server.
    size
        Requests side by side, at most.
    """

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self._endpoint = endpoint
        self._line = line_to(endpoint)
        self._size = size
        self._prompts: WeakKeyDictionary[EndpointLaw, list[int]] = WeakKeyDictionary()
        self._known: dict[_Text, float] = {}
        self._texts, self._squares, self._shares = 0, 0.0, 0.0

    def __call__(self, attempts: Sequence[tuple[Any, Draw, float]]) -> list[float]:
        """Return a log-weight for each attempt, in nats. It waits for the server.

        Raises
        ------
        EndpointError
            If the server gives no log-probabilities, or others than those that it draws with.
        """
        answer = asyncio.run_coroutine_threadsafe(self._weighed(attempts), self._line.loop)
        try:
            return answer.result()
        except BaseException:  # an interrupt leaves no request behind
            answer.cancel()
            raise

    @property
    def note(self) -> str | None:
        """What rounding does, in one sentence, where texts have been weighed."""
        if not self._texts:
            return None
        return (
            "weights are the server's log-probabilities of whole texts; those that it drew with were off by "
            f"{math.sqrt(self._squares / self._texts):.2g} nats (root mean square over {self._texts} texts)"
        )

    async def _weighed(self, attempts: Sequence[tuple[Any, Draw, float]]) -> list[float]:
        room = asyncio.Semaphore(self._size)
        laws = {law: None for prompt, *_ in attempts for law in (prompt.law, prompt.target)}
        new = [law for law in laws if law not in self._prompts]
        for law, ids in zip(new, await _all(self._prompt(law, room) for law in new), strict=True):
            self._prompts[law] = ids
        drawn = await self._scores([(prompt.law, draw.token_ids) for prompt, draw, _ in attempts], room)
        self._compare([draw for _, draw, _ in attempts], drawn)
        base = await self._scores([(prompt.target, draw.token_ids) for prompt, draw, _ in attempts], room)
        return [finite_weight(a - b) for a, b in zip(base, drawn, strict=True)]

    async def _scores(self, texts: Sequence[_Text], room: asyncio.Semaphore) -> list[float]:
        """Return log-probabilities of texts, in nats; of equal ones the same."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= dict(zip(new, await _all(self._score(*text, room) for text in new), strict=True))
        return [self._known[text] for text in texts]

    def _compare(self, draws: Sequence[Draw], scored: Sequence[float]) -> None:
        """Hold the log-probabilities of given texts against those that came with them as they were drawn."""
        errors = [score - (draw.log_proposal or 0.0) for draw, score in zip(draws, scored, strict=True)]
        self._texts += len(draws)
        self._squares += sum(error**2 for error in errors)
        self._shares += sum(
            error**2 / len(draw.token_ids) for draw, error in zip(draws, errors, strict=True) if draw.token_ids
        )
        off = math.sqrt(self._shares / self._texts)
        if not off <= MOST:
            raise EndpointError(
                f"{self._endpoint.base_url} draws tokens with other probabilities than those that it gives for them "
                f"(off by {off:.2g} nats a token), so texts cannot be weighed; pass sampler='rejection', or have it "
                "give raw ones (vLLM: --logprobs-mode raw_logprobs)"
            )

    async def _prompt(self, law: EndpointLaw, room: asyncio.Semaphore) -> list[int]:
        """Return a prompt's tokens: only the server knows how it reads strings, and which template chats have."""
        answer = await self._asked(law, {**law.fields, "max_tokens": 1}, {**law.extra, "return_token_ids": True}, room)
        ids = ids_of(getattr(answer, "prompt_token_ids", None) or getattr(_choice(answer), "prompt_token_ids", None))
        if not ids:
            raise EndpointError(NO_IDS.format(self._endpoint.base_url))
        return ids

    async def _score(self, law: EndpointLaw, new: Sequence[int], room: asyncio.Semaphore) -> float:
        """Return the log-probability of a text's tokens behind a prompt, in nats."""
        if not new:
            raise EndpointError(NO_IDS.format(self._endpoint.base_url))
        ids = [*self._prompts[law], *new]
        fields = {**law.settings.fields, "model": law.model, "prompt": ids, "max_tokens": 1}
        answer = await self._asked(law, fields, {**law.settings.extra, "prompt_logprobs": 0}, room, "/completions")
        found = getattr(_choice(answer), "prompt_logprobs", None)
        if not isinstance(found, list) or len(found) != len(ids):
            raise EndpointError(NO_LOGPROBS.format(self._endpoint.base_url, "prompt_logprobs"))
        last = list(zip(found, ids, strict=True))[-len(new) :]
        try:
            steps = log_probabilities_of([step[str(token)]["logprob"] for step, token in last])
        except (KeyError, TypeError):
            steps = None
        if steps is None:
            raise EndpointError(NO_LOGPROBS.format(self._endpoint.base_url, "prompt_logprobs"))
        return math.fsum(steps)

    async def _asked(
        self,
        law: EndpointLaw,
        fields: dict[str, Any],
        extra: dict[str, Any],
        room: asyncio.Semaphore,
        route: str | None = None,
    ) -> Any:
        create = self._line.creates(route or law.route)

        async def once() -> Any:
            async with patience(self._endpoint):
                answer = await create(**fields, extra_body=extra)
            self._line.answered = True
            return answer

        async with room:
            return await retried(once, self._endpoint, self._line, law)


def _choice(answer: Any) -> Any:
    return next(iter(getattr(answer, "choices", None) or ()), None)


async def _all(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all; where one fails, leave none of the others behind."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
