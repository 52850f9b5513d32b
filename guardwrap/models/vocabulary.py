"""A tokenizer's vocabulary as bytes: the text that each token adds, and a trie of all tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from guardwrap.constraints.verdicts import REPLACEMENT, split
from guardwrap.engine.scheduling.backend import keep_state, last_state
from guardwrap.support.threads import cached_property

Decode = Callable[[Sequence[int]], str]

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""The name of a token that stands for a single byte."""

_TRIED = 40  # sequences of random tokens in the self-test


def _byte_letters() -> dict[str, int]:
    """Return the letters that byte-level tokenizers write bytes as (Radford et al. 2019)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True)
class Ahead:
    """The state of decoding before the next token."""

    text: str  # the text that later tokens cannot change
    pending: bytes = b""  # bytes of an incomplete character after it
    # Bytes of single-byte tokens after it. They are decoded together: to text if they are valid UTF-8, otherwise to one
    # U+FFFD each.
    run: bytes = b""
    begins: bool = False  # whether no token so far adds visible text

    @property
    def whole(self) -> str:
        """The text if no token follows."""
        return self.text + (REPLACEMENT if self.pending else "") + run_text(self.run)


def run_text(run: bytes) -> str:
    """Return the text of a run of single-byte tokens."""
    try:
        return run.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * len(run)


class Trie:
    """A prefix tree of tokens by their bytes (``pieces``, by token id). Nodes are numbers, and 0 is the root."""

    def __init__(self, pieces: Sequence[bytes], tokens: Sequence[int]) -> None:
        order = sorted(tokens, key=pieces.__getitem__)
        texts = [pieces[token] for token in order]
        self.order: npt.NDArray[np.int64] = np.array(order, dtype=np.int64)  # the tokens, sorted by their bytes
        self._texts = texts
        self._without: dict[bytes, npt.NDArray[np.bool_]] = {}
        self.labels: list[bytes] = [b""]  # the bytes that each node adds to its parent
        empty = sum(not text for text in texts)
        first, own, last = [0], [empty], [len(order)]
        below: list[list[int]] = [[]]
        todo = [(0, 0, empty, len(order))]  # node, depth, and the range of its children's tokens in the order
        while todo:
            node, depth, begin, end = todo.pop()
            while begin < end:
                byte, stop = texts[begin][depth], begin + 1
                while stop < end and texts[stop][depth] == byte:
                    stop += 1
                deeper = depth + 1  # sorted, so all share what the first and the last share
                while texts[begin][deeper : deeper + 1] == texts[stop - 1][deeper : deeper + 1] != b"":
                    deeper += 1
                label = texts[begin][depth:deeper]
                inner = begin
                while inner < stop and len(texts[inner]) == deeper:
                    inner += 1
                below[node].append(len(self.labels))
                self.labels.append(label)
                first.append(begin)
                own.append(inner)
                last.append(stop)
                below.append([])
                todo.append((len(self.labels) - 1, deeper, inner, stop))
                begin = stop
        # order[first:last] are the tokens at a node and below it, order[first:own] those at the node itself
        self.first: npt.NDArray[np.int64] = np.array(first, dtype=np.int64)
        self.own: npt.NDArray[np.int64] = np.array(own, dtype=np.int64)
        self.last: npt.NDArray[np.int64] = np.array(last, dtype=np.int64)
        self.below: list[npt.NDArray[np.int64]] = [np.array(nodes, dtype=np.int64) for nodes in below]

    def without(self, characters: bytes) -> npt.NDArray[np.bool_]:
        """Return which tokens of the order have none of these bytes."""
        if characters not in self._without:
            self._without[characters] = np.array([text.translate(None, characters) == text for text in self._texts])
        return self._without[characters]


class Vocabulary:
    """The text that each token adds.

    ``works``: whether texts are the concatenation of what their tokens add. Tested on the decoder's parts and random
    tokens.
    """

    def __init__(self, tokenizer: Any, decode: Decode, *, skips: bool) -> None:
        self.size: int = len(tokenizer)
        self.single: dict[int, int] = {}
        self._inner: list[bytes] = []
        self._first: list[bytes] = []
        self._shown: list[bool] = []
        self.works: bool = self._reads(tokenizer, skips) and self._composes(decode)

    def ahead(self, token_ids: Sequence[int]) -> Ahead:
        """Return the state of decoding after some tokens."""
        length, ahead = last_state(token_ids, self) or (0, Ahead("", begins=True))
        for token in token_ids[length:]:
            if token < self.size and self._shown[token]:
                ahead = self._after(ahead, token)
        keep_state(token_ids, self, ahead)
        return ahead

    def _after(self, ahead: Ahead, token: int) -> Ahead:
        if token in self.single:
            return replace(ahead, run=ahead.run + bytes([self.single[token]]), begins=False)
        piece = (self._first if ahead.begins else self._inner)[token]
        text, pending = split(ahead.pending + piece)
        return Ahead(ahead.text + run_text(ahead.run) + text, pending)

    def trie(self, *, begins: bool) -> Trie:
        """Return the trie of tokens that add text, except single-byte tokens; ``begins`` for the start of a text."""
        return self._trie_of_first if begins and self._first != self._inner else self._trie

    def pieces(self, *, begins: bool) -> Sequence[bytes]:
        """Return the bytes that each token adds, by token id; ``begins`` for the start of a text."""
        return [
            piece if shown else b""
            for piece, shown in zip(self._first if begins else self._inner, self._shown, strict=True)
        ]

    def shows(self, token: int) -> bool:
        """Whether a token adds text."""
        return self._shown[token]

    @cached_property
    def hidden(self) -> npt.NDArray[np.int64]:
        """Ids of tokens that add no text."""
        return np.array([token for token in range(self.size) if not self._shown[token]], dtype=np.int64)

    @cached_property
    def _trie(self) -> Trie:
        return self._trie_of(self._inner)

    @cached_property
    def _trie_of_first(self) -> Trie:
        return self._trie_of(self._first)

    def _trie_of(self, pieces: Sequence[bytes]) -> Trie:
        return Trie(pieces, [token for token in range(self.size) if self._shown[token] and token not in self.single])

    def _reads(self, tokenizer: Any, skips: bool) -> bool:
        """Determine what each token adds. Returns whether that is possible."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return False

        def texts(before: Sequence[int]) -> list[str]:
            rows = [[*before, token] for token in range(self.size)]
            decoded: list[str] = backend.decode_batch(rows, skip_special_tokens=skips)
            return decoded

        alone = texts([])
        whole = [token for token, text in enumerate(alone) if text.strip() and REPLACEMENT not in text]
        if not whole:
            return False
        anchors = [[next((token for token in whole if alone[token].isalpha()), whole[0])], whole[-1:]]
        befores: list[str] = backend.decode_batch(anchors, skip_special_tokens=skips)
        after = [texts(anchor) for anchor in anchors]
        names = tokenizer.convert_ids_to_tokens(list(range(self.size)))
        parts = json.dumps(json.loads(backend.to_str()).get("decoder"))
        special = set(tokenizer.all_special_ids) if skips else set()
        letters = _byte_letters() if '"ByteLevel"' in parts else {}
        for token, name in enumerate(names):
            byte = BYTE.fullmatch(name or "") if '"ByteFallback"' in parts else None
            grown = [row[token] for row in after]
            if token in special or name is None:
                added, first = "", ""
            elif byte:
                self.single[token] = int(byte[1], 16)
                added, first = " ", " "
            elif not all(map(str.startswith, grown, befores)):
                return False
            else:
                added, other = (text[len(before) :] for text, before in zip(grown, befores, strict=True))
                first = alone[token]
                if added != other:
                    return False
            self._shown.append(bool(added))
            raw = added.encode("utf-8", "surrogatepass")
            if REPLACEMENT in added and letters:
                if not all(letter in letters for letter in name):
                    return False
                raw = bytes(letters[letter] for letter in name)
                if raw.decode("utf-8", "replace") != added:
                    return False
            self._inner.append(raw)
            self._first.append(raw if first == added else first.encode("utf-8", "surrogatepass"))
        return True

    def _composes(self, decode: Decode) -> bool:
        chance = random.Random(0)
        for _ in range(_TRIED):
            ids = [chance.randrange(self.size) for _ in range(24)]
            if any(self.ahead(ids[:end]).whole != decode(ids[:end]) for end in range(1, len(ids) + 1)):
                return False
        return True
