"""The wrapper in place of a pipeline: conversion to a ``Pipeline``, and streamers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, NoReturn

from transformers import AsyncTextIteratorStreamer, TextIteratorStreamer, TextStreamer
from transformers.pipelines import Pipeline

from guardwrap.engine.scheduling.request import PassOn, Request
from guardwrap.errors import UsageError
from guardwrap.outcomes import Outcome


class _Guarded:
    """Mixin that sends the calls of a pipeline through a wrapper."""

    guarded: Any

    def __call__(self, *prompts: Any, **options: Any) -> Any:
        return self.guarded(*prompts, **options)

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError: this stage would return unchecked texts."""
        raise UsageError(
            "the stages of a guarded pipeline cannot be called one by one; call the pipeline as a whole: pipe(...)"
        )

    _forward = forward


@cache
def _guarded_class(kind: Any) -> Any:
    """Return the guarded version of a pipeline class."""
    return type(f"Guarded{kind.__name__}", (_Guarded, kind), {})


def as_pipeline(guarded: Any) -> Pipeline:
    """Make a Pipeline whose texts all come from a wrapper; see ``GuardedGenerator.as_pipeline``."""
    model = copy.copy(guarded.model)  # shallow: shares modules and weights
    model.generate = guarded.generate
    inner: Any = type(guarded.pipeline)
    # Skip __init__, which would read the model's settings and move the model once more.
    pipe: Pipeline = object.__new__(_guarded_class(inner))
    vars(pipe).update(vars(guarded.pipeline), model=model, guarded=guarded)
    return pipe


class StreamerAdapter:
    """Passes the text of a call to its streamer: while it is drawn, once it is certain to be accepted, or as a whole.

    Without a streamer it does nothing. The streamer runs in a thread of its own until the text is complete, so that a
    slow one does not hold up other calls in the batch.
    """

    def __init__(self, streamer: Any) -> None:
        if not (streamer is None or isinstance(streamer, TextStreamer)):
            raise UsageError(
                f"streamer={type(streamer).__name__}(...) is not a TextStreamer; pass one, and it receives the text "
                "once that is certain to be accepted"
            )
        self._streamer: TextStreamer | None = streamer
        self._sent = 0  # characters
        self._pieces: SimpleQueue[str | None] = SimpleQueue()  # None at the end
        self._speaker: threading.Thread | None = None
        self._error: Exception | None = None  # raised by the streamer

    @property
    def pass_on(self) -> PassOn | None:
        """The function that receives the pieces of a request's text; None without a streamer."""
        return None if self._streamer is None else self._put

    def _put(self, request: Request, number: int, text: str, ended: bool) -> None:
        self.require_one(request.prompt.law.count == 1)
        if ended or self._streamer is None:  # the rest of the text is streamed when the call is complete
            return
        if self._speaker is None:
            if not self._streamer.skip_prompt:
                prompt: Any = request.prompt
                self._pieces.put(prompt.text)
            self._speaker = threading.Thread(target=self._speak, args=(self._streamer,), daemon=True)
            self._speaker.start()
        self._sent += len(text)
        self._pieces.put(text)

    def _speak(self, streamer: TextStreamer) -> None:
        try:
            while (piece := self._pieces.get()) is not None:
                streamer.on_finalized_text(piece)
        except Exception as error:  # raised again in the caller's thread
            self._error = error

    def _wait(self) -> None:
        """Wait until the streamer has received all pieces."""
        if self._speaker is not None:
            self._pieces.put(None)
            self._speaker.join()

    def require_one(self, single: bool) -> None:
        """Raise UsageError if there is a streamer and more than one text."""
        if self._streamer is not None and not single:
            raise UsageError("a streamer takes one text; give one prompt, and num_return_sequences=1")

    def __call__(self, outcomes: Sequence[Outcome]) -> None:
        """Stream the text of a call. A missing text (``on_exhausted="none"``) ends the stream."""
        streamer = self._streamer
        if streamer is None:
            return
        self.require_one(sum(outcome.report.requested for outcome in outcomes) == 1)
        self._wait()
        if self._error is not None:
            raise self._error
        (outcome,) = outcomes
        if outcome.draws and not streamer.skip_prompt and self._speaker is None:
            streamer.on_finalized_text(outcome.draws[0].prompt)
        if outcome.texts:
            streamer.on_finalized_text(outcome.texts[0][self._sent :], stream_end=True)
        else:
            self.end()

    def end(self) -> None:
        """End the stream without the rest of a text, so that a reader in another thread does not wait forever."""
        self._wait()
        streamer = self._streamer
        if isinstance(streamer, AsyncTextIteratorStreamer):
            streamer.loop.call_soon_threadsafe(streamer.text_queue.put_nowait, streamer.stop_signal)
        elif isinstance(streamer, TextIteratorStreamer):
            streamer.text_queue.put(streamer.stop_signal)


@contextmanager
def streaming(options: dict[str, Any]) -> Iterator[StreamerAdapter]:
    """Remove the streamer from the options of a call, and end its stream if the call raises."""
    streamer = StreamerAdapter(options.pop("streamer", None))
    try:
        yield streamer
    except BaseException:
        streamer.end()
        raise
