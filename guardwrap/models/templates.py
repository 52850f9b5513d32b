"""Response templates of model families, for tokenizers that come without one.

A ``response_template`` says which markers separate the reasoning, the answer and the tool calls of a message.
transformers parses with it (``tokenizer.parse_response``). The family is recognized by markers in the chat template.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from guardwrap.models.parsed_message import has_template

_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_WHOLE_CALL = {"type": "function", "function": "{content}"}
_THINK = {"open": "<think>", "close": "</think>", "content": "text"}
_CHATML_END = r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)"


class Family(NamedTuple):
    """A model family."""

    name: str  # its name, for reports and errors
    marks: tuple[str, ...]  # strings that its chat template contains, all of them
    template: dict[str, Any]  # the response template


def _template(anchor: str | list[str], **fields: dict[str, Any]) -> dict[str, Any]:
    return {"defaults": {"role": "assistant"}, "start_anchor": anchor, "fields": fields}


def _calls(**how: Any) -> dict[str, Any]:
    """Return the field of calls whose marker names the tool and whose text is JSON of the arguments, unless said."""
    return {"content": "json", "repeats": True, "transform": _CALL, **how}


def _text(end: str) -> dict[str, Any]:
    # White space before the end belongs to it. Otherwise it would become a further, empty content.
    return {"close_pattern": end, "content": "text"}


FAMILIES = (
    Family(
        "Harmony",
        ("<|channel|>", "<|message|>"),
        _template(
            "<|start|>assistant",
            reasoning_content={
                "open": "<|channel|>analysis<|message|>",
                "close": ["<|end|>", "<|return|>", "<|call|>"],
                "content": "text",
            },
            tool_calls=_calls(
                open_pattern=r"(?:<\|channel\|>commentary to=functions\.(?P<name>[\w.-]+)"
                r"| to=functions\.(?P<name>[\w.-]+)<\|channel\|>commentary)"
                r"\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>",
                close=["<|call|>", "<|end|>"],
            ),
            content={
                "open_pattern": r"<\|channel\|>(?:final|commentary)<\|message\|>",
                "close": ["<|return|>", "<|end|>"],
                "content": "text",
            },
        ),
    ),
    Family(
        "Gemma 4",
        ("<|turn>", "<|tool_call>"),
        _template(
            ["<|turn>model\n", "<tool_response|>"],
            reasoning_content={"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
            tool_calls=_calls(
                open_pattern=r"<\|tool_call>call:(?P<name>\w+)",
                close="<tool_call|>",
                content_args={"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            ),
            content={"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
        ),
    ),
    Family(
        "Gemma",
        ("<start_of_turn>",),
        _template(
            "<start_of_turn>model\n",
            tool_calls=_calls(
                open_pattern=r"\s*<start_function_call>call:(?P<name>\w+)",
                close="<end_function_call>",
                content_args={"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
            ),
            content=_text(r"\s*(?:<end_of_turn>|<start_function_response>|<eos>)"),
        ),
    ),
    Family(
        "DeepSeek",
        ("<｜Assistant｜>",),
        _template(
            ["<｜Assistant｜></think>", "<｜Assistant｜>", "<｜tool▁outputs▁end｜>"],
            reasoning_content=_THINK,
            tool_calls=_calls(
                # Two forms. The word "function" is no name in the second one: a parser must not take it for one before
                # the name has come.
                open_pattern=r"\s*(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>"
                r"(?:function<｜tool▁sep｜>(?P<name>[^<\n]+)\n```json\n|(?P<name>(?!function<)[^<\n]+)<｜tool▁sep｜>)",
                close_pattern=r"(?:\n```)?<｜tool▁call▁end｜>",
            ),
            content=_text(r"\s*(?:<｜tool▁calls▁end｜>|<｜end▁of▁sentence｜>)"),
        ),
    ),
    Family(
        "GLM",
        ("<|assistant|>", "<arg_key>"),
        _template(
            "<|assistant|>",
            reasoning_content=_THINK,
            tool_calls=_calls(
                open_pattern=r"\s*<tool_call>(?P<name>[^\n<]+)",
                close="</tool_call>",
                content="xml-inline",
                content_args={
                    "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
                },
            ),
            content=_text(r"\s*(?:<\|user\|>|<\|observation\|>|<\|endoftext\|>)"),
        ),
    ),
    Family(
        "Mistral",
        ("[TOOL_CALLS]", "[ARGS]"),
        _template(
            ["[/INST]", "[/TOOL_RESULTS]"],
            reasoning_content={"open": "[THINK]", "close": "[/THINK]", "content": "text"},
            tool_calls=_calls(
                open_pattern=r"\s*\[TOOL_CALLS\](?P<name>[^\[\s]+)(?:\[CALL_ID\][^\[]*)?\[ARGS\]",
                close_pattern=r"(?=\s*\[TOOL_CALLS\])|\s*</s>",
            ),
            content=_text(r"\s*</s>"),
        ),
    ),
    Family(
        "Mistral (lists of calls)",
        ("[TOOL_CALLS]",),
        _template(
            ["[/INST]", "[/TOOL_RESULTS]"],
            tool_calls={
                "open_pattern": r"\s*\[TOOL_CALLS\]",
                "close_pattern": r"\s*</s>",
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{name}", "arguments": "{arguments}"},
                },
                "transform_each": True,
            },
            content=_text(r"\s*</s>"),
        ),
    ),
    Family(
        "Llama 3",
        ("<|start_header_id|>",),
        _template(
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            tool_calls=_calls(
                # A call is the whole message, so an answer that mentions such an object is none.
                open_pattern=r'\A\s*(?:<\|python_tag\|>)?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?'
                r'"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:parameters|arguments)"\s*:',
                close_pattern=r"\s*\}\s*(?:<\|eom_id\|>|<\|eot_id\|>|\Z)",
            ),
            content=_text(r"\s*(?:<\|eot_id\|>|<\|eom_id\|>|<\|end_of_text\|>)"),
        ),
    ),
    Family(
        "Qwen (calls in XML)",
        ("<|im_start|>", "<function=", "<parameter="),
        _template(
            "<|im_start|>assistant\n",
            reasoning_content=_THINK,
            tool_calls=_calls(
                open_pattern=r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                close_pattern=r"</function>\s*</tool_call>",
                content="xml-inline",
                content_args={"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
            ),
            content=_text(_CHATML_END),
        ),
    ),
    Family(
        "Qwen or Hermes",
        ("<|im_start|>",),
        _template(
            "<|im_start|>assistant\n",
            reasoning_content=_THINK,
            tool_calls=_calls(
                open_pattern=r"\s*<tool_call>",
                close="</tool_call>",
                transform=_WHOLE_CALL,
            ),
            content=_text(_CHATML_END),
        ),
    ),
)
"""The families, the most specific first. Those of Qwen and Gemma 4 agree with ``transformers serve``."""


UNKNOWN_FAMILY = (
    "the tokenizer has no response_template, and its chat template has the markers of no known model family "
    f"({', '.join(family.name for family in FAMILIES)}); set tokenizer.response_template"
)
"""Why answers of a tokenizer cannot be parsed."""


_MARKERS = (
    "<think>", "</think>", "<tool_call>", "[THINK]", "[TOOL_CALLS]", "<|channel|>", "<|channel>", "<|tool_call>",
    "<start_function_call>", "<｜tool▁call▁begin｜>", "<|python_tag|>",
)  # fmt: skip


def writes_parts(tokenizer: Any) -> bool:
    """Whether the chat template shows that the model writes reasoning or calls, and not answers alone."""
    together = chat_templates(tokenizer)
    if has_template(tokenizer):
        return True
    return family_of(tokenizer) is not None and any(marker in together for marker in _MARKERS)


def chat_templates(tokenizer: Any) -> str:
    """Return the tokenizer's chat templates, one below the other; "" without any."""
    chat_template = getattr(tokenizer, "chat_template", None)
    texts = chat_template.values() if isinstance(chat_template, dict) else [chat_template or ""]
    return "\n".join(map(str, texts))


def family_of(tokenizer: Any) -> Family | None:
    """Return the family whose markers the tokenizer's chat template contains, or None."""
    together = chat_templates(tokenizer)
    # A template may write the line break after a marker as an expression, so anchors are no marks.
    return next((family for family in FAMILIES if all(mark in together for mark in family.marks)), None)


def with_template(pipe: Any, template: Mapping[str, Any]) -> Any:
    """Return a copy of a pipeline that shares the model, and whose tokenizer has this response template."""
    parsing = copy.copy(pipe)
    parsing.tokenizer = copy.copy(pipe.tokenizer)
    parsing.tokenizer.response_template = copy.deepcopy(template)
    return parsing
