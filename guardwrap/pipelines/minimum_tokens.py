"""A lower bound on the number of tokens of a text, without tokenizing it, which takes seconds for a megabyte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(frozen=True)
class _Bound:
    """The length of the longest token in bytes, and whether tokens never span a space between words."""

    longest: int
    splits_words: bool


_WORD = re.compile(r"[^ \t\r\n]+")
_known: WeakKeyDictionary[Any, _Bound | None] = WeakKeyDictionary()


def fewest_tokens(tokenizer: Any, text: str, enough: int) -> int:
    """Return a lower bound on the number of tokens of a text; 0 if nothing is known.

    A tokenizer that neither changes nor drops text needs at least the length of the text divided by that of the longest
    token. If it splits words, each word also takes at least one token.
    """
    if tokenizer not in _known:
        _known[tokenizer] = _bound_of(tokenizer)
    bound = _known[tokenizer]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if bound is None or backend is None or backend.truncation is not None:
        return 0
    size = len(text.encode("utf-8", "surrogatepass"))
    words = sum(1 for _ in islice(_WORD.finditer(text), enough + 1)) if bound.splits_words else 0
    return max(-(-size // bound.longest), words)


def _bound_of(tokenizer: Any) -> _Bound | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = json.loads(backend.to_str())
    steps = list(_steps(parts["pre_tokenizer"]))
    bytewise = [step for step in steps if step["type"] == "ByteLevel"]
    whole = (
        parts["normalizer"] is None
        and parts["model"]["type"] == "BPE"
        and len(bytewise) == 1
        and all(step["type"] in ("ByteLevel", "Digits", "Split") for step in steps)
        and all(step.get("behavior") != "Removed" for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"])
    )
    if not whole:
        return None
    # In the vocabulary each character of a token stands for a byte. Added tokens are plain text.
    added = [len(token["content"].encode()) for token in parts["added_tokens"]]
    spaces = any(" " in token["content"].strip() for token in parts["added_tokens"])
    longest = max([len(token) for token in parts["model"]["vocab"]] + added, default=0)
    return _Bound(longest, bool(bytewise[0].get("use_regex", True)) and not spaces) if longest else None


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the pre-tokenization steps in order."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part["pretokenizers"]:
            yield from _steps(step)
    else:
        yield part
