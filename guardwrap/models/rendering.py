"""Records of texts, as transformers' pipelines make them, and methods of users that make them otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from guardwrap.errors import UsageError
from guardwrap.support.transformers_internals import Chat


def return_type(postprocess: Mapping[str, Any]) -> str:
    """Return the kind of record requested, by name, as each pipeline has its own enumeration."""
    kind = postprocess.get("return_type")
    if kind is not None and not hasattr(kind, "name"):
        raise UsageError(
            f"return_type={kind!r} is not a ReturnType of the pipeline; pass return_full_text or return_tensors"
        )
    return "FULL_TEXT" if kind is None else str(kind.name)


def message_record(messages: Iterable[Any], answer: str) -> dict[str, Any]:
    """Render the answer to a chat that was parsed into a message, given as JSON, as it was judged.

    The pipeline itself would keep the last piece of a text that reasoning or calls interrupt.
    """
    return {"generated_text": [*messages, json.loads(answer)]}


def output_record(prompt: str | Chat, text: str | None, postprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Render a text without tokens, such as a fallback; None stands for a missing text."""
    kind = return_type(postprocess)
    if kind == "TENSORS":
        return {"generated_token_ids": None}
    if text is None or kind == "NEW_TEXT":
        return {"generated_text": text}
    if isinstance(prompt, str):
        return {"generated_text": prompt + text}
    messages = list(prompt.messages)
    proceed = postprocess.get("continue_final_message")
    if proceed or (proceed is None and messages[-1]["role"] == "assistant"):
        content = messages[-1]["content"]
        if isinstance(content, str):
            content += text
        else:  # a list of parts, as in chats with images
            content = [*content[:-1], {**content[-1], "text": content[-1]["text"] + text}]
        return {"generated_text": [*messages[:-1], {**messages[-1], "content": content}]}
    return {"generated_text": [*messages, {"role": "assistant", "content": text}]}


_LIBRARIES = ("transformers", "guardwrap")
_NOT_RUN = ("__call__", "run_single", "run_multi", "iterate", "get_iterator")
"""Methods of pipelines that a wrapper does not call, as it draws the texts of many prompts together."""

_TEXTS_BY = ("postprocess", "_forward", "forward")
"""Stages that may change a text after it is drawn, and thus after it is judged."""


def own_method(thing: Any, names: Iterable[str]) -> str | None:
    """Return the first of these methods that no library has defined, with its class; None if there is none."""
    for name in names:
        # Python looks up special methods on the class. Decorators of tracing libraries keep a function's module.
        method = getattr(type(thing) if name.startswith("__") else thing, name, None)
        module = getattr(getattr(method, "__func__", method), "__module__", None) or ""
        if method is not None and module.partition(".")[0] not in _LIBRARIES:
            return f"{type(thing).__name__}.{name}"
    return None


def require_callable(pipe: Any) -> None:
    """Require that a call of the pipeline is its three stages in turn, and that no text is changed once it is drawn."""
    if (method := own_method(pipe, _NOT_RUN)) is not None:
        raise UsageError(
            f"{method} is not supported, because guardwrap runs the pipeline's stages itself; change prompts in "
            "preprocess, and texts after the call"
        )
    if (method := own_method(pipe, _TEXTS_BY)) is not None:
        raise UsageError(
            f"{method} is not supported, because it may change a text after it was judged; change texts after the call"
        )
