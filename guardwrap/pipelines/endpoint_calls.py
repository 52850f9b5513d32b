"""Calls over an endpoint: prompts and settings to requests, texts to the records of a text-generation pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from guardwrap.backends.endpoint.endpoint_law import EndpointLaw, EndpointSettings
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.documents.inputs import is_text
from guardwrap.environment.transformers_internals import NEW_TEXT, Chat
from guardwrap.errors import PromptError
from guardwrap.outcomes import Draw
from guardwrap.pipelines.output_records import output_record
from guardwrap.pipelines.prompt_forms import PromptReader
from guardwrap.scheduling.backend import Streamed

__all__ = ["EndpointCall", "EndpointPrompt", "TextWatch"]

_UNFINISHED = "\ufffd"  # half a character, which the next piece may complete


@dataclass(frozen=True)
class EndpointPrompt:
    """A prompt for a server.

    Parameters
    ----------
    number
        Its place in the call, from 0.
    given
        As the user gave it.
    text
        As text: of a chat what its messages say, a line each, as the server's template is not known.
    law
        What its attempts are drawn from.
    target
        What defines a(y).
    """

    number: int
    given: Any
    text: str
    law: EndpointLaw
    target: EndpointLaw


@dataclass(frozen=True)
class EndpointCall(PromptReader):
    """A call over an endpoint.

    Parameters
    ----------
    settings
        Under which a(y) is defined.
    model
        The name that the server has for the model.
    drawn
        The name that it has for what attempts are drawn from: the model's own, or an adapter's.
    full_text
        Whether records hold the prompt too.
    rewrite
        From a prompt to the one that attempts are drawn from; None is the same one.
    """

    causal: ClassVar[bool] = False
    """Whether attempts are drawn by our own loop, and can be weighed."""

    sampling: ClassVar[str] = "do_sample=True"
    """The arguments that make it sample."""

    settings: EndpointSettings
    model: str
    drawn: str
    full_text: bool = True
    rewrite: Callable[[Any], Any] | None = None

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[EndpointPrompt]:
        """Make requests of numbered prompts, as ``read_prompts`` returns them.

        Raises
        ------
        PromptError
            If a prompt cannot be sent.
        """
        for number, prompt in given:
            own = _messages(prompt)
            sent = own if self.rewrite is None else _messages(self.rewrite(own))
            for messages in (own, sent):
                if not isinstance(messages, str):
                    _require_turn(messages, number)
            text = _text_of(own)
            if not is_text(text):
                raise PromptError(f"prompt {number} has half of a surrogate pair, which is no character; leave it out")
            target = EndpointLaw(own, self.settings, self.model)
            yield EndpointPrompt(number, own, text, EndpointLaw(sent, self.settings, self.drawn), target)

    def draw(
        self, prompt: EndpointPrompt, grown: Streamed, finished: bool = True, log_probability: float | None = None
    ) -> Draw:
        """Return an attempt as the user gets it: what is judged. It has token ids where they were asked for."""
        known = grown.log_probability if grown.token_ids else None
        return Draw(prompt.text, tuple(grown.token_ids), grown.text, finished, known)

    def records(self, prompt: EndpointPrompt, texts: Sequence[str | None]) -> list[dict[str, Any]]:
        """Render what a prompt got, as the pipeline would; None for each text that is missing."""
        given = prompt.given if isinstance(prompt.given, str) else Chat(prompt.given)
        wanted = {} if self.full_text else {"return_type": NEW_TEXT}
        return [output_record(given, text, wanted) for text in texts]


class TextWatch:
    """Judges running attempts of one prompt: what a request has as its watch.

    Parameters
    ----------
    reader
        Reads for the constraint.
    """

    def __init__(self, reader: PrefixReader) -> None:
        self._reader = reader

    def __call__(self, grown: Streamed) -> str | None:
        """Return the title of the first part that no continuation of the text can satisfy, or None."""
        before = self._reader.start if grown.reading is None else grown.reading
        grown.reading = self._reader.read(before, grown.text.rstrip(_UNFINISHED))
        blame: str | None = grown.reading.blame
        return blame


def _messages(prompt: Any) -> Any:
    return getattr(prompt, "messages", prompt)


def _require_turn(messages: Any, number: int) -> None:
    if not messages:
        raise PromptError(f"prompt {number} is a chat without a message")
    if messages[-1].get("role") == "assistant":
        raise PromptError(
            f"prompt {number} ends with what the assistant says, and an endpoint does not go on with that; "
            "end it with a user message"
        )


def _text_of(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """Return what a prompt says."""
    if isinstance(prompt, str):
        return prompt
    said: list[str] = []
    for message in prompt:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        said += [text for text in texts if isinstance(text, str)]
    return "\n".join(said)
