"""The ``Judge`` constraint: a language model answers a question about the text."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.classifier import ScoringConstraint, weights_digest
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import CheckFailed
from guardwrap.outcomes import Draw
from guardwrap.rules.judge_answers import (
    PARALLEL,
    LocalAnswers,
    NamedServer,
    ServerAnswers,
    is_server,
    names_server,
    pieces_of,
)
from guardwrap.support.threads import cached_property
from guardwrap.support.validation import require_code_allowed
from guardwrap.support.yaml_nodes import short

_KEPT = 10_000
"""The most answers that are kept."""

_LEAST = 1e-4
"""The least probability of all answers together. Below it the model does something else than answering."""


def _require_allowed(model: Any, info: ValidationInfo) -> Any:
    """Reject a server in a file, which could send prompts anywhere, unless the caller passed ``allow_code=True``."""
    if isinstance(model, str) and names_server(model):
        require_code_allowed(info, f"a server ({short(model)})")
    return model


@dataclass
class JudgeUsage:
    """What a judge has cost since it was made."""

    asked: int = 0  # questions that the model answered, and those whose answer was known already
    kept: int = 0
    seconds: float = 0.0  # Wall-clock time of the model


class _Memory:
    """The answers of a judge, and its questions that are being asked. Copies and other processes begin with none."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self.asked: dict[tuple[str, ...], threading.Event] = {}
        self.lock = threading.Lock()  # held for no question

    def keep(self, pair: tuple[str, ...], answer: float) -> None:
        """Keep an answer, and let those continue that wait for it."""
        with self.lock:
            self.known[pair] = answer
            while len(self.known) > _KEPT:
                self.known.popitem(last=False)
        self.let_go([pair])

    def let_go(self, pairs: Sequence[tuple[str, ...]]) -> None:
        """Let those continue that wait for some answers, whether these are known or not."""
        with self.lock:
            events = [event for pair in pairs if (event := self.asked.pop(pair, None)) is not None]
        for event in events:
            event.set()

    def __reduce__(self) -> tuple[type[_Memory], tuple[()]]:
        return _Memory, ()


@dataclass(frozen=True, eq=False, repr=False)
class Judge(ScoringConstraint):
    r"""A language model gives an answer to a question about the text a probability above, or below, a threshold.

    The probability is that of the tokens that begin this answer, in any case, divided by that of the tokens that begin
    one of the answers. Nothing is sampled, so the judgement is a function of the question.

    Parameters
    ----------
    question
        A question with ``{text}``, which is replaced by the text, and perhaps ``{prompt}``, by the prompt. Special
        tokens in them are read as plain text. The judge's chat template is applied, if it has one.
    model
        The judge: a ``text-generation`` pipeline, the Hub id or path of a causal language model, or an ``Endpoint``
        whose server returns ``top_logprobs``, also as a string: ``"NAME@http://localhost:8000/v1"``. In a constraint
        file, such a string requires ``allow_code=True``.
    answer
        The answer whose probability counts.
    answers
        All answers between which the model decides. They must not begin with the same token.
    threshold
        Probability between 0 and 1.
    side
        ``"above"``: probability > threshold; ``"below"``: probability < threshold.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Attributes
    ----------
    usage : JudgeUsage
        What the judge has cost so far.

    Raises
    ------
    ConstraintError
        If a parameter is invalid. Answers are checked with a pipeline at once, with a name at the first question.
    ModelError
        If the model cannot be loaded, or a question is longer than its context. EndpointError, if a server cannot be
        used or returns no log-probabilities; a fault of a server is never a rejection.

    Notes
    -----
    Texts are judged when they are complete, and after all other parts of the constraint, one by one, so that no number
    depends on the batch. Answers are kept. If the answers have hardly any probability together, CheckFailed is raised.

    A server is sent up to eight questions at the same time, with the endpoint's timeout and retries. It returns the 20
    most probable tokens; others count as 0. Whether it reads special tokens in a text as plain text depends on it.

    Examples
    --------
    ::

        Judge("Is this reply polite? Answer yes or no.\n\n{text}", "path/or/hub-id", threshold=0.8)
    """

    question: str
    model: Annotated[Any, AfterValidator(_require_allowed), WithJsonSchema({"type": "string"})]
    answer: str = field(default="yes", kw_only=True)
    answers: Sequence[str] = field(default=("yes", "no"), kw_only=True)
    threshold: float = field(default=0.5, kw_only=True)
    side: Literal["above", "below"] = field(default="above", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["judge"] = field(default="judge", kw_only=True)

    cost = 3

    def __post_init__(self) -> None:
        require(
            isinstance(self.question, str) and "{text}" in self.question,
            f"question={shown(self.question)} needs {{text}} where the text belongs",
        )
        if not is_server(self.model):
            self.require_model("text-generation")
        answers = self.answers
        valid = isinstance(answers, Sequence) and not isinstance(answers, str) and len(answers) > 1
        valid = valid and all(isinstance(each, str) and each.strip() for each in answers)
        require(valid, f"answers must be a list of at least two answers, not {shown(answers)}")
        object.__setattr__(self, "answers", tuple(answers))
        require_choice(self.answer, tuple(answers), "answer")
        self.require_threshold()
        object.__setattr__(self, "on", read_view(self.on))
        object.__setattr__(self, "usage", JudgeUsage())
        object.__setattr__(self, "_memory", _Memory())
        if not isinstance(self.model, str) or names_server(self.model):
            self._asker  # noqa: B018  # report answers that begin alike now, not at the first text

    @cached_property
    def _asker(self) -> LocalAnswers | ServerAnswers:
        answers, server = tuple(self.answers), self._server
        if server is not None:
            return ServerAnswers(server, answers)
        return _named(self.model, answers) if isinstance(self.model, str) else LocalAnswers(self.model, answers)

    @cached_property
    def _server(self) -> Any:
        """The server that is asked; None if the model is in this process."""
        if isinstance(self.model, str):
            return NamedServer(self.model) if names_server(self.model) else None
        return self.model if is_server(self.model) else None

    @property
    def _looks(self) -> bool:
        """Whether a time limit applies. None can interrupt a request, so servers are asked while others continue."""
        return self._server is None and super()._looks

    def sources(self) -> dict[str, str]:
        """Return the model; nothing for a server, whose weights are not known."""
        return super().sources() if self._server is None else {}

    def spec(self) -> dict[str, Any]:
        """Return the canonical form. A server appears as its model's name and its address, without the key."""
        if (server := self._server) is not None:
            return Constraint.spec(self) | {"model": f"{server.model}@{server.base_url}"}
        return super().spec()

    def probabilities(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[float]:
        """Return the answer's probability for each text.

        Parameters
        ----------
        texts
            The texts.
        prompts
            The prompt of each text, for questions with ``{prompt}``; None for empty ones.
        """
        return self.scores_of(texts, prompts)

    def model_input(self, draw: Draw, text: str) -> tuple[str, ...]:
        """Return the text, and the prompt if the question contains it."""
        return text, draw.prompt if "{prompt}" in self.question else ""

    def scores(self, inputs: Sequence[tuple[str, ...]]) -> list[float]:
        """Return the answer's probability for pairs of a text and a prompt."""
        memory: _Memory = self._memory  # type: ignore[attr-defined]
        usage: JudgeUsage = self.usage  # type: ignore[attr-defined]
        answers: dict[tuple[str, ...], float] = {}
        asked = 0
        while True:
            with memory.lock:
                answers |= {pair: memory.known[pair] for pair in inputs if pair in memory.known}
                unknown = [pair for pair in dict.fromkeys(inputs) if pair not in answers]
                new = [pair for pair in unknown if pair not in memory.asked]
                memory.asked.update({pair: threading.Event() for pair in new})
                others = [memory.asked[pair] for pair in unknown]
                if not unknown:
                    usage.kept += len(inputs) - asked
                    return [answers[pair] for pair in inputs]
            if new:
                answers |= self._asked(new)
                asked += len(new)
            else:  # another thread asks the same question; if that fails, it is asked again here
                others[0].wait()

    def _asked(self, pairs: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
        """Ask about pairs of a text and a prompt."""
        began, usage, memory = time.monotonic(), self.usage, self._memory  # type: ignore[attr-defined]
        try:
            asker = self._asker
            if isinstance(asker, ServerAnswers) and len(pairs) > 1:
                with ThreadPoolExecutor(PARALLEL) as pool:
                    answers = list(pool.map(self._answer, pairs))
            else:
                answers = list(map(self._answer, pairs))
        finally:
            memory.let_go(pairs)
        with memory.lock:
            usage.asked += len(pairs)
            usage.seconds += time.monotonic() - began
        return dict(zip(pairs, answers, strict=True))

    def _answer(self, pair: tuple[str, ...]) -> float:
        """Ask about one pair, and keep the answer."""
        text, prompt = pair
        masses = self._asker.masses(pieces_of(self.question, {"text": text, "prompt": prompt}))
        if not sum(masses) >= _LEAST:  # NaN is not, either; this cannot count as a rejection: under ~ it would pass
            raise CheckFailed(
                self.title,
                f"gave its answers a probability of {sum(masses):.1g} together; ask for one of the answers in the "
                "question, and use a model that answers at once and is loaded in float32",
            )
        answer = masses[self.answers.index(self.answer)] / sum(masses)
        self._memory.keep(pair, answer)  # type: ignore[attr-defined]
        return answer

    @cached_property
    def _weights(self) -> str:
        return weights_digest(self.model.model)


@lru_cache(maxsize=8)
def _named(model: str, answers: tuple[str, ...]) -> LocalAnswers:
    """Return what asks a model with a name, made once: every request to a server has constraints of its own."""
    return LocalAnswers(model, answers)
