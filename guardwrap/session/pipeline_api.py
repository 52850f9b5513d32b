"""The wrapper where a pipeline is expected: a pipeline's attributes, its streamers, and a Pipeline proper."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers import AsyncTextIteratorStreamer, TextIteratorStreamer, TextStreamer
from transformers.pipelines import Pipeline

from guardwrap.errors import UsageError, nearest
from guardwrap.outcomes import Outcome
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.local_session import LocalSession

__all__ = ["PipelineLike", "as_pipeline", "streaming"]


class PipelineLike:
    """What a pipeline has besides its call."""

    _session: LocalSession | EndpointSession

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline in use: the one that was given, or one made of the model. Its own texts are not checked."""
        return self._session.pipe

    @property
    def model(self) -> Any:
        """The model in use. What its own ``generate`` returns is not checked."""
        return self._session.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer in use."""
        return self._session.tokenizer

    @property
    def task(self) -> str:
        """The pipeline's task, e.g. ``"text-generation"``."""
        return str(self.pipeline.task)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.pipeline.device
        return device

    @property
    def framework(self) -> str:
        """``"pt"``: libraries that knew several frameworks ask for it."""
        return "pt"

    def as_pipeline(self) -> Pipeline:
        """Return a Pipeline of the same class, for libraries that take nothing else.

        Whatever it is called with goes through the wrapper, and so does ``generate`` of its ``model``. Its stages
        cannot be called one by one: ``forward`` has texts that nobody has judged.
        """
        return as_pipeline(self)

    if not TYPE_CHECKING:  # a type checker would take it for every attribute

        def __getattr__(self, name: str) -> NoReturn:
            # Only asked for what is not there. Nothing of the pipeline is handed on: it could give unchecked texts.
            known = sorted(each for each in dir(type(self)) if not each.startswith("_"))
            raise AttributeError(
                f"{type(self).__name__!r} has no attribute {name!r}{nearest(name, known)}; it has {', '.join(known)}; "
                "as_pipeline() returns a Pipeline proper"
            )


class _Guarded:
    """What makes a pipeline's class that of a guarded one."""

    guarded: Any

    def __call__(self, *prompts: Any, **options: Any) -> Any:
        return self.guarded(*prompts, **options)

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the stage that draws texts."""
        raise UsageError("the stages of a guarded pipeline cannot be called one by one; call it as a whole: pipe(...)")

    _forward = forward


@cache
def _guarded_class(kind: Any) -> Any:
    """Return the class of a guarded pipeline."""
    return type(f"Guarded{kind.__name__}", (_Guarded, kind), {})


def as_pipeline(guarded: Any) -> Pipeline:
    """Make a Pipeline whose every text comes from a wrapper; see ``GuardedGenerator.as_pipeline``."""
    model = copy.copy(guarded.model)  # the same modules and numbers
    model.generate = guarded.generate
    inner: Any = type(guarded.pipeline)
    pipe: Pipeline = object.__new__(
        _guarded_class(inner)
    )  # __init__ would read the model's settings, and move it, once more
    vars(pipe).update(vars(guarded.pipeline), model=model, guarded=guarded)
    return pipe


class StreamerAdapter:
    """Hands the text of a call to its streamer when it has been accepted; without a streamer, to nobody.

    Parameters
    ----------
    streamer
        What the user gave.

    Raises
    ------
    UsageError
        If that is no TextStreamer.
    """

    def __init__(self, streamer: Any) -> None:
        if not (streamer is None or isinstance(streamer, TextStreamer)):
            raise UsageError(
                f"streamer={type(streamer).__name__}(...) is no TextStreamer, which takes texts: a text is handed over "
                "when it has been accepted"
            )
        self._streamer: TextStreamer | None = streamer

    def require_one(self, single: bool) -> None:
        """Raise UsageError where there is a streamer and not one text."""
        if self._streamer is not None and not single:
            raise UsageError("a streamer takes one text: give one prompt, and num_return_sequences=1")

    def __call__(self, outcomes: Sequence[Outcome]) -> None:
        """Hand over what a call got; a text that is missing (``on_exhausted="none"``) ends the stream."""
        streamer = self._streamer
        if streamer is None:
            return
        self.require_one(sum(outcome.report.requested for outcome in outcomes) == 1)
        (outcome,) = outcomes
        if outcome.draws and not streamer.skip_prompt:
            streamer.on_finalized_text(outcome.draws[0].prompt)
        if outcome.texts:
            streamer.on_finalized_text(outcome.texts[0], stream_end=True)
        else:
            self.end()

    def end(self) -> None:
        """End the stream without a text, so that who reads it in another thread does not wait for ever."""
        streamer = self._streamer
        if isinstance(streamer, AsyncTextIteratorStreamer):
            streamer.loop.call_soon_threadsafe(streamer.text_queue.put_nowait, streamer.stop_signal)
        elif isinstance(streamer, TextIteratorStreamer):
            streamer.text_queue.put(streamer.stop_signal)


@contextmanager
def streaming(options: dict[str, Any]) -> Iterator[StreamerAdapter]:
    """Take the streamer out of the options of a call, and end its stream if the call ends with an error."""
    hand = StreamerAdapter(options.pop("streamer", None))
    try:
        yield hand
    except BaseException:
        hand.end()
        raise
