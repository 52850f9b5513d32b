"""The ``Judge`` constraint: a language model, here or on a server, answers a question about the text."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

import regex
from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.classifier import ScoringConstraint, loaded, weights_digest
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import CheckFailed, ConstraintError, EndpointError, ModelError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.support.limits import readable
from guardwrap.support.model_loading import computing
from guardwrap.support.network import environment_key, is_temporary, plain_address
from guardwrap.support.threads import cached_property
from guardwrap.support.validation import require_code_allowed
from guardwrap.support.yaml_nodes import short

Piece = tuple[str, bool]
"""A piece of a question, and whether special tokens in it are meant as such; in judged texts they are not."""

_SLOT = "\ue000{}\ue001"
"""Stands for a judged text while the chat template is applied; characters of the private use area."""


def pieces_of(question: str, filled: Mapping[str, str]) -> list[Piece]:
    """Split a question at its placeholders, ``{text}`` and ``{prompt}``, and fill them in.

    Nothing in a filled-in text is read as a placeholder.
    """
    pieces: list[Piece] = [(question, True)]
    for name, value in filled.items():
        mark = f"{{{name}}}"
        split: list[Piece] = []
        for text, ours in pieces:
            if not ours:
                split.append((text, ours))
                continue
            for number, part in enumerate(text.split(mark)):
                split += [(value, False)] * (number > 0) + [(part, True)]
        pieces = split
    return [piece for piece in pieces if piece[0]]


class LocalAnswers:
    """Asks a causal language model of transformers."""

    def __init__(self, model: Any, answers: Sequence[str]) -> None:
        self._model = model
        self._answers = tuple(answers)
        self._tokens  # noqa: B018  # so that answers that begin alike are noticed now

    @cached_property
    def pipeline(self) -> Any:
        """The loaded pipeline."""
        return loaded("text-generation", self._model) if isinstance(self._model, str) else self._model

    @cached_property
    def _tokens(self) -> list[list[int]]:
        """The tokens that each answer may begin with: in any case, with or without a space before it."""
        tokenizer, found = self.pipeline.tokenizer, []
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
        begun = [text.strip().casefold() for text in texts]
        folded = [answer.strip().casefold() for answer in self._answers]
        for answer in folded:
            others = [other for other in folded if other != answer]
            found.append(
                [
                    token
                    for token, text in enumerate(begun)
                    if text and answer.startswith(text) and not any(other.startswith(text) for other in others)
                ]
            )
        for answer, tokens in zip(self._answers, found, strict=True):
            if not tokens:
                raise ConstraintError(
                    f"the judge's tokenizer has no token that only {answer!r} begins with; use other answers"
                )
        return found

    def masses(self, question: Sequence[Piece]) -> list[float]:
        """Return the probability that the next token begins each answer.

        Questions are asked one by one, without padding: in half precision, numbers would otherwise depend on the batch.
        """
        import torch

        from guardwrap.support.transformers_internals import tokenizer_lock

        with tokenizer_lock(self.pipeline.tokenizer):
            ids = self._ids(question)
        model = self.pipeline.model
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and len(ids) > most:
            raise ModelError(
                f"the question to the judge has {len(ids)} tokens, and its context {most}; judge a shorter view, such "
                "as on='last_sentence'"
            )
        with computing(), torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1]
        shares = logits.float().softmax(-1)
        return [float(shares[tokens].sum()) for tokens in self._tokens]

    def _ids(self, question: Sequence[Piece]) -> list[int]:
        tokenizer = self.pipeline.tokenizer
        texts = [text for text, ours in question if not ours]
        slots = [_SLOT.format(number) for number in range(len(texts))]
        remaining = iter(slots)
        asked = "".join(text if ours else next(remaining) for text, ours in question)
        if getattr(tokenizer, "chat_template", None) is not None:
            chat = [{"role": "user", "content": asked}]
            asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids: list[int] = []
        else:
            asked += "\nAnswer:"
            ids = [token for token in tokenizer("")["input_ids"] if token != tokenizer.eos_token_id]
        if any(asked.count(slot) != 1 for slot in slots):
            raise ModelError("the judge's chat template repeats or changes a message; use a tokenizer with another one")
        for slot, text in zip(slots, texts, strict=True):
            frame, _, asked = asked.partition(slot)
            ids += self._encoded(frame)
            for piece in self._plain(text):
                ids += self._encoded(piece)
        return ids + self._encoded(asked)

    def _encoded(self, text: str) -> list[int]:
        return list(self.pipeline.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _plain(self, text: str) -> list[str]:
        """Cut a judged text within each added token, special or not, so that it is read as plain text."""
        text = readable(text)
        places = [0, *(match.start() + 1 for match in self._added.finditer(text, overlapped=True)), len(text)]
        return [text[start:end] for start, end in pairwise(places)]

    @cached_property
    def _added(self) -> regex.Pattern[str]:
        added = [*self.pipeline.tokenizer.get_added_vocab(), *self.pipeline.tokenizer.all_special_tokens]
        words = sorted({token for token in added if token}, key=len, reverse=True)
        return regex.compile("|".join(map(regex.escape, words)) or "(?!)", regex.VERSION0)


PARALLEL = 8
"""The most requests at the same time."""

_MOST_BYTES = 2**20
_NAMED = re.compile(r"(.*?)@(https?://.*)", re.DOTALL)
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


def is_server(model: Any) -> bool:
    """Whether a model is an ``Endpoint``. Its class is in a higher layer, so it is known by its attributes."""
    return isinstance(getattr(model, "base_url", None), str) and isinstance(getattr(model, "model", None), str)


def names_server(model: str) -> bool:
    """Whether a string names a model on a server: ``"NAME@URL"``. No Hub id has these characters."""
    return _NAMED.fullmatch(model) is not None


class NamedServer:
    """A model on a server, named by a string, for constraint files. Its key is that of ``OPENAI_API_KEY``."""

    timeout = 120.0
    max_retries = 8

    def __init__(self, named: str) -> None:
        match = _NAMED.fullmatch(named)
        self.model, url = match.groups() if match else ("", "")
        require(bool(self.model), "model: give the server's name for the model in front of '@' and the URL")
        try:
            self.base_url = plain_address(url, "model")
        except UsageError as error:
            raise ConstraintError(str(error)) from None

    def key(self) -> str | None:
        """Return the key that requests are sent with; None without."""
        return environment_key()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        """Return None: a redirect would send the prompt to a host that the user did not name."""


class ServerAnswers:
    """Asks a server with OpenAI's protocol for the most probable first tokens of an answer."""

    def __init__(self, endpoint: Any, answers: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._answers = [answer.strip().casefold() for answer in answers]
        alike = [(a, b) for a in self._answers for b in self._answers if a is not b and a.startswith(b)]
        require(not alike, f"answer {alike[0][0]!r} begins with {alike[0][1]!r}; use other answers" if alike else "")

    def masses(self, question: Sequence[Piece]) -> list[float]:
        """Return the probability that the next token begins each answer."""
        content = readable("".join(text for text, _ in question))
        body = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 20,
        }
        data = json.dumps(body).encode()
        for tries in range(self._endpoint.max_retries + 1):
            try:
                answer = self._sent(data)
                break
            except _Again as fault:
                if tries == self._endpoint.max_retries:
                    raise EndpointError(f"{fault}, {tries + 1} times in a row; try again later") from None
                time.sleep(min(_LONGEST_WAIT, _FIRST_WAIT * 2**tries))
        masses = [0.0] * len(self._answers)
        for token, log_probability in self._first_tokens(answer):
            text = token.strip().casefold()
            begun = [i for i, answer in enumerate(self._answers) if text and answer.startswith(text)]
            if len(begun) == 1:
                masses[begun[0]] += math.exp(min(log_probability, 0.0))  # in this order, NaN stays NaN
        return masses

    def _sent(self, data: bytes) -> bytes:
        endpoint = self._endpoint
        where, key = endpoint.base_url, endpoint.key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"{where}/chat/completions", data, headers)
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=endpoint.timeout) as response:
                answer = self._received(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise EndpointError(f"{where} rejects the key (HTTP {error.code}); set OPENAI_API_KEY") from None
            if is_temporary(error.code):
                raise _Again(f"{where} answers HTTP {error.code}") from None
            way_out = "check base_url, the model's name, and whether the server supports top_logprobs"
            raise EndpointError(f"{where} rejects the judge's question (HTTP {error.code}); {way_out}") from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", None)
            if isinstance(cause, ConnectionRefusedError | socket.gaierror):
                raise EndpointError(f"no server answers at {where}; start it, or correct base_url") from None
            raise _Again(f"the connection to {where} broke ({type(error).__name__})") from None
        except ValueError:  # from http.client, whose message may quote the key
            raise EndpointError(f"the key for {where} cannot be sent; check OPENAI_API_KEY") from None
        return answer

    def _received(self, response: Any) -> bytes:
        """Read an answer, within limits: the timeout applies to each piece, so small ones could arrive forever."""
        where, answer, end = self._endpoint.base_url, b"", time.monotonic() + self._endpoint.timeout
        while piece := response.read1(_MOST_BYTES):
            answer += piece
            if len(answer) > _MOST_BYTES:
                raise EndpointError(f"{where} sends an answer that is too large to be valid; check base_url")
            if time.monotonic() > end:
                raise _Again(f"{where} did not finish an answer within {self._endpoint.timeout:g} s")
        if response.length:
            raise _Again(f"the connection to {where} broke")
        return answer

    def _first_tokens(self, answer: bytes) -> list[tuple[str, float]]:
        """Return the most probable first tokens, with their log-probabilities in nats."""
        try:
            content = json.loads(answer)["choices"][0]["logprobs"]["content"]
            rows = [(row["token"], row["logprob"]) for row in content[0]["top_logprobs"][:100]]
            if not all(isinstance(token, str) and isinstance(number, int | float) for token, number in rows):
                raise ValueError
            return [(token, float(number)) for token, number in rows]
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            raise EndpointError(
                f"{self._endpoint.base_url} returns no log-probabilities of a first token; use a server and a model "
                "that support top_logprobs in chats, and turn reasoning off"
            ) from None


class _Again(Exception):
    """A temporary fault."""


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
        different = len({each.strip().casefold() for each in answers}) == len(answers)
        require(different, f"answers must differ in more than case, not {shown(answers)}")
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
        return text, draw.prompt if "{prompt}" in self.question else ""

    def scores(self, inputs: Sequence[tuple[str, ...]]) -> list[float]:
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
