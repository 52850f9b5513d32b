"""Log-weights of texts, log a(y) - log a'(y): both terms are from the server's log-probabilities for given tokens.

With ``top_k``, a server lists that many of the likeliest tokens of each step. They are all that can be drawn, so
temperature, ``top_p`` and ``min_p`` are computed from them, as the server does when it draws.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from guardwrap.engine.endpoint.attempt_stream import NO_IDS, NO_LOGPROBS, ids_of, log_probabilities_of
from guardwrap.engine.endpoint.endpoint_law import EndpointLaw
from guardwrap.engine.endpoint.request_faults import patience, retried
from guardwrap.engine.endpoint.server import Endpoint, line_to
from guardwrap.errors import EndpointError
from guardwrap.metrics.intervals import Floats
from guardwrap.outcomes import Draw
from guardwrap.samplers.protocol import finite_weight

MOST = 0.25
"""Largest difference in nats of a token's log-probability between drawing and weighing, as a root mean square. Half
precision causes a few hundredths; a temperature of 0.7 instead of 1 causes more than this on most texts."""

MOST_KNOWN = 10_000
"""Maximum number of texts whose log-probabilities are cached, because short texts are drawn repeatedly."""

_ROUNDING = 0.02
"""How far a drawn token may be outside of what ``top_p`` (by probability) and ``min_p`` (in nats) keep, by rounding."""

_T = TypeVar("_T")
_Text = tuple[EndpointLaw, tuple[int, ...], bool]  # whether it was drawn from the law


class EndpointWeigher:
    """Computes log a(y) - log a'(y) for finished attempts, in nats.

    Both terms come from the server's forward passes over prompt and text, so that they have the same rounding. The
    log-probabilities with which tokens were drawn are also known, and must be equal to these except for rounding.
    """

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self._endpoint = endpoint
        self._line = line_to(endpoint)
        self._size = size
        self._prompts: WeakKeyDictionary[EndpointLaw, list[int]] = WeakKeyDictionary()
        self._known: dict[_Text, float] = {}
        self._texts, self._squares, self._shares = 0, 0.0, 0.0
        self._listed = False  # whether weights are computed from lists of the likeliest tokens

    def __call__(self, attempts: Sequence[tuple[Any, Draw, float]]) -> list[float]:
        """Return a log-weight for each attempt, in nats; see ``Weigh``. This blocks until the server has answered."""
        answer = asyncio.run_coroutine_threadsafe(self._weighed(attempts), self._line.loop)
        try:
            return answer.result()
        except BaseException:  # cancel the requests after an interrupt
            answer.cancel()
            raise

    @property
    def note(self) -> str | None:
        """A sentence for the report on rounding errors; None before texts were weighed."""
        if self._listed:
            return "weights are computed from the server's lists of the likeliest tokens of each step"
        if not self._texts:
            return None
        return (
            "weights are the server's log-probabilities of whole texts; those that it drew with differed by "
            f"{math.sqrt(self._squares / self._texts):.2g} nats (root mean square over {self._texts} texts)"
        )

    async def _weighed(self, attempts: Sequence[tuple[Any, Draw, float]]) -> list[float]:
        room = asyncio.Semaphore(self._size)
        laws = {law: None for prompt, *_ in attempts for law in (prompt.law, prompt.target)}
        new = [law for law in laws if law not in self._prompts]
        for law, ids in zip(new, await _all(self._prompt(law, room) for law in new), strict=True):
            self._prompts[law] = ids
        drawn = await self._scores([(prompt.law, draw.token_ids, True) for prompt, draw, _ in attempts], room)
        if any(law.settings.listed for law in laws):
            self._listed = True
        else:
            self._compare([draw for _, draw, _ in attempts], drawn)
        base = await self._scores([(prompt.target, draw.token_ids, False) for prompt, draw, _ in attempts], room)
        return [finite_weight(a - b) for a, b in zip(base, drawn, strict=True)]

    async def _scores(self, texts: Sequence[_Text], room: asyncio.Semaphore) -> list[float]:
        """Return log-probabilities of texts, in nats. Equal texts are scored once."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= dict(zip(new, await _all(self._score(*text, room) for text in new), strict=True))
        return [self._known[text] for text in texts]

    def _compare(self, draws: Sequence[Draw], scored: Sequence[float]) -> None:
        """Compare the log-probabilities of scored texts with those that the server sent while drawing them."""
        errors = [score - (draw.log_proposal or 0.0) for draw, score in zip(draws, scored, strict=True)]
        self._texts += len(draws)
        self._squares += sum(error**2 for error in errors)
        self._shares += sum(
            error**2 / len(draw.token_ids) for draw, error in zip(draws, errors, strict=True) if draw.token_ids
        )
        off = math.sqrt(self._shares / self._texts)
        if not off <= MOST:
            raise EndpointError(
                f"{self._endpoint.base_url} draws tokens with other probabilities than it reports (off by {off:.2g} "
                "nats per token), so its texts cannot be weighed; pass sampler='rejection', or make it report raw ones "
                "(vLLM: --logprobs-mode raw_logprobs)"
            )

    async def _prompt(self, law: EndpointLaw, room: asyncio.Semaphore) -> list[int]:
        """Return a prompt's tokens from the server, which alone knows its tokenizer and chat template."""
        answer = await self._asked(law, {**law.fields, "max_tokens": 1}, {**law.extra, "return_token_ids": True}, room)
        ids = ids_of(getattr(answer, "prompt_token_ids", None) or getattr(_choice(answer), "prompt_token_ids", None))
        if not ids:
            raise EndpointError(NO_IDS.format(self._endpoint.base_url))
        self._line.require_context(len(ids), law.settings.fields["max_tokens"], scored=True)
        return ids

    async def _score(self, law: EndpointLaw, new: Sequence[int], drawn: bool, room: asyncio.Semaphore) -> float:
        """Return the log-probability of a text's tokens after a prompt, in nats."""
        if not new:
            raise EndpointError(NO_IDS.format(self._endpoint.base_url))
        ids = [*self._prompts[law], *new]
        fields = {**law.settings.fields, "model": law.model, "prompt": ids, "max_tokens": 1}
        extra = {**law.settings.extra, "prompt_logprobs": law.settings.listed}
        answer = await self._asked(law, fields, extra, room, "/completions")
        lists = getattr(_choice(answer), "prompt_logprobs", None)
        if not isinstance(lists, list) or len(lists) != len(ids):
            raise EndpointError(NO_LOGPROBS.format(self._endpoint.base_url, "prompt_logprobs"))
        try:
            steps = [_listed(step, token) for step, token in zip(lists[-len(new) :], new, strict=True)]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EndpointError(NO_LOGPROBS.format(self._endpoint.base_url, "prompt_logprobs")) from None
        if not law.settings.listed:
            return math.fsum(step[0] for step in steps)
        return math.fsum(self._truncated(law, step, drawn) for step in steps)

    def _truncated(self, law: EndpointLaw, step: Floats, drawn: bool) -> float:
        """Return the log-probability of the first of some tokens under the law's truncation, in nats.

        ``step``: log-probabilities of that token and of the likeliest ones, itself among them if it is one of these.
        """
        sent = law.settings.sent
        its, scores = (
            step[0] / sent["temperature"],
            np.sort(step[1:])[::-1][: law.settings.listed] / sent["temperature"],
        )
        least = scores[0] + math.log(sent["min_p"]) if sent["min_p"] else -math.inf
        place, count = int((scores > its).sum()), int((scores >= least).sum())
        sizes = np.exp(scores - np.logaddexp.reduce(scores[:count]))
        above = np.cumsum(sizes) - sizes
        count = int((above[:count] < sent["top_p"]).sum())
        if place >= count and not drawn:
            return -math.inf
        by_rounding = place < len(scores) and its >= least - _ROUNDING and above[place] < sent["top_p"] + _ROUNDING
        if place >= count and not by_rounding:
            raise EndpointError(
                f"{self._endpoint.base_url} draws tokens that these settings exclude, so its texts cannot be weighed; "
                "pass sampler='rejection', or make it apply top_k, top_p and min_p"
            )
        return float(its - np.logaddexp.reduce(scores[: max(count, place + 1)]))

    async def _asked(
        self,
        law: EndpointLaw,
        fields: dict[str, Any],
        extra: dict[str, Any],
        room: asyncio.Semaphore,
        route: str | None = None,
    ) -> Any:
        async def once() -> Any:
            async with patience(self._endpoint):
                answer = await self._line.send(route or law.route, fields, extra, law.traced)
            self._line.answered = True
            return answer

        async with room:
            return await retried(once, self._endpoint, self._line, law)


def _listed(step: Any, token: int) -> Floats:
    """Return the log-probability of a token, followed by those of all that are listed; ValueError if one is missing."""
    values = log_probabilities_of([step[str(token)]["logprob"], *(each["logprob"] for each in step.values())])
    if values is None:
        raise ValueError
    return np.array(values)


def _choice(answer: Any) -> Any:
    return next(iter(getattr(answer, "choices", None) or ()), None)


async def _all(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all coroutines; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
