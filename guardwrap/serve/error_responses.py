"""Error responses in the format that OpenAI's clients expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guardwrap.errors import (
    AdapterMismatch,
    CheckFailed,
    ConstraintError,
    GenerationFailed,
    UsageError,
    first_line,
    nearest,
)
from guardwrap.support.validation import Invalid
from guardwrap.support.yaml_nodes import short

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "unprocessable_error",
    429: "rate_limit_error",
    503: "server_shutting_down",
}


class ErrorResponse(Exception):
    """Exception that becomes the HTTP error response to a request. It never contains generated text."""

    request_id: str | None = None  # id of the request, as in the log and in the header ``x-request-id``
    problem: str | None = None  # the message without the field that it begins with; None if it begins with none

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        report: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.report, self.headers = report, dict(headers or {})
        self.attempts = int(report["usage"]["attempts"]) if isinstance(report, Mapping) else 0

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the response."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        if self.request_id is not None:
            error["request_id"] = self.request_id
        if self.report is not None:
            error["guardwrap"] = self.report
        return {"error": error}


def bad(param: str | None, problem: str, *, code: str | None = None) -> ErrorResponse:
    """Return the response (HTTP 400) to a field that is invalid or not supported."""
    response = ErrorResponse(400, f"{param}: {problem}" if param else problem, param=param, code=code)
    response.problem = problem if param else None
    return response


def no_model(name: Any, names: Sequence[str]) -> ErrorResponse:
    """Return the response (HTTP 404) to a request for a model that the server does not have."""
    message = f"model: this server has no model {short(name)}{nearest(name, names)}; it has {names[0]!r}"
    return ErrorResponse(404, message[:300], param="model", code="model_not_found")


def in_field(param: str, error: Exception) -> ErrorResponse:
    """Return the response (HTTP 400) to an error in a field; it names the place in the field, if the error does."""
    if isinstance(error, Invalid):
        where = ".".join(str(step) for step in (param, *error.location) if step != "")
        return bad(where or None, error.problem)
    return bad(param, first_line(error))


def refusal_of(error: Exception, request_id: str | None = None) -> ErrorResponse:
    """Return the response to an exception that was raised while a request was served."""
    if isinstance(error, ErrorResponse):
        refusal = error
    elif isinstance(error, AdapterMismatch):
        problem = "the adapter was trained for another model or constraint; name another one"
        refusal = bad("guardwrap.adapter", problem)
    elif isinstance(error, UsageError | ConstraintError):
        refusal = bad(None, first_line(error))
    elif isinstance(error, CheckFailed):
        refusal = ErrorResponse(422, first_line(error), code="check_failed")
    elif isinstance(error, GenerationFailed):
        refusal = ErrorResponse(422, first_line(error), code="generation_failed")
    else:  # its message may quote unchecked text, so it is left out
        refusal = ErrorResponse(500, f"unexpected {type(error).__name__} in the server", code="unexpected")
    refusal.request_id = request_id
    return refusal
