"""Decoded readings of a text: what its JSON strings, character references and percent escapes stand for."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import regex
from pydantic_core import from_json

from guardwrap.support.time_limits import check_deadline

DEPTH = 4
"""How often a text is decoded: once for a JSON document, and once more for each document within a string of another."""

_HEX = "[0-9A-Fa-f]"
# What is decoded, and what changes whether an escape of one letter is decoded: quotation marks and line breaks.
_TOKEN = regex.compile(
    rf"""(?P<code>\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|\\u{_HEX}{{4}}|\\x{_HEX}{{2}}|\\U{_HEX}{{8}}
        |\\u\{{{_HEX}{{1,6}}\}})
    |(?P<escape>\\.)|(?P<reference>&(?:\#[0-9]{{1,8}}|\#[xX]{_HEX}{{1,7}}|[A-Za-z][A-Za-z0-9]{{1,31}});)
    |(?P<percent>(?:%{_HEX}{{2}})+)|["\n]""",
    regex.VERBOSE | regex.DOTALL,
)
_LETTERS = {**dict(zip("bfnrt", "\b\f\n\r\t", strict=True)), **{char: char for char in '"\\/'}}
_OF_CODE = {**_LETTERS, "'": "'", "0": "\0", "a": "\a", "v": "\v"}


def decodings(text: str, *, anywhere: bool = False) -> Iterator[str]:
    r"""Yield a text with its escapes decoded, then that text decoded again, and so on while it changes.

    Decoded are ``\uXXXX``, ``\xXX``, ``\UXXXXXXXX`` and ``\u{X}``, character references such as ``&#65;`` and
    ``&amp;``, and percent escapes. Escapes of one letter, such as ``\n``, are those of JSON, behind a quotation mark in
    the same line, up to an escape that JSON does not have: elsewhere they are likely to belong to a path or to LaTeX.

    What a text that ends with a quotation mark or line break is decoded to, every longer one begins with.
    """
    for _ in range(DEPTH):
        if "\\" not in text and "&" not in text and "%" not in text:
            return
        decoded = "".join(_decoded(text, anywhere=anywhere))
        if decoded == text:
            return
        yield decoded
        text = decoded


def _decoded(text: str, *, anywhere: bool) -> Iterator[str]:
    letters, quoted, done = _OF_CODE if anywhere else _LETTERS, anywhere, 0
    for number, match in enumerate(_TOKEN.finditer(text)):
        if number % 1000 == 0:
            check_deadline()
        token = match.group()
        yield text[done : match.start()]
        done = match.end()
        if match["code"]:
            yield _of_code(token)
        elif match["escape"]:
            quoted = anywhere or (quoted and token[1] in letters)
            yield letters.get(token[1], token) if quoted else token
        elif match["reference"]:
            yield html.unescape(token)
        elif match["percent"]:
            yield unquote(token)
        else:
            quoted = anywhere or token == '"'
            yield token
    yield text[done:]


def _of_code(token: str) -> str:
    if len(token) == 12:  # a pair of surrogates
        return (bytes.fromhex(token[2:6]) + bytes.fromhex(token[8:])).decode("utf-16-be")
    number = int(token[2:].strip("{}"), 16)
    return chr(number) if number < 0x110000 else token


# An object becomes the list of its names and values, so that of a name that occurs twice both are found.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=lambda pairs: [item for pair in pairs for item in pair])
_BRACKET = regex.compile(r"[\[{]")


def json_strings(text: str, depth: int = DEPTH) -> Iterator[str]:
    """Yield the strings, keys among them, of JSON documents that a text is or contains, decoded.

    ``depth``: how many documents may be within each other: a string may be, or contain, a document itself.
    """
    for document in _documents(text):
        todo = [document]
        while todo:
            value = todo.pop()
            if isinstance(value, str):
                yield value
                if depth > 1:
                    yield from json_strings(value, depth - 1)
            elif isinstance(value, dict):
                todo += [*value.values(), *value]
            elif isinstance(value, list):
                todo += reversed(value)


def _documents(text: str) -> Iterator[Any]:
    start = len(text) - len(text.lstrip())
    if not text.startswith('"', start):
        bracket = _BRACKET.search(text)
        start = len(text) if bracket is None else bracket.start()
    while start < len(text):
        check_deadline()
        try:
            document, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            try:
                document, end = from_json(text[start:], allow_partial="trailing-strings"), len(text)
            except ValueError:
                document, end = None, start + 1
        yield document
        bracket = _BRACKET.search(text, end)
        start = len(text) if bracket is None else bracket.start()
