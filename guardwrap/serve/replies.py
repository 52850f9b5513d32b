"""Outcomes as OpenAI's objects. What leaves is what was judged: texts that were accepted, and nothing else."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.outcomes import Draw, Outcome, Report
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.stop_strings import cut

__all__ = ["DONE", "WAITING", "Reply", "event", "require_complete"]

WAITING = b": waiting\n\n"
"""A comment of server-sent events, so that what lies between keeps the connection."""

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(data, allow_nan=False).encode() + b"\n\n"


def told(report: Report) -> dict[str, Any]:
    """Return a report as plain JSON types, and beside its figures what it says."""
    return {**report.to_dict(), "said": str(report)}


def require_complete(outcome: Outcome) -> Outcome:
    """Return an outcome that has all of its texts.

    Raises
    ------
    Refused
        If something ended it before: HTTP 422, with the report.
    """
    report = outcome.report
    if outcome.ok and len(outcome.draws) == report.requested:
        return outcome
    message = f"{report.headline()}; {report.advice()}"
    raise ErrorResponse(422, message, code=report.ended, report=told(report))


@dataclass(frozen=True)
class Reply:
    """What is said of one request.

    Parameters
    ----------
    wish
        What it asked for.
    chat
        Whether it is one of ``/v1/chat/completions``.
    ident, created
        Its id, and its time in seconds since 1970.
    """

    wish: ParsedRequest
    chat: bool
    ident: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, outcomes: Sequence[Outcome], prompt_tokens: int) -> dict[str, Any]:
        """Return the reply in one piece.

        Parameters
        ----------
        outcomes
            One for each prompt, complete.
        prompt_tokens
            Tokens of all prompts.
        """
        choices = [self._choice(draw, index) for index, draw in self._numbered(outcomes)]
        reports = [told(outcome.report) for outcome in outcomes]
        head = self._head("chat.completion" if self.chat else "text_completion")
        usage = _usage(outcomes, prompt_tokens)
        return head | {"choices": choices, "usage": usage, "guardwrap": reports[0] if len(reports) == 1 else reports}

    def text(self, draw: Draw, prompt: int, number: int) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a text that was accepted.

        Parameters
        ----------
        draw
            The text.
        prompt, number
            The prompt's number, and the text's own among those of its prompt.
        """
        index = prompt * self.wish.n + number
        if self.chat:
            yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)
        text = self._text(draw)
        yield self._chunk(index, {"delta": {"content": text}} if self.chat else {"text": text}, None)

    def ends(self, outcome: Outcome, prompt: int) -> Iterator[dict[str, Any]]:
        """Yield the chunks that end a prompt's texts, once all of them are there; each has the report.

        Parameters
        ----------
        outcome
            The prompt's, complete.
        prompt
            The prompt's number.
        """
        report = told(outcome.report)
        for index, draw in enumerate(outcome.draws, start=prompt * self.wish.n):
            nothing: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
            yield self._chunk(index, nothing, self._reason(draw)) | {"guardwrap": report}

    def last(self, outcomes: Sequence[Outcome], prompt_tokens: int) -> dict[str, Any]:
        """Return the chunk that says how many tokens there were."""
        return self._head(self._of_chunks) | {"choices": [], "usage": _usage(outcomes, prompt_tokens)}

    @property
    def _of_chunks(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        ident = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.ident}"
        head = {"id": ident, "object": kind, "created": self.created, "model": self.wish.model}
        return head | {"system_fingerprint": None}

    def _chunk(self, index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **said, "logprobs": None, "finish_reason": reason}
        chunk = self._head(self._of_chunks) | {"choices": [choice]}
        return chunk | {"usage": None} if self.wish.usage else chunk

    def _choice(self, draw: Draw, index: int) -> dict[str, Any]:
        text = self._text(draw)
        said: dict[str, Any] = {"text": text}
        if self.chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **said, "logprobs": None, "finish_reason": self._reason(draw)}

    def _numbered(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[int, Draw]]:
        for number, outcome in enumerate(outcomes):
            yield from enumerate(outcome.draws, start=number * self.wish.n)

    def _text(self, draw: Draw) -> str:
        return cut(draw.text, self.wish.stops)

    def _reason(self, draw: Draw) -> str:
        return "stop" if draw.finished or self._text(draw) != draw.text else "length"


def _usage(outcomes: Sequence[Outcome], prompt_tokens: int) -> dict[str, int]:
    """Count the tokens of the prompts and of the texts that leave; what attempts cost is in the reports."""
    new = sum(len(draw.token_ids) for outcome in outcomes for draw in outcome.draws)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": new, "total_tokens": prompt_tokens + new}
