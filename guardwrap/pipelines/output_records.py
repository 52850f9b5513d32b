"""Records of texts, in the formats of transformers' pipelines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from guardwrap.environment.transformers_internals import Chat
from guardwrap.errors import UsageError


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
