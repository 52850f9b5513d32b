"""Calls over an endpoint: reads prompts, and renders texts as records of a text-generation pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.constraints.verdicts import Context
from guardwrap.engine.endpoint.endpoint_law import EndpointLaw, EndpointSettings
from guardwrap.engine.scheduling.backend import Streamed
from guardwrap.errors import PromptError
from guardwrap.models.calls import output_record
from guardwrap.models.parsed_message import SentRegions, sent_message
from guardwrap.models.prompt_forms import PromptReader
from guardwrap.outcomes import Draw, Outcome
from guardwrap.support.limits import is_text
from guardwrap.support.transformers_internals import NEW_TEXT, Chat

_UNFINISHED = "\ufffd"  # decoded from a partial character, which the next piece may complete


@dataclass(frozen=True)
class EndpointPrompt:
    """A prompt for a server."""

    number: int  # its position in the call, from 0
    given: Any  # the prompt as the user gave it
    # The prompt as text. For a chat, the contents of its messages on separate lines, because the server's template is
    # not known.
    text: str
    law: EndpointLaw  # the distribution that attempts are drawn from
    target: EndpointLaw  # the distribution that defines a(y)

    def traced(self, context: Any) -> EndpointPrompt:
        """Return the prompt with OpenTelemetry's context of its call, whose span its requests belong to."""
        if context is None:
            return self
        return replace(self, law=replace(self.law, traced=context), target=replace(self.target, traced=context))


@dataclass(frozen=True)
class EndpointCall(PromptReader):
    """A call over an endpoint."""

    causal: ClassVar[bool] = False
    """Whether guardwrap's own loop draws the attempts, which can then be weighed."""

    sampling: ClassVar[str] = "do_sample=True"
    """The arguments that turn sampling on."""

    settings: EndpointSettings  # the generation settings that define a(y)
    model: str  # the name of the model on the server
    drawn: str  # the name on the server of what attempts are drawn from: the model, or an adapter
    full_text: bool = True  # whether records include the prompt
    # turns a prompt into the one that attempts are drawn from; None keeps the prompt
    rewrite: Callable[[Any], Any] | None = None
    parses: bool = False  # whether answers to chats are read as messages, with their reasoning and tool calls

    def prompts(self, given: Iterable[tuple[int, Any]], capacity: int) -> Iterator[EndpointPrompt]:
        """Prepare numbered prompts, in the form in which ``read_prompts`` returns them."""
        for number, prompt in given:
            original = _messages(prompt)
            sent = original if self.rewrite is None else _messages(self.rewrite(original))
            for messages in (original, sent):
                if not isinstance(messages, str):
                    _require_turn(messages, number)
            text = _text_of(original)
            if not is_text(text):
                raise PromptError(f"prompt {number} has half of a surrogate pair, not a character; leave it out")
            if self.parses and isinstance(original, str):
                raise PromptError(
                    f"prompt {number} is a string, and only the answer to a chat has parts and tool calls; pass a list "
                    "of messages"
                )
            target = EndpointLaw(original, self.settings, self.model, parses=self.parses)
            law = EndpointLaw(sent, self.settings, self.drawn, parses=self.parses)
            yield EndpointPrompt(number, original, text, law, target)

    def draw(
        self,
        prompt: EndpointPrompt,
        grown: Streamed,
        finished: bool = True,
        log_probability: float | None = None,
        *,
        stops: Sequence[str] = (),
    ) -> Draw:
        """Return an attempt as the user receives it, which is also what is judged. With token ids if requested.

        The server ends messages before the ``stops``.
        """
        # Under truncation the server's log-probabilities are not those of the law.
        reported = grown.token_ids and not prompt.law.settings.listed
        log_proposal = grown.log_probability if reported else None
        draw = Draw(prompt.text, tuple(grown.token_ids), grown.text, finished, log_proposal)
        return replace(draw, **sent_message(grown.text, finished=finished)._asdict()) if self.parses else draw

    def fits(self, prompt: EndpointPrompt) -> bool:
        """Whether the longest text fits into the context: only the server knows, which refuses it or cuts it."""
        return True

    def context(self) -> Context:
        """Return what comes before the new text, for monitors."""
        return Context(message=(SentRegions(), ()), whole=False, lines=True) if self.parses else Context()

    def records(self, prompt: EndpointPrompt, outcome: Outcome) -> list[dict[str, Any]]:
        """Render an outcome in the pipeline's format, with None for missing texts."""
        given = prompt.given if isinstance(prompt.given, str) else Chat(prompt.given)
        wanted = {} if self.full_text else {"return_type": NEW_TEXT}
        texts = [*outcome.texts, *[None] * (outcome.report.requested - len(outcome.texts))]
        records = [output_record(given, text, wanted) for text in texts]
        if self.parses and self.full_text:
            for record, message in zip(records, outcome.messages, strict=False):
                if message is not None:
                    record["generated_text"][-1] = message
        return records


class TextWatch:
    """Judges running attempts of one prompt; the ``watch`` of a request."""

    def __init__(self, reader: PrefixReader) -> None:
        self._reader = reader

    def __call__(self, grown: Streamed) -> str | None:
        """Return the title of the first part that no continuation of the text can satisfy, or None."""
        before = self._reader.start if grown.reading is None else grown.reading
        # Lines of a message's pieces never end with this character, as JSON escapes it.
        grown.reading = self._reader.read(before, grown.text.rstrip(_UNFINISHED))
        blame: str | None = grown.reading.blame
        return blame

    def place(self, grown: Streamed) -> str | None:
        """Return where in the text the part that no continuation can satisfy is violated; None if not known."""
        place: str | None = None if grown.reading is None else grown.reading.place
        return place


def _messages(prompt: Any) -> Any:
    return getattr(prompt, "messages", prompt)


def _require_turn(messages: Any, number: int) -> None:
    if not messages:
        raise PromptError(f"prompt {number} is a chat without messages")
    if messages[-1].get("role") == "assistant":
        raise PromptError(
            f"prompt {number} ends with an assistant message, which an endpoint cannot continue; end it with a user "
            "message"
        )


def _text_of(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a prompt."""
    if isinstance(prompt, str):
        return prompt
    lines: list[str] = []
    for message in prompt:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        lines += [text for text in texts if isinstance(text, str)]
    return "\n".join(lines)
