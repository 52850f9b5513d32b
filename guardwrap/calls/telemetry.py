"""Spans and metrics of calls, by OpenTelemetry's semantic conventions for generative AI.

Spans contain no text, unless ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` allows prompts and returned texts.
Rejected texts are never in them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from opentelemetry import context
from opentelemetry.trace import SpanKind, set_span_in_context

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.stop_strings import stops_of
from guardwrap.errors import ConstraintError, GuardwrapError, UsageError
from guardwrap.models.parsed_message import finish_reason, shown_texts
from guardwrap.outcomes import Outcome
from guardwrap.support.opentelemetry_api import attached, captures_text, failed_span, instruments, start_span
from guardwrap.support.transformers_internals import Chat

_Item = TypeVar("_Item")

_REQUEST = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_new_tokens": "max_tokens",
    "num_return_sequences": "choice.count",
}
"""The attributes of the conventions for options of a call."""

_MOST_TEXTS = 128
"""The most texts of a call whose ``finish_reasons`` and contents are recorded."""


class CallSpan:
    """The span of one call, and its part of the metrics. Use it as a context."""

    def __init__(self, span: Any, labels: Mapping[str, str], *, current: bool) -> None:
        self._span, self._meters, self._labels = span, instruments(), dict(labels)
        self.began = time.monotonic()
        self.context = set_span_in_context(span)  # OpenTelemetry's context in which this span is the current one
        self._scope = ExitStack()
        self._current = current
        self._counts: Counter[str] = Counter()  # by attribute
        self._rejections: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._input_tokens: int | None = 0
        self._facts: dict[str, Any] = {"guardwrap.ended_by": "complete", "guardwrap.fallback": "none"}
        self._continues = False

    def within(self, work: Callable[[], _Item]) -> _Item:
        """Return the result of work whose spans become children of this one."""
        with attached(self.context):
            return work()

    def __enter__(self) -> Self:
        if self._current:
            self._scope.enter_context(attached(self.context))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scope.close()
        if error is not None or not self._continues:
            self._end(error)

    def following(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Return the items of a call that draws while they are consumed; the span ends with them."""
        self._continues = True

        def followed() -> Iterator[_Item]:
            error: BaseException | None = None
            try:
                yield from items
            except BaseException as raised:
                error = raised
                raise
            finally:
                self._end(error)

        return followed()

    def note(self, prompt: Any, constraint: Constraint, outcome: Outcome) -> Outcome:
        """Add the outcome of one prompt, and return it."""
        report = outcome.report
        measured = {
            "attempts": report.usage.attempts,
            "accepted": report.accepted,
            "tokens": report.usage.tokens,
            "exhausted": int(report.accepted < report.requested),
        }
        for name, value in measured.items():
            self._meters[name].add(value, self._labels)
        if self._span.is_recording():
            self._describe(prompt, constraint, outcome)
        return outcome

    def _describe(self, prompt: Any, constraint: Constraint, outcome: Outcome) -> None:
        report = outcome.report
        self._counts.update(
            {
                "guardwrap.prompts": 1,
                "guardwrap.requested": report.requested,
                "guardwrap.accepted": report.accepted,
                "guardwrap.attempts": report.usage.attempts,
                "guardwrap.tokens": report.usage.tokens,
                "guardwrap.computed_tokens": report.usage.computed_tokens,
                "gen_ai.usage.output_tokens": sum(len(draw.token_ids) for draw in outcome.draws),
            }
        )
        self._rejections.update(report.rejected)
        ids = getattr(prompt.law, "ids", None)  # only a server knows the tokens of its prompts
        self._input_tokens = None if ids is None or self._input_tokens is None else self._input_tokens + len(ids)
        self._facts |= {"guardwrap.sampler": report.sampler, "gen_ai.request.seed": report.seed}
        if report.ended != "complete":
            self._facts["guardwrap.ended_by"] = report.ended
        if report.fallback or report.fallback_rejected_by is not None:
            self._facts["guardwrap.fallback"] = "used" if report.fallback else "withheld"
        stops = stops_of(constraint)
        reasons = [finish_reason(draw, stops) for draw in outcome.draws]
        reasons += ["stop"] * (len(outcome.texts) - len(reasons))  # fallbacks
        room = _MOST_TEXTS - len(self._reasons)
        self._reasons += reasons[:room]
        if captures_text() and room > 0:
            self._inputs += _messages(outcome.prompt)
            # Only the text before a stop string was checked.
            texts = shown_texts(outcome, stops)[:room]
            self._outputs += [
                {"role": "assistant", "parts": _parts(text), "finish_reason": reason}
                for text, reason in zip(texts, reasons, strict=False)
            ]

    def _end(self, error: BaseException | None) -> None:
        """End the span, and record the duration. A consumer that stops early is no error."""
        failed = error is not None and not isinstance(error, GeneratorExit)
        self._span.set_attributes(self._attributes())
        if failed and error is not None:
            failed_span(self._span, type(error), _message(error))
        self._span.end()
        labels = self._labels | ({"error.type": type(error).__name__} if failed else {})
        self._meters["duration"].record(time.monotonic() - self.began, labels)

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes of a call that has ended."""
        if not self._counts:
            return {}
        attributes = {**self._facts, **self._counts, "gen_ai.response.finish_reasons": self._reasons}
        attempts = self._counts["guardwrap.attempts"]
        if self._input_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = self._input_tokens
        if attempts:
            attributes["guardwrap.acceptance_rate"] = (attempts - self._rejections.total()) / attempts
        if self._rejections:
            rule, rejected = self._rejections.most_common(1)[0]
            attributes |= {"guardwrap.rejected_most_by": rule, "guardwrap.rejected_most": rejected}
        if self._outputs or self._inputs:
            attributes["gen_ai.input.messages"] = json.dumps(self._inputs, ensure_ascii=False)
            attributes["gen_ai.output.messages"] = json.dumps(self._outputs, ensure_ascii=False)
        return attributes


def call_span(session: Any, prompts: Any, options: Mapping[str, Any], *, current: bool = True) -> CallSpan:
    """Start the span of a call.

    ``current``: whether spans that are started within the call become its children. False for asynchronous
    generators, whose callers share their context.
    """
    named = options.get(session.call_class.named)
    operation = _operation(session, named if prompts is None else prompts)
    labels = {"gen_ai.operation.name": operation, **model_attributes(session)}
    kind = SpanKind.INTERNAL if session.provider == "huggingface" else SpanKind.CLIENT  # of a server
    attributes = {**labels, **_requested(options)}
    return CallSpan(
        start_span(f"{operation} {session.model_name}", kind=kind, attributes=attributes), labels, current=current
    )


def model_attributes(session: Any) -> dict[str, str]:
    """Return the attributes of a session's model."""
    return {"gen_ai.provider.name": session.provider, "gen_ai.request.model": session.model_name}


def pilot_attributes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the attributes of attempts that are not returned, from the outcomes of their prompts."""
    reports = [outcome.report for outcome in outcomes]
    return {
        "guardwrap.prompts": len(reports),
        "guardwrap.attempts": sum(report.usage.attempts for report in reports),
        "guardwrap.tokens": sum(report.usage.tokens for report in reports),
        "guardwrap.computed_tokens": sum(report.usage.computed_tokens for report in reports),
    }


def traced_by(span: CallSpan | None) -> Any:
    """Return OpenTelemetry's context of a call, for what it starts in other threads."""
    return context.get_current() if span is None else span.context


@contextmanager
def work_span(name: str, traced: Any, attributes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Context for attempts that no call returns: their span is the current one, and gets the results at its end."""
    results: dict[str, Any] = {}
    span = start_span(name, context=traced, attributes=dict(attributes))
    try:
        with attached(set_span_in_context(span)):
            yield results
    except BaseException as error:
        failed_span(span, type(error), _message(error))
        raise
    finally:
        span.set_attributes(results)
        span.end()


def _operation(session: Any, prompts: Any) -> str:
    """Return the conventions' name for what a call does."""
    if session.call_class.media:
        return "generate_content"
    first = prompts[0] if isinstance(prompts, list | tuple) and prompts else prompts
    return "chat" if isinstance(first, Chat | Mapping | list | tuple) else "text_completion"


def _requested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the settings that a call passes; those it leaves out are the model's."""
    config = options.get("generation_config")
    attributes: dict[str, Any] = {}
    for option, name in _REQUEST.items():
        value = options.get(option, getattr(config, option, None))
        if isinstance(value, int | float) and not (option == "num_return_sequences" and value == 1):
            attributes[f"gen_ai.request.{name}"] = value
    if isinstance(seed := options.get("seed"), int):
        attributes["gen_ai.request.seed"] = seed
    return attributes


def _message(error: BaseException) -> str | None:
    """Return the message of one of guardwrap's errors; those about arguments may quote a prompt, others any text."""
    shown = isinstance(error, GuardwrapError) and (
        captures_text() or not isinstance(error, UsageError | ConstraintError)
    )
    return str(error) if shown else None


def _messages(prompt: Any) -> list[dict[str, Any]]:
    """Return a prompt in the conventions' form. Only its texts: images and audio are left out."""
    if isinstance(prompt, str):
        return [{"role": "user", "parts": _parts(prompt)}]
    messages = prompt.messages if isinstance(prompt, Chat) else prompt
    if not isinstance(messages, Sequence) or not all(isinstance(each, Mapping) for each in messages):
        return []
    return [{"role": str(each.get("role")), "parts": _parts(each.get("content"))} for each in messages]


def _parts(content: Any) -> list[dict[str, str]]:
    """Return the texts of a message in the conventions' form."""
    pieces = [content] if isinstance(content, str) else content if isinstance(content, list | tuple) else []
    texts = [each.get("text") if isinstance(each, Mapping) else each for each in pieces]
    return [{"type": "text", "content": text} for text in texts if isinstance(text, str)]
