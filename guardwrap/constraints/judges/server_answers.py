"""How probable each of some short answers to a question is, by the log-probabilities that a server returns."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from guardwrap.constraints.base import require
from guardwrap.constraints.judges.local_answers import Piece
from guardwrap.documents.inputs import readable
from guardwrap.environment.network import environment_key, is_temporary, plain_address
from guardwrap.errors import ConstraintError, EndpointError, UsageError

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
