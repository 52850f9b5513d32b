"""Early abort: verdicts on unfinished attempts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from guardwrap.constraints.prefix_reader import PrefixReader, ReadPrefix
from guardwrap.constraints.verdicts import Monitor
from guardwrap.engine.scheduling.backend import keep_state, last_state
from guardwrap.models.vocabulary import BYTE, Decode, Vocabulary
from guardwrap.support.threads import cached_property
from guardwrap.support.transformers_internals import token_ids

LONG, WINDOW = 64, 12
"""From how many tokens on only the last ones are decoded, and how many these are.

With 1 000 tokens that takes 40 µs in place of 570, with 4 000 in place of 2 900: for 32 attempts longer than a step of
a model takes on a GPU.
"""

UNSTABLE = "this tokenizer rewrites text that it has already decoded"
"""Why there are no verdicts on prefixes if a ``StablePrefix`` does not work, in words."""

_REPLACEMENT = "\ufffd"
_PUNCTUATED = "Hello , world . I don 't know ; do you ? « Oui » ( n't ) 你好 🙂 \n\n  end !"


class StablePrefix:
    """Decodes unfinished attempts, up to where later tokens can no longer change the text.

    ``works``: whether a decoded prefix stays the same when more tokens follow. If not, prefix verdicts must not be
    used. Determined from the decoder's parts, and by a test on random tokens.
    """

    def __init__(self, tokenizer: Any, decode: Decode, *, skips: bool = True) -> None:
        self._decode = decode
        self._tokenizer = tokenizer
        self._skips = skips
        size = len(tokenizer)
        names = tokenizer.convert_ids_to_tokens(list(range(size)))
        # A run of byte tokens is decoded as a whole: one more byte can make all of it invalid, even line breaks.
        self._bytes = frozenset(i for i, name in enumerate(names) if name and BYTE.fullmatch(name))
        if self._bytes and skips:  # a special token that is left out does not end a run
            self._bytes |= frozenset(tokenizer.all_special_ids)
        sample = token_ids(tokenizer, _PUNCTUATED)
        self.works: bool = _acts_on_tokens(tokenizer) and self._grows_at_the_end(size, sample)
        # Parts of a decoder that are known look no further back than a character or a run of bytes.
        self._is_local = self.works and getattr(tokenizer, "backend_tokenizer", None) is not None

    def __call__(self, token_ids: Sequence[int], before: str = "", decode: Decode | None = None) -> str:
        """Return the text that every continuation begins with.

        ``before``: what was returned for all of them but the last, so that long texts need not be decoded again; or
        ``""``.
        """
        if before and self._is_local and len(token_ids) > LONG:
            return self._extended(token_ids, before, decode)
        end = len(token_ids)
        while end and token_ids[end - 1] in self._bytes:
            end -= 1
        # An incomplete UTF-8 sequence decodes to replacement characters; later tokens may complete it.
        return (decode or self._decode)(token_ids[:end]).rstrip(_REPLACEMENT)

    def _extended(self, token_ids: Sequence[int], before: str, decode: Decode | None) -> str:
        """Append to a text what the last token adds to it, as the tokens next to it tell."""
        window = token_ids[-WINDOW:]
        known, grown = (self(ids, decode=decode).lstrip(_REPLACEMENT) for ids in (window[:-1], window))
        # A window may begin in the middle of a character, the rest of which is left out, or of a run of bytes: then it
        # does not read as the whole does.
        if known and before.endswith(known) and grown.startswith(known):
            return before + grown[len(known) :]
        return self(token_ids, decode=decode)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The text that each token adds; None if that is not known. Computed once, in about a second."""
        if not self.works:
            return None
        vocabulary = Vocabulary(self._tokenizer, self._decode, skips=self._skips)
        if not vocabulary.works:
            return None
        for begins in (False, True):  # build the tries now, so that the thread of a batch need not
            vocabulary.trie(begins=begins)
        return vocabulary

    def _grows_at_the_end(self, size: int, sample: Sequence[int]) -> bool:
        chance = random.Random(0)
        sequences = [list(sample)] + [[chance.randrange(size) for _ in range(24)] for _ in range(40)]
        for ids in sequences:
            text = self._decode(ids)
            if not all(text.startswith(self(ids[:end])) for end in range(1, len(ids))):
                return False
        return True


def _acts_on_tokens(tokenizer: Any) -> bool:
    """Whether no part of the decoder rewrites text across tokens; True if its parts are not known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    fused = False
    stack = [decoder] if decoder else []
    while stack:
        part = stack.pop(0)
        kind = part["type"]
        if kind == "Sequence":
            stack = part["decoders"] + stack
        elif kind == "Fuse":
            fused = True
        elif kind == "Replace":
            pattern = part["pattern"].get("String")
            if fused and (pattern is None or len(pattern) > 1):
                return False
        elif kind not in ("ByteLevel", "Metaspace", "ByteFallback", "BPEDecoder", "Strip", "WordPiece"):
            return False
    return True


class PrefixWatch:
    """Judges running attempts of one prompt; the ``watch`` of a request.

    What it has read of an attempt is kept with the attempt's tokens, as long as these are ``TokenIds``. Other tokens
    are read from the beginning.
    """

    def __init__(self, reader: PrefixReader, decode: Callable[[Sequence[int], str], str]) -> None:
        self._reader = reader
        self._decode = decode

    def __call__(self, token_ids: Sequence[int]) -> str | None:
        """Return the title of the first part that no continuation of the tokens can satisfy, or None."""
        return self._read(token_ids).blame

    def place(self, token_ids: Sequence[int]) -> str | None:
        """Return where in the text the part that no continuation can satisfy is violated; None if not known."""
        return self._read(token_ids).place

    def settled(self, token_ids: Sequence[int]) -> str | None:
        """Return the text of tokens if each continuation satisfies the constraint; None if not, or not known."""
        reading = self._read(token_ids)
        return reading.text if reading.undecided is None else None

    def undecided(self, token_ids: Sequence[int]) -> str | None:
        """Return the title of the first part that tokens leave open; None if there is none."""
        return self._read(token_ids).undecided

    def violated(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Return for each candidate of the next token whether no text with it can satisfy the constraint."""
        before = self._read(token_ids)
        texts = [self._decode([*token_ids, token], before.text) for token in candidates]
        # A token that adds no visible text yet, such as half a character, is not judged yet.
        grown = [text[len(before.text) :] if text.startswith(before.text) else "" for text in texts]
        return self._reader.violated(before, grown)

    def adds_text(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Return for each candidate of the next token whether it adds visible text, which white space is not."""
        before = self._read(token_ids).text
        texts = (self._decode([*token_ids, token], before) for token in candidates)
        return [bool(text[len(before) :].strip()) for text in texts]

    def monitor(self, token_ids: Sequence[int]) -> tuple[str, Monitor]:
        """Return the text read so far, and a monitor that judges what comes after it."""
        before = self._read(token_ids)
        return before.text, self._reader.monitor(before)

    def _read(self, token_ids: Sequence[int]) -> ReadPrefix:
        state = last_state(token_ids, self)
        if state is not None and state[0] == len(token_ids):
            return state[1]  # type: ignore[no-any-return]  # what this watch has kept
        length, before = state or (0, self._reader.start)
        known = before.text if length + 1 == len(token_ids) else ""
        reading = self._reader.read(before, self._decode(token_ids, known))
        keep_state(token_ids, self, reading)
        return reading
