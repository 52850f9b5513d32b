"""House words: turns of phrase that readers found odd, and what to write instead.

``python -m tests.fixtures_house_words PATH ...`` prints where they occur.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

INSTEAD = {
    r"dear(?:er|est|ly)?": "expensive",
    r"misspel(?:t|ling of)": "misspelled",
    r"spelt": "spelled, written",
    r"but for(?! (?:a|the) (?:first|last) time)": "except",
    r"texts a prompt": "texts per prompt",
    r"go(?:es)? on(?! to\b)": "continues",
    r"went on": "continued",
    r"heed(?:s|ed|ing)?": "supported, respected",
    r"(?:is|are|was|were) told": "is reported, is shown",
    r"(?:is|are) said (?:by|in)": "is reported by",
    r"by its way from": "relative to",
    r"in the place of": "instead of, replaces",
    r"in its place": "instead",
    r"no time left": "no ETA",
    r"needs? no": "does not require",
    r"takes? no": "does not accept",
    r"refused by name": "rejected with an error that names it",
    r"what leaves": "what is returned",
    r"that which": "the thing itself",
    r"(?:has|have) it": "say what it means",
    r"[Oo]f the call\.": "say what it means",
    r"which else": "otherwise",
    r"would else": "would otherwise",
    r"be it": "whether",
    r"stands? (?:beside|for what|before what)": "name the relation",
    r"whoever": "the caller, the user",
    r"a text a prompt": "one text per prompt",
    r"by hand of": "by means of",
    r"as many as": "up to, as often as",
    r"so-many(?:th)?": "n-th",
    r"from of old": "already",
    r"found out": "detected, determined",
    r"made out": "determined",
    r"thought of": "considered",
    r"its own way": "name the way",
    r"in words of": "as",
    r"for good and all": "permanently",
    r"in their turn": "in order",
    r"hand(?:s|ed)? on": "passes, forwards",
    r"to hand": "available",
    r"at one go": "in one call",
    r"bear(?:s)? with": "tolerates",
    r"wish(?:es)? for": "requests",
    r"of late": "recently",
    r"anew": "again, from scratch",
    r"likeliest": "most likely",
    r"under way": "running, in flight",
    r"on its way": "in flight",
    r"for ever": "forever",
    r"worth the while": "worth it",
    r"as it stands": "unchanged",
    r"cannot be told": "is unknown, undecided",
    r"(?:makes?|comes?) of": "name what happens",
    r"stands? twice": "occurs twice",
}
"""Regular expressions, and what to write instead of what they match."""

PATTERN = re.compile("|".join(rf"(?P<w{i}>\b(?:{expression})(?!\w))" for i, expression in enumerate(INSTEAD)), re.I)


class Finding(NamedTuple):
    """Where a house word occurs."""

    place: str
    words: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}: {self.words!r}; write: {self.instead}"


def in_text(text: str, path: str, first_line: int = 1) -> Iterator[Finding]:
    """Find house words in prose. Lines may break within them.

    Parameters
    ----------
    text
        The prose.
    path
        The name of its file, for the findings.
    first_line
        The number of its first line.
    """
    flat = re.sub(r"\s", " ", text)
    flat = re.sub(r"(?<= ) +|(?<= )# ", lambda gap: "\0" * len(gap[0]), flat)
    kept = [i for i, character in enumerate(flat) if character != "\0"]
    for match in PATTERN.finditer("".join(flat[i] for i in kept)):
        line = first_line + text.count("\n", 0, kept[match.start()])
        yield Finding(f"{path}:{line}", match[0], list(INSTEAD.values())[int((match.lastgroup or "w0")[1:])])


def in_python(source: str, path: str) -> Iterator[Finding]:
    """Find house words in the comments, docstrings and messages of a Python file."""
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, words = token.start[0], token.string
            if comments and comments[-1][0] + comments[-1][1].count("\n") + 1 == line:
                comments[-1] = comments[-1][0], f"{comments[-1][1]}\n{words}"
            else:
                comments.append((line, words))
    for line, words in comments:
        yield from in_text(words, path, line)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from in_text(node.value, path, node.lineno)


def findings(path: Path) -> list[Finding]:
    """Return the house words of a file: of all of it, or of a Python file's comments and strings."""
    text = path.read_text(encoding="utf-8")
    return list(in_python(text, str(path)) if path.suffix == ".py" else in_text(text, str(path)))


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        for file in sorted([folder] if folder.is_file() else [*folder.rglob("*.py"), *folder.rglob("*.md")]):
            for finding in findings(file):
                print(finding)  # noqa: T201
