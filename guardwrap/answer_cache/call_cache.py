"""The cache of one call: requests that are answered already, and outcomes to keep."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from guardwrap.answer_cache.answer_file import AnswerFile
from guardwrap.answer_cache.digests import NotCached, law_data, sha256
from guardwrap.constraints.base import walk
from guardwrap.constraints.checking import judge
from guardwrap.constraints.json.values import parser_of
from guardwrap.documents.time_limits import time_limit
from guardwrap.errors import GuardwrapError
from guardwrap.formatting import counted
from guardwrap.outcomes import Outcome, Report, Usage
from guardwrap.scheduling.request import Request

__all__ = ["CallCache"]

logger = logging.getLogger("guardwrap")

_FROM = "from the cache: drawn on {} with {}"

JUDGED_WITHIN = 0.05
"""CPU seconds in which cached texts are judged; those that take longer are drawn again."""


@dataclass(frozen=True)
class CallCache:
    """Answers the requests of one call from a file.

    A cached text is judged again before it is returned, so a file that someone changed cannot break a rule.

    Parameters
    ----------
    file
        The answers of earlier calls.
    context
        All that the texts of the call depend on, apart from its requests, as plain JSON types.
    refused
        Why none of its requests is answered from the file, as a clause; None if they may be.
    """

    file: AnswerFile
    context: Mapping[str, Any]
    refused: str | None = None
    _new: deque[tuple[str, str]] = field(default_factory=deque, init=False, repr=False)

    def answered(self, request: Request) -> Request:
        """Return a request with its outcome from the file, or one whose outcome is kept."""
        if request.sampler.records:  # attempts for an estimate, no texts
            return request
        try:
            key = self._key(request)
        except NotCached as reason:
            return replace(request, notes=(*request.notes, f"not cached: {reason}"))
        outcome = None if request.on_rejected is not None else self._outcome(key, request)
        if outcome is not None:
            return replace(request, known=outcome)
        before = request.on_end

        def on_end(of: Request, ended: Outcome) -> None:
            if ended.ok and not ended.report.cached and of.pass_on is None:
                self._new.append((key, _answer(ended)))
            if before is not None:
                before(of, ended)

        return replace(request, on_end=on_end)

    def write(self) -> None:
        """Write the outcomes that have ended since the last time."""
        answers = []
        while self._new:
            answers.append(self._new.popleft())
        if answers:
            self.file.put(answers)

    def _key(self, request: Request) -> str:
        """Return the digest of all that the texts of a request depend on.

        Raises
        ------
        NotCached
            If not all of it is known.
        """
        prompt: Any = request.prompt
        sampler, rule = request.sampler, request.constraint
        if self.refused is not None:
            raise NotCached(self.refused)
        if request.follow_up is not None:
            raise NotCached("Repair() may follow")
        if sampler.options is None:
            raise NotCached(f"the options of the sampler {sampler.name!r} are not known")
        if not rule.interruptible:
            raise NotCached("a rule runs a model or code")
        return sha256(
            {
                "context": self.context,
                "law": law_data(prompt.law),
                "target": None if prompt.target is None else law_data(prompt.target),
                "prompt": prompt.text,
                "rule": rule.digest,
                "titles": [part.title for part in walk(rule)],
                "sampler": [sampler.name, sampler.options],
                "budget": asdict(request.budget),
                "seed": request.seed,
                "number": request.number,
            }
        )

    def _outcome(self, key: str, request: Request) -> Outcome | None:
        """Return the outcome that the file has, if it is one of the request and its texts satisfy the constraint."""
        answer = self.file.get(key)
        if answer is None:
            return None
        try:
            data = json.loads(answer)
            report = _reports().validate_python({**data["report"], "budget": request.budget})
            draws = [
                request.draw_of(request.prompt, tuple(each["token_ids"]), each["finished"], each["log_proposal"])
                for each in data["draws"]
            ]
            with time_limit(JUDGED_WITHIN, firm=True):
                passed = all(judgement.satisfied for judgement in judge(request.constraint, draws))
        except (ArithmeticError, LookupError, TypeError, ValueError, TimeoutError, GuardwrapError) as error:
            logger.warning("an answer of the cache is not used: %s", type(error).__name__)
            return None
        whole = len(draws) == report.requested == report.accepted and report.seed == request.seed
        if not passed or not whole or report.constraint != request.constraint.digest:
            logger.warning("an answer of the cache is not used: it does not belong to the call")
            return None
        note = _FROM.format(data["date"], counted(report.usage.attempts, "attempt"))
        report = replace(report, cached=True, usage=Usage(), rejections={}, places={}, notes=(*report.notes, note))
        texts = tuple(draw.text for draw in draws)
        return Outcome(request.prompt.given, texts, tuple(draws), report, parser_of(request.constraint))


@cache
def _reports() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


def _answer(outcome: Outcome) -> str:
    """Return an outcome as JSON."""
    draws = [
        {"token_ids": draw.token_ids, "finished": draw.finished, "log_proposal": draw.log_proposal}
        for draw in outcome.draws
    ]
    date = datetime.now(UTC).date().isoformat()
    return json.dumps({"date": date, "draws": draws, "report": asdict(outcome.report)})
