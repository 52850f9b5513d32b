"""What a request gets in the place of a text: an error in the shape that OpenAI's clients know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guardwrap.documents.validation import Invalid
from guardwrap.errors import (
    AdapterMismatch,
    CheckFailed,
    ConstraintError,
    GenerationFailed,
    UsageError,
    first_line,
)

__all__ = ["ErrorResponse", "bad", "in_field", "refusal_of"]

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
    """A request that gets an error. Never holds generated text.

    Parameters
    ----------
    status
        The HTTP status.
    message
        One line that names the cause and the way out.
    param
        The field of the request that it is about, or None.
    code
        For programs, e.g. ``"queue_full"``.
    report
        Reports as plain JSON, where something was drawn.
    headers
        Of the reply.
    """

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

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        if self.report is not None:
            error["guardwrap"] = self.report
        return {"error": error}


def bad(param: str | None, problem: str, *, code: str | None = None) -> ErrorResponse:
    """Return the refusal of a field that cannot be heeded."""
    return ErrorResponse(400, f"{param}: {problem}" if param else problem, param=param, code=code)


def in_field(param: str, error: Exception) -> ErrorResponse:
    """Return the refusal for what is wrong with a field, or with a place in it."""
    if isinstance(error, Invalid):
        where = ".".join(str(step) for step in (param, *error.location))
        return bad(where, error.problem)
    return bad(param, first_line(error))


def refusal_of(error: Exception) -> ErrorResponse:
    """Return what a request gets for an error that came up while it was served."""
    if isinstance(error, ErrorResponse):
        return error
    if isinstance(error, AdapterMismatch):
        return bad("guardwrap.adapter", "the adapter is for another model or another constraint than the request's")
    if isinstance(error, UsageError | ConstraintError):
        return bad(None, first_line(error))
    if isinstance(error, CheckFailed):
        return ErrorResponse(422, first_line(error), code="check_failed")
    if isinstance(error, GenerationFailed):
        return ErrorResponse(422, first_line(error), code="generation_failed")
    # Not its message: it may quote a text that no constraint has seen.
    return ErrorResponse(500, f"unexpected {type(error).__name__} in the server", code="unexpected")
