"""UTF-8 bytes that end in the middle of a character, and the characters that they can become."""

from __future__ import annotations

from codecs import getincrementaldecoder
from functools import lru_cache

import numpy as np

REPLACEMENT = "\ufffd"
"""The character that invalid UTF-8 bytes are decoded to."""

_decoder = getincrementaldecoder("utf-8")
_LONGER = {2: (0x1F, 0x80), 3: (0x0F, 0x800), 4: (0x07, 0x10000)}  # by length: bits of the first byte, first code point


def split(raw: bytes) -> tuple[str, bytes]:
    """Decode bytes, and return the text and the incomplete character at its end, if any."""
    if raw.isascii():
        return raw.decode("ascii"), b""
    decoder = _decoder("replace")
    text = decoder.decode(raw)
    return text, decoder.getstate()[0]


@lru_cache(512)
def characters(partial: bytes) -> str:
    """Return all characters whose UTF-8 begins with these bytes, in order."""
    length = 2 + (partial[0] >= 0xE0) + (partial[0] >= 0xF0)
    bits, first = _LONGER[length]
    code = partial[0] & bits
    for byte in partial[1:]:
        code = code << 6 | byte & 0x3F
    missing = 6 * (length - len(partial))
    codes = np.arange(max(code << missing, first), min((code + 1) << missing, 0x110000), dtype="<u4")
    whole = codes[(codes < 0xD800) | (codes > 0xDFFF)]  # surrogates are not characters
    return whole.tobytes().decode("utf-32-le")
