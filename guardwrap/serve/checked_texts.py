"""Checks of texts that others have written, by the rules of the server and of the request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import Unknown, draw_without
from guardwrap.constraints.explanation import Rejection, explain_draws
from guardwrap.constraints.files.constraint_file import as_constraint_file
from guardwrap.constraints.files.file_fields import read_message
from guardwrap.errors import GuardwrapError, quoted
from guardwrap.models.parsed_message import written_message
from guardwrap.outcomes import Draw
from guardwrap.serve.error_responses import ErrorResponse, bad, in_field, refusal_of
from guardwrap.serve.request_models import RuleFields, read_field, require_at_most
from guardwrap.serve.request_policy import RequestPolicy, constraints_of, field_values, time_limited
from guardwrap.support.time_limits import time_limit
from guardwrap.support.validation import Invalid
from guardwrap.support.yaml_nodes import reading

MOST_TEXTS = 1024
"""The most texts of one request."""

MOST_SECONDS = 10.0
"""The most seconds for the texts of one request together, and for each alone if that fails; the rest is not checked."""

_LITELLM = "additional_provider_specific_params"
_UNKNOWN = "a rule reads the prompt or tokens, which are not known here; leave it out"
_LATE = f"it was not checked, because the texts before it took {MOST_SECONDS:g} s; send it in another request"

_CheckedDraw = draw_without("prompt", "begun", "token_ids")


class CheckFields(RuleFields):
    """A request to check texts."""

    input: Any


def check_texts(fields: Mapping[str, Any], policy: RequestPolicy) -> dict[str, Any]:
    """Answer a request to ``/v1/check``: a result for each text, in their order."""
    request = read_field(CheckFields, fields)
    texts = request.input if isinstance(request.input, list) else [request.input]
    return {"results": [_result(verdict) for verdict in _verdicts(texts, "input", request, "", policy)]}


def guard_for_litellm(fields: Mapping[str, Any], policy: RequestPolicy) -> dict[str, Any]:
    """Answer a request of LiteLLM's generic guardrail API: whether all of its texts, and its calls of tools, may pass.

    The reason goes to the caller of LiteLLM, so it quotes no text.
    """
    rules = read_field(RuleFields, fields.get(_LITELLM) or {}, _LITELLM)
    texts: list[Any] = read_field(list[str], fields.get("texts") or [], "texts")
    if calls := read_field(list[dict[str, Any]], fields.get("tool_calls") or [], "tool_calls"):
        answer = texts.pop() if len(texts) == 1 else ""
        texts.append({"content": answer, "tool_calls": [{"function": call.get("function")} for call in calls]})
    verdicts = _verdicts(texts, "texts", rules, f"{_LITELLM}.", policy)
    rejections = [rejection for verdict in verdicts if not isinstance(verdict, ErrorResponse) for rejection in verdict]
    if rejections:
        where = [quoted(each.part) + ("" if each.path is None else f" ({each.path})") for each in rejections]
        return {"action": "BLOCKED", "blocked_reason": f"rejected by {', '.join(dict.fromkeys(where))}"}
    for verdict in verdicts:
        if isinstance(verdict, ErrorResponse):
            raise verdict
    return {"action": "NONE"}


_Verdict = Sequence[Rejection] | ErrorResponse
"""The rules that reject a text, or why it cannot be checked."""


def _verdicts(
    texts: Sequence[Any], where: str, fields: RuleFields, prefix: str, policy: RequestPolicy
) -> list[_Verdict]:
    """Check texts and messages by the rules of a request, and those that always apply."""
    require_at_most(where, len(texts), MOST_TEXTS)
    with reading("the request"):
        files = [*policy.always, *constraints_of(fields, policy, prefix)]
        if not files:
            raise bad(f"{prefix}constraint", f"name a rule; known: {', '.join(policy.named) or 'catalogue:NAME'}")
        file = as_constraint_file(files)
        try:
            file = file.filled(field_values(fields, file, policy, prefix))
        except GuardwrapError as error:
            raise in_field(f"{prefix}fields", error) from None
        constraint = time_limited(file.constraint, policy)
    return _judged(constraint, [_draw(text, f"{where}.{i}") for i, text in enumerate(texts)])


def _draw(text: Any, where: str) -> Draw:
    """Return a text, which is an answer as well, or a message as a draw."""
    if isinstance(text, str):
        return _CheckedDraw("", (), text, parts=(("answer", (text,)),))
    if not isinstance(text, dict):
        raise bad(where, "give a text or a message")
    try:
        draw = written_message(read_message(text))
    except Invalid as error:
        raise in_field(where, error) from None
    return _CheckedDraw("", (), draw.text, fault=draw.fault, parts=draw.parts, message=draw.message)


def _judged(constraint: Constraint, draws: Sequence[Draw]) -> list[_Verdict]:
    try:
        with time_limit(MOST_SECONDS, firm=True):
            return [each.rejections for each in explain_draws(constraint, draws, tokens_known=True)]
    except Exception as error:  # of one of them, or of all together: each is checked alone
        if len(draws) == 1:
            unknown = isinstance(error, Unknown)
            return [ErrorResponse(422, _UNKNOWN, code="check_failed") if unknown else refusal_of(error)]
        verdicts: list[_Verdict] = []
        began = time.monotonic()
        for draw in draws:
            late = time.monotonic() - began > MOST_SECONDS
            verdicts += [ErrorResponse(422, _LATE, code="check_failed")] if late else _judged(constraint, [draw])
        return verdicts


def _result(verdict: _Verdict) -> dict[str, Any]:
    if isinstance(verdict, ErrorResponse):
        return {"accepted": None, "error": verdict.body()["error"]}
    rejections = [{"rule": each.part, "path": each.path, "reason": each.reason} for each in verdict]
    return {"accepted": not rejections, "rejections": rejections}
