"""How many tokens a text has at least, known without tokenizing it: that of a megabyte takes seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["fewest_tokens"]


@dataclass(frozen=True)
class _Bound:
    """Bytes of the longest token, and whether text on both sides of white space is in different tokens."""

    longest: int
    splits_words: bool


_WORD = re.compile(r"[^ \t\r\n]+")
_known: WeakKeyDictionary[Any, _Bound | None] = WeakKeyDictionary()


def fewest_tokens(tokenizer: Any, text: str, enough: int) -> int:
    """Return a number of tokens that a text has at least; 0 where nothing is known.

    Every byte of it is in some token, if a tokenizer neither changes nor leaves out text: then it has as many tokens as
    the longest one fits in. Where words are told apart, each has one of its own.

    Parameters
    ----------
    tokenizer
        Of the model.
    text
        What it is given.
    enough
        Nobody asks for more than one more than this. While words are counted, no other thread runs Python.
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
    # A token of the vocabulary has a character for each byte; an added one is written as it is.
    added = [len(token["content"].encode()) for token in parts["added_tokens"]]
    spaces = any(" " in token["content"].strip() for token in parts["added_tokens"])
    longest = max([len(token) for token in parts["model"]["vocab"]] + added, default=0)
    return _Bound(longest, bool(bytewise[0].get("use_regex", True)) and not spaces) if longest else None


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the steps that cut a text before it is tokenized, one after the other."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part["pretokenizers"]:
            yield from _steps(step)
    else:
        yield part
